"""Figures of spectra, and of what a decision rests on.

Letters in the einops patterns: b images, h heads, k singular values.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from einops import reduce
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vit.analysis.charts import TRAINED, UNTRAINED
from vit.analysis.measures import effective_rank
from vit.support.picture_files import save_figure
from vit.support.plotting import plot_style


@plot_style
def draw_attention_spectra(trained: Sequence[Tensor], untrained: Sequence[Tensor], path: Path) -> None:
    """Draw the spectra of attention before and after training, and their ranks; see ``attention_spectra``."""
    figure = Figure(figsize=(10.5, 4))
    shares, ranks = figure.subplots(1, 2)
    for layers, style in ((trained, TRAINED), (untrained, UNTRAINED)):
        mean = torch.stack([reduce(values, "b h k -> k", "mean") for values in layers]).mean(dim=0)
        plain = {name: value for name, value in style.items() if name not in ("marker", "ms")}
        shares.plot(range(len(mean) + 1), [0.0, *(100 * mean.cumsum(dim=0)).tolist()], **plain)
        ranks.plot([effective_rank(values).mean().item() for values in layers], **style)
    shares.set(title="Spectrum of attention", xlabel="largest singular values", ylabel="share of their sum, %")
    shares.set(xscale="symlog", xlim=(0, None), ylim=(0, 103))
    shares.legend(loc="lower right")
    ranks.set(title="Effective rank of attention", xlabel="layer", ylabel="effective rank", ylim=(0, None))
    ranks.xaxis.set_major_locator(MaxNLocator(integer=True))
    save_figure(figure, path)


def draw_residual(effects: Tensor, num_prefix_tokens: int, path: Path) -> None:
    """Draw the change of the logit difference if one token of the residual stream is from another image: (L + 1, N).

    Rows are places: before each layer, and after the last. Prefix tokens have a panel of their own in the same colours.
    """
    rows, tokens = effects.shape
    prefix, patches = effects[:, :num_prefix_tokens], effects[:, num_prefix_tokens:]
    figure = Figure(figsize=(9.5, 1.6 + 0.42 * rows), layout="constrained")
    widths = [max(1.0, 12 * num_prefix_tokens / tokens), 12]
    # The colours of small values are spread: those of patches are small beside that of a class token.
    scale = PowerNorm(0.5, vmin=0, vmax=max(effects.max().item(), 1e-12))
    parts = [(part, name) for part, name in ((prefix, "prefix"), (patches, "patch")) if part.shape[1]]
    panels = figure.subplots(1, len(parts), width_ratios=widths[-len(parts) :], sharey=True, squeeze=False)[0]
    for axes, (part, name) in zip(panels, parts, strict=True):
        image = axes.imshow(part.numpy(), cmap="Blues", norm=scale, aspect="auto", interpolation="nearest")
        axes.set(xlabel=f"{name} token" if name == "prefix" else "patch, row by row")
        axes.set_xticks(range(0, part.shape[1], -(-part.shape[1] // 9)))
    panels[0].set_yticks(range(rows), [*(f"before layer {layer}" for layer in range(rows - 1)), "after the last"])
    figure.suptitle("What the decision rests on: a token replaced by that of another image", fontsize=11)
    figure.colorbar(image, ax=list(panels), label="change of the logit difference")
    save_figure(figure, path, dpi=120)
