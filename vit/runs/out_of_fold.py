"""A table of the test images of several runs: what each run predicted for the images that it was not trained on."""

from collections.abc import Mapping
from pathlib import Path

from vit.runs.several import Member
from vit.runs.tested_images import read_rows, write_rows
from vit.support.printable import csv_text, plain_text


def write_out_of_fold(path: Path, runs: Mapping[Member, Path], groups: Mapping[str, str]) -> int:
    """Write the rows of the test images of all runs as a CSV file, and return their number.

    The columns are the file, its group if there are ``groups``, the fold if there are folds, the seed, and then the
    truth and the predictions. Runs of an objective without a table of test images add no rows.
    """
    written = {plain_text(csv_text(file)): group for file, group in groups.items()}
    rows = []
    for member, folder in runs.items():
        for row in read_rows(folder):
            of_group = {"group": written[row["file"]]} if groups else {}
            of_fold = {} if member.fold is None else {"fold": str(member.fold)}
            rows.append({"file": row["file"], **of_group, **of_fold, "seed": str(member.seed), **row})
    if rows:
        write_rows(path, rows)
    return len(rows)
