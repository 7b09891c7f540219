"""Registers the Vision Transformers of this package with timm: ``import vit.timm_models``, then ``timm.create_model``.

The names are those of ``vit.PRESETS`` with the prefix "vit_attention_" instead of "vit_", as timm uses the latter. One
more is "vit_attention_cifar10", whose weights come with the package. With ``pretrained=True`` a preset gets the weights
of timm's model of the same size.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

import vit.weights
from vit.model.embedding import Size
from vit.model.presets import PRESETS
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_choice
from vit.support.extras import import_extra
from vit.weights import load, start_from
from vit.weights.timm_source import POOLS

registry = import_extra("timm.models", "timm")

GlobalPool = Literal["token", "avg", "map", ""]
NAMES = {"image_size": "img_size", "layer_scale": "init_values", "num_registers": "reg_tokens"}  # ours: timm's
PACKAGED = "vit_attention_cifar10"
OF_EACH = {"first_conv": "patch_embed.proj", "classifier": "head"}
ON_HUB = {"hf_hub_filename": "model.safetensors", "custom_load": "hf", "url": None}


class TimmVisionTransformer(VisionTransformer):
    """A ``VisionTransformer`` with timm's names of arguments, as ``timm.create_model`` passes them.

    >>> model = TimmVisionTransformer(img_size=32, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=10)
    >>> model(torch.randn(2, 3, 32, 32)).shape, model.feature_info[-1]["reduction"]
    (torch.Size([2, 10]), 4)

    Args:
        img_size: Rows and columns of the images, or one number for both; images of other sizes work as well.
        patch_size: Rows and columns of a patch, or one number for both.
        in_chans: Channels of an image.
        num_classes: Number of classes; with 0 there is no head.
        global_pool: Input of the head: "token", "avg", "map", or "" for all tokens.
        reg_tokens: Number of registers.
        init_values: Initial factor of LayerScale; None means no LayerScale.
        drop_rate: Probability of zeroing a channel of the pooled feature.
        pos_drop_rate: Probability of zeroing a channel of the embedded tokens.
        proj_drop_rate: Probability of zeroing a channel after the projections of a block.
        patch_drop_rate: Share of the patches dropped from each training image.
        drop_path_rate: Probability that an image skips a residual branch of the last block.
        device: Device of the weights.
        dtype: Type of the weights.
        kwargs: Further arguments of ``VisionTransformer`` that have the same name in timm, or none.
    """

    def __init__(
        self,
        img_size: Size = 224,
        patch_size: Size = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: GlobalPool = "token",
        reg_tokens: int = 0,
        init_values: float | None = None,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        patch_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice("global_pool", global_pool, get_args(GlobalPool))
        has_class_token = kwargs.get("class_token", True)
        if not global_pool and kwargs.get("fc_norm") is None:
            kwargs["fc_norm"] = False  # as in timm, where None is True for "avg" alone
        with torch.device(device or torch.get_default_device()):
            super().__init__(
                image_size=img_size,
                patch_size=patch_size,
                in_channels=in_chans,
                num_classes=num_classes,
                pool=POOLS.get(global_pool, "cls" if has_class_token else "mean"),
                num_registers=reg_tokens,
                layer_scale=init_values,
                dropout=proj_drop_rate,
                patch_drop=patch_drop_rate,
                drop_path=drop_path_rate,
                **kwargs,
            )
        self.to(dtype=dtype)
        self.global_pool = global_pool
        self.pos_drop, self.head_drop = nn.Dropout(pos_drop_rate), nn.Dropout(drop_rate)
        self.in_chans = in_chans
        self.has_class_token, self.num_reg_tokens = has_class_token, reg_tokens
        self.default_cfg = self.pretrained_cfg

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Name, channels and stride of the features after each block."""
        stride = max(self.patch_embed.patch_stride)
        return [
            {"module": f"blocks.{i}", "num_chs": self.embed_dim, "reduction": stride} for i in range(len(self.blocks))
        ]

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes)."""
        return super().forward(x, attn_mask)

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Encode images, final norm included: (B, C, H, W) -> (B, prefix + N, D)."""
        return super().forward_features(x, attn_mask)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool and classify: (B, prefix + N, D) -> (B, num_classes). With global_pool "", classify each token."""
        feature = self.head_drop(super().forward_head(x, pre_logits=True) if self.global_pool else self.fc_norm(x))
        return feature if pre_logits else self.head(feature)

    def forward_intermediates(self, x: Tensor, *args: Any, attn_mask: Tensor | None = None, **kwargs: Any) -> Any:
        """Compute the features after chosen blocks, as ``VisionTransformer.forward_intermediates``."""
        return super().forward_intermediates(x, *args, **{"mask": attn_mask} | kwargs)

    def get_intermediate_layers(self, x: Tensor, *args: Any, attn_mask: Tensor | None = None, **kwargs: Any) -> Any:
        """Compute the features after chosen blocks, as ``VisionTransformer.get_intermediate_layers``."""
        return super().get_intermediate_layers(x, *args, mask=attn_mask, **kwargs)

    def reset_classifier(self, num_classes: int, global_pool: GlobalPool | None = None) -> None:
        """Replace the head by a new one for ``num_classes`` classes, and the pooling unless ``global_pool`` is None."""
        if global_pool is not None:
            check_choice("global_pool", global_pool, get_args(GlobalPool))
        super().reset_classifier(num_classes, POOLS.get(global_pool))
        if global_pool is not None:
            self.global_pool = global_pool

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        """Copy trained weights from a file that ``vit.load`` can read. timm calls this."""
        start_from(self, checkpoint_path)


# Arguments of VisionTransformer for each of our models, by its name in timm.
packaged = load("cifar10")
SIZES = {name.replace("vit_", "vit_attention_", 1): arguments for name, arguments in PRESETS.items()}
SIZES[PACKAGED] = {
    name: packaged.config[name]
    for name in (
        "image_size",
        "patch_size",
        "patch_stride",
        "num_classes",
        "embed_dim",
        "depth",
        "num_heads",
        "mlp_ratio",
    )
}


def _describe_weights(name: str) -> dict[str, Any]:
    """Return timm's descriptions of the weights for a model, by name and tag."""
    if name == PACKAGED:
        about = {key: packaged.pretrained_cfg[key] for key in ("mean", "std", "crop_pct", "input_size")}
        about |= {"label_names": tuple(packaged.pretrained_cfg["class_names"]), "num_classes": packaged.num_classes}
        file = Path(vit.weights.__file__).with_name("cifar10.safetensors")
        return {f"{name}.cifar10": OF_EACH | about | {"file": str(file), "custom_load": True}}
    # timm's own model of this size has the same names of tensors.
    theirs = name.replace("vit_attention_", "vit_", 1)
    return {
        tagged.replace(theirs, name, 1): asdict(about) | OF_EACH | ON_HUB | {"hf_hub_id": f"timm/{tagged}"}
        for tagged, about in registry.get_arch_pretrained_cfgs(theirs).items()
        if about.has_weights
    } or {name: OF_EACH}


def _register(name: str, arguments: dict[str, Any]) -> None:
    """Register a model with timm."""
    renamed = {NAMES.get(argument, argument): value for argument, value in arguments.items()}

    def make(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        feature_cfg = {"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"}
        model = registry.build_model_with_cfg(
            TimmVisionTransformer, name, pretrained, feature_cfg=feature_cfg, **renamed | kwargs
        )
        if isinstance(model, TimmVisionTransformer):  # timm gives the image size of the weights, not of the model
            size = {"input_size": [model.in_chans, *model.patch_embed.image_size]}
            model.pretrained_cfg = model.default_cfg = model.pretrained_cfg | size
        return model

    make.__name__ = name
    registry.register_model(make)


default_cfgs = registry.generate_default_cfgs(
    {tagged: about for name in SIZES for tagged, about in _describe_weights(name).items()}
)
for name, arguments in SIZES.items():
    _register(name, arguments)
