"""Computes the features of images, and keeps them in a file with the names of the images."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit.data.normalise import normalise
from vit.model.vision_transformer import VisionTransformer
from vit.weights.tensor_files import read_safetensors, write_safetensors

FILES = "files"  # key in the metadata: a JSON list of names


@torch.no_grad()
def extract(
    model: VisionTransformer, batches: Iterable[Tensor], program: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Compute what the head of a model reads: batches of uint8 images (B, C, H, W) -> (N, num_features).

    >>> import vit
    >>> pixels = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    >>> extract(vit.load("cifar10"), [pixels]).shape
    torch.Size([3, 128])

    Args:
        model: A model of ``vit.load``, whose ``pretrained_cfg`` says how images are normalised.
        batches: The images; the size that the model was trained on is best.
        program: Computes the features instead of the model, such as ``vit.optimize`` of a copy without a head.

    Raises:
        ValueError: If there are no images, the model is in training mode, or its ``pretrained_cfg`` has no mean.
    """
    if model.training:
        raise ValueError("the model is in training mode, in which dropout is random: call model.eval() first")
    settings = model.pretrained_cfg
    if "mean" not in settings:
        raise ValueError(
            "the pretrained_cfg of the model has no mean and std to normalise images with: load it by vit.load, or set "
            'pretrained_cfg["mean"] and pretrained_cfg["std"]'
        )
    weight = model.patch_embed.proj.weight
    compute = program or (lambda images: model.forward_head(model.forward_features(images), pre_logits=True))
    features = [compute(normalise(pixels.to(weight.device), settings).to(weight.dtype)).cpu() for pixels in batches]
    if not features:
        raise ValueError("there are no images to compute features of: give at least one batch")
    return torch.cat(features)


def save_features(features: Tensor, files: Sequence[str], path: str | Path) -> None:
    """Write features (N, D) and the names of their images to a safetensors file.

    Raises:
        ValueError: If there are not as many names as features, or the path does not end in .safetensors.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} does not end in .safetensors: features are written to such a file")
    if len(files) != len(features):
        raise ValueError(f"{len(features)} features have {len(files)} names: give one for each image")
    write_safetensors({"features": features}, path, {FILES: json.dumps(list(files))})


def read_features(path: str | Path) -> tuple[list[str], Tensor]:
    """Return the names of the images and their features (N, D), from a file of ``save_features``.

    Raises:
        ValueError: If the file cannot be read, or holds no features with names.
    """
    path = Path(path)
    tensors, metadata = read_safetensors(path)
    if "features" not in tensors or FILES not in metadata:
        raise ValueError(f"{path} holds no features with names: `vit-attention features` writes such files")
    files, features = json.loads(metadata[FILES]), tensors["features"]
    if not isinstance(files, list) or len(files) != len(features):
        raise ValueError(f"{path} is damaged: it has not one name for each of its {len(features)} features")
    return files, features
