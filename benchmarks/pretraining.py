"""Learning without labels, then from few: each objective against training from scratch in equal total time.

An encoder learns from all training images without labels for five sixths of the time; it is then fine-tuned on the
labelled share of them for the rest. Trainings from scratch have all of the time. The epochs of both, and whether
RandAugment, are chosen for each share by the accuracy on other training images, of one seed. Frozen features are judged
by a linear probe and by neighbours, beside those of an untrained network. Seeds choose the labelled images and their
order; accuracy is that of the end of the training, on all test images. A training is a cell, written to
pretraining.json and pretraining.md as soon as it is done; the same command continues after an interrupt. The picture is
drawn at the end.

    python benchmarks/pretraining.py --data data/cifar10-jpeg [--minutes 30] [--shares 0.1] [--objectives mae]
        [--output benchmarks/results]
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pretraining_figure import draw_pretraining, score
from records import command_line, made, plus_minus, provenance, write_cell
from training_runs import TrainingError, check_splits, train

import vit
from vit.data import ImageFolder
from vit.data.module import ImageSet
from vit.features import CLASSIFIERS, extract
from vit.runs.folders import newest_checkpoint
from vit.support.markdown import markdown_table

SEEDS = (0, 1, 2)
SHARES = (0.01, 0.1, 1.0)  # of the training images of each class that have a label
OBJECTIVES = ("mae", "sigreg", "dino")
NAMES = {"mae": "MaskedAutoencoder", "sigreg": "SIGReg", "dino": "DINO"}
KINDS = {"trained": "fine-tuned", "knn": "nearest neighbours, frozen", "linear": "linear probe, frozen"}
PRETRAINING = 5 / 6  # of the time
RECIPE = ["--config", "configs/cifar10_quick.yaml", "--data", "ImageFolder", "--data.val_fraction", "0"]
RANDAUGMENT = ["--data.policy", "randaugment"]
# Epochs and whether RandAugment, of the fine-tunings and of the trainings from scratch that are compared.
FINETUNING = {
    0.01: ((60, False), (60, True), (200, False), (200, True)),
    0.1: ((13, False), (13, True), (33, False), (33, True)),
    1.0: ((13, False), (13, True)),
}
SCRATCH = {
    0.01: ((60, False), (60, True), (200, False), (200, True), (600, False), (600, True)),
    0.1: ((13, False), (13, True), (33, False), (33, True), (100, False), (100, True)),
    1.0: ((13, False), (13, True), (26, False), (26, True), (39, False), (39, True)),
}
HELD_OUT = 500  # training images of each class, without a label, on which trainings from scratch are chosen
PROBED = 10_000  # labelled images at most whose frozen features are judged
REPORT = """# Learning without labels

Test accuracy in per cent, mean and sample standard deviation over seeds, by the share of the training images that have
a label. Each row took the same time in all, {minutes:g} minutes. "linear" and "neighbours": frozen features of the same
encoder. From scratch: the best of {candidates} trainings of one seed on held-out training images, trained anew;
fine-tunings are chosen likewise.
"""


def main(arguments: list[str] | None = None) -> None:
    """Train row by row, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    parser.add_argument("--minutes", type=float, default=30.0, help="time of a row: pretraining and fine-tuning")
    parser.add_argument("--shares", nargs="+", type=float, choices=SHARES, default=SHARES, help="of the labels")
    parser.add_argument("--objectives", nargs="*", choices=OBJECTIVES, default=OBJECTIVES, help="default: all")
    options = parser.parse_args(arguments)
    check_splits(options.data)
    path, failed, work = options.output / "pretraining.json", 0, Path("runs/pretraining_data")
    for name, measure in cells_of(options.data, work, options.minutes, options.shares, options.objectives):
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get(name, {}).get("minutes") == options.minutes:
            continue
        try:
            cell = measure(known)
        except TrainingError as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
            continue
        write_cell(path, name, cell | {"minutes": options.minutes} | provenance(), report)
    draw_pretraining(
        json.loads(path.read_text()), {share: label_of(share) for share in SHARES}, path.with_suffix(".png")
    )
    print(path.with_suffix(".md").read_text())
    if failed:
        raise SystemExit(f"error: {failed} trainings failed")


def cells_of(data: Path, work: Path, minutes: float, shares: Sequence[float], objectives: Sequence[str]) -> Any:
    """Yield the name of each cell and the function that measures it, given the cells so far."""
    for share in shares:
        for epochs, augmented in SCRATCH[share]:
            policy = "randaugment" if augmented else "none"
            name = f"chosen from, {label_of(share)}, {epochs} epochs, {policy}"
            yield name, lambda _, of=(share, epochs, policy): candidate(data, work, minutes, *of)
    for objective in objectives:
        for share in shares:
            for epochs, augmented in FINETUNING[share]:
                policy = "randaugment" if augmented else "none"
                name = f"chosen from, {objective}, {label_of(share)}, {epochs} epochs, {policy}"
                yield name, lambda _, of=(share, epochs, policy, objective): candidate(data, work, minutes, *of)
    for seed in SEEDS:
        for share in shares:
            yield (
                f"from scratch, {label_of(share)}, seed {seed}",
                lambda known, of=(share, seed): scratch(data, work, minutes, known, *of),
            )
            yield (
                f"untrained, {label_of(share)}, seed {seed}",
                lambda _, of=(share, seed): frozen(None, labelled(data, work, *of), *of),
            )
        for objective in objectives:
            for share in shares:
                name = f"{objective}, {label_of(share)}, seed {seed}"
                yield name, lambda known, of=(objective, share, seed): finetuned(data, work, minutes, known, *of)


def label_of(share: float) -> str:
    """Return a share of the labels in words.

    >>> label_of(0.01)
    '1 % of the labels'
    """
    return f"{100 * share:g} % of the labels"


def labelled(data: Path, work: Path, share: float, seed: int, held_out: bool = False) -> Path:
    """Return a folder of links: to a random share of the training images of each class, and to all test images.

    With ``held_out``, the test images are ``HELD_OUT`` of the training images of each class, and the labelled ones are
    drawn of the others.
    """
    folder = work / f"{share}_{seed}{'_held_out' if held_out else ''}"
    if folder.exists():
        return folder
    unfinished = folder.with_name(f"{folder.name}_unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for place in sorted((data / "train").iterdir()):
        files = sorted(place.iterdir())
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
        count, kept = (
            max(2, round(share * len(files))),
            len(files) - (min(HELD_OUT, len(files) // 4) if held_out else 0),
        )
        chosen = {
            "train": [files[index] for index in order[: min(count, kept)]],
            "test": [files[index] for index in order[kept:]] if held_out else (data / "test" / place.name).iterdir(),
        }
        for split, images in chosen.items():
            (unfinished / split / place.name).mkdir(parents=True)
            for image in images:
                (unfinished / split / place.name / image.name).symlink_to(image.resolve())
    return unfinished.rename(folder)


def clock(minutes: float) -> str:
    """Return a time as --trainer.max_time takes it.

    >>> clock(25)
    '00:00:25:00'
    """
    seconds = max(1, round(60 * minutes))
    return f"00:{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def supervised(folder: Path, seed: int, epochs: int, minutes: float) -> list[str]:
    """Return the arguments of a training on labelled images, which ends after its epochs or its time."""
    typed = [*RECIPE, "--data.root", str(folder), "--seed_everything", str(seed)]
    length = ["--trainer.max_epochs", str(epochs), "--trainer.max_time", clock(minutes)]
    return [*typed, *length, "--trainer.check_val_every_n_epoch", str(epochs)]


def results_of(name: str, experiment: str, typed: list[str]) -> dict[str, Any]:
    """Return what a cell keeps of a training."""
    results = train(name, [*typed, "--experiment", experiment])
    kept = ("test_accuracy", "epochs", "steps", "seconds", "parameters", "precision", "seed", "command")
    return {key: results[key] for key in kept}


def candidate(
    data: Path, work: Path, minutes: float, share: float, epochs: int, policy: str, objective: str = ""
) -> dict[str, Any]:
    """Return a training of the first seed, tested on held-out training images: from scratch, or of an encoder."""
    folder = labelled(data, work, share, SEEDS[0], held_out=True)
    allowed = (1 - PRETRAINING) * minutes if objective else minutes
    typed = [*supervised(folder, SEEDS[0], epochs, allowed), *(RANDAUGMENT if policy != "none" else [])]
    if objective:
        typed += ["--model.init_from", str(pretrained(data, minutes, objective, SEEDS[0]))]
    name = f"{objective or 'scratch'}, {label_of(share)}, {epochs} epochs, {policy}"
    training = results_of(name, f"pretraining_chosen_{objective}{share}_{epochs}_{policy}", typed)
    row = row_of_candidates(objective)
    return {"row": row, "share": share, "epochs": epochs, "policy": policy, "training": training}


def row_of_candidates(objective: str = "") -> str:
    """Return the row of the trainings from scratch that are compared, or of the fine-tunings after an objective."""
    return f"chosen from, {objective}" if objective else "chosen from"


def best_of(known: dict[str, Any], share: float, objective: str = "") -> dict[str, Any]:
    """Return the training from scratch, or after an objective, that is best on held-out images."""
    row = row_of_candidates(objective)
    found = [cell for cell in known.values() if cell["row"] == row and cell["share"] == share]
    if not found:
        raise TrainingError(f"no training {objective or 'from scratch'} was chosen for {label_of(share)}")
    return max(found, key=lambda cell: cell["training"]["test_accuracy"])


def scratch(data: Path, work: Path, minutes: float, known: dict[str, Any], share: float, seed: int) -> dict[str, Any]:
    """Return the training from scratch that was chosen for a share of the labels."""
    best = best_of(known, share)
    typed = supervised(labelled(data, work, share, seed), seed, best["epochs"], minutes)
    typed += RANDAUGMENT if best["policy"] != "none" else []
    training = results_of(f"scratch, {label_of(share)}, seed {seed}", f"pretraining_scratch_{share}_{seed}", typed)
    return {"row": "from scratch", "share": share, "seed": seed, "training": training}


def pretrained(data: Path, minutes: float, objective: str, seed: int) -> Path:
    """Return the checkpoint of an encoder that learned without labels; an interrupted training goes on."""
    name, experiment = f"{objective}, seed {seed}", f"pretraining_{objective}_{seed}_{minutes:g}"
    try:
        found = newest_checkpoint(experiment, "last")
        if json.loads((found.parents[1] / "results.json").read_text()).get("finished"):
            return found
        train(name, ["--ckpt_path", str(found)])
    except (ValueError, FileNotFoundError):  # there is none
        typed = ["--config", f"configs/pretrain_{objective}_cifar10.yaml", "--data", "ImageFolder"]
        typed += ["--data.root", str(data), "--seed_everything", str(seed), "--experiment", experiment]
        train(name, [*typed, "--trainer.max_time", clock(PRETRAINING * minutes)])
    return newest_checkpoint(experiment, "last")


def finetuned(
    data: Path, work: Path, minutes: float, known: dict[str, Any], objective: str, share: float, seed: int
) -> dict[str, Any]:
    """Return a fine-tuning of an encoder that learned without labels, and what its frozen features are worth."""
    best = best_of(known, share, objective)
    source, folder = pretrained(data, minutes, objective, seed), labelled(data, work, share, seed)
    rest = (1 - PRETRAINING) * minutes
    typed = [*supervised(folder, seed, best["epochs"], rest), "--model.init_from", str(source)]
    typed += RANDAUGMENT if best["policy"] != "none" else []
    name = f"{objective}, {label_of(share)}, seed {seed}"
    training = results_of(name, f"pretraining_tuned_{objective}_{share}_{seed}", typed)
    before = json.loads((source.parents[1] / "results.json").read_text())
    kept = {key: before[key] for key in ("seconds", "epochs", "images_per_second", "command", "scores")}
    return frozen(source, folder, share, seed) | {"row": objective, "training": training, "pretraining": kept}


def frozen(source: Path | None, folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Return the accuracy of each classifier on frozen features; those of an untrained network without a source."""
    model = untrained(seed) if source is None else vit.load(source)
    data = ImageFolder(str(folder), image_size=32, val_fraction=0.0)
    data.setup("fit")
    found = {}
    for split in ("train", "test"):
        part = few_of(data.sets[split]) if split == "train" else data.sets[split]
        pixels = part.decode(torch.arange(len(part.labels)))[0]
        found[split] = (extract(model, pixels.split(256)), part.labels)
    accuracies = {name: classifier(*found["train"], *found["test"]) for name, classifier in CLASSIFIERS.items()}
    return {"row": "untrained", "share": share, "seed": seed, "frozen": accuracies}


def few_of(part: ImageSet) -> ImageSet:
    """Return at most ``PROBED`` of the images, drawn at random."""
    return part.subset(torch.randperm(len(part.labels), generator=torch.Generator().manual_seed(0))[:PROBED])


def untrained(seed: int) -> vit.VisionTransformer:
    """Return a network of the shape of the recipe that was not trained."""
    torch.manual_seed(seed)
    sizes = {"embed_dim": 96, "depth": 6, "num_heads": 3, "mlp_ratio": 2.0, "pool": "mean", "num_classes": 0}
    model = vit.VisionTransformer(**sizes).eval()
    model.pretrained_cfg |= {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    return model


def table(cells: dict[str, Any]) -> str:
    """Return the accuracies of each row as Markdown, with the shares of the labels that were measured."""
    rows = []
    shares = [share for share in SHARES if any(cell["share"] == share for cell in cells.values())]
    for row in ("from scratch", *OBJECTIVES, "untrained"):
        of_row = [cell for cell in cells.values() if cell["row"] == row]
        for kind in ("trained", *CLASSIFIERS):
            columns = {"learned by": NAMES.get(row, row), "then": KINDS[kind]}
            for share in shares:
                values = [
                    100 * value
                    for cell in of_row
                    if cell["share"] == share and (value := score(cell, kind)) is not None
                ]
                columns[label_of(share)] = plus_minus(values, ".1f")
            if any(columns[label_of(share)] for share in shares):
                rows.append(columns if row != "from scratch" else columns | {"then": ""})
    return markdown_table(rows)


def report(cells: dict[str, Any]) -> str:
    """Return all cells as Markdown."""
    last = [*cells.values()][-1]
    candidates = max(
        sum(cell["row"] == "chosen from" and cell["share"] == share for cell in cells.values()) for share in SHARES
    )
    head = REPORT.format(minutes=last["minutes"], candidates=candidates)
    return f"{head}\n{table(cells)}\n\n{made(last)}\n"


if __name__ == "__main__":
    main()
