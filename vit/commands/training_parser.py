"""The parser of the training's command line, whose errors are one line with the option that was probably meant."""

import difflib
import re
import sys
from argparse import ArgumentParser
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

import vit.data
from vit.model.vision_transformer import VisionTransformer
from vit.objectives import OBJECTIVES
from vit.support.arguments import constructor_arguments
from vit.support.checks import nearest_hint
from vit.support.printable import printable

# Types as jsonargparse writes them, and in words.
WORDS = {
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
    "<class 'str'>": "text",
    "<class 'NoneType'>": "null",
    "<class 'tuple'>": "a list such as [1,2]",
    "<class 'list'>": "a list",
    "<class 'dict'>": "a mapping such as {name: value}",
    "<class 'collections.abc.Iterable'>": "a list",
    "dot import path string": "the name of a class",
}
# Arguments and values of timm, and what they are called here.
OF_TIMM = {
    "img_size": "--data.image_size",
    "in_chans": "--model.in_channels, which the data sets",
    "drop_path_rate": "--model.drop_path",
    "drop_rate": "--model.dropout",
    "global_pool": "--model.pool",
    "init_values": "--model.layer_scale",
    "reg_tokens": "--model.num_registers",
    "patch_drop_rate": "--model.patch_drop",
    "token": "cls",
    "avg": "mean",
}
# What people type, and the option that does it.
ELSEWHERE = {
    "epochs": "--trainer.max_epochs",
    "gpus": "--trainer.accelerator gpu --trainer.devices",
    "lr_scheduler": "--model.decay and --model.warmup, or comes after --optimizer,",
    "output_dir": "--trainer.default_root_dir",
    "resume": "--ckpt_path",
    "run_dir": "--trainer.default_root_dir",
    "seed": "--seed_everything",
    "version": "vit-attention --version",
}
ALIKE = 0.75  # similarity from which on a name counts as a misspelling: "version" and "erasing" have 0.71
LONGEST = 400  # characters of a message


class TrainingParser(LightningArgumentParser):
    """A parser that reports an error in one line, with the nearest existing name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"description": "Train, test and use a model for images."} | kwargs)
        self.allow_abbrev = False  # else --model.dept would be read as --model.depth

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and the nearest existing name; exit with status 2."""
        print(f"error: {printable(shorten(message, _option_names(self)))}", file=sys.stderr)
        raise SystemExit(2)


def shorten(message: str, known: set[str]) -> str:
    r"""Return one line for a message of jsonargparse, which can have ten.

    >>> shorten("Parser key \"model.depth\":\n  Expected a <class 'int'>. Got value: x", set())
    '--model.depth: expected a whole number, got x'
    >>> shorten("Option 'dept' is not accepted", {"depth", "lr"})
    "Option 'dept' is not accepted (did you mean depth?)"
    >>> shorten("Option 'img_size' is not accepted", set())
    "Option 'img_size' is not accepted (img_size of timm is here --data.image_size)"
    """
    modules = ", ".join(vit.data.DATA_SETS)
    line = re.sub(r"\s+", " ", message).strip()
    if re.search(r"required: (\w+\.)?data$", line):
        return f"no data: add --config FILE, or --data NAME with one of {modules}"
    if re.search(r"required: fit.data, fit.model$", line):
        return f"no data and no model: add --config FILE, or --data NAME with one of {modules}"
    if found := re.search(r"arguments are required: (\w+)$", line):
        owners, models = _owners(found[1])
        group = "data" if owners else "model" if models else "trainer.callbacks"
        return f"an argument is missing: add --{group}.{found[1]}" + (f", for {owners[0]}" if len(owners) == 1 else "")
    if found := re.search(r"Option '(\w+)' is not accepted", line):
        owners, models = _owners(found[1])
        if models and not owners:
            return f"--model.{found[1]} is an option of {', '.join(models)}: add --model NAME with one of these"
        if owners:
            return f"--data.{found[1]} is an option of {', '.join(owners)}: add --data NAME with one of these"
    if found := re.match(r'Parser key "([^"]+)": ?(.*)$', line):
        of_class = () if "dot import path" in found[2] else (f"data.{found[1]}", f"model.{found[1]}")
        key = next((name for name in of_class if name in known), found[1])
        line = f"--{key}: {_expectation(key, found[2])}"
    return (line if len(line) <= LONGEST else f"{line[:LONGEST]} ...") + _hint(line, known)


def _expectation(key: str, rest: str) -> str:
    """Return "expected A, B or C, got VALUE" for the failed checks of a value, each of which names a type."""
    got = re.search(r"Given value: (.*)$", rest) or re.search(r"Got value: (.*)$", rest)
    expected = re.findall(r"Expected a (typing\.Literal\[.*?\]|dot import path string|<class '[^']+'>)", rest)
    if got is None or not expected:
        return rest
    for group, names in (("data", set(vit.data.DATA_SETS)), ("model", set(OBJECTIVES))):
        if key.split(".")[-1] == group:
            known = f"choose one of {', '.join(sorted(names))}{nearest_hint(got[1], names)}"
            return f"unknown {'data set' if group == 'data' else group} {got[1]!r}: {known}"
    words = dict.fromkeys(WORDS.get(each, each.replace("typing.Literal", "one of ")) for each in expected)
    *others, last = words
    return f"expected {', '.join(others)}{' or ' if others else ''}{last}, got {got[1]}"


def _hint(line: str, known: set[str]) -> str:
    """Return, in parentheses, the name that was probably meant by an unknown name in a message."""
    words = [word.split("=")[0].lstrip("-") for word in re.findall(r"[\w.=+-]+", line)]
    for name in (word.rsplit(".", 1)[-1] for word in words):
        if name in OF_TIMM and re.search("nrecognized|not accept|got ", line):
            return f" ({name} of timm is here {OF_TIMM[name]})"
    if not re.search("not accept|nrecognized|invalid choice", line):
        return ""
    typed = [word for word in words if re.search(f"(-|'){re.escape(word)}\\b", line)]
    return next((hint for word in typed if (hint := _nearest(word, known, "nrecognized" in line))), "")


def _nearest(word: str, known: set[str], is_whole: bool) -> str:
    """Return, in parentheses, the option that was probably meant by a typed word; "" if there is none.

    Args:
        word: What was typed.
        known: All names.
        is_whole: Whether the word is a whole option, and not the last part of one.
    """
    if word in ELSEWHERE:
        return f" (it is {ELSEWHERE[word]} here)"
    last = {name.rpartition(".")[2]: f"--{name}" for name in sorted(known) if "." in name}
    if not is_whole:
        near = [] if word in known else difflib.get_close_matches(word, known, n=1, cutoff=ALIKE)
        return f" (did you mean {near[0]}?)" if near else ""
    options = {name: f"--{name}" for name in known if "." in name or name not in last}
    for names in (options, last):
        if word not in options and (near := difflib.get_close_matches(word, names, n=1, cutoff=ALIKE)):
            return f" (did you mean {names[near[0]]}?)"
    return ""


def _owners(argument: str) -> tuple[list[str], list[str]]:
    """Return the data sets and the models that take an argument."""
    data, models = (
        [name for name, cls in classes.items() if argument in constructor_arguments(cls)]
        for classes in (vit.data.DATA_SETS, OBJECTIVES)
    )
    return data, models


def _option_names(parser: ArgumentParser) -> set[str]:
    """Return all options of a parser and its subcommands, and the arguments of all models and data modules."""
    names = {"fit", "validate", "test", "predict"}
    for action in parser._actions:
        names |= {option.lstrip("-") for option in action.option_strings}
        choices = getattr(action, "choices", None)
        for subparser in choices.values() if isinstance(choices, dict) else ():
            names |= {option.lstrip("-") for part in subparser._actions for option in part.option_strings}
    data = [getattr(vit.data, name) for name in vit.data.__all__]
    models = [*OBJECTIVES.values(), VisionTransformer]
    for group, classes in (("data", data), ("model", models)):
        for argument in constructor_arguments(*classes):
            names |= {argument, f"{group}.{argument}"}
    return names
