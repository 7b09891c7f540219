"""Small models with contrasted attention: that of untrained ones is nearly uniform."""

import pytest
import timm
import torch

import vit


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


@pytest.fixture
def timms():
    return sharpen(
        timm.models.VisionTransformer(
            img_size=(12, 20), patch_size=4, embed_dim=40, depth=3, num_heads=5, num_classes=10, reg_tokens=2
        )
    )


@pytest.fixture
def images():
    return torch.randn(7, 3, 12, 20, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def labels():
    return torch.randint(0, 10, (7,), generator=torch.Generator().manual_seed(2))
