"""The commands fit, validate, test and predict."""

import sys

from lightning import LightningDataModule
from lightning.pytorch.cli import ArgsType

from vit.__main__ import show_version
from vit.commands.configs import find_configs
from vit.commands.errors import plain_output
from vit.commands.training_cli import ViTCLI
from vit.commands.training_parser import TrainingParser
from vit.data import DATA_SETS, UnsortedImages  # noqa: F401 - the parser finds what is imported
from vit.training.objective import Objective


def main(args: ArgsType = None, run: bool = True, cli: type[ViTCLI] = ViTCLI) -> ViTCLI:
    """Parse ``args`` (default: the command line), build the run and, if ``run``, execute it, as ``cli`` does."""
    typed = sys.argv[1:] if args is None else args
    if typed in (["--version"], ["fit", "--version"]):
        show_version()
    with plain_output():
        if args is None or isinstance(args, list):
            args = find_configs(typed)
        return cli(
            Objective,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            load_from_checkpoint_support=False,
            save_config_callback=None,
            parser_class=TrainingParser,
            trainer_defaults={"num_sanity_val_steps": 0, "log_every_n_steps": 20, "gradient_clip_val": 1.0},
            args=args,
            run=run,
        )
