"""Image files without labels, for prediction."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vit.data.formats import MAX_PIXELS
from vit.data.image_files import ImageFiles, Item, collate_readable, decode, stored_size
from vit.data.inventory import inventory_of_folder
from vit.data.module import ImageDataModule
from vit.data.search import Found, search
from vit.support.checks import check_crop_ratio, check_positive_int
from vit.support.first_process import print_once


class UnsortedImages(ImageDataModule):
    """Image files without labels, for prediction; all arguments but ``root`` come from the trained model.

    Args:
        root: A folder of image files, nested or flat, or one file.
        image_size: Rows and columns of the model's input.
        in_channels: Channels of the model's input: 3 for colour, 1 for grey.
        crop_ratio: Share of each side that a centre crop keeps, as in the evaluation of the model.
        stretch: Whether whole images are scaled, whatever their aspect ratio, so that a reader sees whole texts.
        max_pixels: Most pixels of an image file; larger ones count as damaged, as a small file may claim to be huge.
        kwargs: Batches, as for every data module.

    Raises:
        ValueError: If there are no files, or the one file cannot be read.
    """

    def __init__(
        self,
        root: str,
        image_size: tuple[int, int],
        in_channels: int,
        crop_ratio: float = 1.0,
        stretch: bool = False,
        max_pixels: int = MAX_PIXELS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_crop_ratio(crop_ratio)
        check_positive_int("max_pixels", max_pixels, f"{MAX_PIXELS} is the limit of Pillow")
        if not root:  # Path("") is the current folder, and a variable of a shell may be empty
            raise ValueError(f"root ({root!r}) is empty: name a folder of images by --data.root; the current one is .")
        self.root = Path(root)
        self.image_size = image_size
        self.in_channels = in_channels
        if not self.root.exists():
            raise ValueError(f"no images at {self.root}: name a folder of image files by --data.root")
        if self.root.is_dir():
            self.found = search(self.root)
        else:
            decode(self.root, image_size, in_channels, max_pixels=max_pixels)  # one file that is no image is an error
            self.found = Found([self.root])
        paths = self.found.images
        if not paths:
            raise ValueError(f"no images in {self.root}: name a folder of image files by --data.root{self.found.hint}")
        labels, size = [0] * len(paths), stored_size(image_size, crop_ratio)
        self.files = ImageFiles(paths, labels, size, in_channels, image_size, stretch=stretch, max_pixels=max_pixels)

    def leave_out(self, files: set[str]) -> None:
        """Leave out files, such as those that are predicted already."""
        kept = [path for path in self.files.paths if str(path) not in files]
        self.files.paths, self.files.labels = kept, [0] * len(kept)

    def setup(self, stage: str) -> None:
        """Print what is in the folder; files are decoded on access."""
        if self.root.is_dir():
            print_once(str(inventory_of_folder(self.root, self.found)))

    def predict_dataloader(self) -> DataLoader:
        """Return batches of (images, their paths, messages about unreadable files and notes on others)."""
        return DataLoader(
            self.files,
            batch_size=self.batch_size,
            num_workers=self.num_workers if len(self.files) > self.batch_size else 0,
            collate_fn=self._collate,
        )

    def _collate(self, items: list[Item]) -> tuple[Tensor, list[str], list[str]]:
        decoded = collate_readable(items)
        files = [str(self.files.paths[index]) for index in decoded.indices]
        images = decoded.images if files else torch.empty(0, self.in_channels, *self.image_size, dtype=torch.uint8)
        notes = [f"{self.files.paths[index]}: {note}" for index, found in decoded.notes.items() for note in found]
        return images, files, [*decoded.unreadable.values(), *notes]
