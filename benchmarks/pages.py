"""The tables of measured numbers in README.md, docs/ and the model cards, generated from the JSON files of results.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. What is not measured has no row.

    python benchmarks/pages.py
"""

import argparse
import json
import math
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import claims
import decoders
import finetune
import glossary_tables
import heads
import kept_memory
import mixed_sizes
import plan
import pretraining
import scale
import shortcut
import token_merging
from accuracy import recipes, values, with_first_stages
from explanations import CROWDED, RECIPE, means, of_recipe
from inference import CLASS_TOKEN, ENGINES, OURS
from records import RESULTS, commit_of, mark_of, out_of_date, place, plus_minus, span, welch
from side_by_side import spread

from vit.explain.maps import CLASS_AGNOSTIC, CONTROLS
from vit.support.markdown import markdown_table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "vit/weights").glob("*.md")))
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
# What the tables show of accuracy.json, by a pattern of the recipe's name; all else is in RESULTS.md only.
TRAININGS = {
    "digits.*": "handwritten digits, half a minute",
    "cifar10_quick": "CIFAR-10, ten minutes",
    "timm ViT 96x6, torchvision loader.*": "timm's model, AdamW and torchvision's loader, ten minutes",
    "timm ViT 96x6, strongest.*": "timm's model, the strongest recipe found, ten minutes",
    "cifar10": "CIFAR-10, one hour",
    "cifar10_overlap": "CIFAR-10, one hour, overlapping patches at the end",
    "cifar10_night_overlap": "CIFAR-10, 2.4 hours, wider, overlapping at the end",
    "cifar10_showcase": "the packaged model, 1.5 hours",
}
ONLY_IN_RESULTS = TRAININGS["cifar10"]  # not in README: the hour with overlapping patches is better
# The recipes of the model that comes with the package: its first stage, and the second one, which starts from there.
PACKAGED = {
    "cifar10": "a grid of 8 x 8 patches side by side",
    "cifar10_showcase": "a grid of 16 x 16 patches that overlap",
}
OVERLAPPING = {"cifar10": "The model of one hour"}  # names of recipes in overlap.json
SERVED, SERVED_BATCH = "192x6-p4-32", 128  # the model of inference.json, and its larger batch
LONG = 4097  # tokens of an image in scale.json
WAYS_TO_RUN = ("eager", "compiled")
WAYS = ("fp32 eager", "bf16 eager", "fp32 compiled", "bf16 compiled")

READERS = "read_digits"  # recipe in decoders.json
TOKENS = ("64", "256", "16384")
# Columns of the tables of maps: patches removed, and places found.
REMOVED = ("removal area (tokens)", "removal area (pixels)", "SaCo", "ms per image")
FOUND = ("digit among digits, %", "mosaic quarter, %", "the same, trained on mosaics, %")
# Rows of TRAININGS that are compared with the ten-minute recipe, by what README calls them.
BASELINES = {
    TRAININGS["timm ViT 96x6, strongest.*"]: "the strongest recipe found for it",
    TRAININGS["timm ViT 96x6, torchvision loader.*"]: "AdamW and torchvision's loader",
}

Cells = list[dict[str, Any]]


def read(name: str) -> dict[str, Any]:
    """Return the contents of a file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def shown_commit(record: dict[str, Any]) -> str:
    """Return the commit of a result in words; "" if it is not known exactly. What is out of date is always marked.

    >>> shown_commit({"commit": "abc1234", "fingerprint": {}}), shown_commit({"commit": "abc1234-dirty"})
    ('commit abc1234', '(unchecked)')
    >>> shown_commit({"commit": "abc1234-dirty", "stale": "vit/model has changed"})
    '(out-of-date)'
    """
    commit = record.get("commit")
    if commit and not commit.endswith("-dirty"):
        return commit_of(record)
    return mark_of(record)


def measured(cells: Cells) -> str:
    """Return dates and commits of cells."""
    dates = sorted({cell["machine"]["date"] for cell in cells})
    commits = sorted({shown_commit(cell) for cell in cells} - {""})
    return joined([*dates, *commits])


def joined(facts: Iterable[str]) -> str:
    """Return facts in a row; a mark without a commit stands behind them, unless one of them has it.

    >>> joined(["2026-11-21", "(unchecked)"]), joined(["2026-11-24", "7ebeb4f (unchecked)", "(unchecked)"])
    ('2026-11-21 (unchecked)', '2026-11-24, 7ebeb4f (unchecked)')
    """
    text = ", ".join(fact for fact in facts if fact and not fact.startswith("("))
    marks = [fact for fact in facts if fact.startswith("(") and fact not in text]
    return " ".join([text, *marks])


def machines(cells: Cells) -> str:
    """Return the machines of cells, as a sentence below a table of dates."""
    return f"Measured on {'; '.join(dict.fromkeys(place(cell['machine']) for cell in cells))}."


def measured_on(cells: Cells) -> str:
    """Return machines, dates and commits of cells, as a sentence below their table. benchmarks/ has the commands."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        made = cell.get("made") or {"machine": place(cell["machine"]), "date": cell["machine"]["date"]}
        facts = found.setdefault(made["machine"], {})
        facts |= {made["date"]: None, shown_commit(cell.get("made", cell)): None}
    return f"Measured on {'; '.join(joined([machine, *facts]) for machine, facts in found.items())}."


def percent(cells: Cells, key: str) -> str:
    """Return mean and deviation of an accuracy over seeds, or "" where it was not measured."""
    found = values(cells, key, 100)
    return f"{plus_minus(found, '.1f')} %" if found else ""


def share(number: float) -> str:
    """Return a share of 1 in percent."""
    return f"{100 * number:.1f} %"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds as text.

    >>> milliseconds(0.0004), milliseconds(1.9821)
    ('0.40', '1,982')
    """
    return f"{1000 * seconds:,.{0 if seconds >= 0.01 else 2}f}"


def trainings() -> dict[str, Cells]:
    """Return a cell for each seed of each training in ``TRAININGS``."""
    groups = recipes(with_first_stages(read("accuracy"))).values()
    return {
        title: group
        for pattern, title in TRAININGS.items()
        for group in groups
        if re.fullmatch(pattern, group[0]["recipe"])
    }


def speedups(cells: dict[str, Any], row: str) -> dict[str, float]:
    """Return the speed of a row over that of the fastest other library, by precision and compilation."""
    return {
        " ".join(name.split()[2:4]): cell["rows"][row]["against_best_peer"][1]
        for name, cell in cells.items()
        if "against_best_peer" in cell["rows"].get(row, {})
    }


def throughputs() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the cells of each model size and mode."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for name, cell in read("throughput").items():
        size, mode = name.split()[:2]
        groups.setdefault((size, mode.replace("train", "training")), {})[name] = cell
    return groups


def results() -> str:
    """Return the table of README.md: each number, beside what it is compared with."""
    rows = {}
    for title, cells in trainings().items():
        if title not in BASELINES and title != ONLY_IN_RESULTS:
            rows[f"accuracy: {title}"] = scored(cells)
    for mode in ("training", "inference"):
        group = throughputs()["192x6-p4-32", mode]
        if found := speedups(group, "ours"):
            alone = [cell for cell in read("inference").values() if cell.get("batch") == SERVED_BATCH]
            alone = alone if mode == "inference" else []
            ratios = [*found.values(), *(plain_inference(SERVED_BATCH) if alone else [])]
            plain = f"speed: {mode}" + ", not optimised" * (mode == "inference")
            rows[plain] = f"{span(ratios, '.2f')}{out_of_date([*group.values(), *alone])}"
    cell = read("scale")[f"tokens {LONG} inference bf16"]
    lead = cell["rows"]["ours"]["against_best_peer"][1]
    rows[f"speed: one image of {LONG:,} tokens, 2 layers, bf16"] = f"{lead:.2f}{out_of_date([cell])}"
    for row in optimised():
        cells = [read("inference")[f"{row['base']} batch 128"]]
        ratios = f"{row['beside the best eager']} eager, {row['beside the best compiled']} compiled"
        base = f", theirs in {row['base']}" * (row["base"] != row["dtype"])
        if row["model"] == OURS:
            rows[f"speed: vit.optimize in {row['dtype']}{base}"] = f"{ratios}{out_of_date(cells)}"
        elif row["dtype"] == "fp32":  # docs/results.md has the others
            rows["speed: the same, last layer for the class token alone"] = f"{ratios}{out_of_date(cells)}"
    return markdown_table([{"measured": what, "result": result} for what, result in rows.items()])


def scored(cells: Cells) -> str:
    """Return the test accuracy of a training, with its number of seeds."""
    return f"{percent(cells, 'test_accuracy')}, {len(cells)} seed{'s' * (len(cells) > 1)}{out_of_date(cells)}"


def baselines() -> list[str]:
    """Return the test accuracy of timm's ViT in ten minutes by each current recipe, and how it compares with ours."""
    return [
        f"[{percent(cells, 'test_accuracy')}](docs/results.md#accuracy) with {name} ({verdict(lead_over(cells))})"
        for name, cells in current_baselines().items()
    ]


def verdict(lead: str) -> str:
    """Return what the interval of a lead says.

    >>> verdict("+0.6 (-0.6 to +1.8)"), verdict("+18.0 (+15.7 to +20.3)"), verdict("-2.0 (-3.0 to -1.0)")
    ('no clear difference', 'ours is better', 'ours is worse')
    """
    low, high = re.findall(r"[+-]", lead.partition("(")[2])
    return {("+", "+"): "ours is better", ("-", "-"): "ours is worse"}.get((low, high), "no clear difference")


def lead_over(cells: Cells) -> str:
    """Return how much more accurate the ten-minute recipe is than other trainings, in points, with its interval."""
    ours = values(trainings()[TRAININGS["cifar10_quick"]], "test_accuracy", 100)
    return welch(ours, values(cells, "test_accuracy", 100))


def current_baselines() -> dict[str, Cells]:
    """Return the trainings of timm's ViT that are up to date, by recipe; others had other machines."""
    found = {name: trainings().get(title, []) for title, name in BASELINES.items()}
    return {name: cells for name, cells in found.items() if cells and not out_of_date(cells)}


def highlights() -> str:
    """Return what README.md says first of accuracy, speed and maps, as a list."""
    quick = trainings()[TRAININGS["cifar10_quick"]]
    (fast,) = (row for row in optimised() if (row["dtype"], row["model"]) == ("fp32", OURS))
    (maps_of_packaged,) = of_recipe(read("explanations"), [*PACKAGED][-1])
    drop = {row["method"]: row["drop"] for row in maps_of_packaged["photographs"]}
    control = max(drop.keys() & {*CONTROLS}, key=lambda method: drop[method][0])
    speed = read("inference")["fp32 batch 128"]
    ratios = " to ".join(fast[f"beside the best {way}"] for way in WAYS_TO_RUN)
    at_least = math.floor(10 * min(map(float, ratios.split(" to ")))) / 10
    lines = (
        f"**It learns**: ten minutes on two CPU cores reach {percent(quick, 'test_accuracy')} on CIFAR-10 ([JPEG "
        f"copy](docs/results.md#the-data)). timm's model of the same size reaches {', and '.join(baselines())}.",
        f"**One call makes it fast on a CPU**: `vit.optimize` runs batches of {speed['batch']} at least {at_least} "
        f"times as fast as the fastest of four libraries, eager or compiled (fp32{out_of_date([speed])}). The engine "
        "is OpenVINO, which makes timm's model as fast. Without `vit.optimize`, [single "
        f"images](docs/results.md#fast-inference) run at {span(plain_inference(1), '.2f')} times the speed of the "
        "fastest.",
        "**Its maps are tested**: remove the patches that a map marks, and the probability of the class should fall; "
        "remove the others, and it should stay. The [removal "
        "area](docs/trust.md#removal-area-the-measure-of-these-pages) is the difference: "
        f"{with_interval(drop['gradcam'])} for `gradcam`, {with_interval(drop['relevance'])} for `relevance`, "
        f"{with_interval(drop[control])} for the best control, {with_interval(drop['rollout'])} for `rollout` "
        f"(packaged model, {maps_of_packaged['images']} images, 95 % intervals{out_of_date([maps_of_packaged])}).",
    )
    return "\n".join(_wrapped(f"- {line}") for line in lines)


def _wrapped(item: str) -> str:
    """Return an item of a list in lines of at most 120 characters."""
    return textwrap.fill(item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def with_interval(numbers: Sequence[float]) -> str:
    """Return a number and its interval.

    >>> with_interval([0.324, 0.248, 0.4])
    '0.32 (0.25 to 0.40)'
    """
    value, low, high = (f"{number:z.2f}" for number in numbers)
    return f"{value} ({low} to {high})"


def plain_inference(batch: int) -> list[float]:
    """Return the speed of our eager model over the best library, eager and compiled, each in its process."""
    cells = [cell for cell in read("inference").values() if cell.get("batch") == batch]
    return [
        row[f"against_best_{way}"]
        for cell in cells
        for who, row in cell["rows"].items()
        if who.startswith("ours, eager")
        for way in WAYS_TO_RUN
    ]


def accuracy() -> str:
    """Return the test accuracy of each training, and how far it is above timm's."""
    rows = [
        {
            "training": title,
            "test accuracy": percent(cells, "test_accuracy"),
            "with the mirror image": percent(cells, "test_accuracy_views"),
            "seeds": ", ".join(str(cell["seed"]) for cell in cells),
            "CPU (two cores)": ", ".join(dict.fromkeys(processor(cell) for cell in cells)),
            "date": measured(cells),
        }
        for title, cells in trainings().items()
    ]
    return f"{markdown_table(rows)}\n\n{against_timm()}"


def processor(cell: dict[str, Any]) -> str:
    """Return the processor of a cell's machine in short."""
    return cell["machine"]["processor"].replace("(R)", "").removesuffix(" Processor")


def computation() -> str:
    """Return what each training computes."""
    rows = [
        {
            "training": title,
            "parameters": f"{cells[0]['parameters']:,}",
            "seconds": span(values(cells, "seconds"), ",.0f"),
            "epochs": span(values(cells, "epochs"), ".0f"),
            "petaFLOP": span(values(cells, "petaflop"), "#.2g"),
        }
        for title, cells in trainings().items()
    ]
    return f"{markdown_table(rows)}\n\n{machines([cells[0] for cells in trainings().values()])}"


def against_timm() -> str:
    """Return how much more accurate the ten-minute recipe is than timm's ViT in as many minutes, as a sentence."""
    differences = [f"{lead_over(cells)} points by {name}" for name, cells in current_baselines().items()]
    text = (
        f"Our accuracy minus that of timm's model, both after ten minutes: {', '.join(differences)} (95 %, Welch's t)."
    )
    return text if differences else ""


def speed() -> str:
    """Return the speed over that of the fastest other library, with every token computed."""
    rows = []
    for (size, mode), group in throughputs().items():
        if found := speedups(group, "ours"):
            rows.append({"model": size, "mode": mode} | {way: shown_ratio(found, way) for way in WAYS})
    cells = read("throughput")
    small = [cell for name, cell in cells.items() if name.startswith(SERVED)]
    large = [cell for name, cell in cells.items() if not name.startswith(SERVED)]
    note = f"{SERVED}: {measured_on(small)} The others: {measured_on(large)}"
    return f"{markdown_table(rows)}\n\n{note}"


def shown_ratio(found: dict[str, float], way: str) -> str:
    """Return a ratio as text, or that it was not measured."""
    return f"{found[way]:.2f}" if way in found else "not measured"


def optimised() -> list[dict[str, Any]]:
    """Return the rows of ``vit.optimize`` for batches of 128, the faster engine of each type, and of which tokens."""
    rows = []
    for base, dtypes in {"fp32": ["fp32"], "bf16": ["bf16", "int8"]}.items():
        measured_rows = read("inference").get(f"{base} batch 128", {"rows": {}})["rows"]
        for dtype, model in product(dtypes, (OURS, CLASS_TOKEN)):
            names = [f"{model}, {engine} {dtype}" for engine in ENGINES]
            ours = [measured_rows[name] for name in names if "failed" not in measured_rows.get(name, {"failed": ""})]
            if ours:
                best = min(ours, key=lambda row: row["milliseconds"][1])
                rows.append({"base": base, "dtype": dtype, "model": model})
                for way in WAYS_TO_RUN:
                    ratios = [best[f"against_best_{way}"], *in_one_process(best, f"{base} batch 128", way)]
                    rows[-1][f"beside the best {way}"] = span(ratios, ".2f")
    return rows


def in_one_process(ours: dict[str, Any], part: str, way: str) -> list[float]:
    """Return how many times as fast a program is as the best library in throughput.json, with as many images at a time.

    Some libraries are faster there, in one process, than in inference.json, where each has a process of its own.
    """
    base, _, batch = part.split()
    return [
        cell["batch"]
        / max(row["images_per_second"][1] for row in peers_of(cell).values())
        * 1000
        / ours["milliseconds"][1]
        for name, cell in read("throughput").items()
        if name.startswith(f"{SERVED} inference {base} {way}")
        and cell["batch"] == int(batch)
        and not out_of_date([cell])
    ]


def peers_of(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of other libraries in a cell of throughput.json."""
    rows = cell["rows"].items()
    return {who: row for who, row in rows if not who.startswith("ours") and "images_per_second" in row}


def inference() -> str:
    """Return the time of ``vit.optimize`` beside the libraries, and the accuracy of the packaged model."""
    cells, parts = read("inference"), []
    for batch in (SERVED_BATCH, 1):
        images = "One image" if batch == 1 else f"{batch} images"
        rows = [row for base in ("fp32", "bf16") for row in programs(cells[f"{base} batch {batch}"], base)]
        parts += [f"{images} at a time:", markdown_table(rows, right=[*rows[0]][1:])]
    accuracy = ", ".join(f"{name} {100 * row['accuracy']:.2f} %" for name, row in cells["accuracy"]["rows"].items())
    said = f"The packaged model on {cells['accuracy']['images']:,} test images: {accuracy}."
    return "\n\n".join([*parts, f"{beside_one_process()} {said} {measured_on([*cells.values()])}"])


def kept() -> str:
    """Return the time of inference with memory that is kept."""
    results = read("kept_memory")
    note = (
        f"Medians and quartiles of {results['rounds']} rounds. The models of a process run one after the other, ours "
        "first, and what ran before decides how much memory is cleared: between libraries, compare the times with kept "
        "memory. 192x6-p4-32: 192 channels, 6 blocks, patches of 4, images of 32 pixels; S16-224: ViT-S/16, images of "
        "224 pixels."
    )
    return f"{kept_memory.table(results)}\n\n{note} {measured_on([results])}"


def sizes() -> str:
    """Return where ours is slower than other libraries as images and batches grow."""
    cells = read("scale")
    rows = cells[f"tokens {LONG} inference bf16"]["rows"]
    fastest = min((name for name in rows if name != "ours"), key=lambda name: rows[name]["seconds"])
    ours, other = (
        f"{1e3 * rows[name]['seconds']:.0f} ms and {rows[name]['bytes'] / 2**20:.0f} MiB" for name in ("ours", fastest)
    )
    long = f"In bfloat16, an image of {LONG:,} tokens takes {ours}; in {fastest}, the fastest of the others, {other}."
    return f"{long} {scale.slower(cells)} {measured_on([*cells.values()])}"


def programs(cell: dict[str, Any], base: str) -> list[dict[str, str]]:
    """Return a row for each of our programs in a cell of inference.json."""
    return [
        {
            "program": candidate.removeprefix("ours, ") + f" {base}" * (candidate == "ours, eager"),
            "milliseconds": spread(row["milliseconds"], ".1f"),
            **{f"times the best {way}": f"{row[f'against_best_{way}']:.2f}" for way in WAYS_TO_RUN},
            "times timm in OpenVINO": f"{row['against_best_openvino']:.2f}",
        }
        for candidate, row in cell["rows"].items()
        if candidate.startswith("ours")
    ]


def beside_one_process() -> str:
    """Return how much faster the programs are than libraries that share a process, as a sentence.

    Our eager model ran in a process of its own: its time is not comparable with those.
    """
    found = []
    for base in ("fp32", "bf16"):
        name = f"{base} batch {SERVED_BATCH}"
        for candidate, row in read("inference")[name]["rows"].items():
            ratios = [
                span(in_one_process(row, name, way), ".2f") for way in WAYS_TO_RUN if in_one_process(row, name, way)
            ]
            if candidate.startswith("ours") and not candidate.startswith("ours, eager") and ratios:
                found.append(f"{candidate.removeprefix('ours, ')} {' and '.join(ratios)}")
    return f"Beside libraries that share one process, {SERVED_BATCH} images, eager and compiled: {', '.join(found)}."


def loading() -> str:
    """Return the speed of the data path, and of training through Lightning."""
    rows, cells = [], read("pipeline") | read("overhead")
    for name, cell in cells.items():
        rates = {who: row["images_per_second"][1] for who, row in cell["rows"].items()}
        ours = [who for who in rates if who.startswith(("ours", "Lightning"))]
        for each in ours:
            alike = [who for who in rates.keys() - ours if ("compiled" in who) == ("compiled" in each)]
            best = max(alike, key=rates.get)
            rows.append(
                {
                    "measured": f"{name.rsplit(' ', 1)[0]}: {each}",
                    "images per second": f"{rates[each]:,.0f}",
                    "compared with": best,
                    "its images per second": f"{rates[best]:,.0f}",
                    "times as fast": f"{cell['rows'][each]['against_best_peer'][1]:.2f}",
                    "date": measured([cell]),
                }
            )
    return f"{markdown_table(rows)}\n\n{machines([*cells.values()])}"


def mechanisms() -> str:
    """Return time and memory of all attention mechanisms."""
    found = read("attention")
    rows = []
    for name in found["training"]:
        costs = {tokens: cost[name] for tokens, cost in found["cost"].items()}
        times = {
            tokens: "too much" if cost is None else milliseconds(cost["seconds"]["forward and backward"])
            for tokens, cost in costs.items()
        }
        longest = costs["16384"]
        rows.append(
            {
                "mechanism": f"`{name}`",
                **{f"{int(tokens):,} tokens, ms": times[tokens] for tokens in TOKENS},
                "memory at 16,384, MB": "too much"
                if longest is None
                else f"{longest['bytes']['forward and backward'] / 1e6:,.0f}",
            }
        )
    note = (
        "One layer of 64 channels and 2 heads in float32, forward and backward, with its default options. "
        f"{measured_on([found])}"
    )
    return f"{markdown_table(rows)}\n\n{note}"


def map_columns() -> dict[str, tuple[Cells, str, str, str, int]]:
    """Return trainings, part, measure, form and unit of each column of the two tables of maps."""
    cells = read("explanations")
    trained, crowded = (of_recipe(cells, recipe) for recipe in (RECIPE, CROWDED))
    parts = [(trained, "photographs", name, ".3f", 1) for name in ("drop", "fill", "SaCo")]
    parts += [(trained, "photographs", "ms", ".1f", 1)]
    parts += [(crowded, "planted", "hits", ".1f", 100), (trained, "mosaics", "hits", ".1f", 100)]
    taught = [cell for cell in trained if "trained on mosaics" in cell]
    parts += [(taught, "trained on mosaics", "hits", ".1f", 100)]
    return dict(zip((*REMOVED, *FOUND), parts, strict=True))


def table_of_maps(names: Sequence[str]) -> str:
    """Return columns of scores for each kind of map, the best in the first column first and the controls last."""
    columns = {name: part for name, part in map_columns().items() if name in names}
    found = {name: means(group, part, measure) for name, (group, part, measure, _, _) in columns.items()}
    first = found[names[0]]
    rows = []
    for method in sorted(first, key=lambda method: (method in CONTROLS, -statistics.mean(first[method]))):
        kind = " (control)" if method in CONTROLS else " (any class)" * (method in CLASS_AGNOSTIC)
        row = {"method": f"`{method}`{kind}"}
        for name, (*_, form, times) in columns.items():
            if found[name]:
                row[name] = plus_minus([times * number for number in found[name].get(method, [])], form)
        rows.append(row)
    return markdown_table(rows)


def maps() -> str:
    """Return the scores of maps where patches are removed from photographs."""
    trained = map_columns()[REMOVED[0]][0]
    sizes = f"{trained[0]['images']} photographs, {len(trained)} trainings, ± is their standard deviation. "
    sizes += "`attention` is timed first, with checks that later maps share."
    return f"{table_of_maps(REMOVED)}\n\n{sizes} {how_accurate(trained, 'photographs')} {measured_on(trained)}"


def maps_found() -> str:
    """Return the scores of maps where the place of what is asked about is known."""
    crowded, mosaics, _ = (map_columns()[name][0] for name in FOUND)
    images = "digits among digits"
    note = (
        f"{span(values(crowded, 'images'), '.0f')} {images}, {len(crowded)} trainings. {how_accurate(crowded, images)} "
    )
    note += f"{mosaics[0]['images']} mosaics, {len(mosaics)} trainings."
    return f"{table_of_maps(FOUND)}\n\n{note} {measured_on([*crowded, *mosaics])}"


# The question that a map is asked, the maps to take, and the part and the measure of explanations.json that decide it.
QUESTIONS = (
    (
        "Which patches does the prediction rest on? (without a patent; a pass for each patch)",
        ("token_drop", "occlusion"),
        "drop",
    ),
    ("The same, quickly (one backward pass)", ("attnlrp", "relevance"), "drop"),
    ("Are the values right, and not only their order?", ("occlusion", "token_drop"), "SaCo"),
    ("Where is the only object that matters, among others?", ("attnlrp", "token_drop", "value_rollout"), "hits"),
    ("Where is the photograph that I ask about?", ("token_drop", "attnlrp", "occlusion"), "mosaics"),
    ("Where does information flow?", ("rollout", "value_rollout"), "flow"),
)
PLACES = {
    "drop": (RECIPE, "photographs", "drop", "removal area (tokens)", "{:.2f}".format),
    "SaCo": (RECIPE, "photographs", "SaCo", "SaCo", "{:.2f}".format),
    "hits": (CROWDED, "planted", "hits", "digits among digits hit", share),
    "mosaics": (RECIPE, "trained on mosaics", "hits", "quarters of mosaics hit, after training on them", share),
    "flow": (CROWDED, "flow", "flow", "rank correlation with the effect of noise in a token", "{:.2f}".format),
}


def questions() -> str:
    """Return which map to take for which question, beside rollout and the best control."""
    rows = []
    for question, methods, decides in QUESTIONS:
        recipe, part, measure, title, shown = PLACES[decides]
        found = means(of_recipe(read("explanations"), recipe), part, measure)
        scores = {name: statistics.mean(numbers) for name, numbers in found.items() if numbers}
        control = max((name for name in scores if name in CONTROLS), key=lambda name: scores[name])
        best_first = sorted(methods, key=lambda name: -scores[name])
        texts = [f"`{name}`{' (any class)' * (name in CLASS_AGNOSTIC)} {shown(scores[name])}" for name in best_first]
        rows.append({"question": question, "measured by": title, "take": ", ".join(texts)})
        rows[-1] |= {"rollout": shown(scores["rollout"]), "best control": f"`{control}` {shown(scores[control])}"}
    return markdown_table(rows)


def how_accurate(cells: Cells, images: str) -> str:
    """Return how many of its images and, if known, of all test images the trainings classify correctly."""
    here = f"{plus_minus([100 * cell['accuracy'] for cell in cells], '.1f')} % of these {images}"
    whole = percent([cell.get("training", {}) for cell in cells], "test_accuracy")
    who = "The trainings classify" if len(cells) > 1 else "The model classifies"
    return f"{who} {here}" + f" and {whole} of all test images" * bool(whole) + " correctly."


def packaged() -> str:
    """Return the two trainings of the model that comes with the package."""
    rows, cells = [], []
    for recipe, title in PACKAGED.items():
        (cell,) = recipes(read("accuracy"))[f"{recipe}, cpu"]
        cells.append(cell)
        facts = {
            "training": title,
            "test accuracy": share(cell["test_accuracy"]),
            "with the mirror image": share(cell["test_accuracy_views"]),
            "parameters": f"{cell['parameters']:,}",
            "minutes": f"{cell['seconds'] / 60:.0f}",
            "epochs": f"{cell['epochs']:.0f}",
            "petaFLOP": f"{cell['petaflop']:#.2g}",
            "date": measured([cell]),
        }
        rows.append(facts)
    return f"{markdown_table(rows)}\n\n{machines(cells)}"


def packaged_maps() -> str:
    """Return the scores of maps of the model that comes with the package."""
    (cell,) = of_recipe(read("explanations"), [*PACKAGED][-1])
    columns = {"removal area (tokens)": "drop", "removal area (pixels)": "fill"}
    rows = [
        {"method": f"`{row['method']}`" + " (control)" * (row["method"] in CONTROLS)}
        | {name: "{:.3f} ({:.3f} to {:.3f})".format(*row[measure]) for name, measure in columns.items()}
        for row in sorted(cell["photographs"], key=lambda row: -row["drop"][0])
    ]
    note = f"{cell['images']} test images; mean and 95 % interval. "
    note += how_accurate([cell], "images")
    return f"{markdown_table(rows)}\n\n{note} {measured_on([cell])}"


def overlapping() -> str:
    """Return the accuracy of models with overlapping patches, without further training, in sentences."""
    cells = read("overlap")
    said = [
        f"{OVERLAPPING.get(cell['recipe'], cell['recipe'])}, seed {cell['seed']}: "
        + ", ".join(
            "{:.2f} % with a grid of {} x {} patches".format(100 * row["accuracy"], *row["grid"])
            for row in cell["rows"]
        )
        for cell in cells.values()
    ]
    return f"{'; '.join(said)}. {measured_on([*cells.values()])}"


def fine_tuned() -> str:
    """Return the accuracy after fine-tuning on few images, and from scratch."""
    cells = read("finetune")
    seeds = ", ".join(str(seed) for seed in sorted({cell["seed"] for cell in cells.values()}))
    return f"{finetune.table(cells)}\n\n5,000 test images; seeds {seeds}. {measured_on([*cells.values()])}"


def without_labels() -> str:
    """Return what learning without labels is worth, beside training from scratch in equal time."""
    cells = read("pretraining")
    tried = [cell for cell in cells.values() if cell["row"] == "chosen from"]
    seeds: dict[str, list[str]] = {}
    for cell in cells.values():
        if "seed" in cell:
            seeds.setdefault(pretraining.NAMES.get(cell["row"], cell["row"]), []).append(str(cell["seed"]))
    listed = "; ".join(f"{row} {', '.join(dict.fromkeys(of_row))}" for row, of_row in seeds.items())
    epochs = span([cell["epochs"] for cell in tried], "d")
    note = (
        f"Test accuracy, %; a row takes {tried[0]['minutes']:g} minutes at most; seeds: {listed}. From scratch: the "
        f"best of {len(tried)} trainings of {epochs} epochs, with or without RandAugment, by other training images; "
        f"fine-tunings are chosen likewise. {lead_of_pretraining(cells)}"
    )
    return f"{pretraining.table(cells)}\n\n{note} {measured_on([*cells.values()])}"


def lead_of_pretraining(cells: dict[str, dict[str, Any]]) -> str:
    """Return how much more accurate fine-tuning is than training from scratch, for each objective and share."""
    accuracies: dict[tuple[str, float], list[float]] = {}
    for cell in cells.values():
        if "training" in cell and "seed" in cell:
            accuracies.setdefault((cell["row"], cell["share"]), []).append(100 * cell["training"]["test_accuracy"])
    leads = [
        f"{pretraining.NAMES[row]}, {pretraining.label_of(share)}: "
        f"{welch(found, accuracies['from scratch', share])} points{' in one seed' * (len(found) == 1)}"
        for (row, share), found in accuracies.items()
        if row in pretraining.OBJECTIVES
    ]
    return f"Fine-tuned minus from scratch (95 %, Welch): {'; '.join(leads)}."


def marked_horses() -> str:
    """Return what a model that learned a square in place of horses is worth, and one that saw it on both classes."""
    cells = read("shortcut")
    seeds = ", ".join(str(seed) for seed in sorted({cell["seed"] for cell in cells.values()}))
    note = (
        f"Accuracy on {2 * shortcut.COUNT} other images, {shortcut.COUNT} of each class. Last column: share of the "
        f"horses with the square whose brightest patch lies on it. Seeds {seeds}."
    )
    return f"{shortcut.table(cells)}\n\n{note} {measured_on([*cells.values()])}"


def other_heads() -> str:
    """Return how accurate models trained with other heads are, beside the reference under the same seeds."""
    trained = [cell for cell in read("heads").values() if "budget" in cell]
    rows = []
    for names in heads.GROUPS.values():
        for row in heads.trained_rows(names, trained, {}):
            if row["model"] in names and row["model"] != heads.REFERENCE:
                kept = ("model", "test accuracy, %", "difference", "95 % interval", "changed by")
                rows.append({column: row[column] for column in kept})
    seeds = ", ".join(dict.fromkeys(str(cell["seed"]) for cell in trained))
    note = f"10,000 test images; seeds {seeds}; the interval is that of the mean difference, in points."
    return f"{markdown_table(rows)}\n\n{note} {measured_on(trained)}"


def pruned_heads() -> str:
    """Return the accuracy of the model with the most heads, pruned to fewer."""
    trained = [cell for cell in read("heads").values() if "budget" in cell]
    steps = max(cell["budget"] for cell in trained)
    cells = [cell for cell in trained if cell["budget"] == steps and "pruned" in cell]
    if not cells:
        return "Not measured yet."
    return f"{heads.halved_sentence(cells)} {heads.pruned_note(cells)} {measured_on(cells)}"


def of_decoders(part: str, recipe: str) -> tuple[dict[str, Any], str]:
    """Return the trainings of a recipe that have a part in decoders.json, and a sentence on their origin."""
    cells = {
        name: cell for name, cell in read("decoders").items() if part in cell and re.fullmatch(recipe, cell["recipe"])
    }
    seeds = ", ".join(dict.fromkeys(str(cell["training"]["seed"]) for cell in cells.values()))
    images = " or ".join(f"{count:,}" for count in sorted({cell["images"] for cell in cells.values()}))
    return cells, f"{images} test images; seeds {seeds}. {measured_on([*cells.values()])}"


def below_reading(table: str, origin: str) -> str:
    """Return a table of the page that has the table of reading first, with its origin only where it is another one."""
    return table if origin == of_decoders("reading", READERS)[1] else f"{table}\n\n{origin}"


def reading() -> str:
    """Return the share of texts that are read without a mistake."""
    cells, origin = of_decoders("reading", READERS)
    return f"{decoders.shares_table([*cells.values()], 'reading')}\n\n{origin}"


def generation() -> str:
    """Return how much faster generation is with a cache."""
    cell = read("decoders")[decoders.GENERATION]
    return f"{decoders.generation_sentence(cell)} {measured_on([cell])}"


def peaks() -> str:
    """Return the share of letters on which the attention peaks."""
    cells, origin = of_decoders("peaks", READERS)
    return below_reading(decoders.shares_table([*cells.values()], "peaks"), origin)


def pruned() -> str:
    """Return the share of exact texts as the heads of each kind are removed."""
    cells, origin = of_decoders("pruning", READERS)
    return below_reading(decoders.pruning_table([*cells.values()], shares=(0.25, 0.5, 0.75)), origin)


def many_sizes() -> str:
    """Return the time of batches of many sizes."""
    results = read("mixed_sizes")
    note = f"Time of {mixed_sizes.IMAGES} images, as a multiple of that of `forward_mixed`."
    return f"{mixed_sizes.table(results)}\n\n{note} {measured_on([results])}"


def merged_tokens() -> str:
    """Return accuracy and time of the packaged model as it merges tokens."""
    results = read("token_merging")
    note = f"{results['images']:,} test images; time of {token_merging.BATCH} images, where 1 is that without merging."
    return f"{token_merging.table(results)}\n\n{note} {measured_on([results])}"


def planned_memory() -> str:
    """Return how far the planned memory of trainings is from the measured one, as a sentence."""
    cell = read("plan")["memory"]
    off, of_tracker = (
        [100 * (row[name] / row["measured"] - 1) for row in cell["rows"]] for name in ("planned", "tracked")
    )
    return (
        f"On a CPU, the planned memory of {len(off)} trainings is between {min(off):+.1f} and {max(off):+.1f} % off "
        "the [measured one](../benchmarks/results/plan.md). PyTorch's own MemTracker, which runs the steps, is between "
        f"{min(of_tracker):+.1f} and {max(of_tracker):+.1f} % off. {measured_on([cell])}"
    )


def planned_steps() -> str:
    """Return what the steps from a laptop to a cluster take, as computed."""
    cell = read("plan")["steps"]
    facts = ("Computed", cell["made"]["date"], shown_commit(cell["made"]))
    return f"{plan.steps_table(cell)}\n\n{joined(facts)}."


TABLES: dict[str, Callable[[], str]] = (
    {
        table.__name__: table
        for table in (
            *(highlights, results, accuracy, computation, speed, sizes, inference, kept, loading),
            *(mechanisms, maps, maps_found, questions),
            *(
                packaged,
                packaged_maps,
                overlapping,
                fine_tuned,
                marked_horses,
                without_labels,
                other_heads,
                pruned_heads,
            ),
            *(reading, generation, peaks, pruned, many_sizes, merged_tokens),
            *(planned_memory, planned_steps),
            *(glossary_tables.glossary, glossary_tables.methods, glossary_tables.kinds),
        )
    }
    | {"claims": claims.overview}
    | {f"claims_{name}": partial(claims.of_section, name) for name in claims.CLAIMS}
)


def filled(page: str) -> str:
    """Return a page with its tables made anew.

    Raises:
        ValueError: If a page asks for a table that does not exist, or a table has no end of its own.
    """
    for found in TABLE.finditer(page):
        if "<!-- table:" in found[0].removeprefix(found[1]):
            raise ValueError(f"table {found[2]} has no <!-- end --> before the next table: add it")
    if page.count("<!-- table: ") != len(TABLE.findall(page)):
        raise ValueError("the last table of the page has no <!-- end -->: add it")
    if unknown := {name for _, name in TABLE.findall(page)} - TABLES.keys():
        raise ValueError(f"no table {unknown.pop()!r}: choose one of {', '.join(TABLES)}")
    return TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n", page)


def main() -> None:
    """Write the tables into the pages."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for path in PAGES:
        path.write_text(filled(path.read_text()))


if __name__ == "__main__":
    main()
