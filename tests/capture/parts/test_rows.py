"""Tokens that do not take what an attention gives them: a rollout would carry it on."""

import pytest
import torch

from tests.capture.test_invented_models import IMAGES, Layer, invented
from vit.capture import examine
from vit.capture.parts.rows import layer_with_lost_rows
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
    assert layer_with_lost_rows(model, IMAGES[:1], examine(model, IMAGES).calls) == (number - 1, 3)
    for method in ("rollout", "value_rollout"):
        with pytest.raises(ValueError, match=f"3 of 19 tokens of Invented do not take .* of layer {number - 1}"):
            explain(model, IMAGES, method)


def test_prompts_before_the_first_layer_are_tokens_like_others():
    model = invented(prefix=4, run=with_prompts_before(0))
    assert layer_with_lost_rows(model, IMAGES[:1], examine(model, IMAGES).calls) is None


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
    model = invented(Faint(), Faint(), Faint()).float()
    assert layer_with_lost_rows(model, IMAGES[:1].float(), (0, 1, 2)) is None
