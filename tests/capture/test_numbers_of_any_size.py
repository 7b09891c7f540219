"""Models whose logits or tokens are far larger or smaller than 1: masked classes, offsets, units, small tokens."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import IMAGES, WIDTH, Layer, invented, noted_by, softmax
from vit.capture import capture_attention
from vit.explain import contributions, explain
from vit.explain.maps import Subject, signed_map

MASKS = [-1e4, -1e9, torch.finfo(torch.float64).min]


def masked(read, value):
    """A model whose last classes are masked, read by a function of the model and the tokens of each layer."""

    def run(model, images):
        tokens, stages = model.embed(images), []
        for layer in model.layers:
            tokens = layer(tokens)
            stages.append(tokens)
        logits = read(model, stages)
        return torch.cat([logits[:, :4], torch.full_like(logits[:, 4:], value)], dim=1)

    return invented(run=run)


def last(model, stages):
    return model.read(stages[-1])


def of_two_layers(model, stages):
    return model.read(stages[-1]) + model.read(stages[0])


@pytest.mark.parametrize("value", MASKS)
def test_masked_classes_hide_no_tokens_of_earlier_layers(value):
    assert explain(masked(last, value), IMAGES, "rollout", target=0).shape == (3, 3, 5)
    with pytest.raises(ValueError, match="read more than its last tokens"):
        explain(masked(of_two_layers, value), IMAGES, "rollout", target=0)


@pytest.mark.parametrize("value", MASKS)
def test_masked_classes_hide_no_images_that_change_each_other(value):
    model = masked(lambda model, stages: F.normalize(last(model, stages), dim=0), value)
    for read in (lambda: explain(model, IMAGES, "occlusion", target=0), lambda: capture_attention(model, IMAGES)):
        with pytest.raises(ValueError, match="images of a batch change each other"):
            read()


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-12])
def test_relevance_of_averaged_tokens_does_not_depend_on_the_unit_of_the_logits(scale):
    model = invented(read=lambda tokens: tokens.mean(dim=1))
    expected = explain(model, IMAGES, "relevance", target=3)
    with torch.no_grad():
        model.head.weight *= scale
        model.head.bias *= scale
    found = explain(model.float(), IMAGES.float(), "relevance", target=3).double()
    # To first order, the map is as small as the logits.
    if scale < 1:
        first_order = sum(
            (attn * gradient).clamp(min=0).mean(dim=1).mean(dim=1)[:, 1:]
            for attn, gradient in attentions_and_gradients(model.double(), 3)
        ).view(3, 3, 5)
        assert_close(found / scale, first_order.double() / scale, rtol=1e-4, atol=0)
    else:
        assert_close(found, expected, rtol=1e-4, atol=1e-6)


def attentions_and_gradients(model, target):
    attentions = capture_attention(model, IMAGES)
    gradients = torch.autograd.grad(attentions.logits[:, target].sum(), list(attentions))
    return [(attn.detach(), gradient) for attn, gradient in zip(attentions, gradients, strict=True)]


class Doubled(Layer):
    """Adds attention to twice its tokens."""

    def forward(self, tokens):
        tokens = 2 * tokens + self.attend(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e-8])
def test_a_skip_connection_that_is_scaled_is_seen_in_small_tokens(size):
    model = invented(
        Doubled(), Layer(), run=lambda model, images: model.read(model.through(size * model.embed(images)))
    )
    with pytest.raises(ValueError, match="does not add the output of its attention alone and directly"):
        explain(model, IMAGES, "value_rollout")


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_a_head_that_is_not_linear_has_no_terms_in_any_unit(scale):
    def run(model, images):
        return scale * model.head(F.gelu(model.more(model.norm(model.through(model.embed(images)))[:, 0])))

    with pytest.raises(ValueError, match="are not linear in the tokens"):
        contributions(invented(run=run), IMAGES)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_the_terms_of_a_linear_head_add_up_in_any_unit(scale):
    model = invented()
    with torch.no_grad():
        model.head.weight *= scale
        model.head.bias *= scale
    found = contributions(model, IMAGES)
    assert_close(found.total / scale, model(IMAGES).amax(dim=1) / scale, **EXACT)


class Placed(Layer):
    """Adds positions to its tokens, by a module of its own, before its first norm."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(self.first(tokens)))
        return tokens + self.mlp(self.norm2(tokens))


class Positions(nn.Module):
    """Adds learned positions."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 16, WIDTH))

    def forward(self, tokens):
        return tokens + self.table


@pytest.mark.parametrize("first", [nn.Identity(), Positions(), nn.Tanh()], ids=["none", "positions", "tanh"])
def test_gradcam_is_taken_after_the_first_norm_and_not_after_a_module_before_it(first):
    model, kept = invented(Layer(), Placed(first)), []
    handle = model.layers[1].norm1.register_forward_hook(lambda _, __, output: kept.append(output))
    logits = model(IMAGES)
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[:, 3].sum(), kept[0])
    weights = gradient[:, 1:].mean(dim=1)
    expected = torch.einsum("bd,bnd->bn", weights, kept[0][:, 1:]).clamp(min=0).view(3, 3, 5)
    assert_close(explain(model, IMAGES, "gradcam", target=3), expected.detach(), **EXACT)


def test_tokens_that_are_placed_on_a_circle_cannot_be_dropped():
    def circle(layer, q, k, v):
        count = q.shape[-2]
        apart = (torch.arange(count)[:, None] - torch.arange(count)).abs()
        weights = (q @ k.mT / 2 - torch.minimum(apart, count - apart).to(q)).softmax(dim=-1)
        layer.note(lambda: weights)
        return weights @ v

    def run(model, images):
        return model.read(model.through(model.patches(images).flatten(2).mT))

    model = invented(Layer(circle), run=run, read=lambda tokens: tokens.mean(dim=1))
    assert_close(capture_attention(model, IMAGES)[0], noted_by(model, IMAGES)[0], **EXACT)
    with pytest.raises(ValueError, match="cannot be left out"):
        signed_map("token_drop", Subject(model, IMAGES))


def test_a_token_of_all_that_is_added_to_each_is_no_pooling():
    class Context(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(torch.randn(1, 1, 1, WIDTH))

        def forward(self, tokens):
            keys = tokens[:, None]
            return tokens + F.scaled_dot_product_attention(self.query.expand(len(tokens), -1, -1, -1), keys, keys)[:, 0]

    context = Context().double()

    def run(model, images):
        return model.read(model.through(model.embed(images), lambda n, layer, x: layer(context(x) if n == 1 else x)))

    with pytest.raises(ValueError, match="an attention of one query before an attention of all tokens"):
        capture_attention(invented(run=run), IMAGES)


def test_a_layer_with_attention_of_fewer_bits_has_the_maps_and_terms_of_its_own_type():
    def in_float32(layer, q, k, v):
        return (softmax(q.float(), k.float()) @ v.float()).double()

    one, other = invented(Layer(in_float32), Layer()), invented(Layer(), Layer())
    for method in ("rollout", "relevance", "gradient_rollout", "legrad", "value", "attnlrp"):
        assert_close(explain(one, IMAGES, method), explain(other, IMAGES, method), rtol=1e-4, atol=1e-6)
    heads = contributions(other, IMAGES).heads
    assert_close(contributions(one, IMAGES).heads, heads, rtol=1e-4, atol=1e-6 * float(heads.max()))


@pytest.mark.parametrize("count", [1, 3])
def test_weights_of_a_model_whose_last_classes_are_masked_by_infinity_are_read_and_maps_name_the_remedy(count):
    model, images = masked(last, -torch.inf), IMAGES[:count]
    assert_close(list(capture_attention(model, images)), noted_by(model, images), **EXACT)
    with pytest.raises(ValueError, match="NaN or infinite: mask classes by a finite number such as -1e4"):
        explain(model, images, "rollout", target=0)
    with pytest.raises(ValueError, match=r"logits moved by nan|differ by nan"):
        capture_attention(masked(last, torch.nan), images)
