"""Measures of each head of a ViT over a set of images.

Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

import torch
from einops import reduce
from torch import Tensor, nn

from vit.analysis import measures
from vit.analysis.batches import in_batches
from vit.analysis.head_table import Head, HeadTable
from vit.analysis.modules import emptied_layers
from vit.capture.anatomy import Anatomy, examine
from vit.capture.attention import run_intercepted
from vit.capture.parts.footprint import check_even
from vit.support.precision import at_least_float32


def describe_heads(
    model: nn.Module,
    images: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    batch_size: int = 32,
) -> HeadTable:
    """Measure every head of a model over images (B, C, H, W). About a hundred images are enough.

    Memory holds the attention of only one batch in one layer at a time.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> table = describe_heads(model, torch.randn(5, 3, 32, 32))
    >>> len(table.heads), table.grid
    (6, (4, 4))

    Args:
        model: A ViT of any library, in eval mode.
        images: At least 2 images, normalised as the model expects.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.
        batch_size: Number of images in one forward pass.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``) or has negative weights, or there are
            fewer than 2 images.
    """
    if len(images) < 2:
        raise ValueError(f"there are too few images ({len(images)}): give at least 2, as some measures compare them")
    batch_size = max(2, batch_size)
    anatomy = examine(model, next(in_batches(model, images, 1)), grid, num_prefix_tokens)
    anatomy.check_in_order()
    check_even(anatomy.cells, anatomy.grid, type(model).__name__)
    (height, width), (rows, columns) = images.shape[-2:], anatomy.grid
    patch_size = (height / rows, width / columns)
    shift = rows // 2, columns // 2
    pixels = [round(patches * size) for patches, size in zip(shift, patch_size, strict=True)]
    sums: dict[int, dict[str, Tensor]] = {}

    def measure(number: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            if attn.numel() and attn.min() < 0:
                raise ValueError(
                    f"attention of layer {number} has negative weights ({attn.min().item():.2g}), as in differential "
                    "and talking-heads attention: distance, entropy and sinks need weights of 0 or more, so give "
                    "another model"
                )
            of_layer = sums.setdefault(number, {})
            own, moved = at_least_float32(attn).chunk(2)
            follows = measures.follow_score(own, moved, anatomy.grid, anatomy.num_prefix_tokens, shift)
            for name, values in (_measured(own, anatomy, patch_size) | {"follows": follows.sum(dim=0)}).items():
                of_layer[name] = of_layer.get(name, 0) + values
        return attn

    with torch.no_grad():
        for batch in in_batches(model, images, batch_size):
            run_intercepted(model, torch.cat([batch, batch.roll(pixels, dims=(-2, -1))]), measure, anatomy.calls)
    # An image alone in its batch has none to be compared with. A single patch cannot be moved.
    is_alone = len(images) % batch_size == 1
    compared = 0 if not any(shift) else len(images) - int(is_alone)
    for of_layer in sums.values():
        of_layer["follows"] *= len(images) / compared if compared else torch.nan
    emptied = emptied_layers(model)
    numbers = [number for number in range(len(sums) + len(emptied)) if number not in emptied]
    means = [{name: (total / len(images)).cpu() for name, total in of_layer.items()} for of_layer in sums.values()]
    return _table(dict(zip(numbers, means, strict=True)), len(images), anatomy, patch_size)


def _measured(attn: Tensor, anatomy: Anatomy, patch_size: tuple[float, float]) -> dict[str, Tensor]:
    """Sum measures over images: (H,) each, except attention (H, N, N), its spectrum (H, N), offsets (H, 2r-1, 2c-1)."""
    grid, prefix = anatomy.grid, anatomy.num_prefix_tokens
    to_prefix = measures.prefix_mass(attn, grid, prefix)
    spectrum = measures.singular_values(attn)
    sink = measures.sink_score(attn)
    of_images = {
        "attention": attn,
        "mean_square": reduce(attn.square(), "b h n m -> b h", "sum"),
        "spectrum": spectrum / spectrum.sum(dim=-1, keepdim=True),
        "distance": measures.attention_distance(attn, grid, patch_size, prefix),
        "raw_distance": measures.attention_distance(attn, grid, patch_size, prefix, renormalise=False),
        "entropy": measures.attention_entropy(attn),
        "confidence": measures.confidence(attn),
        "class_to_prefix": to_prefix[..., 0] if prefix else torch.full_like(sink, torch.nan),
        "patch_to_prefix": reduce(to_prefix[..., anatomy.patches], "b h n -> b h", "mean"),
        "self_mass": measures.self_mass(attn),
        "effective_rank": measures.effective_rank(spectrum),
        "stable_rank": measures.stable_rank(spectrum),
        "sink": sink,
        "sink_share": sink / attn.shape[-1],
    }
    counts = measures.offset_counts(attn, grid, prefix)
    return {name: values.sum(dim=0) for name, values in of_images.items()} | {"offset_counts": counts}


def _table(
    layers: dict[int, dict[str, Tensor]], num_images: int, anatomy: Anatomy, patch_size: tuple[float, float]
) -> HeadTable:
    uniform = measures.uniform_distance(anatomy.grid, patch_size)
    redundancies = iter(measures.redundancy(torch.cat([means["attention"] for means in layers.values()])).tolist())
    heads, offset_maps, spectra = [], [], []
    for number, means in layers.items():
        attention, mean_square = means.pop("attention"), means.pop("mean_square")
        scores, offsets = measures.offset_score(means.pop("offset_counts"), anatomy.grid)
        offset_maps.append(measures.offset_map(attention, anatomy.grid, anatomy.num_prefix_tokens))
        spectra.append(means.pop("spectrum"))
        means |= {
            "relative_distance": means["distance"] / uniform,
            "positional": measures.positional_score(attention, mean_square, num_images),
            "offset_score": scores,
        }
        for head, offset in enumerate(offsets):
            values = {name: mean[head].item() for name, mean in means.items()}
            heads.append(Head(number, head, offset=offset, redundancy=next(redundancies), **values))
    return HeadTable(heads, anatomy.grid, uniform, offset_maps, spectra)
