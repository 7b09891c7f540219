"""Images and heads on one axis: told apart by passing an image alone."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, randomised
from vit.capture import capture_attention, examine
from vit.capture.interception.head_order import heads_first_calls
from vit.explain import explain

IMAGES = torch.randn(3, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def heads_first(x, heads):
    """(B, N, D) -> (H * B, N, d), as old implementations split their heads."""
    return torch.cat(x.split(x.shape[-1] // heads, 2), 0)


def images_first(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)


def jumbled(x, heads):
    """Another order on each axis: neither images nor heads come first."""
    split = heads_first(x, heads)
    return split.roll(1, dims=0) if len(split) > heads else split


class Flat(nn.Module):
    """Layers with attention of three axes, whose heads a function splits off."""

    def __init__(self, split, heads=3, fused=False):
        super().__init__()
        self.split, self.heads, self.fused = split, heads, fused
        self.patches = nn.Conv2d(3, 12, 2, stride=2)
        self.qkv = nn.ModuleList(nn.Linear(12, 36) for _ in range(2))

    def join(self, x, batch):
        if self.split is images_first:
            return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2)
        x = x.roll(-1, dims=0) if self.split is jumbled and batch > 1 else x
        return torch.cat(x.split(batch, 0), 2)

    def forward(self, images):
        x = self.patches(images).flatten(2).mT
        for qkv in self.qkv:
            q, k, v = (self.split(part, self.heads) for part in qkv(x).chunk(3, dim=-1))
            if self.fused:
                mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            else:
                mixed = torch.bmm((torch.bmm(q, k.mT) / q.shape[-1] ** 0.5).softmax(dim=-1), v)
            x = x + self.join(mixed, len(images))
        return x.mean(dim=1)

    def expected(self, images):
        """Attention by the formula, with images and heads as two axes."""
        x, found = self.patches(images).flatten(2).mT, []
        for qkv in self.qkv:
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, dim=-1))
            found.append((q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1))
            x = x + (found[-1] @ v).transpose(1, 2).flatten(2)
        return found


@pytest.mark.parametrize("split", [heads_first, images_first])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("batch", "heads"), [(1, 3), (2, 3), (3, 3), (3, 2), (2, 1)])
def test_attention_of_three_axes_belongs_to_its_image(split, fused, batch, heads):
    model, images = randomised(Flat(split, heads, fused)), IMAGES[:batch]
    found = capture_attention(model, images)
    assert_close(list(found), model.expected(images), **EXACT)
    assert_close(found.logits, model(images), **EXACT)


def test_images_are_compared_with_a_batch_without_a_graph():
    model, graphs = randomised(Flat(heads_first)), []
    model.patches.register_forward_hook(lambda _, __, output: graphs.append(output.requires_grad))
    heads_first_calls(model, IMAGES)
    assert graphs == [True, False, False, False]


def test_maps_of_heads_that_come_first_are_those_of_images_that_come_first():
    one, other = (randomised(Flat(split)) for split in (heads_first, images_first))
    assert heads_first_calls(one, IMAGES) == {0, 1}
    assert heads_first_calls(other, IMAGES) == frozenset()
    assert examine(one, IMAGES).grid == (3, 5)
    for method in ("attention", "rollout", "relevance", "gradient_rollout"):
        assert_close(explain(one, IMAGES, method), explain(other, IMAGES, method), **EXACT)


class SkipsForOne(Flat):
    """Flat layers, of which a single image passes the first alone."""

    def forward(self, images):
        layers, self.qkv = self.qkv, self.qkv[:1] if len(images) == 1 else self.qkv
        try:
            return super().forward(images)
        finally:
            self.qkv = layers


def test_layers_that_one_image_alone_skips_are_refused():
    with pytest.raises(ValueError, match="has 2 attentions for 2 images and 1 for one of them"):
        heads_first_calls(randomised(SkipsForOne(heads_first)), IMAGES)


def test_an_order_that_cannot_be_found_is_refused():
    model = randomised(Flat(jumbled))
    with pytest.raises(
        ValueError, match=r"attention 0 of Flat differs by .* between an image alone and the same image"
    ):
        capture_attention(model, IMAGES)
    with pytest.raises(
        ValueError, match=r"attention 0 of Flat differs by .* between an image alone and the same image"
    ):
        examine(model, IMAGES)
