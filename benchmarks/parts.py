"""The parts of the stated numbers: what measures each, how long it takes, and what its fingerprint is made of.

A new part is one entry of PARTS. In its commands, {data} is the folder of CIFAR-10's images, and {last:RECIPE} are the
checkpoints of the trainings that the part names in ``trains``.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Cell = dict[str, Any]

IMAGES = "--data ImageFolder --data.root {data}"
# Options of a recorded command that change neither the model nor its first steps on fixed images.
NOT_IN_LINE = ("seed_everything", "experiment", "data", "data.root", "data.skip_damaged", "trainer.default_root_dir")
NOT_IN_LINE += ("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "ckpt_path")

ATTENTION = ("vit/attention/**/*.py",)
MODEL = (
    *ATTENTION,
    *(f"vit/model/{name}.py" for name in ("vision_transformer", "encoder_block", "embedding", "layers")),
)
LOADING = tuple(f"vit/data/{name}.py" for name in ("loader", "sampler", "augment", "crops", "operations", "policies"))
STEP = tuple(f"vit/training/{name}.py" for name in ("base", "callbacks", "ema", "muon", "optimizer", "schedule"))
MAPS = ("vit/capture/*.py", "vit/explain/maps/*.py", "vit/explain/evaluation/*.py")
DECODER = (*ATTENTION, *(f"vit/model/{name}.py" for name in ("decoder", "decoder_block", "generation")))
FORMATS = ("vit/weights/**/*.py",)
PACKAGED = ("vit/weights/cifar10.safetensors",)


def typed(cell: Cell) -> str:
    """Return what a training was, by its recorded command without seed, data and length.

    >>> typed({"command": "python train.py fit --config configs/digits.yaml --seed_everything 6 --model.depth 2"})
    '--config configs/digits.yaml --model.depth 2'
    """
    words = iter(shlex.split(cell.get("training", cell)["command"])[3:])
    kept = []
    for word in words:
        name, equals, _ = word.removeprefix("--").partition("=")
        value = [] if equals or not word.startswith("--") else [next(words)]
        if name not in NOT_IN_LINE and not (name == "model.init_from" and value[0].startswith("runs/")):
            kept += [word, *value]
    return shlex.join(kept)


def of_recipe(cell: Cell) -> str:
    """Return the training of a cell that names its recipe."""
    return f"--config configs/{cell['recipe']}.yaml"


def always(line: str) -> Callable[[Cell], str]:
    """Return the same training for every cell."""
    return lambda _: line


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
        trains: Trainings to run first, whose checkpoints the commands take: what follows ``python train.py fit``.
    """

    measures: str
    file: str
    minutes: int
    commands: tuple[str, ...]
    cells: str = ".*"
    training: Callable[[Cell], str] | None = None
    sources: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()


def seeds(count: int, words: str) -> Iterator[str]:
    """Yield a training for each of the first seeds."""
    return (f"{words} --seed_everything {seed}" for seed in range(count))


def accuracy_of(recipe: str, minutes: int, options: str = "") -> Part:
    """Return the accuracy of a recipe over seeds."""
    command = f"accuracy.py configs/{recipe}.yaml {options}".strip()
    return Part(f"test accuracy of {recipe}", "accuracy", minutes, (command,), f"{recipe},.*", typed)


ACCURACY_OF_SHOWCASE = "accuracy.py configs/cifar10_showcase.yaml --data {data} --seeds 0"
QUICK, DIGITS = "--config configs/cifar10_quick.yaml", "--config configs/digits.yaml"
PLAIN = "--model.init=glorot --model.optimizer=adamw --model.patch_drop=0 --model.patch_drop_until=1"
OF_HEADS = f"{QUICK} --model.embed_dim 128 --model.depth 6 --model.num_heads 8 {PLAIN}"
OF_HEADS += " --model.lr=2e-3 --model.decay=linear"
SHAPE = "--model.patch_size 4 --model.embed_dim 96 --model.depth 6 --model.num_heads 3 --model.mlp_ratio 2"
COMPLETE, MASKED = "--config configs/complete_digits.yaml", "--model.objective masked --experiment"
ON_CIFAR = f"--config configs/complete_cifar.yaml {IMAGES}"
COMPLETERS = tuple(f"decoders.py {{last:{name}}}" for name in ("complete_digits", "mask_digits"))
CIFAR_COMPLETERS = tuple(f"decoders.py {{last:{name}}}" for name in ("complete_cifar", "mask_cifar"))

PARTS: dict[str, Part] = {
    "digits": accuracy_of("digits", 5, "--seeds 6 7 8 9 10 11"),
    "quick": accuracy_of("cifar10_quick", 31, "--data {data}"),
    "hour": accuracy_of("cifar10_1h", 61, "--data {data} --seeds 0"),
    "coarse": accuracy_of("cifar10_coarse", 61, "--data {data} --seeds 0"),
    "showcase": Part(
        *("test accuracy of cifar10_showcase, after its first stage", "accuracy", 92),
        (f"{ACCURACY_OF_SHOWCASE} -- --model.init_from {{last:cifar10_coarse}}",),
        *("cifar10_showcase.*", typed),
        trains=(f"--config configs/cifar10_coarse.yaml {IMAGES}",),
    ),
    "read": accuracy_of("read_digits", 16),
    "photos": accuracy_of("photos", 6, "--data photos -- --data.skip_damaged true"),
    "baseline": Part(
        *("test accuracy of timm's ViT in ten minutes", "accuracy", 31, ("baseline.py --data {data}",), "timm.*"),
        sources=("benchmarks/baseline.py",),
    ),
    "ablation": Part(
        *("the ten-minute recipe with one part changed", "ablation", 150),
        ("ablate.py configs/cifar10_quick.yaml --data {data} --steps 1400 --seeds 0 1",),
        *("(?!removed).*", always(QUICK)),
    ),
    "attention": Part(
        *("mechanisms of attention on digits, and their cost", "attention", 30, ("attention.py",), ".*"),
        *(always(f"{DIGITS} {PLAIN} --model.lr=3e-3 --model.decay=cosine"), ATTENTION),
    ),
    "attention_images": Part(
        *(
            "mechanisms of attention on images",
            "attention_images",
            40,
            ("attention.py --data {data} --steps 400",),
            ".*",
        ),
        *(always(f"{QUICK} {PLAIN} --model.lr=2e-3 --model.decay=linear"), ATTENTION),
    ),
    "heads": Part(
        *("one small model with one part changed", "heads", 90, ("heads.py --data {data} --steps 300",), ".*"),
        *(always(OF_HEADS), (*ATTENTION, "vit/analysis/*.py")),
    ),
    "finetune": Part(
        *("fine-tuning on few images", "finetune", 60, ("finetune.py --data {data}",), ".*"),
        always(f"--config configs/finetune.yaml --model.init_from null {SHAPE}"),
    ),
    "explanations": Part(
        *("all kinds of map on three trainings", "explanations", 60),
        ("explanations.py --data {data} --checkpoints {last:cifar10_quick} --planted {last:planted_digits}",),
        *("cifar10_quick.*|planted_digits.*", of_recipe, MAPS),
        trains=(*seeds(3, f"{QUICK} {IMAGES}"), *seeds(3, "--config configs/planted_digits.yaml")),
    ),
    "packaged_maps": Part(
        *("maps of the packaged model", "explanations", 100),
        (
            "explanations.py --data {data} --checkpoints {last:cifar10_showcase} --images 50 --mosaic_steps 0 "
            "--methods attention rollout value_rollout gradient_rollout relevance legrad gradcam",
        ),
        *("cifar10_showcase.*", of_recipe, MAPS),
        trains=(
            f"--config configs/cifar10_coarse.yaml {IMAGES}",
            f"--config configs/cifar10_showcase.yaml {IMAGES} --model.init_from {{last:cifar10_coarse}}",
        ),
    ),
    "overlap": Part(
        *("overlapping patches without further training", "overlap", 62),
        *(("overlap.py --data {data} --checkpoints {last:cifar10_coarse}",), ".*"),
        *(always("--config configs/cifar10_coarse.yaml"), MODEL),
        trains=(f"--config configs/cifar10_coarse.yaml {IMAGES}",),
    ),
    "reading": Part(
        *("what trained readers do", "decoders", 25, ("decoders.py {last:read_digits}",), "read.*", typed, DECODER),
        trains=(*seeds(3, "--config configs/read_digits.yaml"),),
    ),
    "completion": Part(
        *(
            "what trained completers of digits do",
            "decoders",
            15,
            COMPLETERS,
            "(complete|mask)_digits.*",
            typed,
            DECODER,
        ),
        trains=(*seeds(2, COMPLETE), *seeds(2, f"{COMPLETE} {MASKED} mask_digits")),
    ),
    "completion_images": Part(
        *("what trained completers of images do", "decoders", 25, CIFAR_COMPLETERS, "(complete|mask)_cifar.*", typed),
        sources=DECODER,
        trains=(ON_CIFAR, f"{ON_CIFAR} {MASKED} mask_cifar"),
    ),
    "generation": Part(
        *("time of generation with a cache", "decoders", 1, ("decoders.py",), "generation"),
        sources=DECODER,
    ),
    "throughput": Part(
        *("speed of five libraries", "throughput", 30),
        ("throughput.py", "throughput.py --compiled", "throughput.py --sizes 384x12-p4-32 S16-224 B16-224 --rounds 7"),
        sources=MODEL,
    ),
    "pipeline": Part(
        *("speed of the data path", "pipeline", 10, ("pipeline.py --sources memory files",)),
        sources=(*LOADING, "vit/data/image_files.py"),
    ),
    "overhead": Part(
        *("Lightning against a bare loop", "overhead", 4, ("overhead.py --rounds 7",)),
        sources=(*MODEL, *LOADING, *STEP, "vit/runs/record.py"),
    ),
    "training_parts": Part(
        *("time of the optimisers and the moving average", "training_parts", 1, ("training_parts.py",)),
        sources=tuple(f"vit/training/{name}.py" for name in ("ema", "muon", "optimizer")),
    ),
    "mixed_sizes": Part(
        *("batches of many sizes", "mixed_sizes", 3, ("mixed_sizes.py --rounds 9",)),
        sources=MODEL,
    ),
    "token_merging": Part(
        *("accuracy and time of merged tokens", "token_merging", 5, ("token_merging.py --data {data}",)),
        sources=(*MODEL, "vit/model/token_merging.py", *PACKAGED),
    ),
    "released": Part(
        *("released weights against other runtimes", "released", 20, ("released.py --data {data}",)),
        sources=(*MODEL, *FORMATS),
    ),
    "released_tuning": Part(
        *("fine-tuning of released weights", "released_tuning", 60, ("released_tuning.py --data {data}",)),
        sources=(*MODEL, *PACKAGED),
    ),
    "any_vit": Part(
        *("attention of the architectures of other libraries", "any_vit", 15, ("any_vit.py",)),
        sources=("vit/capture/*.py",),
    ),
    "torture": Part(
        *("runs that are killed and resumed", "torture", 40, ("torture.py --kills 100 --seed 0",)),
        sources=("vit/runs/*.py", "vit/support/files.py", "vit/training/callbacks.py"),
    ),
}


def part_of(file: str, cell: str) -> str | None:
    """Return the name of the part that a cell of a file of results belongs to; None if it is of none.

    >>> part_of("accuracy", "digits, cpu, seed 6"), part_of("heads", "anything"), part_of("speeds", "")
    ('digits', 'heads', None)
    """
    return next((name for name, part in PARTS.items() if part.file == file and re.fullmatch(part.cells, cell)), None)
