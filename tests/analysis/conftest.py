"""Small models with contrasted attention: that of untrained ones is nearly uniform."""

from copy import deepcopy

import pytest
import timm
import torch
import transformers
from matplotlib.figure import Figure
from PIL import Image

import vit
from vit.analysis.labelled import Labelled
from vit.analysis.trained_model import TrainedModel


def sharpen(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.normal_(std=0.4)
            block.attn.qkv.bias.normal_()
            block.attn.proj.bias.normal_()
        torch.nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.fixture
def ours():
    return sharpen(vit.VisionTransformer(image_size=(12, 20), patch_size=4, embed_dim=40, depth=3, num_heads=5))


class Watched(torch.nn.Module):
    """A block beside which an attention runs that nothing reads."""

    def __init__(self, block):
        super().__init__()
        self.block, self.watcher = block, torch.nn.MultiheadAttention(40, 5, batch_first=True)

    def forward(self, tokens, *inputs, **options):
        self.watcher(tokens, tokens, tokens)
        return self.block(tokens, *inputs, **options)


@pytest.fixture
def watched(ours):
    """The same model with an attention that has no influence on its logits."""
    model = deepcopy(ours)
    model.blocks[0] = Watched(model.blocks[0])
    return model.eval()


@pytest.fixture
def timms():
    return sharpen(
        timm.models.VisionTransformer(
            img_size=(12, 20), patch_size=4, embed_dim=40, depth=3, num_heads=5, num_classes=10, reg_tokens=2
        )
    )


@pytest.fixture
def transformers_vit():
    """A ViT of transformers; its heads are separable since version 5."""
    config = transformers.ViTConfig(
        image_size=(12, 20), patch_size=4, hidden_size=40, num_hidden_layers=3, num_attention_heads=5, num_labels=10
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(std=0.3)
    return model.eval()


@pytest.fixture
def images():
    return torch.randn(7, 3, 12, 20, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labels():
    return torch.randint(0, 10, (7,), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def subject(ours, images, labels):
    untrained = vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=3, num_heads=5).eval()
    return TrainedModel(
        ours, untrained, Labelled(images, labels), Labelled(images, torch.tensor([3, 3, 3, 1, 2, 4, 5]))
    )


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw to a file, and return the figure."""
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (kept.append(self), save(self, *args, **kwargs))
    )

    def draw(function, *args):
        function(*args, tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            assert min(picture.size) > 200
        return kept[-1]

    return draw
