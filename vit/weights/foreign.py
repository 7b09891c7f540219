"""Reads weights of another library: their format, their tensors under our names, the arguments of their model."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from vit.support.precision import at_least_float32
from vit.weights.architecture import DEFAULTS, arguments_of, outline
from vit.weights.foreign_source import Source
from vit.weights.formats import detect, guess_architecture
from vit.weights.formats.format import Arguments, Format, Reading, State
from vit.weights.load_report import LoadedWeights, LoadReport
from vit.weights.matching import check_numbers, check_same_tensors

# Arguments that tensors do not tell, so the caller may give them.
GIVEN_BY_CALLER = ("num_heads", "mlp", "norm_eps", "pos_embed_interpolation")
# The same for models of this package alone, whose tensors have timm's names.
GIVEN_FOR_OUR_MODELS = ("attention", "attention_kwargs", "residual", "norm", "patch_stride")
BICUBIC = "bicubic"  # how images are scaled here
# Others have the same tensors.
ASSUMED_BLOCKS = "softmax attention, pre-norm blocks, patches side by side, no rotary positions"


def read_foreign(source: Source, wanted: Mapping[str, Any], strict: bool) -> LoadedWeights:
    """Return the tensors of another library under our names; ``wanted`` and ``strict`` are those of ``read_model``."""
    detected = detect(source.state)
    if detected is None:
        guess = guess_architecture(source.state)
        raise ValueError(f"{source.origin} holds no Vision Transformer of a known format: {guess}")
    format, prefix = detected
    tensors = {name: at_least_float32(x) if x.is_floating_point() else x for name, x in source.state.items()}
    try:
        reading = format.read(tensors, prefix)
    except (KeyError, IndexError, TypeError, RuntimeError) as error:  # a tensor that the format needs, or its axes
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{source.origin} ({format.name}) is damaged ({reason})") from error
    state = reading.state
    check_numbers(state, source.origin)
    report = _report_reading(source, format, prefix, reading, strict)
    arguments = _read_arguments(source, format, reading, wanted, report)
    model = outline(arguments, f"{source.origin} ({format.name})")
    expected = model.state_dict()
    if "pos_embed" not in state and not model.pos_embed.requires_grad:
        state["pos_embed"] = torch.zeros(expected["pos_embed"].shape)  # rotary models have no table
    missing = [name for name in expected if name not in state]
    report.fresh += [] if strict else missing
    remedy = "strict=False leaves new tensors as initialised" if missing else "take a whole file of one model"
    check_same_tensors(model, state | {name: expected[name] for name in report.fresh}, source.origin, remedy)
    return LoadedWeights(state, arguments, _read_data(source, format, arguments, report), report)


def _report_reading(source: Source, format: Format, prefix: str, reading: Reading, strict: bool) -> LoadReport:
    """Return the report of what became of the tensors."""
    unplaced = sorted(source.state.keys() - reading.known)
    if unplaced and strict:
        raise ValueError(
            f"{source.origin} has {len(unplaced)} tensors that the backbone lacks: {', '.join(unplaced[:4])}"
            f"{' and others' if len(unplaced) > 4 else ''} ({guess_architecture(unplaced)}); strict=False leaves them "
            "out"
        )
    report = LoadReport(source.origin, format.name, dropped=unplaced)
    report.folded, report.zeros = sorted(reading.folded), sorted(reading.zeros)
    short = {name.removeprefix(prefix) for name in reading.known}
    for name in (name for name in reading.state if name not in reading.folded | reading.zeros):
        (report.matched if name in short else report.renamed).append(name)
    return report


def _read_arguments(
    source: Source, format: Format, reading: Reading, wanted: Mapping[str, Any], report: LoadReport
) -> Arguments:
    """Return all arguments of the model; the report gets those that are assumed."""
    state, stated = reading.state, reading.arguments | source.stated
    accepted = GIVEN_BY_CALLER
    if format.name == "timm" and not source.stated:
        accepted += GIVEN_FOR_OUR_MODELS
    if format.name == "timm" and "pos_embed" not in stated and "pos_embed" in state and not state["pos_embed"].any():
        if "pos_embed" not in wanted:
            raise ValueError(
                f"the positions of {source.origin} are all zero, as in a model with rotary positions: tell them, by "
                "pos_embed='rope', or by pos_embed='learned' if the zeros are meant"
            )
        accepted += ("pos_embed",)
    if "pool" not in stated and _tells_pool_of_head(state, format, wanted):
        # It tells what the file is. As a change by the caller, it would move the norm behind the pooling.
        accepted += ("pool",)
        report.assumed.append("a head trained on pool mean, behind the norm")
    stated |= {name: wanted[name] for name in accepted if name in wanted and name not in stated}
    known = dict(format.defaults) | stated
    try:
        arguments = DEFAULTS | arguments_of(state, known, wanted.get("image_size"))
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{source.origin} ({format.name}): {error}") from error
    if arguments["pool"] == "map" and (arguments["class_token"] or arguments["num_registers"]):
        raise ValueError(
            f"{source.origin} ({format.name}) pools by attention beside a class token or registers: its library leaves "
            "these out of the pooling, and the backbone does not"
        )
    has_bare_prefix = arguments["no_embed_class"] and "no_embed_class" not in known and "pos_embed" in state
    assumed = {
        # Positions of a square grid may also be those of an oblong grid and the class token: 4 x 4 = 3 x 5 + 1.
        "image_size": has_bare_prefix and "image_size" not in {*known, *wanted},
        "pool": "pool" not in {*stated, *wanted} and not _tensors_fix_pool(format, arguments),
        "num_heads": "num_heads" not in known and "blocks.0.attn.q_norm.weight" not in state,
        # The defaults of a family are guesses, as its files differ.
        "mlp": "mlp" not in stated,
        "norm_eps": "norm_eps" not in stated,
    }
    report.assumed += [f"{name} {arguments[name]}" for name, is_assumed in assumed.items() if is_assumed]
    if format.name == "timm" and not source.stated and not wanted.keys() & {"attention", "norm"}:
        report.assumed.append(ASSUMED_BLOCKS)
    if assumed["num_heads"]:
        warnings.warn(
            f"{source.origin} does not tell its number of heads: {arguments['num_heads']} are those of the published "
            "model whose tensors have these shapes; give num_heads if they are others",
            stacklevel=2,
        )
    return arguments


def _tells_pool_of_head(state: State, format: Format, wanted: Mapping[str, Any]) -> bool:
    """Return whether the caller says that a head, which could be that of the class token, reads the mean."""
    is_open = {"head.weight", "cls_token", "norm.weight"} <= state.keys() and {"cls", "mean"} <= {*format.pools}
    return (
        is_open
        and wanted.get("pool") == "mean"
        and wanted.get("num_classes", len(state["head.weight"])) == len(state["head.weight"])
    )


def _tensors_fix_pool(format: Format, arguments: Arguments) -> bool:
    """Return whether the tensors tell the pooling; heads on the class token and on the mean have the same tensors."""
    if arguments["pool"] == "map":  # it has weights of its own
        return True
    if not arguments["num_classes"]:
        return "pool" in format.defaults and len(format.pools) == 1
    return not (arguments["class_token"] and {"cls", "mean"} <= {*format.pools})


def _read_data(source: Source, format: Format, arguments: Arguments, report: LoadReport) -> dict[str, Any]:
    """Return what is known of the data; the report gets what is assumed."""
    data = dict(format.data) if arguments["in_channels"] == 3 else {}
    if not source.data.get("mean"):
        report.assumed.append(f"mean and std usual for {format.name}" if data else "mean and std of 0.5")
    data |= source.data
    if (interpolation := data.pop("interpolation", BICUBIC)) != BICUBIC:
        report.assumed.append(f"{BICUBIC} scaling of images, in place of {interpolation}")
    if len(data.get("class_names") or ()) != arguments["num_classes"]:
        data.pop("class_names", None)  # names of a head that was left out
    if len(data.get("thresholds") or ()) != arguments["num_classes"]:
        data.pop("thresholds", None)
    return data
