"""The weight of SIGReg in LeJEPA's loss, chosen by the features of training images that are held out.

Too little weight lets the features of all images become alike; too much leaves the views of an image apart. Each weight
trains an encoder without labels by configs/pretrain_sigreg_cifar10.yaml for a few minutes, all with the first seed of
pretraining.py. A weight is a cell, written to sigreg_weight.json and sigreg_weight.md as soon as it is trained; the
same command continues after an interrupt.

    python benchmarks/sigreg_weight.py --data data/cifar10-jpeg [--minutes 5] [--output benchmarks/results]
"""

import json
import sys
from pathlib import Path
from typing import Any

from pretraining import clock
from records import command_line, made, provenance, write_cell
from training_runs import TrainingError, check_splits, train

from vit.support.markdown import markdown_table

WEIGHTS = (0.01, 0.02, 0.05, 0.1)
SEED = 0
KEPT = ("epochs", "steps", "seconds", "images_per_second", "parameters", "precision", "seed", "command", "scores")
REPORT = """# The weight of SIGReg

Encoders that learned without labels by configs/pretrain_sigreg_cifar10.yaml, {minutes:g} minutes each, one seed. Scores
are those of training images that are held out: the share that its nearest neighbours classify, and the number of
directions in which features vary.
"""


def main(arguments: list[str] | None = None) -> None:
    """Train with each weight, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    parser.add_argument("--minutes", type=float, default=5.0, help="time of a training")
    options = parser.parse_args(arguments)
    check_splits(options.data)
    path, failed = options.output / "sigreg_weight.json", 0
    for weight in WEIGHTS:
        name = f"sigreg_weight {weight}"
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get(name, {}).get("minutes") == options.minutes:
            continue
        try:
            cell = trained(options.data, weight, options.minutes)
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
        else:
            write_cell(path, name, cell, report)
    if path.exists():
        print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} trainings failed: the same command runs them again")


def trained(data: Path, weight: float, minutes: float) -> dict[str, Any]:
    """Return a training with a weight, and its scores on the training images that are held out."""
    typed = ["--config", "configs/pretrain_sigreg_cifar10.yaml", "--data", "ImageFolder", "--data.root", str(data)]
    typed += ["--model.sigreg_weight", str(weight), "--trainer.max_time", clock(minutes)]
    typed += ["--seed_everything", str(SEED), "--trainer.limit_test_batches", "0"]
    results = train(f"sigreg_weight {weight}", [*typed, "--experiment", f"sigreg_weight_{weight}"])
    facts = {key: results[key] for key in KEPT}
    return provenance() | {"weight": weight, "minutes": minutes, "training": facts}


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    rows = [
        {
            "weight": f"{cell['weight']:g}",
            "neighbours": f"{100 * scores['knn_accuracy']:.1f} %",
            "directions": f"{scores['effective_rank']:.1f}",
            "epochs": f"{cell['training']['epochs']:.1f}",
        }
        for cell in sorted(cells.values(), key=lambda cell: cell["weight"])
        for scores in [cell["training"]["scores"]]
    ]
    last = [*cells.values()][-1]
    return f"{REPORT.format(minutes=last['minutes'])}\n{markdown_table(rows)}\n\n{made(last)}\n"


if __name__ == "__main__":
    main()
