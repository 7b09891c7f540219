"""The page of a text: where a reader looks while it writes each token, in every layer and head.

The page is `text_page.html`, a template of ``vit.support.pages``; it needs no script, no server and no network.

Letters in the einops patterns: b pictures, t tokens of a text, h heads, l m tokens of the image, c channels, h w rows
and columns of pixels, r s rows and columns of patches.
"""

import base64
import io
from collections.abc import Sequence

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Tensor, nn

from vit.explain.explorer_page import Explorer
from vit.explain.heatmap import displayable, overlay
from vit.explain.texts import capture_text, cells_of_text, rolled_encoder
from vit.glossary import EVERYWHERE, MAPS


def text_explorer(
    model: nn.Module,
    image: Tensor,
    tokens: Tensor,
    names: Sequence[str],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> Explorer:
    """Build a page with a column for each token that a reader writes and a row for each map of its cross-attention.

    The first row is rollout through the encoder. Then each layer, last first, has its mean over heads and each head.

    >>> import vit
    >>> from vit.model.decoder import ImageToSequence, TransformerDecoder
    >>> encoder = vit.VisionTransformer(image_size=(8, 16), patch_size=4, embed_dim=24, depth=1, num_heads=3)
    >>> decoder = TransformerDecoder(12, 24, depth=2, num_heads=3, max_length=6, context_dim=24)
    >>> reader = ImageToSequence(encoder, decoder, start=10, end=11).eval()
    >>> page = text_explorer(reader, torch.randn(3, 8, 16), torch.tensor([10, 3]), ["3", "end"])
    >>> page.save("text.html")  # doctest: +SKIP

    Args:
        model: An encoder-decoder in eval mode, called as ``model(images, tokens)``.
        image: One image as the model takes it, (C, H, W).
        tokens: The start token, then all written tokens except the last, (T,).
        names: T names: what the model writes after each token. The last one names the most probable next token.
        mean: Channel means that were subtracted from the image. Display adds them again.
        std: Channel standard deviations that the image was divided by. If mean and std are None, the smallest value of
            the image is black and the largest white.
        grid: Rows and columns of patches; needed if the model is no ``ImageToSequence``.
        num_prefix_tokens: Number of tokens before the patches; needed if the model is no ``ImageToSequence``.

    Raises:
        ValueError: If there is not one image with a name for each token, or attention cannot be captured.
    """
    from vit.support.pages import page_templates

    if image.ndim != 3 or tokens.ndim != 1 or len(names) != len(tokens):
        raise ValueError(
            f"image has shape {tuple(image.shape)}, tokens {tuple(tokens.shape)}, and there are {len(names)} names: "
            "give one image (channels, rows, columns), its tokens (T,), and a name for what is written after each"
        )
    images, tokens = image[None], tokens[None]
    with torch.no_grad():
        found, grid, prefix = capture_text(model, images, tokens, grid, num_prefix_tokens)
        through = rolled_encoder(model, images, found)[0]
    last = reduce(found.cross[-1].clamp(min=0), "1 h t m -> t m", "mean")
    rolled = einsum(last, through, "t l, l m -> t m")[:, prefix:]
    rows = [("rollout through the encoder", rearrange(rolled, "t (r s) -> t r s", r=grid[0]))]
    for layer in reversed(range(len(found.cross))):
        heads = rearrange(found.cross[layer][0, ..., prefix:].clamp(min=0), "h t (r s) -> h t r s", r=grid[0])
        rows.append((f"layer {layer}, mean of the heads", reduce(heads, "h t r s -> t r s", "mean")))
        rows += [(f"layer {layer}, head {head}", maps) for head, maps in enumerate(heads)]
    cells = cells_of_text(model, images)
    shown = displayable(images, mean, std).cpu()
    steps = repeat(shown, "1 c h w -> t c h w", t=len(names))
    probabilities = found.logits[0].float().softmax(dim=-1)
    # What is written after the last of the tokens is not among them: it is the most probable token.
    written = torch.cat([tokens[0, 1:], probabilities[-1:].argmax(dim=-1)])
    of_written = probabilities.gather(1, rearrange(written, "t -> t 1"))[:, 0].tolist()
    page = page_templates({"rollout": MAPS["rollout"]}, EVERYWHERE).get_template("explain/text_page.html")
    return Explorer(
        page.render(
            model=type(model).__name__,
            picture=png_url(shown[0]),
            written=[(name, f"{100 * probability:.0f}") for name, probability in zip(names, of_written, strict=True)],
            rows=[
                (name, [png_url(picture) for picture in overlay(steps, maps.cpu(), cells=cells)]) for name, maps in rows
            ],
        )
    )


def png_url(image: Tensor) -> str:
    """Return an image (C, H, W), float in [0, 1], as a URL that holds a PNG file."""
    from PIL import Image

    pixels = rearrange((image * 255).round().to(torch.uint8), "c h w -> h w c")
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(2).numpy() if pixels.shape[2] == 1 else pixels.numpy()).save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
