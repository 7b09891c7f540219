"""The visual towers of CLIP: OpenAI's files, and those of OpenCLIP with the same names."""

from vit.weights.formats.format import OPENAI as STATISTICS
from vit.weights.formats.format import Format, Rule, rename, rename_in_blocks

BLOCK = "transformer.resblocks.{i}"
NAMES = {"norm1": "ln_1", "attn.proj": "attn.out_proj", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}

OPENAI = Format(
    "OpenAI CLIP",
    (
        Rule("cls_token", ("class_embedding",), "d -> 1 1 d"),
        Rule("pos_embed", ("positional_embedding",), "n d -> 1 n d"),
        Rule("patch_embed.proj.weight", ("conv1.weight",)),
        Rule("blocks.{i}.attn.qkv.weight", (f"{BLOCK}.attn.in_proj_weight",)),
        Rule("blocks.{i}.attn.qkv.bias", (f"{BLOCK}.attn.in_proj_bias",)),
        *rename({"norm_pre": "ln_pre", "norm": "ln_post"}),
        *rename_in_blocks(BLOCK, NAMES),
        Rule("head.weight", ("proj",), "d o -> o d"),
    ),
    needs=("conv1.weight", "class_embedding", "ln_pre.weight"),
    # The text tower, whose names have no prefix, and what scales the similarities.
    unused_outside=r"(transformer|token_embedding|ln_final)\..*|positional_embedding|text_projection|logit_(scale|bias)|"
    r"input_resolution|context_length|vocab_size",
    zeros=("patch_embed.proj.bias", "head.bias"),
    # Models of OpenCLIP that were not started from OpenAI's have the exact GELU: load them with mlp="gelu".
    defaults={"mlp": "quick_gelu", "norm_eps": 1e-5},
    data=STATISTICS,
)
