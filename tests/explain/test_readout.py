"""The logit lens against the read-out written out."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, IMAGES
from tests.capture.test_invented_models import early_read, invented
from vit.explain import explain, logit_lens


def test_the_lens_ends_with_the_logits_on_every_architecture(name, architecture, model, images):
    lens = logit_lens(model, images)
    output = model(images)
    logits = getattr(output, "logits", output)
    assert lens.shape == (2, architecture.depth + 1, 7)
    assert_close(lens[:, -1], logits.detach(), rtol=1e-5, atol=1e-5)
    assert not lens.requires_grad


@pytest.mark.parametrize("pool", ["cls", "mean", "cls+mean", "map"])
@torch.no_grad()
def test_each_entry_is_the_head_on_the_tokens_after_that_layer(pool, random_vit):
    model = random_vit(pool=pool)
    tokens = model.embed(IMAGES)
    expected = [model.forward_head(model.norm(tokens))]
    for block in model.blocks:
        tokens = block(tokens)
        expected.append(model.forward_head(model.norm(tokens)))
    assert_close(logit_lens(model, IMAGES), torch.stack(expected, dim=1), **EXACT)


class Neck(nn.Module):
    """A ViT with a function between its last layer and its final norm."""

    def __init__(self, vit, change):
        super().__init__()
        self.vit, self.change = vit, change

    def forward(self, images):
        tokens = self.vit.embed(images)
        for block in self.vit.blocks:
            tokens = block(tokens)
        return self.vit.forward_head(self.vit.norm(self.change(tokens)))


def test_a_module_between_the_last_layer_and_the_final_norm_is_part_of_the_read_out(random_vit):
    vit = random_vit()
    neck = nn.Linear(12, 12).double()
    model, tokens = Neck(vit, neck).eval(), vit.embed(IMAGES)
    for _ in (0, 1):
        expected = vit.forward_head(vit.norm(neck(tokens)))
        assert_close(logit_lens(model, IMAGES)[:, 0], expected, **EXACT)


@pytest.mark.parametrize(
    "change",
    [
        torch.tanh,
        torch.neg,
        lambda tokens: tokens + tokens.new_ones(1, 1, 12),
        lambda tokens: tokens + torch.ones_like(tokens),
        lambda tokens: tokens @ torch.eye(12).double(),
    ],
    ids=["tanh", "minus", "an offset", "an offset of each token", "a matrix of one"],
)
def test_a_function_between_the_last_layer_and_the_final_norm_is_refused_unless_it_changes_nothing(change, random_vit):
    vit = random_vit()
    model = Neck(vit, change).eval()
    tokens = vit.embed(IMAGES)
    if torch.equal(change(tokens), tokens):
        assert_close(logit_lens(model, IMAGES), logit_lens(vit, IMAGES), **EXACT)
        return
    for explained in (lambda: logit_lens(model, IMAGES), lambda: explain(model, IMAGES, "legrad", 1)):
        with pytest.raises(ValueError, match="function that changes tokens on the way"):
            explained()


def test_layers_without_a_module_behind_them_are_refused(random_vit):
    class Bare(nn.Module):
        def __init__(self, vit):
            super().__init__()
            self.embed, self.blocks = vit.patch_embed, vit.blocks

        def forward(self, images):
            tokens = self.embed(images)
            for block in self.blocks:
                tokens = block(tokens)
            return tokens.mean(dim=1)

    with pytest.raises(ValueError, match=r"Bare has no module for each layer that takes .*, or none between"):
        logit_lens(Bare(random_vit()).eval(), IMAGES)


def test_a_head_that_also_reads_earlier_tokens_is_refused():
    with pytest.raises(ValueError, match="read more than its last tokens"):
        logit_lens(invented(run=early_read), IMAGES)
