"""Encodes images of several sizes in one batch, without padding (NaViT, Dehghani et al. 2023).

The images of one size are a group. The tokens of several groups form a pack, which is one sequence: projections, norms
and MLPs are computed once for the pack, and attention once for each group.

Letters in the einops patterns: b images of a group, n tokens, d channels of a token.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange, repeat
from torch import Tensor

from vit.attention.multihead import Group
from vit.model.encoder_block import EncoderBlock
from vit.model.model_checks import check_mixed, encodes_as_usual

if TYPE_CHECKING:
    from vit.model.vision_transformer import VisionTransformer

# More tokens do not fit into the caches of a CPU: 64 images of 24 to 96 pixels took 1.3 times as long in one pack as in
# packs of 2,048 tokens (192 channels, 2 cores).
PACKED_TOKENS = {"cpu": 2048}


def encode_mixed(model: "VisionTransformer", images: Sequence[Tensor]) -> list[Tensor]:
    """Encode images of several sizes: B times (C, H, W) -> B times (prefix + N, D), after the final norm.

    Raises:
        ValueError: If there is no image, or one has not the shape (C, H, W).
    """
    check_mixed(images)
    of_size: dict[tuple[int, ...], list[int]] = {}
    for i, image in enumerate(images):
        of_size.setdefault(tuple(image.shape), []).append(i)
    batches = [torch.stack([images[i] for i in chosen]) for chosen in of_size.values()]
    if can_be_packed(model):
        encoded = [tokens for pack in packs_of(model, batches) for tokens in encode_pack(model, pack)]
    else:
        encoded = [model.forward_features(batch) for batch in batches]
    numbers = [i for chosen in of_size.values() for i in chosen]
    tokens = dict(zip(numbers, (of_image for batch in encoded for of_image in batch), strict=True))
    return [tokens[i] for i in range(len(images))]


def can_be_packed(model: "VisionTransformer") -> bool:
    """Return whether a pack is computed as its groups are: not in training, and not if a part was replaced."""
    are_plain = all(isinstance(block, EncoderBlock) and block.is_plain() for block in model.blocks)
    return not model.training and are_plain and encodes_as_usual(model)


def packs_of(model: "VisionTransformer", batches: Sequence[Tensor]) -> list[list[Tensor]]:
    """Divide batches into packs of at most ``PACKED_TOKENS`` patches; a larger batch is a pack by itself."""
    most = PACKED_TOKENS.get(batches[0].device.type, math.inf)
    packs: list[list[Tensor]] = []
    tokens = 0
    for batch in batches:
        of_batch = len(batch) * math.prod(model.patch_embed.grid_of(*batch.shape[-2:]))
        if not packs or tokens + of_batch > most:
            packs.append([])
            tokens = 0
        packs[-1].append(batch)
        tokens += of_batch
    return packs


def encode_pack(model: "VisionTransformer", batches: Sequence[Tensor]) -> list[Tensor]:
    """Encode batches of one size each, in eval mode: several (B, C, H, W) -> several (B, prefix + N, D)."""
    embedded = [model.embed_images(batch) for batch in batches]
    groups = [Group(len(each.tokens), each.tokens.shape[1], each.grid) for each in embedded]
    packed = torch.cat([rearrange(each.tokens, "b n d -> 1 (b n) d") for each in embedded], dim=1)
    angles = None
    if embedded[0].angles is not None:
        of_groups = zip(groups, embedded, strict=True)
        angles = torch.cat([repeat(each.angles, "n d -> (b n) d", b=group.sequences) for group, each in of_groups])
    block: Any
    for block in model.blocks:
        packed = model.run_block(block.forward_packed, packed, groups, angles)
    parts = model.norm(packed).split([group.sequences * group.tokens for group in groups], dim=1)
    return [rearrange(part, "1 (b n) d -> b n d", b=group.sequences) for part, group in zip(parts, groups, strict=True)]
