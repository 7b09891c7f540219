"""torchvision's Vision Transformers, with the names of its first version as well."""

from vit.model.embedding import Size, to_pair
from vit.weights.formats.format import IMAGENET, Format, Rule, rename, rename_in_blocks

BLOCK = "encoder.layers.encoder_layer_{i}"
NAMES = {
    "norm1": "ln_1",
    "attn.proj": "self_attention.out_proj",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.3",
}


def _squared(size: Size) -> Size:
    """Return a square size as it is, and the longer side of any other."""
    rows, columns = to_pair(size)
    return size if rows == columns else max(rows, columns)


TORCHVISION = Format(
    "torchvision",
    (
        Rule("cls_token", ("class_token",)),
        Rule("pos_embed", ("encoder.pos_embedding",)),
        Rule("blocks.{i}.attn.qkv.weight", (f"{BLOCK}.self_attention.in_proj_weight",)),
        Rule("blocks.{i}.attn.qkv.bias", (f"{BLOCK}.self_attention.in_proj_bias",)),
        *rename({"patch_embed.proj": "conv_proj", "norm": "encoder.ln", "head": "heads.head"}),
        *rename_in_blocks(BLOCK, NAMES),
        *rename_in_blocks(BLOCK, {"mlp.fc1": "mlp.linear_1", "mlp.fc2": "mlp.linear_2"}),  # of the first version
    ),
    needs=("conv_proj.weight", "encoder.pos_embedding", "class_token"),
    defaults={"pos_embed_interpolation": "torchvision"},
    from_config=(),
    requires=lambda arguments: {
        "no_embed_class": False,
        "qkv_bias": True,
        "in_channels": 3,
        **{name: _squared(arguments[name]) for name in ("image_size", "patch_size")},
    },
    data=IMAGENET,
)
