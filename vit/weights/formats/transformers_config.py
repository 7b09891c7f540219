"""Arguments of the backbone from the ``config.json`` of transformers, and the reverse."""

from typing import Any

from vit.weights.formats.format import Arguments, Format
from vit.weights.formats.transformers import CLIP, DEIT, DINOV2, DINOV2_GATED, DINOV3, DINOV3_GATED, SIGLIP, VIT

MULTILABEL = "multi_label_classification"  # the problem_type of models with a sigmoid for each label

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "quick_gelu": "quick_gelu"}

ROTARY_THETA = 100.0
# Names there of arguments that a config tells, and of sizes, which the tensors tell as well.
NAMES = {"image_size": "image_size", "patch_size": "patch_size"}
NAMES |= {"num_heads": "num_attention_heads", "norm_eps": "layer_norm_eps"}
SIZES = {"in_channels": "num_channels", "embed_dim": "hidden_size", "depth": "num_hidden_layers"}
# model_type, and the class without and with a head.
KINDS = {
    VIT.name: ("vit", ("ViTModel", "ViTForImageClassification")),
    DEIT.name: ("deit", ("DeiTModel", "DeiTForImageClassificationWithTeacher")),
    DINOV2.name: ("dinov2", ("Dinov2Model", "Dinov2ForImageClassification")),
    DINOV2_GATED.name: ("dinov2", ("Dinov2Model", "Dinov2ForImageClassification")),
    DINOV3.name: ("dinov3_vit", ("DINOv3ViTModel", "")),
    DINOV3_GATED.name: ("dinov3_vit", ("DINOv3ViTModel", "")),
    CLIP.name: ("clip_vision_model", ("CLIPVisionModel", "CLIPVisionModelWithProjection")),
    SIGLIP.name: ("siglip_vision_model", ("SiglipVisionModel", "")),
}


def arguments_in(config: dict[str, Any]) -> Arguments:
    """Return the arguments of ``VisionTransformer`` that a config of transformers tells.

    Raises:
        ValueError: If the model has a part that the backbone lacks.
    """
    config = config.get("vision_config") or config
    activation = config.get("hidden_act")  # missing if it is the default of the family
    gated = config.get("use_swiglu_ffn") or config.get("use_gated_mlp")
    if config.get("use_gated_mlp") and activation != "silu":
        raise ValueError(f"hidden_act {activation!r} gates the MLP, and the backbone has 'silu' there")
    if not gated and activation not in (None, *ACTIVATIONS):
        raise ValueError(f"hidden_act {activation!r} is none of {', '.join(ACTIVATIONS)}, which the backbone has")
    theta = (config.get("rope_parameters") or config).get("rope_theta")
    if theta not in (None, ROTARY_THETA):
        raise ValueError(
            f"rope_theta {theta!r} is not {ROTARY_THETA:g}, which the rotary positions of the backbone have"
        )
    arguments: Arguments = {ours: config.get(theirs) for ours, theirs in NAMES.items()}
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    arguments["mlp"] = "swiglu" if gated else ACTIVATIONS.get(activation)
    return {name: value for name, value in arguments.items() if value is not None}


def config_of(arguments: Arguments, format: Format, class_names: list[str] | None) -> dict[str, Any]:
    """Return the ``config.json`` of a model, the reverse of ``arguments_in``.

    Raises:
        ValueError: If image or patch are not square, which only ViT takes there, or the config has no place for the
            width of the MLP.
    """
    kind, classes = KINDS[format.name]
    if kind == "dinov2" and arguments["num_registers"]:
        kind, classes = "dinov2_with_registers", [name.replace("Dinov2", "Dinov2WithRegisters") for name in classes]
    has_head = arguments["num_classes"] > 0
    width = int(arguments["embed_dim"] * arguments["mlp_ratio"])
    gated = arguments["mlp"] == "swiglu"
    activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}.get(arguments["mlp"], "silu")
    config = {"architectures": [classes[has_head]], "model_type": kind, "hidden_act": activation}
    config |= {theirs: arguments[ours] for ours, theirs in (NAMES | SIZES).items()}
    config |= {name: _square_size(name, arguments[name], kind) for name in ("image_size", "patch_size")}
    if kind.startswith("dinov2"):
        ratio = _ratio_of_gated(width, arguments["embed_dim"]) if gated else arguments["mlp_ratio"]
        if ratio != int(ratio):
            raise ValueError(
                f"mlp_ratio ({ratio:.3g}) is no whole number, as DINOv2 of transformers needs it: save as 'timm'"
            )
        config |= {"mlp_ratio": int(ratio), "use_swiglu_ffn": gated, "qkv_bias": arguments["qkv_bias"]}
    else:
        config["intermediate_size"] = width
    if kind in ("vit", "deit"):
        config["qkv_bias"] = arguments["qkv_bias"]
    if kind == "dinov3_vit":
        config["use_gated_mlp"] = gated
    if kind in ("dinov3_vit", "dinov2_with_registers"):
        config["num_register_tokens"] = arguments["num_registers"]
    if kind == "clip_vision_model" and has_head:
        config["projection_dim"] = arguments["num_classes"]
    elif has_head:
        names = class_names or [f"LABEL_{number}" for number in range(arguments["num_classes"])]
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    return config


def _ratio_of_gated(width: int, embed_dim: int) -> float:
    """Return the ratio of which transformers takes 2 / 3, rounded up to a multiple of 8 channels, for a gated MLP."""
    if width % 8:
        raise ValueError(
            f"the gated MLP has {width} hidden channels, and DINOv2 of transformers a multiple of 8: save as 'timm'"
        )
    return 1.5 * width / embed_dim


def _square_size(name: str, size: int | tuple[int, int], kind: str) -> int | list[int]:
    if isinstance(size, int):
        return size
    if size[0] == size[1]:
        return size[0]
    if kind != "vit":
        raise ValueError(f"{name} {tuple(size)} is not square, as {kind} of transformers needs it: save as 'timm'")
    return list(size)
