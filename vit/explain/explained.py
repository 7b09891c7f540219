"""A photograph explained: the maps of a model, and the panels that show them on the photograph as taken."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from vit.explain.classes import class_names_of, thresholds_of
from vit.explain.familiarity import Caution, caution_about
from vit.explain.largest_value import stands_out
from vit.explain.maps.methods import CLASS_AGNOSTIC, METHODS, check_method, signed_map
from vit.explain.maps.subject import Subject
from vit.explain.panels import Bar, Panel
from vit.explain.photograph import Photograph
from vit.explain.photograph_overlay import Box, cell_boxes, overlay_photograph
from vit.support.checks import check_natural
from vit.support.printable import printable

OF_ATTENTION = "attention"  # the method that shows one layer and head
SMALL_PART = 0.45  # share of the longer side; a smaller part that the model saw is also drawn enlarged
ENLARGED, GAP = 0.6, 0.03  # of the longer side: the enlarged part, and the space before it
RELATIVE = Bar("share of the largest value", ("0", "0.5", "1"))
CLASS_AGNOSTIC_NOTE = " (the same for every class)"
SHARES = ("attention", "rollout")
UNITS = {
    "attention": "share of attention",
    "rollout": "share of attention through all layers",
    "occlusion": "fall of the {score} without the patch",
    "token_drop": "fall of the {score} without the patch",
}


class MethodChoice(NamedTuple):
    """A method, and the layer and the head that its map shows, if they were chosen."""

    method: str
    layer: int | None = None
    head: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Arguments of the method."""
        return {name: number for name, number in self._asdict().items() if isinstance(number, int)}

    @property
    def title(self) -> str:
        """The method in words, such as "attention, layer 3, head 2"."""
        return ", ".join([self.method, *(f"{name} {number}" for name, number in self.options.items())])

    @property
    def file_name(self) -> str:
        """The method in the name of a file, such as "attention_layer3_head2"."""
        return "_".join([self.method, *(f"{name}{number}" for name, number in self.options.items())])


def choose_methods(methods: Sequence[str], layer: int | None = None, head: int | None = None) -> list[MethodChoice]:
    """Return each method once, with the layer and the head that were chosen.

    >>> choose_methods(["attention"], layer=3)[0].title
    'attention, layer 3'

    Raises:
        ValueError: If none is named, there is no such method, or it has no layer or head to choose.
    """
    if not methods:
        raise ValueError("there are no methods: name at least one, such as relevance")
    chosen = {name: number for name, number in (("layer", layer), ("head", head)) if number is not None}
    for name, number in chosen.items():
        check_natural(name, number, f"the first {name} is 0")
    for method in methods:
        check_method(method)
        if lacking := [name for name in chosen if name not in inspect.signature(METHODS[method]).parameters]:
            raise ValueError(
                f"{method} has no {lacking[0]} to choose ({lacking[0]} {chosen[lacking[0]]}): "
                f"choose the method {OF_ATTENTION}, or leave {lacking[0]} out"
            )
    return [MethodChoice(method, layer, head) for method in dict.fromkeys(methods)]


def _in_pixels(width: float, height: float) -> str:
    """Return a size in words, without a place for a line break."""
    return f"{width:,.0f}\u00a0x\u00a0{height:,.0f}"


def _enlarge(shown: Tensor, box: Box, side: int) -> Tensor:
    """Cut a box out of a photograph and scale its longer side: uint8 (1, H, W) -> float (1, h, w) in [0, 1]."""
    left, top, right, bottom = (round(edge) for edge in box)
    part = shown[:, top : max(bottom, top + 1), left : max(right, left + 1)].float() / 255
    times = side / max(part.shape[1:])
    size = [max(1, round(times * length)) for length in part.shape[1:]]
    return F.interpolate(part[None], size, mode="bicubic", antialias=True).clamp(0, 1)[0]


def _beside(picture: Tensor, part: Tensor) -> Tensor:
    """Put a part below a wide picture, or to the right of a tall one, on white: (3, H, W), (3, h, w) -> (3, H2, W2)."""
    (height, width), (part_height, part_width) = picture.shape[1:], part.shape[1:]
    gap = max(1, round(GAP * max(height, width)))
    if width >= height:
        canvas = picture.new_ones(3, height + gap + part_height, max(width, part_width))
        canvas[:, height + gap :, :part_width] = part
    else:
        canvas = picture.new_ones(3, max(height, part_height), width + gap + part_width)
        canvas[:, :part_height, width + gap :] = part
    canvas[:, :height, :width] = picture
    return canvas


@dataclass(frozen=True)
class Explained:
    """A photograph, what a model says of it, and maps that explain it.

    Attributes:
        photograph: The photograph.
        model_name: Name of the model, as the user knows it.
        prediction: The predicted class and its probability in words.
        question: What maps of a class answer, such as "why dog?" with its probability; "" if they explain the one class
            that is predicted.
        score: What the maps explain: the logit of a class, or the difference of two logits.
        readers: Which tokens attend in a map of attention, in words.
        maps: The map of each method (rows, columns); negative values speak against the class.
        cells: The patch that each pixel given to the model belongs to, as in ``overlay``.
        caution: A warning if the model may not know such images, or None.
    """

    photograph: Photograph
    model_name: str
    prediction: str
    question: str
    score: str
    readers: str
    maps: Mapping[MethodChoice, Tensor]
    cells: Tensor
    caution: Caution | None

    def panel(self, choice: MethodChoice, shown: Tensor) -> Panel:
        """Return the panel of a map on the photograph, (1, H, W), with all that is said of it."""
        about, grid = CLASS_AGNOSTIC_NOTE if choice.method in CLASS_AGNOSTIC else "", self.maps[choice].shape
        title = self.question if self.question and not about else self.prediction
        said = [choice.title + about, self.photograph.path.name, self.model_name and f"model {self.model_name}"]
        predicted = [f"predicted: {self.prediction}"] if title != self.prediction else []
        return Panel(
            self.drawn(choice, shown),
            printable(title),
            printable("\n".join([*predicted, ", ".join(filter(None, said))]), keep="\n"),
            f"{self._seen_in_words(grid)} {self._stands_out_in_words(choice)}",
            " ".join(self.caution or ()),
            self._bar(choice),
        )

    def drawn(self, choice: MethodChoice, shown: Tensor) -> Tensor:
        """Draw a map on the photograph, (1, H, W) -> (3, H, W). If the model saw a small part, draw it enlarged too."""
        height, width = shown.shape[1:]
        left, top, right, bottom = self.photograph.seen
        across, down = width / self.photograph.width, height / self.photograph.height
        box = left * across, top * down, right * across, bottom * down
        values = self.maps[choice].clamp(min=0)
        picture = overlay_photograph(shown, values, box, self.cells)
        if not self.has_small_part:
            return picture
        part = _enlarge(shown, box, round(ENLARGED * max(height, width)))
        whole = (0.0, 0.0, float(part.shape[2]), float(part.shape[1]))
        return _beside(picture, overlay_photograph(part, values, whole, self.cells))

    def _stands_out_in_words(self, choice: MethodChoice) -> str:
        said = stands_out(self.maps[choice])
        return f"The largest patch has {said}." if said.endswith("mean") else f"{said[0].upper()}{said[1:]}."

    @property
    def has_small_part(self) -> bool:
        """Whether the model saw so small a part of the photograph that its patches are hard to see."""
        left, top, right, bottom = self.photograph.seen
        return max(right - left, bottom - top) < SMALL_PART * max(self.photograph.width, self.photograph.height)

    def _seen_in_words(self, grid: Sequence[int]) -> str:
        boxes = cell_boxes(self.photograph.seen, grid, self.cells)
        (left, top), (right, bottom) = boxes[0, 0, :2].tolist(), boxes[-1, -1, 2:].tolist()
        width, height = self.photograph.width, self.photograph.height
        whole, given = _in_pixels(width, height), f"scaled to {_in_pixels(self.cells.shape[1], self.cells.shape[0])}"
        if (round(left), round(top), round(right), round(bottom)) == (0, 0, width, height):
            return f"The model saw all {whole} pixels, {given}."
        size = _in_pixels(right - left, bottom - top)
        is_middle = abs(left + right - width) <= 2 and abs(top + bottom - height) <= 2
        part = f"the middle {size}" if is_middle else size
        again = ", and this part is drawn again, enlarged" if self.has_small_part else ""
        return f"The model saw {part} of {whole} pixels, {given}; the rest is dimmed{again}."

    def _bar(self, choice: MethodChoice) -> Bar:
        largest = float(self.maps[choice].clamp(min=0).max())
        if choice.method not in UNITS or not largest:
            return RELATIVE
        is_share = choice.method in SHARES
        ticks = [f"{100 * share * largest:.2g} %" if is_share else f"{share * largest:.2g}" for share in (0, 0.5, 1)]
        readers = self.readers if choice.method == OF_ATTENTION else ""
        return Bar(f"{UNITS[choice.method].format(score=self.score)}{readers}", tuple(ticks))


def maps_of(subject: Subject, choices: Sequence[MethodChoice]) -> dict[MethodChoice, Tensor]:
    """Return the map of each method (rows, columns).

    Raises:
        ValueError: If a method does not fit the model.
    """
    return {choice: signed_map(choice.method, subject, **choice.options)[0].cpu() for choice in choices}


def fitting_maps(
    subject: Subject, choices: Sequence[MethodChoice]
) -> tuple[dict[MethodChoice, Tensor], dict[MethodChoice, str]]:
    """Return the maps of the methods that fit the model, and of each other method why it does not.

    Raises:
        ValueError: If no method fits.
    """
    maps, reasons = {}, {}
    for choice in choices:
        try:
            maps |= maps_of(subject, [choice])
        except ValueError as error:
            reasons[choice] = str(error)
    if not maps:
        raise ValueError(f"no method fits this model: {next(iter(reasons.values()))}")
    return maps, reasons


def probabilities_of(logits: Tensor, thresholds: Sequence[float] | None) -> Tensor:
    """Return probabilities (classes,): by softmax, or with thresholds, by a sigmoid for each label."""
    return logits.softmax(dim=-1) if thresholds is None else logits.sigmoid()


def prediction_of(logits: Tensor, names: Sequence[str], thresholds: Sequence[float] | None) -> str:
    """Return the predicted class in words. With thresholds, return all classes that reach theirs."""
    probabilities = probabilities_of(logits, thresholds)
    if thresholds is None and len(names) == 1:  # a softmax of one logit is always 1
        return f"{names[0]} (logit {logits[0]:.2f})"
    if thresholds is None:
        return f"{names[probabilities.argmax()]} ({100 * probabilities.max():.1f} %)"
    rows = zip(names, probabilities.tolist(), thresholds, strict=True)
    said = [f"{name} ({100 * value:.1f} %)" for name, value, threshold in rows if value >= threshold]
    return ", ".join(said) or "none of the classes"


def _classes_of(subject: Subject) -> list[int]:
    """Return the class that is explained, and the one that it is compared with."""
    contrast = subject.contrast[0]
    return [int(contrast.argmax()), *([int(contrast.argmin())] if subject.versus is not None else [])]


def _question(subject: Subject, logits: Tensor, names: Sequence[str], thresholds: Sequence[float] | None) -> str:
    """Return what maps of the classes answer, with the probability of each class."""
    probabilities = probabilities_of(logits, thresholds)
    sure = [f" ({100 * share:.1f} %)" for share in probabilities.tolist()]
    sure = sure if thresholds is not None or len(names) > 1 else [""]  # a softmax of one logit is always 1
    ones = [f"{names[k]}{sure[k]}" for k in _classes_of(subject)]
    return f"why {', and not '.join(ones)}?"


def _readers_in_words(subject: Subject) -> str:
    """Return which tokens attend in a map of attention."""
    patches = range(*subject.anatomy.patches.indices(subject.anatomy.num_tokens))
    one = subject.readout[0].max() == 1 and int(subject.readout[0].argmax()) not in patches
    return " of the class token" if one else ", mean over the tokens that the logits read"


def explain_photograph(
    photograph: Photograph,
    subject: Subject,
    maps: Mapping[MethodChoice, Tensor],
    model_name: str,
    *,
    of_class: bool,
) -> Explained:
    """Put together what a model says of one photograph, and the maps that explain it.

    Args:
        photograph: The photograph.
        subject: The model, the image as it takes it, (1, C, H, W), and the class to explain.
        maps: Maps of the subject, as ``maps_of`` returns them.
        model_name: Name of the model, as the user knows it.
        of_class: Whether the user named a class.
    """
    logits, names = subject.logits[0].float().cpu(), class_names_of(subject.model, subject.logits.shape[1])
    thresholds = thresholds_of(subject.model)
    return Explained(
        photograph,
        model_name,
        prediction_of(logits, names, thresholds),
        # Of several labels, the most probable may not be among those that reach their thresholds.
        _question(subject, logits, names, thresholds) if of_class or thresholds is not None else "",
        "logit" if subject.versus is None else "difference of the two logits",
        _readers_in_words(subject) if any(choice.method == OF_ATTENTION for choice in maps) else "",
        maps,
        subject.cell_of_pixel.cpu(),
        caution_about(subject.model, logits),
    )
