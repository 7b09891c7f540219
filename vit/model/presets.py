"""Named sizes of published Vision Transformers, under timm's names.

Sources: ViT (Dosovitskiy et al. 2021, table 1), its sizes Ti and S (Touvron et al. 2021, DeiT, table 1), DINOv2 (Oquab
et al. 2023, table 17; with registers, Darcet et al. 2024), DINOv3 (Siméoni et al. 2025, table 2 and sec. 5).
"""

from typing import Any

from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import nearest_hint

# embed_dim, depth, num_heads
SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
    "giant": (1536, 40, 24),
    "huge_plus": (1280, 32, 20),
    "7b": (4096, 40, 32),
}
GATED_GIANT = {"mlp": "swiglu", "mlp_ratio": 8 / 3}


def _sized(size: str) -> dict[str, Any]:
    return dict(zip(("embed_dim", "depth", "num_heads"), SIZES[size], strict=True))


def _vit(size: str, patch: int, image: int) -> dict[str, Any]:
    return _sized(size) | {"patch_size": patch, "image_size": image, "num_classes": 1000}


def _dinov2(size: str, registers: int) -> dict[str, Any]:
    """Return the arguments of a DINOv2: no head, LayerScale, patches of 14 pixels."""
    common = {"patch_size": 14, "image_size": 518, "num_classes": 0, "layer_scale": 1e-5}
    common |= {"num_registers": registers, "no_embed_class": registers > 0}
    common["pos_embed_interpolation"] = "bicubic" if registers else "dinov2"
    return _sized(size) | common | (GATED_GIANT if size == "giant" else {})


def _dinov3(size: str, **mlp: Any) -> dict[str, Any]:
    """Return the arguments of a DINOv3: rotary positions, four registers, LayerScale, no ``qkv_bias``."""
    common = {"patch_size": 16, "image_size": 256, "num_classes": 0, "layer_scale": 1e-5, "num_registers": 4}
    return _sized(size) | common | {"pos_embed": "rope", "norm_eps": 1e-5, "qkv_bias": False} | mlp


PRESETS: dict[str, dict[str, Any]] = {
    **{
        f"vit_{size}_patch{patch}_{image}": _vit(size, patch, image)
        for size, patches, images in (
            ("tiny", (16,), (224, 384)),
            ("small", (16, 32), (224, 384)),
            ("base", (8, 16, 32), (224, 384)),
            ("large", (16, 32), (224, 384)),
            ("huge", (14,), (224,)),
        )
        for patch in patches
        for image in images
        if (size, patch, image) not in (("base", 8, 384), ("large", 32, 224))
    },
    **{f"vit_{size}_patch14_dinov2": _dinov2(size, 0) for size in ("small", "base", "large", "giant")},
    **{f"vit_{size}_patch14_reg4_dinov2": _dinov2(size, 4) for size in ("small", "base", "large", "giant")},
    "vit_small_patch16_dinov3": _dinov3("small"),
    "vit_small_plus_patch16_dinov3": _dinov3("small", mlp="swiglu", mlp_ratio=4.0),
    "vit_base_patch16_dinov3": _dinov3("base"),
    "vit_large_patch16_dinov3": _dinov3("large"),
    "vit_huge_plus_patch16_dinov3": _dinov3("huge_plus", mlp="swiglu", mlp_ratio=4.0),
    "vit_7b_patch16_dinov3": _dinov3("7b", mlp="swiglu", mlp_ratio=2.0),
}


def create(name: str, **changes: Any) -> VisionTransformer:
    """Return a model of a published size, with random weights.

    >>> model = create("vit_tiny_patch16_224", num_classes=10, image_size=64)
    >>> model.embed_dim, model.patch_embed.grid_size
    (192, (4, 4))

    Args:
        name: A key of ``PRESETS``.
        changes: Arguments of ``VisionTransformer`` to use instead of those of the preset.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in PRESETS:
        raise ValueError(f"no model {name!r}{nearest_hint(name, PRESETS)}: choose one of {', '.join(PRESETS)}")
    return VisionTransformer(**(PRESETS[name] | changes))
