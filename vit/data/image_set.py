"""The images of one split of a data set, decoded or as files."""

import os
import zlib
from dataclasses import dataclass, replace

from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.image_files import ImageFiles, raise_unreadable
from vit.data.split import stratified_split


@dataclass
class ImageSet:
    """The images of one split, and their labels.

    Args:
        images: Decoded images, uint8 (N, C, H, W), or files.
        labels: Class numbers, (N,), rows of 0. and 1. for several labels, (N, num_classes), or rows of tokens, (N, T).
        files: Path of each image, below the root of the data if it has one; None if the images come from no files.
        groups: Group number of each image, (N,): images of a group stay on one side of every split. None for no groups.
    """

    images: Tensor | ImageFiles
    labels: Tensor
    files: list[str] | None = None
    groups: Tensor | None = None

    def name(self, index: int) -> str:
        """Return the file of an image, or its number in the split if it has no file."""
        return str(index) if self.files is None else self.files[index]

    def numbered(self) -> "ImageSet":
        """Return the same images; those without a file are named by their number in this split, in subsets as well."""
        return replace(self, files=[self.name(index) for index in range(len(self.labels))])

    @property
    def fingerprint(self) -> int:
        """A checksum of the names and labels of these images."""
        names = zlib.crc32(os.fsencode("\n".join(self.files or ())))
        return zlib.crc32(self.labels.numpy().tobytes(), names)

    def decode(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images at ``indices``, uint8 (n, C, H, W), and their labels; unreadable files are a ValueError."""
        if isinstance(self.images, Tensor):
            return self.images[indices], self.labels[indices]
        batch = self.images.decode(indices)
        raise_unreadable(batch.unreadable)
        return batch.images, self.labels[indices]

    def subset(self, indices: Tensor) -> "ImageSet":
        """Return the images and labels at ``indices``."""
        images = self.images[indices] if isinstance(self.images, Tensor) else self.images.subset(indices)
        files = None if self.files is None else [self.files[index] for index in indices.tolist()]
        groups = None if self.groups is None else self.groups[indices]
        return ImageSet(images, self.labels[indices], files, groups)

    def relabelled(self, labels: Tensor) -> "ImageSet":
        """Return the same images with other class numbers, (N,), which files keep as well: their loader reads them."""
        images = self.images
        if not isinstance(images, Tensor):
            images = replace(images, labels=labels.numpy())
        return replace(self, images=images, labels=labels)

    @property
    def counted(self) -> str:
        """Number of images, and of groups if there are some, in words."""
        if self.groups is None:
            return f"{len(self.labels):,} images"
        groups = len(self.groups.unique())
        return f"{len(self.labels):,} images in {groups:,} group{'s' if groups > 1 else ''}"

    def split(self, fraction: float, keep: int = 1) -> tuple["ImageSet", "ImageSet"]:
        """Return the kept and the held-out images, as ``stratified_split`` does."""
        kept, held_out = stratified_split(self.labels, fraction, keep, self.groups)
        return self.subset(kept), self.subset(held_out)

    def centred(self, size: tuple[int, int]) -> "ImageSet":
        """Return the centre of each image, of ``size`` (rows, columns)."""
        if isinstance(self.images, Tensor):
            return replace(self, images=tv.center_crop(self.images, list(size)).contiguous())
        return replace(self, images=replace(self.images, centre=size))
