"""The features between the blocks of a Vision Transformer, under timm's signatures.

Letters in the einops patterns: b batch, h w grid rows and columns, d channels of a token.
"""

from collections.abc import Sequence
from typing import Any, Literal

from einops import rearrange
from torch import Tensor


class IntermediateFeatures:
    """What ``VisionTransformer`` answers about the tokens inside of it; it has no parameters of its own."""

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Features after chosen blocks, with timm's signature.

        Args:
            images: Images, (B, C, H, W).
            indices: Which blocks: the last n for an int, these for a sequence (negative counts from the end),
                all for None.
            return_prefix_tokens: Whether each feature is paired with its prefix tokens (class token, registers).
            norm: Whether the final norm is applied to each feature.
            stop_early: Whether blocks after the last chosen one are skipped.
            output_fmt: Shape of a feature: "NCHW" for (B, D, rows, columns), "NLC" for (B, N, D).
            intermediates_only: Whether to leave out the final feature.

        Returns:
            ``(tokens after the final norm, features)``, or only ``features``; with ``return_prefix_tokens``
            each feature is a pair (feature, prefix tokens).

        Raises:
            ValueError: If an index or format does not exist, or patches are left out of a grid.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"unknown output_fmt {output_fmt!r}: choose 'NCHW' or 'NLC'")
        if output_fmt == "NCHW" and self.training and self.patch_drop.rate:
            raise ValueError(
                f"patch_drop ({self.patch_drop.rate}) leaves out patches while training, and the rest is no grid: call "
                "model.eval() first, or take output_fmt 'NLC'"
            )
        chosen = self._block_indices(indices)
        blocks = self.blocks[: max(chosen) + 1] if stop_early else self.blocks
        tokens, grid = self.embed(images), self.patch_embed.grid_of(*images.shape[-2:])
        features = []
        for i, block in enumerate(blocks):
            tokens = self._run(block, tokens, grid)
            if i not in chosen:
                continue
            feature = self.norm(tokens) if norm else tokens
            prefix, patches = feature[:, : self.num_prefix_tokens], feature[:, self.num_prefix_tokens :]
            if output_fmt == "NCHW":
                patches = rearrange(patches, "b (h w) d -> b d h w", h=grid[0]).contiguous()
            features.append((patches, prefix) if return_prefix_tokens else patches)
        return features if intermediates_only else (self.norm(tokens), features)

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> list[Any]:
        """Features after the last ``n`` blocks, or after the blocks numbered in ``n``, with timm's signature.

        Each is (B, N, D), or (B, D, rows, columns) with ``reshape``; with ``return_prefix_tokens`` it is a
        pair (feature, prefix tokens).
        """
        return self.forward_intermediates(
            images,
            indices=n,
            return_prefix_tokens=return_prefix_tokens,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
        )

    def _block_indices(self, indices: int | Sequence[int] | None) -> set[int]:
        depth = len(self.blocks)
        if indices is None:
            return set(range(depth))
        wanted = range(depth - indices, depth) if isinstance(indices, int) else indices
        absolute = {i + depth if i < 0 else i for i in wanted}
        if not absolute or not all(0 <= i < depth for i in absolute) or (isinstance(indices, int) and indices > depth):
            raise ValueError(f"indices ({indices}) must name blocks of a model of depth ({depth})")
        return absolute
