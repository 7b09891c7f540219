"""Maps of encoders that learned without labels: does the class token find the digit among clutter?

Encoders of one shape learn on the canvases of ``PlantedDigits``: with labels, by ``configs/planted_digits.yaml``, and
without labels, by masked autoencoding, LeJEPA and DINO. Each training has as many floating point operations as four
epochs with labels. The maps that need no class, the class token's attention in the last layer and rollout, are scored
on test canvases by where the whole digit is. Controls are maps that see no model, and the same maps of
untrained networks. A training is a cell, written as soon as it is scored; the same command goes on after an
interrupt.

    python benchmarks/pretrained_maps.py [--seeds 0 1 2] [--images 500] [--output benchmarks/results]

Letter in the einops patterns: c channels.
"""

import json
from typing import Any

import torch
from einops import rearrange
from records import command_line, made, plus_minus, provenance, write_cell
from training_runs import train

import vit
from vit.data.planted import planted_digits
from vit.explain import CONTROLS, localise
from vit.explain.evaluation.ground_truth import cells_of_boxes
from vit.runs.folders import newest_checkpoint
from vit.support.markdown import markdown_table

LABELS = "labels"
# Steps of 64 canvases. By ``vit-attention plan``, an image takes 0.0644, 0.0475, 0.192 and 0.238 GFLOP.
STEPS = {LABELS: 3236, "mae": 4385, "sigreg": 1085, "dino": 875}
MAPS = ("attention", "rollout")
MEASURES = ("hits", "energy", "IoU")
SHAPE = (
    "--model.patch_size 4 --model.embed_dim 64 --model.depth 4 --model.num_heads 4 --model.mlp_ratio 2 --model.pool cls"
)
CANVASES = "--data PlantedDigits --data.batch_size 64 --data.val_fraction 0.1"
REPORT = """# Maps of encoders that learned without labels

Where the map of the class token lies on canvases with one whole digit among clutter: share of canvases whose highest
patch is on the digit (hits), share of the map on it (energy), and overlap of the highest patches with it (IoU). Means
and sample standard deviations over the seeds {seeds}; chance is 0.062 for hits and energy. "untrained": the hits of
untrained networks. Each training has {petaflop} petaFLOP, as many as four epochs with labels, whose models
classify {accuracy} % of the canvases correctly. The clutter has less ink in one place than a whole digit, so that a map
of the ink alone finds the digit.
"""


def main(arguments: list[str] | None = None) -> None:
    """Train and score what is missing, and print the report."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=500, help="test canvases (default: 500)")
    options = parser.parse_args(arguments)
    path = options.output / "pretrained_maps.json"
    for seed in options.seeds:
        for learned_by in STEPS:
            name = f"{learned_by}, seed {seed}"
            known = json.loads(path.read_text()) if path.exists() else {}
            if known.get(name, {}).get("images") != options.images:
                write_cell(path, name, measure(learned_by, seed, options.images) | provenance(), report)
    print(path.with_suffix(".md").read_text())


def typed(learned_by: str, seed: int) -> list[str]:
    """Return the arguments of a training.

    >>> " ".join(typed("labels", 1)[:4])
    '--config configs/planted_digits.yaml --seed_everything 1'
    """
    with_labels = learned_by == LABELS
    config = "planted_digits" if with_labels else f"pretrain_{learned_by}_cifar10"
    words = f"--config configs/{config}.yaml --seed_everything {seed} --experiment pretrained_maps_{learned_by}_{seed}"
    if with_labels:
        return words.split()
    length = f"--trainer.max_time null --trainer.max_epochs -1 --trainer.max_steps {STEPS[learned_by]}"
    return f"{words} {CANVASES} {SHAPE} {length} --trainer.precision 32-true".split()


def measure(learned_by: str, seed: int, count: int) -> dict[str, Any]:
    """Return the cell of a training: what it took, and the scores of its maps."""
    arguments = typed(learned_by, seed)
    results = train(f"{learned_by}, seed {seed}", arguments)
    kept = ("steps", "petaflop", "seconds", "parameters", "test_accuracy", "command")
    training = {name: results[name] for name in kept if name in results}
    model = vit.load(newest_checkpoint(arguments[arguments.index("--experiment") + 1], "last"))
    return {
        "learned by": learned_by,
        "seed": seed,
        "images": count,
        "training": training,
        "knn": results.get("scores", {}).get("knn_accuracy"),
        "rows": score_maps(model, count),
    }


def score_maps(model: vit.VisionTransformer, count: int) -> list[dict[str, Any]]:
    """Return the scores of each map on the first test canvases, a row each."""
    pixels, digits, boxes = (part[:count] for part in planted_digits("test"))
    mean, std = (rearrange(torch.tensor(model.pretrained_cfg[name]), "c -> c 1 1") for name in ("mean", "std"))
    masks = cells_of_boxes(boxes, pixels.shape[-2:], model.patch_embed.grid_size)
    return localise(model, (pixels / 255 - mean) / std, digits, masks, MAPS).rows


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    with_labels = [cell["training"] for cell in cells.values() if cell["learned by"] == LABELS]
    head = REPORT.format(
        seeds=", ".join(sorted({str(cell["seed"]) for cell in cells.values()})),
        petaflop=plus_minus([cell["training"]["petaflop"] for cell in cells.values()], ".4f"),
        accuracy=plus_minus([100 * training["test_accuracy"] for training in with_labels], ".1f"),
    )
    table = markdown_table(table_rows(cells), right=[*MEASURES, "untrained"])
    return f"{head}\n{table}\n\n{made([*cells.values()][-1])}\n"


def table_rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row for each map of each kind of training, then the control maps."""
    rows = []
    for learned_by in (name for name in STEPS if any(cell["learned by"] == name for cell in cells.values())):
        for name in MAPS:
            found = [row for cell in cells.values() if cell["learned by"] == learned_by for row in of_map(cell, name)]
            rows.append({"learned by": learned_by, "map": name} | numbers(found))
    first = next(iter(cells.values()))  # control maps are the same for all models
    return rows + [{"learned by": "", "map": f"{name} (control)"} | numbers(of_map(first, name)) for name in CONTROLS]


def of_map(cell: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the row of a map in a cell, in a list."""
    return [row for row in cell["rows"] if row["method"] == name]


def numbers(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the measures over several trainings as text."""
    found = {measure: plus_minus([row[measure][0] for row in rows], ".3f") for measure in MEASURES}
    return found | {"untrained": plus_minus([row["untrained"][0] for row in rows if row.get("untrained")], ".3f")}


if __name__ == "__main__":
    main()
