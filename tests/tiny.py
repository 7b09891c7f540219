"""Arguments of train.py that make a run small enough for a test."""

import train
from vit.commands.training_cli import ViTCLI

CPU = ["--trainer.accelerator", "cpu", "--trainer.precision", "32-true"]
MODEL = ["--model.patch_size", "4", "--model.embed_dim", "8", "--model.depth", "2", "--model.num_heads", "2"]
TINY = [
    *("--data", "Digits", "--data.batch_size", "100", *MODEL, *CPU),
    *("--trainer.log_every_n_steps", "5", "--trainer.max_epochs", "2"),
]


def run_command(*arguments: object) -> ViTCLI:
    """Run a command of train.py in this process: ``run_command("fit", *TINY)``."""
    return train.main([str(argument) for argument in arguments])
