"""Models of transformers: ViT, DeiT, DINOv2, DINOv3, SigLIP and the visual tower of CLIP.

Files on disk have the names of transformers 4; in memory, those of transformers 5 differ. Both are read, and those of
the disk, which both versions read, are written. The ``config.json`` beside them, or the model's ``config``, tells what
tensors do not.
"""

from typing import Any

import torch

from vit.weights.formats.dinov2 import fold_class_position, unfold_class_position
from vit.weights.formats.format import HALVES, IMAGENET, OPENAI, Arguments, Format, Rule, State, renamed, stacked
from vit.weights.formats.timm import join_heads, split_heads

EMBEDDINGS = (
    Rule("cls_token", ("embeddings.cls_token",)),
    Rule("pos_embed", ("embeddings.position_embeddings",)),
    *renamed({"patch_embed.proj": "embeddings.patch_embeddings.projection"}),
)


def attention(layer: str, output: str) -> tuple[Rule, ...]:
    """Return the rules of attention whose three projections are layers of their own."""
    return (
        *stacked("blocks.{i}.attn.qkv", *(f"{layer}.{name}" for name in ("query", "key", "value"))),
        *renamed({"blocks.{i}.attn.proj": output}),
    )


def projected(layer: str, output: str = "o_proj") -> tuple[Rule, ...]:
    """Return the rules of attention with the names of transformers 5."""
    return (
        *stacked("blocks.{i}.attn.qkv", *(f"{layer}.{name}_proj" for name in "qkv")),
        *renamed({"blocks.{i}.attn.proj": f"{layer}.{output}"}),
    )


DISK, MEMORY = "encoder.layer.{i}", "layers.{i}"
OF_VIT = (
    *EMBEDDINGS,
    *attention(f"{DISK}.attention.attention", f"{DISK}.attention.output.dense"),
    *renamed(
        {
            "blocks.{i}.norm1": f"{DISK}.layernorm_before",
            "blocks.{i}.norm2": f"{DISK}.layernorm_after",
            "blocks.{i}.mlp.fc1": f"{DISK}.intermediate.dense",
            "blocks.{i}.mlp.fc2": f"{DISK}.output.dense",
        }
    ),
    *projected(f"{MEMORY}.attention"),
    *renamed(
        {
            "blocks.{i}.norm1": f"{MEMORY}.layernorm_before",
            "blocks.{i}.norm2": f"{MEMORY}.layernorm_after",
            "blocks.{i}.mlp.fc1": f"{MEMORY}.mlp.fc1",
            "blocks.{i}.mlp.fc2": f"{MEMORY}.mlp.fc2",
        }
    ),
    *renamed({"norm": "layernorm"}),
)
PATCHES = "embeddings.patch_embeddings.projection.weight"
CONVENTION = {"pos_embed_interpolation": "transformers"}
VIT = Format(
    "transformers (ViT)",
    (*OF_VIT, *renamed({"head": "classifier"})),
    needs=(PATCHES, "embeddings.cls_token", "layernorm.weight"),
    lacks=(
        "embeddings.distillation_token",
        "encoder.layer.0.layer_scale1.lambda1",
    ),
    outside=r"classifier\..*",
    unused=r"pooler\..*|embeddings\.mask_token|decoder\..*",
    defaults=CONVENTION | {"norm_eps": 1e-12},
    data=HALVES,
)
DEIT = Format(
    "transformers (distilled DeiT)",
    (
        *OF_VIT,
        Rule("reg_token", ("embeddings.distillation_token",)),
        *renamed({"head": "cls_classifier", "head_dist": "distillation_classifier"}),
        *renamed({"head": "classifier"}),  # of the class token alone
    ),
    needs=(PATCHES, "embeddings.distillation_token"),
    outside=r"(cls_|distillation_)?classifier\..*",
    told=lambda state: {"pool": "cls" if "classifier.weight" in state else "cls+dist"},
    unused=r"pooler\..*|embeddings\.mask_token",
    pools=("cls+dist",),
    defaults=CONVENTION | {"norm_eps": 1e-12, "pool": "cls+dist"},
    folded=join_heads,
    unfolded=split_heads,
    data=IMAGENET,
)

SCALES = tuple(Rule(f"blocks.{{i}}.ls{n}.gamma", (f"{DISK}.layer_scale{n}.lambda1",)) for n in (1, 2))
OF_DINOV2 = (
    *EMBEDDINGS,
    *attention(f"{DISK}.attention.attention", f"{DISK}.attention.output.dense"),
    *projected(f"{DISK}.attention"),
    *renamed({f"blocks.{{i}}.{name}": f"{DISK}.{name}" for name in ("norm1", "norm2")}),
    *SCALES,
    Rule("reg_token", ("embeddings.register_tokens",)),
    Rule("mask_token", ("embeddings.mask_token",)),
    *renamed({"norm": "layernorm", "head": "classifier"}),
)
MLP = renamed({f"blocks.{{i}}.mlp.{name}": f"{DISK}.mlp.{name}" for name in ("fc1", "fc2")})
GATED_MLP = (
    *renamed({"blocks.{i}.mlp.fc1": f"{DISK}.mlp.weights_in", "blocks.{i}.mlp.fc2": f"{DISK}.mlp.weights_out"}),
    *stacked("blocks.{i}.mlp.fc1", f"{DISK}.mlp.gate_proj", f"{DISK}.mlp.up_proj"),
    *renamed({"blocks.{i}.mlp.fc2": f"{DISK}.mlp.down_proj"}),
)


def _without_mask(state: State) -> State:
    return fold_class_position({name: tensor for name, tensor in state.items() if name != "mask_token"})


def _dinov2(name: str, mlp: tuple[Rule, ...], lacks: tuple[str, ...]) -> Format:
    return Format(
        name,
        (*OF_DINOV2, *mlp),
        needs=(PATCHES, "encoder.layer.0.layer_scale1.lambda1"),
        lacks=lacks,
        outside=r"classifier\..*",
        pools=("cls", "cls+mean"),
        defaults=CONVENTION,
        data=IMAGENET,
        # With registers, the model resizes as timm does.
        told=lambda state: {
            "pos_embed_interpolation": "bicubic" if "embeddings.register_tokens" in state else "transformers"
        },
        folded=_without_mask,
        unfolded=unfold_class_position,
    )


GATED = ("encoder.layer.0.mlp.weights_in.weight", "encoder.layer.0.mlp.gate_proj.weight")
DINOV2 = _dinov2("transformers (DINOv2)", MLP, lacks=GATED)
DINOV2_GATED = _dinov2("transformers (DINOv2, gated)", GATED_MLP, lacks=("encoder.layer.0.mlp.fc1.weight",))


def _of_dinov3(layer: str, gated: bool) -> tuple[Rule, ...]:
    hidden = ("gate_proj", "up_proj") if gated else ("up_proj",)
    names = tuple(f"{layer}.attention.{name}_proj" for name in "qkv")
    return (
        Rule("blocks.{i}.attn.qkv.weight", tuple(f"{name}.weight" for name in names)),
        # Its keys have no bias.
        Rule("blocks.{i}.attn.qkv.bias", (f"{names[0]}.bias", None, f"{names[2]}.bias")),
        *renamed({"blocks.{i}.attn.proj": f"{layer}.attention.o_proj"}),
        *renamed({f"blocks.{{i}}.{name}": f"{layer}.{name}" for name in ("norm1", "norm2")}),
        *stacked("blocks.{i}.mlp.fc1", *(f"{layer}.mlp.{name}" for name in hidden)),
        *renamed({"blocks.{i}.mlp.fc2": f"{layer}.mlp.down_proj"}),
        *(Rule(f"blocks.{{i}}.ls{n}.gamma", (f"{layer}.layer_scale{n}.lambda1",)) for n in (1, 2)),
    )


def _read_tokens(state: State) -> State:
    """Leave out the mask token, and registers if there are none."""
    return {
        name: tensor
        for name, tensor in state.items()
        if name != "mask_token" and not (name == "reg_token" and tensor.shape[1] == 0)
    }


def _write_tokens(state: State) -> State:
    """Add the tokens that these models always have."""
    token = state["cls_token"]
    return {"mask_token": token.new_zeros(token.shape), "reg_token": token[:, :0]} | state


def _dinov3(name: str, gated: bool) -> Format:
    return Format(
        name,
        (
            Rule("cls_token", ("embeddings.cls_token",)),
            Rule("reg_token", ("embeddings.register_tokens",)),
            Rule("mask_token", ("embeddings.mask_token",)),
            *renamed({"patch_embed.proj": "embeddings.patch_embeddings", "norm": "norm"}),
            *_of_dinov3("layer.{i}", gated),
            *_of_dinov3("model.layer.{i}", gated),
        ),
        needs=("embeddings.patch_embeddings.weight", "embeddings.register_tokens"),
        lacks=() if gated else tuple(f"{layer}.0.mlp.gate_proj.weight" for layer in ("layer", "model.layer")),
        defaults={"pos_embed": "rope", "norm_eps": 1e-5},
        data=IMAGENET,
        folded=_read_tokens,
        unfolded=_write_tokens,
    )


DINOV3 = _dinov3("transformers (DINOv3)", gated=False)
DINOV3_GATED = _dinov3("transformers (DINOv3, gated)", gated=True)

LAYER = "encoder.layers.{i}"
OF_CLIP = (
    Rule("pos_embed", ("embeddings.position_embedding.weight",), "n d -> 1 n d"),
    *projected(f"{LAYER}.self_attn", "out_proj"),
    *renamed(
        {
            "blocks.{i}.norm1": f"{LAYER}.layer_norm1",
            "blocks.{i}.norm2": f"{LAYER}.layer_norm2",
            "blocks.{i}.mlp.fc1": f"{LAYER}.mlp.fc1",
            "blocks.{i}.mlp.fc2": f"{LAYER}.mlp.fc2",
            "norm": "post_layernorm",
        }
    ),
)
TEXT = r"text_model\..*|text_projection\..*|logit_(scale|bias)|.*\.position_ids"
CLIP = Format(
    "transformers (CLIP)",
    (
        Rule("cls_token", ("embeddings.class_embedding",), "d -> 1 1 d"),
        Rule("patch_embed.proj.weight", ("embeddings.patch_embedding.weight",)),
        *OF_CLIP,
        *renamed({"norm_pre": "pre_layrnorm"}),
        Rule("head.weight", ("visual_projection.weight",)),
    ),
    needs=("embeddings.patch_embedding.weight", "pre_layrnorm.weight"),
    outside=r"visual_projection\..*",
    unused=TEXT,
    zeros=("patch_embed.proj.bias", "head.bias"),
    defaults=CONVENTION | {"mlp": "quick_gelu", "norm_eps": 1e-5},
    data=OPENAI,
)


def _split_projection(state: State) -> State:
    """Split the joint projection of the pooling attention into that of the query and that of keys and values."""
    for kind in ("weight", "bias"):
        joint = state.pop(f"attn_pool.in_proj.{kind}", None)
        if joint is not None:
            third = joint.shape[0] // 3
            state[f"attn_pool.q.{kind}"], state[f"attn_pool.kv.{kind}"] = joint.split([third, 2 * third])
    return state


def _join_projection(state: State) -> State:
    """Join the projections of the pooling attention."""
    for kind in ("weight", "bias"):
        if f"attn_pool.q.{kind}" in state:
            parts = [state.pop(f"attn_pool.{name}.{kind}") for name in ("q", "kv")]
            state[f"attn_pool.in_proj.{kind}"] = torch.cat(parts)
    return state


SIGLIP = Format(
    "transformers (SigLIP)",
    (
        *renamed({"patch_embed.proj": "embeddings.patch_embedding"}),
        *OF_CLIP,
        Rule("attn_pool.latent", ("head.probe",)),
        Rule("attn_pool.in_proj.weight", ("head.attention.in_proj_weight",)),
        Rule("attn_pool.in_proj.bias", ("head.attention.in_proj_bias",)),
        *renamed({"attn_pool.proj": "head.attention.out_proj", "attn_pool.norm": "head.layernorm"}),
        *renamed({f"attn_pool.mlp.{name}": f"head.mlp.{name}" for name in ("fc1", "fc2")}),
    ),
    needs=("embeddings.patch_embedding.bias", "embeddings.position_embedding.weight", "head.probe"),
    unused=TEXT,
    pools=("map",),
    defaults=CONVENTION | {"mlp": "gelu_tanh"},
    folded=_split_projection,
    unfolded=_join_projection,
    data=HALVES,
)

ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "quick_gelu": "quick_gelu"}


def arguments_in(config: dict[str, Any]) -> Arguments:
    """Return the arguments of ``VisionTransformer`` that a config of transformers tells.

    Raises:
        ValueError: If the model has a part that the backbone lacks.
    """
    config = config.get("vision_config") or config
    activation = config.get("hidden_act")  # missing where it is the default of the family
    gated = config.get("use_swiglu_ffn") or config.get("use_gated_mlp")
    if not gated and activation not in (None, *ACTIVATIONS):
        raise ValueError(f"hidden_act {activation!r} is none of {', '.join(ACTIVATIONS)}, which the backbone has")
    sizes = {"image_size": config.get("image_size"), "patch_size": config.get("patch_size")}
    told: Arguments = {name: tuple(size) if isinstance(size, list) else size for name, size in sizes.items()}
    told["num_heads"] = config.get("num_attention_heads")
    told["norm_eps"] = config.get("layer_norm_eps")
    told["mlp"] = "swiglu" if gated else ACTIVATIONS.get(activation)
    return {name: value for name, value in told.items() if value is not None}


def config_of(arguments: Arguments, format: Format, class_names: list[str] | None) -> dict[str, Any]:
    """Return the ``config.json`` of a model, the reverse of ``arguments_in``.

    Raises:
        ValueError: If image or patch are not square, where the library takes one number.
    """
    kind, classes = KINDS[format.name]
    if kind == "dinov2" and arguments["num_registers"]:
        kind, classes = "dinov2_with_registers", [name.replace("Dinov2", "Dinov2WithRegisters") for name in classes]
    has_head = arguments["num_classes"] > 0
    image, patch = (_one_number(name, arguments[name], kind) for name in ("image_size", "patch_size"))
    width = int(arguments["embed_dim"] * arguments["mlp_ratio"])
    gated = arguments["mlp"] == "swiglu"
    activation = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}.get(arguments["mlp"], "silu")
    config = {
        "architectures": [classes[has_head]],
        "model_type": kind,
        "image_size": image,
        "patch_size": patch,
        "num_channels": arguments["in_channels"],
        "hidden_size": arguments["embed_dim"],
        "num_hidden_layers": arguments["depth"],
        "num_attention_heads": arguments["num_heads"],
        "hidden_act": activation,
        "layer_norm_eps": arguments["norm_eps"],
    }
    if kind.startswith("dinov2"):
        ratio = _ratio_of_gated(width, arguments["embed_dim"]) if gated else arguments["mlp_ratio"]
        if ratio != int(ratio):
            raise ValueError(f"mlp_ratio ({ratio:.3g}) is no whole number, as DINOv2 of transformers needs it")
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
    """Return the ratio from which transformers computes this width of a gated MLP: 2 / 3 of it, rounded up to 8."""
    if width % 8:
        raise ValueError(f"the gated MLP has {width} hidden channels, and DINOv2 of transformers a multiple of 8")
    return 1.5 * width / embed_dim


def _one_number(name: str, size: int | tuple[int, int], kind: str) -> int | list[int]:
    if isinstance(size, int):
        return size
    if size[0] == size[1]:
        return size[0]
    if kind != "vit":
        raise ValueError(f"{name} {tuple(size)} is not square, as {kind} of transformers needs it: save as 'timm'")
    return list(size)


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
