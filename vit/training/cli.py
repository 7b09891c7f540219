"""The command line around Lightning's: folders of runs, defaults from checkpoints, errors in one line."""

import argparse
import inspect
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins import Precision

import vit.data
from vit.class_names import name_classes
from vit.model import VisionTransformer
from vit.training.callbacks import ImagesPerSecondBar, run_callbacks
from vit.training.checkpoints import AtomicCheckpointIO, RunCheckpoint
from vit.training.classifier import ViTClassifier
from vit.training.console import print_results
from vit.training.prediction_writer import PredictionWriter
from vit.training.record import RunRecord
from vit.training.runs import experiment_of, new_run_folder, newest_checkpoint, run_folder_of
from vit.weights import read_checkpoint

FROM_DATA = ("num_classes", "image_size", "in_channels", "class_names", "mean", "std")


class ViTCLI(LightningCLI):
    """LightningCLI whose runs write a complete record, and whose checkpoints need no config.

    ``fit`` ends with one pass over the test images (``--trainer.limit_test_batches 0`` omits it).
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the sizes of the model to the data, and add ``--experiment``."""
        for name in FROM_DATA:
            parser.link_arguments(f"data.{name}", f"model.{name}", apply_on="instantiate")
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)
        parser.add_argument(
            "--experiment",
            type=str | None,
            default=None,
            help="Name of the folder under runs/; None takes the name of the config file, or of the data set.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments; those of the checkpoint, if there is one, are the defaults."""
        if args is None or isinstance(args, list):
            self.arguments = list(sys.argv[1:] if args is None else args)
            self.config = parser.parse_args(self._with_checkpoint(self.arguments))
        else:
            self.arguments = []
            self.checkpoint_path = None
            super().parse_arguments(parser, args)

    def _parse_ckpt_path(self) -> None:
        """Do nothing: in Lightning, the checkpoint overrules the command line; here it sets the defaults."""

    def _with_checkpoint(self, args: list[str]) -> list[str]:
        """Resolve ``--ckpt_path last`` and ``best`` to files, and set the checkpoint's arguments as defaults."""
        self.checkpoint_path: Path | None = None
        self.arguments_of_data: list[str] = []
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
            experiment = found.experiment or (experiment_of(Path(found.config[-1])) if found.config else "*")
            found.ckpt_path = str(newest_checkpoint(experiment, found.ckpt_path))
        self.checkpoint_path = Path(found.ckpt_path)
        run_folder = run_folder_of(self.checkpoint_path)
        if args[0] == "fit" and not found.config and run_folder is not None and (run_folder / "config.yaml").exists():
            # The checkpoint lacks the length of the training, the seed and the trainer's options.
            found.config = [str(run_folder / "config.yaml")]
        defaults = self._defaults_from(self.checkpoint_path, args[0])
        self._subcommand_parsers[args[0]].set_defaults(defaults)
        configs = [word for config in found.config for word in ("--config", config)]
        named = ["--experiment", found.experiment] if found.experiment else []
        return [args[0], *configs, *self.arguments_of_data, *others, *named, "--ckpt_path", found.ckpt_path]

    def _defaults_from(self, path: Path, subcommand: str) -> dict[str, Any]:
        if path.is_dir():  # a sharded checkpoint, which needs a config
            return {}
        checkpoint = read_checkpoint(path)
        arguments = dict(checkpoint["hyper_parameters"])
        of_data = {name: arguments.pop(name, None) for name in FROM_DATA}
        arguments = _known(arguments, ViTClassifier, VisionTransformer)
        if subcommand != "fit":
            arguments["compile"] = False  # compiling takes longer than most tests and predictions
        defaults = {f"model.{name}": value for name, value in arguments.items()}
        if subcommand == "predict":
            names = ("image_size", "in_channels", "class_names", "mean", "std")
            described = {name: of_data[name] for name in names}
            # An argument and not a default, because it also replaces the data of a config.
            self.arguments_of_data = ["--data", json.dumps({"class_path": "UnsortedImages", "init_args": described})]
        else:
            data = checkpoint.get("data", {})
            name = data.get("class_path", "").removeprefix("vit.data.")
            # Only the classes of vit.data: the class path in an untrusted file must import nothing.
            if name in vit.data.__all__:
                known = _known(data.get("init_args", {}), getattr(vit.data, name), vit.data.ImageDataModule)
                defaults["data"] = {**data, "init_args": known}
        return defaults

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer, with the fastest precision, loggers and the callbacks of the run."""
        config = {**self._get(self.config_init, "trainer"), **kwargs}
        fit = self.subcommand in ("fit", None)
        self.run_folder = self._choose_run_folder()
        plugins = _as_list(config["plugins"])
        if not any(isinstance(plugin, Precision) for plugin in plugins):
            config["precision"] = config["precision"] or self._precision(config["accelerator"])
        config["plugins"] = [*plugins, AtomicCheckpointIO()]
        if not fit:
            config["enable_checkpointing"] = False
        elif not self.datamodule.has_validation:
            config["limit_val_batches"] = 0
        if self.subcommand == "predict":
            config["devices"] = 1
        if config["logger"] in (None, True):
            config["logger"] = self._loggers() if fit else False
        interactive = sys.stdout.isatty() and config["enable_progress_bar"] is not False
        config["enable_progress_bar"] = interactive
        config["enable_model_summary"] = bool(config["enable_model_summary"])
        saves = self.subcommand == "fit" and config["enable_checkpointing"] is not False
        callbacks = self._callbacks(self._checkpoints() if saves else [])
        return self._instantiate_trainer(config, [*callbacks, *([ImagesPerSecondBar()] if interactive else [])])

    def _loggers(self) -> list[Logger]:
        place = {"save_dir": self.run_folder.parent.parent, "name": self.run_folder.parent.name}
        return [logger(**place, version=self.run_folder.name) for logger in (CSVLogger, TensorBoardLogger)]

    def _precision(self, accelerator: Any) -> str:
        """Return the precision of the training for an evaluation, which repeats its numbers; else the fastest."""
        record = self.run_folder / "results.json"
        known = json.loads(record.read_text()) if self.subcommand in ("validate", "test") and record.exists() else {}
        return known.get("precision") or fastest_precision(accelerator)

    def _callbacks(self, checkpoints: list[Callback]) -> list[Callback]:
        seed = int(self._get(self.config, "seed_everything"))
        if self.subcommand == "predict":
            names = name_classes(self.model.hparams.class_names, self.model.vit.num_classes)
            return [PredictionWriter(self.run_folder / "predictions.csv", names)]
        facts = {
            "experiment": self.run_folder.parent.name,
            "data": " ".join([type(self.datamodule).__name__, str(getattr(self.datamodule, "root", ""))]).strip(),
            "seed": seed,
            "command": shlex.join(["python", "train.py", *self.arguments]),
        }
        self._dump_config()
        text = self._parser("fit").dump(self.config["fit"], skip_none=False) if self.subcommand == "fit" else ""
        self.record = RunRecord(self.run_folder, facts, text, self.config_dump["data"])
        return run_callbacks(seed, self.record, checkpoints)

    def _checkpoints(self) -> list[Callback]:
        folder = self.run_folder / "checkpoints"
        best = [RunCheckpoint(folder, "best", monitor="val_accuracy")] if self.datamodule.has_validation else []
        return [*best, RunCheckpoint(folder, "last")]

    def _choose_run_folder(self) -> Path:
        """Return a new folder for ``fit``, else the folder of the checkpoint."""
        origin = run_folder_of(self.checkpoint_path)
        if self.subcommand != "fit" and origin is not None:
            return origin
        configs = self._get(self.config, "config") or []
        return new_run_folder(
            self._get(self.config, "experiment")
            or (origin.parent.name if origin is not None else None)
            or (experiment_of(Path(str(configs[-1]))) if configs else type(self.datamodule).__name__.lower())
        )

    def before_validate(self) -> None:
        """Load the weights here: Lightning would require the callbacks of the training."""
        arguments = self.config_init[self.subcommand]
        if self.checkpoint_path is not None and self.checkpoint_path.is_file():
            checkpoint = read_checkpoint(self.checkpoint_path)
            self.model.check_fits(checkpoint)
            self.model.load_state_dict(checkpoint["state_dict"])
            arguments["ckpt_path"] = None
        if "verbose" in arguments:
            arguments["verbose"] = False

    before_test = before_predict = before_validate

    def after_fit(self) -> None:
        """Validate and test the final weights, once."""
        if self.trainer.fast_dev_run:
            return
        ending = {"model": self.model, "datamodule": self.datamodule, "verbose": False}
        if "val" in self.datamodule.sets and self.record.measurements.last_step("val") != self.trainer.global_step:
            self.trainer.validate(**ending)
        if "test" in self.datamodule.sets and self.trainer.limit_test_batches != 0:
            self.trainer.test(**ending)
        print_results(self.run_folder)

    def after_validate(self) -> None:
        """Print the results."""
        print_results(self.run_folder)

    after_test = after_validate


def fastest_precision(accelerator: Any) -> str:
    """Return "bf16-mixed" if the hardware is faster in bfloat16 than in float32, else "32-true"."""
    if accelerator != "cpu" and torch.cuda.is_available():
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"
    if accelerator != "cpu" and torch.backends.mps.is_available():
        return "32-true"
    return "bf16-mixed" if torch.cpu._is_avx512_bf16_supported() else "32-true"


def _known(arguments: dict[str, Any], *classes: type) -> dict[str, Any]:
    """Return the arguments that the classes take; a checkpoint of another version may have others."""
    names = {name for cls in classes for name in inspect.signature(cls).parameters}
    for name in sorted(arguments.keys() - names):
        print(f"the checkpoint was trained with {name}, which this version does not have: left out", file=sys.stderr)
    return {name: value for name, value in arguments.items() if name in names}


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
