"""Small ViTs of five libraries, unmodified, with the expected anatomy of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import vit
from vit.capture import Attentions, capture_attention

EXACT = {"rtol": 1e-9, "atol": 1e-9}
IMAGES = torch.randn(3, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGET, VERSUS = torch.tensor([1, 4, 2]), torch.tensor([6, 0, 5])
ROWS = torch.arange(3)
# Attention of two layers, two heads, three tokens. No matrix is symmetric, and the two layers do not commute.
TWO_HEADS = torch.tensor(
    [
        [[[1, 0, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]], [[0, 1, 0], [0, 0.5, 0.5], [0.5, 0.25, 0.25]]],
        [[[0, 0, 1], [1, 0, 0], [0, 1, 0]], [[0.5, 0, 0.5], [0, 1, 0], [0, 0, 1]]],
    ]
)
OURS = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 7}
MECHANISMS = {
    "softmax": {},
    "chunked": {"chunk": 5},
    "window": {"window": 2},
    "neighborhood": {"kernel": 3},
    "sparse": {},
    "topk": {"k": 4},
    "simplified": {},
    "talking": {},
    "differential": {},
    "gated": {},
    "additive": {},
    "general": {},
    "convolution": {"kernel": 3},
    "recurrent": {},
    "routed": {"k": 2},
}
NOT_STOCHASTIC = ("talking", "differential", "convolution", "recurrent", "routed")  # whose rows do not sum to one


@dataclass
class Architecture:
    """A model and its expected anatomy.

    Attributes:
        make: Makes the model.
        image: Rows and columns of its images.
        grid: Rows and columns of its patches.
        read: Share of each read-out token, or what computes it from the model.
        tokens: Number of tokens.
        prefix: Number of tokens before the patches.
        pooled: Whether an attention with one query reads them.
        depth: Number of layers.
        stochastic: Whether the rows of its attention sum to one.
    """

    make: Callable[[], nn.Module]
    read: dict[int, float] | Callable[[nn.Module], dict[int, float]]
    image: tuple[int, int] = (6, 10)
    grid: tuple[int, int] = (3, 5)
    tokens: int = 16
    prefix: int = 1
    pooled: bool = False
    depth: int = 3
    stochastic: bool = True

    @property
    def readout(self) -> Tensor:
        """Share of each token in the read-out, (N,)."""
        read = self.read(self.model()) if callable(self.read) else self.read
        return torch.tensor([read.get(token, 0.0) for token in range(self.tokens)], dtype=torch.float64)

    def images(self, batch: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return images that the model takes, always the same."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(batch, 3, *self.image, generator=generator, dtype=torch.float64).to(dtype)

    def model(self) -> nn.Module:
        """Return a new model in float64 with random parameters."""
        return randomised(self.make())


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return the model in float64 and eval mode with random parameters, none of them zero or one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return model.eval()


def even(tokens: Sequence[int], whole: float = 1.0) -> dict[int, float]:
    """Return equal shares of these tokens."""
    return {token: whole / len(tokens) for token in tokens}


def by_weights(
    weights: Callable[[nn.Module], Sequence[Tensor]], *tokens: Sequence[int]
) -> Callable[[nn.Module], dict[int, float]]:
    """Return shares of groups of tokens by the norms of the weights of the head that read the mean of each group."""

    def read(model: nn.Module) -> dict[int, float]:
        norms = [part.norm().item() for part in weights(model)]
        return {
            token: share
            for norm, group in zip(norms, tokens, strict=True)
            for token, share in even(group, norm / sum(norms)).items()
        }

    return read


def ours(**kwargs: object) -> Callable[[], nn.Module]:
    return lambda: vit.VisionTransformer(**OURS | kwargs)


def of_timm(fused: bool = True, name: str = "VisionTransformer", **kwargs: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm
        from timm.models import deit, vision_transformer

        small = {"img_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 3, "num_classes": 7}
        timm.layers.set_fused_attn(fused)
        try:
            return getattr(deit if "Distilled" in name else vision_transformer, name)(**small | kwargs)
        finally:
            timm.layers.set_fused_attn(True)

    return make


def of_torchvision() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=8, patch_size=2, num_layers=3, num_heads=3, hidden_dim=12, mlp_dim=24, num_classes=7
    )


def of_transformers(name: str, attention: str = "sdpa", **kwargs: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name.split('For')[0].removesuffix('Model')}Config")(
            **{
                "image_size": (6, 10),
                "patch_size": 2,
                "hidden_size": 12,
                "num_hidden_layers": 3,
                "num_attention_heads": 3,
                "intermediate_size": 24,
                "num_labels": 7,
                "attn_implementation": attention,
            }
            | kwargs
        )
        return getattr(transformers, name)(config)

    return make


def of_vit_pytorch(name: str, **kwargs: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import vit_pytorch
        from vit_pytorch import simple_vit_with_register_tokens

        kind = simple_vit_with_register_tokens.SimpleViT if "num_register_tokens" in kwargs else None
        small = {"patch_size": 2, "num_classes": 7, "dim": 12, "depth": 3, "heads": 3, "mlp_dim": 24, "dim_head": 4}
        return (kind or getattr(vit_pytorch, name))(image_size=(6, 10), **small | kwargs)

    return make


class Unread(nn.Module):
    """A model that first computes attention which its logits do not read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.model.embed(images)[:, None]
        nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.model(images)


class OfTorch(nn.Module):
    """A small ViT around ``nn.TransformerEncoder``, whose inference runs in one fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_size = 2
        self.patches = nn.Conv2d(3, 12, 2, stride=2)
        self.positions = nn.Parameter(torch.zeros(1, 15, 12))
        layer = nn.TransformerEncoderLayer(12, 3, 24, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(12), enable_nested_tensor=False)
        self.head = nn.Linear(12, 7)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(self.patches(images).flatten(2).mT + self.positions).mean(dim=1))


CLS, PATCHES = {0: 1.0}, range(1, 16)
ARCHITECTURES = {
    **{
        f"ours, {name}": Architecture(
            ours(attention=name, attention_kwargs=kwargs), CLS, stochastic=name not in NOT_STOCHASTIC
        )
        for name, kwargs in MECHANISMS.items()
    },
    "ours, mean": Architecture(ours(pool="mean"), even(PATCHES)),
    "ours, mean without class token": Architecture(
        ours(pool="mean", class_token=False), even(range(15)), tokens=15, prefix=0
    ),
    "ours, cls+mean": Architecture(
        ours(pool="cls+mean"), by_weights(lambda model: model.head.weight.chunk(2, dim=1), [0], PATCHES)
    ),
    "ours, registers": Architecture(ours(num_registers=2), CLS, tokens=18, prefix=3),
    "ours, registers, mean": Architecture(ours(num_registers=2, pool="mean"), even(range(3, 18)), tokens=18, prefix=3),
    "ours, another size": Architecture(ours(qk_norm=True), CLS, image=(10, 4), grid=(5, 2), tokens=11),
    "timm": Architecture(of_timm(), CLS),
    "timm, not fused": Architecture(of_timm(fused=False), CLS),
    "timm, registers": Architecture(of_timm(reg_tokens=2), CLS, tokens=18, prefix=3),
    "timm, avg": Architecture(of_timm(global_pool="avg"), even(PATCHES)),
    "timm, avg of all": Architecture(of_timm(global_pool="avg", pool_include_prefix=True), even(range(16))),
    "timm, avg without class token": Architecture(
        of_timm(global_pool="avg", class_token=False), even(range(15)), tokens=15, prefix=0
    ),
    "timm, map": Architecture(
        of_timm(global_pool="map", class_token=False), even(range(15)), tokens=15, prefix=0, pooled=True
    ),
    "timm, map with class token": Architecture(of_timm(global_pool="map"), even(PATCHES), pooled=True),
    "timm, qk_norm": Architecture(of_timm(qk_norm=True), CLS),
    "timm, dynamic": Architecture(of_timm(dynamic_img_size=True), CLS, image=(10, 4), grid=(5, 2), tokens=11),
    "timm, DINOv2": Architecture(
        of_timm(img_size=28, patch_size=14, init_values=1e-5), CLS, image=(28, 28), grid=(2, 2), tokens=5
    ),
    "timm, DeiT distilled": Architecture(
        of_timm(name="VisionTransformerDistilled"),
        by_weights(lambda model: [model.head.weight, model.head_dist.weight], [0], [1]),
        tokens=17,
        prefix=2,
    ),
    "torchvision": Architecture(of_torchvision, CLS, image=(8, 8), grid=(4, 4), tokens=17),
    "transformers, ViT": Architecture(of_transformers("ViTForImageClassification"), CLS),
    "transformers, ViT, eager": Architecture(of_transformers("ViTForImageClassification", "eager"), CLS),
    "transformers, DINOv2": Architecture(
        of_transformers("Dinov2ForImageClassification", image_size=8),
        by_weights(lambda model: model.classifier.weight.chunk(2, dim=1), [0], PATCHES),
    ),
    "transformers, DINOv2 with registers": Architecture(
        of_transformers("Dinov2WithRegistersForImageClassification", image_size=8, num_register_tokens=2),
        by_weights(lambda model: model.classifier.weight.chunk(2, dim=1), [0], range(3, 18)),
        tokens=18,
        prefix=3,
    ),
    "transformers, DeiT with teacher": Architecture(
        of_transformers("DeiTForImageClassificationWithTeacher"),
        by_weights(lambda model: [model.cls_classifier.weight, model.distillation_classifier.weight], [0], [1]),
        tokens=17,
        prefix=2,
    ),
    "vit-pytorch, ViT": Architecture(of_vit_pytorch("ViT"), CLS),
    "vit-pytorch, ViT, mean": Architecture(of_vit_pytorch("ViT", pool="mean"), even(range(15)), tokens=15, prefix=0),
    "vit-pytorch, SimpleViT": Architecture(of_vit_pytorch("SimpleViT"), even(range(15)), tokens=15, prefix=0),
    "vit-pytorch, SimpleViT, registers": Architecture(
        of_vit_pytorch("SimpleViT", num_register_tokens=2), even(range(15)), tokens=17, prefix=0
    ),
    "torch": Architecture(OfTorch, even(range(15)), tokens=15, prefix=0),
}


# One model for each library, and one for each way of intercepting attention.
LIBRARIES = ["ours, softmax", "timm", "torchvision", "transformers, ViT", "vit-pytorch, ViT", "torch"]
WAYS = [*(f"ours, {mechanism}" for mechanism in MECHANISMS), *LIBRARIES[1:]]
WAYS += ["timm, not fused", "timm, map", "transformers, ViT, eager"]


@cache
def made(name: str) -> nn.Module:
    return ARCHITECTURES[name].model()


@cache
def captured(name: str) -> Attentions:
    return capture_attention(made(name), ARCHITECTURES[name].images())


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    """The name of each architecture."""
    return request.param


@pytest.fixture
def architecture(name: str) -> Architecture:
    """The architecture of this name."""
    return ARCHITECTURES[name]


@pytest.fixture
def model(name: str) -> nn.Module:
    """Its model, made once for all tests: no test may change it."""
    return made(name)


@pytest.fixture
def images(architecture: Architecture) -> Tensor:
    """Two images for it, in float64."""
    return architecture.images()


@pytest.fixture
def attentions(name: str) -> Attentions:
    """Its attention over these images, captured once for all tests."""
    return captured(name)


@pytest.fixture(scope="session")
def architectures() -> dict[str, Architecture]:
    """All of them, for tests of a few."""
    return ARCHITECTURES


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], nn.Module]:
    """``model_of("timm")``: the model of that name, which no test may change."""
    return made


@pytest.fixture(scope="session")
def random_vit() -> Callable[..., nn.Module]:
    """``random_vit(pool="mean")``: a new model of ours in float64 with random parameters."""
    return lambda **kwargs: randomised(ours(**kwargs)())
