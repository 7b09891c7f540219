"""The command ``vit-attention folds``: a training for each fold of cross-validation and for each seed."""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.cli import instantiate_class

from vit.commands.configs import find_configs
from vit.commands.fit import main as fit
from vit.commands.parser import Parser
from vit.commands.training_cli import ViTCLI
from vit.commands.typed_arguments import read_typed
from vit.runs.child_processes import TrainingError, train_all
from vit.runs.folders import RUNS, check_experiment, experiment_of
from vit.runs.out_of_fold import write_out_of_fold
from vit.runs.report import duration
from vit.runs.several import Member, claim_experiment, find_runs, finished_run, last_checkpoint
from vit.runs.summary import write_summary
from vit.runs.tested_images import TEST_IMAGES
from vit.support.checks import check_natural, check_positive_int
from vit.support.files import plain_message

FOLDS = 5
ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has one of them
BEFORE_ALL = "; the same command starts again"
# Options of fit that this command sets, or that leave it without results, and what to type.
NOT_TYPED = {
    "--data.folds": "type --folds",
    "--data.fold": "leave it out, as each fold is trained",
    "--ckpt_path": "leave it out: the same command continues what was stopped",
    "--trainer.fast_dev_run": "try fit, which leaves no results either",
    "--print_config": "try fit --print_config",
    "--trainer.default_root_dir": "leave it out: the runs are written below the current folder",
}


@dataclass
class FoldPlan:
    """The runs that are asked for.

    Attributes:
        words: Options of fit that all runs share.
        folds: Number of folds; None for none.
        seeds: The seeds.
        config: All options of the first run.
        data: The data module of the first run.
        folder: The folder of the experiment.
    """

    words: list[str]
    folds: int | None
    seeds: list[int]
    config: dict[str, Any]
    data: Any
    folder: Path

    @property
    def members(self) -> list[Member]:
        """The runs, fold by fold for each seed."""
        folds = [None] if self.folds is None else range(self.folds)
        return [Member(fold, seed) for seed in self.seeds for fold in folds]

    def arguments(self, member: Member, checkpoint: Path | None) -> list[str]:
        """Return the arguments of fit for a run, which continues a checkpoint or starts anew."""
        experiment = ["--experiment", self.folder.name]
        if checkpoint is not None:  # its run has a config, whose commands have to be typed again
            return ["--ckpt_path", str(checkpoint), *experiment, *_typed_shards(self.words)]
        return [*self.words, *_of_member(self.folds, member.fold, member.seed), *experiment]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``vit-attention folds``: train for each fold and each seed, and write mean and spread of the scores."""
    parser = make_parser()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options, words = parser.parse_known_args(typed)
    try:
        _run(options, words, shlex.join(["vit-attention", "folds", *typed]))
    except (ValueError, OSError) as error:
        parser.error(" ".join(plain_message(error).split()))
    except KeyboardInterrupt:
        _end(128 + signal.SIGINT, f"stopped{BEFORE_ALL}")


def make_parser() -> Parser:
    """Return the parser of the options that ``fit`` does not have; it leaves the others to ``fit``."""
    parser = Parser(
        prog="vit-attention folds",
        description="Train a model for each fold of cross-validation, or for each seed, and write the mean and the "
        "spread of the scores and a table of what was predicted of each test image. Runs that are finished are not "
        "trained again, and stopped ones continue from their last checkpoint.",
        epilog="All options of fit are taken, too: vit-attention fit --help. "
        "Example: vit-attention folds --config photos --data.root photos --folds 5 --seeds 0 1 2",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--folds", type=int, metavar="K", help=f"number of folds (default: {FOLDS}, or none if --seeds are given)")
    add("--seeds", type=int, nargs="+", metavar="SEED", help="seeds (default: that of the config)")
    add("--parallel", type=int, default=1, metavar="N", help="runs at a time, which share the cores (default: 1)")
    return parser


def _run(options: argparse.Namespace, words: list[str], command: str) -> None:
    plan = _plan(options, words)
    lock = FileLock(plan.folder / ".folds.lock")
    plan.folder.mkdir(parents=True, exist_ok=True)
    try:
        with lock.acquire(timeout=0):
            claim_experiment(plan.folder, plan.config, plan.data)
            _train(plan, options.parallel)
            _write(plan, command)
    except Timeout:
        raise ValueError(f"another process trains the runs of {plan.folder}: wait for it") from None


def _plan(options: argparse.Namespace, words: list[str]) -> FoldPlan:
    """Return the runs that typed options ask for; options that ``fit`` refuses end the program."""
    if options.folds is not None:
        check_positive_int("--folds", options.folds, f"{FOLDS} is usual")
    check_positive_int("--parallel", options.parallel)
    for seed in options.seeds or []:
        check_natural("--seeds", seed)
    refused = NOT_TYPED | ({"--seed_everything": "leave it out beside --seeds"} if options.seeds else {})
    for word in (word.split("=")[0] for word in words):
        if word in refused:
            raise ValueError(f"folds takes no {word}: {refused[word]}")
    words = find_configs(words)
    typed = read_typed(["fit", *words])
    if typed.checkpoint is not None:
        raise ValueError(f"folds takes no ckpt_path in a config: {NOT_TYPED['--ckpt_path']}")
    folds = FOLDS if options.folds is None and not options.seeds else options.folds
    first = options.seeds[0] if options.seeds else None
    config = _all_options([*words, *_of_member(folds, 0, first)])
    _check_configs(config, folds)
    if folds is not None and (config.get("trainer") or {}).get("limit_test_batches") is not None:
        raise ValueError("every image is tested in its fold: leave --trainer.limit_test_batches out")
    seeds = list(dict.fromkeys(options.seeds or [int(config["seed_everything"])]))
    name = typed.experiment or f"{_name(typed.configs, config['data'])}_{'seeds' if folds is None else 'folds'}"
    check_experiment(name)
    return FoldPlan(words, folds, seeds, config, instantiate_class((), config["data"]), RUNS / name)


def _check_configs(config: dict[str, Any], folds: int | None) -> None:
    """Check that no config sets what this command sets, or leaves it without results."""
    of_data = config["data"].get("init_args") or {}
    for name in ("default_root_dir", "fast_dev_run"):
        if (config.get("trainer") or {}).get(name):
            raise ValueError(f"folds takes no {name} in a config: {NOT_TYPED[f'--trainer.{name}']}")
    if folds is None and of_data.get("folds") is not None:
        raise ValueError(f"folds takes no folds of the data in a config: {NOT_TYPED['--data.folds']}")


def _typed_shards(words: Sequence[str]) -> list[str]:
    """Return the words that name shards, which may be commands.

    >>> _typed_shards(["--data", "Shards", "--data.urls", "pipe:cat a.tar", "--data.val_urls=b.tar"])
    ['--data.urls', 'pipe:cat a.tar', '--data.val_urls=b.tar']
    """
    names = ("--data.urls", "--data.val_urls", "--data.test_urls")
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in names:
            found += [word, following]
        elif word.startswith(tuple(f"{name}=" for name in names)):
            found.append(word)
    return found


def _of_member(folds: int | None, fold: int | None, seed: int | None) -> list[str]:
    of_fold = [] if folds is None else ["--data.folds", str(folds), "--data.fold", str(fold)]
    return [*of_fold, *([] if seed is None else ["--seed_everything", str(seed)])]


class Options(ViTCLI):
    """Parses the options of a training, with the defaults of the weights to start from; runs nothing."""

    def instantiate_classes(self) -> None:
        """Build only a user's own data module. What it tells of its images is not part of a run's config."""
        self.ask_own_data()

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing."""


def _all_options(arguments: list[str]) -> dict[str, Any]:
    """Return all options of a training by name, typed or not, as its run notes them."""
    return yaml.safe_load(fit(["fit", *arguments], cli=Options).config_text())


def _name(configs: list[str], data: dict[str, Any]) -> str:
    """Return the name that a training without ``--experiment`` has."""
    if configs:
        return experiment_of(Path(configs[-1]))
    kind = data["class_path"].rpartition(".")[2]
    return Path(data["init_args"]["root"]).resolve().name if kind == "ImageFolder" else kind.lower()


def _train(plan: FoldPlan, parallel: int) -> None:
    """Train what is not finished; a run that fails, Ctrl-C and SIGTERM end the program with a line."""
    found, members = find_runs(plan.folder, plan.config), plan.members
    todo = [member for member in members if finished_run(found.get(member, [])) is None]
    resumed = {member: path for member in todo if (path := last_checkpoint(found.get(member, [])))}
    print(
        f"{plan.folder}: {len(members)} runs, {len(members) - len(todo)} finished, {len(resumed)} continue from a "
        "checkpoint",
        flush=True,
    )
    threads = None
    if parallel > 1 and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, (os.cpu_count() or 1) // parallel)
    trainings = {member.name: plan.arguments(member, resumed.get(member)) for member in todo}
    start, ended = time.monotonic(), 0
    before = {number: signal.signal(number, _raise_exit) for number in ENDING}
    try:
        for name in train_all(trainings, parallel, threads):
            ended += 1
            left = (time.monotonic() - start) / ended * (len(todo) - ended)
            rest = f", about {duration(left)} left" if left else ""
            print(f"{name}: finished, {len(members) - len(todo) + ended} of {len(members)} runs{rest}", flush=True)
    except TrainingError as error:
        _end(2, f"error: {str(error).replace(': error: ', ': ', 1)}{_kept(plan)}")
    except KeyboardInterrupt:
        _end(128 + signal.SIGINT, f"stopped{_kept(plan) or BEFORE_ALL}")
    except SystemExit as end:  # of _raise_exit
        _end(int(end.code or 0), f"stopped{_kept(plan) or BEFORE_ALL}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_exit(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _end(status: int, line: str) -> NoReturn:
    print(line, file=sys.stderr, flush=True)
    raise SystemExit(status)


def _kept(plan: FoldPlan) -> str:
    """Return which runs are finished or can be continued, as the end of a line."""
    found = find_runs(plan.folder, plan.config)
    finished = [member for member in plan.members if finished_run(found.get(member, []))]
    begun = [
        member.name for member in plan.members if member not in finished and last_checkpoint(found.get(member, []))
    ]
    if not finished and not begun:
        return ""
    continued = f", and {'; '.join(begun)} will continue from the last checkpoint" if begun else ""
    return f"; {len(finished)} of {len(plan.members)} runs finished{continued}: the same command goes on"


def _write(plan: FoldPlan, command: str) -> None:
    """Write and print the scores of all runs, and the table of their test images."""
    found = find_runs(plan.folder, plan.config)
    runs = {member: finished_run(found[member]) for member in plan.members}
    images = write_out_of_fold(plan.folder / TEST_IMAGES, runs, getattr(plan.data, "groups", {}))
    facts = {"experiment": plan.folder.name, "folds": plan.folds, "seeds": plan.seeds, "command": command}
    print(write_summary(plan.folder, runs, facts | {"test_images": images}))
    print(f"experiment: {plan.folder}, with results.json and summary.md")
    if images:
        print(f"  {plan.folder / TEST_IMAGES}: what was predicted of {images:,} test images")
