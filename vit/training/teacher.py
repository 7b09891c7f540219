"""A small convolutional network that is trained first, and then teaches the Vision Transformer."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST_IMAGE = 8
WIDTHS = (24, 48, 96, 128)
LEARNING_RATE, WEIGHT_DECAY = 5e-3, 0.05
# Share of the loss that is by the teacher, and what its logits and the model's are divided by in that share.
SOFT_SHARE, TEMPERATURE = 0.7, 2.0


class Teacher(nn.Sequential):
    """Three times two 3 x 3 convolutions, each time at half the resolution: (B, C, H, W) -> (B, num_classes).

    What a convolution takes for granted, that neighbours belong together, a transformer has to learn from images; a
    convolutional teacher's judgement of each image tells it (Hinton et al. 2015; Touvron et al. 2021, sec. 3).

    In a short training it costs more than it gives: after 1,400 steps of configs/cifar10_quick.yaml the validation
    accuracy is 71.7 % without a teacher and 69.5 % where it had the first fifth of them (two seeds,
    benchmarks/results/ablation.md), and after ten minutes the test accuracy is 79.7 % without and 76.8 % where it had
    the first 0.15 of them (seed 0, benchmarks/RESULTS.md). For an hour and more it was not measured yet.

    >>> teacher = Teacher(in_channels=3, num_classes=10, image_size=(32, 32))
    >>> teacher(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Args:
        in_channels: Channels of an image.
        num_classes: Classes to tell apart.
        image_size: Rows and columns of the images in pixels.

    Raises:
        ValueError: If the images are smaller than 8 x 8 pixels.
    """

    def __init__(self, in_channels: int, num_classes: int, image_size: tuple[int, int]) -> None:
        if min(image_size) < SMALLEST_IMAGE:
            raise ValueError(
                f"images of {image_size[0]} x {image_size[1]} pixels are too small for a teacher, which halves them "
                f"three times: set teacher to 0, or take {SMALLEST_IMAGE} pixels and more"
            )
        stages = [_stage(*widths) for widths in pairwise(WIDTHS)]
        super().__init__(
            nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1),
            nn.GELU(),
            *stages,
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(WIDTHS[-1], num_classes),
        )
        # Convolutions of few channels are faster with the channels last.
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Classify normalised images: (B, C, H, W) -> (B, num_classes)."""
        return super().forward(images.contiguous(memory_format=torch.channels_last))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Its parameters with their learning rate, and weight decay for the weights of convolutions and of the head."""
        parameters = list(self.parameters())
        groups = {WEIGHT_DECAY: [p for p in parameters if p.ndim > 1], 0.0: [p for p in parameters if p.ndim == 1]}
        return [{"params": group, "lr": LEARNING_RATE, "weight_decay": decay} for decay, group in groups.items()]

    @torch.no_grad()
    def judge(self, images: Tensor) -> Tensor:
        """Logits of a teacher that learns no more, and so is in eval mode from now on: (B, C, H, W) -> (B, classes)."""
        return self.eval()(images).float()


def distillation_loss(loss: Tensor, logits: Tensor, of_teacher: Tensor) -> Tensor:
    """The loss by the labels, and the cross-entropy with the teacher at temperature T = 2: 0.3 and 0.7 of them.

    ``0.3 loss + 0.7 T^2 H(softmax(teacher / T), softmax(logits / T))``, where T^2 makes up for what T takes from the
    gradients (Hinton et al. 2015, sec. 2).

    >>> logits = torch.tensor([[2.0, 0.0]])
    >>> loss = distillation_loss(torch.tensor(1.0), logits, of_teacher=logits)  # entropy of (0.731, 0.269) is 0.582
    >>> round(float(loss), 3)
    1.93

    Args:
        loss: The loss by the labels.
        logits: What the model says, (B, num_classes).
        of_teacher: What the teacher says, (B, num_classes).
    """
    wanted = (of_teacher / TEMPERATURE).softmax(dim=-1)
    by_teacher = TEMPERATURE**2 * F.cross_entropy(logits / TEMPERATURE, wanted)
    return (1 - SOFT_SHARE) * loss + SOFT_SHARE * by_teacher


def _stage(width_in: int, width_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(width_out),
        nn.GELU(),
        nn.Conv2d(width_out, width_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(width_out),
        nn.GELU(),
    )
