"""The report of a run: one HTML file with its scores, pictures, commands and settings.

The page is `report.html`, a template of ``vit.support.pages``.
"""

import shlex
from pathlib import Path
from typing import Any

from vit.glossary import EVERYWHERE, FACTS, RUN
from vit.objectives import ViTClassifier
from vit.runs.command_prefix import command_prefix
from vit.runs.parts import part_in_words
from vit.runs.results import known_scores, objective_of, read_results
from vit.runs.tested_images import read_rows
from vit.support.files import replacing, sweep
from vit.support.pages import data_url, page_templates
from vit.support.picture_files import photographs_in
from vit.support.share_interval import share_interval
from vit.training.description import SPACE, Picture
from vit.training.objective import Objective

CURVES = Picture("curves", "Training", "Loss, the monitored score and the learning rate over the epochs")


def complete_report(folder: Path) -> None:
    """Write the report of a finished run that was killed before it had one, and delete what the kill left."""
    sweep(folder)
    if not (folder / "report.html").exists():
        write_report(folder)


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into the folder of a run or of an evaluation, and return its path.

    The page shows what it finds in that folder: ``results.json``, ``config.yaml`` and the pictures. If something is
    missing, as after a run that was stopped, its section is left out.
    """
    path = folder / "report.html"
    with replacing(path) as unfinished:
        unfinished.write_text(render_report(folder), encoding="utf-8")
    return path


def render_report(folder: Path) -> str:
    """Return the page for the files in the folder of a run."""
    results = read_results(folder)
    objective, scores = objective_of(results), results.get("scores") or {}
    files = [(picture, folder / f"{picture.name}.png") for picture in (CURVES, *objective.pictures)]
    template = page_templates(RUN, EVERYWHERE).get_template("runs/report.html")
    return template.render(
        name=results.get("experiment") or folder.name,
        subtitle=subtitle(results, folder),
        stopped=results.get("stopped"),
        headline=headline(results),
        notes=[*objective.notes(scores), *changed_data(results)],
        tables=objective.tables(scores, scored_split(results, objective)),
        tables_of_images=objective.tables_of_images(read_rows(folder), scores),
        pictures=[(picture, data_url(path), places_in(path, picture)) for picture, path in files if path.exists()],
        facts=facts(results),
        words_of_facts=FACTS,
        inventory=results.get("inventory"),
        commands=commands(results, folder),
        config=_read(folder / "config.yaml"),
    )


def changed_data(results: dict[str, Any]) -> list[str]:
    """Return what was made worse on purpose about the images, and that the training diverged, if it did."""
    return [*(results.get("made_worse") or []), *filter(None, [results.get("diverged")])]


def places_in(path: Path, picture: Picture) -> list[list[float]]:
    """Return where the photographs of a picture are, as shares of its size; [] if it has none, or this is unknown."""
    return photographs_in(path) if picture.has_photographs else []


def subtitle(results: dict[str, Any], folder: Path) -> list[str]:
    """Return the data, the date, the duration and the folder of a run, as far as they are known."""
    date, seconds = results.get("date"), results.get("seconds")
    return [
        *([results["data"]] if results.get("data") else []),
        *([f"{date[:16].replace('T', ' ')} UTC"] if date else []),
        *([duration(seconds)] if seconds is not None else []),
        str(folder),
    ]


def scored_split(results: dict[str, Any], objective: type[Objective]) -> str | None:
    """Return "test" or "validation": the images that the scores are of; None without scores."""
    scores, name = results.get("scores"), objective.monitor.name
    if not scores:
        return None
    # Results of earlier versions do not say which.
    return results.get("scored") or ("test" if scores[name] == results.get(f"test_{name}") else "validation")


def headline(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the label, the value and a note for each of the most important figures that are known."""
    objective, parts = objective_of(results), results.get("parts", {})
    monitor, scored = objective.monitor, scored_split(results, objective)
    monitored = {f"test_{monitor.name}": "test", f"val_{monitor.name}": "validation"}
    tiles = []
    for score, value in known_scores(results).items():
        of, part = monitored.get(score.name), parts.get(score.name.split("_")[0])
        has_interval = of is not None and of == scored and monitor.is_of_images
        count = results["scores"]["count"] if has_interval else 0
        notes = [part_in_words(part, of) if of and part else f"{count:,} images" if has_interval else ""]
        groups = results.get("groups", {}).get(score.name.split("_")[0])
        notes += [interval_note(value, count, groups) if count else score.note]
        notes += [guessing_note(results["scores"])] if has_interval else []
        tiles.append((score.label, score.text(value), "; ".join(filter(None, notes))))
    return tiles


def interval_note(share: float, count: int, groups: int | None = None) -> str:
    """Return the 95 % interval of a share of some images, in words.

    Images of a group may all be right or wrong together, so that the interval is that of as many images as groups.
    """
    low, high = share_interval(share, count if groups is None else min(count, groups))
    of_groups = "" if groups is None else f" of {groups:,} groups"
    return f"95{SPACE}% interval{of_groups} {100 * low:.2f} to {100 * high:.2f}{SPACE}%"


def guessing_note(scores: dict[str, Any]) -> str:
    r"""Return what an accuracy is to be compared with, in words; "" if the images of the classes are not known.

    >>> guessing_note({"classes": [{"support": 30}, {"support": 10}]})
    'always saying the most frequent class: 75.00\xa0%'
    """
    counts = [row["support"] for row in scores.get("classes", []) if "support" in row]
    largest, count = scores.get("largest_class", max(counts, default=0)), scores.get("count", sum(counts))
    return f"always saying the most frequent class: {100 * largest / count:.2f}{SPACE}%" if largest else ""


def facts(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of each known fact about how a run was made."""
    speed, flop, devices = (results.get(name) for name in ("images_per_second", "petaflop", "devices"))
    known = {
        "Parameters": _grouped(results.get("parameters")),
        "Epochs": results.get("epochs"),
        "Steps": _grouped(results.get("steps")),
        "Speed": f"{speed:,.0f} images/s" if speed is not None else None,
        "Computation": f"{flop:g} petaFLOP" if flop is not None else None,
        "Device": results.get("device"),
        "Devices": devices if devices != 1 else None,
        "Precision": results.get("precision"),
        "Seed": results.get("seed"),
        "Tested weights": results.get("test_weights"),
        "Tested file": tested_file_text(results),
        "Checkpoint": results.get("checkpoint"),
        "torch": results.get("torch"),
    }
    return [(name, str(value)) for name, value in known.items() if value is not None]


def tested_file_text(results: dict[str, Any]) -> str | None:
    """Return the file of the tested weights with the first digits of its SHA-256."""
    digest = results.get("tested_sha256")
    return f"{results.get('tested_file')}, SHA-256 {digest[:16]}\u2026" if digest else None


def commands(results: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Return what can be done with a run, and the command for it."""
    saved = {name: path for name in ("best", "last") if (path := folder / "checkpoints" / f"{name}.ckpt").exists()}
    found = [("Repeat", results["command"])] if results.get("command") else []
    if results.get("stopped") and "last" in saved:
        found.append(("Resume", _command("fit", saved["last"])))
    # Name the weights that were scored, if these are known. An evaluation has no checkpoints of its own.
    evaluated = results.get("checkpoint")
    scored = saved.get(results.get("test_weights"), next(iter(saved.values()), None))
    if scored and not evaluated:
        found.append(("Test", _command("test", scored)))
    if evaluated or scored:
        tested = evaluated or scored
        found.append(("Predict images of your own", f"{_command('predict', tested)} --data.root FOLDER"))
        if issubclass(objective_of(results), ViTClassifier):
            named = f"--checkpoint {shlex.quote(str(tested))}"
            found.append(("See which patches a prediction rests on", f"vit-attention explain IMAGE {named} --html"))
            found.append(("Measure what such maps are worth", f"vit-attention explain IMAGES {named} --trust"))
            found.append(("See what its heads do", f"vit-attention analysis {named}"))
    return found


def _command(subcommand: str, checkpoint: str | Path) -> str:
    return f"{command_prefix()} {subcommand} --ckpt_path {shlex.quote(str(checkpoint))}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> duration(59.4), duration(754), duration(36_060)
    ('59 s', '12 min 34 s', '10 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _grouped(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
