"""Typed arguments, read once before the parser is built: the model and data that they ask for, and their configs."""

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lightning import LightningDataModule

from vit.commands.configs import read_config
from vit.commands.own_classes import find_own, path_of
from vit.commands.parser import Parser
from vit.data.module import ImageDataModule
from vit.objectives import DEFAULT, OBJECTIVES
from vit.runs.folders import experiment_of
from vit.support.checks import nearest_hint
from vit.training.objective import Objective
from vit.weights.loading import GIVEN_BY_CALLER

SET_BY_DATA = ("image_size", "letters", "max_length", "mean", "std")  # arguments of some data sets
BATCHES = (
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "overfit_batches",
    "val_check_interval",
)
PLACES = ("root", "table", "urls", "val_urls", "test_urls")  # arguments of data sets that say where their images are
READ_OF_MODEL = ("init_from", *GIVEN_BY_CALLER)
PRINTS = ("--help", "-h", "--print_config", "--model.help", "--data.help")


@dataclass
class TypedArguments:
    """What typed arguments and their configs say, before they are parsed.

    Attributes:
        subcommand: The first word.
        model: Name of the objective that is asked for; None if none is.
        data: Name of the data module that is asked for; None if none is.
        own_model: The class of the model that is asked for, if it is a user's own.
        own_data: The class of the data module that is asked for, if it is a user's own.
        given: Names of the arguments of the model that are typed or in a config.
        of_configs: Names of the arguments of the model that a config sets to a value.
        optimizer: Whether an optimiser is asked for by ``--optimizer``, as Lightning's command line has it.
        configs: The typed configs.
        checkpoint: The value of ``--ckpt_path``, typed or in a config.
        experiment: The value of ``--experiment``.
        experiment_of_config: The name of the experiment in a config.
        root: The folder that contains ``runs/``: the value of ``--trainer.default_root_dir``.
        limits: Numbers of batches, as text, because the parser reads 1 (one batch) as 1.0 (all batches).
        places: Where the images are, typed or in a config, by the names of ``PLACES``.
        start: The value of ``--model.init_from``, typed or in a config.
        wanted: Arguments of the model that the tensors of ``start`` do not tell.
        others: The other words after the subcommand.
        only_prints: Whether the command prints help or a config, and runs nothing.
    """

    subcommand: str | None = None
    model: str | None = None
    data: str | None = None
    own_model: type[Objective] | None = None
    own_data: type[LightningDataModule] | None = None
    given: set[str] = field(default_factory=set)
    of_configs: set[str] = field(default_factory=set)
    optimizer: bool = False
    configs: list[str] = field(default_factory=list)
    checkpoint: str | None = None
    experiment: str | None = None
    experiment_of_config: str | None = None
    root: Path = Path()
    limits: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    start: str | None = None
    wanted: dict[str, Any] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    only_prints: bool = False

    @property
    def single(self) -> dict[str, int]:
        """The options of the trainer that ask for one batch."""
        return {name: 1 for name, limit in self.limits.items() if limit == "1"}

    @property
    def experiment_of_runs(self) -> str | None:
        """The experiment whose runs are meant: the one that is named, or else that of the last config."""
        of_file = experiment_of(Path(self.configs[-1])) if self.configs else None
        return self.experiment or self.experiment_of_config or of_file

    @property
    def objective(self) -> type[Objective]:
        """The objective that is asked for; the default one for an unknown name, which the parser refuses."""
        return self.own_model or OBJECTIVES.get(self.model, DEFAULT)

    @property
    def types_data(self) -> bool:
        """Whether the data are named on the command line itself, not by a config alone."""
        return any(word.split("=")[0] == "--data" for word in self.others)

    @property
    def describes_data(self) -> bool:
        """Whether the data module is one of ours, or derived from it: all of them tell what a model needs to know."""
        return self.own_data is None or issubclass(self.own_data, ImageDataModule)


def read_typed(arguments: Any) -> TypedArguments:
    """Read a command line, or the arguments of a call by name.

    >>> typed = read_typed(["fit", "--model=SequenceReader", "--model.init_from", "vit.pth", "--model.num_heads=3"])
    >>> typed.model, typed.start, typed.wanted
    ('SequenceReader', 'vit.pth', {'num_heads': 3})

    Raises:
        ValueError: If a config cannot be read, a word is not valid text, or an argument sets what the data decides
            about the model.
    """
    if not isinstance(arguments, list):
        parts = arguments or {}
        model, data = (path_of(parts.get(part)) for part in ("model", "data"))
        own = {"own_model": find_own(model, Objective), "own_data": find_own(data, LightningDataModule)}
        return TypedArguments(model=_class_name(model), **own, given=_arguments_of(parts.get("model")).keys())
    words = [_short(str(word)) for word in arguments]
    for word in words:
        _check_text(word)
    scan = Parser(add_help=False, allow_abbrev=False)
    scan.add_argument("--ckpt_path")
    scan.add_argument("--experiment")
    scan.add_argument("-c", "--config", action="append", default=[])
    typed, others = scan.parse_known_args(words[1:])
    about = _read_options(others)
    found = TypedArguments(
        subcommand=words[0] if words else None,
        given={name[1] for word in others if (name := re.match(r"--model\.(?:init_args\.)?(\w+)", word))},
        optimizer=any(re.match(r"--optimizer\b", word) for word in others),
        configs=typed.config,
        experiment=typed.experiment,
        others=others,
        only_prints=any(word.split("=")[0] in PRINTS for word in words),
    )
    asked: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for config in typed.config:
        named |= _read_parts(read_config(Path(config)), found, asked)
    asked |= {name: yaml.safe_load(value) for name in READ_OF_MODEL if (value := vars(about)[name]) is not None}
    if "norm_eps" in asked:
        asked["norm_eps"] = float(asked["norm_eps"])  # YAML reads 1e-5 as text
    if about.model is not None:
        _check_model(about.model)
    model, data, root = (vars(about)[name] or named.get(name) for name in ("model", "data", "root"))
    found.model, found.data = _class_name(model), _class_name(data)
    found.own_model, found.own_data = find_own(model, Objective), find_own(data, LightningDataModule)
    found.root = Path(str(root or ""))
    found.checkpoint = typed.ckpt_path or named.get("checkpoint")
    found.limits |= {name: value for name in BATCHES if (value := vars(about)[name]) is not None}
    found.places |= {name: value for name in PLACES if (value := vars(about)[f"data.{name}"]) is not None}
    found.start, found.wanted = asked.pop("init_from", None), asked
    _check_not_of_data(found)
    return found


def _short(word: str) -> str:
    """Return an option without the names of a config's levels: both spellings mean the same to the parser.

    >>> _short("--model.init_args.depth=3"), _short("--data.class_path"), _short("--data.root")
    ('--model.depth=3', '--data', '--data.root')
    """
    return re.sub(r"^--(model|data)\.(?:class_path(?![^=])|init_args(?=\.))", r"--\1", word)


def _read_parts(content: dict[str, Any], found: TypedArguments, asked: dict[str, Any]) -> dict[str, Any]:
    """Read a config: add what it says to ``found``, and what weights do not tell of the model to ``asked``.

    Returns:
        The model, the data, the root of the runs and the checkpoint, as far as the config names them.
    """
    model, data, trainer = (content.get(part) for part in ("model", "data", "trainer"))
    if isinstance(model, str):
        _check_model(model)
    of_model, of_data = _arguments_of(model), _arguments_of(data)
    asked |= {name: of_model[name] for name in READ_OF_MODEL if name in of_model}
    found.given |= of_model.keys()
    found.of_configs |= {name for name, value in of_model.items() if value is not None}
    found.places |= {name: str(value) for name, value in of_data.items() if name in PLACES}
    found.optimizer |= bool(content.get("optimizer"))
    if content.get("experiment") is not None:
        found.experiment_of_config = str(content["experiment"])
    root = None
    if isinstance(trainer, dict):
        found.limits |= limits_of(content)
        root = trainer.get("default_root_dir")
    checkpoint = content.get("ckpt_path")
    named = {"model": path_of(model), "data": path_of(data), "root": root, "checkpoint": checkpoint}
    return {name: value for name, value in named.items() if value}


def _read_options(words: Sequence[str]) -> Namespace:
    """Return the options that are needed before the parser is built, which reads them again."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--trainer.default_root_dir", dest="root")
    for group, names in (("trainer", BATCHES), ("model", READ_OF_MODEL)):
        for name in names:
            parser.add_argument(f"--{group}.{name}", dest=name)
    for name in PLACES:
        parser.add_argument(f"--data.{name}")
    return parser.parse_known_args(words)[0]


def classes_first(words: Sequence[str]) -> list[str]:
    """Return options, those without a dot first: the parser takes ``--data.root`` only after ``--data ImageFolder``.

    >>> classes_first(["--data.root", "photos", "--data", "ImageFolder", "--trainer.max_steps", "-1"])
    ['--data', 'ImageFolder', '--data.root', 'photos', '--trainer.max_steps', '-1']
    """
    options: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            options.append([])
        options[-1].append(word)
    ordered = sorted(options, key=lambda option: "." in "".join(option[:1]).partition("=")[0])
    return [word for option in ordered for word in option]


def _check_text(word: str) -> None:
    """Check that a word is valid text, so that a config can hold it: names of files may be any bytes."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{word} has bytes that are no text in UTF-8: rename the file or folder, or name a link to it"
        ) from None


def limits_of(config: dict[str, Any]) -> dict[str, str]:
    """Return the numbers of batches in a config, as text.

    >>> limits_of({"trainer": {"limit_test_batches": 1, "max_epochs": 2}})
    {'limit_test_batches': '1'}
    """
    trainer = config.get("trainer") or {}
    return {name: repr(trainer[name]) for name in BATCHES if name in trainer}


def _check_model(name: str) -> None:
    """Check that there is a model of this name; the parser checks paths of classes."""
    if re.fullmatch(r"[\w-]+", name) and not _is_model(name):
        raise ValueError(
            f"--model: unknown model {name!r}: choose one of {', '.join(OBJECTIVES)}{nearest_hint(name, OBJECTIVES)}"
        )


def _is_model(name: str, base: type = Objective) -> bool:
    """Whether a name is that of an objective of the package, or of one that a user has imported."""
    return name in OBJECTIVES or any(name == cls.__name__ or _is_model(name, cls) for cls in base.__subclasses__())


def _arguments_of(asked: Any) -> dict[str, Any]:
    """Return the arguments in the part of a config."""
    return (asked.get("init_args", asked) or {}) if isinstance(asked, dict) else {}


def _class_name(path: str | None) -> str | None:
    """Return the name of a class without its path, which differs in earlier versions."""
    return path.rpartition(".")[2] if path else None


def _check_not_of_data(typed: TypedArguments) -> None:
    if not typed.describes_data:
        return
    words = {word.split("=")[0] for word in typed.others}
    for name in typed.objective.from_data:
        if f"--model.{name}" in words or name in typed.of_configs:
            said = f"--model.{name}" if f"--model.{name}" in words else f"{name} of the model in a config"
            remedy = f"set --data.{name}, or leave it out" if name in SET_BY_DATA else "leave it out"
            raise ValueError(f"{said} is that of the data: {remedy}")
