"""Formats of weights of other libraries, a file each, and the detection of the format of a state dict."""

from collections.abc import Collection

from vit.model.embedding import to_pair
from vit.model.model_checks import mechanisms_of_blocks
from vit.weights.formats import dinov2, google, openai, timm, torchvision, transformers
from vit.weights.formats.format import Arguments, Format

# In the order in which they are tried.
FORMATS = (
    timm.TIMM_DISTILLED,
    timm.TIMM_CLIP,
    timm.TIMM_DINOV3,
    timm.TIMM_DINOV3_GATED,
    timm.TIMM_MAE,
    dinov2.DINOV2,
    timm.TIMM,
    torchvision.TORCHVISION,
    google.GOOGLE,
    google.BIG_VISION,
    google.BIG_VISION_STACKED,
    openai.OPENAI,
    transformers.DINOV3,
    transformers.DINOV3_GATED,
    transformers.CLIP,
    transformers.SIGLIP,
    transformers.DEIT,
    transformers.DINOV2,
    transformers.DINOV2_GATED,
    transformers.VIT,
)
# Other architectures, each by a part of a tensor's name that gives it away.
OTHERS = {
    "relative_position_bias_table": "attention with a table of relative positions, as in BEiT and Swin",
    "rel_pos_h": "attention with relative positions of rows and columns, as in SAM",
    "layer1.0.conv1": "a ResNet",
    "stages.0.blocks": "a model in stages, as ConvNeXt or a hierarchical transformer",
    "features.0.": "a convolutional network of torchvision",
    "to_patch_embedding": "a model of vit-pytorch, whose blocks have no biases where published weights have some",
    "cpe.": "convolutional positions",
    "q_bias": "an EVA or BEiT, whose projections have biases of their own",
    "txt_": "a text model",
}
WRITABLE = ("vit", "timm", "transformers", "torchvision", "google")


def detect(names: Collection[str]) -> tuple[Format, str] | None:
    """Return the format of a state dict and the prefix of its names, or None if no format fits."""
    names = set(names)
    for format in FORMATS:
        prefix = format.prefix_in(names)
        if prefix is not None:
            return format, prefix
    return None


def guess_architecture(names: Collection[str]) -> str:
    """Return in words what a state dict of no known format seems to be."""
    for part, words in OTHERS.items():
        if any(part in name for name in names):
            return f"it looks like {words}"
    return f"its tensors are {', '.join(sorted(names)[:4])}{' and others' if len(names) > 4 else ''}"


def format_for(library: str, arguments: Arguments) -> tuple[Format, str]:
    """Return the format in which a library has a model of these arguments, and the prefix of its names.

    Raises:
        ValueError: If the library has no such model.
    """
    _check_has_place(arguments, library)
    gated, has_head = arguments["mlp"] == "swiglu", arguments["num_classes"] > 0
    rotary, distilled = arguments["pos_embed"] == "rope", arguments["pool"] == "cls+dist"
    if library == "torchvision":
        return torchvision.TORCHVISION, ""
    if library == "google":
        is_first = arguments["class_token"] and not arguments["no_embed_class"]
        return (google.GOOGLE if is_first else google.BIG_VISION), ""
    if library == "timm":
        if rotary:
            return (timm.TIMM_DINOV3_GATED if gated else timm.TIMM_DINOV3), ""
        return timm.TIMM_DISTILLED if distilled else timm.TIMM_CLIP if arguments["pre_norm"] else timm.TIMM, ""
    if rotary:
        return (transformers.DINOV3_GATED if gated else transformers.DINOV3), ""
    if arguments["pre_norm"]:
        return transformers.CLIP, "vision_model."
    if arguments["pool"] == "map":
        return transformers.SIGLIP, "vision_model."
    if distilled:
        return transformers.DEIT, "deit."
    if arguments["layer_scale"] is not None:
        name = "dinov2_with_registers." if arguments["num_registers"] else "dinov2."
        return (transformers.DINOV2_GATED if gated else transformers.DINOV2), name if has_head else ""
    return transformers.VIT, "vit." if has_head else ""


def _check_has_place(arguments: Arguments, library: str) -> None:
    """Check that a library has models of these arguments."""
    pool, positions, mlp = arguments["pool"], arguments["pos_embed"], arguments["mlp"]
    stride = arguments["patch_stride"] or arguments["patch_size"]
    is_dino = positions == "rope" or arguments["layer_scale"] is not None
    mechanisms = mechanisms_of_blocks(*(arguments[name] for name in ("attention", "attention_kwargs", "depth")))
    is_early = library in ("torchvision", "google")  # without rotary positions and gated MLPs
    lacking = {
        f"attention {arguments['attention']!r}": any(name != "softmax" for name, _ in mechanisms),
        "mask_token": arguments["mask_token"],
        "attention_kwargs": any(options for _, options in mechanisms),
        "tie_qkv or tie_kv": arguments["tie_qkv"] or arguments["tie_kv"],
        "num_kv_heads": arguments["num_kv_heads"] not in (None, arguments["num_heads"]),
        "key_dim": arguments["key_dim"] not in (None, arguments["embed_dim"]),
        "value_dim": arguments["value_dim"] not in (None, arguments["embed_dim"]),
        "residual false": not arguments["residual"],
        f"norm {arguments['norm']!r}": arguments["norm"] != "pre",
        f"padding of images of {arguments['image_size']} pixels to whole patches": any(
            side % step for side, step in zip(to_pair(arguments["image_size"]), to_pair(stride), strict=True)
        ),
        f"patch_stride {stride!r}": to_pair(stride) != to_pair(arguments["patch_size"]),
        "pooling of prefix tokens by attention": pool == "map"
        and (arguments["class_token"] or arguments["num_registers"]),
        f"pos_embed {positions!r}": positions == "rope_eva" or (positions == "rope" and is_early),
        "head behind this pool or these positions": library == "transformers"
        and arguments["num_classes"] > 0
        and (pool == "map" or positions == "rope"),
        "gated MLP in such a model": mlp == "swiglu" and (is_early or (library == "transformers" and not is_dino)),
    }
    for what in (what for what, is_lacking in lacking.items() if is_lacking):
        raise ValueError(f"format {library!r} has no {what}: save the model in format 'vit'")
