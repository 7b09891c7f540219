"""Train and use a Vision Transformer from the command line.

Examples:
    python train.py fit --config configs/digits.yaml
    python train.py fit --config configs/cifar10.yaml --data.root data --model.depth 6 --trainer.max_epochs 20
    python train.py fit --config configs/cifar10_quick.yaml --data ImageFolder --data.root photos
    python train.py test --ckpt_path runs/digits/version_0/checkpoints/best.ckpt
    python train.py predict --ckpt_path runs/digits/version_0/checkpoints/best.ckpt --data.root new_photos
"""

from typing import Any

from vit.__main__ import main as run_command


def main(*arguments: Any, **options: Any) -> Any:
    """Run a training from Python, as ``vit.commands.fit.main`` does."""
    from vit.commands.fit import main as run  # imports Lightning, which takes seconds

    return run(*arguments, **options)


if __name__ == "__main__":
    run_command()
