"""The logit lens against the read-out written out."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, IMAGES
from tests.capture.test_invented_models import early_read, invented
from vit.explain import logit_lens


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
