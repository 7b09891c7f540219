"""Models of transformers: ViT, DeiT, DINOv2, DINOv3, SigLIP and the visual tower of CLIP.

Files on disk have the names of transformers 4. Models of transformers 5 have other names in memory. Both are read;
those on disk are written, as both versions read them. What tensors do not tell is in transformers_config.py.
"""

from dataclasses import replace

import torch

from vit.weights.formats.dinov2 import fold_class_position, unfold_class_position
from vit.weights.formats.format import HALVES, IMAGENET, OPENAI, Format, Rule, State, rename, rename_in_blocks, stack
from vit.weights.formats.timm import join_heads, split_heads

EMBEDDINGS = (
    Rule("cls_token", ("embeddings.cls_token",)),
    Rule("pos_embed", ("embeddings.position_embeddings",)),
    *rename({"patch_embed.proj": "embeddings.patch_embeddings.projection"}),
)


def attend(layer: str, names: tuple[str, ...], output: str) -> tuple[Rule, ...]:
    """Return the rules of attention with a layer for each of queries, keys and values."""
    return (
        *stack("blocks.{i}.attn.qkv", *(f"{layer}.{name}" for name in names)),
        *rename({"blocks.{i}.attn.proj": f"{layer}.{output}"}),
    )


DISK, MEMORY = "encoder.layer.{i}", "layers.{i}"
ON_DISK = (("attention.query", "attention.key", "attention.value"), "output.dense")
IN_MEMORY = ("q_proj", "k_proj", "v_proj")
NORMS = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
OF_VIT = (
    *EMBEDDINGS,
    *attend(f"{DISK}.attention", *ON_DISK),
    *rename_in_blocks(DISK, NORMS | {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}),
    *attend(f"{MEMORY}.attention", IN_MEMORY, "o_proj"),
    *rename_in_blocks(MEMORY, NORMS | {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}),
    *rename({"norm": "layernorm"}),
)
PATCHES = "embeddings.patch_embeddings.projection.weight"
CONVENTION = {"pos_embed_interpolation": "transformers"}
VIT = Format(
    "transformers (ViT)",
    (*OF_VIT, *rename({"head": "classifier"})),
    needs=(PATCHES, "embeddings.cls_token", "layernorm.weight"),
    lacks=("embeddings.distillation_token", "encoder.layer.0.layer_scale1.lambda1"),
    outside=r"classifier\..*",
    unused=r"pooler\..*|embeddings\.mask_token|decoder\..*",
    defaults=CONVENTION | {"norm_eps": 1e-12},
    requires=lambda _: {"no_embed_class": False},
    data=HALVES,
)
DEIT = replace(
    VIT,
    name="transformers (distilled DeiT)",
    rules=(
        *OF_VIT,
        Rule("reg_token", ("embeddings.distillation_token",)),
        *rename({"head": "cls_classifier", "head_dist": "distillation_classifier"}),
        *rename({"head": "classifier"}),  # of the class token alone
    ),
    needs=(PATCHES, "embeddings.distillation_token"),
    lacks=(),
    outside=r"(cls_|distillation_)?classifier\..*",
    read_from_tensors=lambda state: {"pool": "cls" if "classifier.weight" in state else "cls+dist"},
    unused=r"pooler\..*|embeddings\.mask_token",
    pools=("cls+dist",),
    defaults=VIT.defaults | {"pool": "cls+dist"},
    requires=lambda _: {"no_embed_class": False, "num_registers": 1},
    after_reading=join_heads,
    before_writing=split_heads,
    data=IMAGENET,
)


def scale(block: str) -> tuple[Rule, ...]:
    """Return the rules of LayerScale."""
    return tuple(Rule(f"blocks.{{i}}.ls{n}.gamma", (f"{block}.layer_scale{n}.lambda1",)) for n in (1, 2))


OF_DINOV2 = (
    *EMBEDDINGS,
    *attend(f"{DISK}.attention", *ON_DISK),
    *attend(f"{DISK}.attention", IN_MEMORY, "o_proj"),
    *rename_in_blocks(DISK, {"norm1": "norm1", "norm2": "norm2"}),
    *scale(DISK),
    Rule("reg_token", ("embeddings.register_tokens",)),
    Rule("mask_token", ("embeddings.mask_token",)),
    *rename({"norm": "layernorm", "head": "classifier"}),
)
GATED = ("encoder.layer.0.mlp.weights_in.weight", "encoder.layer.0.mlp.gate_proj.weight")
DINOV2 = Format(
    "transformers (DINOv2)",
    (*OF_DINOV2, *rename_in_blocks(DISK, {"mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"})),
    needs=(PATCHES, "encoder.layer.0.layer_scale1.lambda1"),
    lacks=GATED,
    outside=r"classifier\..*",
    pools=("cls", "cls+mean"),
    defaults=CONVENTION,
    requires=lambda arguments: {
        "no_embed_class": arguments["num_registers"] > 0,
        "pool": "cls+mean" if arguments["num_classes"] else "cls",  # its head reads both
    },
    data=IMAGENET,
    # With registers, the model resizes as timm does.
    read_from_tensors=lambda state: {
        "pos_embed_interpolation": "bicubic" if "embeddings.register_tokens" in state else "transformers"
    },
    after_reading=fold_class_position,
    before_writing=unfold_class_position,
)
DINOV2_GATED = replace(
    DINOV2,
    name="transformers (DINOv2, gated)",
    rules=(
        *OF_DINOV2,
        *rename_in_blocks(DISK, {"mlp.fc1": "mlp.weights_in", "mlp.fc2": "mlp.weights_out"}),
        *stack("blocks.{i}.mlp.fc1", f"{DISK}.mlp.gate_proj", f"{DISK}.mlp.up_proj"),
        *rename_in_blocks(DISK, {"mlp.fc2": "mlp.down_proj"}),
    ),
    lacks=("encoder.layer.0.mlp.fc1.weight",),
)


def _blocks_of_dinov3(*hidden: str) -> tuple[Rule, ...]:
    rules: tuple[Rule, ...] = ()
    for block in ("layer.{i}", "model.layer.{i}"):
        q, k, v = (f"{block}.attention.{name}" for name in IN_MEMORY)
        rules += (
            Rule("blocks.{i}.attn.qkv.weight", tuple(f"{name}.weight" for name in (q, k, v))),
            Rule("blocks.{i}.attn.qkv.bias", (f"{q}.bias", None, f"{v}.bias")),  # keys have no bias
            *rename_in_blocks(block, {"attn.proj": "attention.o_proj", "mlp.fc2": "mlp.down_proj"}),
            *rename_in_blocks(block, {"norm1": "norm1", "norm2": "norm2"}),
            *stack("blocks.{i}.mlp.fc1", *(f"{block}.mlp.{name}" for name in hidden)),
            *scale(block),
        )
    return rules


def _read_tokens(state: State) -> State:
    """Leave out the mask token, and the tensor of registers if it is empty."""
    return {
        name: tensor
        for name, tensor in state.items()
        if name != "mask_token" and not (name == "reg_token" and tensor.shape[1] == 0)
    }


def _write_tokens(state: State) -> State:
    """Add the tokens that these models always have."""
    token = state["cls_token"]
    return {"mask_token": token.new_zeros(token.shape), "reg_token": token[:, :0]} | state


OF_DINOV3 = (
    Rule("cls_token", ("embeddings.cls_token",)),
    Rule("reg_token", ("embeddings.register_tokens",)),
    Rule("mask_token", ("embeddings.mask_token",)),
    *rename({"patch_embed.proj": "embeddings.patch_embeddings", "norm": "norm"}),
)
DINOV3 = Format(
    "transformers (DINOv3)",
    (*OF_DINOV3, *_blocks_of_dinov3("up_proj")),
    needs=("embeddings.patch_embeddings.weight", "embeddings.register_tokens"),
    lacks=("layer.0.mlp.gate_proj.weight", "model.layer.0.mlp.gate_proj.weight"),
    defaults={"pos_embed": "rope", "norm_eps": 1e-5},
    data=IMAGENET,
    after_reading=_read_tokens,
    before_writing=_write_tokens,
)
DINOV3_GATED = replace(
    DINOV3,
    name="transformers (DINOv3, gated)",
    rules=(*OF_DINOV3, *_blocks_of_dinov3("gate_proj", "up_proj")),
    lacks=(),
)

BLOCK = "encoder.layers.{i}"
OF_CLIP = (
    Rule("pos_embed", ("embeddings.position_embedding.weight",), "n d -> 1 n d"),
    *attend(f"{BLOCK}.self_attn", IN_MEMORY, "out_proj"),
    *rename_in_blocks(
        BLOCK, {"norm1": "layer_norm1", "norm2": "layer_norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    ),
    *rename({"norm": "post_layernorm"}),
)
TEXT = r"text_model\..*|text_projection\..*|logit_(scale|bias)|.*\.position_ids"
CLIP = Format(
    "transformers (CLIP)",
    (
        Rule("cls_token", ("embeddings.class_embedding",), "d -> 1 1 d"),
        Rule("patch_embed.proj.weight", ("embeddings.patch_embedding.weight",)),
        *OF_CLIP,
        *rename({"norm_pre": "pre_layrnorm"}),
        Rule("head.weight", ("visual_projection.weight",)),
    ),
    needs=("embeddings.patch_embedding.weight", "pre_layrnorm.weight"),
    outside=r"visual_projection\..*",
    unused=TEXT,
    zeros=("patch_embed.proj.bias", "head.bias"),
    defaults=CONVENTION | {"mlp": "quick_gelu", "norm_eps": 1e-5},
    requires=lambda _: {"no_embed_class": False, "qkv_bias": True},
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
        *rename({"patch_embed.proj": "embeddings.patch_embedding"}),
        *OF_CLIP,
        Rule("attn_pool.latent", ("head.probe",)),
        Rule("attn_pool.in_proj.weight", ("head.attention.in_proj_weight",)),
        Rule("attn_pool.in_proj.bias", ("head.attention.in_proj_bias",)),
        *rename({"attn_pool.proj": "head.attention.out_proj", "attn_pool.norm": "head.layernorm"}),
        *rename({f"attn_pool.mlp.{name}": f"head.mlp.{name}" for name in ("fc1", "fc2")}),
    ),
    needs=("embeddings.patch_embedding.bias", "embeddings.position_embedding.weight", "head.probe"),
    unused=TEXT,
    pools=("map",),
    defaults=CONVENTION | {"mlp": "gelu_tanh"},
    requires=lambda _: {"qkv_bias": True},
    after_reading=_split_projection,
    before_writing=_join_projection,
    data=HALVES,
)
