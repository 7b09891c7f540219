"""Small models with random weights, and images for them."""

import torch

import vit

SIZES = {"image_size": (20, 28), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


def model_of(**kwargs):
    torch.manual_seed(0)
    model = vit.VisionTransformer(**SIZES | kwargs).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def images_for(model, batch, seed=1):
    size = (batch, model.patch_embed.in_channels, *model.patch_embed.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))
