"""Where a reader looks while it writes each token: maps from its cross-attention, and their score.

Letters in the einops patterns: b pictures, t tokens of a text, h heads, m tokens of the image, l those of the layer
below, r s rows and columns of patches.
"""

from typing import Literal, get_args

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from vit.capture.attention import capture_attention
from vit.capture.parts.footprint import even_cells
from vit.capture.sequence import SequenceAttentions, capture_sequence
from vit.explain.evaluation.ground_truth import cells_of_boxes, pointing_game
from vit.explain.maps.rollout import attention_rollout
from vit.model.embedding import PatchEmbed
from vit.support.checks import check_choice

TextMethod = Literal["cross_attention", "rollout"]


@torch.no_grad()
def explain_text(
    model: nn.Module,
    images: Tensor,
    tokens: Tensor,
    method: TextMethod = "cross_attention",
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Tensor:
    """Compute a map of the image for each token that a reader writes: (B, C, H, W), (B, T) -> (B, T, rows, columns).

    Map t belongs to the step that reads the tokens up to t and writes the next one. "cross_attention" is the last
    layer's attention to the patches, averaged over heads. "rollout" multiplies it by the attention rollout of the
    encoder, because the encoder has already mixed the image tokens (Abnar and Zuidema 2020; Chefer et al. 2021 for two
    modalities). Attention to class token and registers is left out.

    >>> import vit
    >>> from vit.model.decoder import ImageToSequence, TransformerDecoder
    >>> encoder = vit.VisionTransformer(image_size=(8, 16), patch_size=4, embed_dim=24, depth=1, num_heads=3)
    >>> decoder = TransformerDecoder(12, 24, depth=2, num_heads=3, max_length=6, context_dim=24)
    >>> reader = ImageToSequence(encoder, decoder, start=10, end=11).eval()
    >>> explain_text(reader, torch.randn(2, 3, 8, 16), torch.tensor([[10, 3, 7], [10, 1, 11]])).shape
    torch.Size([2, 3, 2, 4])

    Args:
        model: An encoder-decoder in eval mode, called as ``model(images, tokens)``.
        images: Images as the model takes them.
        tokens: The start token, then the tokens written so far, (B, T).
        method: "cross_attention" or "rollout".
        grid: Rows and columns of patches; needed if the model is no ``ImageToSequence``.
        num_prefix_tokens: Number of tokens before the patches; needed if the model is no ``ImageToSequence``.

    Raises:
        ValueError: If attention cannot be captured, there is no cross-attention, or the grid does not fit it.
    """
    check_choice("method", method, get_args(TextMethod))
    found, grid, num_prefix_tokens = capture_text(model, images, tokens, grid, num_prefix_tokens)
    maps = reduce(found.cross[-1].clamp(min=0), "b h t m -> b t m", "mean")
    if method == "rollout":
        maps = einsum(maps, rolled_encoder(model, images, found), "b t l, b l m -> b t m")
    return rearrange(maps[..., num_prefix_tokens:], "b t (r s) -> b t r s", r=grid[0])


def capture_text(
    model: nn.Module, images: Tensor, tokens: Tensor, grid: tuple[int, int] | None, num_prefix_tokens: int | None
) -> tuple[SequenceAttentions, tuple[int, int], int]:
    """Return the attention of a reader, its rows and columns of patches, and the number of tokens before them.

    Raises:
        ValueError: If attention cannot be captured, there is no cross-attention, or the grid is unknown or wrong.
    """
    encoder = getattr(model, "encoder", None)
    if grid is None:
        if not hasattr(encoder, "patch_embed"):
            raise ValueError(f"the patches of {type(model).__name__} are not known: give grid and num_prefix_tokens")
        grid = encoder.patch_embed.grid_of(*images.shape[-2:])
    if num_prefix_tokens is None:
        num_prefix_tokens = getattr(encoder, "num_prefix_tokens", 0)
    found = capture_sequence(model, images, tokens)
    if not found.cross:
        raise ValueError(
            f"{type(model).__name__} has no cross-attention, so its tokens look at no image: give a model "
            "whose decoder reads the image by cross-attention"
        )
    count = found.cross[-1].shape[-1]
    if count != num_prefix_tokens + grid[0] * grid[1]:
        raise ValueError(
            f"the image has {count} tokens, and not {num_prefix_tokens} (num_prefix_tokens) and {grid[0]} x {grid[1]} "
            "patches (grid): give the numbers of this model"
        )
    return found, grid, num_prefix_tokens


def rolled_encoder(model: nn.Module, images: Tensor, found: SequenceAttentions) -> Tensor:
    """Return the rollout of the attention of a reader's encoder, (B, M, M).

    Raises:
        ValueError: If anything but this attention mixes the tokens of ``model.encoder`` (see ``capture_attention``).
    """
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, nn.Module):
        capture_attention(encoder, images[:1])
    return attention_rollout(found.encoder)


def cells_of_text(model: nn.Module, images: Tensor) -> Tensor | None:
    """Return the patch of each pixel of the images that a reader takes, (H, W), as in ``overlay``.

    None divides the images evenly. It is returned if the model is no ``ImageToSequence``: its patches are not known.
    """
    patches = getattr(getattr(model, "encoder", None), "patch_embed", None)
    if not isinstance(patches, PatchEmbed):
        return None
    rows, columns = images.shape[-2:]
    grid = patches.grid_of(rows, columns)
    padded = [count * stride for count, stride in zip(grid, patches.patch_stride, strict=True)]
    return even_cells((padded[0], padded[1]), grid)[:rows, :columns]


def peaks_on_boxes(maps: Tensor, boxes: Tensor, image_size: tuple[int, int], cells: Tensor | None = None) -> Tensor:
    """Score for each letter whether its map peaks on it: (B, T, rows, columns), (B, T, 4) -> (letters,), in [0, 1].

    As in ``pointing_game``, the highest patch counts if at least a quarter of it is in the box. If several are equally
    high, the score is the share of them in the box. Boxes without height hold no letter and are left out.

    Args:
        maps: Maps of the steps that write the letters, as ``explain_text`` returns them.
        boxes: First row, first column, height and width of each letter in pixels.
        image_size: Rows and columns of the images.
        cells: The patch of each pixel, as ``cells_of_text`` returns it. None divides the images evenly.

    Raises:
        ValueError: If there are no cells, and the images cannot be divided evenly.
    """
    is_written, grid = boxes[..., 2] > 0, (maps.shape[-2], maps.shape[-1])
    if cells is None and (image_size[0] % grid[0] or image_size[1] % grid[1]):
        raise ValueError(
            f"images of {image_size[0]} x {image_size[1]} pixels cannot be divided evenly into {grid[0]} x {grid[1]} "
            "patches: give cells=vit.explain.texts.cells_of_text(model, images)"
        )
    return pointing_game(maps[is_written], cells_of_boxes(boxes[is_written], image_size, grid, cells))
