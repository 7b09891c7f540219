"""Formats of weights of other libraries, a file each, and which one a state dict has."""

from collections.abc import Collection

from vit.weights.formats import dinov2, google, openai, timm, torchvision, transformers
from vit.weights.formats.format import Arguments, Format, State

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
# Parts of names by which other architectures are known.
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


def described(names: Collection[str]) -> str:
    """Return what a state dict of no known format seems to be, in words."""
    for part, words in OTHERS.items():
        if any(part in name for name in names):
            return f"it looks like {words}"
    return f"its tensors are {', '.join(sorted(names)[:4])}{' and others' if len(names) > 4 else ''}"


def format_for(library: str, arguments: Arguments, state: State) -> tuple[Format, str]:
    """Return the format in which a library has a model of these arguments, and the prefix of its names.

    Raises:
        ValueError: If the library is none of ``WRITABLE``.
    """
    gated, has_head = arguments["mlp"] == "swiglu", "head.weight" in state
    is_distilled = arguments["pool"] == "cls+dist"
    if arguments["pool"] == "map" and (arguments["class_token"] or arguments["num_registers"]):
        raise ValueError("no other library pools prefix tokens by attention: save the model in format 'vit'")
    if library == "transformers" and has_head and (arguments["pool"] == "map" or arguments["pos_embed"] == "rope"):
        raise ValueError(
            "transformers has no head behind this pool or these positions: save as 'timm', or without head"
        )
    is_dino = arguments["pos_embed"] == "rope" or arguments["layer_scale"] is not None
    if gated and (library in ("torchvision", "google") or (library == "transformers" and not is_dino)):
        raise ValueError(f"{library} has no gated MLP in such a model: save the model in format 'vit'")
    if library == "timm":
        if arguments["pos_embed"] == "rope":
            return (timm.TIMM_DINOV3_GATED if gated else timm.TIMM_DINOV3), ""
        return (timm.TIMM_DISTILLED if is_distilled else timm.TIMM_CLIP if arguments["pre_norm"] else timm.TIMM), ""
    if library == "torchvision":
        return torchvision.TORCHVISION, ""
    if library == "google":
        return (
            google.GOOGLE if arguments["class_token"] and not arguments["no_embed_class"] else google.BIG_VISION
        ), ""
    if library == "transformers":
        if arguments["pos_embed"] == "rope":
            return (transformers.DINOV3_GATED if gated else transformers.DINOV3), ""
        if arguments["pre_norm"]:
            return transformers.CLIP, "vision_model."
        if arguments["pool"] == "map":
            return transformers.SIGLIP, ""
        if is_distilled:
            return transformers.DEIT, "deit."
        if arguments["layer_scale"] is not None:
            name = "dinov2_with_registers." if arguments["num_registers"] else "dinov2."
            return (transformers.DINOV2_GATED if gated else transformers.DINOV2), name if has_head else ""
        return transformers.VIT, "vit." if has_head else ""
    raise ValueError(f"unknown format {library!r}: choose one of {', '.join(WRITABLE)}")


__all__ = ["FORMATS", "WRITABLE", "Arguments", "Format", "State", "described", "detect", "format_for"]
