"""Image files without labels, for prediction."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.image_files import ImageFiles, collate_readable, find_files, stored_size
from vit.data.module import ImageDataModule
from vit.support.checks import check_positive_share


class UnsortedImages(ImageDataModule):
    """Image files without labels, for prediction; all arguments but ``root`` come from the trained model.

    Args:
        root: A folder of image files, nested or flat, or one file.
        image_size: Rows and columns of the model's input.
        in_channels: Channels of the model's input: 3 for colour, 1 for grey.
        crop_ratio: Share of the side of a scaled image that is kept, as in the evaluation of the model.
        stretch: Whether whole images are scaled, whatever their aspect ratio, so that a reader sees whole texts.
        kwargs: Batches, as for every data module.

    Raises:
        ValueError: If there are no files.
    """

    def __init__(
        self,
        root: str,
        image_size: tuple[int, int],
        in_channels: int,
        crop_ratio: float = 1.0,
        stretch: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_share("crop_ratio", crop_ratio, "1 keeps whole images")
        self.root = Path(root)
        self.image_size = image_size
        self.in_channels = in_channels
        if not self.root.exists():
            raise ValueError(f"no images at {self.root}: name a folder of image files by --data.root")
        paths = find_files(self.root) if self.root.is_dir() else [self.root]
        if not paths:
            raise ValueError(f"no files in {self.root}: name a folder of image files by --data.root")
        labels = [0] * len(paths)
        size = stored_size(image_size, crop_ratio)
        self.files = ImageFiles(paths, labels, size, in_channels, image_size, stretch=stretch)

    def leave_out(self, files: set[str]) -> None:
        """Leave out files, such as those that are predicted already."""
        kept = [path for path in self.files.paths if str(path) not in files]
        self.files.paths, self.files.labels = kept, [0] * len(kept)

    def setup(self, stage: str) -> None:
        """Do nothing: files are decoded on access."""

    def predict_dataloader(self) -> DataLoader:
        """Return batches of (images, their paths, error messages of unreadable files)."""
        return DataLoader(
            self.files,
            batch_size=self.batch_size,
            num_workers=self.num_workers if len(self.files) > self.batch_size else 0,
            collate_fn=self._collate,
        )

    def _collate(self, items: list[tuple[Tensor | str, int, int]]) -> tuple[Tensor, list[str], list[str]]:
        decoded = collate_readable(items)
        files = [str(self.files.paths[index]) for index in decoded.indices.tolist()]
        images = decoded.images if files else torch.empty(0, self.in_channels, *self.image_size, dtype=torch.uint8)
        return images, files, [*decoded.unreadable.values()]
