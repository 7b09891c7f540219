"""Maps of image files, drawn and written: what ``vit-attention explain`` does once its options are checked.

It imports Pillow and matplotlib, which ``--help`` does not need.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import vit
from vit.commands.contributions import draw_terms, write_terms
from vit.commands.models import find_model, tell_assumed, title_of
from vit.commands.photographs import distinct_names, find_images, without_damaged, write_cells
from vit.data.formats import MAX_PIXELS
from vit.explain import CLASS_AGNOSTIC, explorer, trust_report
from vit.explain.classes import class_number
from vit.explain.decomposition import Contributions
from vit.explain.default_method import DEFAULT_METHOD, NOT_MEASURED
from vit.explain.explained import (
    Explained,
    MethodChoice,
    choose_methods,
    explain_photograph,
    fitting_maps,
    maps_of,
)
from vit.explain.inputs import read_images
from vit.explain.maps import Subject
from vit.explain.photograph import Photograph, check_shown_size, locate
from vit.explain.photograph_sheet import SHEET_SIDE, draw_map, draw_sheet
from vit.support.class_names import name_classes
from vit.support.extras import import_extra
from vit.support.files import check_outputs
from vit.support.printable import printable
from vit.support.progress import progress
from vit.weights import PACKAGED

MOST_ON_A_SHEET = 24  # images


class ModelPredictions(NamedTuple):
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

    @property
    def of_class(self) -> bool:
        """Whether the user asks about a class by name."""
        return self.target is not None or self.versus is not None

    def question(self, index: int) -> str:
        """What is asked about an image."""
        return _question(self.explained[index], self.versus, self.class_names)

    def subject(self, index: int) -> Subject:
        """The model and one image, examined once for all methods."""
        return Subject(self.model, self.images[index][None], self.explained[index], self.versus)


class Outputs(NamedTuple):
    """Where everything is written. The first three have an entry for each image, and are empty if not asked for."""

    pictures: list[list[Path]]
    pages: list[Path]
    terms: list[Path]
    sheet: Path
    cells: list[Path]
    all_terms: Path
    report: Path | None

    @classmethod
    def of(cls, options: argparse.Namespace, file_names: Sequence[str], drawn: Sequence[MethodChoice]) -> "Outputs":
        """Name the files of a command line, with a picture for each image and each map that is drawn."""
        out = options.out
        return cls(
            pictures=[[out / f"{name}_{each.file_name}.{options.format}" for each in drawn] for name in file_names],
            pages=_name_pages(options.html, file_names, out),
            terms=[out / f"{name}_contributions.png" for name in file_names if options.contributions],
            sheet=out / f"sheet.{options.format}",
            cells=[out / "cells.csv", out / "cells_compared.csv"][: 2 if options.compare else 1],
            all_terms=out / "contributions.csv",
            report=out / "trust.html" if options.trust else None,
        )

    def check(self, files: Sequence[Path], overwrite: bool) -> None:
        """Refuse to overwrite an image, another output or, unless it is asked for, an older file."""
        outputs = [*chain(*self.pictures), *self.pages, self.sheet, *self.cells, *self.terms]
        outputs += [*([self.all_terms] if self.terms else []), *([self.report] if self.report else [])]
        taken = {file.resolve() for file in files}
        for path in outputs:
            if path.resolve() in taken:
                raise ValueError(f"{path} would overwrite another picture: rename an image, or give another --out")
            taken.add(path.resolve())
        check_outputs(outputs, overwrite)


def explain_files(options: argparse.Namespace, methods: Sequence[str], only_sheet: bool) -> None:
    """Explain the images of a command line.

    Args:
        options: What the user typed, with the folder of the pictures.
        methods: The methods of the maps.
        only_sheet: Whether the sheet is the only picture, and methods that a model refuses are left out.

    Raises:
        ValueError: At a user's mistake.
    """
    choices = choose_methods(methods, options.layer, options.head)
    check_shown_size(options.size)
    max_pixels = options.max_pixels or MAX_PIXELS
    files = without_damaged(find_images(options.image), max_pixels)
    outputs = Outputs.of(options, distinct_names(files), [] if only_sheet else choices)
    if outputs.report:
        import_extra("jinja2", "explain")  # needed to write the page
    outputs.check(files, options.overwrite)
    names = [options.checkpoint, *([options.compare] if options.compare else [])]
    models = [_predict(options, name, files, max_pixels) for name in names]
    explained: list[list[Explained]] = []
    split: list[Contributions] = []
    for index, file in enumerate(progress(files, "images explained")):
        subjects = [each.subject(index) for each in models]
        found = _explain_image(models, subjects, index, file, choices, only_sheet, max_pixels)
        explained.append(found)
        if outputs.terms:  # of one model alone
            split.append(_split_logit(models[0], subjects[0], index, outputs.terms[index]))
        if outputs.pictures[index]:
            _save_pictures(found, choices, outputs.pictures[index], options.size, max_pixels)
        if outputs.pages:
            _save_page(models[0], index, file, found[0], outputs.pages[index])
    for number, path in enumerate(outputs.cells):
        named = models[number].name if options.compare else ""
        _save_cells(path, [found[number] for found in explained], choices, named)
    if outputs.terms:
        write_terms(outputs.all_terms, files, [models[0].question(index) for index in range(len(files))], split)
        print(f"{printable(str(outputs.all_terms))}: all terms; those of a file add up to its logit")
    _save_sheet(explained, models[0], outputs.sheet, options.size, max_pixels)
    _print_notes(options, models[0], choices)
    if outputs.report:
        _report_trust(models[0], [each.method for each in choices], files, outputs.report)


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


def _predict(options: argparse.Namespace, name: str, files: Sequence[Path], max_pixels: int) -> ModelPredictions:
    """Load a model, and have it classify all images."""
    found = find_model(name)
    model = vit.load(found)
    tell_assumed(model)
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
    predictions = ModelPredictions(title_of(found), model, names, pixels, images, logits, target, versus)
    _check_not_equal(predictions.explained, versus, files, names)
    return predictions


def _check_classifies_images(model: vit.VisionTransformer, checkpoint: str) -> None:
    if model.num_classes < 1:
        raise ValueError(f"{checkpoint} has no classes to explain (num_classes 0): take a model with a head")
    if model.patch_embed.in_channels not in (1, 3):
        raise ValueError(
            f"{checkpoint} takes {model.patch_embed.in_channels} channels, and image files have 1 or 3: "
            "explain it in Python"
        )


def _introduction(name: str, model: vit.VisionTransformer, names: Sequence[str]) -> str:
    rows, columns = model.patch_embed.image_size
    return (
        f"model: {name}, which comes with the package; it sees {rows} x {columns} pixels and knows {len(names)} "
        f"classes: {', '.join(names)}. --checkpoint FILE takes yours"
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


def _explain_image(
    models: Sequence[ModelPredictions],
    subjects: Sequence[Subject],
    index: int,
    file: Path,
    choices: Sequence[MethodChoice],
    leave_out: bool,
    max_pixels: int,
) -> list[Explained]:
    """Return the maps of an image by each model, and print what the models say of it."""
    explained = []
    for each, subject in zip(models, subjects, strict=True):
        photograph = locate(file, each.model, max_pixels)
        maps, left_out = fitting_maps(subject, choices) if leave_out else (maps_of(subject, choices), {})
        explained.append(explain_photograph(photograph, subject, maps, each.name, of_class=each.of_class))
        print(_says(explained[-1], left_out, "" if each is models[0] else f"  {each.name}"))
        if explained[-1].question:
            print(f"  {each.question(index)}")
    return explained


def _says(explained: Explained, left_out: Mapping[MethodChoice, str], before: str) -> str:
    """Return lines with the prediction for a photograph, a caution if there is one, and the maps that are left out."""
    said = [f"{before or printable(str(explained.photograph.path))}: {explained.prediction}"]
    said += [f"  caution: {' '.join(explained.caution)}"] if explained.caution else []
    return "\n".join([*said, *(f"  left out: {choice.title}: {reason}" for choice, reason in left_out.items())])


def _split_logit(model: ModelPredictions, subject: Subject, index: int, path: Path) -> Contributions:
    """Return the terms of an image's logit, and draw the largest."""
    found = draw_terms(model.model, subject, model.pixels[index], model.question(index), model.class_names, path)
    print(f"  {printable(str(path))}")
    return found


def _save_pictures(
    found: Sequence[Explained],
    choices: Sequence[MethodChoice],
    paths: Sequence[Path],
    size: int | None,
    max_pixels: int,
) -> None:
    for each, path in zip(choices, paths, strict=True):
        picture = draw_map(found, each, size, max_pixels)
        picture.save(path)
        print(f"  {printable(str(path))}{_scaled(picture.boxes[0], found[0].photograph)}")


def _scaled(box: tuple[int, int, int, int], photograph: Photograph) -> str:
    """Say that a photograph is drawn with fewer pixels than it has, if it is."""
    width, height = box[2] - box[0], box[3] - box[1]
    if width >= photograph.width:
        return ""
    return f": {width:,} x {height:,} of {photograph.width:,} x {photograph.height:,} pixels"


def _save_page(model: ModelPredictions, index: int, file: Path, explained: Explained, path: Path) -> None:
    """Write the page to explore all heads of a model on one image."""
    question = model.question(index)
    page = explorer(
        model.model,
        model.images[index],
        maps={f"{each.title}: {_about(each.method, question)}": of for each, of in explained.maps.items()},
        model_name=model.name,
        target=int(model.explained[index]),
        versus=model.versus,
        image_name=file.name,
        **{name: model.model.pretrained_cfg[name] for name in ("class_names", "mean", "std")},
    )
    print(f"  {printable(str(page.save(path)))}")


def _about(method: str, question: str) -> str:
    return "the same for every class" if method in CLASS_AGNOSTIC else question


def _save_cells(path: Path, of_model: Sequence[Explained], choices: Sequence[MethodChoice], name: str) -> None:
    """Write the cells of all maps that each image has; the name of the model is said where there are two."""
    fitting = [each for each in choices if all(each in one.maps for one in of_model)]
    maps = {each.title: [one.maps[each][None] for one in of_model] for each in fitting}
    write_cells(path, [one.photograph for one in of_model], maps, of_model[0].cells)
    print(f"{printable(str(path))}: the cells of all maps, in pixels of the photographs{f' ({name})' if name else ''}")


def _save_sheet(
    explained: Sequence[Sequence[Explained]], model: ModelPredictions, path: Path, size: int | None, max_pixels: int
) -> None:
    """Draw all photographs beside their maps, or the first ones of many."""
    title = _question(model.target, model.versus, model.class_names) if model.of_class else ""
    drawn = explained[:MOST_ON_A_SHEET]
    draw_sheet(drawn, min(size or SHEET_SIDE, SHEET_SIDE), title=title, max_pixels=max_pixels).save(path)
    count = "all on one sheet" if len(drawn) == len(explained) else f"the first {len(drawn)} of {len(explained)}"
    print(f"{printable(str(path))}: {count}")


def _print_notes(options: argparse.Namespace, model: ModelPredictions, choices: Sequence[MethodChoice]) -> None:
    """Say which maps do not depend on the class that is asked about, and that no map was measured on this model."""
    agnostic = [each.title for each in choices if each.method in CLASS_AGNOSTIC]
    if model.of_class and agnostic:
        print(
            f"note: maps of {', '.join(agnostic)} are the same for every class; --method {DEFAULT_METHOD} depends on it"
        )
    if model.name not in PACKAGED and not options.compare and not options.trust:
        print(f"note: {NOT_MEASURED} Measure yours: --trust")


def _report_trust(model: ModelPredictions, methods: Sequence[str], files: Sequence[Path], path: Path) -> None:
    if model.of_class:
        print("note: the report is about maps of the predicted classes, not of --target or --versus")
    found = trust_report(model.model, model.images, methods)
    print(found)
    on = f"{model.name}: {', '.join(methods)} on {files[0]}"
    found.save(path, on + (f" and {len(files) - 1:,} more" if len(files) > 1 else ""))
    print(f"{printable(str(path))}: the same as a page")
