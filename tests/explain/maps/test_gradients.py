"""Maps made of gradients, against gradients taken by hand."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.architectures import EXACT, IMAGES, ROWS, TARGET, VERSUS, randomised
from tests.capture.test_invented_models import IMAGES as INVENTED
from tests.capture.test_invented_models import Layer, invented
from tests.capture.wrapped_model import Around
from vit.explain import METHODS, explain
from vit.explain.maps.methods import signed_map
from vit.explain.maps.noise import draw_for_each
from vit.explain.maps.subject import Subject

OF_PIXELS = ["input_gradient", "integrated_gradients", "smoothgrad"]


def signed(method, model, images=IMAGES, target=TARGET, versus=None, **options):
    return signed_map(method, Subject(model, images, target, versus), **options)


def score(model, images, versus=None):
    logits = model(images)
    return logits[ROWS, TARGET] - (0 if versus is None else logits[ROWS, versus])


def gradient(model, images, versus=None):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(score(model, images, versus).sum(), images)[0]


def summed_by_patch(pixels, rows=3, columns=5):
    """(B, C, H, W) -> (B, rows, columns), pixel by pixel."""
    height, width = pixels.shape[-2] // rows, pixels.shape[-1] // columns
    found = torch.zeros(len(pixels), rows, columns, dtype=pixels.dtype)
    for y in range(pixels.shape[-2]):
        for x in range(pixels.shape[-1]):
            found[:, y // height, x // width] += pixels[:, :, y, x].sum(dim=1)
    return found


# Grad-CAM.


def gradcam_by_hooks(model, norm, prefix, score):
    kept = []
    handle = norm.register_forward_hook(lambda _, args, output: kept.append(output))
    value = score(model)
    handle.remove()
    (slope,) = torch.autograd.grad(value.sum(), kept[0])
    tokens, slope = kept[0][:, prefix : prefix + 15], slope[:, prefix : prefix + 15]
    weights = slope.sum(dim=1) / 15
    return (tokens * weights[:, None]).sum(dim=-1).clamp(min=0).reshape(-1, 3, 5)


@pytest.mark.parametrize("kwargs", [{}, {"num_registers": 2}, {"pool": "mean"}, {"pool": "cls+mean"}], ids=str)
@pytest.mark.parametrize("layer", [0, -1])
def test_gradcam_is_that_of_hooks_on_the_norm_of_a_layer(kwargs, layer, random_vit):
    model = random_vit(**kwargs)
    norm, prefix = model.blocks[layer].norm1, model.num_prefix_tokens
    expected = gradcam_by_hooks(model, norm, prefix, lambda model: score(model, IMAGES, VERSUS))
    assert expected.any()
    assert_close(explain(model, IMAGES, "gradcam", TARGET, versus=VERSUS, layer=layer), expected, **EXACT)


def test_gradcam_of_a_compiled_forward_is_that_of_the_model(random_vit):
    model = random_vit()
    expected = explain(model, IMAGES, "gradcam", TARGET)
    model.forward = torch.compile(model.forward, backend="eager")
    with torch.no_grad():
        model(IMAGES)  # compiled before any hook is there
    assert_close(explain(model, IMAGES, "gradcam", TARGET), expected, **EXACT)


def test_gradcam_of_timm_reads_the_last_layer_by_default(architectures, model_of):
    model, images = model_of("timm, registers"), architectures["timm, registers"].images()
    expected = gradcam_by_hooks(model, model.blocks[-1].norm1, 3, lambda model: model(images)[:, 4])
    assert_close(explain(model, images, "gradcam", 4), expected, **EXACT)


class PostNorm(nn.Module):
    """A ViT whose layers normalise behind their attention, read at the class token."""

    def __init__(self):
        super().__init__()
        self.patches, self.cls = nn.Conv2d(3, 12, 2, stride=2), nn.Parameter(torch.zeros(1, 1, 12))
        layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True, norm_first=False)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(12, 7)

    def forward(self, images):
        patches = self.patches(images).flatten(2).mT
        return self.head(self.encoder(torch.cat([self.cls.expand(len(images), -1, -1), patches], dim=1))[:, 0])


def test_gradcam_behind_post_norm_layers_is_taken_where_tokens_enter_the_last_one():
    model = randomised(PostNorm())
    with torch.no_grad():
        patches = model.patches(IMAGES).flatten(2).mT
        tokens = torch.cat([model.cls.expand(3, -1, -1), patches], dim=1)
        for layer in model.encoder.layers[:2]:
            tokens = layer(tokens)
    kept = tokens.requires_grad_()
    logits = model.head(model.encoder.layers[2](kept)[:, 0])
    (gradient,) = torch.autograd.grad(logits[:, TARGET].diagonal().sum(), kept)
    expected = (gradient[:, 1:].mean(dim=1, keepdim=True) * kept[:, 1:]).sum(dim=-1).clamp(min=0).view(3, 3, 5)
    assert expected.amax() > 0
    assert_close(explain(model, IMAGES, "gradcam", TARGET), expected.detach(), **EXACT)


class Adapter(nn.Module):
    """A linear layer with a low-rank adapter beside it, which is no ``nn.Linear``, as in peft."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = (nn.Linear(base.in_features, 2, False), nn.Linear(2, base.out_features, False))

    def forward(self, tokens):
        return self.base(tokens) + self.up(self.down(tokens))


class Adapted(nn.Module):
    """Attention, then a norm, with an adapter on the queries."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = Adapter(nn.Linear(12, 12)), nn.Linear(12, 12), nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, tokens, *_, **__):
        q, k, v = (
            made.unflatten(-1, (3, 4)).transpose(1, 2)
            for made in (self.query(tokens), self.key(tokens), self.value(tokens))
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.norm(tokens + mixed)


def test_an_adapter_on_the_queries_is_not_taken_for_a_norm(random_vit):
    torch.manual_seed(0)
    model = random_vit(depth=2)
    model.blocks = nn.Sequential(randomised(Adapted()), randomised(Adapted())).double()
    kept = []
    handle = model.blocks[1].register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    (slope,) = torch.autograd.grad(score(model, IMAGES).sum(), kept)
    handle.remove()
    weights = slope[:, 1:].mean(dim=1)
    expected = (kept[0][:, 1:] * weights[:, None]).sum(dim=-1).clamp(min=0).reshape(-1, 3, 5)
    assert_close(explain(model, IMAGES, "gradcam", TARGET), expected.detach(), **EXACT)


def test_gradcam_of_a_frozen_model_is_the_same(random_vit):
    expected = explain(random_vit(), IMAGES, "gradcam", TARGET, layer=0)
    assert_close(explain(random_vit().requires_grad_(False), IMAGES, "gradcam", TARGET, layer=0), expected, **EXACT)


@pytest.mark.parametrize("layer", [3, -4])
def test_gradcam_of_a_layer_that_does_not_exist_is_refused(layer, random_vit):
    with pytest.raises(ValueError, match=rf"layer \({layer}\) must be one of 3 layers, from -3 to 2"):
        explain(random_vit(), IMAGES, "gradcam", layer=layer)


# Gradients of pixels.


@pytest.mark.parametrize("versus", [None, VERSUS], ids=["", "versus"])
def test_input_gradient_is_the_pixels_times_their_gradient(versus, random_vit):
    model = random_vit()
    expected = summed_by_patch(IMAGES * gradient(model, IMAGES, versus))
    assert_close(signed("input_gradient", model, versus=versus), expected, **EXACT)
    assert (expected < 0).any()
    assert_close(explain(model, IMAGES, "input_gradient", TARGET, versus=versus), expected.clamp(min=0), **EXACT)


def test_a_model_that_normalises_each_patch_owes_nothing_to_its_scale(architectures, model_of):
    found = explain(model_of("vit-pytorch, ViT"), architectures["vit-pytorch, ViT"].images(), "input_gradient")
    assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-3)


@pytest.mark.filterwarnings("ignore:with steps=[12], the sums of these maps miss")
def test_integrated_gradients_add_up_to_what_the_image_adds_to_grey(random_vit):
    model = random_vit()
    with torch.no_grad():
        owed = score(model, IMAGES, VERSUS) - score(model, torch.zeros_like(IMAGES), VERSUS)
    errors = [
        (signed("integrated_gradients", model, versus=VERSUS, steps=steps).sum(dim=(1, 2)) - owed).abs().max().item()
        for steps in (1, 2, 4, 8)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3 * owed.abs().max() < 0.1 * errors[0]


def test_too_few_steps_of_integrated_gradients_come_with_a_warning_that_names_more(architectures, model_of):
    """Each patch is normalised first, so the score moves where the image is nearly grey."""
    name = "vit-pytorch, ViT"
    model, images = model_of(name), architectures[name].images()
    with pytest.warns(UserWarning, match=r"with steps=32, the sums .* miss the difference .* by \d+ %: give steps=128"):
        signed_map("integrated_gradients", Subject(model, images))


def test_integrated_gradients_are_the_mean_gradient_on_the_way_from_grey(random_vit):
    model, steps = random_vit(), 100
    way = [(i + 0.5) / steps for i in range(steps)]  # another rule of integration than Captum's
    mean = sum(gradient(model, share * IMAGES) for share in way) / steps
    expected = summed_by_patch(IMAGES * mean)
    assert_close(signed("integrated_gradients", model, steps=50), expected, rtol=1e-3, atol=1e-3)
    default = signed("integrated_gradients", model, steps=32)
    assert_close(signed("integrated_gradients", model), default, **EXACT)


def rounded(model, tokens):
    return tokens.round()


def rounded_straight_through(model, tokens):
    return tokens + (rounded(model, tokens) - tokens).detach()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (rounded, "the gradient of Around by the pixels is 0, although its logits depend on them"),
        (rounded_straight_through, r"of Around between grey and an image do not add up .* where numbers are rounded"),
    ],
)
def test_integrated_gradients_that_do_not_add_up_are_refused(change, reason, random_vit):
    def run(model, images):
        tokens = change(model, model.embed(images))
        for block in model.blocks:
            tokens = block(tokens)
        return model.forward_head(model.norm(tokens))

    model = Around(random_vit(), run).eval()
    with pytest.raises(ValueError, match=reason):
        explain(model, IMAGES, "integrated_gradients")
    for method in ("input_gradient", "smoothgrad"):
        if change is rounded:
            with pytest.raises(ValueError, match=reason):
                explain(model, IMAGES, method)


def test_integrated_gradients_from_a_grey_image_without_a_score_are_refused(random_vit):
    def run(model, images):
        return model(images / images.std(dim=(1, 2, 3), keepdim=True))

    with pytest.raises(ValueError, match="of Around for a grey image are NaN or infinite"):
        explain(Around(random_vit(), run).eval(), IMAGES, "integrated_gradients")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # of passes without a gradient
@pytest.mark.parametrize("method", OF_PIXELS)
def test_a_reentrant_checkpoint_does_not_keep_pixels_from_their_gradient(method, random_vit):
    def run(model, images):
        tokens = model.embed(images)
        for block in model.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=True)
        return model.forward_head(model.norm(tokens))

    model = random_vit()
    assert_close(explain(Around(model, run).eval(), IMAGES, method), explain(model, IMAGES, method), **EXACT)


def test_integrated_gradients_of_many_images_are_those_of_each(random_vit, monkeypatch):
    monkeypatch.setattr("vit.explain.maps.gradients.SAMPLES_AT_ONCE", 2)  # fewer than there are images
    model = random_vit()
    alone = [signed("integrated_gradients", model, IMAGES[i : i + 1], int(TARGET[i]), steps=5) for i in range(3)]
    assert_close(signed("integrated_gradients", model, steps=5), torch.cat(alone), **EXACT)


def test_smoothgrad_without_noise_is_the_magnitude_of_the_gradient(random_vit):
    model = random_vit()
    expected = summed_by_patch(gradient(model, IMAGES).abs())
    assert_close(signed("smoothgrad", model, noise=0.0, samples=3), expected, **EXACT)


def test_smoothgrad_is_the_magnitude_of_the_mean_gradient_of_noisy_copies(random_vit):
    model, total = random_vit(), 0
    widths = torch.tensor([2.0, 0.5, 11.0], dtype=torch.float64)[:, None, None, None]
    images = widths * (IMAGES - IMAGES.amin(dim=(1, 2, 3), keepdim=True))
    images = images / (images.amax(dim=(1, 2, 3), keepdim=True) / widths) - 1  # from -1 to widths - 1
    for sample in range(5):
        noise = draw_for_each(images, IMAGES.shape[1:], 7, sample, draw=torch.randn)
        total = total + gradient(model, images + 0.3 * widths * noise)
    expected = summed_by_patch((total / 5).abs())
    assert_close(signed("smoothgrad", model, images, samples=5, noise=0.3, seed=7), expected, **EXACT)


def test_the_noise_of_smoothgrad_does_not_depend_on_the_place_in_the_batch(random_vit):
    model = random_vit()
    together = explain(model, IMAGES, "smoothgrad", samples=3)
    for index, image in enumerate(IMAGES):
        assert_close(explain(model, image[None], "smoothgrad", samples=3)[0], together[index], **EXACT)


def test_smoothgrad_is_reproducible_and_its_noise_has_a_seed(random_vit):
    model = random_vit()
    torch.manual_seed(0)
    first = explain(model, IMAGES, "smoothgrad")
    state = torch.get_rng_state()
    assert_close(explain(model, IMAGES, "smoothgrad"), first, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(explain(model, IMAGES, "smoothgrad", samples=16, noise=0.15, seed=0), first, rtol=0, atol=0)
    assert not explain(model, IMAGES, "smoothgrad", seed=1).allclose(first)


def test_smoothgrad_of_no_samples_is_refused(random_vit):
    with pytest.raises(ValueError, match=r"samples \(0\) must be a positive whole number: 16 is usual"):
        explain(random_vit(), IMAGES, "smoothgrad", samples=0)


@pytest.mark.parametrize("steps", [0, -1])
def test_integrated_gradients_of_no_steps_are_refused(steps, random_vit):
    with pytest.raises(ValueError, match=rf"steps \({steps}\) must be a positive whole number: 32 is usual"):
        explain(random_vit(), IMAGES, "integrated_gradients", steps=steps)


@pytest.mark.parametrize("method", ["input_gradient", "integrated_gradients"])
def test_the_map_of_a_difference_is_the_difference_of_the_maps(method, random_vit):
    model = random_vit()
    one, other = signed(method, model), signed(method, model, target=VERSUS)
    assert_close(signed(method, model, versus=VERSUS), one - other, **EXACT)
    assert_close(signed(method, model, target=VERSUS, versus=TARGET), other - one, **EXACT)


@pytest.mark.parametrize("method", OF_PIXELS)
def test_gradients_of_pixels_need_a_patch_size_and_no_attention(method):
    class Pixels(torch.nn.Module):
        patch_size = (2, 5)

        def forward(self, images):
            return images.square().flatten(1)[:, :7]

    assert METHODS[method](Subject(Pixels().eval(), torch.randn(2, 3, 6, 10))).shape == (2, 3, 2)


@pytest.mark.parametrize("method", [*OF_PIXELS, "occlusion"])
def test_without_captum_the_extra_is_named(method, random_vit, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ValueError, match=r"^this needs captum.attr, which is not installed: pip install '.*explain"):
        explain(random_vit(), IMAGES, method)
    assert explain(random_vit(), IMAGES, "gradcam").shape == (3, 3, 5)


class FunctionNorm(Layer):
    """Normalises by a function."""

    def forward(self, tokens):
        tokens = tokens + self.attend(nn.functional.layer_norm(tokens, (12,), self.norm1.weight, self.norm1.bias))
        return tokens + self.mlp(self.norm2(tokens))


class NormTwice(Layer):
    """Calls its norm once more, for what no logit reads."""

    def forward(self, tokens):
        self.norm1(3 * tokens + 1)
        return super().forward(tokens)


@pytest.mark.parametrize("kind", [FunctionNorm, NormTwice])
def test_gradcam_reads_the_norm_before_the_attention_however_it_is_called(kind):
    model, plain = invented(kind(), kind()), invented(Layer(), Layer())
    for layer in (0, 1):
        expected = explain(plain, INVENTED, "gradcam", target=2, layer=layer)
        assert expected.any()
        assert_close(explain(model, INVENTED, "gradcam", target=2, layer=layer), expected, **EXACT)


class Sum(nn.Module):
    """Adds positions to tokens."""

    def forward(self, tokens, positions, factor=1):
        return tokens + factor * positions


class PositionsBehindNorm(Layer):
    """Adds positions behind the norm of its attention, by a module or not."""

    def __init__(self, by_module):
        super().__init__()
        self.add, self.by_module = Sum(), by_module
        self.positions = nn.Parameter(torch.randn(16, 12))

    def forward(self, tokens):
        normed = self.norm1(tokens)
        summed = self.add(normed, self.positions, factor=2) if self.by_module else normed + 2 * self.positions
        tokens = tokens + self.attend(summed)
        return tokens + self.mlp(self.norm2(tokens))


def test_a_module_of_further_arguments_behind_the_norm_is_no_norm():
    model, plain = (invented(PositionsBehindNorm(by_module), PositionsBehindNorm(by_module)) for by_module in (1, 0))
    expected = explain(plain, INVENTED, "gradcam", target=2)
    assert_close(explain(model, INVENTED, "gradcam", target=2), expected, **EXACT)


class NormOfNorm(Layer):
    """A norm before the norm of the attention."""

    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(12)

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(self.before(tokens)))
        return tokens + self.mlp(self.norm2(tokens))


def test_gradcam_reads_the_last_of_two_norms_before_the_attention():
    model = invented(NormOfNorm(), NormOfNorm())
    expected = gradcam_by_hooks(model, model.layers[1].norm1, 1, lambda model: model(INVENTED)[:, 2])
    assert_close(explain(model, INVENTED, "gradcam", target=2), expected, **EXACT)


class NormOfValues(Layer):
    """Values have a norm of their own."""

    def __init__(self):
        super().__init__()
        self.of_values = nn.LayerNorm(12)

    def attend(self, tokens):
        q, k, v = self.split(tokens)
        v = self.of_values(self.join(v)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.proj(self.join(self.mix(self, q, k, v)))


def test_gradcam_does_not_take_a_norm_of_values_for_one_of_tokens():
    model = invented(NormOfValues(), NormOfValues())
    expected = gradcam_by_hooks(model, model.layers[1].norm1, 1, lambda model: model(INVENTED)[:, 2])
    assert_close(explain(model, INVENTED, "gradcam", target=2), expected, **EXACT)


@pytest.mark.parametrize("layer", [0, 1])
def test_gradcam_tells_layers_that_share_a_norm_apart(layer, random_vit):
    model = random_vit()
    for block in model.blocks:
        block.norm1 = model.blocks[0].norm1
    copied = copy.deepcopy(model)
    for block in copied.blocks:
        block.norm1 = copy.deepcopy(block.norm1)
    expected = explain(copied, IMAGES, "gradcam", layer=layer)
    assert_close(explain(model, IMAGES, "gradcam", layer=layer), expected, **EXACT)
