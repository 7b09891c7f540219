"""Cuts of edges, heads and layers: a circuit set by hand is found, and cuts equal what is computed in another way."""

from functools import partial

import pytest
import timm
import torch
from torch.testing import assert_close

import vit
from tests.analysis.circuits import HEAD, LAYER, TOKEN, bright_and_dark, circuit
from tests.architectures import ARCHITECTURES, made
from vit.analysis import attribute_edges, cut_edges, cut_heads, cut_layers, prune_heads, rank_correlation
from vit.explain import capture_attention


def strongest(falls):
    """The place of the largest effect in the mean over images, and that of the next largest as a share of it."""
    mean = falls.mean(dim=0).abs()
    first, second = mean.flatten().topk(2).values
    return tuple(int(x) for x in (mean == first).nonzero()[0]), (second / first).item()


def test_the_only_edge_of_a_circuit_set_by_hand_is_found():
    model, (images, _) = circuit(), bright_and_dark()
    edges = torch.stack(cut_edges(model, images, target=0), dim=1)
    assert edges.shape == (3, 3, 3, 5)
    found, next_largest = strongest(edges)
    assert found == (LAYER, HEAD, TOKEN)
    assert next_largest < 0.01
    assert (edges[:, LAYER, HEAD, TOKEN] > 0.05).all()
    attention = capture_attention(model, images)
    assert sum((attn[:, :, 0] > 0.9).sum().item() for attn in attention) == 3 * 9  # which attention does not tell


def test_the_only_head_and_layer_of_the_circuit_are_found():
    model, (images, _) = circuit(), bright_and_dark()
    assert strongest(torch.stack(cut_heads(model, images, target=0), dim=1)) == ((LAYER, HEAD), 0)
    assert strongest(cut_layers(model, images, target=0)) == ((LAYER,), 0)


def test_a_cut_edge_leaves_its_weight_to_the_others(ours, images):
    """As if the key were masked for this query and this head."""
    mechanism = ours.blocks[1].attn.mechanism

    def masked(head, key, q, k, v, **_):
        logits = torch.log(mechanism.weights(q, k))
        logits[:, head, 0, key] = -torch.inf
        return logits.softmax(dim=-1) @ v

    falls = cut_edges(ours, images, target=4)[1]
    for head, key in ((2, 0), (4, 9)):
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            intact = ours(images)[:, 4]
            patch.setattr(mechanism, "forward", partial(masked, head, key))
            assert_close(falls[:, head, key], intact - ours(images)[:, 4], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["ours", "timms", "transformers_vit"])
def test_cut_heads_are_pruned_heads(model, images, request):
    model = request.getfixturevalue(model)
    falls = cut_heads(model, images, target=3, against=5, batch_size=4)
    with torch.no_grad():

        def difference(model):
            logits = model(images)
            logits = getattr(logits, "logits", logits)
            return logits[:, 3] - logits[:, 5]

        for layer, head in ((0, 4), (2, 1)):
            without = difference(prune_heads(model, {layer: [head]}))
            assert_close(falls[layer][:, head], difference(model) - without, atol=1e-4, rtol=1e-4)
        without = difference(prune_heads(model, {1: range(5)}))
        assert_close(cut_layers(model, images, 3, against=5)[:, 1], difference(model) - without, atol=1e-4, rtol=1e-4)


def test_the_predicted_class_is_asked_about_by_default_and_batches_change_nothing(ours, images):
    predicted = ours(images).argmax(dim=-1)
    for function in (cut_edges, attribute_edges):
        own = function(ours, images[:3], batch_size=2)
        assert_close(own, function(ours, images[:3], predicted[:3], batch_size=64), atol=1e-4, rtol=1e-4)


def test_the_quick_form_is_exact_where_the_logit_is_linear_in_the_attention(images):
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        img_size=(12, 20), patch_size=4, embed_dim=40, depth=1, num_heads=5, num_classes=10, final_norm=False
    ).eval()
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.normal_(std=0.4)
        model.blocks[0].mlp.fc2.weight.zero_()
        model.head.weight.normal_()
    (quick,), (exhaustive,) = attribute_edges(model, images, 2, query=0), cut_edges(model, images, 2, query=0)
    assert exhaustive.abs().max() > 0.01
    assert_close(quick, exhaustive, atol=1e-5, rtol=1e-4)


def test_the_quick_form_ranks_nearly_as_the_cuts_do(ours, images):
    quick, exhaustive = (torch.stack(function(ours, images[:2], 1), dim=1) for function in (attribute_edges, cut_edges))
    agreement = rank_correlation(quick.flatten(1), exhaustive.flatten(1))
    assert (agreement > 0.5).all()
    assert (agreement < 1).all()


@pytest.mark.parametrize("name", ["ours, mean without class token", "timm, map", "torchvision", "vit-pytorch, ViT"])
def test_edges_of_every_library_are_cut(name):
    model, images = made(name), ARCHITECTURES[name].images()[:2]
    falls = cut_edges(model, images, batch_size=64)
    assert len(falls) == len(capture_attention(model, images))
    assert all(layer.isfinite().all() for layer in falls)
    assert any(layer.abs().max() > 0 for layer in falls)
    assert [layer.shape for layer in attribute_edges(model, images)] == [layer.shape for layer in falls]


def test_without_a_class_token_the_edges_of_all_patches_are_cut(images):
    torch.manual_seed(0)
    model = vit.VisionTransformer(
        (12, 20), 4, embed_dim=40, depth=1, num_heads=5, class_token=False, pool="mean"
    ).eval()
    (whole,) = cut_edges(model, images[:2], 1)
    (row,) = cut_edges(model, images[:2], 1, query=0)
    assert whole.shape == row.shape == (2, 5, 15)
    assert whole.abs().sum() > row.abs().sum()


def test_a_head_that_reads_one_token_alone_then_reads_nothing():
    from vit.analysis.knockout import _ratio

    assert _ratio(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.25])).tolist() == [1, 4]


def test_what_cannot_be_cut_is_refused(ours, images):
    with pytest.raises(ValueError, match="there is no class 10: the model has 10"):
        cut_heads(ours, images, target=10)
    with pytest.raises(ValueError, match="7 images have 2 classes"):
        cut_layers(ours, images, target=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="there is no token 16: the model has 16"):
        cut_edges(ours, images, query=16)
    with pytest.raises(ValueError, match="layer 1 has no heads left"):
        cut_heads(prune_heads(ours, {1: range(5)}), images)
    talking = vit.VisionTransformer(24, 8, embed_dim=24, depth=1, num_heads=3, attention="differential").eval()
    with torch.no_grad():
        talking.blocks[0].attn.qkv.weight.normal_()
    for function in (cut_edges, attribute_edges):
        with pytest.raises(ValueError, match=r"negative weights .* use cut_heads or cut_layers"):
            function(talking, torch.randn(2, 3, 24, 24), query=0)


def test_the_quick_form_is_refused_where_a_layer_has_no_gradient(ours, images):
    ours.blocks[1].register_forward_hook(lambda _, __, tokens: tokens.detach())
    with pytest.raises(ValueError, match=r"no gradient for some of its layers .*: use cut_edges"):
        attribute_edges(ours, images)


class Turned(torch.nn.Module):
    """A model that turns the order of its tokens between two blocks, which do not see it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        first, second = self.model.blocks
        return self.model.forward_head(self.model.norm(second(first(self.model.embed(images)).flip(1)).flip(1)))


@pytest.mark.parametrize("function", [cut_edges, attribute_edges])
def test_edges_are_those_of_the_tokens_also_where_a_layer_has_them_in_another_order(function):
    torch.manual_seed(0)
    model = vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=2, num_heads=3, num_classes=7).eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(2, 3, 6, 10)
    for found, expected in zip(function(Turned(model).eval(), images, 1), function(model, images, 1), strict=True):
        assert expected.abs().max() > 1e-4
        assert_close(found, expected, rtol=1e-3, atol=1e-6)
