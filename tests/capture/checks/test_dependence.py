"""Layers are those that the logits depend on, with or without a gradient, one after another."""

import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.architectures import EXACT, of_transformers, randomised
from tests.capture.handwritten_attention import expected_attention, fused, logits_between, spelled
from tests.capture.wrapped_model import Around
from vit import VisionTransformer
from vit.capture import capture_attention, examine
from vit.capture.checks.dependence import Dependents, influential
from vit.capture.checks.places import parts_of_image
from vit.capture.parts.trace import trace_forward
from vit.explain import explain

IMAGES = torch.randn(2, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def passed(vit, images, step):
    """Logits of the model with ``step(number, block, tokens)`` in place of each of its blocks."""
    tokens = vit.embed(images)
    for number, block in enumerate(vit.blocks):
        tokens = step(number, block, tokens)
    return vit.read(tokens)


def detached(vit, images):
    return passed(vit, images, lambda number, block, tokens: block(tokens.detach() if number == 1 else tokens))


def first_two_without_gradient(vit, images):
    def step(number, block, tokens):
        with torch.set_grad_enabled(number == 2):
            return block(tokens)

    return passed(vit, images, step)


@torch.no_grad()
def all_without_gradient(vit, images):
    return vit(images)


def frozen(vit, images):
    with torch.no_grad():
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
    return vit.read(tokens.detach())


def data_alone(vit, images):
    return passed(vit, images, lambda _, block, tokens: block(tokens.data))


WITHOUT = pytest.mark.parametrize(
    "run", [detached, first_two_without_gradient, all_without_gradient, frozen, data_alone]
)


@WITHOUT
def test_layers_without_a_gradient_are_captured_and_numbered(run):
    vit = spelled(fused, fused, fused)
    model = Around(vit, run).eval()
    assert_close(list(capture_attention(model, IMAGES)), expected_attention(vit, IMAGES), **EXACT)
    assert examine(model, IMAGES).calls == (0, 1, 2)


@WITHOUT
def test_maps_without_gradients_are_those_of_the_model_with_them(run):
    vit = spelled(fused, fused, fused)
    for method in ("rollout", "attention"):
        assert_close(explain(Around(vit, run).eval(), IMAGES, method), explain(vit, IMAGES, method), **EXACT)


@WITHOUT
@pytest.mark.parametrize("method", ["relevance", "gradient_rollout", "input_gradient", "smoothgrad"])
def test_maps_of_gradients_that_do_not_exist_are_refused(run, method):
    with pytest.raises(ValueError, match="the logits of Around have no gradient for some of its layers or pixels"):
        explain(Around(spelled(fused, fused, fused), run).eval(), IMAGES, method)


def test_attention_without_gradient_and_influence_is_no_layer():
    def aside(vit, images):
        with torch.no_grad():
            vit.blocks[0](vit.embed(images))
        return vit(images)

    vit = spelled(fused, fused)
    model = Around(vit, aside).eval()
    assert_close(list(capture_attention(model, IMAGES)), expected_attention(vit, IMAGES), **EXACT)
    assert examine(model, IMAGES).calls == (1, 2)


def test_a_call_that_reaches_the_logits_through_a_later_one_is_influential():
    assert influential(Dependents([{1}, {2}, {-1}, set()], ())) == [0, 1, 2]
    assert influential(Dependents([{1}, set()], ())) == []


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # in a pass without gradients
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_that_a_model_calls_itself_are_off(use_reentrant):
    def run(vit, images):
        return passed(vit, images, lambda _, block, tokens: checkpoint(block, tokens, use_reentrant=use_reentrant))

    vit = spelled(fused, fused, fused)
    model = Around(vit, run).eval()
    for method in ("relevance", "legrad", "gradient_rollout"):
        assert_close(explain(model, IMAGES, method), explain(vit, IMAGES, method), **EXACT)
    attentions = capture_attention(model, IMAGES)
    assert all(gradient.any() for gradient in torch.autograd.grad(attentions.logits[:, 3].sum(), attentions))


def test_calls_without_a_gradient_are_tried_some_at_a_time(monkeypatch):
    monkeypatch.setattr("vit.capture.checks.dependence.COPIES_AT_ONCE", 2)
    model, sizes = Around(spelled(fused, fused, fused), all_without_gradient).eval(), []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    trace_forward(model, IMAGES)
    assert sizes[-2:] == [2 + 2, 2 + 1]  # two calls, then the third, each beside two copies that stay


# Attentions that are no layers in a row.


def head_by_head(q, k, v):
    return torch.cat([fused(q[:, i : i + 1], k[:, i : i + 1], v[:, i : i + 1]) for i in range(3)], dim=1)


def two_products(q, k, v):
    attn = logits_between(q, k).softmax(dim=-1)
    return attn @ v + (attn @ v.flip(-1)).tanh()


def refusal_of(call, model, images):
    with pytest.raises(ValueError, match=type(model).__name__) as refused:
        call(model, images)
    return str(refused.value)


@pytest.mark.parametrize("mix", [head_by_head, two_products])
def test_loops_over_heads_and_two_value_products_are_refused_in_the_same_words(mix):
    model = spelled(mix, mix, mix)
    said = refusal_of(capture_attention, model, IMAGES)
    assert said == refusal_of(examine, model, IMAGES)
    assert refusal_of(explain, model, IMAGES).startswith(said)
    assert "Spelled has attentions side by side (number 1 does not depend on number 0), as in" in said


@pytest.mark.parametrize("without_gradient", [False, True])
def test_mirrored_passes_are_refused_in_the_same_words(without_gradient):
    def mirrored(vit, images):
        with torch.set_grad_enabled(not without_gradient):
            return vit(images) + vit(images.flip(-1))

    model = Around(spelled(fused, fused, fused), mirrored).eval()
    said = refusal_of(capture_attention, model, IMAGES)
    assert said == refusal_of(examine, model, IMAGES)
    assert "(number 3 does not depend on number 2)" in said


# Attention that is not over tokens of whole images.


def in_windows(dilated):
    def split(x):
        x = x.unflatten(2, (4, 4))
        return (x.transpose(2, 3) if dilated else x).flatten(1, 2)

    def mix(q, k, v):
        mixed = fused(split(q), split(k), split(v)).unflatten(1, (3, 4))
        return (mixed.transpose(2, 3) if dilated else mixed).flatten(2, 3)

    return mix


def interleaved(count):
    """Mix every ``count``-th token, in the place of heads (LongNet, Ding et al. 2023)."""

    def split(x):
        return x.unflatten(2, (-1, count)).transpose(2, 3).flatten(1, 2)

    def mix(q, k, v):
        return fused(split(q), split(k), split(v)).unflatten(1, (3, count)).transpose(2, 3).flatten(2, 3)

    return mix


class Patches(Around):
    """A model of ours on the patches of square images, without class token."""

    def forward(self, images):
        tokens = self.vit.patches(images).flatten(2).mT + self.vit.positions
        for block in self.vit.blocks:
            tokens = block(tokens)
        return self.vit.read(tokens)


def over_channels(q, k, v):
    return ((q.mT @ k / 2).softmax(dim=-1) @ v.mT).mT


SQUARE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (in_windows(dilated=False), "Patches attends within windows or spans that are folded into heads"),
        (in_windows(dilated=True), "Patches attends within windows or spans that are folded into heads"),
        *((interleaved(count), "attends within windows or spans that are folded into heads") for count in (2, 8)),
        (over_channels, "its attention is over channels"),
    ],
    ids=["contiguous windows", "dilated windows", "every 2nd", "every 8th", "channels"],
)
def test_windows_in_heads_and_channels_are_refused_in_the_same_words(mix, words, layers):
    model = Patches(spelled(*layers * [mix], pool="mean")).eval()
    said = refusal_of(capture_attention, model, SQUARE)
    assert words in said
    assert said == refusal_of(examine, model, SQUARE)


class Cropped(Patches):
    """It sees the centre of the images alone."""

    def forward(self, images):
        return super().forward(images[..., 6:-6, 6:-6])


@pytest.mark.parametrize("count", [2, 4, 8])
def test_tokens_of_a_cropped_image_that_are_interleaved_into_heads_are_refused(count):
    images = torch.randn(2, 3, 20, 20, dtype=torch.float64)
    assert len(capture_attention(Cropped(spelled(fused, pool="mean")).eval(), images)) == 1
    with pytest.raises(ValueError, match="attends within windows or spans that are folded into heads"):
        capture_attention(Cropped(spelled(interleaved(count), pool="mean")).eval(), images)


@pytest.mark.parametrize("seed", range(6))
def test_heads_of_one_channel_that_noise_hardly_moves_by_chance_are_read(seed):
    torch.manual_seed(seed)
    vit = VisionTransformer(64, 4, embed_dim=12, depth=1, num_heads=12, mlp_ratio=1).eval()
    assert capture_attention(vit, torch.randn(1, 3, 64, 64))[0].shape == (1, 12, 257, 257)


def test_an_image_of_one_line_has_no_empty_half():
    halves, bands = parts_of_image(torch.zeros(1, 3, 1, 5))
    assert [int(half.sum()) for half in halves] == [1, 3, 2]
    assert [int(band.sum()) for band in bands] == [1, 1, 1]


def test_weights_that_are_multiplied_by_a_matrix_of_the_model_are_refused():
    matrix = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    model = spelled(lambda q, k, v: (matrix @ logits_between(q, k).softmax(dim=-1)) @ v)
    with pytest.raises(ValueError, match=r"has values of 1 of \d+ copies of an image .*, as if a matrix of the model"):
        capture_attention(model, IMAGES)


@pytest.mark.parametrize("call", [capture_attention, examine, explain])
def test_no_images_are_refused(call):
    with pytest.raises(ValueError, match="there are no images: give at least one"):
        call(spelled(fused), IMAGES[:0])


def test_images_without_pixels_are_refused():
    with pytest.raises(ValueError, match="images are on the meta device, which holds no pixels: load model and images"):
        capture_attention(spelled(fused).to("meta"), IMAGES.to("meta"))


@pytest.mark.parametrize("method", ["value", "value_rollout"])
def test_one_set_of_weights_serves_the_values_of_all_heads(method):
    def shared(q, k):
        return logits_between(q, k).mean(dim=1, keepdim=True).softmax(dim=-1)

    one = spelled(*2 * [lambda q, k, v: shared(q, k) @ v])
    each = spelled(*2 * [lambda q, k, v: shared(q, k).expand(-1, 3, -1, -1) @ v])
    assert_close(explain(one, IMAGES, method), explain(each, IMAGES, method))


@pytest.mark.parametrize("mask_ratio", [0.0, 0.75])
def test_encoder_and_decoder_of_vitmae_are_no_list_of_layers(mask_ratio):
    decoder = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    options = {f"decoder_{name}": value for name, value in decoder.items()} | {"mask_ratio": mask_ratio}
    model = randomised(of_transformers("ViTMAEForPreTraining", image_size=8, **options)())
    for call in (capture_attention, examine):
        refusal_of(call, model, SQUARE)
