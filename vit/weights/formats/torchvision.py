"""torchvision's Vision Transformers, with the names of its first version as well."""

from vit.weights.formats.format import IMAGENET, Format, Rule, renamed

LAYER = "encoder.layers.encoder_layer_{i}"
NAMES = {
    "patch_embed.proj": "conv_proj",
    "blocks.{i}.norm1": f"{LAYER}.ln_1",
    "blocks.{i}.attn.proj": f"{LAYER}.self_attention.out_proj",
    "blocks.{i}.norm2": f"{LAYER}.ln_2",
    "blocks.{i}.mlp.fc1": f"{LAYER}.mlp.0",
    "blocks.{i}.mlp.fc2": f"{LAYER}.mlp.3",
    "norm": "encoder.ln",
    "head": "heads.head",
}
FIRST_VERSION = {"blocks.{i}.mlp.fc1": f"{LAYER}.mlp.linear_1", "blocks.{i}.mlp.fc2": f"{LAYER}.mlp.linear_2"}

TORCHVISION = Format(
    "torchvision",
    (
        Rule("cls_token", ("class_token",)),
        Rule("pos_embed", ("encoder.pos_embedding",)),
        Rule("blocks.{i}.attn.qkv.weight", (f"{LAYER}.self_attention.in_proj_weight",)),
        Rule("blocks.{i}.attn.qkv.bias", (f"{LAYER}.self_attention.in_proj_bias",)),
        *renamed(NAMES),
        *renamed(FIRST_VERSION),
    ),
    needs=("conv_proj.weight", "encoder.pos_embedding", "class_token"),
    defaults={"pos_embed_interpolation": "torchvision"},
    requires=lambda _: {"no_embed_class": False, "qkv_bias": True},
    data=IMAGENET,
)
