"""The tables of an evaluated classifier: a row for each image, and those of the report."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vit.objectives.classify.evaluation import MISTAKES, MOST_ROWS, lowest_and_highest
from vit.support.printable import list_names
from vit.training.description import NONE, Table, tenths

AREAS = {"roc_auc": "ROC area", "average_precision": "PR area"}  # which results of earlier versions lack
SHARES = {"f1": "F1, %", "precision": "precision, %", "recall": "recall, %"}
FILE_LETTERS = 48  # of the name of a file in the report
MOST_IN_MATRIX = 100  # classes of a confusion matrix
MOST_COLUMNS = 100  # classes with a column of their probability in the table of images


def predicted_rows(best: Tensor, classes: Tensor, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the best class of each image, its probability, and the five best classes.

    Args:
        best: The highest probabilities of each image, the highest first, (N, 5), on the CPU.
        classes: Their classes, (N, 5).
        names: Names of the classes.
    """
    rows = []
    for values, numbers in zip(best.tolist(), classes.tolist(), strict=True):
        top = [f"{names[number]} {value:.4f}" for number, value in zip(numbers, values, strict=True)]
        rows.append({"class": names[numbers[0]], "probability": f"{values[0]:.4f}", "top5": "; ".join(top)})
    return rows


def probability_rows(probabilities: Tensor, names: Sequence[str]) -> list[dict[str, str]]:
    """Return the probability of every class for each image, with all digits of its float32: (N, C) on the CPU."""
    columns = [f"P({name})" for name in names]
    return [dict(zip(columns, map(str, row), strict=True)) for row in probabilities.float().numpy()]


def evaluated_rows(found: Mapping[str, Tensor], names: Sequence[str], *, has_views: bool) -> dict[int, dict[str, str]]:
    """Return the row of each image by its place in the data set; with few classes, also the probability of each.

    Args:
        found: The results of an evaluation for each image: its ``rows``.
        names: Names of the classes.
        has_views: Whether to add the prediction over several views.
    """
    label, said = found["label"], found["classes"][:, 0]
    predicted = predicted_rows(found["best"], found["classes"], names)
    every: list[dict[str, str]] = [{}] * len(predicted)
    if len(names) <= MOST_COLUMNS:
        every = probability_rows(found["probabilities"], names)
    over_views = [{}] * len(predicted)
    if has_views:
        over_views = predicted_rows(found["best_over_views"], found["classes_over_views"], names)
    rows = {}
    for place, index in enumerate(found["index"].tolist()):
        truth = {"true_class": names[label[place]], "correct": str(bool(label[place] == said[place])).lower()}
        views = {f"{name}_over_views": over_views[place][name] for name in ("class", "probability") if has_views}
        rows[index] = truth | predicted[place] | views | every[place]
    return rows


def class_table(scores: Mapping[str, Any], split: str | None, corner: str, shares: Mapping[str, str]) -> list[Table]:
    """Return the scores of the classes, the lowest first; of many, the lowest and the highest; [] if there are none.

    Args:
        scores: The scores of an evaluation.
        split: The split of its images.
        corner: Title of the column of names.
        shares: Title of the column of each share; the first share orders the rows.
    """
    first = next(iter(shares))
    classes = lowest_and_highest(scores.get("classes", []), first)
    if not classes:
        return []
    has_areas = any(row.get(name) is not None for row in classes for name in AREAS)
    areas = [name for name in AREAS if has_areas and name not in shares]
    header = (corner, *shares.values(), *(AREAS[name] for name in areas), "images")
    rows = [
        (
            row["name"],
            *(shown_threshold(row[name]) if name == "threshold" else tenths(row[name]) for name in shares),
            *(thousandths(row[name]) for name in areas),
            f"{row['support']:,}",
        )
        for row in classes
    ]
    count = scores.get("class_count", len(scores["classes"]))
    title = f"{count:,} classes, {split} images"
    if len(rows) < count:
        title += f": the lowest and the highest {MOST_ROWS // 2}"
    return [Table(title, header, rows, [row[first] or 0 for row in classes])]


def confusions_table(scores: Mapping[str, Any], split: str | None) -> list[Table]:
    """Return the largest confusions of more classes than a matrix can show; [] if there are none.

    >>> scores = {"class_count": 1000, "confusions": [{"class": "cat", "predicted": "dog", "count": 5, "share": 0.1}]}
    >>> confusions_table(scores, "test")[0].rows
    [('cat', 'dog', '5', '10.0')]
    """
    found = scores.get("confusions", []) if scores.get("class_count", 0) > MOST_IN_MATRIX else []
    rows = [(row["class"], row["predicted"], f"{row['count']:,}", tenths(row["share"])) for row in found]
    header = ("true class", "predicted", "images", "% of the class")
    return [Table(f"The largest confusions, {split} images", header, rows)] if rows else []


def thousandths(area: float | None) -> str:
    """Return an area with three decimals.

    >>> thousandths(0.5)
    '0.500'
    """
    return NONE if area is None else f"{area:.3f}"


def shown_threshold(share: float | None) -> str:
    """Return a share in percent with one decimal, or more where one decimal would be 0 or 100.

    >>> shown_threshold(0.375), shown_threshold(0.0003), shown_threshold(0.99985)
    ('37.5', '0.03', '99.985')
    """
    if share is None or 0.001 <= share <= 0.999:
        return tenths(share)
    return f"{100 * share:.6g}"


def threshold_table(scores: Mapping[str, Any], split: str | None) -> list[Table]:
    """Return the scores at the threshold of two classes; [] if there is none."""
    found = scores.get("threshold")
    if not found:
        return []
    shares = [(name, tenths(found[name])) for name in ("sensitivity", "specificity", "precision")]
    header = (f"P({found['class']}) of at least {shown_threshold(found['value'])} %", f"{split} images, %")
    return [Table(f"Threshold of {found['class']}, chosen on validation images", header, shares)]


def notes(scores: Mapping[str, Any]) -> list[str]:
    """Return what a reader has to know about scores: absent classes, a loss that is no number, no threshold.

    >>> notes({"classes": [{"name": "ant", "support": 3}, {"name": "bee", "support": 0}]})
    ['1 of 2 classes is in these images; none is of bee']
    """
    classes, lines = scores.get("classes", []), []
    absent, count = [row["name"] for row in classes if not row["support"]], scores.get("class_count", len(classes))
    there = scores.get("classes_with_images", len(classes) - len(absent))
    if there < count:
        verb = "is" if there == 1 else "are"
        named = f"; none is of {list_names(absent)}" if absent else ""
        lines.append(f"{there:,} of {count:,} classes {verb} in these images{named}")
    if scores.get("count") and scores.get("loss", 0.0) is None:
        lines.append("the loss is not finite: for some images the model's answer is no number")
    if "threshold" in scores and scores["threshold"] is None:
        lines.append("no threshold: validation images of both classes choose it, and this training had none")
    return lines


def mistakes_table(rows: Sequence[Mapping[str, str]]) -> list[Table]:
    """Return the most confident mistakes among the rows of a table of images, with their files; [] if there are none.

    >>> row = {"file": "a.png", "true_class": "cat", "correct": "false", "class": "dog", "probability": "0.9000"}
    >>> mistakes_table([row])[0].rows
    [('a.png', 'dog', '90.0', 'cat')]
    """
    wrong = [row for row in rows if row["correct"] == "false"]
    worst = sorted(wrong, key=lambda row: -float(row["probability"]))[:MISTAKES]
    found = [(end_of(row["file"]), row["class"], tenths(float(row["probability"])), row["true_class"]) for row in worst]
    title = files_title(len(found), len(wrong), "mistakes")
    return [Table(title, ("file", "predicted", "probability, %", "true class"), found)] if found else []


def files_title(shown: int, count: int, what: str) -> str:
    """Return the heading of a table of mistakes, of which it may show only the most confident.

    >>> files_title(32, 1442, "mistakes"), files_title(2, 2, "mistakes")
    ('Files of the 32 most confident of 1,442 mistakes', 'Files of the mistakes, the most confident first')
    """
    if shown < count:
        return f"Files of the {shown} most confident of {count:,} {what}"
    return f"Files of the {what}, the most confident first"


def end_of(file: str, letters: int = FILE_LETTERS) -> str:
    """Return the end of a long name, where files of one folder differ.

    >>> end_of("a/long/folder/image.png", 13)
    '…er/image.png'
    """
    return file if len(file) <= letters else f"\u2026{file[1 - letters :]}"
