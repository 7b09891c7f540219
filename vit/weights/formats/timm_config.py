"""The ``config.json`` of a folder that timm reads, by ``local-dir:FOLDER`` or from the hub."""

from typing import Any

from vit.model.embedding import to_pair
from vit.model.mlp import ACTIVATIONS
from vit.weights.formats.format import Arguments

# Any architecture of timm's VisionTransformer will do: the config overrules all its other arguments.
ARCHITECTURE = "vit_tiny_patch16_224"
POOLS = {"cls": "token", "mean": "avg", "map": "map"}  # timm's names of ours
SAME_NAMES = (
    *("embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias", "qk_norm", "class_token", "no_embed_class"),
    *("pre_norm", "fc_norm"),
)


def timm_config_of(arguments: Arguments, data: dict[str, Any]) -> dict[str, Any]:
    """Return the ``config.json`` of a model for timm.

    Args:
        arguments: Those of ``VisionTransformer``.
        data: Its ``pretrained_cfg``.

    Raises:
        ValueError: If timm's config has no place for an argument.
    """
    usual = {"norm_eps": 1e-6, "pos_embed": "learned"}
    for name, value in usual.items():
        if arguments[name] != value:
            raise ValueError(f"a folder for timm has {name} {value!r}, not {arguments[name]!r}: save a file instead")
    if arguments["mlp"] not in ACTIVATIONS or arguments["pool"] not in POOLS:
        mlp, pool = arguments["mlp"], arguments["pool"]
        raise ValueError(f"a folder for timm has no mlp {mlp!r} with pool {pool!r}: save a file instead")
    pool = POOLS[arguments["pool"]]
    changed = {name: arguments[name] for name in SAME_NAMES}
    changed |= {
        "img_size": list(to_pair(arguments["image_size"])),
        "patch_size": list(to_pair(arguments["patch_size"])),
    }
    changed |= {"reg_tokens": arguments["num_registers"], "init_values": arguments["layer_scale"]}
    changed |= {"act_layer": arguments["mlp"], "global_pool": pool, "in_chans": arguments["in_channels"]}
    described = {name: data[name] for name in ("mean", "std", "crop_pct") if data.get(name) is not None}
    if data.get("crop_ratio") is not None:
        described["crop_pct"] = data["crop_ratio"]
    described |= {"crop_mode": "squash"} if data.get("stretch") else {}
    described |= {"label_names": list(data["class_names"])} if data.get("class_names") else {}
    size = [arguments["in_channels"], *to_pair(arguments["image_size"])]
    described |= {"input_size": size, "num_classes": arguments["num_classes"], "classifier": "head"}
    described |= {"first_conv": "patch_embed.proj", "fixed_input_size": True}
    return {
        "architecture": ARCHITECTURE,
        "num_classes": arguments["num_classes"],
        "num_features": arguments["embed_dim"],
        "global_pool": pool,
        "model_args": {name: value for name, value in changed.items() if value is not None},
        "pretrained_cfg": described,
    }
