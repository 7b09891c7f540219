"""The fingerprint of a training: the losses of its first steps on fixed images, and what these cannot show.

A training of four steps has the progress 0, 1/4, 1/2 and 3/4: the start, the fall of the learning rate and the end of
patch dropping and mixing take part. The validation loss after them is that of averaged weights, if there are some.
Batches are an eighth of the config's, and Muon multiplies in float32, so that a training takes less than a second and
machines agree. Images of a folder, and CIFAR-10, are replaced by noise in ten classes; weights of a run to start from,
by drawn ones.

Measured on the configs of this repository (Intel Xeon, 2026-11-24): one and two threads, with and without oneDNN, and
AVX-512 and AVX2 agree to 5e-7; without AVX2 all but configs/complete_cifar.yaml do, whose colours then differ.

A model of claims.py is trained for four steps as its experiment begins.

This file imports `train.main` and the experiments of claims.py alone, so that it runs in the tree of an earlier commit,
too (-P leaves out the folder of this file):

    PYTHONPATH=TREE:TREE/benchmarks python -P benchmarks/first_losses.py '[["--config", "configs/digits.yaml"]]'
"""

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml
from lightning import Callback
from PIL import Image

import train

STEPS = 4
CLASSES, OF_CLASS = 10, 25  # 25 images, of which val_fraction 0.04 holds out one
SHARE_OF_BATCH = 8
VALIDATED = 256, 2  # images in a batch, and batches
CLAIM = "claims.py"  # the first word of a line that names an experiment of claims.py
LENGTH = ["--trainer.max_steps", str(STEPS), "--trainer.max_epochs=-1", "--trainer.max_time", "null"]
FIXED = ["--seed_everything", "0", "--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]
BARE = ["--trainer.enable_checkpointing", "false", "--trainer.callbacks", "null"]


class LossOfSteps(Callback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the loss of a step."""
        self.found.append(outputs["loss"].item())


def first_losses(words: list[str], threads: int = 1) -> dict[str, Any]:
    """Return the losses of the first steps of a training and of the validation after them, and settings beside.

    The settings are those that the first steps do not show: the decay of the average, the limit of gradients (the
    steps of Muon and AdamW do not depend on the scale of gradients), and the length that the config has.

    Args:
        words: What follows ``python train.py fit``, such as ``["--config", "configs/digits.yaml"]``; or an experiment
            and a setting, such as ``["claims.py", "heads", "8 heads"]``.
        threads: Threads of the training.

    Raises:
        ValueError: If the words name no config, or a setting that the experiment does not have.
    """
    if words[0] == CLAIM:
        return first_losses_of_claim(*words[1:], threads=threads)
    config = config_of(words)
    with tempfile.TemporaryDirectory() as folder, same_everywhere(folder, threads):
        # Before a --config that is the first word, the command line would not see which model it names.
        typed = ["--trainer.logger", "false", *words, *images_and_start(config, Path(folder)), *FIXED, *LENGTH, *BARE]
        typed += ["--trainer.default_root_dir", folder]
        run = train.main(typed, run=False)
        run.datamodule.batch_size = max(2, run.datamodule.batch_size // SHARE_OF_BATCH)
        if "compile" in run.model.hparams:
            run.model.hparams.compile = False
        losses = LossOfSteps()
        run.trainer.callbacks.append(losses)
        run.trainer.limit_val_batches = 0
        run.trainer.fit(run.model, datamodule=run.datamodule)
        # All images of most configs: their order is no part of the training.
        run.datamodule.batch_size, run.trainer.limit_val_batches = VALIDATED
        (scores,) = run.trainer.validate(run.model, datamodule=run.datamodule, verbose=False)
    length = {name: value for name, value in config["trainer"].items() if name.startswith("max_")}
    settings = {"ema_decay": run.model.hparams.get("ema_decay"), "clip": run.trainer.gradient_clip_val} | length
    return {"losses": [*losses.found, scores["val_loss"]], "settings": settings}


class StoppedError(Exception):
    """Ends an experiment after the first steps of its first training, and holds what was found."""


def first_losses_of_claim(name: str, setting: str, threads: int = 1) -> dict[str, Any]:
    """Return the first losses of a model of claims.py, and the length of its training."""
    experiment = import_module(f"claims_{name}")
    if setting not in experiment.SETTINGS:
        raise ValueError(f"unknown setting {setting!r} of {name}: choose one of {', '.join(experiment.SETTINGS)}")
    fit = experiment.fit

    def first_steps(model: Any, images: Any, labels: Any, *, steps: int, lr: float, warmup: int, seed: int) -> None:
        losses = fit(model, images, labels, steps=STEPS, lr=lr, warmup=0, seed=seed)
        settings = {"images": len(labels), "steps": steps, "lr": lr, "warmup": warmup}
        raise StoppedError({"losses": losses, "settings": settings})

    with tempfile.TemporaryDirectory() as folder, same_everywhere(folder, threads):
        try:
            with patch.object(experiment, "fit", first_steps):
                experiment.measure(experiment.SETTINGS[setting], seed=0)
        except StoppedError as found:
            return found.args[0]
    raise ValueError(f"the experiment {name} trains no model")


def config_of(words: list[str]) -> dict[str, Any]:
    """Return what the config of a command line says."""
    if "--config" not in words:
        raise ValueError(f"{' '.join(words)!r} names no config: add --config FILE")
    return yaml.safe_load(Path(words[words.index("--config") + 1]).read_text())


def images_and_start(config: dict[str, Any], folder: Path) -> list[str]:
    """Return the options that replace images of a folder and weights of a run, which are not there everywhere."""
    replaced, model = [], config["model"]
    if config["data"]["class_path"].rpartition(".")[2] in ("CIFAR10", "ImageFolder"):
        write_images(folder)
        replaced += ["--data", "ImageFolder", "--data.root", str(folder), "--data.num_workers", "0"]
    if str(model.get("init_args", model).get("init_from")).startswith("runs/"):
        replaced += ["--model.init_from", "null"]
    return replaced


def write_images(folder: Path) -> None:
    """Write noise of 32 x 32 pixels into class folders, the same each time."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", OF_CLASS), ("test", 1)):
        for number in range(CLASSES * count):
            place = folder / split / str(number % CLASSES)
            place.mkdir(parents=True, exist_ok=True)
            noise = torch.randint(256, (32, 32, 3), dtype=torch.uint8, generator=generator)
            Image.fromarray(noise.numpy()).save(place / f"{number}.png")


@contextmanager
def same_everywhere(folder: str, threads: int) -> Iterator[None]:
    """Compute as other machines do, leave no file in the cache of decoded images, and restore what is changed."""
    before = torch.get_num_threads()
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(torch.random.fork_rng(devices=[]))
        enter(patch.object(torch.cpu, "_is_avx512_bf16_supported", return_value=False))
        enter(patch.dict(os.environ, {"XDG_CACHE_HOME": f"{folder}/cache"}))
        enter(redirect_stdout(StringIO()))  # what a training says of itself; errors go to stderr
        enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(torch.set_num_threads, before)
        torch.set_num_threads(threads)
        yield


if __name__ == "__main__":
    print(json.dumps([first_losses(words) for words in json.loads(sys.argv[1])]))
