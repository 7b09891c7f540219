"""The explorer: one HTML file that shows the attention of every layer and head for any token of an image.

The page is `explorer_page.html` with the data of one image filled in; it needs no server and no network.

Letters in the einops patterns: b batch, c channels, h w rows and columns of pixels.
"""

import base64
import html
import json
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from vit.capture.anatomy import Anatomy, examine
from vit.capture.attention import capture_attention, run_intercepted
from vit.capture.footprint import check_even
from vit.explain.heatmap import displayable
from vit.support.class_names import name_classes
from vit.support.files import replacing

TOP_CLASSES = 5
CLASS_TOKENS = {"cls_token", "class_token"}
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


def explorer(
    model: nn.Module,
    image: Tensor,
    *,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Explorer:
    """Build a page that shows the attention of every layer and head of a model over one image.

    The model also runs once for each head and each layer with that part switched off, so the page can show how the
    logits change. The page stores each attention weight as a byte. Before compression, this takes about layers * heads
    * tokens ** 2 bytes. The error is at most 1/510 of the largest weight of the same query.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> page = explorer(model, torch.randn(3, 32, 32))
    >>> page.save("explorer.html")  # doctest: +SKIP

    Args:
        model: A classifier that ``capture_attention`` can see, in eval mode.
        image: One image as the model takes it, (C, H, W) or (1, C, H, W).
        class_names: Names of the classes, in the order of the logits; None numbers them.
        mean: Channel means that were subtracted from the image. Display adds them again.
        std: Channel standard deviations that the image was divided by. If mean and std are None, the smallest value of
            the image is black and the largest white. Images without three channels are averaged to grey.
        grid: Rows and columns of patches; needed if no module of the model has a ``patch_size``.
        num_prefix_tokens: Number of tokens before the patches; needed if some non-patch tokens follow the patches.

    Raises:
        ValueError: If ``image`` is not one image, attention cannot be captured, the model returns no row of logits, or
            names, mean or std do not fit.
    """
    image = image[None] if image.ndim == 3 else image
    if image.ndim != 4 or len(image) != 1:
        raise ValueError(
            f"image has shape {tuple(image.shape)}: give a single one, (channels, rows, columns), as images[0]"
        )
    pixels = displayed_pixels(image[0], mean, std)
    anatomy = examine(model, image, grid, num_prefix_tokens)
    check_even(anatomy.cells, anatomy.grid, type(model).__name__)
    with torch.no_grad():
        attentions = capture_attention(model, image)
        maps = [attn[0] for attn in attentions if attn.shape[-2] > 1]
        heads = [len(attn) for attn in maps]
        if attentions.logits.ndim != 2:
            raise ValueError(
                f"the model returned logits of shape {tuple(attentions.logits.shape)}: give a classifier, "
                "(batch, classes)"
            )
        names = name_classes(class_names, attentions.logits.shape[1])
        logits = torch.cat([attentions.logits, *ablated_logits(model, image, heads)]).float()
    lows, steps, codes = quantise(torch.cat(maps))
    kept = logits.topk(min(TOP_CLASSES, len(names))).indices.unique()
    return _fill_template(
        {
            "model": type(model).__name__,
            "grid": anatomy.grid,
            "heads": heads,
            "tokens": anatomy.num_tokens,
            "firstPatch": anatomy.num_prefix_tokens,
            "others": name_other_tokens(model, anatomy),
            "size": pixels.shape[:2],
            "pixels": pack_bytes(pixels),
            "lows": pack_bytes(lows),
            "steps": pack_bytes(steps),
            "codes": pack_bytes(codes),
            "classes": [names[index] for index in kept.tolist()],
            "logits": pack_bytes(logits[:, kept]),
            "logSums": pack_bytes(logits.logsumexp(dim=1)),
        }
    )


def ablated_logits(model: nn.Module, image: Tensor, heads: list[int]) -> list[Tensor]:
    """Return the logits without each head and, last, without any head: (heads + 1, classes) for each layer.

    If a head is switched off, its attention is zero and it adds nothing to the tokens. The image is (1, C, H, W), and
    ``heads`` holds the number of heads of each layer.
    """
    ablated = []
    for layer, count in enumerate(heads):
        on = torch.cat([1 - torch.eye(count), torch.zeros(1, count)])[:, :, None, None]

        def switch_off(at: int, attn: Tensor, layer: int = layer, on: Tensor = on) -> Tensor:
            return attn * on.to(attn) if at == layer else attn

        ablated.append(run_intercepted(model, repeat(image, "1 c h w -> b c h w", b=count + 1), switch_off))
    return ablated


def quantise(attn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise each row to 256 levels: (..., N, M) -> lows (..., N), steps (..., N), codes (..., N, M) as bytes.

    The error of ``lows + steps * codes`` is at most half a step. Rows start at zero unless they have negative weights,
    as in differential attention.
    """
    attn = attn.float()
    lows = attn.amin(dim=-1).clamp(max=0)
    steps = (attn.amax(dim=-1) - lows) / 255
    codes = (attn - lows[..., None]) / steps.clamp(min=torch.finfo(steps.dtype).tiny)[..., None]
    return lows, steps, codes.round().to(torch.uint8)


def displayed_pixels(image: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Convert an image to RGB bytes for display: (C, H, W) -> (H, W, 3)."""
    image = displayable(image[None].cpu(), mean, std)[0]
    colours = image if len(image) == 3 else repeat(image.mean(dim=0), "h w -> c h w", c=3)
    return rearrange(colours * 255, "c h w -> h w c").round().to(torch.uint8)


def name_other_tokens(model: nn.Module, anatomy: Anatomy) -> list[tuple[int, str]]:
    """Return the index and name of each non-patch token."""
    parameters = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    patches = anatomy.patches
    # If the parameter of the class token has another name, it is the token that the logits read most.
    has_class_token = parameters & CLASS_TOKENS or anatomy.readout[0] > anatomy.readout[patches.start]
    learned = ["class token"] * bool(has_class_token) + ["distillation token"] * bool(parameters & DISTILLATION_TOKENS)
    before = learned[: patches.start]
    places = [*range(patches.start), *range(patches.stop, anatomy.num_tokens)]
    registers = [f"register {number + 1}" for number in range(len(places) - len(before))]
    return list(zip(places, before + registers, strict=True))


def pack_bytes(tensor: Tensor) -> str:
    """Encode the numbers of a tensor: little-endian, deflated, base64."""
    return base64.b64encode(zlib.compress(tensor.cpu().numpy().tobytes())).decode("ascii")


def _fill_template(data: dict[str, Any]) -> Explorer:
    template = files("vit.explain").joinpath("explorer_page.html").read_text(encoding="utf-8")
    # Escaping < keeps class names from closing the script element that holds the data.
    return Explorer(template.replace("{{data}}", json.dumps(data).replace("<", "\\u003c")))
