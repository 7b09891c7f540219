"""Maps of image files from the command line: ``vit-attention explain photo.jpg``, ``--checkpoint best.ckpt``."""

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor

import vit
from vit.commands.contributions import draw_terms, write_terms
from vit.commands.models import HELP, find_model, title_of
from vit.commands.parser import Parser, add_max_pixels, add_out, add_overwrite
from vit.commands.parser import run as run_command
from vit.explain import CLASS_AGNOSTIC, METHODS, explorer, trust_report
from vit.explain.classes import class_number
from vit.explain.decomposition import Contributions
from vit.explain.default_method import DEFAULT_METHOD, NOT_MEASURED
from vit.explain.maps import Subject, check_method
from vit.glossary import MAPS
from vit.support.class_names import name_classes
from vit.support.extras import import_extra
from vit.support.files import check_outputs, unused_folder
from vit.support.printable import printable
from vit.support.progress import progress
from vit.support.words import listed
from vit.weights import PACKAGED

if TYPE_CHECKING:
    from vit.explain.explained import Explained
    from vit.explain.inputs import Photograph

OUT = "explained"  # the folder of the pictures
MOST_ON_A_SHEET = 24  # images
ALL = "all"  # in place of a method
FORMATS = ("png", "svg", "pdf")


class ImageParser(Parser):
    """A parser for a command whose images come before the options."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with status 2."""
        super().error(message + (", before all options" if message.endswith(": IMAGE") else ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: that of this process); exit with status 2 at a user's mistake."""
    run_command(_parser(), arguments, run)


def _parser() -> Parser:
    parser = ImageParser(
        prog="vit-attention explain",
        usage="vit-attention explain IMAGE... [--checkpoint FILE] [options]",
        description="Predict the classes of images with a trained model, and draw which patches matter to it.",
        epilog=f"methods:\n{listed(MAPS)}\n\nThe same map for every class: {', '.join(CLASS_AGNOSTIC)}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("image", nargs="+", type=Path, metavar="IMAGE", help="image files, and folders of image files")
    add("--checkpoint", default=PACKAGED[0], metavar="MODEL", help=f"{HELP}; default: {PACKAGED[0]}")
    add(
        "--method",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"one or more of those below, or {ALL} for one sheet of all; default: {DEFAULT_METHOD}",
    )
    add("--layer", type=int, metavar="N", help="show the attention of this layer, from 0; default: the last")
    add("--head", type=int, metavar="N", help="show the attention of this head, from 0; default: the mean of all heads")
    add("--target", metavar="CLASS", help="name or number of the class to explain; default: the predicted one")
    add("--versus", metavar="CLASS", help="class to compare with: why the target, and not this one?")
    add("--compare", metavar="MODEL", help="a second model, whose maps are drawn beside those of the first")
    add("--size", type=int, metavar="N", help="pixels of the longer side of a photograph; default: its own, to 1,600")
    add("--format", choices=FORMATS, default="png", help="of the pictures; default: png")
    add_out(parser, OUT)
    add(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write a page to explore all heads: to FILE, or one for each image to the folder",
    )
    add("--contributions", action="store_true", help="also split the logit: a picture of its terms, and a table of all")
    add("--trust", action="store_true", help="also report how far these maps can be trusted")
    add_max_pixels(parser)
    add_overwrite(parser)
    return parser


class _Asked(NamedTuple):
    """A model, and its predictions for all images."""

    name: str
    model: vit.VisionTransformer
    class_names: list[str]
    pixels: Tensor
    images: Tensor
    logits: Tensor
    target: int | None
    versus: int | None

    @property
    def explained(self) -> Tensor:
        """The class that is explained in each image, (B,)."""
        if self.target is None:
            return self.logits.argmax(dim=-1)
        return torch.full((len(self.images),), self.target)

    def question(self, index: int) -> str:
        """What is asked about an image."""
        return _question(self.explained[index], self.versus, self.class_names)


def run(options: argparse.Namespace) -> None:
    """Explain the images of a command line.

    Raises:
        ValueError: At a user's mistake.
    """
    _check_methods(options.method or [])
    _check_together(options)
    # Imported here, as they import Pillow and matplotlib, which --help does not need.
    from vit.commands.photographs import distinct_names, find_images, without_damaged, write_cells
    from vit.data.formats import MAX_PIXELS
    from vit.explain.explained import ask, explain_photograph
    from vit.explain.inputs import check_shown_size, locate
    from vit.explain.photograph_sheet import SHEET_SIDE, draw_map, draw_sheet

    asked, of_all = ask(_methods(options), options.layer, options.head), ALL in (options.method or [])
    check_shown_size(options.size)
    max_pixels = options.max_pixels or MAX_PIXELS
    files = without_damaged(find_images(options.image), max_pixels)
    file_names = distinct_names(files)
    out = options.out or unused_folder(OUT, options.overwrite)
    pages = _name_pages(options.html, file_names, out)
    if options.trust:
        import_extra("jinja2", "explain")  # needed to write the page
    sheet, cells, report = (out / name for name in (f"sheet.{options.format}", "cells.csv", "trust.html"))
    compared = [out / "cells_compared.csv"] if options.compare else []
    drawn = [] if of_all else asked
    pictures = [[out / f"{name}_{each.file_name}.{options.format}" for each in drawn] for name in file_names]
    terms = [out / f"{name}_contributions.png" for name in file_names if options.contributions]
    table = out / "contributions.csv"
    outputs = [*chain(*pictures), *pages, sheet, cells, *compared, *([report] if options.trust else [])]
    outputs += [*terms, *([table] if terms else [])]
    _check_overwrites_nothing(outputs, files)
    check_outputs(outputs, options.overwrite)
    models = [_ask_model(options, options.checkpoint, files, max_pixels)]
    if options.compare:
        models.append(_ask_model(options, options.compare, files, max_pixels))
    first, of_class = models[0], options.target is not None or options.versus is not None
    explained: list[list[Explained]] = []
    split: list[Contributions] = []
    for index, file in enumerate(progress(files, "images explained")):
        found = []
        for each in models:
            photograph = locate(file, each.model, max_pixels)
            # Examined once for all methods.
            subject = Subject(each.model, each.images[index][None], each.explained[index], each.versus)
            found.append(explain_photograph(photograph, subject, asked, each.name, of_class=of_class, leave_out=of_all))
            print(_says(found[-1], "" if each is first else f"  {each.name}"))
            if of_class:
                print(f"  {each.question(index)}")
        if terms:  # of one model alone
            question = first.question(index)
            split.append(
                draw_terms(first.model, subject, first.pixels[index], question, first.class_names, terms[index])
            )
            print(f"  {printable(str(terms[index]))}")
        explained.append(found)
        for each, path in zip(drawn, pictures[index], strict=True):
            picture = draw_map(found, each, options.size, max_pixels)
            picture.save(path)
            print(f"  {printable(str(path))}{_scaled(picture.boxes[0], found[0].photograph)}")
        if pages:
            titled = {
                f"{each.title}: {_about(each.method, first.question(index))}": of for each, of in found[0].maps.items()
            }
            about = {"target": int(first.explained[index]), "versus": first.versus, "image_name": file.name}
            _save_page(first.model, first.images[index], titled, first.name, about, pages[index])
    for number, path in enumerate([cells, *compared]):
        of_model = [found[number] for found in explained]
        fitting = [each for each in asked if all(each in one.maps for one in of_model)]
        maps = {each.title: [one.maps[each][None] for one in of_model] for each in fitting}
        write_cells(path, [one.photograph for one in of_model], maps, of_model[0].cells)
        what = "the cells of all maps, in pixels of the photographs"
        print(f"{printable(str(path))}: {what}{f' ({models[number].name})' if compared else ''}")
    if terms:
        write_terms(table, files, [first.question(index) for index in range(len(files))], split)
        print(f"{printable(str(table))}: all terms; those of a file add up to its logit")
    title = _question(first.target, first.versus, first.class_names) if of_class else ""
    on_sheet = explained[:MOST_ON_A_SHEET]
    draw_sheet(on_sheet, min(options.size or SHEET_SIDE, SHEET_SIDE), title=title, max_pixels=max_pixels).save(sheet)
    count = "all on one sheet" if len(on_sheet) == len(files) else f"the first {len(on_sheet)} of {len(files)}"
    print(f"{printable(str(sheet))}: {count}")
    agnostic = [each.title for each in asked if each.method in CLASS_AGNOSTIC]
    if of_class and agnostic:
        print(
            f"note: maps of {', '.join(agnostic)} are the same for every class; --method {DEFAULT_METHOD} depends on it"
        )
    if options.trust:
        _report_trust(first, [each.method for each in asked], files, report, of_class)
    elif first.name not in PACKAGED and not options.compare:
        print(f"note: {NOT_MEASURED} Measure yours: --trust")


def _check_classifies_images(model: vit.VisionTransformer, checkpoint: str) -> None:
    if model.num_classes < 1:
        raise ValueError(f"{checkpoint} has no classes to explain (num_classes 0): take a model with a head")
    if model.patch_embed.in_channels not in (1, 3):
        raise ValueError(f"{checkpoint} takes {model.patch_embed.in_channels} channels, and image files have 1 or 3")


def _introduction(name: str, model: vit.VisionTransformer, names: Sequence[str]) -> str:
    rows, columns = model.patch_embed.image_size
    return (
        f"model: {name}, which comes with the package; it sees {rows} x {columns} pixels and knows {len(names)} "
        f"classes: {', '.join(names)}. --checkpoint FILE takes yours"
    )


def _check_methods(methods: Sequence[str]) -> None:
    for method in methods:
        if method not in (*METHODS, ALL) and Path(method).exists():
            raise ValueError(f"{method!r} is a file and no method: name images before the options")
        if method != ALL:
            check_method(method)


def _check_together(options: argparse.Namespace) -> None:
    of_one = [
        ("--html", options.html is not None),
        ("--contributions", options.contributions),
        ("--trust", options.trust),
    ]
    for name, is_given in of_one:
        if is_given and options.compare:
            raise ValueError(f"{name} is about one model, and --compare draws two: leave one of them out")
    if options.trust and (options.layer, options.head) != (None, None):
        raise ValueError("--trust is about whole methods: leave out --layer and --head, or --trust")
    if options.compare == options.checkpoint:
        raise ValueError(f"--compare {options.compare} is the model itself: name another one")


def _methods(options: argparse.Namespace) -> list[str]:
    """Return the methods that a user asks for: attention, if only a layer or a head is given."""
    if options.method is None:
        return [DEFAULT_METHOD if options.layer is None and options.head is None else "attention"]
    return [*METHODS] if ALL in options.method else options.method


def _ask_model(options: argparse.Namespace, name: str, files: Sequence[Path], max_pixels: int) -> _Asked:
    """Load a model, and have it classify all images."""
    from vit.explain.inputs import read_images

    found = find_model(name)
    model = vit.load(found)
    _check_classifies_images(model, name)
    names = name_classes(model.pretrained_cfg["class_names"], model.num_classes)
    if name in PACKAGED:
        print(_introduction(name, model, names))
    try:
        target, versus = (
            None if typed is None else class_number(typed, names) for typed in (options.target, options.versus)
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if options.compare else str(error)) from None
    pixels, images = read_images(files, model, max_pixels)
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(32)])
    asked = _Asked(title_of(found), model, names, pixels, images, logits, target, versus)
    _check_not_equal(asked.explained, versus, files, names)
    return asked


def _name_pages(html: str | None, names: Sequence[str], folder: Path) -> list[Path]:
    """Return the path of each image's page; none without --html."""
    if html is None:
        return []
    if not html:
        return [folder / f"{name}.html" for name in names]
    if Path(html).suffix not in (".html", ".htm"):
        raise ValueError(f"--html {html} does not end in .html: give another name, or name images before the options")
    if len(names) > 1:
        raise ValueError(f"--html {html} is one file for {len(names)} images: give --html without a name, or one image")
    return [Path(html)]


def _check_overwrites_nothing(outputs: Sequence[Path], files: Sequence[Path]) -> None:
    taken = {file.resolve() for file in files}
    for path in outputs:
        if path.resolve() in taken:
            raise ValueError(f"{path} would overwrite another picture: rename an image, or give another --out")
        taken.add(path.resolve())


def _check_not_equal(explained: Tensor, versus: int | None, files: Sequence[Path], names: Sequence[str]) -> None:
    for file, target in zip(files, explained.tolist(), strict=True):
        if target == versus:
            raise ValueError(
                f"{file}: {names[target]!r} would be compared with itself: give another --target or --versus"
            )


def _question(target: Tensor | int | None, versus: int | None, names: Sequence[str]) -> str:
    explained = "the predicted class" if target is None else names[target]
    return f"why {explained}?" if versus is None else f"why {explained}, and not {names[versus]}?"


def _about(method: str, question: str) -> str:
    return "the same for every class" if method in CLASS_AGNOSTIC else question


def _save_page(
    model: vit.VisionTransformer,
    image: Tensor,
    maps: dict[str, Tensor],
    name: str,
    about: dict[str, Any],
    path: Path,
) -> None:
    settings = {name: model.pretrained_cfg[name] for name in ("class_names", "mean", "std")} | about
    page = explorer(model, image, maps=maps, model_name=name, **settings)
    print(f"  {printable(str(page.save(path)))}")


def _says(explained: "Explained", before: str = "") -> str:
    """Return lines with the prediction for a photograph, a caution if there is one, and the maps that are left out."""
    said = [f"{before or printable(str(explained.photograph.path))}: {explained.prediction}"]
    said += [f"  caution: {' '.join(explained.caution)}"] if explained.caution else []
    return "\n".join([*said, *(f"  left out: {each.title}: {why}" for each, why in explained.left_out.items())])


def _scaled(box: tuple[int, int, int, int], photograph: "Photograph") -> str:
    """Say that a photograph is drawn with fewer pixels than it has, if it is."""
    width, height = box[2] - box[0], box[3] - box[1]
    if width >= photograph.width:
        return ""
    return f": {width:,} x {height:,} of {photograph.width:,} x {photograph.height:,} pixels"


def _report_trust(asked: _Asked, methods: Sequence[str], files: Sequence[Path], path: Path, of_class: bool) -> None:
    if of_class:
        print("note: the report is about maps of the predicted classes, not of --target or --versus")
    found = trust_report(asked.model, asked.images, methods)
    print(found)
    on = f"{asked.name}: {', '.join(methods)} on {files[0]}"
    found.save(path, on + (f" and {len(files) - 1:,} more" if len(files) > 1 else ""))
    print(f"{printable(str(path))}: the same as a page")
