"""What a map explains: a model, images, and the number that is asked about.

Letters in the einops patterns: b batch, c image channels, r s grid rows and columns, p q pixel rows and columns of a
patch, k classes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from einops import rearrange, reduce
from torch import Tensor, nn

from vit.capture.anatomy import Anatomy, examine, patch_grid
from vit.capture.attention import check_images, check_visible, logits_of

Target = int | Tensor | None


@dataclass
class Subject:
    """A model, images, and a question about each: why this class, or why this class and not that one?

    Attributes:
        model: A classifier in eval mode.
        images: Images as it takes them, (B, C, H, W).
        target: The class asked about: one for all images, or (B,); None is the class that is predicted.
        versus: The class it is compared with, if any: then the number asked about is the difference of the two logits.
        given_grid: Rows and columns of patches, where the model does not say its ``patch_size``.
        given_prefix: Tokens before the patches, where they are not all that are no patches.
    """

    model: nn.Module
    images: Tensor
    target: Target = None
    versus: Target = None
    given_grid: tuple[int, int] | None = None
    given_prefix: int | None = None

    def __post_init__(self) -> None:
        check_images(self.images)
        check_visible(self.model)

    @cached_property
    def anatomy(self) -> Anatomy:
        """Where the model has its parts."""
        return examine(self.model, self.images, self.given_grid, self.given_prefix)

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the map."""
        return self.given_grid or patch_grid(self.model, self.images)

    @cached_property
    def logits(self) -> Tensor:
        """What the model says of the images, (B, classes)."""
        with torch.no_grad():
            return logits_of(self.model(self.images))

    @cached_property
    def contrast(self) -> Tensor:
        """Factors of the logits in the number asked about, (B, classes): 1 for the target, -1 for the other class."""
        contrast = self._one_hot("target", self.logits.argmax(dim=-1) if self.target is None else self.target)
        return contrast if self.versus is None else contrast - self._one_hot("versus", self.versus)

    def score(self, logits: Tensor) -> Tensor:
        """The number asked about: (B, classes) -> (B,)."""
        return reduce(logits * self.contrast, "b k -> b", "sum")

    def as_map(self, tokens: Tensor) -> Tensor:
        """Numbers of tokens as a map of the patches: (B, N) -> (B, rows, columns)."""
        return rearrange(tokens[:, self.anatomy.patches], "b (r s) -> b r s", r=self.anatomy.grid[0])

    def pixels_as_map(self, pixels: Tensor, how: Literal["sum", "mean"]) -> Tensor:
        """Numbers of pixels, joined for each patch: (B, C, H, W) -> (B, rows, columns)."""
        rows, columns = self.grid
        return reduce(pixels, "b c (r p) (s q) -> b r s", how, r=rows, s=columns)

    def _one_hot(self, name: str, classes: int | Tensor) -> Tensor:
        batch, num_classes = self.logits.shape
        classes = torch.as_tensor(classes, device=self.logits.device)
        if classes.ndim > 1 or (classes.ndim == 1 and len(classes) != batch):
            raise ValueError(
                f"{name} has shape {tuple(classes.shape)} for {batch} images: give one class, or one for each"
            )
        if classes.is_floating_point() or not ((classes >= 0) & (classes < num_classes)).all():
            raise ValueError(f"{name} ({classes.tolist()}) must be classes from 0 to {num_classes - 1}")
        return nn.functional.one_hot(classes.long().expand(batch), num_classes).to(self.logits)
