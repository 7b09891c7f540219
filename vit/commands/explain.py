"""Maps of image files from the command line: ``python -m vit.explain photo.jpg``, ``--checkpoint best.ckpt``.

Letters in the einops patterns: c channels, h w rows and columns of pixels.
"""

import argparse
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from einops import rearrange
from torch import Tensor

import vit
from vit.commands.contributions import draw_terms, write_terms
from vit.commands.models import HELP, find_model
from vit.commands.parser import Parser, add_max_pixels, add_overwrite
from vit.commands.parser import run as run_command
from vit.explain import CLASS_AGNOSTIC, METHODS, explorer, trust_report
from vit.explain.decomposition import Contributions
from vit.explain.default_method import DEFAULT_METHOD
from vit.explain.maps import Subject, check_method, signed_map
from vit.explain.photograph import overlay_photograph
from vit.support.checks import nearest_hint
from vit.support.class_names import name_classes
from vit.support.extras import import_extra
from vit.support.files import check_outputs, replacing
from vit.support.glossary import MAPS, listed
from vit.support.printable import printable
from vit.support.progress import progress
from vit.weights import PACKAGED

if TYPE_CHECKING:
    from vit.commands.photographs import Photograph

MOST_ON_A_SHEET = 24  # images
MOST_NAMED = 20  # classes in a message


class ImageParser(Parser):
    """A parser whose images stand before the options."""

    def error(self, message: str) -> NoReturn:
        """Print the error, and exit with status 2."""
        super().error(message + (", before all options" if message.endswith(": IMAGE") else ""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: that of this process); exit with status 2 at a user's mistake."""
    run_command(_parser(), arguments, run)


def _parser() -> Parser:
    parser = ImageParser(
        prog="python -m vit.explain",
        usage="python -m vit.explain IMAGE... [--checkpoint FILE] [options]",
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
        help=f"one or more of those below; default: {DEFAULT_METHOD}",
    )
    add("--target", metavar="CLASS", help="name or number of the class to explain; default: the predicted one")
    add("--versus", metavar="CLASS", help="class to compare with: why the target, and not this one?")
    add("--out", type=Path, default=Path("explained"), metavar="FOLDER", help="for the pictures; default: explained")
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


def run(options: argparse.Namespace) -> None:
    """Explain the images of a command line.

    Raises:
        ValueError: At a user's mistake.
    """
    methods = _check_methods(options.method or [DEFAULT_METHOD])
    # Imported here, as it imports torchvision, which takes seconds.
    from vit.commands.photographs import (
        distinct_names,
        find_images,
        locate,
        read_images,
        read_shown,
        without_damaged,
        write_cells,
    )
    from vit.data.formats import MAX_PIXELS

    max_pixels = options.max_pixels or MAX_PIXELS

    files = without_damaged(find_images(options.image), max_pixels)
    file_names = distinct_names(files)
    pages = _name_pages(options.html, file_names, options.out)
    if options.trust:
        import_extra("jinja2", "explain")  # which writes the page
    sheet, cells, report = (options.out / name for name in ("sheet.png", "cells.csv", "trust.html"))
    overlays = {name: [options.out / f"{name}_{method}.png" for method in methods] for name in file_names}
    terms = [options.out / f"{name}_contributions.png" for name in file_names if options.contributions]
    table = options.out / "contributions.csv"
    outputs = [*chain(*overlays.values()), *pages, sheet, cells, *([report] if options.trust else [])]
    outputs += [*terms, *([table] if terms else [])]
    _check_overwrites_nothing(outputs, files)
    check_outputs(outputs, options.overwrite)
    model = vit.load(find_model(options.checkpoint))
    _check_classifies_images(model, options.checkpoint)
    names = name_classes(model.pretrained_cfg["class_names"], model.num_classes)
    if options.checkpoint in PACKAGED:
        print(_introduction(options.checkpoint, model, names))
    target, versus = (_class_number(name, names) for name in (options.target, options.versus))
    pixels, images = read_images(files, model, max_pixels)
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(32)])
    explained = logits.argmax(dim=-1) if target is None else torch.full((len(images),), target)
    _check_not_equal(explained, versus, files, names)
    class_chosen = target is not None or versus is not None
    photographs = [locate(file, model, max_pixels) for file in files]
    maps: dict[str, list[Tensor]] = {method: [] for method in methods}
    split: list[Contributions] = []
    for index, name in enumerate(progress(file_names, "images explained")):
        predicted = _prediction(logits[index], names, model.pretrained_cfg.get("thresholds"))
        print(f"{printable(str(files[index]))}: {predicted}")
        if class_chosen:
            print(f"  {_question(explained[index], versus, names)}")
        subject = Subject(model, images[index][None], explained[index], versus)  # examined once for all methods
        for method in methods:
            maps[method].append(signed_map(method, subject))
        seen = subject.cell_of_pixel.cpu()  # the same for all images, as they have one size
        if terms:
            question = _question(explained[index], versus, names)
            split.append(draw_terms(model, subject, pixels[index], question, names, terms[index]))
            print(f"  {printable(str(terms[index]))}")
        shown = read_shown(photographs[index], max_pixels)
        _save_overlays(photographs[index], shown, [maps[method][index] for method in methods], overlays[name], seen)
        if pages:
            asked = _question(explained[index], versus, names)
            titled = {f"{method}: {_about(method, asked)}": maps[method][index][0] for method in methods}
            about = {"target": int(explained[index]), "versus": versus, "image_name": files[index].name}
            _save_page(model, images[index], titled, options.checkpoint, about, pages[index])
    write_cells(cells, photographs, maps, seen)
    print(f"{printable(str(cells))}: the cells of all maps, in pixels of the photographs")
    if terms:
        write_terms(table, files, [_question(each, versus, names) for each in explained], split)
        print(f"{printable(str(table))}: all terms; those of a file add up to its logit")
    title = _question(target, versus, names) if class_chosen else ""
    _draw_sheet(pixels, maps, logits, names, [file.name for file in files], title, sheet, seen)
    agnostic = [method for method in methods if method in CLASS_AGNOSTIC]
    if class_chosen and agnostic:
        print(
            f"note: maps of {', '.join(agnostic)} are the same for every class; --method {DEFAULT_METHOD} depends on it"
        )
    if options.trust:
        if class_chosen:
            print("note: the report is about maps of the predicted classes, not of --target or --versus")
        found = trust_report(model, images, methods)
        print(found)
        on = f"{options.checkpoint}: {', '.join(methods)} on {files[0]}"
        found.save(report, on + (f" and {len(files) - 1:,} more" if len(files) > 1 else ""))
        print(f"{printable(str(report))}: the same as a page")


def _prediction(logits: Tensor, names: Sequence[str], thresholds: Sequence[float] | None) -> str:
    """Return the predicted class in words; with thresholds, of several labels, all classes that reach theirs."""
    if thresholds is None:
        probability, predicted = logits.softmax(dim=-1).max(dim=-1)
        return f"{names[predicted]} ({100 * probability:.1f} %)"
    probabilities = logits.sigmoid().tolist()
    rows = zip(names, probabilities, thresholds, strict=True)
    said = [f"{name} ({100 * value:.1f} %)" for name, value, threshold in rows if value >= threshold]
    return ", ".join(said) or "none of the classes"


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


def _check_methods(methods: Sequence[str]) -> list[str]:
    for method in methods:
        if method not in METHODS and Path(method).exists():
            raise ValueError(f"{method!r} is a file and no method: name images before the options")
        check_method(method)
    return list(dict.fromkeys(methods))


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


def _class_number(name: str | None, names: Sequence[str]) -> int | None:
    if name is None:
        return None
    if name in names:
        return list(names).index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    listed = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    raise ValueError(
        f"unknown class {name!r}{nearest_hint(name, names)}: choose one of {listed}, or a number from 0 to "
        f"{len(names) - 1}"
    )


def _check_not_equal(explained: Tensor, versus: int | None, files: Sequence[Path], names: Sequence[str]) -> None:
    for file, target in zip(files, explained.tolist(), strict=True):
        if target == versus:
            raise ValueError(
                f"{file}: {names[target]!r} would be compared with itself: give another --target or --versus"
            )


def _question(target: Tensor | int | None, versus: int | None, names: Sequence[str]) -> str:
    explained = "the predicted class" if target is None else names[target]
    return f"why {explained}?" if versus is None else f"why {explained}, and not {names[versus]}?"


def _save_overlays(
    photograph: "Photograph", shown: Tensor, maps: Sequence[Tensor], paths: Sequence[Path], cells: Tensor
) -> None:
    """Draw each map (1, rows, columns) over a photograph as taken, and write it as a PNG file."""
    from PIL import Image

    height, width = shown.shape[1:]
    across, down = width / photograph.width, height / photograph.height
    left, top, right, bottom = photograph.seen
    box = left * across, top * down, right * across, bottom * down
    size = f": {width:,} x {height:,} of {photograph.width:,} x {photograph.height:,} pixels" if across < 1 else ""
    for values, path in zip(maps, paths, strict=True):
        picture = rearrange(overlay_photograph(shown, values[0].clamp(min=0), box, cells), "c h w -> h w c")
        with replacing(path) as unfinished:
            Image.fromarray((255 * picture).round().to(torch.uint8).numpy()).save(unfinished, format="PNG")
        print(f"  {printable(str(path))}{size}")


def _about(method: str, question: str) -> str:
    return "the same for every class" if method in CLASS_AGNOSTIC else question


def _save_page(
    model: vit.VisionTransformer,
    image: Tensor,
    maps: dict[str, Tensor],
    checkpoint: str,
    about: dict[str, Any],
    path: Path,
) -> None:
    settings = {name: model.pretrained_cfg[name] for name in ("class_names", "mean", "std")} | about
    page = explorer(model, image, maps=maps, model_name=checkpoint, **settings)
    print(f"  {printable(str(page.save(path)))}")


def _draw_sheet(
    pixels: Tensor,
    maps: dict[str, list[Tensor]],
    logits: Tensor,
    class_names: Sequence[str],
    file_names: Sequence[str],
    title: str,
    path: Path,
    cells: Tensor,
) -> None:
    from vit.explain.figures import draw_maps  # imports matplotlib, which --help does not need

    shown = pixels[:MOST_ON_A_SHEET]
    first = {method: torch.cat(values[:MOST_ON_A_SHEET]).clamp(min=0) for method, values in maps.items()}
    draw_maps(
        shown,
        first,
        path,
        names=file_names[:MOST_ON_A_SHEET],
        logits=logits[:MOST_ON_A_SHEET],
        class_names=class_names,
        title=title,
        cells=cells,
    )
    count = "all on one sheet" if len(shown) == len(pixels) else f"the first {len(shown)} of {len(pixels)}"
    print(f"{printable(str(path))}: {count}")
