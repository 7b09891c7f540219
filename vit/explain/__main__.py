"""Maps of image files from the command line: ``python -m vit.explain photo.jpg --checkpoint best.ckpt``.

Letters in the einops patterns: c channels, h w rows and columns of pixels, p q pixels that one becomes.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from einops import repeat
from torch import Tensor

import vit
from vit.explain import CLASS_AGNOSTIC, METHODS, explain, explorer, overlay, trust_report

SMALLEST_SIDE = 384  # pixels from which on a saved overlay can be looked at
MOST_ON_A_SHEET = 24  # images
MOST_NAMED = 20  # classes in a message


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and exit with status 2."""
        hint = ", before all options" if message.endswith(": IMAGE") else ""
        print(f"error: {message}{hint}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says (default: that of this process); exit with status 2 at a user's mistake."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        run(given)
    except (ValueError, OSError) as error:
        parser.error(" ".join(str(error).split()))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m vit.explain",
        usage="python -m vit.explain IMAGE... --checkpoint FILE [options]",
        description="What a trained model makes of images, and which patches matter to it, as pictures.",
        epilog=f"Methods: {', '.join(METHODS)}. The same map for every class: {', '.join(CLASS_AGNOSTIC)}.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("image", nargs="+", type=Path, metavar="IMAGE", help="image files, and folders of them")
    add("--checkpoint", required=True, metavar="FILE", help="the model, as a training run has written it")
    add("--method", nargs="+", action="extend", metavar="NAME", help="of those below; default: rollout")
    add("--target", metavar="CLASS", help="name or number of the class asked about; default: the predicted one")
    add("--versus", metavar="CLASS", help="a class to compare with: why the target, and not this one?")
    add("--out", type=Path, default=Path("explained"), metavar="FOLDER", help="for the pictures; default: explained")
    add(
        "--html",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write a page to explore all heads in: into FILE, or one for each image into the folder",
    )
    add("--trust", action="store_true", help="also report how far these maps can be believed")
    return parser


def run(given: argparse.Namespace) -> None:
    """Explain the images of a command line.

    Raises:
        ValueError: If the user made a mistake.
    """
    methods = _check_methods(given.method or ["rollout"])
    # Here, as it brings Lightning, which takes seconds.
    from vit.explain.image_files import distinct_names, find_images, read_images

    files = find_images(given.image)
    names_of_files = distinct_names(files)
    pages = _name_pages(given.html, names_of_files, given.out)
    overlays = [given.out / f"{name}_{method}.png" for name in names_of_files for method in methods]
    _check_overwrites_nothing([*overlays, *pages, given.out / "sheet.png"], files)
    model = vit.load(given.checkpoint)
    names = model.pretrained_cfg["class_names"] or [str(number) for number in range(model.num_classes)]
    target, versus = (_class_number(given.target, names), _class_number(given.versus, names))
    pixels, images = read_images(files, model)
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(32)])
    asked = logits.argmax(dim=-1) if target is None else torch.full((len(images),), target)
    _check_not_equal(asked, versus, files, names)
    given.out.mkdir(parents=True, exist_ok=True)
    maps: dict[str, list[Tensor]] = {method: [] for method in methods}
    for index, (file, name) in enumerate(zip(files, names_of_files, strict=True)):
        print(f"{file}: {_said(logits[index], names)}")
        if given.target or given.versus:
            print(f"  {_question(asked[index], versus, names)}")
        for method in methods:
            maps[method].append(explain(model, images[index][None], method, asked[index], versus=versus))
            _save(pixels[index], maps[method][-1], given.out / f"{name}_{method}.png")
        if pages:
            _save_page(model, images[index], pages[index])
    title = _question(target, versus, names) if given.target or given.versus else ""
    _draw_sheet(pixels, maps, logits, names, title, given.out / "sheet.png")
    if (given.target or given.versus) and set(methods) & set(CLASS_AGNOSTIC):
        same = ", ".join(method for method in methods if method in CLASS_AGNOSTIC)
        print(f"note: the class asked about changes nothing in maps of {same}; --method relevance is about a class")
    if given.trust:
        if given.target or given.versus:
            print("note: the report is about maps of the predicted classes, whichever were asked about")
        print(trust_report(model, images, methods))


def _check_methods(methods: Sequence[str]) -> list[str]:
    for method in methods:
        if method not in METHODS:
            hint = "; it is a file: name images before the options" if Path(method).exists() else ""
            raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}{hint}")
    return list(dict.fromkeys(methods))


def _name_pages(html: str | None, names: Sequence[str], folder: Path) -> list[Path]:
    """Where the explorer of each image goes; nowhere without --html."""
    if html is None:
        return []
    if not html:
        return [folder / f"{name}.html" for name in names]
    if Path(html).suffix not in (".html", ".htm"):
        raise ValueError(f"--html {html} does not end in .html: give another name, or name images before the options")
    if len(names) > 1:
        raise ValueError(f"--html {html} is one file for {len(names)} images: give --html without a name, or one image")
    return [Path(html)]


def _check_overwrites_nothing(written: Sequence[Path], files: Sequence[Path]) -> None:
    taken = {file.resolve() for file in files}
    for path in written:
        if path.resolve() in taken:
            raise ValueError(f"{path} would be written over another picture: rename an image, or give another --out")
        taken.add(path.resolve())


def _class_number(name: str | None, names: Sequence[str]) -> int | None:
    if name is None:
        return None
    if name in names:
        return list(names).index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    near = difflib.get_close_matches(name, names, n=1)
    shown = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(f"unknown class {name!r}{hint}: choose one of {shown}, or a number from 0 to {len(names) - 1}")


def _check_not_equal(asked: Tensor, versus: int | None, files: Sequence[Path], names: Sequence[str]) -> None:
    for file, target in zip(files, asked.tolist(), strict=True):
        if target == versus:
            raise ValueError(
                f"{file}: {names[target]!r} would be compared with itself: give another --target or --versus"
            )


def _question(target: Tensor | int | None, versus: int | None, names: Sequence[str]) -> str:
    asked = "the predicted class" if target is None else names[target]
    return f"why {asked}?" if versus is None else f"why {asked}, and not {names[versus]}?"


def _said(logits: Tensor, names: Sequence[str]) -> str:
    probability, predicted = logits.softmax(dim=-1).max(dim=-1)
    return f"{names[predicted]} ({100 * probability:.1f} %)"


def _save(image: Tensor, values: Tensor, path: Path) -> None:
    """Write an overlay, large enough to be looked at: (C, H, W), (1, rows, columns)."""
    from PIL import Image

    picture = overlay(image[None], values)[0]
    times = -(-SMALLEST_SIDE // min(picture.shape[1:]))
    larger = repeat(picture, "c h w -> (h p) (w q) c", p=times, q=times)
    Image.fromarray((255 * larger).round().to(torch.uint8).numpy()).save(path)
    print(f"  {path}")


def _save_page(model: vit.VisionTransformer, image: Tensor, path: Path) -> None:
    settings = model.pretrained_cfg
    page = explorer(model, image, **{name: settings[name] for name in ("class_names", "mean", "std")})
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"  {page.save(path)}")


def _draw_sheet(
    pixels: Tensor, maps: dict[str, list[Tensor]], logits: Tensor, names: Sequence[str], title: str, path: Path
) -> None:
    from vit.explain.figures import draw_maps  # matplotlib, which --help can do without

    shown = pixels[:MOST_ON_A_SHEET]
    first = {method: torch.cat(found[:MOST_ON_A_SHEET]) for method, found in maps.items()}
    draw_maps(shown, first, path, logits=logits[:MOST_ON_A_SHEET], class_names=names, title=title)
    count = "all on one sheet" if len(shown) == len(pixels) else f"the first {len(shown)} of {len(pixels)}"
    print(f"{path}: {count}")


if __name__ == "__main__":
    main()
