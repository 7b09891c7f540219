"""Initial weights: attention close to trained attention, and a patch embedding that whitens.

Letters in the einops patterns: s query, key and value, h heads, d channels per head, c channels of a token; of patches
b image, n patch, k pixel and channel of a patch.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as tv

from vit.data.module import ImageDataModule
from vit.model.decoder_block import DecoderBlock
from vit.model.embedding import PatchEmbed
from vit.model.encoder_block import EncoderBlock

Init = Literal["glorot", "mimetic"]
PatchInit = Literal["normal", "whitening"]
# Added to each variance, as a share of their mean: directions without variance would be noise, enlarged.
FLOOR = 0.05


@torch.no_grad()
def mimetic_attention(model: nn.Module) -> None:
    """Initialise the self-attention of each block close to trained attention (Trockman and Kolter 2023, sec. 4).

    In trained transformers the product ``W_q^T W_k`` of a head is close to a multiple of the identity plus noise, so
    that tokens attend to similar tokens at similar positions, and ``W_proj W_v`` to a negative multiple. Queries and
    keys of a head are therefore the best factors of rank d of ``0.7 Z + 0.7 I``, and values and output those of rank D
    of ``0.4 Z - 0.4 I``, with Z normal of variance 1 / D. This is meant for sine-cosine positions.

    The rows "Glorot instead of mimetic start" and "normal positions, Glorot start" of benchmarks/results/ablation.md
    have the accuracy without it, whose difference may be chance, and with positions that are initialised as noise.

    Raises:
        ValueError: If the attention has no projections, or shares them.
    """
    for block in model.modules():
        if not isinstance(block, (EncoderBlock, DecoderBlock)):
            continue
        attn = block.attn
        if not attn.mechanism.projected:
            raise ValueError("init mimetic sets projections, and simplified attention has none: take init glorot")
        if attn.tie_qkv or attn.tie_kv or attn.num_kv_heads != attn.num_heads:
            raise ValueError(
                "init mimetic sets queries, keys and values of each head, and some are shared: take glorot"
            )
        qkv = rearrange(attn.qkv.weight, "(s h d) c -> s h d c", s=3, h=attn.num_heads)
        for q, k in zip(qkv[0], qkv[1], strict=True):
            factors = _factors(_near_identity(attn.embed_dim, 0.7, 0.7), rank=len(q))
            q.copy_(factors[0])
            k.copy_(factors[1])
        v, proj = _factors(_near_identity(attn.embed_dim, 0.4, -0.4), rank=attn.embed_dim)
        qkv[2].copy_(rearrange(v, "(h d) c -> h d c", h=attn.num_heads))
        attn.proj.weight.copy_(rearrange(proj, "d c -> c d"))


def _near_identity(dim: int, noise: float, identity: float) -> Tensor:
    return noise * torch.randn(dim, dim) / dim**0.5 + identity * torch.eye(dim)


def _factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A and B, (rank, D) each, whose product A^T B is nearest to a matrix (D, D)."""
    left, values, right = torch.linalg.svd(matrix)
    root = values[:rank, None].sqrt()
    return root * left.mT[:rank], root * right[:rank]


def sample_images(data: ImageDataModule) -> Tensor:
    """Return up to 5,000 training images, evenly spaced, of 8 million pixels together at most: (N, C, H, W)."""
    images, (rows, columns) = data.sets["train"], data.image_size
    count = min(len(images.labels), 5_000, max(1, 2**23 // (rows * columns)))
    decoded, _ = images.decode(torch.linspace(0, len(images.labels) - 1, count).long())
    return tv.center_crop(decoded, [rows, columns])


@torch.no_grad()
def whiten_patches(embed: PatchEmbed, images: Tensor) -> None:
    """Start the patch embedding as the whitening of patches: tokens whose channels vary alike and independently.

    A filter is an eigenvector of the covariance of the patches over the root of its eigenvalue, as in the first layer
    of airbench (Jordan 2024): first all of them, those of the largest variance first, then all with the other sign, as
    far as there are channels. Further channels keep their weights. It remains one linear map, and is trained.

    Measured in configs/cifar10_quick.yaml, two seeds (validation accuracy, benchmarks/results/ablation.md): no gain,
    68.3 % with and 68.6 % without it after 900 steps.

    Args:
        embed: The patch embedding.
        images: Training images, as the embedding gets them: normalised, (B, C, H, W).

    Raises:
        ValueError: If the images have fewer patches than a patch has numbers, or are all of one colour.
    """
    weight, (p, q) = embed.proj.weight, embed.patch_size
    patches = rearrange(F.unfold(images, (p, q), stride=embed.patch_stride), "b k n -> (b n) k").double()
    if len(patches) < patches.shape[1]:
        raise ValueError(
            f"patch_embed_init whitening needs {patches.shape[1]} patches or more, as many as a patch has numbers, and "
            f"the training images have {len(patches)}: take normal"
        )
    variances, directions = torch.linalg.eigh(patches.T.cov().cpu())
    if variances.mean() <= 0:
        raise ValueError(
            "patch_embed_init whitening divides by the variance of patches, and all are equal: take normal"
        )
    filters = (directions / (variances + FLOOR * variances.mean()).sqrt()).flip(1).T
    signed = torch.cat([filters, -filters])[: len(weight)]
    weight[: len(signed)] = rearrange(signed, "d (c p q) -> d c p q", p=p, q=q).to(weight)
