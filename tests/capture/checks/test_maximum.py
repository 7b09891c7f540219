"""A maximum over tokens reads other tokens for each image; a maximum of anything else does not."""

from functools import reduce

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.capture.test_invented_models import IMAGES, WIDTH, Layer, SequenceFirst, fused, invented, sequence_first
from vit.capture import examine


def by_channel(tokens):
    return (tokens - tokens.max(dim=-1, keepdim=True).values)[:, 0]


def of_class_token(tokens):
    return tokens[:, 0] / tokens[:, 0].abs().amax(dim=-1, keepdim=True)


def of_two(tokens):
    return torch.max(tokens, -tokens)[:, 0]


def of_the_mean(tokens):
    mean = tokens.mean(dim=1)
    return mean / mean.abs().max(dim=-1, keepdim=True).values


@pytest.mark.parametrize("reads", [by_channel, of_class_token, of_two, of_the_mean])
def test_a_maximum_of_one_token_or_of_channels_reads_no_other_token(reads):
    plain = torch.eye(16)[0] if reads is not of_the_mean else torch.full((16,), 1 / 16)
    assert_close(examine(invented(read=reads), IMAGES).readout, plain.double())


def test_a_maximum_of_the_logits_reads_no_other_token():
    def run(model, images):
        logits = model.read(model.through(model.embed(images)))
        return logits - logits.max(dim=-1, keepdim=True).values

    assert examine(invented(run=run), IMAGES).readout[0] == 1


OVER_TOKENS = {
    "max": lambda tokens: tokens.max(dim=1).values,
    "amax": lambda tokens: torch.amax(tokens, 1),
    "by names": lambda tokens: torch.amax(dim=1, input=tokens),
    "pooled": lambda tokens: F.adaptive_max_pool1d(tokens.mT, 1)[..., 0],
    "the first of a sorted axis": lambda tokens: tokens.sort(dim=1, descending=True).values[:, 0],
    "the first of one": lambda tokens: tokens.topk(1, dim=1).values[:, 0],
    "by windows": lambda tokens: F.max_pool1d(tokens.mT, tokens.shape[1])[..., 0],
    "a median": lambda tokens: tokens.median(dim=1).values,
    "of a map": lambda tokens: F.adaptive_max_pool2d(tokens[:, 1:].mT.unflatten(2, (3, 5)), 1).flatten(1),
    "scaled by": lambda tokens: tokens[:, 0] / tokens.abs().amax(dim=(1, 2))[:, None],
    "gathered": lambda tokens: tokens.gather(1, tokens.argmax(dim=1, keepdim=True))[:, 0],
    "the last of the greatest so far": lambda tokens: tokens.cummax(dim=1).values[:, -1],
    "beside the minimum": lambda tokens: tokens.aminmax(dim=1).max,
    "chosen two by two": lambda tokens: reduce(lambda x, y: torch.where(x > y, x, y), tokens.unbind(1)),
}


@pytest.mark.parametrize("how", OVER_TOKENS)
def test_a_maximum_over_tokens_is_refused(how):
    with pytest.raises(ValueError, match="reads other tokens for each image, as a maximum over tokens does"):
        _ = examine(invented(read=OVER_TOKENS[how]), IMAGES).readout


def test_a_maximum_over_tokens_that_stand_before_images_is_refused():
    def run(model, images):
        tokens = model.norm(model.through(model.embed(images).transpose(0, 1)))
        return model.head(tokens.max(dim=0).values)

    for through in (run, sequence_first):
        anatomy = examine(invented(SequenceFirst(), SequenceFirst(fused), run=through), IMAGES)
        assert (anatomy.fixed_readout is None) == (through is run)


def test_a_maximum_before_the_last_attention_is_not_looked_at():
    class Scaled(Layer):
        def forward(self, tokens):
            return super().forward(tokens / tokens.abs().amax(dim=-1, keepdim=True))

    assert examine(invented(Scaled(), Scaled()), IMAGES).readout[0] == 1
    assert WIDTH != 16  # else channels could be taken for tokens
