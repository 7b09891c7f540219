"""Measures of each head of a ViT over a set of images.

Letters in the einops patterns: b batch, h heads, n queries, m keys.
"""

from dataclasses import dataclass

import torch
from einops import reduce
from torch import Tensor, nn

from vit.analysis import measures
from vit.analysis.batches import in_batches, in_float32
from vit.analysis.modules import emptied_layers
from vit.analysis.table import Head, HeadTable
from vit.capture.anatomy import examine
from vit.capture.attention import run_intercepted


def describe_heads(
    model: nn.Module,
    images: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    batch_size: int = 32,
) -> HeadTable:
    """Measure every head of a model over images (B, C, H, W); about a hundred images are enough.

    The attention of one batch in one layer is in memory at a time.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> table = describe_heads(model, torch.randn(5, 3, 32, 32))
    >>> len(table.heads), table.grid
    (6, (4, 4))

    Args:
        model: A ViT of any library, in eval mode.
        images: At least 2 images, normalised as the model expects.
        grid: Rows and columns of patches; needed if no module of the model has a ``patch_size``.
        num_prefix_tokens: Tokens before the patches; needed if some non-patch tokens follow the patches.
        batch_size: Images that pass at once.

    Raises:
        ValueError: If attention cannot be captured (see ``capture_attention``), has negative weights, or there are
            fewer than 2 images.
    """
    if len(images) < 2:
        raise ValueError(f"there are too few images ({len(images)}): give at least 2, as some measures compare them")
    anatomy = examine(model, next(in_batches(model, images, 1)), grid, num_prefix_tokens)
    (height, width), (rows, columns) = images.shape[-2:], anatomy.grid
    place = _Place(anatomy.grid, (height / rows, width / columns), anatomy.num_prefix_tokens)
    layers: dict[int, _Layer] = {}

    def measure(number: int, attn: Tensor) -> Tensor:
        if attn.shape[-2] > 1:
            _check_weights(number, attn)
            layers.setdefault(number, _Layer(place)).add(attn)
        return attn

    with torch.no_grad():
        for batch in in_batches(model, images, batch_size):
            run_intercepted(model, batch, measure)
    emptied = emptied_layers(model)
    numbers = [number for number in range(len(layers) + len(emptied)) if number not in emptied]
    return _table(dict(zip(numbers, layers.values(), strict=True)), place)


@dataclass(frozen=True)
class _Place:
    """The geometry of the tokens: grid of patches, size of a patch in pixels, number of tokens before the patches."""

    grid: tuple[int, int]
    patch_size: tuple[float, float]
    prefix: int


class _Layer:
    """The measures of the heads of a layer, summed over the images."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.num_images = 0
        self.sums: dict[str, Tensor] = {}

    def add(self, attn: Tensor) -> None:
        attn = in_float32(attn)
        self.num_images += len(attn)
        for name, values in _measured(attn, self.place).items():
            self.sums[name] = self.sums.get(name, 0) + values.sum(dim=0)
        counts = measures.offset_counts(attn, self.place.grid, self.place.prefix)
        self.sums["offset_counts"] = self.sums.get("offset_counts", 0) + counts

    def means(self) -> dict[str, Tensor]:
        return {name: (values / self.num_images).cpu() for name, values in self.sums.items()}


def _measured(attn: Tensor, place: _Place) -> dict[str, Tensor]:
    """Measure each image: (B, H) each, except attention itself (B, H, N, N) and its spectrum (B, H, N)."""
    patches = slice(place.prefix, place.prefix + place.grid[0] * place.grid[1])
    to_prefix = measures.prefix_mass(attn, place.grid, place.prefix)
    spectrum = measures.singular_values(attn)
    sink = measures.sink_score(attn)
    geometry = (place.grid, place.patch_size, place.prefix)
    return {
        "attention": attn,
        "mean_square": reduce(attn.square(), "b h n m -> b h", "sum"),
        "spectrum": spectrum / spectrum.sum(dim=-1, keepdim=True),
        "distance": measures.attention_distance(attn, *geometry),
        "raw_distance": measures.attention_distance(attn, *geometry, renormalise=False),
        "entropy": measures.attention_entropy(attn),
        "confidence": measures.confidence(attn),
        "class_to_prefix": to_prefix[..., 0] if place.prefix else torch.full_like(sink, torch.nan),
        "patch_to_prefix": reduce(to_prefix[..., patches], "b h n -> b h", "mean"),
        "self_mass": measures.self_mass(attn),
        "effective_rank": measures.effective_rank(spectrum),
        "stable_rank": measures.stable_rank(spectrum),
        "sink": sink,
        "sink_share": sink / attn.shape[-1],
    }


def _table(layers: dict[int, _Layer], place: _Place) -> HeadTable:
    uniform = measures.uniform_distance(place.grid, place.patch_size)
    layer_means = [layer.means() for layer in layers.values()]
    redundancies = iter(measures.redundancy(torch.cat([means["attention"] for means in layer_means])).tolist())
    heads, offset_maps, spectra = [], [], []
    for (number, layer), means in zip(layers.items(), layer_means, strict=True):
        attention, mean_square = means.pop("attention"), means.pop("mean_square")
        scores, offsets = measures.offset_score(means.pop("offset_counts"), place.grid)
        offset_maps.append(measures.offset_map(attention, place.grid, place.prefix))
        spectra.append(means.pop("spectrum"))
        means |= {
            "relative_distance": means["distance"] / uniform,
            "positional": measures.positional_score(attention, mean_square, layer.num_images),
            "offset_score": scores,
        }
        for head, offset in enumerate(offsets):
            values = {name: mean[head].item() for name, mean in means.items()}
            heads.append(Head(number, head, offset=offset, redundancy=next(redundancies), **values))
    return HeadTable(heads, place.grid, uniform, offset_maps, spectra)


def _check_weights(number: int, attn: Tensor) -> None:
    if attn.numel() and attn.min() < 0:
        raise ValueError(
            f"attention of layer {number} has negative weights ({attn.min().item():.2g}), as in differential and "
            "talking-heads attention: distance, entropy and sinks need weights of 0 or more, so give another model"
        )
