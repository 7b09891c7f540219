"""Fits trained tensors to a model of other patches, image size, tokens, channels, pooling or classes.

Letters in the einops patterns: d embedding channels, c k image channels, p q rows and columns of a patch.
"""

import inspect
from typing import Any

import torch
from einops import reduce, repeat
from torch import Tensor

from vit.attention import MECHANISMS
from vit.attention.mechanisms.mechanism import options_of
from vit.model.embedding import resize_patches, to_pair
from vit.model.model_checks import mechanisms_of_blocks
from vit.model.positions import resize_positions
from vit.model.vision_transformer import VisionTransformer
from vit.support.precision import at_least_float32
from vit.weights.architecture import TRAINING_ONLY
from vit.weights.formats.format import Arguments, State
from vit.weights.load_report import LoadReport

# Arguments in which a model may differ from the one whose weights it takes: they change no tensor, or one that is
# fitted here. If a mechanism has weights of the grid's shape, the shapes are compared in the end.
MAY_DIFFER = frozenset(
    (
        *("image_size", "patch_size", "patch_stride", "pad_images", "in_channels", "num_classes"),
        *("class_token", "num_registers", "mask_token", "no_embed_class", "pool", "fc_norm"),
        *("pos_embed", "pos_embed_init", "pos_embed_interpolation"),
        *TRAINING_ONLY,
    )
)


def fit_to_model(
    state: State, source: Arguments, model: VisionTransformer, report: LoadReport, same_classes: bool = True
) -> State:
    """Return trained tensors, fitted to a model.

    Args:
        state: The trained tensors, under our names.
        source: The arguments of the model that they were trained in.
        model: The model that takes them; tensors that it has and ``state`` lacks stay its own.
        report: Gets the names of what is resized, folded, dropped and new.
        same_classes: Whether the classes are the same, so that the head is taken.

    Raises:
        ValueError: If the models differ in an argument that is not in ``MAY_DIFFER``, or in the grid to which positions
            "rope_eva" are relative.
    """
    if differing := differing_arguments(source, model.config, MAY_DIFFER):
        there, here = differing
        raise ValueError(f"{report.origin} holds a model with {there}, and this one has {here}: make them equal")
    grids = _grid_of(source), model.patch_embed.grid_size
    if source["pos_embed"] == model.config["pos_embed"] == "rope_eva" and grids[0] != grids[1]:
        raise ValueError(
            f"positions 'rope_eva' are relative to the grid of the training, {grids[0]}, which would be lost with a "
            f"grid of {grids[1]}: leave the size as it is, and pass images of any size"
        )
    state = {name: at_least_float32(tensor) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    own = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    _fit_patches(state, model, report)
    _fit_positions(state, source, model, own, report)
    for name in ("cls_token", "reg_token", "mask_token"):
        _fit_tokens(state, own, name, report)
    _fit_head(state, source, model, own, report, same_classes)
    parts = [name for name in (*own, *state) if name.startswith(("norm.", "fc_norm.", "attn_pool."))]
    _fit_norm(state, own, report)
    for name in dict.fromkeys(parts):
        if name in own and (name not in state or state[name].shape != own[name].shape):
            state[name] = own[name]
            report.fresh.append(name)
        elif name in state and name not in own:
            del state[name]
            report.dropped.append(name)
    report.folded = [name for name in dict.fromkeys(report.folded) if name not in report.fresh]
    changed = {*report.resized, *report.folded, *report.dropped, *report.fresh}
    report.renamed = [name for name in report.renamed if name not in changed]
    report.matched = [name for name in report.matched if name not in changed and name not in report.renamed]
    return state


def differing_arguments(theirs: Arguments, ours: Arguments, may_differ: frozenset[str]) -> tuple[str, str] | None:
    """Return the arguments that make two models compute something else, as text for each model; None if all agree.

    >>> from vit.weights.architecture import DEFAULTS
    >>> differing_arguments(DEFAULTS | {"num_kv_heads": 4, "dropout": 0.1}, DEFAULTS, frozenset({"dropout"}))
    ('num_kv_heads 4', 'num_kv_heads None')
    """
    one, other = canonicalize(theirs), canonicalize(ours)
    differing = [name for name in other if name not in may_differ and one[name] != other[name]]
    if not differing:
        return None
    told = {name for name in differing if theirs[name] != ours[name]}  # else options of a mechanism differ
    there, here = (
        ", ".join(f"{name} {(given if name in told else all_options)[name]!r}" for name in differing)
        for given, all_options in ((theirs, one), (ours, other))
    )
    return there, here


def canonicalize(arguments: Arguments) -> Arguments:
    """Return arguments that are equal if the tensors of two models have the same shapes and meaning."""
    kv_heads = arguments["num_kv_heads"] or arguments["num_heads"]
    of_blocks = mechanisms_of_blocks(*(arguments[name] for name in ("attention", "attention_kwargs", "depth")))
    mechanisms = [(name, _all_options(name, options or {})) for name, options in of_blocks]
    return arguments | {
        "mlp_ratio": int(arguments["embed_dim"] * arguments["mlp_ratio"]) / arguments["embed_dim"],
        "layer_scale": arguments["layer_scale"] is not None,
        "num_kv_heads": arguments["num_heads"] // kv_heads,
        "key_dim": (arguments["key_dim"] or arguments["embed_dim"]) / arguments["embed_dim"],
        "value_dim": (arguments["value_dim"] or arguments["embed_dim"]) / arguments["embed_dim"],
        "attention": mechanisms[0] if mechanisms.count(mechanisms[0]) == len(mechanisms) else mechanisms,
        "attention_kwargs": None,  # compared with the mechanisms
    }


def _all_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a mechanism, those that are not given at their defaults."""
    if name not in MECHANISMS:  # of a program that is not imported here
        return options
    parameters = inspect.signature(MECHANISMS[name].__init__).parameters
    return {option: parameters[option].default for option in options_of(MECHANISMS[name])} | options


def _fit_patches(state: State, model: VisionTransformer, report: LoadReport) -> None:
    name = "patch_embed.proj.weight"
    weight, embed = state[name], model.patch_embed
    if weight.shape[1] != embed.in_channels:
        weight = adapt_channels(weight, embed.in_channels)
    if tuple(weight.shape[-2:]) != embed.patch_size:
        weight = resize_patches(weight, embed.patch_size)
    if weight is not state[name]:
        report.resized.append(name)
        state[name] = weight


def _fit_positions(state: State, source: Arguments, model: VisionTransformer, own: State, report: LoadReport) -> None:
    """Resize the positions of the patches, and give each prefix token its own, or add it to the token."""
    kinds = source["pos_embed"], model.config["pos_embed"]
    if kinds[0] != kinds[1] or "rope" in kinds[0]:  # rotary models have a table of zeros
        state["pos_embed"] = own["pos_embed"]
        report.fresh += [] if kinds[0] == kinds[1] else ["pos_embed"]
        return
    tokens = [name for name in ("cls_token", "reg_token") if name in state]
    counts = [0 if source["no_embed_class"] else state[name].shape[1] for name in tokens]
    grid = _grid_of(source)
    *of_tokens, patches = state["pos_embed"].split([*counts, grid[0] * grid[1]], dim=1)
    positions = dict(zip(tokens, of_tokens, strict=True))
    if grid != model.patch_embed.grid_size:
        patches = resize_positions(patches, grid, model.patch_embed.grid_size, source["pos_embed_interpolation"])
        report.resized.append("pos_embed")
    if model.no_embed_class:
        for name, position in positions.items():
            if position.shape[1]:
                state[name] = state[name] + position
                report.folded.append(name)
        state["pos_embed"] = patches
        return
    rows = []
    for name in (name for name in ("cls_token", "reg_token") if name in own):
        rows.append(torch.zeros_like(own[name]))  # tokens without a position in the trained model
        position = positions.get(name, rows[-1])[:, : rows[-1].shape[1]]
        rows[-1][:, : position.shape[1]] = position
    state["pos_embed"] = torch.cat([*rows, patches], dim=1)


def _grid_of(arguments: Arguments) -> tuple[int, int]:
    stride = arguments["patch_stride"] or arguments["patch_size"]
    (rows, columns), (p, q) = to_pair(arguments["image_size"]), to_pair(stride)
    return (-(-rows // p), -(-columns // q)) if arguments["pad_images"] else (rows // p, columns // q)


def _fit_tokens(state: State, own: State, name: str, report: LoadReport) -> None:
    """Take as many class tokens or registers as the model has."""
    wanted, given = own.get(name), state.pop(name, None)
    if wanted is None:
        report.dropped += [] if given is None else [name]
        return
    count = 0 if given is None else min(given.shape[1], wanted.shape[1])
    state[name] = wanted.clone()
    if count:
        state[name][:, :count] = given[:, :count]
    if count < wanted.shape[1]:
        report.fresh.append(name if count == 0 else f"{name}[:, {count}:]")
    if given is not None and count < given.shape[1]:
        report.dropped.append(f"{name}[:, {count}:]")


def _fit_norm(state: State, own: State, report: LoadReport) -> None:
    """Move the final norm to the other side of the pooling, if the model has it there."""
    there, here = (
        next((name for name in ("norm", "fc_norm") if f"{name}.weight" in tensors), None) for tensors in (state, own)
    )
    if there and here and there != here and state[f"{there}.weight"].shape == own[f"{here}.weight"].shape:
        for kind in (kind for kind in ("weight", "bias") if f"{there}.{kind}" in state):
            state[f"{here}.{kind}"] = state.pop(f"{there}.{kind}")
            report.matched = [name for name in report.matched if name != f"{there}.{kind}"]
            report.renamed = [name for name in report.renamed if name != f"{there}.{kind}"] + [f"{here}.{kind}"]


def _fit_head(
    state: State, source: Arguments, model: VisionTransformer, own: State, report: LoadReport, same_classes: bool
) -> None:
    """Take the head if it reads as many features and has the same classes; else the model's own stays."""
    own = {name: tensor for name, tensor in own.items() if name.startswith("head.")}
    given = {name: state.pop(name) for name in ("head.weight", "head.bias") if name in state}
    of_class_half = bool(given) and source["pool"] == "cls+dist" and model.pool == "cls"
    if of_class_half:
        # The class token's half of the head; the bias is the mean of both heads.
        given["head.weight"] = 2 * given["head.weight"].chunk(2, dim=1)[0]
    fits = given.keys() == own.keys() and all(given[name].shape == own[name].shape for name in own)
    if fits and same_classes:
        state.update(given)
        report.folded += ["head.weight"] if of_class_half else []
        if source["pool"] != model.pool and own and not of_class_half:
            report.assumed.append(
                f"a head trained on pool {source['pool']}: here its logits are wrong until it is trained"
            )
    else:
        state.update(own)
        report.dropped += [name for name in given if name not in own]
        report.fresh += list(own)


def adapt_channels(weight: Tensor, in_channels: int) -> Tensor:
    """Fit the patch embedding to images of other channels, as timm does: (D, K, P, Q) -> (D, C, P, Q).

    Grey images take the sum over the colours. More channels repeat the colours, scaled so that the output keeps its
    size.
    """
    given = weight.shape[1]
    if in_channels == 1:
        return reduce(weight, "d c p q -> d 1 p q", "sum")
    repeated = repeat(weight, "d c p q -> d (k c) p q", k=-(-in_channels // given))
    return repeated[:, :in_channels] * (given / in_channels)
