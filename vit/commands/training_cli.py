"""The command line around Lightning's: folders of runs, defaults from checkpoints, errors in one line."""

import re
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import Namespace
from lightning import Callback, LightningDataModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only

from vit.commands.auto_resume import AUTO
from vit.commands.configs import read_config
from vit.commands.defaults import class_path, read_defaults
from vit.commands.evaluated_weights import load_evaluated, read_evaluated
from vit.commands.models import HELP
from vit.commands.own_data import arguments_of_own_data
from vit.commands.parser import add_overwrite
from vit.commands.predicted import fingerprint_of_predictions
from vit.commands.resumed_run import check_runs_no_command, check_same_seed, config_of_run
from vit.commands.run_place import choose_folder, experiment_name
from vit.commands.trainer_checks import (
    check_callbacks,
    check_devices,
    check_keeps_best,
    check_limit,
    check_memory,
    check_seed,
    check_sharded,
    check_trainer,
)
from vit.commands.trainer_settings import (
    as_plugin_list,
    display_callbacks,
    fastest_precision,
    numerics_in_python,
    run_callbacks,
    set_engine,
    sets_precision,
)
from vit.commands.typed_arguments import classes_first, limits_of, read_typed
from vit.data.labelled_files import COLOURS, LabelledFiles
from vit.runs.checkpoints import AtomicCheckpointIO, RunCheckpoint
from vit.runs.command_prefix import command_prefix
from vit.runs.console import print_results
from vit.runs.folders import discard_if_unused, has_same_length, run_folder_of
from vit.runs.optimized_network import OptimizedNetwork
from vit.runs.predictions import PredictionWriter
from vit.runs.preemption import Preemption
from vit.runs.record import RunRecord
from vit.runs.report import complete_report, write_report
from vit.runs.results import read_results, sha256_of
from vit.runs.same_split import SPLIT, SameSplit
from vit.runs.same_start import SameStart
from vit.runs.splits import has_split, validates
from vit.support.arguments import constructor_arguments
from vit.support.first_process import print_once
from vit.support.kept_memory import keep_freed_memory
from vit.weights import read_checkpoint

# Arguments of a model that --optimizer and --lr_scheduler replace.
OF_OPTIMIZER = ("optimizer", "lr", "weight_decay", "betas", "layer_decay", "warmup", "decay")
LENGTH = "--trainer.max_epochs, max_steps or max_time"


class ViTCLI(LightningCLI):
    """LightningCLI whose runs write a complete record, and whose checkpoints need no config.

    ``fit`` ends with one pass over the test images (``--trainer.limit_test_batches 0`` omits it).
    """

    def __init__(self, *classes: type, args: ArgsType = None, **kwargs: Any) -> None:
        self.claimed: Path | None = None  # the new folder of this run or evaluation
        self.data_arguments: dict[str, Any] = {}  # arguments of the model that a user's own data module tells
        self.arguments = sys.argv[1:] if args is None else args
        self.typed = read_typed(self.arguments)
        self.trained = read_defaults(self.typed)
        try:
            super().__init__(*classes, args=args, auto_configure_optimizers=self.typed.optimizer, **kwargs)
        except BaseException:
            if self.claimed is not None:
                discard_if_unused(self.claimed)
            if self.claimed is not None and self.claimed.exists():
                with suppress(OSError):  # such as the full disk that stopped the run
                    write_report(self.claimed)
            raise

    def subcommands(self) -> dict[str, set[str]]:
        """Return the typed subcommand alone: the parser of each takes 0.1 s to build. If none is typed, all."""
        every, typed = LightningCLI.subcommands(), self.typed.subcommand
        return {typed: every[typed]} if typed in every else every

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add ``--seed_everything``; Lightning also takes true and false, with which no run could be repeated."""
        parser.add_argument(
            "--seed_everything", type=int, default=self.seed_everything_default, help="Seed of all random choices."
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link what the data decides about the model, and add ``--experiment`` and ``--test_weights``."""
        if self.typed.subcommand != "predict" and self.typed.describes_data:  # else the model is that of the checkpoint
            for name in self.trained.objective.from_data:
                parser.link_arguments(
                    "data", f"model.init_args.{name}", lambda data, name=name: self._of_data(name, data), "instantiate"
                )
        # Only the class that is asked for: jsonargparse passes the defaults of a default class on to another one.
        if self.typed.model is None or self.typed.model == self.trained.objective.__name__:
            parser.set_defaults({"model": {"class_path": class_path(self.trained.objective)}})
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)
        parser.add_argument(
            "--experiment",
            type=str | None,
            default=None,
            help="Name of the folder under runs/; None takes the name of the config file, or of the data set.",
        )
        parser.add_argument(
            "--test_weights",
            type=Literal["last", "best"],
            default="last",
            help="Weights that the test at the end of fit takes: those of the last step, or of the best validation.",
        )

    def _of_data(self, name: str, data: LightningDataModule) -> Any:
        """Return an argument of the model that the data decide.

        In an evaluation, ``mean`` and ``std`` come from the weights if the data have no such options. Image files are
        read in the channels of the weights.
        """
        of_images = self.trained.of_images if self.typed.subcommand != "fit" else {}
        if name in ("mean", "std") and name in of_images and name not in constructor_arguments(type(data)):
            return of_images[name]
        if isinstance(data, LabelledFiles) and of_images.get("stretch"):
            data.stretch = True
        if isinstance(data, LabelledFiles) and of_images.get("in_channels") in COLOURS:
            data.read_as(of_images["in_channels"])
        return getattr(data, name, None)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        parser.epilog = (
            f"The arguments of a model and of a data set: {command_prefix()} {subcommand} --model.help ViTClassifier, "
            "and --data.help CIFAR10."
        )
        path = next(action for action in parser._actions if action.dest == "ckpt_path")
        path.help = (
            f"{HELP[0].upper()}{HELP[1:]} (of --experiment, if it is given). fit continues its run; with "
            '"auto", it continues the newest one of the experiment, and starts where there is none.'
        )
        if subcommand != "fit":
            parser.add_argument(
                "--optimize",
                type=Literal["float32", "bfloat16"] | None,
                default=None,
                help="Compute by a program of vit.optimize in this type: making it takes seconds, which many images or "
                "a large model win back. None computes by the model itself.",
            )
        if subcommand == "predict":
            parser.add_argument(
                "--output",
                type=str | None,
                default=None,
                help="CSV file of the predictions; None is predictions.csv in the folder of the run (of a checkpoint "
                "outside of a run, or of a run that cannot be written: in this folder), or predictions_1.csv where "
                "that exists.",
            )
            add_overwrite(parser)
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments; those of the trained weights, if there are some, are the defaults."""
        if not isinstance(self.arguments, list):
            self.arguments = []
            super().parse_arguments(parser, args)
            return
        subcommand, trained = self.typed.subcommand, self.trained
        if subcommand not in getattr(self, "_subcommand_parsers", {}):  # a call that builds and runs nothing
            self.config = parser.parse_args(self.arguments)
            return
        self._subcommand_parsers[subcommand].set_defaults(trained.arguments)
        self.config = parser.parse_args(self._words())
        chosen = self.config[subcommand]
        check_seed(chosen["seed_everything"])
        if self.typed.checkpoint == AUTO:
            check_same_seed(trained, chosen["seed_everything"])
        if chosen["ckpt_path"] == AUTO:  # there is no checkpoint yet
            chosen["ckpt_path"] = None
        # A checkpoint that is continued holds the weights.
        if "init_from" in (chosen.get("model") or {}).get("init_args", {}) and (trained.path or trained.start):
            chosen.model.init_args.init_from = trained.start
        if subcommand == "fit" and trained.path is not None and not self.typed.configs:
            check_runs_no_command(trained, self.typed.others, chosen.get("data") or {})
        data = (chosen.get("data") or {}).get("init_args", {})
        for name in (name for name in trained.of_images if name in data and data[name] is None):
            data[name] = trained.of_images[name]

    def _parse_ckpt_path(self) -> None:
        """Do nothing: in Lightning, the checkpoint overrules the command line; here it sets the defaults."""

    def _words(self) -> list[str]:
        """Return the typed arguments as the parser is to read them: configs first, so that typed options overrule them.

        Trained weights add ``--ckpt_path`` as a file, and the config of the run to continue.
        """
        typed, trained, configs = self.typed, self.trained, list(self.typed.configs)
        has_length = any(word.startswith("--trainer.max_") for word in typed.others)
        continues = typed.subcommand == "fit" and trained.path is not None
        if continues and not configs and (config := config_of_run(trained, is_needed=not has_length)):
            configs = [str(config)]
            typed.limits = limits_of(read_config(config)) | typed.limits
        words = [word for config in configs for word in ("--config", config)]
        named = ["--experiment", typed.experiment] if typed.experiment else []
        of_file = ["--ckpt_path", str(trained.path)] if trained.is_checkpoint else []
        return [typed.subcommand, *words, *trained.words, *classes_first(typed.others), *named, *of_file]

    def before_instantiate_classes(self) -> None:
        """Check what can be known before the images are read and the model is built."""
        if self.subcommand is None:
            return
        trainer = self._get(self.config, "trainer")
        settings = (self._get(self.config, "model") or {}).get("init_args") or {}
        check_devices(trainer)
        if self.subcommand == "fit":
            check_trainer(trainer)
            check_sharded(trainer["strategy"], settings, self.trained.objective)
        else:
            check_limit(self.subcommand, trainer)
        check_memory(self.subcommand, settings)

    def instantiate_classes(self) -> None:
        """Build data, model and trainer."""
        self.ask_own_data()
        if self.typed.optimizer:
            replaced = ", ".join(f"--model.{name}" for name in OF_OPTIMIZER)
            print_once(f"--optimizer replaces {replaced}")
        super().instantiate_classes()
        channels = self.model.hparams.get("in_channels")
        if self.subcommand == "predict" and isinstance(self.datamodule, LabelledFiles) and channels in COLOURS:
            self.datamodule.read_as(channels)

    def ask_own_data(self) -> None:
        """Build the data module if it is a user's own: it tells the model about its images by attributes."""
        if self.typed.describes_data:
            return
        parser, asked = self._parser(self.subcommand), self._get(self.config, "model").init_args
        data = parser.instantiate_classes(Namespace(data=self._get(self.config, "data"))).data
        names = [name for name in self.trained.objective.from_data if name not in self.typed.given]
        self.data_arguments = arguments_of_own_data(data, names, self.trained.of_images)
        for name, value in self.data_arguments.items():
            asked[name] = value
        parser.add_instantiator(lambda *_, **__: data, type(data), subclasses=False)  # not built twice

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer, with the fastest precision, loggers and the callbacks of the run."""
        config = {**self._get(self.config_init, "trainer"), **self.typed.single, **kwargs}
        fit, asked = self.subcommand in ("fit", None), as_plugin_list(config["callbacks"])
        check_callbacks(asked, self.model.monitor.name, validates(self.datamodule))
        self._stop_if_finished()
        if not fit:
            config["enable_checkpointing"] = False
        elif not validates(self.datamodule):
            config["limit_val_batches"] = 0
        if self.subcommand == "predict":
            config["devices"] = 1
        saves = self.subcommand == "fit" and config["enable_checkpointing"] is not False
        asks_for_best = self.subcommand == "fit" and self._get(self.config, "test_weights") == "best"
        if asks_for_best and config["limit_test_batches"] != 0:
            check_keeps_best(saves, config["limit_val_batches"] != 0)
        self.run_folder = self._choose_run_folder(claim=self.subcommand is not None and not config["fast_dev_run"])
        self._set_engine(config)
        if config["logger"] in (None, True):
            experiment = self.run_folder.parent
            config["logger"] = fit and CSVLogger(experiment.parent, experiment.name, self.run_folder.name)
        callbacks = [*self._callbacks(self._checkpoints() if saves else []), *display_callbacks(config, asked)]
        try:
            return self._instantiate_trainer(config, callbacks)
        except ModuleNotFoundError as error:
            options = ", ".join(f"{name} {config[name]}" for name in ("accelerator", "strategy", "precision"))
            package = re.sub(r"^Requirement '(\w+).*", r"\1", str(error), flags=re.DOTALL)
            raise ValueError(
                f"one of {options} needs {package}, which is not installed: leave that option out, or install it"
            ) from None

    def _set_engine(self, config: dict[str, Any]) -> None:
        """Set the precision unless a plugin does, plugins, devices and strategy."""
        chosen = None
        if not sets_precision(config["plugins"]):
            chosen = None if config["precision"] else self._choose_precision(config["accelerator"])
            config["precision"] = config["precision"] or chosen
            if self.subcommand == "fit":
                self.config["fit"]["trainer"]["precision"] = config["precision"]  # for config.yaml
        if self.subcommand == "fit" and (line := numerics_in_python(chosen, config["gradient_clip_val"])):
            print_once(line)
        set_engine(config)

    def _stop_if_finished(self) -> None:
        """End with one line if the run to resume is finished, and this one would be as long."""
        origin = run_folder_of(self.trained.path)
        if self.subcommand != "fit" or origin is None:
            return
        config, finished = origin / "config.yaml", read_results(origin).get("finished", False)
        if finished and config.exists() and has_same_length(config, self._get(self.config, "trainer")):
            rank_zero_only(complete_report)(origin)
            print_once(f"{origin} is finished; to train on, set a larger {LENGTH}")
            raise SystemExit(0)

    def _choose_precision(self, accelerator: Any) -> str:
        """Return the fastest precision, or for an evaluation that of the training, so that its numbers are repeated."""
        folder = run_folder_of(self.trained.path) or self.run_folder
        known = read_results(folder) if self.subcommand in ("validate", "test") else {}
        return known.get("precision") or fastest_precision(accelerator)

    def _callbacks(self, checkpoints: list[Callback]) -> list[Callback]:
        dtype = self._get(self.config, "optimize")
        programs = [] if dtype is None else [OptimizedNetwork(dtype)]
        if self.subcommand == "predict":
            self.same_split = SameSplit({})
            return [*programs, self.same_split, self._prediction_writer()]
        text, data = "", {}
        if self.subcommand in ("fit", None):  # only a training writes config.yaml and checkpoints
            self._dump_config()
            data = self.config_dump["data"]
        if self.subcommand == "fit":
            text = self.config_text()
        self.record = RunRecord(self.run_folder, self._facts(), text, data)
        seed = int(self._get(self.config, "seed_everything"))
        self.same_split = SameSplit(self.record.facts)
        start = [SameStart(self.trained.path)] if self.typed.checkpoint == AUTO else []
        return [*programs, *start, self.same_split, *run_callbacks(seed, self.record, checkpoints)]

    def config_text(self) -> str:
        """Return all options of a training as YAML, typed or not, except for what the data tell the model."""
        text = self._parser("fit").dump(self.config["fit"], skip_none=False)
        if self.data_arguments:
            options = yaml.safe_load(text)
            for name in self.data_arguments:
                del options["model"]["init_args"][name]
            text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
        for name in self.typed.single:
            text = text.replace(f"  {name}: 1.0\n", f"  {name}: 1\n")
        return text

    def _facts(self) -> dict[str, Any]:
        """Return what is known before the run."""
        facts = {
            "experiment": self._experiment(),
            "data": " ".join([type(self.datamodule).__name__, str(getattr(self.datamodule, "root", ""))]).strip(),
            "seed": int(self._get(self.config, "seed_everything")),
            "command": f"{command_prefix()} {shlex.join(self.arguments)}",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if self.subcommand in ("test", "validate"):
            facts |= {"split": self.subcommand, "checkpoint": str(self.trained.path)}
            facts |= {"optimize": self._get(self.config, "optimize")}
        else:
            facts["test_weights"] = self._get(self.config, "test_weights")
        return facts

    def _prediction_writer(self) -> PredictionWriter:
        output = self._get(self.config, "output")
        path = Path(output) if output else self.run_folder / "predictions.csv"
        how = [self._get(self.config, "optimize"), self._get(self.config, "trainer")["precision"]]
        predicted = fingerprint_of_predictions(self.trained.path, self.datamodule, how, dict(self.model.hparams))
        columns, overwrite = self.model.prediction_columns, self._get(self.config, "overwrite")
        return PredictionWriter(path, output is not None, predicted, columns, overwrite=overwrite)

    def _checkpoints(self) -> list[Callback]:
        folder = self.run_folder / "checkpoints"
        best = [RunCheckpoint(folder, "best", self.model.monitor)] if validates(self.datamodule) else []
        return [*best, RunCheckpoint(folder, "last"), Preemption(folder / "last.ckpt")]

    def _experiment(self) -> str:
        configs = [Path(str(config)) for config in self._get(self.config, "config") or []]
        given = self._get(self.config, "experiment")
        return experiment_name(given, run_folder_of(self.trained.path), configs, self.datamodule)

    def _choose_run_folder(self, claim: bool) -> Path:
        """Return the folder to write into, and remember it if it is a new one."""
        root = Path(self._get(self.config, "trainer")["default_root_dir"] or "")
        folder, is_new = choose_folder(self.subcommand, self._experiment(), root, self.trained.path, claim)
        self.claimed = folder if is_new else None
        return folder

    def before_validate(self) -> None:
        """Load the weights here: Lightning would require the callbacks of the training."""
        keep_freed_memory()
        arguments = self.config_init[self.subcommand]
        if self.trained.path is not None:
            if self.subcommand == "test":  # now, as a training that goes on replaces its checkpoints
                self.record.facts["tested_sha256"] = sha256_of(self.trained.path)
            self._load_weights(self.trained.path)
            arguments["ckpt_path"] = None
        if "verbose" in arguments:
            arguments["verbose"] = False

    before_test = before_predict = before_validate

    def _load_weights(self, path: Path) -> None:
        checkpoint = read_evaluated(path, self.typed.wanted, self.model.encoder)
        if self.subcommand in ("validate", "test", "predict"):
            self.same_split.before = checkpoint.get(SPLIT)
        load_evaluated(self.model, checkpoint)

    def after_fit(self) -> None:
        """Validate the final weights, and test them or the best ones, once."""
        if self.trainer.fast_dev_run:
            return
        if self.trained.path is not None and self.record.is_first:
            print_once(
                f"nothing was left to train after epoch {self.trainer.current_epoch}, step {self.trainer.global_step}: "
                f"to train on, set a larger {LENGTH}"
            )
        ending = {"model": self.model, "datamodule": self.datamodule, "verbose": False}
        if has_split(self.datamodule, "val") and self.record.measurements.last_step("val") != self.trainer.global_step:
            self.trainer.validate(**ending)
            self._note_choices()
        best = self._keep_best()
        if has_split(self.datamodule, "test") and self.trainer.limit_test_batches != 0:
            if self._get(self.config, "test_weights") == "best":
                if best is None:
                    raise ValueError("test_weights is best, and the run kept no best.ckpt: set it to last")
                self._load_weights(Path(best.best_model_path))
                self.record.note_best(best.monitor, best.best_model_score, self.model)
            self.trainer.test(**ending)
        self.record.write_results(self.trainer, self.model, finished=True)
        self._print_results()

    @rank_zero_only
    def _note_choices(self) -> None:
        """Put the thresholds of a validation after the last step into the checkpoint, which was saved before it."""
        path = self.run_folder / "checkpoints/last.ckpt"
        if path.is_file() and self.model.note_choices(checkpoint := read_checkpoint(path)):
            AtomicCheckpointIO().save_checkpoint(checkpoint, path)

    def _keep_best(self) -> RunCheckpoint | None:
        """Return what saved ``best.ckpt``; a run that ended before its first validation copies its last one there."""
        saving = (each for each in self.trainer.checkpoint_callbacks if isinstance(each, RunCheckpoint))
        best = next((each for each in saving if each.monitor is not None), None)
        if best is not None and not best.best_model_path:
            best.take(Path(best.dirpath) / "last.ckpt")  # the folder that Lightning tells all processes
        self.trainer.strategy.barrier()
        return best if best is not None and best.best_model_path else None

    def after_validate(self) -> None:
        """Write the report, and print the results."""
        if not self.trainer.fast_dev_run:
            self._print_results()

    @rank_zero_only
    def _print_results(self) -> None:
        write_report(self.run_folder)
        print_results(self.run_folder)

    after_test = after_validate
