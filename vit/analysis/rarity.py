"""Attention to rare patches: those that look like no other patch of their image.

Letters in the einops patterns: b batch, h heads, n queries, m keys, c channels, y x rows and columns of patches, p q
rows and columns of pixels in a patch.
"""

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.batches import in_batches
from vit.analysis.measures import column_mass
from vit.analysis.modules import emptied_layers
from vit.capture.anatomy import examine
from vit.capture.attention import run_intercepted
from vit.capture.parts.footprint import check_even
from vit.support.precision import at_least_float32
from vit.support.ranks import rank_correlation


def rare_attention(model: nn.Module, images: Tensor, batch_size: int = 32) -> tuple[list[Tensor], list[Tensor]]:
    """Average ``rare_correlations`` over images: one (H,) for each layer, and the same for a control.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> own, other = rare_attention(model, torch.randn(5, 3, 32, 32))
    >>> [tuple(layer.shape) for layer in own]
    [(3,), (3,)]
    """
    own, others = rare_correlations(model, images, batch_size)
    return [layer.mean(dim=0) for layer in own], [layer.mean(dim=0) for layer in others]


@torch.no_grad()
def rare_correlations(model: nn.Module, images: Tensor, batch_size: int = 32) -> tuple[list[Tensor], list[Tensor]]:
    """Correlate the attention that patches get with their rarity: one (B, H) per layer, and the same for a control.

    The correlation is Spearman's over the patches of an image. It is 1 if rarer patches always get more attention, and
    0 if all patches are equally rare. The control uses the rarity of the next image instead, so only position can
    explain its correlation: rare patches may often be in the middle, and a head may look there in any image.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> own, other = rare_correlations(model, torch.randn(5, 3, 32, 32))
    >>> [tuple(layer.shape) for layer in own]
    [(5, 3), (5, 3)]

    For the arguments, see ``describe_heads``.

    Raises:
        ValueError: If there are fewer than 2 images, or attention cannot be captured (see ``capture_attention``).
    """
    if len(images) < 2:
        raise ValueError(f"there are too few images ({len(images)}): give at least 2, as the control exchanges them")
    anatomy = examine(model, next(in_batches(model, images, 1)))
    anatomy.check_in_order()
    check_even(anatomy.cells, anatomy.grid, type(model).__name__)
    received: list[Tensor] = []

    def keep(layer: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            received.append(column_mass(at_least_float32(attn))[..., anatomy.patches].cpu())
        return attn

    of_batches = []
    for batch in in_batches(model, images, batch_size):
        received.clear()
        run_intercepted(model, batch, keep, anatomy.calls)
        of_batches.append([*received])
    layers = [torch.cat(batches) for batches in zip(*of_batches, strict=True)]
    rare = rarity(images, anatomy.grid)
    emptied = emptied_layers(model)
    correlations = []
    for values in (rare, rare.roll(1, dims=0)):
        of_layers = [rank_correlation(layer, rearrange(values, "b m -> b 1 m")) for layer in layers]
        for number in emptied:
            of_layers.insert(number, torch.empty(len(images), 0))
        correlations.append(of_layers)
    own, others = correlations
    return own, others


def rarity(images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Compute the distance of each patch to the most similar other patch of its image: (B, C, H, W) -> (B, patches).

    >>> rarity(torch.tensor([[[[1.0, 1.0, 1.0, 5.0]]]]), grid=(1, 4))
    tensor([[0., 0., 0., 4.]])
    """
    pixels = rearrange(at_least_float32(images), "b c (y p) (x q) -> b (y x) (c p q)", y=grid[0], x=grid[1])
    distances = torch.cdist(pixels, pixels, compute_mode="donot_use_mm_for_euclid_dist")
    itself = torch.eye(grid[0] * grid[1], dtype=torch.bool, device=images.device)
    return distances.masked_fill(itself, torch.inf).amin(dim=-1).cpu()
