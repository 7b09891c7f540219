"""timm's Vision Transformers: ViT, DeiT and its distilled form, AugReg, DINO, MAE, DINOv2, SigLIP, CLIP; and DINOv3.

This package has timm's names of weights, so most rules rename nothing.
"""

from dataclasses import replace

import torch

from vit.weights.formats.format import IMAGENET, OPENAI, Format, Rule, State, keep, rename, stack

BLOCK = (
    *(f"blocks.{{i}}.{name}" for name in ("norm1", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")),
    *(f"blocks.{{i}}.attn.{name}_norm" for name in "qk"),
)
POOL = tuple(f"attn_pool.{name}" for name in ("q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2"))
MODULES = ("patch_embed.proj", "norm_pre", *BLOCK, "norm", "fc_norm", *POOL, "head")
QKV = keep("blocks.{i}.attn.qkv.weight", "blocks.{i}.attn.qkv.bias")
TOKENS = keep("cls_token", "reg_token", "pos_embed", "attn_pool.latent")
RULES = (
    *TOKENS,
    *rename({name: name for name in MODULES}),
    *QKV,
    *keep("blocks.{i}.ls1.gamma", "blocks.{i}.ls2.gamma"),
)
# The original files of DeiT III have these names.
GAMMAS = tuple(Rule(f"blocks.{{i}}.ls{number}.gamma", (f"blocks.{{i}}.gamma_{number}",)) for number in (1, 2))


def join_heads(state: State) -> State:
    """Join the heads of class and distillation token, whose logits are averaged (Touvron et al. 2021, DeiT)."""
    if "head_dist.weight" not in state:
        return state
    weights = state["head.weight"], state.pop("head_dist.weight")
    bias = (state["head.bias"] + state.pop("head_dist.bias")) / 2
    return state | {"head.weight": torch.cat(weights, dim=1) / 2, "head.bias": bias}


def split_heads(state: State) -> State:
    """Split a head that reads class and distillation token into two."""
    if "head.weight" not in state:
        return state
    of_class, of_distillation = (2 * state["head.weight"]).chunk(2, dim=1)
    return state | {"head.weight": of_class, "head_dist.weight": of_distillation, "head_dist.bias": state["head.bias"]}


TIMM = Format(
    "timm",
    (*RULES, *GAMMAS),
    needs=("patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight"),
    pools=("cls", "mean", "map"),
    lacks=("dist_token", "norm_pre.weight", "mask_token", "register_tokens"),
    # The projection head of DINO's pre-training.
    unused=r"head\.(mlp|last_layer)\..*",
)
TIMM_MAE = Format(
    "timm (MAE)",
    RULES,
    needs=("patch_embed.proj.weight", "pos_embed", "mask_token", "decoder_pos_embed"),
    unused=r"mask_token|decoder_.*",
    data=IMAGENET,
)
TIMM_DISTILLED = Format(
    "timm (distilled DeiT)",
    (Rule("reg_token", ("dist_token",)), *RULES, *rename({"head_dist": "head_dist"})),
    needs=("patch_embed.proj.weight", "dist_token"),
    pools=("cls+dist",),
    defaults={"pool": "cls+dist"},
    requires=lambda _: {"num_registers": 1},
    after_reading=join_heads,
    before_writing=split_heads,
    data=IMAGENET,
)
TIMM_CLIP = Format(
    "timm (CLIP)",
    RULES,
    needs=("patch_embed.proj.weight", "norm_pre.weight"),
    lacks=("patch_embed.proj.bias",),
    zeros=("patch_embed.proj.bias",),
    defaults={"norm_eps": 1e-5},
    data=OPENAI,
)
OF_DINOV3 = (
    *keep("cls_token", "reg_token"),
    *rename({name: name for name in MODULES if "fc1" not in name and "pool" not in name}),
    *QKV,
    *GAMMAS,
)
TIMM_DINOV3 = Format(
    "timm (DINOv3)",
    (*OF_DINOV3, *rename({"blocks.{i}.mlp.fc1": "blocks.{i}.mlp.fc1"})),
    needs=("patch_embed.proj.weight", "blocks.0.gamma_1", "blocks.0.mlp.fc1.weight"),
    lacks=("pos_embed", "blocks.0.attn.qkv.bias"),  # other rotary models have that bias
    pools=("cls", "mean"),
    defaults={"pos_embed": "rope", "norm_eps": 1e-5, "pool": "mean"},
    data=IMAGENET,
)
TIMM_DINOV3_GATED = replace(
    TIMM_DINOV3,
    name="timm (DINOv3, gated)",
    rules=(*OF_DINOV3, *stack("blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc1_g", "blocks.{i}.mlp.fc1_x")),
    needs=("patch_embed.proj.weight", "blocks.0.gamma_1", "blocks.0.mlp.fc1_g.weight"),
)
