"""Maps made from attention and its gradient, against numbers worked out by hand and against plain formulas."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.architectures import EXACT, IMAGES, ROWS, TARGET, TWO_HEADS, VERSUS
from tests.capture.test_invented_models import IMAGES as INVENTED
from tests.capture.test_invented_models import Layer, invented
from vit.capture import examine
from vit.capture.parts.token_places import Boundary
from vit.explain import METHODS, capture_attention, contributions, explain
from vit.explain.maps.subject import Subject

EACH_POOL = pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"pool": "mean", "num_registers": 2},
        {"pool": "mean", "class_token": False, "fc_norm": False},
        {"pool": "cls+mean"},
    ],
    ids=str,
)


class ByHand(nn.Module):
    """Two layers, two heads, three tokens (class token and 1 x 2 patches), with attention and gradients as given.

    Class 0 has the gradients below with respect to the attentions, and class 1 three times those with the other sign.
    """

    patch_size = 2
    slope_of_first = torch.tensor([[[-2.0, 1, 1], [4, 2, 1], [3, 4, -4]], [[1, 6, 1], [1, -4, 2], [2, 4, -4]]])
    slope_of_second = torch.tensor([[[5.0, 7, 4], [0, 0, 0], [0, 0, 0]], [[2, 9, -2], [0, 0, 0], [0, 0, 0]]])

    def forward(self, images):
        score, patches = 0, images.unflatten(-1, (2, 2)).mean(dim=(1, 2, 4))  # (B, 2)
        content = nn.functional.pad(patches, (1, 0))[:, None, :, None].expand(-1, 2, -1, -1)
        for attn, gradient in ((TWO_HEADS[0], self.slope_of_first), (TWO_HEADS[1], self.slope_of_second)):
            weights = attn.expand(len(images), -1, -1, -1).log().softmax(dim=-1)
            slopes = gradient.mT.expand(len(images), -1, -1, -1) + 0 * score  # the layers are in a row
            mixed = weights @ torch.cat([slopes, content], dim=-1)  # the content says which token is which patch
            score = score + mixed[..., :3].diagonal(dim1=-2, dim2=-1).sum(dim=(1, 2))[:, None, None, None]
        score = score.flatten()
        return torch.stack([score, -3 * score], dim=1)


def by_hand(method, **options):
    return explain(ByHand().eval(), torch.randn(2, 3, 2, 4), method, **options)


def both(*patches):
    return torch.tensor([[patches], [patches]])


def test_attention_is_the_row_of_the_class_token_in_one_layer():
    # Means of the heads: 1/4, 0, 3/4 in the second layer, 1/2, 1/2, 0 in the first.
    assert_close(by_hand("attention"), both(0.0, 0.75))
    assert_close(by_hand("attention", layer=1), both(0.0, 0.75))
    assert_close(by_hand("attention", layer=0), both(0.5, 0.0))
    assert_close(by_hand("attention", layer=-2), both(0.5, 0.0))


def test_attention_may_be_that_of_one_head():
    assert_close(by_hand("attention", layer=0, head=0), both(0.0, 0.0))
    assert_close(by_hand("attention", layer=0, head=1), both(1.0, 0.0))
    assert_close(by_hand("attention", head=1), both(0.0, 0.5))


def test_relevance_is_that_worked_out_by_hand():
    # Attention times gradient: of the first layer -2 0 0; 2 1 0; 0 1 -3 and 0 6 0; 0 -2 1; 1 1 -1. What is positive,
    # as the mean of the heads: 0 3 0; 1 .5 .5; .5 1 0. Of the second layer, class token: 0 0 4 and 1 0 -1: .5 0 2.
    # The row of the class token: (1 0 0) + (.5 0 2) = (1.5 0 2), and to that 1.5 (0 3 0) + 2 (.5 1 0) = (1 6.5 0).
    # If the mean came before the clamp, it would be (5.5 1.5).
    assert_close(by_hand("relevance", target=0), both(6.5, 2.0))
    assert_close(by_hand("relevance", target=0, start_layer=1), both(0.0, 2.0))


def test_relevance_of_another_class_has_its_own_gradient():
    # Times -3, what was negative counts: 6 0 0; 0 0 0; 0 0 9 and 0 0 0; 0 6 0; 0 0 3, mean 3 0 0; 0 3 0; 0 0 6.
    # Second layer: 0 0 0 and 0 0 3, mean 0 0 1.5. (1 0 1.5), and to that (3 0 0) + 1.5 (0 0 6) = (3 0 9).
    assert_close(by_hand("relevance", target=1), both(0.0, 10.5))


def test_versus_asks_for_the_difference_of_two_logits():
    # Class 0 less class 1 is 4 times class 0: 0 12 0; 4 2 2; 2 4 0 and 2 0 8.
    # (1 0 0) + (2 0 8) = (3 0 8), and to that 3 (0 12 0) + 8 (2 4 0) = (16 68 0).
    assert_close(by_hand("relevance", target=0, versus=1), both(68.0, 8.0))
    assert_close(by_hand("relevance", target=torch.tensor([0, 0]), versus=torch.tensor([1, 1])), both(68.0, 8.0))


def test_gradient_rollout_is_that_worked_out_by_hand():
    # The mean of the heads first, and then what is positive: 0 3 0; 1 0 .5; .5 1 0, and .5 0 1.5 for the class token.
    # With the identity, and rows that sum to one: (1.5 0 1.5) / 3 = (.5 0 .5), and in the first layer
    # (1 3 0) / 4, (1 1 .5) / 2.5, (.5 1 1) / 2.5. So .5 (.25 .75 0) + .5 (.2 .4 .4) = (.225 .575 .2).
    assert_close(by_hand("gradient_rollout", target=0), both(0.575, 0.2))
    assert_close(by_hand("gradient_rollout", target=0, start_layer=1), both(0.0, 0.5))


# Our model written out, so that nothing is left to be captured.


def written_out(model, images):
    """Attention of each layer, tokens after each layer, and logits."""
    attentions, outputs, x = [], [], model.embed(images)
    for block in model.blocks:
        q, k, v = block.attn.heads(block.norm1(x))
        attentions.append((q @ k.mT / 2).softmax(dim=-1))
        x = x + block.attn.proj((attentions[-1] @ v).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
        outputs.append(x)
    return attentions, outputs, model.forward_head(model.norm(x))


def patches_of(model, row):
    return row[:, model.num_prefix_tokens :].reshape(-1, 3, 5).clamp(min=0)


def readout_of(model):
    row = torch.zeros(model.pos_embed.shape[1], dtype=torch.float64)
    # The head has a matrix for each part of the feature. Its norm says how much the logits depend on the part.
    norms = [weights.norm().item() for weights in model.head.weight.split(12, dim=1)]
    if "cls" in model.pool:
        row[0] = norms[0]
    if "mean" in model.pool:
        row[model.num_prefix_tokens :] += norms[-1] / 15
    return row / row.sum()


def mixing(method, attn, gradient):
    product, eye = attn * gradient, torch.eye(attn.shape[-1], dtype=attn.dtype)
    if method == "relevance":
        return product.clamp(min=0).mean(dim=1) + eye
    mixed = product.mean(dim=1).clamp(min=0) + eye
    return mixed / mixed.sum(dim=-1, keepdim=True)


@EACH_POOL
@pytest.mark.parametrize("layer", [0, -1])
def test_attention_is_the_readout_of_a_layer(kwargs, layer, random_vit):
    model = random_vit(**kwargs)
    subject = Subject(model, IMAGES)
    attn = written_out(model, IMAGES)[0][layer]
    readout = readout_of(model)
    tolerance = {"rtol": 1e-6, "atol": 1e-9}
    expected = patches_of(model, torch.einsum("n,bhnm->bhm", readout, attn).mean(dim=1))
    assert_close(METHODS["attention"](subject, layer=layer), expected, **tolerance)
    for head in range(3):
        expected = patches_of(model, torch.einsum("n,bnm->bm", readout, attn[:, head]))
        assert_close(METHODS["attention"](subject, layer=layer, head=head), expected, **tolerance)


@EACH_POOL
@pytest.mark.parametrize(("versus", "start_layer"), [(None, 1), (VERSUS, 0)], ids=["", "versus"])
@pytest.mark.parametrize("method", ["relevance", "gradient_rollout"])
def test_relevance_and_gradient_rollout_are_the_readout_of_the_whole_product(
    method, kwargs, versus, start_layer, random_vit
):
    model = random_vit(**kwargs)
    attentions, _, logits = written_out(model, IMAGES)
    score = logits[ROWS, TARGET] - (0 if versus is None else logits[ROWS, versus])
    gradients = torch.autograd.grad(score.sum(), attentions)
    whole = eye = torch.eye(attentions[0].shape[-1], dtype=torch.float64)
    for attn, gradient in list(zip(attentions, gradients, strict=True))[start_layer:]:
        whole = mixing(method, attn, gradient) @ whole
    whole = whole - eye if method == "relevance" else whole
    expected = patches_of(model, torch.einsum("n,bnm->bm", readout_of(model), whole))
    found = explain(model, IMAGES, method, TARGET, versus=versus, start_layer=start_layer)
    assert_close(found, expected, rtol=1e-6, atol=1e-7)


@EACH_POOL
@pytest.mark.parametrize(("versus", "start_layer"), [(None, 2), (VERSUS, 0)], ids=["", "versus"])
def test_legrad_reads_the_mean_token_of_each_layer_with_the_head(kwargs, versus, start_layer, random_vit):
    model, maps = random_vit(**kwargs), []
    attentions, outputs, _ = written_out(model, IMAGES)
    for attn, tokens in list(zip(attentions, outputs, strict=True))[start_layer:]:
        feature = model.norm(tokens.mean(dim=1))
        feature = torch.cat([feature, feature], dim=1) if model.pool == "cls+mean" else feature
        logits = model.head(model.fc_norm(feature))
        score = logits[ROWS, TARGET] - (0 if versus is None else logits[ROWS, versus])
        (gradient,) = torch.autograd.grad(score.sum(), attn, retain_graph=True)
        maps.append(gradient.clamp(min=0).mean(dim=(1, 2)))
    expected = patches_of(model, torch.stack(maps).mean(dim=0))
    found = explain(model, IMAGES, "legrad", TARGET, versus=versus, start_layer=start_layer)
    assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("name", ["timm, map", "timm, map with class token"])
@pytest.mark.parametrize("method", ["relevance", "gradient_rollout"])
def test_relevance_and_gradient_rollout_go_through_attention_pooling(method, name, architectures, model_of):
    model, images = model_of(name), architectures[name].images()
    attentions = capture_attention(model, images)
    gradients = torch.autograd.grad(attentions.logits[:, 3].sum(), attentions)
    product = attentions[-1] * gradients[-1]
    pool = product.clamp(min=0).mean(dim=1) if method == "relevance" else product.mean(dim=1).clamp(min=0)
    pool = pool if method == "relevance" else pool / pool.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    row = nn.functional.pad(pool, (architectures[name].prefix, 0))
    for attn, gradient in reversed(list(zip(attentions[:-1], gradients[:-1], strict=True))):
        row = row @ mixing(method, attn, gradient)
    expected = row[:, 0, architectures[name].prefix :].reshape(2, 3, 5)
    assert_close(explain(model, images, method, 3), expected, **EXACT)


class Macaron(Layer):
    """Half an MLP with a norm of its own before the attention, or an adapter beside it."""

    def __init__(self, beside):
        super().__init__()
        self.norm0, self.beside = nn.LayerNorm(12), beside
        self.mlp0 = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))

    def forward(self, tokens):
        half = self.mlp0(self.norm0(tokens)) / 2
        tokens = tokens + self.attend(self.norm1(tokens if self.beside else tokens + half)) + half
        return tokens + self.mlp(self.norm2(tokens))


class NormedQueries(Layer):
    """No norm before the attention; queries are normed over all heads."""

    def forward(self, tokens):
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        q, k, v = (x.unflatten(-1, (3, -1)).transpose(1, 2) for x in (self.norm1(q), k, v))
        tokens = tokens + self.norm2(self.proj(self.join(self.mix(self, q, k, v))))
        return tokens + self.mlp(tokens)


@pytest.mark.parametrize("read", ["class token", "mean"])
@pytest.mark.parametrize(
    ("layer", "entering"),
    [
        (lambda: Macaron(beside=False), lambda layer: (layer.norm1, "output")),
        (lambda: Macaron(beside=True), lambda layer: (layer.norm1, "output")),
        (NormedQueries, lambda layer: (layer, "input")),
    ],
    ids=["MLP before", "adapter beside", "norm of queries"],
)
def test_gradcam_reads_the_tokens_that_enter_the_attention(layer, entering, read):
    model = invented(layer(), layer(), read=(lambda tokens: tokens.mean(dim=1)) if read == "mean" else None)
    module, side = entering(model.layers[-1])
    seen = []
    with Boundary(module, side).seen(lambda tokens: seen.append(tokens.requires_grad_())):
        logits = model(INVENTED)
    (gradient,) = torch.autograd.grad(logits[:, 2].sum(), seen[0])
    weights = gradient[:, 1:].mean(dim=1)
    expected = torch.einsum("bd,bnd->bn", weights, seen[0].detach()[:, 1:]).clamp(min=0).view(-1, 3, 5)
    assert expected.any()
    assert_close(explain(model, INVENTED, "gradcam", target=2), expected, **EXACT)


def test_a_pooled_model_of_timm_gives_legrad_of_all_tokens_alike(architectures, model_of):
    model, images = model_of("timm, map"), architectures["timm, map"].images()
    capture_attention(model, images)  # what it finds of a model is kept: the next first pass is that of all images
    tokens = []
    handles = [block.register_forward_hook(lambda _, args, output: tokens.append(output)) for block in model.blocks]
    attentions = capture_attention(model, images)
    for handle in handles:
        handle.remove()
    maps = []
    for attn, output in zip(attentions, tokens[:3], strict=False):
        alike = model.norm(output.mean(dim=1, keepdim=True).expand(-1, 15, -1))
        logits = model.head(model.fc_norm(model.attn_pool(alike)))
        (gradient,) = torch.autograd.grad(logits[:, 3].sum(), attn, retain_graph=True)
        maps.append(gradient.clamp(min=0).mean(dim=(1, 2)))
    assert_close(explain(model, images, "legrad", 3), torch.stack(maps).mean(dim=0).reshape(2, 3, 5), **EXACT)


# Target and versus.

OF_A_CLASS = ["gradient_rollout", "relevance", "legrad"]


@pytest.mark.parametrize("method", OF_A_CLASS)
def test_without_a_target_the_predicted_class_is_explained(method, random_vit):
    model, images = random_vit(pool="cls+mean"), 5 * IMAGES
    predicted = model(images).argmax(dim=-1)
    assert len(set(predicted.tolist())) > 1
    assert_close(explain(model, images, method), explain(model, images, method, predicted), rtol=0, atol=0)


@pytest.mark.parametrize("method", OF_A_CLASS)
def test_each_class_has_its_own_map_and_each_pair_of_classes(method, random_vit):
    model = random_vit()
    maps = [explain(model, IMAGES, method, 1), explain(model, IMAGES, method, 4)]
    maps += [explain(model, IMAGES, method, 1, versus=4), explain(model, IMAGES, method, 4, versus=1)]
    for i, one in enumerate(maps):
        for other in maps[:i]:
            assert not one.allclose(other, rtol=0.1)


# Refusals.


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("attention", {"layer": 3}, r"layer \(3\) must be one of 3 layers, from -3 to 2"),
        ("attention", {"layer": -4}, r"layer \(-4\) must be one of 3 layers, from -3 to 2"),
        ("attention", {"head": 3}, r"head \(3\) must be one of 3 heads, from 0 to 2"),
        ("attention", {"head": 1.0}, r"head \(1.0\) must be one of 3 heads, from 0 to 2"),
        ("attention", {"head": -1}, r"head \(-1\) must be one of 3 heads, from 0 to 2"),
        *((method, {"start_layer": 3}, r"start_layer \(3\) must be one of the 3 layers") for method in OF_A_CLASS),
        *((method, {"start_layer": -1}, r"start_layer \(-1\) must be one of the 3 layers") for method in OF_A_CLASS),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_refused(method, options, message, random_vit):
    with pytest.raises(ValueError, match=message):
        explain(random_vit(), IMAGES, method, **options)


def test_modules_side_by_side_are_no_layers_that_legrad_could_read(random_vit):
    class SideBySide(nn.Module):
        """Norms, attentions and MLPs in a list each."""

        def __init__(self, model):
            super().__init__()
            self.model = model
            parts = ("norm1", "attn", "norm2", "mlp")
            lists = [nn.ModuleList(getattr(block, part) for block in model.blocks) for part in parts]
            self.norms1, self.attns, self.norms2, self.mlps = lists
            model.blocks = nn.ModuleList()

        def forward(self, images):
            tokens = self.model.embed(images)
            for norm1, attn, norm2, mlp in zip(self.norms1, self.attns, self.norms2, self.mlps, strict=True):
                tokens = tokens + mlp(norm2(tokens))
                tokens = tokens + attn(norm1(tokens))
            return self.model.forward_head(self.model.norm(tokens))

    model = SideBySide(random_vit(depth=2)).eval()
    assert examine(model, IMAGES).parts.layers == []
    with pytest.raises(ValueError, match="legrad needs a module for each layer that takes its tokens"):
        explain(model, IMAGES, "legrad")
    assert explain(model, IMAGES, "relevance").shape == (len(IMAGES), *examine(model, IMAGES).grid)


class Lists(nn.Module):
    """Attentions and MLPs in a list each. A norm comes after a branch, or as a function before it."""

    def __init__(self, model, norms):
        super().__init__()
        self.model, self.norms = model, norms
        self.attns = nn.ModuleList(block.attn for block in model.blocks)
        self.mlps = nn.ModuleList(block.mlp for block in model.blocks)
        model.blocks = nn.ModuleList()

    def forward(self, images):
        def norm(x):
            return nn.functional.layer_norm(x, x.shape[-1:])

        tokens = self.model.embed(images)
        for attn, mlp in zip(self.attns, self.mlps, strict=True):
            for part in (attn, mlp):
                tokens = tokens + (norm(part(tokens)) if self.norms == "after" else part(norm(tokens)))
        return self.model.forward_head(self.model.norm(tokens))


@pytest.mark.parametrize(("norms", "found"), [("after", 3), ("before", 0)])
def test_an_attention_that_gets_the_sum_itself_gets_the_residual_stream(norms, found, random_vit):
    model, sums = Lists(random_vit(), norms).double().eval(), []
    layers = examine(model, IMAGES).parts.layers
    assert len(layers) == found
    if layers:
        with layers[1].seen(sums.append):
            model(IMAGES)
        tokens = model.model.embed(IMAGES)
        norm = partial(nn.functional.layer_norm, normalized_shape=tokens.shape[-1:])
        tokens = tokens + norm(model.attns[0](tokens))
        assert_close(sums[0], tokens + norm(model.mlps[0](tokens)), **EXACT)


def test_legrad_is_that_of_the_model_whatever_its_head_does_with_the_number_of_images():
    def run(model, images):
        tokens = model.norm(model.through(model.embed(images)))
        return model.head(tokens.reshape(len(images), -1, tokens.shape[-1])[:, 0])

    assert_close(explain(invented(run=run), INVENTED, "legrad"), explain(invented(), INVENTED, "legrad"), **EXACT)


def test_weights_that_are_changed_in_place_are_named_where_a_gradient_is_needed():
    def in_place(layer, q, k, v):
        weights = (q @ k.mT / 2).softmax(dim=-1)
        weights[..., 3] = 0
        return weights @ v

    with pytest.raises(ValueError, match=r"have no gradient .* if values are changed in place"):
        explain(invented(Layer(), Layer(in_place)), INVENTED, "relevance")


def test_legrad_without_a_final_norm_is_refused(random_vit):
    class Bare(nn.Module):
        def __init__(self, vit):
            super().__init__()
            self.vit = vit

        def forward(self, images):
            tokens = self.vit.embed(images)
            for block in self.vit.blocks:
                tokens = block(tokens)
            return self.vit.head(tokens[:, 0])

    with pytest.raises(ValueError, match=r"legrad needs .* a final norm, .*: choose 'relevance'"):
        METHODS["legrad"](Subject(Bare(random_vit()).eval(), IMAGES))


@pytest.mark.parametrize("method", ["relevance", "gradient_rollout"])
def test_a_class_with_a_token_of_its_own_is_read_from_this_token_alone(method):
    def scores(model, images):
        return model.norm(model.through(model.embed(images)))[:, :4].mean(dim=-1)

    images = torch.randn(3, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    several = invented(prefix=4, run=scores)
    one = invented(prefix=4, run=lambda model, images: scores(model, images)[:, 2:3])
    assert_close(explain(several, images, method, 2), explain(one, images, method), **EXACT)


def test_a_class_whose_logit_reads_nothing_has_a_map_without_holes(random_vit):
    model = random_vit(pool="mean")
    with torch.no_grad():
        model.head.weight[2] = 0
    assert (explain(model, IMAGES, "relevance", 2) == 0).all()
    rolled = explain(model, IMAGES, "gradient_rollout", 2)
    assert_close(rolled, torch.full_like(rolled, 1 / 15), **EXACT)


@pytest.mark.parametrize("method", ["relevance", "gradient_rollout", "legrad"])
def test_what_a_layer_adds_to_a_small_share_is_not_rounded_away_in_half_precision(method, random_vit):
    model = random_vit(pool="mean").bfloat16()
    exact = deepcopy(model).double()
    images = IMAGES.bfloat16()
    found = explain(model, images, method, TARGET)
    assert found.dtype == torch.float32
    expected = explain(exact, images.double(), method, TARGET).float()
    assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.95


@pytest.mark.parametrize("part", ["all", "end"])
def test_a_checkpoint_changes_no_map_and_no_terms(part):
    def run(model, images):
        if part == "all":
            return checkpoint(
                lambda images: model.read(model.through(model.embed(images))), images, use_reentrant=False
            )
        return checkpoint(model.read, model.through(model.embed(images)), use_reentrant=False)

    plain, kept = invented(), invented(run=run)
    for method in ("legrad", "relevance", "gradcam"):
        assert_close(explain(kept, INVENTED, method), explain(plain, INVENTED, method), **EXACT)
    assert_close(contributions(kept, INVENTED).heads, contributions(plain, INVENTED).heads, **EXACT)
