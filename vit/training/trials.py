"""Parts of recipes on trial: what does not help is removed again, and keeps its row in the ablation."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.embedding import PatchEmbed
from vit.model import VisionTransformer

Trial = Literal["none", "overlapping", "whitened", "impulse", "rms", "hard"]
OVERLAP = 1
WHITENING_FLOOR = 0.05
IMPULSE_STRENGTH = 0.25
NEIGHBOURS = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)]


class OverlappingPatchEmbed(PatchEmbed):
    """Linear patches that reach one pixel into their neighbours: 6 x 6 pixels at a stride of 4."""

    def __init__(self, image_size: tuple[int, int], patch_size: tuple[int, int], channels: int, dim: int) -> None:
        super().__init__(image_size, patch_size, channels, dim)
        p, q = self.patch_size
        self.proj = nn.Conv2d(channels, dim, (p + 2 * OVERLAP, q + 2 * OVERLAP), stride=(p, q), padding=OVERLAP)
        nn.init.trunc_normal_(self.proj.weight, std=self.proj.weight[0].numel() ** -0.5)
        nn.init.zeros_(self.proj.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Embed the patches: (B, C, H, W) -> (B, N, D)."""
        self.grid_of(*images.shape[-2:])
        patches = F.unfold(images, self.proj.kernel_size, padding=OVERLAP, stride=self.proj.stride)
        return F.linear(rearrange(patches, "b c n -> b n c"), self.proj.weight.flatten(1), self.proj.bias)


@torch.no_grad()
def whiten(embed: PatchEmbed, images: Tensor) -> None:
    """Start the patch embedding from the eigenvectors of patches over their deviations, in both signs (airbench)."""
    p, q = embed.patch_size
    patches = rearrange(images, "b c (h p) (w q) -> (b h w) (c p q)", p=p, q=q)
    values, vectors = torch.linalg.eigh(patches.T.cov())
    values, vectors = values.flip(0), vectors.flip(1)
    filters = (vectors / (values + WHITENING_FLOOR * values.mean()).sqrt()).T
    weight = embed.proj.weight.flatten(1)
    count = min(len(filters), len(weight) // 2)
    weight[:count] = filters[:count]
    weight[count : 2 * count] = -filters[:count]


@torch.no_grad()
def impulse_attention(model: VisionTransformer) -> None:
    """Start each head near a shift of the grid by one patch, solved from the positions (arXiv 2404.01139)."""
    rows, columns = model.patch_embed.grid_size
    positions = model.pos_embed[0, model.num_prefix_tokens :]
    positions = positions - positions.mean(dim=0)
    positions = positions / positions.std()
    for index, block in enumerate(model.blocks):
        attn = block.attn
        qkv = rearrange(attn.qkv.weight, "(s h d) c -> s h d c", s=3, h=attn.num_heads)
        for head, (q, k) in enumerate(zip(qkv[0], qkv[1], strict=True)):
            down, right = NEIGHBOURS[(index * attn.num_heads + head) % len(NEIGHBOURS)]
            grid = rearrange(positions, "(h w) c -> h w c", h=rows, w=columns)
            shifted = rearrange(grid.roll((-down, -right), (0, 1)), "h w c -> (h w) c")
            left, values, right_vectors = torch.linalg.svd(torch.linalg.lstsq(positions, shifted).solution)
            root = (IMPULSE_STRENGTH * values[: len(q), None]).sqrt()
            q.copy_(root * left.mT[: len(q)])
            k.copy_(root * right_vectors[: len(q)])


def rms_norms(module: nn.Module) -> None:
    """Put an RMSNorm in the place of each LayerNorm."""
    for name, child in module.named_children():
        if isinstance(child, nn.LayerNorm):
            setattr(module, name, nn.RMSNorm(child.normalized_shape, eps=1e-6))
        else:
            rms_norms(child)


def begin(trial: Trial, model: VisionTransformer) -> None:
    """Change what a trial changes of the model before its first step."""
    embed = model.patch_embed
    if trial == "overlapping":
        model.patch_embed = OverlappingPatchEmbed(
            embed.image_size, embed.patch_size, embed.in_channels, model.embed_dim
        )
    if trial == "impulse":
        impulse_attention(model)
    if trial == "rms":
        rms_norms(model)


@torch.no_grad()
def hard_half(model: VisionTransformer, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The half of a batch with the greatest losses, by a pass on half of the patches."""
    rate, model.patch_drop.rate = model.patch_drop.rate, 0.5
    losses = F.cross_entropy(model(images).float(), targets, reduction="none")
    model.patch_drop.rate = rate
    chosen = losses.topk(len(images) // 2).indices
    return images[chosen], targets[chosen]
