"""The command line around Lightning's: folders of runs, defaults from checkpoints, errors in one line."""

import argparse
import difflib
import logging
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import Namespace
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import vit.data
from vit.training.callbacks import ImagesPerSecondBar, PredictionWriter, SeededSteps, StopAtNaN
from vit.training.record import RunRecord
from vit.training.storage import AtomicCheckpointIO
from vit.weights import read_checkpoint

RUNS = Path("runs")
FROM_DATA = ("num_classes", "image_size", "in_channels", "class_names", "mean", "std")


class Parser(LightningArgumentParser):
    """A parser that answers a mistake in one line, with the nearest name that exists."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, and what might have been meant; exit with status 2."""
        lines = [line.strip(" -") for line in message.splitlines() if line.strip()]
        reason = next((line for line in lines if "rror" in line or "not " in line or "nrecog" in line), lines[0])
        print(f"error: {reason}{self._nearest(message)}", file=sys.stderr)
        raise SystemExit(2)

    def _nearest(self, message: str) -> str:
        known = {option for action in self._actions for option in action.option_strings}
        for parser in getattr(self, "_subparsers_by_name", {}).values():
            known |= {option for action in parser._actions for option in action.option_strings}
        known |= set(vit.data.__all__)
        for word in re.findall(r"[\w.-]+", message):
            name = word.split("=")[0]
            if name not in known and (near := difflib.get_close_matches(name, known, n=1, cutoff=0.75)):
                return f" (did you mean {near[0]}?)"
        return ""


class ViTCLI(LightningCLI):
    """LightningCLI whose runs leave a complete record, and whose checkpoints need no config.

    ``fit`` ends with one pass over the test images (``--trainer.limit_test_batches 0`` leaves it out).
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Size the model by the data, and name the run."""
        for name in FROM_DATA:
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)
        parser.add_argument(
            "--experiment",
            type=str | None,
            default=None,
            help="Name of the folder under runs/; None takes that of the config file, or of the data set.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, with what a checkpoint was trained with as the defaults."""
        if args is None or isinstance(args, list):
            self.arguments = list(sys.argv[1:] if args is None else args)
            self.config = parser.parse_args(self._with_checkpoint(self.arguments))
        else:
            self.arguments = []
            super().parse_arguments(parser, args)

    def _parse_ckpt_path(self) -> None:
        """Nothing: Lightning would let the checkpoint overrule what was typed; here it gives the defaults."""

    def _with_checkpoint(self, args: list[str]) -> list[str]:
        """Resolve ``--ckpt_path last`` and ``best`` to files, and take the checkpoint's arguments as defaults."""
        self.checkpoint_path: Path | None = None
        if not args or args[0] not in self.subcommands():
            return args
        scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        scan.add_argument("--ckpt_path")
        scan.add_argument("--experiment")
        scan.add_argument("-c", "--config", action="append", default=[])
        found, others = scan.parse_known_args(args[1:])
        if found.ckpt_path is None:
            if args[0] != "fit" and "--help" not in args and not any("print_config" in arg for arg in args):
                raise ValueError(f"{args[0]} needs trained weights: add --ckpt_path FILE, or --ckpt_path last")
            return args
        if found.ckpt_path in ("last", "best"):
            experiment = found.experiment or (Path(found.config[-1]).stem if found.config else "*")
            found.ckpt_path = str(_newest(f"{experiment}/*/checkpoints/{found.ckpt_path}.ckpt"))
        self.checkpoint_path = Path(found.ckpt_path)
        defaults = self._defaults_from(self.checkpoint_path, args[0])
        self._subcommand_parsers[args[0]].set_defaults(defaults)
        configs = [word for config in found.config for word in ("--config", config)]
        named = ["--experiment", found.experiment] if found.experiment else []
        return [args[0], *configs, *others, *named, "--ckpt_path", found.ckpt_path]

    def _defaults_from(self, path: Path, subcommand: str) -> dict[str, Any]:
        if path.is_dir():  # a sharded checkpoint, which only a config describes
            return {}
        checkpoint = read_checkpoint(path)
        arguments = dict(checkpoint["hyper_parameters"])
        of_data = {name: arguments.pop(name, None) for name in FROM_DATA}
        defaults = {f"model.{name}": value for name, value in arguments.items()}
        if subcommand == "predict":
            names = ("image_size", "in_channels", "class_names", "mean", "std")
            self.unsorted_images = {name: of_data[name] for name in names}
            defaults["data"] = {"class_path": "vit.data.UnsortedImages", "init_args": self.unsorted_images}
        else:
            data = checkpoint.get("data", {})
            # Only our own classes: a class path in a stranger's file must not make us import anything.
            if data.get("class_path", "").removeprefix("vit.data.") in vit.data.__all__:
                defaults["data"] = data
        return defaults

    def before_instantiate_classes(self) -> None:
        """Let ``predict`` read image files, whatever the model was trained on."""
        config = self.config.get(str(self.subcommand), self.config)
        if self.subcommand == "predict":
            root = config.data.get("init_args", Namespace()).get("root")
            if root is None:
                raise ValueError("predict needs images: add --data.root FOLDER")
            init_args = Namespace(root=str(root), **self.unsorted_images, seed=0)
            config.data = Namespace(class_path="vit.data.UnsortedImages", init_args=init_args)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with the precision that the hardware gains by, loggers, and the record of the run."""
        config = {**self._get(self.config_init, "trainer"), **kwargs}
        fit = self.subcommand in ("fit", None)
        self.run_folder = self._choose_run_folder()
        config["precision"] = config["precision"] or fastest_precision(config["accelerator"])
        config["plugins"] = [*_as_list(config["plugins"]), AtomicCheckpointIO()]
        if self.subcommand == "predict":
            config["devices"] = 1
        if config["logger"] in (None, True):
            place = {"save_dir": self.run_folder.parent.parent, "name": self.run_folder.parent.name}
            version = self.run_folder.name
            config["logger"] = (
                [CSVLogger(**place, version=version), TensorBoardLogger(**place, version=version)] if fit else False
            )
        interactive = sys.stdout.isatty() and config["enable_progress_bar"] is not False
        config["enable_progress_bar"] = interactive
        config["enable_model_summary"] = bool(config["enable_model_summary"])
        callbacks = self._callbacks(config)
        return self._instantiate_trainer(config, [*callbacks, *([ImagesPerSecondBar()] if interactive else [])])

    def _callbacks(self, config: dict[str, Any]) -> list[Callback]:
        seed = int(self._get(self.config, "seed_everything"))
        names = self.model.hparams.class_names or [str(i) for i in range(self.model.vit.num_classes)]
        if self.subcommand == "predict":
            return [PredictionWriter(self.run_folder / "predictions.csv", names)]
        facts = {
            "experiment": self.run_folder.parent.name,
            "data": " ".join([type(self.datamodule).__name__, str(getattr(self.datamodule, "root", ""))]).strip(),
            "seed": seed,
            "command": shlex.join(["python", "train.py", *self.arguments]),
        }
        self._dump_config()
        text = self._parser("fit").dump(self.config["fit"], skip_none=False) if self.subcommand == "fit" else ""
        record = RunRecord(self.run_folder, facts, text, self.config_dump["data"])
        callbacks: list[Callback] = [SeededSteps(seed), StopAtNaN(), record]
        if self.subcommand == "fit" and config["enable_checkpointing"] is not False:
            place = {"dirpath": self.run_folder / "checkpoints", "enable_version_counter": False}
            if self.datamodule.val_fraction > 0:
                callbacks.append(ModelCheckpoint(**place, filename="best", monitor="val_accuracy", mode="max"))
            callbacks.append(ModelCheckpoint(**place, filename="last", save_on_train_epoch_end=True))
        return callbacks

    def _choose_run_folder(self) -> Path:
        if self.subcommand not in ("fit", None) and self.checkpoint_path is not None:
            if self.checkpoint_path.parent.name == "checkpoints":
                return self.checkpoint_path.parent.parent
        configs = self._get(self.config, "config") or []
        names = [Path(str(config)).stem for config in configs]
        default = names[-1] if names and names[-1] != "config" else type(self.datamodule).__name__.lower()
        if self.checkpoint_path is not None and self.checkpoint_path.parent.name == "checkpoints":
            default = self.checkpoint_path.parent.parent.parent.name
        experiment = RUNS / (self._get(self.config, "experiment") or default)
        versions = [int(path.name.removeprefix("version_")) for path in experiment.glob("version_[0-9]*")]
        return experiment / f"version_{max(versions, default=-1) + 1}"

    def after_fit(self) -> None:
        """Test the weights that training ended with, once."""
        if self.trainer.fast_dev_run:
            return
        if "test" in self.datamodule.sets and self.trainer.limit_test_batches != 0:
            self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
        self._print_summary()

    def after_test(self) -> None:
        """Say what came out."""
        self._print_summary()

    def after_validate(self) -> None:
        """Say what came out."""
        self._print_summary()

    @rank_zero_only
    def _print_summary(self) -> None:
        metrics = self.trainer.callback_metrics
        for split in ("val", "test"):
            if f"{split}_accuracy" in metrics:
                print(f"{split} accuracy: {100 * metrics[f'{split}_accuracy']:.2f} %")
        print(f"run folder: {self.run_folder}")
        for name in ("results.json", "curves.png", "confusion_matrix.png", "mistakes.png"):
            if (self.run_folder / name).exists():
                print(f"  {self.run_folder / name}")


@contextmanager
def plain_output() -> Iterator[None]:
    """Show what a user needs: no chatter of frameworks, and a mistake, which our own code raised, in one line."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 uses a name that torch 2.15 deprecates.
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            yield
    except MisconfigurationException as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (ValueError, OSError) as error:
        if not _raised_in_package(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def fastest_precision(accelerator: Any) -> str:
    """ "bf16-mixed" where the hardware multiplies bfloat16 matrices faster than float32, else "32-true"."""
    if accelerator != "cpu" and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator != "cpu" and torch.backends.mps.is_available():
        return "32-true"
    return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"


def _raised_in_package(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    package = Path(__file__).parent.parent
    return traceback is not None and package in Path(traceback.tb_frame.f_code.co_filename).parents


def _newest(pattern: str) -> Path:
    paths = list(RUNS.glob(pattern))
    if not paths:
        raise ValueError(f"no checkpoint {RUNS / pattern}: train first, or name the file by --ckpt_path FILE")
    return max(paths, key=lambda path: path.stat().st_mtime)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
