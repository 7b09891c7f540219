"""Pictures of explained photographs: one map of one photograph, or a sheet of several, beside the photographs."""

from collections.abc import Sequence
from itertools import chain, product

from torch import nn

from vit.data.formats import MAX_PIXELS
from vit.explain.default_method import DEFAULT_METHOD
from vit.explain.explained import RELATIVE, Explained, MethodChoice, choose_methods, explain_photograph, maps_of
from vit.explain.inputs import Given, as_images, as_list
from vit.explain.largest_value import label_largest
from vit.explain.maps.methods import CLASS_AGNOSTIC, CONTROLS
from vit.explain.maps.subject import Subject, Target
from vit.explain.panels import SHEET_LOOK, Panel, Picture, draw_panels
from vit.explain.photograph import locate, read_shown
from vit.support.printable import printable

SHEET_SIDE = 400  # pixels of the longer side of a photograph on a sheet
MOST_ACROSS = 5  # photographs and maps side by side


def picture(
    model: nn.Module,
    images: Given | Sequence[Given],
    methods: str | Sequence[str] = DEFAULT_METHOD,
    target: Target = None,
    *,
    versus: Target = None,
    layer: int | None = None,
    head: int | None = None,
    size: int | None = None,
    model_name: str = "",
) -> Picture:
    """Draw maps over photographs as taken, as ``python -m vit explain`` does; a notebook displays the picture.

    One map of one photograph is a picture of its own; several are a sheet, beside the photographs.

    >>> import vit
    >>> from PIL import Image
    >>> shown = picture(vit.load("cifar10"), Image.new("RGB", (60, 40), "orange"), target="cat")
    >>> shown.save("cat.svg")  # doctest: +SKIP

    Args:
        model: A classifier in eval mode that tells its normalisation, such as those of ``vit.load`` and timm.
        images: A file or a PIL image, or a list of these.
        methods: One key of ``METHODS`` or several.
        target: Name or number of the class to explain: one for all images, or one for each. None is the predicted one.
        versus: A class to compare with, in the same form.
        layer: The layer that the method "attention" shows, from 0.
        head: The head that the method "attention" shows, from 0.
        size: Pixels of the longer side of a photograph. None keeps its own size within 384 to 1,600, and takes 400 on a
            sheet.
        model_name: Name of the model, to be written into the picture.

    Raises:
        ValueError: If an image cannot be read, or there is no such method, class, layer or head.
    """
    choices = choose_methods([methods] if isinstance(methods, str) else methods, layer, head)
    given, taken = as_list(images), as_images(model, images)
    for name, classes in (("target", target), ("versus", versus)):
        if not _is_one(classes) and len(classes) != len(given):
            raise ValueError(f"{name} has {len(classes)} classes for {len(given)} images: give one, or one for each")
    explained = []
    for index, one in enumerate(given):
        subject = Subject(model, taken[index][None], _of_image(target, index), _of_image(versus, index))
        of_class = target is not None or versus is not None
        photograph, maps = locate(one, model), maps_of(subject, choices)
        explained.append(explain_photograph(photograph, subject, maps, model_name, of_class=of_class))
    if len(explained) == len(choices) == 1:
        return draw_map(explained, choices[0], size)
    return draw_sheet([[one] for one in explained], size or SHEET_SIDE)


def _is_one(classes: Target) -> bool:
    """Return whether one class is asked about for all images, instead of one for each."""
    return classes is None or isinstance(classes, int | str) or not getattr(classes, "ndim", 1)


def _of_image(classes: Target, index: int) -> Target:
    return classes if _is_one(classes) else classes[index]


def draw_map(
    explained: Sequence[Explained], choice: MethodChoice, size: int | None = None, max_pixels: int = MAX_PIXELS
) -> Picture:
    """Draw a map over a photograph. The maps of several models stand side by side."""
    shown = read_shown(explained[0].photograph, max_pixels, size=size)
    description = f"{choice.title} of {printable(explained[0].photograph.path.name)}: "
    description += "; ".join(one.prediction for one in explained)
    return draw_panels([[one.panel(choice, shown) for one in explained]], description=description)


def draw_sheet(
    explained: Sequence[Sequence[Explained]],
    size: int = SHEET_SIDE,
    *,
    title: str = "",
    max_pixels: int = MAX_PIXELS,
) -> Picture:
    """Draw each photograph beside its maps.

    Args:
        explained: For each photograph, what one model or several say of it.
        size: Pixels of the longer side of a photograph.
        title: Title of the sheet.
        max_pixels: Most pixels of a file.
    """
    blocks = [_block(of_one, size, max_pixels) for of_one in explained]
    rows = []
    for several in _split(blocks, max(1, MOST_ACROSS // max(map(len, blocks)))):
        rows += _split([*chain.from_iterable(several)], MOST_ACROSS)
    names = ", ".join(printable(of_one[0].photograph.path.name) for of_one in explained)
    return draw_panels(rows, SHEET_LOOK, title=title, bar=RELATIVE, description=f"maps of {names}")


def _split(items: list, count: int) -> list[list]:
    return [items[start : start + count] for start in range(0, len(items), count)]


def _block(explained: Sequence[Explained], size: int, max_pixels: int) -> list[Panel]:
    """Return the panels of one photograph: itself, and its maps."""
    photograph = explained[0].photograph
    colours, grey = (read_shown(photograph, max_pixels, size=size, in_channels=count) for count in (3, 1))
    names = [f"{one.model_name}: " if len(explained) > 1 else "" for one in explained]
    answers = ["; ".join(filter(None, (one.prediction, one.question))) for one in explained]
    said = [name + answer for name, answer in zip(names, answers, strict=True)]
    cautions = dict.fromkeys(one.caution.said for one in explained if one.caution)
    panels = [Panel(colours, printable(photograph.path.name), "\n".join(said), caution=" ".join(cautions))]
    for choice, one in product(explained[0].maps, explained):
        if choice in one.maps:
            named = [one.model_name] if len(explained) > 1 else []
            subtitle = ", ".join([*named, *_about(choice.method)]) or " "
            panels.append(Panel(one.drawn(choice, grey), choice.title, subtitle, label_largest(one.maps[choice])))
    return panels


def _about(method: str) -> list[str]:
    """Return what to know of the maps of a method, in a few words, if there is something."""
    if method in CONTROLS:
        return ["a control: it ignores the model"]
    return ["any class"] if method in CLASS_AGNOSTIC else []
