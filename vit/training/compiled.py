"""The loss of a training step on a CPU as one compiled program."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

Batch = tuple[Tensor, Tensor]
Kind = tuple[Any, ...]


class CompiledLoss(Callback):
    """Compiles network and loss into one program on CPUs, for each kind of batch when the first one comes.

    A kind is the shapes and types of images and targets, and the share of patches that is dropped. Batches with fewer
    images than one before, such as the last ones of an epoch, are computed eagerly: they are too few. So are
    validation and test, and all steps if there is no C++ compiler or compiling fails, which a line says. The weights
    stay where they are, so that checkpoints, the moving average and explanations see nothing of it.

    Args:
        backend: The compiler, as ``torch.compile`` takes it.
    """

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend
        self.programs: dict[Kind, Callable[[Batch], Tensor]] = {}
        self.images = 0
        self.works = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start without programs, and see if there is a compiler."""
        self.programs, self.images = {}, 0
        self.works = self.backend != "inductor" or cpp_compiler() is not None
        if not self.works:
            _say("no C++ compiler was found, so that the training is not compiled: install g++, or name one in CXX")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Choose the program for a batch; compile it if it is the first one of its kind."""
        images, targets = batch
        kind = (images.shape, images.dtype, targets.shape, targets.dtype, pl_module.drop_rate)
        if self.works and kind not in self.programs and len(images) >= self.images:
            self.images = len(images)
            self._compile(kind, batch, trainer, pl_module)
        pl_module.program = self.programs.get(kind)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let go of the programs."""
        self.programs, pl_module.program = {}, None

    def _compile(self, kind: Kind, batch: Batch, trainer: Trainer, pl_module: LightningModule) -> None:
        start = time.monotonic()
        # Random draws are those of the eager step. inductor alone has options.
        options = {"fallback_random": True} if self.backend == "inductor" else None
        program = torch.compile(
            pl_module.training_loss, fullgraph=True, dynamic=False, backend=self.backend, options=options
        )
        trained = [parameter for parameter in pl_module.parameters() if parameter.requires_grad]
        try:
            with torch.random.fork_rng(devices=[]), trainer.precision_plugin.train_step_context():
                # The backward pass is compiled when it first runs. Not loss.backward(), which DDP would reduce.
                torch.autograd.grad(program(batch), trained, allow_unused=True)
        except Exception as error:  # of any kind: an error of the model itself comes again in the eager step
            self.works = False
            _say(f"torch.compile failed ({_first_line(error)}): the training goes on without it")
        else:
            self.programs[kind] = program
        seconds = time.monotonic() - start
        pl_module.compile_seconds += seconds
        if self.works:
            _say(f"compiled a training step for {_in_words(batch, pl_module)} in {seconds:.0f} s")


def compiles_loss(pl_module: LightningModule) -> bool:
    """Return whether ``compile`` means the whole loss: on CPUs, where a program of each block gains less."""
    if pl_module._trainer is None or pl_module.device_mesh is not None or not pl_module.hparams.get("compile"):
        return False
    return pl_module.trainer.strategy.root_device.type == "cpu"


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler that ``torch.compile`` would run; None if there is none."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX", usual))


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _in_words(batch: Batch, pl_module: LightningModule) -> str:
    rate = pl_module.drop_rate
    return f"{len(batch[0])} images, " + (f"{rate:.0%} of the patches dropped" if rate else "every patch")
