"""The base of objectives that compare several views of each image.

Letters in the einops patterns: v views, b images, k channels.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from einops import reduce
from torch import Tensor, nn

from vit.data.module import ImageSet
from vit.data.seeding import seeded
from vit.data.views import Views
from vit.objectives.feature_learner import FEATURE_SCORES, FeatureLearner
from vit.objectives.view_pictures import draw_views
from vit.training.description import Picture, Score
from vit.training.flop import forward_flop

LEAST_VIEWS = 2
COLOURED = (1, 3)  # channels of images whose colours are known


class ViewLearner(FeatureLearner):
    """Learns features that several views of an image have in common.

    Args:
        global_views: Large views of each image, at the size of the images.
        local_views: Small views of each image, at half of that size: four of them cost as much as a large one.
        global_scale: Smallest and largest share of the image that a large view shows.
        local_scale: Smallest and largest share of the image that a small view shows.
        flip: Whether each view is mirrored left to right with probability 1/2.
        distort: Whether each view is changed in colour, made grey, solarised and blurred, each at random.
        kwargs: Training, and the VisionTransformer that computes the features.

    Raises:
        ValueError: If an argument is out of its range, or there are fewer than two views.
    """

    monitor = Score("effective_rank", "Effective rank", unit="", note="directions in which the features vary")
    columns = tuple(score for score in FEATURE_SCORES if score.name != "effective_rank")
    pictures = (
        Picture("views", "Views", "Images beside the views of them that are compared", "row", True),
        *FeatureLearner.pictures,
    )
    fewest_images = 2

    def __init__(
        self,
        global_views: int = 2,
        local_views: int = 4,
        global_scale: tuple[float, float] = (0.4, 1.0),
        local_scale: tuple[float, float] = (0.1, 0.4),
        flip: bool = True,
        distort: bool = True,
        **kwargs: Any,
    ) -> None:
        self.check_views(global_views, local_views)
        super().__init__(**kwargs)
        if distort and (channels := self.judged.patch_embed.in_channels) not in COLOURED:
            raise ValueError(
                f"distort changes colours of images of 1 or 3 channels, and these have {channels}: set --model.distort "
                "false"
            )
        self.views = Views(global_views, local_views, global_scale, local_scale, flip, distort)

    @classmethod
    def check_views(cls, global_views: int, local_views: int) -> None:
        """Check that there are views to compare.

        Raises:
            ValueError: If there are not.
        """
        if isinstance(global_views, int) and isinstance(local_views, int) and global_views + local_views < LEAST_VIEWS:
            raise ValueError(
                f"global_views ({global_views}) and local_views ({local_views}) are fewer than the {LEAST_VIEWS} views "
                f"that {cls.__name__} compares: 2 and 4 are usual"
            )

    @property
    def local_size(self) -> tuple[int, int]:
        """Rows and columns of a small view: half of the patches of a large one along each side, at least one."""
        embedding = self.judged.patch_embed
        sides = zip(embedding.grid_size, embedding.patch_stride, strict=True)
        rows, columns = (max(1, count // 2) * stride for count, stride in sides)
        return rows, columns

    def cut(self, images: Tensor) -> list[Tensor]:
        """Cut views out of images, large ones first: uint8 or float in [0, 1], (B, C, H, W) -> uint8."""
        if images.dtype != torch.uint8:
            images = (255 * images).round().clamp(0, 255).to(torch.uint8)
        return self.views(images, self.local_size)

    def embed(self, network: nn.Module, views: Sequence[Tensor]) -> Tensor:
        """Pass views through a network, all of one size at once: each (B, C, h, w) -> (V, B, K) in float32."""
        outputs = []
        for part in (views[: self.views.global_views], views[self.views.global_views :]):
            if part:
                together = network(self.normalise(torch.cat(list(part)))).float()
                outputs += together.chunk(len(part))
        return torch.stack(outputs)

    @abstractmethod
    def view_losses(self, views: list[Tensor], is_real: Tensor, step: int) -> Tensor:
        """Return the loss of each image by its views, each (B, C, h, w) -> (B,); ``step`` seeds further draws."""

    def training_loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss of the images, from randomly drawn views."""
        step = 0 if self._trainer is None else self.trainer.global_step
        images = batch[0]
        is_real = torch.ones(len(images), dtype=torch.bool, device=images.device)
        return reduce(self.view_losses(self.cut(images), is_real, step), "b -> ", "mean")

    def losses(self, images: Tensor, is_real: Tensor, batch_idx: int) -> Tensor:
        """Return the loss of each image of an evaluation, by the same views each time: -> (B,)."""
        with seeded(0, batch_idx):
            views = self.cut(images)
        return self.view_losses(views, is_real, 0)

    def forward_flop_of_views(self, network: nn.Module, global_views: int, local_views: int) -> int:
        """Return the floating-point operations of a network on views of an image, in matrix products."""
        embedding = self.judged.patch_embed
        like = {"device": self.device, "dtype": embedding.proj.weight.dtype}
        sizes = ((global_views, embedding.image_size), (local_views, self.local_size))
        return sum(
            count * forward_flop(network, torch.zeros(1, embedding.in_channels, *size, **like))
            for count, size in sizes
            if count
        )

    def draw(self, folder: Path, split: str, image_set: ImageSet) -> None:
        """Draw views of images of the split, and neighbours, into a folder."""
        draw_views(self, image_set, split, folder / "views.png")
        super().draw(folder, split, image_set)
