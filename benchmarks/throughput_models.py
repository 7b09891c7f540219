"""The same Vision Transformer in five libraries, its sizes, and a check that it is the same."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import vit

NUM_CLASSES = 10


@dataclass(frozen=True)
class Size:
    """A Vision Transformer with a class token and MLPs four times as wide, and its batch by type of device."""

    image_size: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    batch: dict[str, int]
    mlp_ratio: int = 4

    def forward_flops(self) -> int:
        """Return the floating-point operations of the matrix products for one image, two for each multiply-add."""
        d, n = self.embed_dim, self.tokens()
        projections = 2 * (4 + 2 * self.mlp_ratio) * n * d**2  # queries, keys, values, output; into the MLP and out
        attention = 4 * n**2 * d
        return self.depth * (projections + attention) + 2 * (n - 1) * 3 * self.patch_size**2 * d + 2 * d * NUM_CLASSES

    def tokens(self) -> int:
        """Return the number of tokens: patches and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    def products(self, batch: int) -> list[tuple[int, int, int]]:
        """Return rows, input and output channels of a block's products: qkv, output projection, MLP's two."""
        d, rows = self.embed_dim, batch * self.tokens()
        return [(rows, d, 3 * d), (rows, d, d), (rows, d, self.mlp_ratio * d), (rows, self.mlp_ratio * d, d)]


SIZES = {
    "192x6-p4-32": Size(32, 4, 192, 6, 3, {"cpu": 128, "cuda": 1024}),
    "384x12-p4-32": Size(32, 4, 384, 12, 6, {"cpu": 64, "cuda": 512}),
    "384x12-p2-32": Size(32, 2, 384, 12, 6, {"cuda": 512}),
    "S16-224": Size(224, 16, 384, 12, 6, {"cpu": 8, "cuda": 256}),
    "B16-224": Size(224, 16, 768, 12, 12, {"cpu": 4, "cuda": 128}),
}


def _arguments(size: Size) -> dict[str, int]:
    """Return the arguments of a model that have the same names in ours and in timm's, all but the image's size."""
    return {
        "patch_size": size.patch_size,
        "num_classes": NUM_CLASSES,
        "embed_dim": size.embed_dim,
        "depth": size.depth,
        "num_heads": size.num_heads,
        "mlp_ratio": size.mlp_ratio,
    }


def ours(size: Size) -> nn.Module:
    """Build the model of this package."""
    return vit.VisionTransformer(size.image_size, **_arguments(size))


def timm(size: Size) -> nn.Module:
    """Build the model of PyTorch Image Models (timm)."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(size.image_size, **_arguments(size))


def timm_explicit(size: Size) -> nn.Module:
    """Build timm's model without fused attention."""
    model = timm(size)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


def torchvision(size: Size) -> nn.Module:
    """Build the model of torchvision."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        size.image_size,
        size.patch_size,
        num_layers=size.depth,
        num_heads=size.num_heads,
        hidden_dim=size.embed_dim,
        mlp_dim=size.mlp_ratio * size.embed_dim,
        num_classes=NUM_CLASSES,
    )
    nn.init.trunc_normal_(model.heads.head.weight, std=0.02)  # zeros would give zero gradients at first
    return model


def vit_pytorch(size: Size) -> nn.Module:
    """Build the model of vit-pytorch: no qkv bias, and two norms around the patch embedding."""
    from vit_pytorch import ViT

    return ViT(
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_classes=NUM_CLASSES,
        dim=size.embed_dim,
        depth=size.depth,
        heads=size.num_heads,
        dim_head=size.embed_dim // size.num_heads,
        mlp_dim=size.mlp_ratio * size.embed_dim,
    )


class Logits(nn.Module):
    """A model of transformers that returns its logits alone.

    Args:
        model: A model that returns an object with logits.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: (B, C, H, W) -> (B, num_classes)."""
        return self.model(images).logits


def transformers(size: Size, attention: str = "sdpa") -> nn.Module:
    """Build the model of Hugging Face's transformers, with fused ("sdpa") or explicit ("eager") attention."""
    from transformers import AutoModelForImageClassification, ViTConfig

    config = ViTConfig(
        image_size=size.image_size,
        patch_size=size.patch_size,
        num_labels=NUM_CLASSES,
        hidden_size=size.embed_dim,
        num_hidden_layers=size.depth,
        num_attention_heads=size.num_heads,
        intermediate_size=size.mlp_ratio * size.embed_dim,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-6,
    )
    return Logits(AutoModelForImageClassification.from_config(config, attn_implementation=attention))


OURS: dict[str, Callable[[Size], nn.Module]] = {"ours": ours}
PEERS: dict[str, Callable[[Size], nn.Module]] = {
    "timm": timm,
    "torchvision": torchvision,
    "vit-pytorch": vit_pytorch,
    "transformers": transformers,
}
# Fused attention is the slower kind in bfloat16 on CPUs. Ours and vit-pytorch are explicit there; these can be, too.
EXPLICIT: dict[str, Callable[[Size], nn.Module]] = {
    "timm, explicit attention": timm_explicit,
    "transformers, explicit attention": partial(transformers, attention="eager"),
}


def parameters(model: nn.Module) -> int:
    """Return the number of trained numbers."""
    return sum(parameter.numel() for parameter in model.parameters())


def counted_flops(model: nn.Module, size: Size) -> int:
    """Return the floating-point operations of the matrix products that a model performs for one image."""
    # Before torch 2.15 the fused attention of a CPU is not counted.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model.train()(torch.randn(1, 3, size.image_size, size.image_size))
    return counter.get_total_flops()


@torch.no_grad()
def check_same(models: dict[str, nn.Module], size: Size) -> None:
    """Check that the models are the same; timm's is left with our weights. Models may be missing.

    Raises:
        ValueError: If numbers of parameters differ (except that of vit-pytorch), or the logits of ours and timm.
    """
    counts = {name: parameters(model) for name, model in models.items() if name != "vit-pytorch"}
    if len(set(counts.values())) > 1:
        raise ValueError(f"these should have the same number of parameters: {counts}")
    if {"ours", "timm"} <= models.keys():
        models["timm"].load_state_dict(models["ours"].state_dict())
        images = torch.randn(2, 3, size.image_size, size.image_size)
        difference = (models["ours"].eval()(images) - models["timm"].eval()(images)).abs().max().item()
        if not difference < 1e-4:
            raise ValueError(f"with the same weights, the logits of ours and timm differ by {difference:.2g}")
