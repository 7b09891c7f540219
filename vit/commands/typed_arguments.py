"""Typed arguments, read once before the parser is built: the model and data that they ask for, and their configs."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vit.commands.configs import read_config
from vit.commands.parser import Parser
from vit.objectives import DEFAULT, OBJECTIVES
from vit.support.checks import nearest_hint
from vit.training.base import Objective
from vit.weights.loading import TOLD_BY_CALLER

SET_BY_DATA = ("image_size", "letters", "max_length", "mean", "std")  # arguments of some data sets
BATCHES = (
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
    "val_check_interval",
)
PRINTS = ("--help", "-h", "--print_config", "--model.help", "--data.help")


@dataclass
class TypedArguments:
    """What typed arguments and their configs say, before they are parsed.

    Attributes:
        subcommand: The first word.
        model: Name of the objective that is asked for; None if none is.
        data: Name of the data module that is asked for; None if none is.
        configs: The typed configs.
        checkpoint: The value of ``--ckpt_path``.
        experiment: The value of ``--experiment``.
        root: The folder in which ``runs/`` is: the value of ``--trainer.default_root_dir``.
        limits: Numbers of batches, as text: the parser reads 1, one batch, as 1.0, all of them.
        start: The value of ``--model.init_from``, typed or in a config.
        told: Arguments of the model that the tensors of ``start`` do not tell.
        others: The other words after the subcommand.
        only_prints: Whether the command prints help or a config, and runs nothing.
    """

    subcommand: str | None = None
    model: str | None = None
    data: str | None = None
    configs: list[str] = field(default_factory=list)
    checkpoint: str | None = None
    experiment: str | None = None
    root: Path = Path()
    limits: dict[str, str] = field(default_factory=dict)
    start: str | None = None
    told: dict[str, Any] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    only_prints: bool = False

    @property
    def single(self) -> dict[str, int]:
        """The options of the trainer that are one batch."""
        return {name: 1 for name, limit in self.limits.items() if limit == "1"}

    @property
    def objective(self) -> type[Objective]:
        """The objective that is asked for; the default one for an unknown name, which the parser refuses."""
        return OBJECTIVES.get(self.model, DEFAULT)


def read_typed(arguments: Any) -> TypedArguments:
    """Read a command line, or the arguments of a call by name.

    >>> typed = read_typed(["fit", "--model=SequenceReader", "--model.init_from", "vit.pth", "--model.num_heads=3"])
    >>> typed.model, typed.start, typed.told
    ('SequenceReader', 'vit.pth', {'num_heads': 3})

    Raises:
        ValueError: If a config cannot be read, a word is no text, or an argument sets what the data decides about the
            model.
    """
    if not isinstance(arguments, list):
        return TypedArguments(model=_class_name((arguments or {}).get("model")))
    words = [str(word) for word in arguments]
    for word in words:
        _check_text(word)
    scan = Parser(add_help=False, allow_abbrev=False)
    scan.add_argument("--ckpt_path")
    scan.add_argument("--experiment")
    scan.add_argument("-c", "--config", action="append", default=[])
    typed, others = scan.parse_known_args(words[1:])
    # Words about the model stay among the others, which the parser reads.
    names = ("init_from", *TOLD_BY_CALLER)
    of_model = Parser(add_help=False, allow_abbrev=False)
    of_model.add_argument("--model")
    of_model.add_argument("--data")
    of_model.add_argument("--trainer.default_root_dir", dest="root")
    for name in BATCHES:
        of_model.add_argument(f"--trainer.{name}", dest=name)
    for name in names:
        of_model.add_argument(f"--model.{name}", dest=name)
    about, _ = of_model.parse_known_args(others)
    asked: dict[str, Any] = {}
    model, data, limits = None, None, {}
    for config in typed.config:
        content = read_config(Path(config))
        found, trainer = content.get("model"), content.get("trainer")
        if isinstance(found, str):
            _check_model(found)
        if isinstance(trainer, dict):
            about.root = about.root or trainer.get("default_root_dir")
            limits |= limits_of(content)
        model, data = _class_name(found) or model, _class_name(content.get("data")) or data
        arguments_of_model = found.get("init_args", found) if isinstance(found, dict) else {}
        asked |= {name: arguments_of_model[name] for name in names if name in arguments_of_model}
    asked |= {name: yaml.safe_load(vars(about)[name]) for name in names if vars(about)[name] is not None}
    limits |= {name: vars(about)[name] for name in BATCHES if vars(about)[name] is not None}
    if "norm_eps" in asked:
        asked["norm_eps"] = float(asked["norm_eps"])  # YAML reads 1e-5 as text
    found = TypedArguments(
        words[0] if words else None,
        _class_name(about.model) or model,
        _class_name(about.data) or data,
        typed.config,
        typed.ckpt_path,
        typed.experiment,
        Path(str(about.root or "")),
        limits,
        asked.pop("init_from", None),
        asked,
        others,
        any(word.split("=")[0] in PRINTS for word in words),
    )
    if about.model is not None:
        _check_model(about.model)
    _check_not_of_data(found)
    return found


def _check_text(word: str) -> None:
    """Check that a word is text, which a config can hold: the name of a file may be any bytes."""
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
    """Check that there is a model of a name; the parser knows those with a path."""
    if re.fullmatch(r"[\w-]+", name) and not _is_model(name):
        raise ValueError(
            f"--model: unknown model {name!r}: choose one of {', '.join(OBJECTIVES)}{nearest_hint(name, OBJECTIVES)}"
        )


def _is_model(name: str, base: type = Objective) -> bool:
    """Whether a name is that of an objective of the package, or of one that a user has imported."""
    return name in OBJECTIVES or any(name == cls.__name__ or _is_model(name, cls) for cls in base.__subclasses__())


def _class_name(asked: Any) -> str | None:
    """Return the class that ``--model``, ``--data`` or the part of a config asks for; earlier ones have other paths."""
    path = asked.get("class_path") if isinstance(asked, dict) else asked
    return str(path).rpartition(".")[2] if path else None


def _check_not_of_data(typed: TypedArguments) -> None:
    words = {word.split("=")[0] for word in typed.others}
    for name in typed.objective.from_data:
        if f"--model.{name}" in words:
            remedy = f"set --data.{name}, or leave it out" if name in SET_BY_DATA else "leave it out"
            raise ValueError(f"--model.{name} is that of the data: {remedy}")
