"""The parts of the stated numbers: what measures each, how long it takes, and what its fingerprint is made of.

A new part is one entry of PARTS. In its commands, {data} is the folder of CIFAR-10's images, and {last:RECIPE} are the
checkpoints of the trainings that the part names in ``trains``.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cell = dict[str, Any]

IMAGES = "--data ImageFolder --data.root {data}"
# Options of a recorded command that change neither the model nor its first steps on fixed images.
NOT_IN_LINE = ("seed_everything", "experiment", "data", "data.root", "data.skip_damaged", "data.val_fraction")
NOT_IN_LINE += ("trainer.default_root_dir", "trainer.limit_val_batches", "trainer.limit_test_batches")
NOT_IN_LINE += ("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "ckpt_path")

ATTENTION = ("vit/attention/**/*.py",)
LOADING = tuple(f"vit/data/{name}.py" for name in ("loader", "sampler", "augment", "crops", "operations", "policies"))
CALLBACKS = tuple(f"vit/training/{name}.py" for name in ("seeded_steps", "stop_at_nan", "progress_display"))
STEP = tuple(f"vit/training/{name}.py" for name in ("objective", "ema", "muon", "optimizer", "schedule")) + CALLBACKS
RESUMED = tuple(f"vit/runs/{name}.py" for name in ("checkpoints", "folders", "preemption", "record", "restarts"))
RESUMED += ("vit/support/files.py", *CALLBACKS)
# The functions of claims_cost.py that measure.
MEASURED_COST = ("measure", "one_pass", "of_heads", "costs", "affordable")
DECODER = (*ATTENTION, *(f"vit/model/{name}.py" for name in ("decoder", "decoder_block", "generation")))
FORMATS = ("vit/weights/**/*.py",)
PACKAGED = ("vit/weights/cifar10.safetensors",)


def typed(cell: Cell) -> str:
    """Return what a training was, by its recorded command without seed, data and length.

    >>> typed({"command": "python train.py fit --config configs/digits.yaml --seed_everything 6 --model.depth 2"})
    '--config configs/digits.yaml --model.depth 2'
    """
    command = shlex.split(cell.get("training", cell)["command"])  # by train.py or vit-attention
    words = iter(command[command.index("fit") + 1 :])
    kept = []
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        both = [word] if equals else [word, value := next(words)]
        if name not in NOT_IN_LINE and not (name == "model.init_from" and value.startswith("runs/")):
            kept += both
    return shlex.join(kept)


def of_recipe(cell: Cell) -> str:
    """Return the training of a cell that names its recipe."""
    return f"--config configs/{cell['recipe']}.yaml"


def always(line: str) -> Callable[[Cell], str]:
    """Return the same training for every cell."""
    return lambda _: line


def of_claim(cell: Cell) -> str:
    """Return the experiment of claims.py that a cell is of, and its setting.

    >>> of_claim({"command": "python benchmarks/claims.py heads", "setting": "8 heads"})
    "claims.py heads '8 heads'"
    """
    return shlex.join(["claims.py", cell["command"].split()[-1], cell["setting"]])


def of_pretraining(cell: Cell) -> str:
    """Return the training without labels of a cell, or that from labels if it has no other.

    >>> of_pretraining({"row": "mae", "pretraining": {"command": "python train.py fit --config configs/mae.yaml"}})
    '--config configs/mae.yaml'
    """
    if cell["row"] == "untrained":
        return "--config configs/cifar10_quick.yaml"
    return typed(cell.get("pretraining", cell))


@dataclass(frozen=True)
class Part:
    """A part of the stated numbers.

    Args:
        measures: What it measures, in a few words.
        file: Name of the JSON file of results that it writes.
        minutes: How long it takes on two cores, about.
        commands: What is run, in this order: a script of this folder and its options.
        cells: Pattern of the names of its cells in the file.
        training: The training that a cell is about; None if it is about none.
        sources: Patterns of the files that a cell is about.
        operations: Passes whose operations a cell is about, by their names in traced_operations.py.
        map_scores: Small models whose maps and scores stand for those of a cell, by their names in map_scores.py.
        trains: Trainings to run first, whose checkpoints the commands take: what follows ``python train.py fit``.
    """

    measures: str
    file: str
    minutes: int
    commands: tuple[str, ...]
    cells: str = ".*"
    training: Callable[[Cell], str] | None = None
    sources: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    map_scores: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()


def seeds(count: int, words: str) -> tuple[str, ...]:
    """Return a training for each of the first seeds."""
    return tuple(f"{words} --seed_everything {seed}" for seed in range(count))


def accuracy_of(recipe: str, minutes: int, options: str = "", trains: tuple[str, ...] = ()) -> Part:
    """Return the accuracy of a recipe over seeds."""
    command = f"accuracy.py configs/{recipe}.yaml {options}".strip()
    return Part(f"test accuracy of {recipe}", "accuracy", minutes, (command,), f"{recipe},.*", typed, trains=trains)


# Parts of commands and of trainings.
OBJECTIVES = ("mae", "sigreg", "dino")  # without labels
DATA = "--data {data}"
QUICK, DIGITS = "--config configs/cifar10_quick.yaml", "--config configs/digits.yaml"
HOUR = f"--config configs/cifar10.yaml {IMAGES}"
FROM_HOUR = "--model.init_from {last:cifar10}"
FIRST = "--experiment cifar10_45_minutes --trainer.max_time 00:00:45:00"
FROM_FIRST = "--model.init_from {last:cifar10_45_minutes}"
NIGHT = f"--config configs/cifar10_night.yaml {IMAGES}"
FROM_NIGHT = "--model.init_from {last:cifar10_night}"
COMPLETE, ON_CIFAR = "--config configs/complete_digits.yaml", f"--config configs/complete_cifar.yaml {IMAGES}"
MASKED = "--model.objective masked --experiment"
PLAIN = "--model.init=glorot --model.optimizer=adamw --model.patch_drop=0 --model.patch_drop_until=1"
PLAIN_DIGITS = f"{DIGITS} {PLAIN} --model.lr=3e-3 --model.decay=cosine"
PLAIN_IMAGES = f"{QUICK} {PLAIN} --model.lr=2e-3 --model.decay=linear"
# What all rows of heads.py have.
FOR_ALL = "--model.init=glorot --model.patch_drop=0 --model.patch_drop_until=1 --model.compile=false"
SMALL = f"{QUICK} {FOR_ALL} --model.embed_dim 128 --model.num_heads 8"
SHAPE = "--model.patch_size 4 --model.embed_dim 96 --model.depth 6 --model.num_heads 3 --model.mlp_ratio 2"
LARGER_SIZES = "--sizes 384x12-p4-32 S16-224 B16-224 --rounds 7"

PARTS: dict[str, Part] = {
    "digits": accuracy_of("digits", 5, "--seeds 6 7 8 9 10 11"),
    "quick": accuracy_of("cifar10_quick", 31, DATA),
    "hour": accuracy_of("cifar10", 61, f"{DATA} --seeds 0"),
    "first_45_minutes": Part(
        "test accuracy of cifar10 after 45 minutes, from which cifar10_overlap starts",
        file="accuracy",
        minutes=92,
        commands=(f"accuracy.py configs/cifar10.yaml --name cifar10_45_minutes {DATA} --seeds 0 1 -- {FIRST}",),
        cells="cifar10_45_minutes,.*",
        training=typed,
    ),
    "overlap_hour": accuracy_of("cifar10_overlap", 62, f"{DATA} --seeds 0 -- {FROM_FIRST}", (f"{HOUR} {FIRST}",)),
    "night": accuracy_of("cifar10_night", 97, f"{DATA} --seeds 0"),
    "night_overlap": accuracy_of("cifar10_night_overlap", 150, f"{DATA} --seeds 0 -- {FROM_NIGHT}", (NIGHT,)),
    "showcase": accuracy_of("cifar10_showcase", 92, f"{DATA} --seeds 0 -- {FROM_HOUR}", (HOUR,)),
    "read": accuracy_of("read_digits", 16),
    "photos": accuracy_of("photos", 6, "--data photos -- --data.skip_damaged true"),
    "baseline_grid": Part(
        "learning rates of timm's ViT by the strongest recipe of its parts",
        file="baseline_grid",
        minutes=41,
        commands=(f"baseline.py {DATA} --recipe strongest --lr-grid 1e-3 2e-3 4e-3 8e-3",),
        sources=("benchmarks/timm_recipes.py", "benchmarks/baseline.py"),
    ),
    "inference": Part(
        "speed of models made fast, beside four libraries",
        file="inference",
        minutes=30,
        commands=("inference.py prepare", "inference.py time", f"inference.py accuracy {DATA} --dtypes fp32 bf16 int8"),
        sources=("vit/inference/*.py",),
        operations=("inference",),
    ),
    "kept_memory": Part(
        "time of inference with memory that is kept",
        file="kept_memory",
        minutes=6,
        commands=("kept_memory.py",),
        sources=("vit/support/kept_memory.py",),
        operations=("inference",),
    ),
    "scale": Part(
        "time and memory of five libraries as images and batches grow",
        file="scale",
        minutes=8,
        commands=("scale.py",),
        sources=("vit/attention/mechanisms/softmax*.py",),  # at which lengths which kernel is taken
        operations=("inference", "training", "features"),
    ),
    "baseline": Part(
        "test accuracy of timm's ViT in ten minutes",
        file="accuracy",
        minutes=62,
        commands=(f"baseline.py {DATA}", f"baseline.py {DATA} --recipe strongest"),
        cells="timm.*",
        sources=("benchmarks/baseline.py", "benchmarks/timm_recipes.py"),
    ),
    "ablation": Part(
        "the ten-minute recipe with one part changed",
        file="ablation",
        minutes=150,
        commands=(f"ablate.py configs/cifar10_quick.yaml {DATA} --steps 1400 --seeds 0 1",),
        training=always(QUICK),
    ),
    "attention": Part(
        "mechanisms of attention on digits, and their cost",
        file="attention",
        minutes=30,
        commands=("attention.py",),
        training=always(PLAIN_DIGITS),
        sources=ATTENTION,
    ),
    "attention_images": Part(
        "mechanisms of attention on images",
        file="attention_images",
        minutes=40,
        commands=(f"attention.py {DATA} --steps 400",),
        training=always(PLAIN_IMAGES),
        sources=ATTENTION,
    ),
    "heads": Part(
        "one small model with one part changed",
        file="heads",
        minutes=120,
        commands=(f"heads.py {DATA} --steps 800 --parallel 2",),
        cells=r"\d+ steps: .*|stacked heads|time of a step, .*",
        training=always(SMALL),
        sources=(
            *ATTENTION,
            *(f"vit/analysis/{name}" for name in ("importance.py", "pruning.py", "position_dependence.py:enlarged")),
        ),
    ),
    "heads_asked": Part(
        "what the analysis says of the small model",
        file="heads",
        minutes=5,
        commands=(f"heads.py {DATA} --steps 800 --only questions",),
        cells="questions, .*",
        training=always(SMALL),
        sources=("vit/analysis/[!c]*.py",),  # all but the charts, which have no numbers of their own
    ),
    "finetune": Part(
        "fine-tuning on few images",
        file="finetune",
        minutes=60,
        commands=(f"finetune.py {DATA}",),
        training=always(f"--config configs/finetune.yaml --model.init_from null {SHAPE}"),
    ),
    "shortcut": Part(
        "a model that learned a square in place of horses",
        file="shortcut",
        minutes=10,
        commands=(f"shortcut.py {DATA}",),
        training=always("--config configs/photos.yaml"),
    ),
    "few_labels": Part(
        "learning from few labels alone",
        file="pretraining",
        minutes=300,
        commands=(f"pretraining.py {DATA} --objectives",),
        cells="(chosen from|from scratch|untrained), [0-9].*",
        training=of_pretraining,
        operations=("training",),
    ),
    **{
        f"pretraining_{name}": Part(
            f"learning without labels by {name}, then from few",
            file="pretraining",
            minutes=300,
            commands=(f"pretraining.py {DATA} --objectives {name}",),
            cells=f"(chosen from, )?{name}, .*",
            training=of_pretraining,
            operations=("training",),
        )
        for name in OBJECTIVES
    },
    "sigreg_weight": Part(
        "the weight of SIGReg",
        file="sigreg_weight",
        minutes=20,
        commands=(f"sigreg_weight.py {DATA}",),
        training=typed,
    ),
    "pretrained_maps": Part(
        "maps of encoders that learned without labels",
        file="pretrained_maps",
        minutes=80,
        commands=("pretrained_maps.py",),
        operations=("training",),
        sources=("vit/data/planted.py", *(f"vit/objectives/{name}/*.py" for name in OBJECTIVES)),
    ),
    "explanations": Part(
        "all kinds of map on three trainings",
        file="explanations",
        minutes=60,
        commands=(
            f"explanations.py {DATA} --checkpoints {{last:cifar10_quick}} "
            "--planted {last:planted_digits} {last:crowded_digits}",
        ),
        cells="cifar10_quick.*|planted_digits.*|crowded_digits.*",
        training=of_recipe,
        map_scores=("mean", "class token"),
        trains=(
            *seeds(3, f"{QUICK} {IMAGES}"),
            *seeds(3, "--config configs/planted_digits.yaml"),
            *seeds(3, "--config configs/crowded_digits.yaml"),
        ),
    ),
    "packaged_maps": Part(
        "maps of the packaged model",
        file="explanations",
        minutes=22,
        commands=(f"explanations.py {DATA} --checkpoints cifar10 --images 50 --mosaic_steps 0",),
        cells="cifar10_showcase.*",
        sources=PACKAGED,
        map_scores=("class token",),
    ),
    "overlap": Part(
        "overlapping patches without further training",
        file="overlap",
        minutes=62,
        commands=(f"overlap.py {DATA} --checkpoints {{last:cifar10}}",),
        training=of_recipe,
        sources=("vit/model/positions.py:resize_positions", "vit/model/positions.py:resizing_matrix"),
        trains=(HOUR,),
    ),
    "reading": Part(
        "what trained readers do",
        file="decoders",
        minutes=25,
        commands=("decoders.py {last:read_digits}",),
        cells="read.*",
        training=typed,
        sources=DECODER,
        trains=seeds(3, "--config configs/read_digits.yaml"),
    ),
    "completion": Part(
        "what trained completers of digits do",
        file="decoders",
        minutes=15,
        commands=("decoders.py {last:complete_digits} {last:mask_digits}",),
        cells="(complete|mask)_digits.*",
        training=typed,
        sources=DECODER,
        trains=seeds(2, COMPLETE) + seeds(2, f"{COMPLETE} {MASKED} mask_digits"),
    ),
    "completion_images": Part(
        "what trained completers of images do",
        file="decoders",
        minutes=25,
        commands=("decoders.py {last:complete_cifar} {last:mask_cifar}",),
        cells="(complete|mask)_cifar.*",
        training=typed,
        sources=DECODER,
        trains=(ON_CIFAR, f"{ON_CIFAR} {MASKED} mask_cifar"),
    ),
    "generation": Part(
        "time of generation with a cache",
        file="decoders",
        minutes=1,
        commands=("decoders.py",),
        cells="generation",
        operations=("generation",),
    ),
    **{
        f"claims_{name}": Part(
            f"sentences of the literature: {what}",
            file=f"claims_{name}",
            minutes=minutes,
            commands=(f"claims.py {name}",),
            training=of_claim,
            sources=(
                *(f"benchmarks/claims_{name}.py:{function}" for function in ("measure", *functions)),
                "benchmarks/claims_training.py:is_right",
                *files,
            ),
        )
        for name, what, minutes, functions, files in (
            ("reach", "places far apart", 20, ("reached",), ()),
            ("rivals", "attention and its rivals", 5, ("chosen",), ()),
            ("scale", "loss over compute, and its prediction", 5, ("loss_on",), ("vit/training/flop.py",)),
            ("norms", "residual connections and norms", 20, ("gradient_norms",), ()),
            ("order", "what follows, and a prefix", 3, ("levels",), ()),
            ("read", "one sequence of picture and text, or two", 15, ("is_read",), ("vit/data/strings.py",)),
            (
                "quality",
                "wrong labels and corrupted images",
                5,
                (),
                tuple(f"vit/data/corrupt.py:{name}" for name in ("jpeg", "blur", "contrast", "change_labels")),
            ),
            ("heads", "heads and their projections", 5, ("ranks",), ("vit/analysis/projections.py",)),
            (
                "objects",
                "what heads relate",
                5,
                ("parts_of_one_object", "share_of", "cells_of", "inked", "kept", "explained"),
                ("vit/analysis/rarity.py:rarity", "vit/data/planted.py"),
            ),
            ("routed", "heads chosen for each input", 5, ("uses",), ()),
        )
    },
    "claims_cifar10": Part(
        "sentences of the literature: attention and its rivals on CIFAR-10",
        file="claims_cifar10",
        minutes=150,
        commands=(f"claims.py cifar10 {DATA}",),
        training=typed,
        sources=tuple(f"benchmarks/claims_cifar10.py:{function}" for function in ("measure", "chosen", "run")),
    ),
    "claims_cost": Part(
        "sentences of the literature: time and memory over tokens, windows and heads",
        file="claims_cost",
        minutes=6,
        commands=("claims.py cost",),
        sources=tuple(f"benchmarks/claims_cost.py:{function}" for function in MEASURED_COST),
        operations=("mechanisms",),
    ),
    "throughput": Part(
        "speed of five libraries",
        file="throughput",
        minutes=30,
        commands=("throughput.py", "throughput.py --compiled", f"throughput.py {LARGER_SIZES}"),
        operations=("inference", "training"),
    ),
    "pipeline": Part(
        "speed of the data path",
        file="pipeline",
        minutes=10,
        commands=("pipeline.py --sources memory files",),
        sources=(*LOADING, "vit/data/image_files.py"),
    ),
    "shards": Part(
        "tar shards beside webdataset, litdata and a plain loop",
        file="shards",
        minutes=10,
        commands=("shards.py",),
        sources=(*LOADING, *(f"vit/data/{name}.py" for name in ("image_files", "shard_files", "shards"))),
    ),
    "overhead": Part(
        "Lightning against a bare loop",
        file="overhead",
        minutes=4,
        commands=("overhead.py --rounds 7",),
        sources=(*LOADING, *STEP, "vit/runs/record.py", "vit/training/compilation.py"),
        operations=("training",),
    ),
    "training_parts": Part(
        "time of the optimisers and the moving average",
        file="training_parts",
        minutes=1,
        commands=("training_parts.py",),
        sources=tuple(f"vit/training/{name}.py" for name in ("ema", "muon", "optimizer")),
    ),
    "mixed_sizes": Part(
        "batches of many sizes",
        file="mixed_sizes",
        minutes=3,
        commands=("mixed_sizes.py --rounds 9",),
        operations=("inference", "mixed"),
    ),
    "token_merging": Part(
        "accuracy and time of merged tokens",
        file="token_merging",
        minutes=5,
        commands=(f"token_merging.py {DATA}",),
        sources=PACKAGED,
        operations=("inference", "merged"),
    ),
    "familiarity": Part(
        "images that the packaged model does not know",
        file="familiarity",
        minutes=4,
        commands=(f"familiarity.py {DATA} --thresholds vit/weights/cifar10.familiar.json",),
        sources=PACKAGED,
        operations=("inference",),
    ),
    "released": Part(
        "released weights against other runtimes",
        file="released",
        minutes=20,
        commands=(f"released.py {DATA}",),
        sources=FORMATS,
        operations=("inference",),
    ),
    "released_tuning": Part(
        "fine-tuning of released weights",
        file="released_tuning",
        minutes=60,
        commands=(f"released_tuning.py {DATA}",),
        sources=PACKAGED,
        operations=("training",),
    ),
    "any_vit": Part(
        "attention of architectures of other libraries",
        file="any_vit",
        minutes=15,
        commands=("any_vit.py",),
        sources=("vit/capture/**/*.py",),
    ),
    "plan": Part(
        "what a training takes, planned and measured",
        file="plan",
        minutes=5,
        commands=("plan.py",),
        sources=("vit/runs/plan.py", "vit/training/muon.py", "vit/training/optimizer.py"),
        operations=("training",),
    ),
    "torture": Part(
        "runs that are killed and resumed",
        file="torture",
        minutes=4,
        commands=("torture.py --kills 100 --seed 0",),
        sources=RESUMED,
    ),
    "torture_ranks": Part(
        "trainings of which one process is killed",
        file="torture_ranks",
        minutes=3,
        commands=("torture_ranks.py --kills 10 --processes 2 4 --seed 0",),
        sources=RESUMED,
    ),
}


def part_of(file: str, cell: str) -> str | None:
    """Return the name of the part that a cell of a file of results belongs to; None if it is of none.

    >>> part_of("accuracy", "digits, cpu, seed 6"), part_of("heads", "questions, 800 steps"), part_of("speeds", "")
    ('digits', 'heads_asked', None)
    """
    return next((name for name, part in PARTS.items() if part.file == file and re.fullmatch(part.cells, cell)), None)
