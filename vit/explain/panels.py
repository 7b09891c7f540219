"""A picture of panels: each an image with its title above and its colour bar and caption below.

Each pixel of an image is one pixel of the PNG file. Letters keep their size relative to the panels.

Letters in the einops patterns: c channels, h w rows and columns of pixels.
"""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from einops import rearrange, repeat
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from torch import Tensor

from vit.explain.heatmap import shade
from vit.support.fonts import drawable
from vit.support.picture_files import save_figure
from vit.support.plotting import ORANGE, plain_text

FORMATS = ("png", "svg", "pdf")
BLACK = "#111111"
POINTS, DPI = 72, 100  # points and pixels per inch; with fewer pixels than points, matplotlib cuts images of SVG
LINE = 1.35  # height of a line, in heights of its letters
SMALL, LARGE = 0.9, 1.25  # sizes of the letters of ticks and of titles, relative to those of captions
HINTED = 0.96  # share of a line that is filled: letters of few pixels are a little wider than their outlines
BAR_WIDTH, BAR_HEIGHT = 13, 1.1  # of the colour bar, in heights of letters


class Look(NamedTuple):
    """Sizes of a picture, relative to each other.

    Attributes:
        side: The longer side of the largest panel in inches.
        letters: Height of letters in points.
        column: Least width of a panel with its texts, in inches.
    """

    side: float
    letters: float
    column: float


LARGE_LOOK, SHEET_LOOK = Look(6.4, 12, 4.8), Look(2.6, 8.5, 2.6)


WORDS = ("title", "subtitle", "caption", "caution")  # of a panel


class Bar(NamedTuple):
    """A colour bar: its unit, and the values at its start, its middle and its end."""

    unit: str
    ticks: tuple[str, str, str]


class Panel(NamedTuple):
    """An image (C, H, W), uint8 or float in [0, 1], and what is written around it.

    Attributes:
        pixels: The image.
        title: Its title.
        subtitle: Lines below the title, in regular letters.
        caption: A paragraph below the image.
        caution: A paragraph below that, in orange.
        bar: The colour bar.
    """

    pixels: Tensor
    title: str
    subtitle: str = ""
    caption: str = ""
    caution: str = ""
    bar: Bar | None = None


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook displays; elsewhere, ``save`` it.

    Attributes:
        figure: The matplotlib figure.
        boxes: Left, top, right and bottom of each panel in pixels of the PNG file.
        description: What the picture shows, in words.
    """

    figure: Figure
    boxes: list[tuple[int, int, int, int]]
    description: str

    def save(self, path: str | Path) -> Path:
        """Write the picture as its suffix says, .png, .svg or .pdf, and return the path.

        Raises:
            ValueError: If the suffix is another one.
        """
        path = Path(path)
        kind = path.suffix[1:].lower()
        check_format(kind, path)
        noted = {
            "png": {"Description": self.description},
            "svg": {"Description": self.description, "Date": None},
            "pdf": {"Subject": self.description, "CreationDate": None},
        }
        with matplotlib.rc_context({"image.composite_image": False}):  # or vector files join all images into one
            save_figure(self.figure, path, dpi=self.figure.dpi, metadata=noted[kind])
        return path

    def __repr__(self) -> str:
        width, height = (round(self.figure.dpi * inches) for inches in self.figure.get_size_inches())
        return f"<Picture of {width} x {height} pixels, {self.description}: save('picture.png') and open that>"

    def _repr_html_(self) -> str:
        # The PNG has a white background of its own, also on dark pages.
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=self.figure.dpi)
        encoded = base64.b64encode(file.getvalue()).decode("ascii")
        return (
            f'<img alt="{html.escape(self.description)}" style="max-width: 100%" src="data:image/png;base64,{encoded}">'
        )


def check_format(kind: str, path: Path) -> None:
    """Raise a ValueError if pictures cannot be written in a format."""
    if kind not in FORMATS:
        raise ValueError(f"{path} is no picture that can be written: choose {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")


@plain_text
def draw_panels(
    rows: Sequence[Sequence[Panel]],
    look: Look = LARGE_LOOK,
    *,
    title: str = "",
    bar: Bar | None = None,
    description: str = "",
) -> Picture:
    """Draw panels in rows. The longer side of the largest image has the size of the look.

    Args:
        rows: The panels.
        look: Sizes of panels and letters.
        title: Title of the whole.
        bar: A colour bar for all panels.
        description: What the picture shows, in words, for readers who cannot see it.
    """
    texts = [title, *(getattr(panel, name) for row in rows for panel in row for name in WORDS)]
    with drawable(texts) as shown:
        canvas, drawn = _Canvas(rows, look), dict(zip(texts, shown, strict=True))
        if title:
            canvas.top += canvas.write(canvas.margin, canvas.top, drawn[title], LARGE, canvas.across, weight="bold")
            canvas.top += canvas.letters
        for row in rows:
            canvas.add_row([panel._replace(**{name: drawn[getattr(panel, name)] for name in WORDS}) for panel in row])
        if bar:
            canvas.top += canvas.add_bar(canvas.margin, canvas.top, bar, canvas.across)
        return canvas.finish(description)


class _Canvas:
    """What is drawn, in pixels from the top left, until the size of the figure is known."""

    def __init__(self, rows: Sequence[Sequence[Panel]], look: Look) -> None:
        sizes = [panel.pixels.shape[1:] for row in rows for panel in row]
        scale = max(max(size) for size in sizes) / (look.side * DPI)
        self.across = max(map(len, rows))
        self.points = scale * look.letters
        self.letters = max(1, round(self.points * DPI / POINTS))
        self.margin = self.top = self.letters
        self.column = max(max(width for _, width in sizes), round(scale * look.column * DPI))
        self.gap = 2 * self.letters
        self.images: list[tuple[int, int, Tensor]] = []
        self.texts: list[tuple[float, float, str, dict[str, object]]] = []
        self.boxes: list[tuple[int, int, int, int]] = []

    def add_row(self, panels: Sequence[Panel]) -> None:
        """Add panels side by side: titles above, images with one upper edge, and what is below them."""
        lefts = [self.margin + (self.column + self.gap) * place for place in range(len(panels))]
        tops = [self._add_titles(left, panel) for left, panel in zip(lefts, panels, strict=True)]
        self.top = max(tops)
        bottoms = []
        for left, panel in zip(lefts, panels, strict=True):
            height, width = panel.pixels.shape[1:]
            self.images.append((left, self.top, panel.pixels))
            self.boxes.append((left, self.top, left + width, self.top + height))
            bottom = self.top + height + self.letters // 2
            if panel.bar:
                bottom += self.add_bar(left, bottom, panel.bar)
            bottom += self.write(left, bottom, panel.caption, 1)
            bottom += self.letters // 2 if panel.caption and panel.caution else 0
            bottoms.append(bottom + self.write(left, bottom, panel.caution, 1, color=ORANGE))
        self.top = max(bottoms) + self.letters

    def _add_titles(self, left: int, panel: Panel) -> int:
        top = self.top + self.write(left, self.top, panel.title, LARGE, weight="bold")
        return top + self.write(left, top, panel.subtitle, 1) + self.letters // 3

    def _width_of(self, columns: int) -> int:
        return columns * self.column + (columns - 1) * self.gap

    def write(
        self,
        left: int,
        top: int,
        text: str,
        size: float,
        columns: int = 1,
        *,
        weight: str = "normal",
        color: str = BLACK,
    ) -> int:
        """Write a paragraph, and return its height in pixels."""
        width = self._width_of(columns)
        pitch = round(LINE * size * self.letters)
        lines = wrap(text, width / self.letters * self.points, size * self.points, weight) if text else []
        for number, line in enumerate(lines):
            self.texts.append(
                (left, top + number * pitch, line, {"fontsize": size * self.points, "weight": weight, "color": color})
            )
        return pitch * len(lines)

    def add_bar(self, left: int, top: int, bar: Bar, columns: int = 1) -> int:
        """Add the colour of each share, on black to white places of the image, and return its height in pixels."""
        width, height = round(BAR_WIDTH * self.letters), round(BAR_HEIGHT * self.letters)
        shares = repeat(torch.linspace(0, 1, width), "w -> 1 h w", h=height)
        grey = repeat(torch.linspace(1, 0, height), "h -> 1 1 h w", w=width)
        self.images.append((left, top, shade(grey, shares)[0]))
        below = top + height + self.letters // 5
        for share, text, align in zip((0.0, 0.5, 1.0), bar.ticks, ("left", "center", "right"), strict=True):
            self.texts.append(
                (left + share * width, below, text, {"fontsize": SMALL * self.points, "color": BLACK, "ha": align})
            )
        beside = left + width + self.letters
        room = (self._width_of(columns) - width - self.letters) / self.letters * self.points
        lines = wrap(bar.unit, room, self.points)
        pitch = round(LINE * self.letters)
        for number, line in enumerate(lines):
            self.texts.append((beside, top + number * pitch, line, {"fontsize": self.points, "color": BLACK}))
        return max(height + self.letters // 5 + pitch, pitch * len(lines)) + self.letters // 2

    def finish(self, description: str) -> Picture:
        """Return the figure of all that was added."""
        width, height = 2 * self.margin + self._width_of(self.across), self.top
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        for left, top, pixels in self.images:
            picture = rearrange(pixels.detach().cpu(), "c h w -> h w c").numpy()
            figure.figimage(picture, left, height - top - picture.shape[0], origin="upper")
        for left, top, text, options in self.texts:
            figure.text(left / width, 1 - top / height, text, va="top", **options)
        return Picture(figure, self.boxes, description)


def wrap(text: str, width: float, points: float, weight: str = "normal") -> list[str]:
    """Break a text into lines of a width in points, at ordinary spaces if possible.

    >>> wrap("a long name", 40, 10)
    ['a long', 'name']
    """
    properties = FontProperties(size=points, weight=weight)

    def fits(line: str) -> bool:
        return text_to_path.get_text_width_height_descent(line, properties, ismath=False)[0] <= HINTED * width

    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if fits(longer):
                line = longer
                continue
            lines += [line] if line else []
            line = word
            while not fits(line) and len(line) > 1:  # a word longer than a line, such as the name of a file
                kept = next(count for count in range(1, len(line)) if not fits(line[: count + 1]))
                lines.append(line[:kept])
                line = line[kept:]
        lines.append(line)
    return lines
