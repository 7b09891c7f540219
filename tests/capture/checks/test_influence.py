"""Tokens that do not take what an attention gives them: a rollout would carry it on."""

import pytest
import torch
from torch.testing import assert_close

from tests.architectures import EXACT
from tests.capture.test_invented_models import IMAGES, Layer, invented, noted_by, rolled
from vit.capture import examine
from vit.capture.checks.influence import lost_tokens
from vit.explain import explain

PROMPTS = slice(1, 4)


class ClassTokenAlone(Layer):
    """Only the class token takes what the attention gives."""

    def forward(self, tokens):
        added = self.attend(self.norm1(tokens))
        tokens = torch.cat([tokens[:, :1] + added[:, :1], tokens[:, 1:]], dim=1)
        return tokens + self.mlp(self.norm2(tokens))


class Faint(Layer):
    """The attention adds very little, as with LayerScale before a training."""

    def forward(self, tokens):
        tokens = tokens + 1e-6 * self.attend(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


def lost(model, images):
    """The tokens that do not take what an attention gives them."""
    found = examine(model, images)
    read = (found.readout > 0).expand(len(images), -1)
    return lost_tokens(model, images, found.calls, found.depth, found.reading.place, read)


def with_prompts_before(number):
    """A run that puts other prompts in the place of those of the layer before (Jia et al. 2022, VPT-deep)."""

    def run(model, images):
        tokens = model.embed(images)
        for layer in range(3):
            if layer == number:
                prompts = model.more(model.first[:, PROMPTS]).expand(len(tokens), -1, -1)
                tokens = torch.cat([tokens[:, :1], prompts, tokens[:, 4:]], dim=1)
            tokens = model.layers[layer](tokens)
        return model.read(tokens)

    return run


@pytest.mark.parametrize("number", [1, 2])
def test_prompts_that_a_layer_puts_in_anew_are_found(number):
    model = invented(prefix=4, run=with_prompts_before(number))
    assert lost(model, IMAGES) == (number - 1, 0, 3)
    for method in ("rollout", "value_rollout"):
        with pytest.raises(ValueError, match=f"3 of 19 tokens of Invented do not take .* of layer {number - 1}"):
            explain(model, IMAGES, method)


def test_prompts_before_the_first_layer_are_tokens_like_others():
    model = invented(prefix=4, run=with_prompts_before(0))
    assert lost(model, IMAGES) is None


@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_that_changes_the_class_token_alone_is_found(number):
    model = invented(*(ClassTokenAlone() if layer == number else Layer() for layer in range(3)))
    with pytest.raises(ValueError, match=f"15 of 16 tokens of Invented do not take .* of layer {number}"):
        explain(model, IMAGES, "rollout")


def test_maps_by_gradients_leave_out_what_is_not_taken():
    model = invented(ClassTokenAlone(), Layer())
    assert explain(model, IMAGES, "relevance").shape == (3, 3, 5)


def test_the_last_layer_may_change_the_class_token_alone():
    assert explain(invented(Layer(), ClassTokenAlone()), IMAGES, "rollout").shape == (3, 3, 5)


def test_an_attention_that_adds_little_is_taken():
    assert lost(invented(Faint(), Faint(), Faint()).float(), IMAGES.float()) is None


class Gated(Layer):
    """The attention is added for some images alone."""

    def forward(self, tokens):
        tokens = tokens + self.is_open * self.attend(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


def open_for_bright(model, images):
    """The second layer is skipped for dark images (Meng et al. 2022, AdaViT)."""
    is_bright = (images.mean(dim=(1, 2, 3)) > 0)[:, None, None]
    for number, layer in enumerate(model.layers):
        layer.is_open = is_bright if number == 1 else 1.0
    return model.read(model.through(model.embed(images)))


@pytest.mark.parametrize("method", ["rollout", "value_rollout"])
def test_a_layer_that_is_skipped_for_a_later_image_is_found(method):
    model = invented(Gated(), Gated(), Gated(), run=open_for_bright)
    brightness = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, 1.0])[:, None, None, None]
    images = torch.cat([IMAGES, IMAGES.flip(0)])
    images = images - images.mean(dim=(1, 2, 3), keepdim=True) + brightness
    with pytest.raises(ValueError, match=r"16 of 16 tokens of Invented .* layer 1 gives them \(image 4 of the batch\)"):
        explain(model, images, method)
    bright = images[[0, 1, 2, 5]]
    expected = rolled(noted_by(model, bright))[:, 0, 1:].unflatten(1, (3, 5))
    assert_close(explain(model, bright, "rollout"), expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_layer_that_adds_nothing_at_all_is_found(dtype):
    layer = Gated()
    layer.is_open = 0.0
    model, images = invented(Layer(), layer, Layer()).to(dtype), IMAGES[:1].to(dtype)
    with pytest.raises(ValueError, match="16 of 16 tokens of Invented do not take what the attention of layer 1"):
        explain(model, images, "rollout")


class Rounded(Layer):
    """Its tokens are rounded, which has no gradient, but follows them."""

    def forward(self, tokens):
        return super().forward(tokens).mul(64).round().div(64)


def test_tokens_without_a_gradient_that_move_the_logits_are_taken():
    assert lost(invented(Layer(), Rounded(), Layer()), IMAGES) is None


def test_a_class_token_that_enters_behind_a_layer_takes_nothing_from_it():
    """As in CaiT (Touvron et al. 2021): the layers before have patches alone."""

    def run(model, images):
        patches = model.patches(images).flatten(2).mT + model.positions[:, 1:]
        patches = model.layers[1](model.layers[0](patches))
        first = model.first.expand(len(images), -1, -1)
        return model.read(model.layers[2](torch.cat([first, patches], dim=1)))

    model = invented(run=run)
    assert lost_tokens(model, IMAGES, (0, 1, 2), 3, None, torch.ones(3, 15, dtype=torch.bool)) is None
