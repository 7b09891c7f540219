import pytest
import torch
import torch.nn.functional as F
import torchvision
from einops import rearrange

import vit
from vit.analysis import ablation_importance, head_importance, prune_heads, weight_importance
from vit.analysis.importance import mean_attention
from vit.capture.attention import capture_attention, run_intercepted


def loss(model, images, labels, edit):
    with torch.no_grad():
        return F.cross_entropy(run_intercepted(model, images, edit), labels).item()


def gated(layer, head, gate):
    """An edit that multiplies one head's attention."""

    def edit(number, attn):
        factors = torch.ones(attn.shape[1], dtype=attn.dtype)
        if number == layer:
            factors[head] = gate
        return attn * rearrange(factors, "h -> h 1 1")

    return edit


def test_importance_is_the_mean_slope_of_the_loss_of_an_image_at_the_gate(ours, images, labels):
    ours, images = ours.double(), images.double()
    found = head_importance(ours, images, labels, batch_size=3)
    assert [len(layer) for layer in found] == [5, 5, 5]
    for layer, head in ((0, 4), (2, 1)):
        slopes = [
            loss(ours, x[None], y[None], gated(layer, head, 1 + 1e-5))
            - loss(ours, x[None], y[None], gated(layer, head, 1 - 1e-5))
            for x, y in zip(images, labels, strict=True)
        ]
        assert found[layer][head].item() == pytest.approx(sum(map(abs, slopes)) / 2e-5 / 7, rel=1e-6)


def test_importance_is_attention_times_its_gradient(timms, images, labels):
    attentions = capture_attention(timms, images)
    total = F.cross_entropy(attentions.logits, labels, reduction="sum")
    gradients = torch.autograd.grad(total, attentions)
    found = head_importance(timms, images, labels)
    for layer, attn, gradient in zip(found, attentions, gradients, strict=True):
        torch.testing.assert_close(layer, (attn * gradient).sum((-1, -2)).abs().mean(0).detach(), rtol=1e-4, atol=1e-6)


def test_normalised_layers_have_norm_one(ours, images, labels):
    plain = head_importance(ours, images, labels)
    for layer, before in zip(head_importance(ours, images, labels, normalised=True), plain, strict=True):
        torch.testing.assert_close(layer, before / before.square().sum().sqrt())


def test_labels_default_to_the_predicted_classes(ours, images):
    predicted = ours(images).argmax(-1)
    for importance in (head_importance, ablation_importance):
        for given, taken in zip(importance(ours, images, predicted), importance(ours, images), strict=True):
            torch.testing.assert_close(given, taken)


def test_frozen_models_are_measured_and_parameters_get_no_gradient(ours, images, labels):
    expected = head_importance(ours, images, labels)
    with torch.no_grad():
        for found, layer in zip(head_importance(ours.requires_grad_(False), images, labels), expected, strict=True):
            torch.testing.assert_close(found, layer)
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_ablation_is_the_rise_of_the_loss_without_the_head(ours, images, labels):
    found = ablation_importance(ours, images, labels, batch_size=3)
    plain = loss(ours, images, labels, lambda _, attn: attn)
    for layer, head in ((0, 0), (1, 3)):
        without = loss(ours, images, labels, gated(layer, head, 0))
        assert found[layer][head].item() == pytest.approx(without - plain, abs=1e-5)


def test_mean_ablation_replaces_attention_by_its_mean_over_images(ours, images, labels):
    means = mean_attention(ours, images, batch_size=3)
    expected = [attn.mean(0) for attn in capture_attention(ours, images)]
    torch.testing.assert_close(means, [mean.detach() for mean in expected])

    def edit(number, attn):
        if number == 1:
            attn = attn.clone()
            attn[:, 2] = means[1][2]
        return attn

    found = ablation_importance(ours, images, labels, replacement="mean", batch_size=3)
    plain = loss(ours, images, labels, lambda _, attn: attn)
    assert found[1][2].item() == pytest.approx(loss(ours, images, labels, edit) - plain, abs=1e-5)
    # The mean over a single image is its own attention.
    for layer in ablation_importance(ours, images[:1], labels[:1], replacement="mean"):
        torch.testing.assert_close(layer, torch.zeros(5), atol=1e-5, rtol=0)


def test_weight_importance_is_the_mean_size_of_a_heads_weights(ours):
    attention = ours.blocks[1].attn
    rows = [part[16:24] for part in attention.qkv.weight.chunk(3)]
    sizes = [part.abs().mean() for part in (*rows, attention.proj.weight[:, 16:24])]
    assert weight_importance(ours)[1][2].item() == pytest.approx(sum(sizes).item() / 4)


def test_models_of_torchvision_are_measured():
    model = torchvision.models.VisionTransformer(24, 8, 2, 3, 24, 48, num_classes=5).eval()
    torch.nn.init.normal_(model.heads.head.weight)
    for importance in (head_importance, ablation_importance):
        assert [layer.shape for layer in importance(model, torch.randn(2, 3, 24, 24))] == [(3,), (3,)]
    assert [layer.shape for layer in weight_importance(model)] == [(3,), (3,)]


def test_invalid_arguments_are_refused(ours, images, labels):
    with pytest.raises(ValueError, match="7 images have 6 labels"):
        head_importance(ours, images, labels[:6])
    with pytest.raises(ValueError, match="unknown replacement 'noise'"):
        ablation_importance(ours, images, labels, replacement="noise")
    with pytest.raises(ValueError, match="there are no images"):
        head_importance(ours, images[:0])


def test_layers_are_counted_as_by_prune_heads_where_one_has_lost_all_heads(ours, images, labels):
    pruned = prune_heads(ours, {0: range(5), 2: [1]})
    sizes = [len(layer) for layer in weight_importance(pruned)]
    assert sizes == [0, 5, 4]
    for importance in (head_importance, ablation_importance):
        assert [len(layer) for layer in importance(pruned, images, labels)] == sizes
    assert (
        prune_heads(pruned, {1: head_importance(pruned, images, labels)[1].argsort()[:2]}).blocks[1].attn.num_heads == 3
    )


@pytest.mark.parametrize("importance", [head_importance, ablation_importance])
def test_sums_are_not_rounded_to_the_type_of_the_model(ours, images, labels, importance):
    expected = torch.stack(importance(ours, images, labels))
    many = images.bfloat16().repeat(20, 1, 1, 1), labels.repeat(20)
    found = torch.stack(importance(ours.bfloat16(), *many, batch_size=140))
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_attention_with_a_norm_after_its_heads_is_refused(images):
    model = vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=1, num_heads=5, attention="differential").eval()
    with pytest.raises(
        ValueError, match=r"the norm after each head of DifferentialAttention .* use ablation_importance"
    ):
        head_importance(model, images)


@pytest.mark.parametrize("importance", [head_importance, ablation_importance])
def test_attention_without_influence_is_no_layer(ours, watched, images, labels, importance):
    torch.testing.assert_close(importance(watched, images, labels), importance(ours, images, labels))


def test_layers_without_a_gradient_are_refused(ours, images, labels):
    ours.blocks[1].register_forward_hook(lambda _, __, tokens: tokens.detach())
    with pytest.raises(ValueError, match=r"no gradient for some of its layers .*: use ablation_importance"):
        head_importance(ours, images, labels)
    assert ablation_importance(ours, images, labels)[0].any()
