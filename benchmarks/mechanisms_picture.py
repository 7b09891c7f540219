"""Draw docs/images/mechanisms.png: to which patches one patch attends, for each mechanism of attention.

python benchmarks/mechanisms_picture.py

Letters in the einops patterns: y x rows and columns of patches.
"""

from pathlib import Path
from typing import Any

import torch
from attention_figures import FAMILIES
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor, nn

import vit
from vit.explain.heatmap import shade

PICTURE = Path(__file__).parents[1] / "docs/images/mechanisms.png"
SIDE, QUERY = 8, (3, 4)  # patches of a side; row and column of the patch that attends
ACROSS, LETTERS = 6, 15
MOST = 3  # times the mean weight: yellow, as all above
GREY = 0.5  # brightness of an image that shows nothing
STEPS = torch.linspace(0, 1, 256)
COLORS = {
    "cmap": ListedColormap(shade(torch.full((1, 1, 1, 256), GREY), STEPS[None, None])[0, :, 0].T.numpy()),
    "norm": Normalize(0, MOST),
}
OPTIONS = {
    "topk": {"k": 6},
    "window": {"window": 4},
    "neighborhood": {"kernel": 3},
}


@torch.no_grad()
def weights_of(name: str) -> Tensor:
    """Return the attention of one patch to all patches in an untrained layer, (SIDE, SIDE)."""
    torch.manual_seed(0)
    model = vit.VisionTransformer(
        image_size=4 * SIDE,
        embed_dim=32,
        depth=1,
        num_heads=1,
        class_token=False,
        pool="mean",
        attention=name,
        attention_kwargs=OPTIONS.get(name, {}),
    ).eval()
    attn, tokens = model.blocks[0].attn, torch.randn(1, SIDE**2, 32)
    try:
        weights = attn.weights(tokens, grid=(SIDE, SIDE))
    except ValueError:  # of a mechanism that makes no weights
        weights = implied_weights(attn, tokens)
    return rearrange(weights[0, 0, QUERY[0] * SIDE + QUERY[1]], "(y x) -> y x", y=SIDE)


def implied_weights(attn: nn.Module, tokens: Tensor) -> Tensor:
    """Return the weights that the output of a mechanism amounts to, (B, H, N, N): it is linear in the values."""
    taken: list[Any] = []
    with attn.mechanism.register_forward_pre_hook(lambda _, *given: taken.append(given), with_kwargs=True):
        attn(tokens, grid=(SIDE, SIDE))
    (queries, keys, _), options = taken[0]
    # With a value of its own for each key, the output is the weights of all keys.
    return attn.mechanism(queries, keys, torch.eye(tokens.shape[1])[None, None], **options)


def show(axes: Axes, name: str, color: str) -> None:
    """Show the weights of a mechanism in units of their mean, with a frame around the patch that attends."""
    weights = weights_of(name).abs()
    axes.imshow(weights / weights.mean(), **COLORS)
    row, column = QUERY
    axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec="white", lw=2))
    axes.set_title(name, color=color, fontsize=LETTERS)
    axes.set(xticks=[], yticks=[])


def draw() -> None:
    """Draw all mechanisms, those of a family together."""
    shown = [(name, color) for color, names in FAMILIES.values() for name in names]
    figure = Figure(figsize=(9, 7), layout="constrained")
    plots = figure.subplots(-(-len(shown) // ACROSS), ACROSS).flat.copy()
    for axes in plots:
        axes.set_axis_off()
    for axes, (name, color) in zip(plots, shown, strict=False):
        axes.set_axis_on()
        show(axes, name, color)
    figure.suptitle("Where the framed patch attends", fontsize=LETTERS)
    bar = figure.colorbar(
        ScalarMappable(**COLORS), cax=figure.add_axes((0.52, 0.2, 0.3, 0.02)), orientation="horizontal"
    )
    bar.set_ticks([0, 1, MOST], labels=["0", "1", f"{MOST} or more"])
    bar.set_label("weight, in multiples of the mean", fontsize=LETTERS - 5)
    families = [Patch(color=color, label=family) for family, (color, _) in FAMILIES.items()]
    figure.legend(handles=families, loc=(0.5, 0.01), ncols=2, fontsize=LETTERS - 5, columnspacing=1.0, frameon=False)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    draw()
    print(PICTURE)
