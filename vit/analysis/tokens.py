"""Norms of tokens, outliers among them, and the attention that outliers get (Darcet et al. 2024).

Letters in the einops patterns: b batch, h heads, n tokens, l layers.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.analysis.batches import in_batches
from vit.analysis.measures import column_mass
from vit.analysis.modules import emptied_layers
from vit.capture.anatomy import examine
from vit.capture.attention import run_intercepted
from vit.support.outliers import outliers
from vit.support.precision import at_least_float32


@dataclass(frozen=True)
class TokenNorms:
    """Norms of all tokens and the attention they get, over L layers, B images and N tokens.

    Attributes:
        norms: Norm of each token after each layer, (L, B, N).
        received: Attention that each token gets in a layer, 1 if uniform, (L, B, N).
        patches: Indices of the patches among the tokens.
    """

    norms: Tensor
    received: Tensor
    patches: slice

    @property
    def outliers(self) -> Tensor:
        """Patches whose norm is far above the median of the layer (see ``outliers``): boolean (L, B, patches)."""
        norms = self.norms[..., self.patches]
        return rearrange(outliers(rearrange(norms, "l b n -> l (b n)")), "l (b n) -> l b n", b=norms.shape[1])

    @property
    def outlier_share(self) -> Tensor:
        """Share of the patches that are outliers after each layer, (L,)."""
        return reduce(self.outliers.float(), "l b n -> l", "mean")

    @property
    def outlier_mass(self) -> Tensor:
        """Share of all attention that the outliers of each layer get in the next layer: (L,), NaN for the last layer.

        If it is larger than their share of the tokens, maps of raw attention show artifacts.
        """
        shares = self.received[1:, :, self.patches] * self.outliers[:-1] / self.received.shape[-1]
        mass = reduce(reduce(shares, "l b n -> l b", "sum"), "l b -> l", "mean")
        return torch.cat([mass, mass.new_full((1,), torch.nan)])


def token_norms(
    model: nn.Module,
    images: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    batch_size: int = 32,
) -> TokenNorms:
    """Measure the norm of every token after every layer, over images (B, C, H, W).

    For the arguments, see ``describe_heads``.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> token_norms(model, torch.randn(5, 3, 32, 32)).norms.shape
    torch.Size([2, 5, 17])

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), no module for each layer takes its
            tokens, no norm follows the last layer, or a layer has lost all heads.
    """
    if emptied := emptied_layers(model):
        raise ValueError(
            f"layer {emptied[0]} has no heads left, so that its output cannot be found: measure the model before "
            "pruning, or leave each layer a head"
        )
    anatomy = examine(model, next(in_batches(model, images, 1)), grid, num_prefix_tokens)
    anatomy.check_in_order()
    if not anatomy.parts.layers or anatomy.parts.last is None:
        raise ValueError(
            f"{type(model).__name__} has no module for each layer that takes its tokens (B, N, D), or no norm after "
            "the last layer: token norms need both"
        )
    leaving = [*anatomy.parts.layers[1:], anatomy.parts.last]
    norms: list[list[Tensor]] = [[] for _ in leaving]
    received: list[list[Tensor]] = [[] for _ in leaving]

    def keep_norms(layer: int, tokens: Tensor) -> None:
        norms[layer].append(at_least_float32(tokens).norm(dim=-1).cpu())

    def keep_received(layer: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            received[layer].append(reduce(column_mass(attn), "b h n -> b n", "mean").cpu())
        return attn

    with torch.no_grad(), ExitStack() as stack:
        for layer, boundary in enumerate(leaving):
            stack.enter_context(boundary.seen(partial(keep_norms, layer)))
        for batch in in_batches(model, images, batch_size):
            run_intercepted(model, batch, keep_received, anatomy.calls)
    together = [torch.stack([torch.cat(batches) for batches in layers]) for layers in (norms, received)]
    return TokenNorms(*together, anatomy.patches)
