"""Accuracy of a model, with its own attention or with attention that is replaced during the forward pass."""

import torch
from torch import Tensor, nn

from vit.analysis.batches import calls_of_layers, labelled_batches
from vit.capture.attention import run_intercepted
from vit.capture.interception.intercept import Edit
from vit.capture.parts.logits import check_several_classes, logits_of
from vit.support.precision import in_double


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, edit: Edit | None = None, batch_size: int = 64) -> float:
    """Compute the share of images (B, C, H, W) whose predicted class equals their label (B,).

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> images = torch.randn(5, 3, 32, 32)
    >>> accuracy(model, images, model(images).argmax(dim=-1))
    1.0

    Args:
        model: A ViT of any library, in eval mode.
        images: Images, normalised as the model expects.
        labels: The true class of each image.
        edit: Replaces the attention of each layer that the logits depend on (see ``InterceptAttention``); None leaves
            the model as it is.
        batch_size: Number of images in one forward pass.

    Raises:
        ValueError: If the numbers of images and labels differ, or attention cannot be replaced.
    """
    return in_double(is_right(model, images, labels, edit, batch_size)).mean().item()


@torch.no_grad()
def is_right(
    model: nn.Module, images: Tensor, labels: Tensor, edit: Edit | None = None, batch_size: int = 64
) -> Tensor:
    """Return whether the predicted class of each image equals its label: booleans (B,). See ``accuracy``."""
    if model.training:
        raise ValueError("the model is in training mode, in which dropout moves its logits: call model.eval() first")
    right, batches = [], labelled_batches(model, images, labels, batch_size)
    calls = None if edit is None else calls_of_layers(model, images, batch_size)
    for batch, targets in batches:
        logits = logits_of(model(batch)) if edit is None else run_intercepted(model, batch, edit, calls)
        if (largest := int(targets.max())) >= check_several_classes(logits, "accuracy").shape[1]:
            raise ValueError(
                f"a label is {largest}, and the classes of the model are 0 to {logits.shape[1] - 1}: number them from 0"
            )
        right.append((logits.argmax(dim=-1) == targets).cpu())
    return torch.cat(right)
