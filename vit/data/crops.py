"""Random resized crops of whole batches (Szegedy et al. 2015), with a box for each image.

The boxes are distributed as those of torchvision's RandomResizedCrop, and the pixels are those of its ``resized_crop``
with antialiasing, up to rounding. Letters in the einops patterns: b batch, c channels, h w rows and columns of the
image, o p rows and columns of the result.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from einops import einsum, rearrange
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from vit.data.device_copy import copy_async
from vit.data.operations import split_for_cache

ASPECTS = (3 / 4, 4 / 3)  # of width to height
TRIES = 10
# Two matrix products scale all images of a batch at once. On a CPU, torchvision's kernel, which scales one image a call
# and skips the weights that are zero, is faster for images above this size: twice at 96x96, four times at 256x256.
PRODUCT_PIXELS = 80 * 80


def random_resized_crop(images: Tensor, scale: tuple[float, float], size: tuple[int, int]) -> Tensor:
    """Cut a random box, as ``draw_boxes`` does, out of each image and scale it to ``size``: -> (B, C, *size)."""
    _, _, h, w = images.shape
    return resample(images, draw_boxes(len(images), (h, w), scale), size)


def draw_boxes(count: int, image_size: tuple[int, int], scale: tuple[float, float]) -> Tensor:
    """Return random boxes inside an image, (count, 4): first row, first column, height, width.

    A box covers a share of the image within ``scale``; its aspect ratio is from 3/4 to 4/3. It is the first of ten
    tries that fits or, if none does, the largest centred box with an allowed aspect ratio.
    """
    h, w = image_size
    area = torch.empty(count, TRIES).uniform_(*scale) * (h * w)
    aspect = torch.empty(count, TRIES).uniform_(math.log(ASPECTS[0]), math.log(ASPECTS[1])).exp()
    largest = min(h, round(w / ASPECTS[0])), min(w, round(h * ASPECTS[1]))
    tries = torch.stack([(area / aspect).sqrt().round(), (area * aspect).sqrt().round()])
    extents = torch.cat([tries, rearrange(torch.tensor(largest), "e -> e 1 1").expand(-1, count, -1)], dim=2)
    fits = ((extents > 0) & (extents <= torch.tensor([[[h]], [[w]]]))).all(dim=0)
    first = fits.int().argmax(dim=1)
    extents = extents[:, torch.arange(count), first]
    room = torch.tensor([[h], [w]]) - extents
    starts = torch.where(first == TRIES, room // 2, (torch.rand(2, count) * (room + 1)).floor())
    return rearrange([starts, extents], "part side b -> b (part side)").long()


def resample(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale the box of each image to one size, bilinearly and antialiased: uint8 (B, C, H, W) -> (B, C, *size)."""
    _, _, h, w = images.shape
    if images.device.type == "cpu" and h * w > PRODUCT_PIXELS:
        boxed = zip(images, boxes.tolist(), strict=True)
        with one_thread():
            return torch.stack([tv.resized_crop(image, *box, size=list(size), antialias=True) for image, box in boxed])
    boxes = copy_async(boxes, images.device)
    return torch.cat([_resample(*chunk, size) for chunk in split_for_cache(images, boxes)])


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the block.

    Workers decode on the other cores meanwhile. With all threads, each of many small kernels would wait for those
    cores, and streaming would be half as fast.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _resample(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale boxes by two matrix products."""
    _, _, h, w = images.shape
    top, left, height, width = boxes.unbind(dim=1)
    rows, columns = _weights(top, height, h, size[0]), _weights(left, width, w, size[1])
    scaled = einsum(images.float(), columns, "b c h w, b p w -> b c h p")
    scaled = einsum(scaled, rows, "b c h p, b o h -> b c o p")
    # Convert to int first: float to uint8 takes three times as long.
    return scaled.round_().int().to(images.dtype)


def _weights(start: Tensor, extent: Tensor, length: int, size: int) -> Tensor:
    """Return the weight of each of ``length`` pixels in each of ``size`` scaled ones: (B,), (B,) -> (B, size, length).

    The weight falls linearly to zero at a distance of one pixel or one scaled pixel, whichever is larger. It is zero
    outside the box.
    """
    start, extent = rearrange([start, extent], "part b -> part b 1 1")
    pixel = torch.arange(length, device=start.device) + 0.5
    centre = rearrange(torch.arange(size, device=start.device) + 0.5, "o -> o 1") * (extent / size) + start
    weights = (1 - (pixel - centre).abs() / (extent / size).clamp(min=1)).clamp(min=0)
    weights = weights * ((pixel > start) & (pixel < start + extent))
    return weights / weights.sum(dim=2, keepdim=True)
