"""Models whose use of attention is known, with weights set by hand, and images for them."""

import torch
from torch import Tensor, nn

from vit import VisionTransformer

SMALL = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 7}
CLASSES = 4  # of planted images: a pixel each, in the four of a patch
MARKER, FIRST, ASKS, ANSWER = 0, 1, 5, 6  # channels of a token: marker, class shown, class token, class read


@torch.no_grad()
def untrained() -> VisionTransformer:
    """A model as it is initialised, with larger logits."""
    torch.manual_seed(0)
    model = VisionTransformer(**SMALL).eval()
    model.head.weight.mul_(30)
    return model


@torch.no_grad()
def constant() -> VisionTransformer:
    """A model whose logits do not depend on the image."""
    model = untrained()
    model.head.weight.zero_()
    return model


@torch.no_grad()
def blind() -> VisionTransformer:
    """A model whose attention is uniform: its queries are zero."""
    model = untrained()
    for block in model.blocks:
        block.attn.qkv.weight[:12] = 0
    return model


@torch.no_grad()
def bag_of_patches() -> VisionTransformer:
    """A model that classifies the mean of its patches, without any attention."""
    torch.manual_seed(0)
    model = VisionTransformer(**SMALL, pool="mean").eval()
    model.head.weight.mul_(30)
    for block in model.blocks:
        block.attn.proj.weight.zero_()
    return model


@torch.no_grad()
def shortcut() -> VisionTransformer:
    """A model of two layers, each of which finds the marked patch and reads its class into the class token."""
    model = VisionTransformer(**SMALL | {"num_heads": 1, "num_classes": CLASSES}).eval()
    for parameter in model.parameters():
        parameter.zero_()
    model.patch_embed.proj.weight[MARKER, 0] = 1 / 4
    for number in range(CLASSES):
        model.patch_embed.proj.weight[FIRST + number, 1, number // 2, number % 2] = 1
        model.head.weight[number, ANSWER + number] = 1
    model.cls_token[..., ASKS] = 1
    model.norm = nn.Identity()
    for block in model.blocks:
        block.norm1 = block.norm2 = nn.Identity()
        queries, keys, values = block.attn.qkv.weight.split(12)
        queries[0, ASKS] = 12**0.5 * 12  # 12 above the other logits
        keys[0, MARKER] = 1
        for number in range(CLASSES):
            values[number, FIRST + number] = 1
            block.attn.proj.weight[ANSWER + number, number] = 1
    return model


def planted(count: int) -> Tensor:
    """Return images (B, 3, 6, 10) of patches that each show a class, the marked one twice as strongly."""
    generator = torch.Generator().manual_seed(0)
    shown = torch.randint(CLASSES, (count, 15), generator=generator)
    marked = torch.randint(15, (count,), generator=generator)
    patches = torch.zeros(count, 15, 3, 4)
    patches[:, :, 1] = nn.functional.one_hot(shown, CLASSES) / 2
    rows = torch.arange(count)
    patches[rows, marked, 1] *= 2
    patches[rows, marked, 0] = 1
    return nn.functional.fold(patches.flatten(2).mT, (6, 10), 2, stride=2)
