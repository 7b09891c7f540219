"""What trained decoders do: reading and where they look, heads that can go, completion from above and from both sides.

Each checkpoint is a cell of decoders.json, named by its recipe and seed, and measured on test images that no setting
was chosen on. Of a reader: exact texts by greedy decoding and beam search, also where digits overlap; the share of
letters on which the cross-attention peaks, beside controls; accuracy as the heads of each kind are removed. Of a
completer: bits per pixel beside baselines, the middle of images, and linear probes of its layers. Without
checkpoints, the time of generation with and without a cache is measured.

    python benchmarks/decoders.py runs/read_digits/*/checkpoints/last.ckpt runs/complete_digits/*/checkpoints/last.ckpt
        [--images 2000] [--output benchmarks/results]
    python benchmarks/decoders.py

Letters in the einops patterns: b pictures, t letters, r s rows and columns, c d channels, n pixels.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from einops import reduce, repeat
from records import command_line, made_at, origin, plus_minus, span, write_cell
from torch import Tensor
from training_runs import about_training

import vit.data
from vit.analysis.sequences import sequence_pruning_curve
from vit.capture.sequence import KINDS
from vit.data import DigitStrings
from vit.data.module import ImageSet
from vit.explain.texts import explain_text, peaks_on_boxes
from vit.model.decoder import TransformerDecoder
from vit.model.generation import Sampling, sample
from vit.objectives import ImageCompleter, SequenceReader
from vit.objectives.read.evaluation import next_tokens
from vit.runs.folders import run_folder_of
from vit.support.markdown import markdown_table
from vit.weights import read_checkpoint

BATCH = 250
OVERLAP = 2  # pixels, of the harder pictures
RANKING = 500  # validation pictures by which heads are ranked
BEAMS = 5
LENGTH, SEQUENCES, ROUNDS = 64, 16, 5  # of the timed generation
TIMED = ((96, 2), (384, 6))  # channels and blocks of decoders: of configs/read_digits.yaml, and a usual size
GENERATION = "generation"  # the cell of its time
HEAD = """# Decoders

Texts are exact if every digit is right. A map peaks on a digit if at least a
quarter of its highest patch lies in the digit's box; "chance" is the share of patches of which this is true. Heads are
removed by setting their attention to zero, without further training.
"""


def rows_of(reader: SequenceReader, images: Tensor, num_beams: int = 1) -> Tensor:
    """Return the tokens that a reader writes, padded with the end: (B, C, H, W) -> (B, T)."""
    rows = [reader.read(part, num_beams).tokens for part in images.split(BATCH)]
    length = reader.hparams.max_length + 1
    return torch.cat(
        [torch.nn.functional.pad(row, (0, length - row.shape[1]), value=reader.alphabet.end) for row in rows]
    )


def measure_reading(reader: SequenceReader, images: int) -> dict[str, Any]:
    """Return the share of exact texts, on pictures as in the training and on overlapping digits."""
    found = {}
    for name, overlap in (("apart", 0), ("overlapping", OVERLAP)):
        numbers = DigitStrings(overlap=overlap).numbers("test")
        pictures, tokens = numbers.images[:images], numbers.tokens[:images, 1:]
        for way, beams in (("greedy", 1), ("beams", BEAMS)):
            written = rows_of(reader, pictures, beams)
            found[f"{name}, {way}"] = (written == tokens).all(dim=1).double().mean().item()
    return found


def measure_peaks(reader: SequenceReader, images: int) -> dict[str, float]:
    """Return the share of the letters on which the map of their step peaks, for each kind of map and control."""
    numbers = DigitStrings().numbers("test")
    pictures, tokens, boxes = numbers.images[:images], numbers.tokens[:images, :-1], numbers.boxes[:images]
    steps, size = boxes.shape[1], tuple(pictures.shape[-2:])
    found: dict[str, list[Tensor]] = {}
    for part in torch.arange(len(pictures)).split(BATCH):
        normalised = reader.normalise(pictures[part])
        maps = {
            "cross-attention": explain_text(reader.network, normalised, tokens[part]),
            "rollout": explain_text(reader.network, normalised, tokens[part], "rollout"),
        }
        for name, of_steps in (maps | controls(maps["rollout"].shape)).items():
            found.setdefault(name, []).append(peaks_on_boxes(of_steps[:, :steps], boxes[part], size))
    return {name: torch.cat(scores).double().mean().item() for name, scores in found.items()}


def controls(shape: torch.Size) -> dict[str, Tensor]:
    """Return maps that know nothing of the picture: random, constant (chance), and a bell in the centre."""
    rows, columns = (torch.linspace(-1, 1, size + 2)[1:-1] for size in shape[-2:])
    bell = torch.exp(-2 * (rows[:, None] ** 2 + columns**2))
    random = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return {
        "random": random,
        "chance": torch.ones(shape),
        "center": repeat(bell, "r s -> b t r s", b=shape[0], t=shape[1]),
    }


def measure_pruning(reader: SequenceReader, images: int) -> dict[str, list[dict[str, Any]]]:
    """Return the curve of each kind of heads, by importance and at random."""

    def batch(stage: str, count: int) -> tuple[Tensor, Tensor, Tensor]:
        numbers = DigitStrings().numbers(stage)
        tokens = numbers.tokens[:count]
        targets = next_tokens(tokens, reader.alphabet.end)
        return reader.normalise(numbers.images[:count]), tokens[:, :-1], targets

    measured, ranking = batch("test", images), batch("val", RANKING)
    return {
        f"{kind}, {order}": [
            {"heads_left": point.heads_left, "accuracy": point.accuracy, "removed": point.removed}
            for point in sequence_pruning_curve(reader.network, measured, ranking, kind, order, batch_size=BATCH)
        ]
        for kind in KINDS
        for order in ("importance", "random")
    }


def measure_generation(embed_dim: int, depth: int) -> dict[str, float]:
    """Return the time of writing 64 tokens for 16 pictures, without a cache over with one; median of rounds in turn."""
    torch.manual_seed(0)
    decoder = TransformerDecoder(64, embed_dim, depth, embed_dim // 24, LENGTH, context_dim=embed_dim).eval()
    prompt, context = torch.zeros(SEQUENCES, 1, dtype=torch.long), torch.randn(SEQUENCES, 49, embed_dim)
    ratios, seconds, written = [], {True: [], False: []}, {}
    for _ in range(ROUNDS + 1):
        for use_cache in (True, False):
            start = time.perf_counter()
            written[use_cache] = sample(decoder, prompt, context, LENGTH, None, Sampling(), use_cache=use_cache).tokens
            seconds[use_cache].append(time.perf_counter() - start)
        ratios.append(seconds[False][-1] / seconds[True][-1])
    if not torch.equal(written[True], written[False]):
        raise ValueError("generation with the cache writes other tokens: mend it before it is timed")
    return {
        "embed_dim": embed_dim,
        "depth": depth,
        "times_as_fast": median(ratios[1:]),
        "seconds_cached": median(seconds[True][1:]),
    }


@torch.no_grad()
def measure_completion(completer: ImageCompleter, data: Any, images: int) -> dict[str, Any]:
    """Return bits per pixel, how well the middle rows are filled in, and probes of the layers."""
    test = drawn(data.sets["test"], images)
    pixels = torch.cat([completer.pixels(part) for part in test.images.split(BATCH)])
    evaluation = completer.new_evaluation()
    for part in pixels.split(BATCH):
        counted = completer.network.scored_pixels(part)
        evaluation.update(completer.predict(part, counted), part, counted, completer.network.unseen_pixels(counted))
    scores = evaluation.scores()
    return {
        "objective": completer.hparams.objective,
        "bits_per_pixel": scores["bits_per_pixel"],
        "baselines": scores["baselines"],
        "middle": middle_error(completer, pixels),
        "probes": probe(completer, data, images),
    }


def drawn(images: ImageSet, count: int) -> ImageSet:
    """Return a random sample of the images, the same in each run: files are in the order of their classes."""
    return images.subset(torch.randperm(len(images.labels), generator=torch.Generator().manual_seed(0))[:count])


def middle_error(completer: ImageCompleter, pixels: Tensor) -> float:
    """Return the mean difference of the most probable fill of the middle rows from the true one, of 255.

    The causal model writes the middle rows from those above; the masked one reads those below as well.
    """
    rows = pixels.shape[1]
    first, last = rows // 3, rows - rows // 3
    wrong = []
    for part in pixels.split(BATCH):
        if completer.hparams.objective == "causal":
            filled = completer.network.complete(part[:, :first], temperature=0)
        else:
            hidden = torch.zeros_like(part, dtype=torch.bool)
            hidden[:, first:last] = True
            filled = completer.network.complete(part, hidden, temperature=0)
        difference = completer.palette[filled[:, first:last]] - completer.palette[part[:, first:last]]
        wrong.append(reduce(difference.abs(), "b r s d -> b", "mean"))
    return torch.cat(wrong).mean().item()


@torch.no_grad()
def features(completer: ImageCompleter, images: Tensor) -> list[Tensor]:
    """Return the mean state of the pixels after each block: (B, C, H, W) -> (B, D) each."""
    layers: list[list[Tensor]] = [[] for _ in completer.network.decoder.blocks]

    def keep(number: int) -> Any:
        return lambda _module, _inputs, output: layers[number].append(reduce(output, "b n d -> b d", "mean"))

    hooks = [block.register_forward_hook(keep(i)) for i, block in enumerate(completer.network.decoder.blocks)]
    for part in images.split(BATCH):
        completer.network.forward_features(completer.pixels(part))
    for hook in hooks:
        hook.remove()
    return [torch.cat(layer) for layer in layers]


def probe(completer: ImageCompleter, data: Any, images: int) -> list[float]:
    """Return the test accuracy of a linear classifier on the features after each block."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, test = drawn(data.sets["train"], 5 * images), drawn(data.sets["test"], images)
    learned, asked = features(completer, train.images), features(completer, test.images)
    found = []
    for of_train, of_test in zip(learned, asked, strict=True):
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        classifier.fit(of_train.numpy(), train.labels.numpy())
        found.append(float(classifier.score(of_test.numpy(), test.labels.numpy())))
    return found


def experiment(path: Path, images: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a checkpoint's cell, and what is measured.

    Raises:
        ValueError: If it is neither of a reader nor of a completer.
    """
    checkpoint, folder = read_checkpoint(path), run_folder_of(path)
    facts = json.loads((folder / "results.json").read_text())
    about = {"recipe": facts["experiment"], "training": about_training(path)}
    cell: dict[str, Any] = about | {"images": images, "made": origin()}
    kind = checkpoint.get("module")
    if kind == "SequenceReader":
        reader = SequenceReader.load_from_checkpoint(path, weights_only=True, map_location="cpu").eval()
        cell |= {"reading": measure_reading(reader, images), "peaks": measure_peaks(reader, images)}
        cell["pruning"] = measure_pruning(reader, images)
    elif kind == "ImageCompleter":
        completer = ImageCompleter.load_from_checkpoint(path, weights_only=True, map_location="cpu").eval()
        described = checkpoint["data"]
        data = getattr(vit.data, described["class_path"].rsplit(".", 1)[-1])(**described["init_args"])
        data.setup("fit")
        cell["completion"] = measure_completion(completer, data, images)
        cell["images"] = min(images, len(data.sets["test"].labels))
    else:
        raise ValueError(f"{path} is of a {kind or 'ViTClassifier'}: give checkpoints of readers and completers")
    return f"{facts['experiment']}, seed {facts['seed']}", cell


def report(cells: dict[str, Any]) -> str:
    """Return what was measured as tables."""
    parts = [HEAD]
    readers = {name: cell for name, cell in cells.items() if "reading" in cell}
    completers = {name: cell for name, cell in cells.items() if "completion" in cell}
    if readers:
        parts.append(f"Readers: {', '.join(readers)}.\n")
        for title, part in (("Exact texts", "reading"), ("Maps that peak on the digit", "peaks")):
            parts.append(f"## {title}\n\n{shares_table([*readers.values()], part)}\n")
        parts.append(f"## Exact texts without heads of one kind, %\n\n{pruning_table([*readers.values()])}\n")
    if completers:
        parts.append(f"## Images completed\n\n{completion_table(completers)}\n")
    if GENERATION in cells:
        parts.append(f"## Generation\n\n{generation_sentence(cells[GENERATION])}\n")
    origins = dict.fromkeys(made_at(cell["made"]) for cell in cells.values())
    return "\n".join([*parts, *origins]) + "\n"


def generation_sentence(cell: dict[str, Any]) -> str:
    """Return how much a cache saves, as a sentence."""
    ratios = ", and ".join(
        f"{row['times_as_fast']:.1f} times as fast by a decoder of {row['embed_dim']} channels and {row['depth']} "
        "blocks"
        for row in cell["rows"]
    )
    return (
        f"With the cache, {SEQUENCES} sequences of {LENGTH} tokens are written {ratios}; they are the same as without."
    )


def shares_table(cells: list[dict[str, Any]], part: str) -> str:
    """Return each share that a part of the cells has, in percent: mean and deviation over trainings."""
    what, share = {
        "reading": ("digits", "texts without a mistake, %"),
        "peaks": ("map", "steps that hit their digit, %"),
    }[part]
    rows = [
        {what: name, share: plus_minus([100 * cell[part][name] for cell in cells], ".1f")} for name in cells[0][part]
    ]
    return markdown_table(rows, right={share})


def pruning_table(cells: list[dict[str, Any]], shares: Sequence[float] = (0, 0.25, 0.5, 0.625, 0.75, 1)) -> str:
    """Return the accuracy after each share of the heads of a kind is removed, mean and deviation over trainings."""
    rows = []
    for curve in cells[0]["pruning"]:
        row = {"heads": curve}
        for share in shares:
            found = [curve_at(cell["pruning"][curve], share) for cell in cells]
            row[f"{100 * share:g} % removed"] = plus_minus([100 * accuracy for accuracy in found], ".1f")
        rows.append(row)
    return markdown_table(rows)


def curve_at(points: list[dict[str, Any]], share: float) -> float:
    """Return the accuracy after a share of the heads is removed, the number of heads rounded up."""
    removed = -(-share * (len(points) - 1) // 1)
    return points[int(removed)]["accuracy"]


def completion_table(cells: dict[str, Any]) -> str:
    """Return bits, the error of the middle and the probe of each block of each recipe, over seeds."""
    rows = []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells.values():
        groups.setdefault((cell["recipe"], cell["completion"]["objective"]), []).append(cell)
    for (recipe, objective), of_recipe in groups.items():
        found = [cell["completion"] for cell in of_recipe]
        rows.append(
            {
                "training": recipe,
                "seeds": ", ".join(str(cell["training"]["seed"]) for cell in of_recipe),
                "objective": objective,
                "steps": span([cell["training"]["steps"] for cell in of_recipe], ",.0f"),
                "seconds": span([cell["training"]["seconds"] for cell in of_recipe], ",.0f"),
                "bits per pixel": plus_minus([each["bits_per_pixel"] for each in found], ".3f"),
                **{name: f"{mean(each['baselines'][name] for each in found):.3f}" for name in found[0]["baselines"]},
                "error of the middle, of 255": plus_minus([each["middle"] for each in found], ".1f"),
                "linear probe of each block, %": ", ".join(
                    f"{100 * mean(of_block):.1f}" for of_block in zip(*(each["probes"] for each in found), strict=True)
                ),
            }
        )
    return markdown_table(rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure the checkpoints and write results and report."""
    parser = command_line(__doc__)
    parser.add_argument("checkpoints", type=Path, nargs="*", help="of readers and completers; none: time of generation")
    parser.add_argument("--images", type=int, default=2000, help="test images of each training")
    chosen = parser.parse_args(arguments)
    if not chosen.checkpoints:
        timed = {"recipe": GENERATION, "rows": [measure_generation(*size) for size in TIMED], "made": origin()}
        write_cell(chosen.output / "decoders.json", GENERATION, timed, report)
    for path in chosen.checkpoints:
        with torch.inference_mode(False):
            name, cell = experiment(path, chosen.images)
        write_cell(chosen.output / "decoders.json", name, cell, report)
        print(f"{name}: written", flush=True)


if __name__ == "__main__":
    main()
