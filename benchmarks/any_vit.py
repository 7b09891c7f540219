"""Captured attention of architectures of every library, checked by a second computation, or refused with its reason.

Each model is tiny, has random weights and runs in float64. For each one that is not refused:

- attention: the captured weights equal those that the library's own explicit code computes (hooks on timm's attn_drop,
  output_attentions of transformers, need_weights of torchvision, hooks on vit-pytorch's softmax);
- order: the pixels of one patch are changed at a time, and at the entry of the first layer the token moves that the map
  takes for this patch; where patches overlap and several move, their middle is less than a patch away.

A model is wrong if one of the two fails, and the command then ends with status 1.

    python benchmarks/any_vit.py [--only NAME ...] [--output benchmarks/results]
"""

import copy
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from einops import rearrange
from records import command, command_line, commit, machine
from torch import Tensor, nn

from vit.capture import Anatomy, capture_attention, examine
from vit.explain.maps import Subject, signed_map
from vit.support.files import replacing
from vit.support.markdown import markdown_table

NUM_CLASSES = 7
SIZE = 32  # pixels of a side, unless a model needs others
TOLERANCE = 1e-6  # transformers computes its explicit softmax in float32
MOST_PATCHES = 16  # changed one at a time
SWIN = {"image_size": SIZE, "embed_dim": 12, "depths": [2, 2], "num_heads": [3, 3], "window_size": 2, "patch_size": 4}
METHODS_TRIED = ("rollout", "relevance")

REPORT = """# Attention of {count} architectures

{read} are read, {refused} are refused with a reason, {wrong} are wrong. Models are tiny, with random weights, in
float64. "Attention" is the largest difference between captured weights and those of the library's own explicit code;
"order" counts the patches whose token was found by changing their pixels alone. Made by `python benchmarks/any_vit.py`.

{tables}
"""


# Models.

OF_TRANSFORMERS = {
    "patch_size": 8,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 24,
}

Make = Callable[[], nn.Module]


def of_timm(name: str, size: int | tuple[int, int] = SIZE, **kwargs: Any) -> tuple[Make, Any]:
    """Return what makes a model of timm, and the size of its images, which not every model is told."""

    def make() -> nn.Module:
        import timm

        options = {"num_classes": NUM_CLASSES} | kwargs
        with suppress(TypeError):
            return timm.create_model(name, img_size=size, **options)
        return timm.create_model(name, **options)

    return make, size


def of_transformers(name: str, size: int = SIZE, **kwargs: Any) -> tuple[Make, int]:
    """Return what makes a plain classifier of transformers."""

    def make() -> nn.Module:
        return hierarchy(name, size, **OF_TRANSFORMERS | {"image_size": size} | kwargs)[0]()

    return make, size


def hierarchy(name: str, size: int = SIZE, **kwargs: Any) -> tuple[Make, int]:
    """Return what makes a classifier of transformers with these arguments of its config alone."""

    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name.split('For')[0]}Config")(num_labels=NUM_CLASSES, **kwargs)
        return getattr(transformers, name)(config)

    return make, size


def two_towers(name: str) -> tuple[Make, int]:
    """Return what makes a classifier of transformers whose config has one for images and one for text."""
    text = {key: OF_TRANSFORMERS[key] for key in list(OF_TRANSFORMERS)[1:]}
    return hierarchy(name, vision_config=OF_TRANSFORMERS | {"image_size": SIZE}, text_config=text)


def of_vit_pytorch(module: str, name: str, **kwargs: Any) -> tuple[Make, int]:
    """Return what makes a model of vit-pytorch."""

    def make() -> nn.Module:
        from importlib import import_module

        small = {"image_size": SIZE, "patch_size": 8, "dim": 12, "depth": 3, "heads": 3, "mlp_dim": 24}
        options = {**small, "num_classes": NUM_CLASSES, **kwargs}
        given = {key: value for key, value in options.items() if value is not None}
        return getattr(import_module(f"vit_pytorch.{module}"), name)(**given)

    return make, SIZE


def of_torchvision(name: str, size: int = SIZE, **kwargs: Any) -> tuple[Make, int]:
    """Return what makes a model of torchvision."""

    def make() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=NUM_CLASSES, **kwargs)

    return make, size


def ours(**kwargs: Any) -> tuple[Make, int]:
    """Return what makes a model of this package."""

    def make() -> nn.Module:
        import vit

        small = {"image_size": SIZE, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 3}
        return vit.VisionTransformer(num_classes=NUM_CLASSES, **small | kwargs)

    return make, SIZE


PLAIN = {"embed_dim": 12, "depth": 3, "num_heads": 3, "patch_size": 8}
ARCHITECTURES: dict[str, dict[str, tuple[Make, Any]]] = {
    "ours": {
        "class token": ours(),
        "mean": ours(pool="mean"),
        "class token and mean": ours(pool="cls+mean"),
        "registers": ours(num_registers=2),
        "chunked": ours(attention="chunked", attention_kwargs={"chunk": 5}),
        "window": ours(attention="window", attention_kwargs={"window": 2}),
        "neighborhood": ours(attention="neighborhood", attention_kwargs={"kernel": 3}),
        "talking": ours(attention="talking"),
        "differential": ours(attention="differential"),
        "gated": ours(attention="gated"),
        "linear": ours(attention="linear"),
    },
    "timm": {
        "ViT": of_timm("vit_tiny_patch16_224", **PLAIN),
        "ViT, not square": of_timm("vit_tiny_patch16_224", size=(24, 40), **PLAIN),
        "ViT, mean": of_timm("vit_base_patch16_224", **PLAIN, global_pool="avg", class_token=False),
        "ViT, maximum": of_timm("vit_base_patch16_224", **PLAIN, global_pool="max", class_token=False),
        "ViT, registers": of_timm("vit_medium_patch16_reg1_gap_256", **PLAIN),
        "ViT, attention pooling": of_timm("vit_base_patch16_siglip_224", **PLAIN),
        "ViT, parallel scaling": of_timm("vit_base_patch16_xp_224", **PLAIN),
        "ViT, parallel branches": of_timm("vit_small_patch16_18x2_224", **PLAIN),
        "ViT, differential": of_timm("vit_dlittle_patch16_reg1_gap_256", embed_dim=24, depth=3, num_heads=2),
        "ViT, relative positions": of_timm("vit_relpos_small_patch16_224", **PLAIN),
        "ViT, shared relative positions": of_timm("vit_srelpos_small_patch16_224", **PLAIN),
        "ViT, ResNet stem": of_timm("vit_tiny_r_s16_p8_224", size=64, embed_dim=12, depth=3, num_heads=3),
        "DINOv2": of_timm("vit_small_patch14_dinov2", size=28, embed_dim=12, depth=3, num_heads=3),
        "DINOv3": of_timm("vit_small_patch16_dinov3", embed_dim=24, depth=3, num_heads=3, patch_size=8),
        "DeiT": of_timm("deit_tiny_patch16_224", **PLAIN),
        "DeiT, distilled": of_timm("deit_tiny_distilled_patch16_224", **PLAIN),
        "DeiT III": of_timm("deit3_small_patch16_224", **PLAIN),
        "FlexiViT": of_timm("flexivit_small", **PLAIN),
        "CLIP": of_timm("vit_base_patch32_clip_224", **PLAIN),
        "BEiT": of_timm("beit_base_patch16_224", **PLAIN),
        "BEiT v2": of_timm("beitv2_base_patch16_224", **PLAIN),
        "EVA": of_timm("eva_giant_patch14_224", size=28, embed_dim=24, depth=3, num_heads=3),
        "EVA-02": of_timm("eva02_tiny_patch14_224", size=28, embed_dim=24, depth=3, num_heads=3),
        "AIMv2": of_timm("aimv2_large_patch14_224", size=28, embed_dim=12, depth=3, num_heads=3),
        "CaiT": of_timm("cait_xxs24_224", **PLAIN),
        "CaiT, one class layer": of_timm("cait_xxs24_224", **PLAIN, depth_token_only=1),
        "ConViT": of_timm("convit_tiny", **PLAIN, local_up_to_layer=2),
        "ConViT, gated layers alone": of_timm("convit_tiny", **PLAIN, local_up_to_layer=3),
        "XCiT": of_timm("xcit_nano_12_p8_224", embed_dim=16, depth=2, num_heads=1),
        "VOLO": of_timm("volo_d1_224", size=224),
        "CrossViT": of_timm("crossvit_tiny_240", size=240),
        "LeViT": of_timm("levit_128s", size=224),
        "PiT": of_timm("pit_ti_224", size=224),
        "TNT": of_timm("tnt_s_legacy_patch16_224", embed_dim=12, depth=3, num_heads_outer=3, num_heads_inner=2),
        "Visformer": of_timm("visformer_tiny", size=224),
        "CoaT": of_timm("coat_lite_tiny", size=64),
        "Twins": of_timm("twins_svt_small", size=64),
        "Swin": of_timm("swin_tiny_patch4_window7_224", size=56),
        "Swin v2": of_timm("swinv2_tiny_window8_256", size=64),
        "MViTv2": of_timm("mvitv2_tiny", size=64),
        "MaxViT": of_timm("maxvit_tiny_rw_224", size=224),
        "CoAtNet": of_timm("coatnet_nano_rw_224", size=224),
        "NesT": of_timm("nest_tiny", size=224),
        "GCViT": of_timm("gcvit_xxtiny", size=224),
        "DaViT": of_timm("davit_tiny", size=64),
        "Hiera": of_timm("hiera_tiny_224", size=224),
        "SAM": of_timm("samvit_base_patch16", embed_dim=12, depth=3, num_heads=3, patch_size=8, window_size=2),
        "SAM, whole images": of_timm(
            "samvit_base_patch16", embed_dim=12, depth=3, num_heads=3, patch_size=8, window_size=0
        ),
        "EdgeNeXt": of_timm("edgenext_xx_small", size=64),
        "MobileViT": of_timm("mobilevit_xxs", size=64),
        "PVT v2": of_timm("pvt_v2_b0", size=64),
        "NaFlexViT": of_timm("naflexvit_base_patch16_gap", embed_dim=12, depth=3, num_heads=3, patch_size=8),
        "BoTNet": of_timm("botnet26t_256", size=256),
        "ResNet": of_timm("resnet18"),
        "ViT, rotary positions": of_timm(
            "vit_small_patch16_rope_224", embed_dim=24, depth=3, num_heads=3, patch_size=8
        ),
        "ViT, mixed rotary positions": of_timm(
            "vit_small_patch16_rope_mixed_224", embed_dim=24, depth=3, num_heads=3, patch_size=8
        ),
        "Perception Encoder": of_timm("vit_pe_core_tiny_patch16_384", embed_dim=24, depth=3, num_heads=3, patch_size=8),
        "EVA-02 CLIP": of_timm("eva02_base_patch16_clip_224", embed_dim=24, depth=3, num_heads=3, patch_size=8),
        "BEiT-3": of_timm("beit3_base_patch16_224", **PLAIN),
        "Qwen3 ViT": of_timm("qwen3_vit_88m", size=64, embed_dim=24, depth=3, num_heads=3),
        "Gemma 4 ViT": of_timm("gemma4_vit_167m", size=48, embed_dim=24, depth=3, num_heads=3),
        "DeepSeek ViT": of_timm("deepseek_vit_412m", size=56, embed_dim=24, depth=3, num_heads=3),
        "TinyViT": of_timm("tiny_vit_5m_224", size=224),
        "MLP-Mixer": of_timm("mixer_s32_224", size=224),
        "PoolFormer": of_timm("poolformer_s12"),
    },
    "transformers": {
        "ViT": of_transformers("ViTForImageClassification"),
        "DeiT": of_transformers("DeiTForImageClassification"),
        "DeiT with teacher": of_transformers("DeiTForImageClassificationWithTeacher"),
        "BEiT": of_transformers("BeitForImageClassification", use_absolute_position_embeddings=True),
        "Data2Vec": of_transformers("Data2VecVisionForImageClassification"),
        "DINOv2": of_transformers("Dinov2ForImageClassification"),
        "DINOv2 with registers": of_transformers("Dinov2WithRegistersForImageClassification", num_register_tokens=2),
        "I-JEPA": of_transformers("IJepaForImageClassification"),
        "ViT-MSN": of_transformers("ViTMSNForImageClassification"),
        "CLIP": two_towers("CLIPForImageClassification"),
        "SigLIP": two_towers("SiglipForImageClassification"),
        "Swin": hierarchy("SwinForImageClassification", **SWIN),
        "PVT": hierarchy("PvtForImageClassification", 64, image_size=64),
        "SegFormer": hierarchy("SegformerForImageClassification", 64),
        "LeViT": hierarchy("LevitForImageClassification", 224),
        "CvT": hierarchy("CvtForImageClassification", 64),
        "MobileViT": hierarchy("MobileViTForImageClassification", 64, image_size=64),
        "MobileViT v2": hierarchy("MobileViTV2ForImageClassification", 64, image_size=64),
        "PVT v2": hierarchy("PvtV2ForImageClassification", 64, image_size=64),
        "Swin v2": hierarchy("Swinv2ForImageClassification", **SWIN),
        "LeViT with teacher": hierarchy("LevitForImageClassificationWithTeacher", 224),
        "MetaCLIP 2": two_towers("MetaClip2ForImageClassification"),
        "FocalNet": hierarchy("FocalNetForImageClassification", 64, image_size=64),
    },
    "torchvision": {
        "ViT": of_torchvision(
            "VisionTransformer", image_size=SIZE, patch_size=8, num_layers=3, num_heads=3, hidden_dim=12, mlp_dim=24
        ),
        "Swin": of_torchvision(
            "SwinTransformer", patch_size=[4, 4], embed_dim=12, depths=[2, 2], num_heads=[3, 3], window_size=[4, 4]
        ),
        "MaxViT": of_torchvision("maxvit_t", 224),
        "ResNet": of_torchvision("resnet18"),
    },
    "vit-pytorch": {
        "ViT": of_vit_pytorch("vit", "ViT"),
        "ViT, mean": of_vit_pytorch("vit", "ViT", pool="mean"),
        "SimpleViT": of_vit_pytorch("simple_vit", "SimpleViT"),
        "SimpleViT, registers": of_vit_pytorch("simple_vit_with_register_tokens", "SimpleViT", num_register_tokens=2),
        "SimpleViT, qk_norm": of_vit_pytorch("simple_vit_with_qk_norm", "SimpleViT"),
        "SimpleViT, Fourier": of_vit_pytorch("simple_vit_with_fft", "SimpleViT", freq_patch_size=8),
        "SimpleViT, value residual": of_vit_pytorch("simple_vit_with_value_residual", "SimpleViT"),
        "SimpleViT, hyper-connections": of_vit_pytorch(
            "simple_vit_with_hyper_connections", "SimpleViT", num_residual_streams=2
        ),
        "U-shaped": of_vit_pytorch("simple_uvit", "SimpleUViT"),
        "CaiT": of_vit_pytorch("cait", "CaiT", cls_depth=1),
        "DeepViT": of_vit_pytorch("deepvit", "DeepViT"),
        "ViT for small data": of_vit_pytorch("vit_for_small_dataset", "ViT"),
        "Parallel ViT": of_vit_pytorch("parallel_vit", "ViT"),
        "Patch merger": of_vit_pytorch("vit_with_patch_merger", "ViT", patch_merge_num_tokens=4),
        "Normalized ViT": of_vit_pytorch("normalized_vit", "nViT"),
        "CCT": of_vit_pytorch(
            "cct",
            "CCT",
            img_size=SIZE,
            embedding_dim=12,
            num_layers=3,
            num_heads=3,
            mlp_ratio=2.0,
            **dict.fromkeys(("image_size", "patch_size", "dim", "depth", "heads", "mlp_dim")),
        ),
        "RvT": of_vit_pytorch("rvt", "RvT"),
        "XCiT": of_vit_pytorch("xcit", "XCiT", cls_depth=1),
        "T2T": of_vit_pytorch("t2t", "T2TViT", patch_size=None, t2t_layers=((7, 4), (3, 2))),
        "LeViT": of_vit_pytorch(
            "levit", "LeViT", dim=(12, 24), stages=2, depth=2, mlp_mult=2, patch_size=None, mlp_dim=None
        ),
        "PiT": of_vit_pytorch("pit", "PiT", depth=(2, 2)),
        "ViT-5": of_vit_pytorch("vit_5", "ViT"),
        "ViT, pooling of detections": of_vit_pytorch("vit_detpool", "ViTDetPool"),
        "ViT, decorrelated": of_vit_pytorch("vit_with_decorr", "ViT"),
        "ViT, post-norm": of_vit_pytorch("vit_with_keel_post_ln", "ViT"),
        "ViT, patch dropout": of_vit_pytorch("vit_with_patch_dropout", "ViT"),
        "ViT, adaptive token sampling": of_vit_pytorch("ats_vit", "ViT", max_tokens_per_depth=(16, 8, 4)),
        "ViT, learnable memory": of_vit_pytorch("learnable_memory_vit", "ViT"),
        "SimpleViT, attention residual": of_vit_pytorch("simple_vit_attn_residual", "SimpleViTAttnResidual"),
        "SimpleViT, orthogonal residual": of_vit_pytorch("simple_vit_orthog_residual_update", "SimpleViT"),
        "SimpleViT, relative positions": of_vit_pytorch("simple_vit_with_relative_proj_pos_bias", "SimpleViT"),
        "SimpleViT, sparse gating": of_vit_pytorch("simple_vit_with_sparse_gating", "SimpleViTWithSparseGating"),
        "SimpleViT, specialised class token": of_vit_pytorch("simple_vit_with_specialized_cls", "SimpleViT"),
        "SimpleViT, depthwise cross attention": of_vit_pytorch("attn_residual_with_dca_simple_vit", "SimpleViT"),
        "Jumbo ViT": of_vit_pytorch("jumbo_vit", "JumboViT"),
        "LookViT": of_vit_pytorch("look_vit", "LookViT", highres_patch_size=4, mlp_dim=None),
        "CrossViT": of_vit_pytorch(
            "cross_vit",
            "CrossViT",
            sm_dim=12,
            lg_dim=24,
            sm_patch_size=8,
            lg_patch_size=16,
            depth=1,
            **dict.fromkeys(("patch_size", "dim", "heads", "mlp_dim")),
        ),
        "NesT": of_vit_pytorch(
            "nest", "NesT", num_hierarchies=2, block_repeats=(1, 1), patch_size=4, depth=None, mlp_dim=None
        ),
        "CvT": of_vit_pytorch(
            "cvt", "CvT", **dict.fromkeys(("image_size", "patch_size", "dim", "depth", "heads", "mlp_dim"))
        ),
    },
}


# A second computation of attention.


def explicit(library: str, model: nn.Module, images: Tensor) -> list[Tensor] | None:
    """Return the attention that the library's own explicit code computes, or None if it shows none."""
    found: list[Tensor] = []
    if library == "transformers":
        model = copy.deepcopy(model)
        with suppress(ValueError):
            model.set_attn_implementation("eager")
        attentions = model(images, output_attentions=True).attentions or [None]
        return None if any(attn is None for attn in attentions) else list(attentions)
    model = copy.deepcopy(model)
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
        if library == "timm" and last == "attn_drop":
            module.register_forward_hook(lambda _, args, __: found.append(args[0]))
        if type(module).__name__ == "AttentionPoolLatent":
            module.register_forward_hook(_weights_of_pooling(found))
        if library == "vit-pytorch":
            _watch_vit_pytorch(module, found)
        if library == "torchvision" and isinstance(module, nn.MultiheadAttention):
            module.register_forward_pre_hook(_weights_of(found))
        if library == "ours" and last == "attn":
            module.register_forward_hook(_weights_of_ours(model, images, found), with_kwargs=True)
    with torch.no_grad():
        model(images)
    return found or None


def _watch_vit_pytorch(module: nn.Module, found: list[Tensor]) -> None:
    mixing = getattr(module, "mix_heads_post_attn", None)
    norm = getattr(module, "reattn_norm", None)
    if norm is not None:  # DeepViT
        norm.register_forward_hook(lambda _, __, output: found.append(output))
    elif mixing is not None:  # CaiT
        module.dropout.register_forward_hook(
            lambda _, __, attn: found.append(torch.einsum("b h i j, h g -> b g i j", attn, mixing))
        )
    elif isinstance(getattr(module, "attend", None), nn.Softmax):
        module.attend.register_forward_hook(lambda _, __, output: found.append(output))


def _weights_of_pooling(found: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, tokens: tuple[Tensor], _: Tensor) -> None:
        q = rearrange(module.q(module.latent), "1 n (h d) -> 1 h n d", h=module.num_heads)
        k = rearrange(module.kv(tokens[0]), "b m (s h d) -> s b h m d", s=2, h=module.num_heads)[0]
        found.append((module.q_norm(q) @ module.k_norm(k).mT * module.head_dim**-0.5).softmax(dim=-1))

    return hook


def _weights_of(found: list[Tensor]) -> Callable[..., None]:
    def hook(module: nn.MultiheadAttention, tokens: tuple[Tensor, ...]) -> None:
        twin = copy.deepcopy(module)
        twin._forward_pre_hooks.clear()
        found.append(twin(*tokens[:3], need_weights=True, average_attn_weights=False)[1])

    return hook


def _weights_of_ours(model: nn.Module, images: Tensor, found: list[Tensor]) -> Callable[..., None]:
    grid = model.patch_embed.grid_of(*images.shape[-2:])

    def hook(module: nn.Module, tokens: tuple[Tensor, ...], _: dict[str, Any], __: Tensor) -> None:
        context = model.blocks[0].attn is not module and tokens[0].shape[1] == 1
        if not context:
            found.append(module.weights(tokens[0], grid=grid))

    return hook


# The checks.


def order_proven(model: nn.Module, images: Tensor, anatomy: Anatomy) -> int:
    """Return of how many patches the token was found by changing their pixels alone.

    Raises:
        ValueError: If a patch moves another token than the one of the map.
    """
    if not anatomy.parts.layers:
        return 0
    seen: list[Tensor] = []

    def keep(tokens: Tensor) -> Tensor:
        seen.append(tokens)
        return tokens

    rows, columns = anatomy.grid
    chosen = torch.linspace(0, rows * columns - 1, min(rows * columns, MOST_PATCHES)).long().tolist()
    for patch in chosen:
        changed = torch.where(anatomy.cells == patch, -images[:1], images[:1])
        seen.clear()
        with torch.no_grad(), anatomy.parts.layers[0].changed(keep):
            model(images[:1])
            model(changed)
        moved = (seen[1] - seen[0]).norm(dim=-1)[0, anatomy.patches]
        if not _points_at(moved, patch, columns):
            raise ValueError(f"the pixels of patch {patch} move token {int(moved.argmax())} of the patches most")
    return len(chosen)


def _points_at(moved: Tensor, patch: int, columns: int) -> bool:
    """Return whether a patch alone is moved, or the middle of what is moved lies less than a patch from it."""
    if (moved > moved.max() / 10).sum() == 1:
        return int(moved.argmax()) == patch
    places = torch.arange(len(moved))
    share = moved**2 / (moved**2).sum()
    middle = torch.stack([(places // columns * share).sum(), (places % columns * share).sum()])
    return bool((middle - torch.tensor(divmod(patch, columns))).abs().max() < 1)


def check(library: str, name: str, make: Make, size: int | tuple[int, int]) -> dict[str, Any]:
    """Return the row of one architecture with images of this size."""
    row: dict[str, Any] = {"library": library, "architecture": name}
    torch.manual_seed(0)
    model = make().double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.02)  # a head of zeros reads no token
    images = torch.randn(2, 3, *(size if isinstance(size, tuple) else (size, size)), dtype=torch.float64)
    with torch.no_grad():
        model(images)  # an error here is one of the table above
    try:
        anatomy = examine(model, images)
        attentions = capture_attention(model, images)
        subject = Subject(model, images)
        for method in METHODS_TRIED:
            signed_map(method, subject)
    except ValueError as error:
        return row | {"result": "refused", "reason": " ".join(str(error).split())}
    row |= {"result": "read", "layers": len(attentions), "grid": "{} x {}".format(*anatomy.grid)}
    row["tokens before"] = anatomy.num_prefix_tokens
    try:
        row["order"] = order_proven(model, images, anatomy)
    except ValueError as error:
        row |= {"result": "wrong", "reason": str(error)}
    expected = explicit(library, model, images)
    if expected is not None:
        differences = _differences(attentions, expected)
        row["attention"] = max(differences, default=float("inf"))
        if not row["attention"] <= TOLERANCE:
            row |= {"result": "wrong", "reason": f"captured attention differs by {row['attention']:.2g}"}
    return row


def _differences(attentions: list[Tensor], expected: list[Tensor]) -> list[float]:
    if [x.numel() for x in attentions] != [x.numel() for x in expected]:
        return [float("inf")]
    return [(one - other.view_as(one)).abs().max().item() for one, other in zip(attentions, expected, strict=True)]


def report(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    counts = {result: sum(row["result"] == result for row in rows) for result in ("read", "refused", "wrong")}
    read = [
        {
            "library": row["library"],
            "architecture": row["architecture"],
            "layers": str(row["layers"]),
            "grid": row["grid"],
            "tokens before": str(row["tokens before"]),
            "order": f"{row['order']} patches" if row.get("order") else "",
            "attention": f"{row['attention']:.0e}" if "attention" in row else "",
        }
        for row in rows
        if row["result"] != "refused"
    ]
    refused = [
        {"library": row["library"], "architecture": row["architecture"], "reason": row["reason"]}
        for row in rows
        if row["result"] == "refused"
    ]
    tables = f"## Read\n\n{markdown_table(read)}\n\n## Refused\n\n{markdown_table(refused)}"
    return REPORT.format(count=len(rows), tables=tables, **counts)


def main() -> None:
    """Check all architectures, or those named."""
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help='such as "timm: CaiT"; default: all')
    options = parser.parse_args()
    rows = []
    for library, models in ARCHITECTURES.items():
        for name, (make, size) in models.items():
            if options.only and f"{library}: {name}" not in options.only:
                continue
            rows.append(row := check(library, name, make, size))
            measured = [f"{key} {row[key]}" for key in ("layers", "grid", "order", "attention") if key in row]
            print(f"{library}: {name}: {row['result']}, {row.get('reason') or ', '.join(measured)}", flush=True)
    with replacing(options.output / "any_vit.json") as path:
        path.write_text(json.dumps({"command": command(), "commit": commit(), **machine(), "rows": rows}, indent=1))
    with replacing(options.output / "any_vit.md") as path:
        path.write_text(report(rows))
    sys.exit(any(row["result"] == "wrong" for row in rows))


if __name__ == "__main__":
    main()
