"""Train and use a Vision Transformer from the command line.

Examples:
    python train.py fit --config configs/digits.yaml
    python train.py fit --config configs/cifar10.yaml --data.root data --model.depth 6 --trainer.max_epochs 20
    python train.py fit --config configs/cifar10_quick.yaml --data ImageFolder --data.root photos
    python train.py test --ckpt_path runs/digits/version_0/checkpoints/best.ckpt
    python train.py predict --ckpt_path runs/digits/version_0/checkpoints/best.ckpt --data.root new_photos
"""

from lightning.pytorch.cli import ArgsType

from vit.data import ImageDataModule
from vit.training import Parser, TrainingModule, ViTCLI, plain_output


def main(args: ArgsType = None, run: bool = True) -> ViTCLI:
    """Parse ``args`` (default: the command line), build the run and, if ``run``, execute it."""
    with plain_output():
        return ViTCLI(
            TrainingModule,
            ImageDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            parser_class=Parser,
            trainer_defaults={"num_sanity_val_steps": 0, "log_every_n_steps": 20, "gradient_clip_val": 1.0},
            args=args,
            run=run,
        )


if __name__ == "__main__":
    main()
