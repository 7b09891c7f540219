"""The explorer: one HTML file that shows the attention of every layer and head for any token of an image.

The page is `explorer_page.html` with the data of one image filled in; it needs no server and no network. Layers, heads,
rows, columns and registers are numbered from 0, as everywhere in the package.

Letters in the einops patterns: b batch, c channels, h w rows and columns of pixels.
"""

import base64
import html
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import count as count_up
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.capture.anatomy import VARIES, Anatomy, examine
from vit.capture.attention import capture_attention, run_intercepted
from vit.capture.parts.footprint import check_even
from vit.explain import heatmap
from vit.explain.classes import class_number, thresholds_of
from vit.explain.decomposition import contributions
from vit.explain.default_method import DEFAULT_METHOD, NOT_MEASURED
from vit.explain.familiarity import is_packaged
from vit.explain.heatmap import displayable
from vit.explain.maps.methods import signed_map
from vit.explain.maps.subject import Subject
from vit.glossary import EVERYWHERE, EXPLORER, MAPS
from vit.support.class_names import name_classes
from vit.support.files import replacing
from vit.support.printable import printable

if TYPE_CHECKING:
    from vit.explain.inputs import Given

TOP_CLASSES = 5
# Weights of patches are bytes: places between the smallest and the largest of a query, on a scale that is linear up to
# 1/FINE of the largest weight and logarithmic above. Weights of other tokens, such as the class token, are not on it.
FINE = 900
TOP = math.asinh(FINE)  # the place of the largest weight
CLASS_TOKENS = {"cls_token", "class_token"}
WORDS = ("attention", "class", "head", "layer", "logit", "patch", "probability")  # of every page, used here
DISTILLATION_TOKENS = {"dist_token", "distillation_token"}


class Explorer(str):
    """A complete HTML document. A notebook displays it; elsewhere, ``save`` it and open the file."""

    def save(self, path: str | Path) -> Path:
        """Write the document to a file that any browser opens, and return its path."""
        path = Path(path)
        with replacing(path) as unfinished:
            unfinished.write_text(self, encoding="utf-8")
        return path

    def __repr__(self) -> str:
        # Notebooks store the repr beside the page, so the repr must not repeat the page.
        return f"<Explorer of {len(self):,} characters: save('explorer.html') and open that in a browser>"

    def _repr_html_(self) -> str:
        # The frame keeps script names and keyboard shortcuts apart from other explorers and from the notebook.
        return (
            '<iframe sandbox="allow-scripts" title="Attention explorer" style="width: 100%; height: 920px; border: 0" '
            f'srcdoc="{html.escape(self)}"></iframe>'
        )


def pack_bytes(tensor: Tensor) -> str:
    """Encode the numbers of a tensor: little-endian, deflated, base64."""
    return base64.b64encode(zlib.compress(tensor.cpu().contiguous().numpy().tobytes())).decode("ascii")


def is_read(anatomy: Anatomy, token: int) -> bool:
    """Return whether the logits read a token, or may read it in some images."""
    return anatomy.fixed_readout is None or bool(anatomy.fixed_readout[token] > 0)


def explain_words(others: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Return the words of the page with their meanings, among them the non-patch tokens of the model."""
    kinds = dict.fromkeys(name.rstrip("0123456789 ") for _, name in others)
    known = {name: EVERYWHERE[name] for name in (*WORDS, *kinds)} | EXPLORER
    return {name: str(word) for name, word in known.items()}


def split_logit(
    model: nn.Module, image: Tensor, target: int, versus: int | None, heads: Sequence[int]
) -> dict[str, Any]:
    """Return what the page shows of the ``contributions`` to a logit, or the reason why it has none."""
    try:
        found = contributions(model, image, target, versus=versus)
    except ValueError as error:
        return {"missing": str(error)}
    if found.heads.shape[1:3] != (len(heads), heads[0]):
        return {"missing": "other heads have attention than those that add to the logit"}
    return {
        "heads": pack_bytes(found.heads[0].float()),
        "mlps": found.mlps.sum().item(),
        "embedding": found.embedding.sum().item(),
        "biases": found.bias.sum().item(),
        "logit": found.logits.item(),
    }


def ablated_logits(
    model: nn.Module, image: Tensor, heads: list[int], calls: Sequence[int] | None = None
) -> list[Tensor]:
    """Return the logits without each head and, last, without any head: (heads + 1, classes) for each layer.

    If a head is switched off, its attention is zero and it adds nothing to the tokens. The image is (1, C, H, W), and
    ``heads`` holds the number of heads of each layer; ``calls`` are those of ``run_intercepted``.
    """
    ablated = []
    for layer, count in enumerate(heads):
        on = torch.cat([1 - torch.eye(count), torch.zeros(1, count)])[:, :, None, None]

        def switch_off(at: int, attn: Tensor, layer: int = layer, on: Tensor = on) -> Tensor:
            return attn * on.to(attn) if at == layer else attn

        ablated.append(run_intercepted(model, repeat(image, "1 c h w -> b c h w", b=count + 1), switch_off, calls))
    return ablated


def quantise(attn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise each row to 256 levels: (..., N, M) -> lows (..., N), largest (..., N), codes (..., N, M) as bytes.

    A weight is ``largest / FINE * sinh(place)``, and its place is ``lows + codes / 255 * (TOP - lows)``. So zero stays
    zero in rows without negative weights, and rows of nearly equal weights keep their differences.
    """
    attn = attn.float()
    largest = attn.abs().amax(dim=-1)
    units = (largest / FINE).clamp(min=torch.finfo(attn.dtype).tiny)[..., None]
    places = (attn / units).asinh().clamp(max=TOP)
    lows = places.amin(dim=-1)
    spans = (TOP - lows).clamp(min=torch.finfo(attn.dtype).tiny)[..., None]
    codes = (places - lows[..., None]) / spans * 255
    return lows, largest, codes.round().to(torch.uint8)


def pile_maps(maps: Mapping[str, Tensor], grid: tuple[int, int]) -> Tensor:
    """Check maps, given by their titles, and stack them: -> float (maps, rows, columns).

    Raises:
        ValueError: If a map does not fit the grid, or contains NaN or infinity.
    """
    for name, values in maps.items():
        if tuple(values.shape) != tuple(grid):
            raise ValueError(
                f"map {name!r} has shape {tuple(values.shape)}, and the model {grid[0]} rows and {grid[1]} columns of "
                "patches: give one map of that shape, as explain(model, image[None])[0]"
            )
        if not values.isfinite().all():
            raise ValueError(
                f"map {name!r} contains NaN or infinity, which have no colour: replace them by map.nan_to_num()"
            )
    return torch.stack([values.detach().float().cpu() for values in maps.values()]) if maps else torch.zeros(0, *grid)


def colour_constants() -> dict[str, Any]:
    """Return what the page needs to compute the colours of ``overlay``."""
    return {
        "luma": heatmap.LUMA,
        "darkest": heatmap.DARKEST,
        "contrast": heatmap.CONTRAST,
        "lift": heatmap.LIFT,
        "chroma": heatmap.CHROMA,
        "fullChromaAt": heatmap.FULL_CHROMA_AT,
        "hues": heatmap.HUES,
        "toCones": heatmap.TO_CONES,
        "toRgb": heatmap.TO_RGB,
    }


def displayed_pixels(image: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Convert an image to RGB bytes for display: (C, H, W) -> (H, W, 3)."""
    image = displayable(image[None].cpu(), mean, std)[0]
    colours = image if len(image) == 3 else repeat(image.mean(dim=0), "h w -> c h w", c=3)
    return rearrange(colours * 255, "c h w -> h w c").round().to(torch.uint8)


def name_modules(names: Sequence[str], depth: int) -> list[str]:
    """Return the module name of each layer, or "" if the name ends in the number of the layer.

    The numbers differ if some blocks have no attention, for example if ``prune_heads`` removed all heads of a layer.

    >>> name_modules(["blocks.0", "blocks.2"], 2)
    ['', 'blocks.2']
    """
    if len(names) != depth:
        return [""] * depth
    return ["" if name.rpartition(".")[2] in (str(layer), name) else name for layer, name in enumerate(names)]


def name_other_tokens(model: nn.Module, anatomy: Anatomy) -> list[tuple[int, str]]:
    """Return the index and name of each non-patch token."""
    parameters = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    patches = anatomy.patches
    places = [*range(patches.start), *range(patches.stop, anatomy.num_tokens)]
    if parameters & DISTILLATION_TOKENS and patches.start > 1:
        names = dict(zip(places, ("class token", "distillation token"), strict=False))
    else:
        shares = None if anatomy.reads_more else anatomy.fixed_readout
        read = (
            []
            if shares is None
            else [place for place in places if shares[place] > (1 + VARIES) * shares[patches].max()]
        )
        # A class token that the logits do not read, as with mean pooling, is known by the name of its parameter alone.
        read = read or places[: bool(parameters & CLASS_TOKENS and patches.start)]
        names = {place: "class token" if len(read) == 1 else f"class token {i}" for i, place in enumerate(read)}
    registers = (f"register {number}" for number in count_up())
    return [(place, names.get(place) or next(registers)) for place in places]


def _single_image(image: Tensor) -> Tensor:
    """Return a single image as a batch: (C, H, W) or (1, C, H, W) -> (1, C, H, W).

    Raises:
        ValueError: If it is not one image.
    """
    image = image[None] if image.ndim == 3 else image
    if image.ndim != 4 or len(image) != 1:
        raise ValueError(
            f"image has shape {tuple(image.shape)}: give a single one, (channels, rows, columns), as images[0]"
        )
    return image


@torch.no_grad()
def _attention_and_logits(model: nn.Module, image: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the attention of each layer, (heads, N, N), and the logits (1, classes).

    Raises:
        ValueError: If attention cannot be captured, or the model returns no row of logits.
    """
    attentions = capture_attention(model, image)
    if attentions.logits.ndim != 2:
        raise ValueError(
            f"the model returned logits of shape {tuple(attentions.logits.shape)}: give a classifier, (batch, classes)"
        )
    return [attn[0] for attn in attentions if attn.shape[-2] > 1], attentions.logits


def _explained_classes(subject: Subject) -> tuple[int, int | None]:
    """Return the class whose logit is split, and the class to compare with, or None."""
    return int(subject.contrast.argmax()), None if subject.versus is None else int(subject.contrast.argmin())


def _default_map(subject: Subject, asked: Sequence[str]) -> dict[str, Tensor]:
    """Return the map of the default method, titled by the question that it answers."""
    return {f"{DEFAULT_METHOD}: why {', and not '.join(asked)}?": signed_map(DEFAULT_METHOD, subject)[0]}


def _kept_classes(logits: Tensor, asked: Sequence[int], thresholds: Sequence[float] | None) -> list[int]:
    """Return the classes of the page: the best of each row of logits, those above a threshold, those asked about."""
    best = logits.topk(min(TOP_CLASSES, logits.shape[1])).indices.flatten().tolist()
    above_threshold = []
    if thresholds is not None:
        above_threshold = (logits.sigmoid().cpu() >= torch.tensor(thresholds)).nonzero()[:, 1].tolist()
    return sorted({*best, *asked, *above_threshold})


def _token_data(anatomy: Anatomy, heads: Sequence[int], others: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Return what the page needs to know of the layers and the tokens."""
    read = (token for token, name in others if name == "class token" and is_read(anatomy, token))
    return {
        "grid": anatomy.grid,
        "heads": heads,
        "modules": name_modules(anatomy.parts.layer_names, len(heads)),
        "tokens": anatomy.num_tokens,
        "firstPatch": anatomy.num_prefix_tokens,
        "others": others,
        "home": next(read, None),
    }


def _attention_data(layers: Sequence[Tensor], patches: slice, others: Sequence[tuple[int, str]]) -> dict[str, Any]:
    """Return the attention of all heads: to patches in bytes, and to other tokens in float32."""
    weights = torch.cat([*layers])
    lows, largest, codes = quantise(weights[..., patches])
    return {
        "fine": FINE,
        "top": TOP,
        "lows": pack_bytes(lows),
        "largest": pack_bytes(largest),
        "codes": pack_bytes(codes),
        "otherWeights": pack_bytes(weights[..., [place for place, _ in others]].float()),
    }


def _map_data(maps: Mapping[str, Tensor], grid: tuple[int, int]) -> dict[str, Any]:
    """Return the maps with their titles, what the words of a title mean, and what their colours are made of."""
    return {
        "mapNames": list(maps),
        "mapWords": [str(MAPS.get(name.partition(":")[0], "")) for name in maps],
        "maps": pack_bytes(pile_maps(maps, grid)),
        "colours": colour_constants(),
    }


def _class_data(model: nn.Module, logits: Tensor, names: Sequence[str], asked: Sequence[int]) -> dict[str, Any]:
    """Return the logits of the classes on the page: of the model first, then without each head and each layer."""
    thresholds = thresholds_of(model)
    kept = _kept_classes(logits, asked, thresholds)
    return {
        "classes": [names[index] for index in kept],
        "askedClasses": [kept.index(index) for index in asked],
        "thresholds": None if thresholds is None else [thresholds[index] for index in kept],
        "logits": pack_bytes(logits[:, kept]),
        "logSums": pack_bytes(logits.logsumexp(dim=1)),
    }


def _fill_template(data: dict[str, Any]) -> Explorer:
    template = files("vit.explain").joinpath("explorer_page.html").read_text(encoding="utf-8")
    # Escaping < keeps class names from closing the script element that holds the data.
    return Explorer(template.replace("{{data}}", json.dumps(data).replace("<", "\\u003c")))


def explorer(
    model: nn.Module,
    image: "Tensor | Given",
    *,
    maps: Mapping[str, Tensor] | None = None,
    target: int | str | None = None,
    versus: int | str | None = None,
    class_names: Sequence[str] | None = None,
    model_name: str = "",
    image_name: str = "",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Explorer:
    """Build a page that shows the attention of every layer and head of a model over one image, and maps beside it.

    The page also shows what each head adds to a logit (see ``contributions``), or why the logit is no such sum. The
    model also runs once for each head and each layer with that part switched off, so the page can show how the logits
    change. Before compression, the page takes about layers * heads * tokens ** 2 bytes.

    Attention to a patch is within 1/66 of the model's (1/33 in rows with negative weights), or within 1/50,000 of that
    to the largest patch of the same row. Attention to other tokens, logits, contributions and maps are float32.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> page = explorer(model, torch.randn(3, 32, 32))
    >>> page.save("explorer.html")  # doctest: +SKIP

    Args:
        model: A classifier that ``capture_attention`` can see, in eval mode.
        image: One image as the model takes it, (C, H, W) or (1, C, H, W); or a file or a PIL image, for a model of
            ``vit.load`` or timm, which also tells the names and the statistics below.
        maps: Maps of the patches to choose from beside attention, (rows, columns) each, by any title. Negative values
            speak against the class. None draws ``DEFAULT_METHOD`` for the target.
        target: The class whose logit is split into contributions, by number or name; None is the predicted class.
        versus: A class to compare with, by number or name: then the target's logit minus that of this class is split.
        class_names: Names of the classes, in the order of the logits; None numbers them.
        model_name: Name of the model, shown on top.
        image_name: Name of the image, such as that of its file, shown on top.
        mean: Channel means that were subtracted from the image. Display adds them again.
        std: Channel standard deviations that the image was divided by. If mean and std are None, the smallest value of
            the image is black and the largest white. Images without three channels are averaged to grey.
        grid: Rows and columns of patches, checked against the detected grid (see ``explain``).
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.

    Raises:
        ValueError: If ``image`` is not one image, attention cannot be captured, the model returns no row of logits, or
            maps, names, mean or std do not fit.
    """
    if not isinstance(image, Tensor):
        from vit.explain.inputs import as_images, input_settings, name_of  # imports Pillow, which tensors do not need

        settings, image_name = input_settings(model).pretrained_cfg, image_name or name_of(image)
        class_names, mean, std = class_names or settings.get("class_names"), settings["mean"], settings["std"]
        image = as_images(model, image)
    image = _single_image(image)
    pixels = displayed_pixels(image[0], mean, std)
    anatomy = examine(model, image, grid, num_prefix_tokens)
    check_even(anatomy.cells, anatomy.grid, type(model).__name__)
    layers, of_image = _attention_and_logits(model, image)
    names = name_classes(class_names, of_image.shape[1])
    heads = [len(attn) for attn in layers]
    with torch.no_grad():
        logits = torch.cat([of_image, *ablated_logits(model, image, heads, anatomy.calls)]).float()
    target, versus = (class_number(each, names) if isinstance(each, str) else each for each in (target, versus))
    subject = Subject(model, image, target, versus, grid=grid, num_prefix_tokens=num_prefix_tokens)
    target, versus = _explained_classes(subject)
    asked = [target] if versus is None else [target, versus]
    if maps is None:
        maps = _default_map(subject, [names[index] for index in asked])
    others = name_other_tokens(model, anatomy)
    return _fill_template(
        {
            "model": printable(model_name) or type(model).__name__,
            "image": printable(image_name),
            "caution": "" if is_packaged(model) else f"{NOT_MEASURED} Measure yours: vit-attention explain --trust",
            **_token_data(anatomy, heads, others),
            "size": pixels.shape[:2],
            "pixels": pack_bytes(pixels),
            **_attention_data(layers, anatomy.patches, others),
            "terms": split_logit(model, image, target, versus, heads),
            "asked": " rather than ".join(names[index] for index in asked),
            **_map_data(maps, anatomy.grid),
            **_class_data(model, logits, names, asked),
            "words": explain_words(others),
        }
    )
