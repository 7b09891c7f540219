"""Models of other libraries, tiny and random, and how each computes tokens and logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
import transformers
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import Tensor, nn

from tests.architectures import randomised

DIM, DEPTH, HEADS, CLASSES = 24, 2, 3, 5
NATIVE, OTHER = (16, 16), (24, 12)  # pixels
PATCH = 4


@dataclass(frozen=True)
class Peer:
    """A model of another library.

    Attributes:
        make: Builds it, with random weights.
        tokens: Its tokens after the final norm, in our order.
        logits: What it predicts; None where it has no head.
        resizes: Whether its own code resizes positions for images of another size.
        exact: Tolerance at the size of the training.
        changes: What ``vit.load`` has to be told.
    """

    make: Callable[[], nn.Module]
    tokens: Callable[[nn.Module, Tensor], Tensor]
    logits: Callable[[nn.Module, Tensor], Tensor] | None = None
    resizes: bool = True
    exact: float = 1e-9
    changes: tuple[tuple[str, Any], ...] = ()


def of_timm(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    """Build a model of timm's registry, made small."""
    small = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "patch_size": PATCH, "img_size": NATIVE}
    dynamic = {"dynamic_img_size": True}
    return lambda: timm.create_model(name, **small | {"num_classes": CLASSES} | dynamic | kwargs)


def timm_tokens(model: nn.Module, images: Tensor) -> Tensor:
    return model.forward_features(images)


def called(model: nn.Module, images: Tensor) -> Tensor:
    return model(images)


def of_transformers(kind: str, config: str, **kwargs: Any) -> Callable[[], nn.Module]:
    """Build a model of transformers, made small."""
    small = {"hidden_size": DIM, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS, "patch_size": PATCH}
    small |= {"image_size": NATIVE[0], "attn_implementation": "sdpa"}
    if "Dinov2" not in config:
        small["intermediate_size"] = 2 * DIM
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**small | kwargs))


def hidden(model: nn.Module, images: Tensor) -> Tensor:
    """The last hidden state of a model of transformers, behind its final norm."""
    inner = next(
        (getattr(model, name) for name in ("vit", "deit", "dinov2", "vision_model") if hasattr(model, name)), model
    )
    sizes = {} if "DINOv3" in type(model).__name__ else {"interpolate_pos_encoding": True}
    if "Dinov2" in type(model).__name__:
        sizes = {}
    return inner(pixel_values=images, **sizes).last_hidden_state


def clip_tokens(model: nn.Module, images: Tensor) -> Tensor:
    """CLIP norms the class token alone; here all tokens are."""
    inner = model.vision_model
    return inner.post_layernorm(hidden(model, images))


def hf_logits(model: nn.Module, images: Tensor) -> Tensor:
    sizes = {} if "Dinov2" in type(model).__name__ else {"interpolate_pos_encoding": True}
    return model(pixel_values=images, **sizes).logits


def torchvision_tokens(model: nn.Module, images: Tensor) -> Tensor:
    x = model._process_input(images)
    return model.encoder(torch.cat([model.class_token.expand(len(x), -1, -1), x], dim=1))


LABELS = {"num_labels": CLASSES}
GELU_TANH = {"hidden_act": "gelu_pytorch_tanh"}
PEERS = {
    "timm ViT": Peer(of_timm("vit_tiny_patch16_224"), timm_tokens, called),
    "timm ViT, mean": Peer(of_timm("vit_tiny_patch16_224", global_pool="avg"), timm_tokens, called),
    "timm MAE": Peer(of_timm("vit_base_patch16_224.mae"), timm_tokens, called),
    "timm DINO": Peer(of_timm("vit_small_patch16_224.dino", num_classes=0), timm_tokens, called),
    "timm DeiT": Peer(of_timm("deit_tiny_patch16_224"), timm_tokens, called),
    "timm DeiT, distilled": Peer(of_timm("deit_tiny_distilled_patch16_224"), timm_tokens, called),
    "timm DeiT III": Peer(of_timm("deit3_small_patch16_224"), timm_tokens, called),
    "timm DINOv2": Peer(of_timm("vit_small_patch14_dinov2"), timm_tokens, called),
    "timm DINOv2, registers": Peer(of_timm("vit_small_patch14_reg4_dinov2"), timm_tokens, called),
    "timm DINOv2, gated": Peer(of_timm("vit_giant_patch14_dinov2"), timm_tokens, called),
    "timm SigLIP": Peer(of_timm("vit_base_patch16_siglip_224"), timm_tokens, called),
    "timm CLIP": Peer(of_timm("vit_base_patch16_clip_224.openai"), timm_tokens, called),
    "timm CLIP, quick": Peer(of_timm("vit_base_patch16_clip_quickgelu_224"), timm_tokens, called),
    "timm DINOv3": Peer(of_timm("vit_small_patch16_dinov3"), timm_tokens, called),
    "timm DINOv3, gated": Peer(of_timm("vit_small_plus_patch16_dinov3"), timm_tokens, called),
    "transformers ViT": Peer(of_transformers("ViTForImageClassification", "ViTConfig", **LABELS), hidden, hf_logits),
    "transformers ViT, no head": Peer(of_transformers("ViTModel", "ViTConfig"), hidden),
    "transformers DeiT": Peer(
        of_transformers("DeiTForImageClassificationWithTeacher", "DeiTConfig", **LABELS), hidden, hf_logits
    ),
    "transformers DINOv2": Peer(
        of_transformers("Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2, **LABELS), hidden, hf_logits
    ),
    "transformers DINOv2, gated": Peer(of_transformers("Dinov2Model", "Dinov2Config", use_swiglu_ffn=True), hidden),
    "transformers DINOv2, registers": Peer(
        of_transformers("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"), hidden
    ),
    # Its angles are computed in float32.
    "transformers DINOv3": Peer(
        of_transformers("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=2), hidden, exact=1e-5
    ),
    "transformers DINOv3, gated": Peer(
        of_transformers("DINOv3ViTModel", "DINOv3ViTConfig", use_gated_mlp=True, hidden_act="silu"), hidden, exact=1e-5
    ),
    "transformers SigLIP": Peer(of_transformers("SiglipVisionModel", "SiglipVisionConfig"), hidden),
    "transformers CLIP": Peer(
        of_transformers("CLIPVisionModelWithProjection", "CLIPVisionConfig", projection_dim=CLASSES),
        clip_tokens,
        lambda model, images: model(pixel_values=images, interpolate_pos_encoding=True).image_embeds,
    ),
    "torchvision ViT": Peer(
        lambda: torchvision.models.VisionTransformer(NATIVE[0], PATCH, DEPTH, HEADS, DIM, 2 * DIM, num_classes=CLASSES),
        torchvision_tokens,
        called,
        resizes=False,
    ),
}


def made(name: str) -> nn.Module:
    """Build a peer with random weights, in float64 and eval mode."""
    torch.manual_seed(0)
    model = randomised(PEERS[name].make()).eval()
    if isinstance(model, Eva):
        # Its periods are computed in float32, and the tests compare in float64.
        model.rope.periods = 100.0 ** (torch.arange(DIM // HEADS // 4, dtype=torch.float64) / (DIM // HEADS // 4))
    return model


__all__ = ["CLASSES", "NATIVE", "OTHER", "PEERS", "Peer", "TimmVisionTransformer", "made"]
