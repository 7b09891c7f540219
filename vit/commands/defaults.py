"""Defaults that trained weights give to the command line; typed options overrule them."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning import LightningDataModule

import vit.data
from vit.commands.auto_resume import AUTO, find_newest
from vit.commands.models import find_model, is_training_checkpoint
from vit.commands.own_classes import find_own, part_of_run, path_of
from vit.commands.typed_arguments import TypedArguments
from vit.data.labelled_files import LabelledFiles
from vit.data.shards import check_no_command
from vit.model.vision_transformer import VisionTransformer
from vit.objectives import DEFAULT, OBJECTIVES
from vit.support.arguments import constructor_arguments
from vit.training.objective import Objective
from vit.weights.architecture import TRAINING_ONLY
from vit.weights.checkpoint import describe_checkpoint
from vit.weights.loading import read_model

# Arguments that belong to the place they were given with: they are dropped if that place is another one.
COMPANIONS = {"table": {"root"}, "urls": {"val_urls", "test_urls"}}


def class_path(objective: type[Objective]) -> str:
    """Return the path by which the parser finds an objective."""
    return f"{objective.__module__}.{objective.__name__}"


@dataclass
class TrainedDefaults:
    """The defaults that trained weights give to a command line.

    Attributes:
        objective: What the model was trained for.
        arguments: Defaults of the options.
        path: The file or the name of the weights that are continued or evaluated; None if there are none.
        is_checkpoint: Whether they are a checkpoint of a run.
        start: The file or the name of the weights that a training starts from; None if there are none.
        of_images: How the model takes images, for options of the data that are None.
        words: Arguments that choose the data of ``predict`` if the user names none. They come after
            configs, and replace theirs.
    """

    objective: type[Objective]
    arguments: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    is_checkpoint: bool = False
    start: str | None = None
    of_images: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def read_defaults(typed: TypedArguments) -> TrainedDefaults:
    """Return the defaults of the weights that a command line names by ``--ckpt_path`` or ``--model.init_from``.

    Raises:
        ValueError: If there is no such model, it does not fit the command, or a command that needs one names none.
    """
    subcommand, checkpoint, experiment = typed.subcommand, typed.checkpoint, typed.experiment_of_runs
    if checkpoint == AUTO:
        checkpoint = _newest_of(experiment, typed)
    if checkpoint is None:
        if subcommand in ("validate", "test", "predict") and not typed.only_prints:
            raise ValueError(f"{subcommand} needs trained weights: add --ckpt_path FILE, or --ckpt_path last")
        if subcommand != "fit" or not typed.start or typed.only_prints or typed.objective.encoder != DEFAULT.encoder:
            return TrainedDefaults(typed.objective)
        return _defaults_of_start(typed)
    if typed.checkpoint != AUTO and any(word.split("=")[0] == "--model.init_from" for word in typed.others):
        raise ValueError("--model.init_from starts a training and --ckpt_path continues one: give one of them")
    name = find_model(checkpoint, experiment or "*", typed.root)
    if is_training_checkpoint(Path(name)):
        return _defaults_of_checkpoint(Path(name), typed)
    if subcommand == "fit":
        raise ValueError(f"fit continues a run, and {name} is none: start from it by --model.init_from {name}")
    return _defaults_of_weights(name, typed)


def _newest_of(experiment: str | None, typed: TypedArguments) -> str | None:
    """Return the checkpoint that ``--ckpt_path auto`` means; None if the training starts without one."""
    if typed.subcommand != "fit":
        raise ValueError(
            f"--ckpt_path auto goes on with a training or starts one: {typed.subcommand} takes --ckpt_path last"
        )
    if experiment is None:
        raise ValueError("--ckpt_path auto takes the newest run of an experiment: name it by --experiment or --config")
    newest = None if typed.only_prints else find_newest(experiment, typed.root)
    return None if newest is None else str(newest)


def _defaults_of_checkpoint(path: Path, typed: TypedArguments) -> TrainedDefaults:
    checkpoint = describe_checkpoint(path)
    if typed.subcommand == "fit" and "callbacks" not in checkpoint:
        raise ValueError(
            f"fit continues a run, and {path} holds weights alone: start from it by --model.init_from {path}"
        )
    arguments, data = dict(checkpoint["hyper_parameters"]), checkpoint.get("data", {})
    name = checkpoint.get("module", DEFAULT.__name__)  # earlier checkpoints have no name
    objective = OBJECTIVES.get(name) or _own_objective(name, path, typed)
    if typed.data is None and typed.subcommand != "predict":
        of_run = part_of_run(path, "data")
        typed.own_data = find_own(path_of(of_run), LightningDataModule)
        data = data if typed.own_data is None else of_run
    _check_plain(arguments.get("attention_kwargs"), path)
    of_data = {name: arguments[name] for name in objective.from_data if name in arguments}
    if typed.subcommand != "predict" and typed.describes_data:  # the data set these anew
        arguments = {name: value for name, value in arguments.items() if name not in of_data}
    arguments = _known(arguments, objective, *([] if objective.encoder is None else [VisionTransformer]))
    if typed.subcommand != "fit" and "compile" in arguments:
        arguments["compile"] = False  # compiling takes longer than most tests and predictions
    defaults = TrainedDefaults(objective, _arguments_of_model(objective, arguments), path, is_checkpoint=True)
    if typed.subcommand != "fit":  # fit continues with the data of its config
        known_of = ("mean", "std", "class_names", "in_channels")
        defaults.of_images = {name: of_data[name] for name in known_of if name in of_data}
    if typed.subcommand == "predict" and typed.own_data is None and not typed.types_data:
        crop_ratio = data.get("init_args", {}).get("crop_ratio") or 1.0
        defaults.words = _data_of_predict(objective, of_data | {"crop_ratio": crop_ratio})
        return defaults
    typed.given |= arguments.keys()
    typed.optimizer |= bool(typed.subcommand == "fit" and not typed.configs and part_of_run(path, "optimizer"))
    if typed.own_data is not None:
        if typed.data is None:
            defaults.arguments["data"] = {"class_path": data["class_path"], "init_args": data.get("init_args") or {}}
        return defaults
    if (of_checkpoint := _data_of_checkpoint(data, of_data, path, typed)) is not None:
        defaults.arguments["data"] = of_checkpoint
    return defaults


def _data_of_checkpoint(
    data: dict[str, Any], of_data: dict[str, Any], path: Path, typed: TypedArguments
) -> dict[str, Any] | None:
    """Return class and arguments of the checkpoint's data, less those that belong to other images than are asked for.

    Args:
        data: What the checkpoint holds of its data.
        of_data: Arguments of the model that the data of the training told.
        path: The checkpoint.
        typed: The command line.

    Returns:
        None if the class is none of vit.data: the class path in an untrusted file must import nothing.
    """
    name = data.get("class_path", "").rpartition(".")[2]
    if name not in vit.data.__all__:
        return None
    data_set = getattr(vit.data, name)
    known = _known(data.get("init_args", {}), data_set)
    typed_options = {word.split("=")[0].removeprefix("--data.") for word in typed.others}
    check_no_command({name: value for name, value in known.items() if name not in typed_options}, path)
    # Other images are read as those of the training were: at one size, with the same letters.
    taken = constructor_arguments(data_set) - {"mean", "std"}
    known |= {name: value for name, value in of_data.items() if name in taken}
    is_other = typed.data in vit.data.__all__ and typed.data != name
    # CIFAR-10 is the same in any folder.
    is_elsewhere = issubclass(data_set, LabelledFiles) and _are_elsewhere(known, typed.places)
    if typed.subcommand != "fit" and (is_other or is_elsewhere):
        _leave_out_folds(known, path, typed_options)
    if is_other:  # other data have a place of their own: files of a table are relative to its folder
        known.pop("root", None)
    for place, companions in COMPANIONS.items():
        if place in typed.places and _are_elsewhere(known, {place: typed.places[place]}):
            for companion in companions - typed_options:
                known.pop(companion, None)
    return {"class_path": f"vit.data.{name}", "init_args": known}


def _are_elsewhere(known: dict[str, Any], places: dict[str, str]) -> bool:
    """Return whether a place that is asked for is none of the data of the checkpoint."""
    return any(
        Path(place).resolve() != Path(str(known.get(name))).resolve()
        for name, place in places.items()
        if place not in ("null", "None")
    )


def _leave_out_folds(known: dict[str, Any], path: Path, typed: set[str]) -> None:
    """Leave the folds of the training out of the arguments of other data, and print so unless they are typed."""
    folds = {name: known.pop(name, None) for name in ("folds", "fold")}
    if folds["folds"] is not None and not folds.keys() & typed:
        options = " ".join(f"--data.{name} {number}" for name, number in folds.items())
        print(
            f"note: the folds of {path} are left out, as these are other images: for a copy of those of its training, "
            f"add {options}",
            file=sys.stderr,
        )


def _own_objective(name: str, path: Path, typed: TypedArguments) -> type[Objective]:
    """Return the user's own class that was trained: the typed one, or the one in the config of the run."""
    own = typed.own_model or find_own(path_of(part_of_run(path, "model")), Objective)
    if own is None or own.__name__ != name:
        raise ValueError(
            f"{path} is of a {name!r}, which is none of {', '.join(OBJECTIVES)}: add its class by --model, such as "
            f"--model mymodule.{name}"
        )
    return own


def _defaults_of_start(typed: TypedArguments) -> TrainedDefaults:
    """Return the architecture of the weights to start from, and how they take images."""
    start = find_model(typed.start)
    arguments, of_images = _model_and_images(start, typed.wanted)
    left_out = {*typed.objective.from_data, *TRAINING_ONLY}
    of_model = {name: value for name, value in arguments.items() if name not in left_out}
    defaults = _arguments_of_model(typed.objective, of_model)
    for name in ("class_names", "thresholds", "crop_ratio"):  # the new model has its own, and sees whole images
        of_images.pop(name, None)
    return TrainedDefaults(typed.objective, defaults, start=start, of_images=of_images)


def _defaults_of_weights(name: str, typed: TypedArguments) -> TrainedDefaults:
    """Return the architecture of weights without a run, a classifier of one or of several labels an image."""
    arguments, of_images = _model_and_images(name, typed.wanted)
    half = [0.5] * arguments["in_channels"]
    of_images = {"mean": half, "std": half} | of_images  # as vit.load assumes
    objective = OBJECTIVES["MultilabelClassifier"] if of_images.pop("thresholds", None) else DEFAULT
    if not arguments["num_classes"]:
        raise ValueError(f"{name} has no head (num_classes 0), so that it predicts no class: train one with fit")
    of_model = {name: value for name, value in arguments.items() if name not in TRAINING_ONLY}
    defaults = TrainedDefaults(objective, path=Path(name), of_images=of_images)
    if typed.subcommand == "predict":
        of_model |= {name: value for name, value in of_images.items() if name in objective.from_data}
        if not typed.types_data:
            defaults.words = _data_of_predict(objective, of_images | {"in_channels": arguments["in_channels"]})
    else:
        of_images["in_channels"] = arguments["in_channels"]
        of_model = {name: value for name, value in of_model.items() if name not in objective.from_data}
    defaults.arguments = _arguments_of_model(objective, of_model)
    return defaults


def _arguments_of_model(objective: type[Objective], arguments: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"class_path": class_path(objective), "init_args": arguments}}


def _data_of_predict(objective: type[Objective], known: dict[str, Any]) -> list[str]:
    described = {name: known[name] for name in ("image_size", "in_channels", "crop_ratio") if name in known}
    if isinstance(described.get("image_size"), int):
        described["image_size"] = [described["image_size"]] * 2
    described["stretch"] = known.get("stretch", objective.stretches_images)
    return ["--data", json.dumps({"class_path": "UnsortedImages", "init_args": described})]


def _model_and_images(source: str, wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the model in trained weights, and what is known of the images that it takes."""
    trained = read_model(source, wanted)
    _check_plain(trained.arguments.get("attention_kwargs"), Path(source))
    of_images = {name: trained.arguments[name] for name in ("image_size",) if trained.is_whole}
    known = ("mean", "std", "class_names", "crop_ratio", "stretch", "thresholds")
    of_images |= {name: trained.data[name] for name in known if trained.data.get(name) is not None}
    return trained.arguments, of_images


def _check_plain(attention_kwargs: Any, path: Path) -> None:
    """Check ``attention_kwargs``, whose values may be of any type: jsonargparse would build any class that they name.

    Raises:
        ValueError: If a value is not a number, true, false, one word, or such values by the name of a mechanism.
    """
    if attention_kwargs is not None and not _is_plain(attention_kwargs, levels=2):
        raise ValueError(
            f"{path} is refused: its attention_kwargs are {str(attention_kwargs)[:80]!r}, and could name code to run; "
            "numbers and single words are taken"
        )


def _is_plain(arguments: Any, levels: int) -> bool:
    """Return whether arguments by name are numbers and words, or such arguments by the name of a mechanism."""
    return isinstance(arguments, dict) and all(
        isinstance(name, str)
        and (
            value is None
            or isinstance(value, bool | int | float)
            or (isinstance(value, str) and value.isidentifier())
            or (levels > 1 and _is_plain(value, levels - 1))
        )
        for name, value in arguments.items()
    )


def _known(arguments: dict[str, Any], *classes: type) -> dict[str, Any]:
    """Return the arguments that the classes take; a checkpoint of another version may have others."""
    names = constructor_arguments(*classes)
    for name in sorted(arguments.keys() - names):
        print(f"the checkpoint was trained with {name}, which this version does not have: left out", file=sys.stderr)
    return {name: value for name, value in arguments.items() if name in names}
