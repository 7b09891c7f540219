"""Maps of several resolutions from the last map of a plain backbone, for detection and segmentation.

Letters in the einops patterns: b images, d channels, h w rows and columns of a map.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from einops import rearrange
from torch import Tensor, nn

from vit.support.checks import check_positive, check_positive_int

NORM_EPS = 1e-6  # as in the authors' code


class FeaturePyramid(nn.Module):
    """A backbone with a simple feature pyramid: images to maps at several strides (ViTDet, Li et al. 2022).

    Every map is computed from the last map of the backbone, after its norm unless that comes after the pooling. For a
    finer stride, transposed convolutions double rows and columns and halve the channels, with a norm and a GELU between
    two of them. For a coarser stride, the maximum over the cells is taken. A 1 x 1 and a 3 x 3 convolution follow, each
    with a norm over the channels. Convolutions start with PyTorch's weights, as in the authors' code. The pyramid has
    the device and the type of the backbone.

    A cell of stride s at row i and column j stands for the pixels from row s i and column s j on. If the coarse cells
    do not divide the grid of the patches, the last ones reach beyond it; the authors pad the images instead.
    Torchvision's detectors take a pyramid as their backbone.

    >>> import torch, vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3)
    >>> pyramid = FeaturePyramid(model, out_channels=16)
    >>> {name: tuple(found.shape) for name, found in pyramid(torch.randn(2, 3, 32, 48)).items()}
    {'0': (2, 16, 8, 12), '1': (2, 16, 4, 6), '2': (2, 16, 2, 3), '3': (2, 16, 1, 2)}

    Args:
        model: The backbone: a ``vit.VisionTransformer``, or a model of timm with ``forward_intermediates``. It is
            trained along unless its parameters are frozen.
        out_channels: Channels of each map.
        strides: Pixels from one cell of a map to the next, finest map first. Each is the stride of the patches, times
            or divided by a power of two.

    Raises:
        ValueError: If the strides do not fit the patches or do not grow, or the backbone is of another kind.
    """

    def __init__(self, model: nn.Module, out_channels: int = 256, strides: Sequence[float] = (4, 8, 16, 32)) -> None:
        super().__init__()
        check_positive_int("out_channels", out_channels, "256 is usual")
        if out_channels == 1:
            raise ValueError("out_channels (1) leaves nothing after a norm over the channels: 256 is usual")
        channels, patch_stride = _channels_and_stride(model)
        doublings = _count_doublings(strides, patch_stride)
        if channels < 2 ** max(doublings):
            raise ValueError(
                f"the {channels} channels of the model cannot be halved {max(doublings)} times, from stride "
                f"{patch_stride} to {strides[0]}: leave out the finest stride"
            )
        self.model = model
        self.out_channels = out_channels
        self.strides = tuple(strides)
        self.patch_stride = patch_stride
        self.levels = nn.ModuleList(_make_level(channels, out_channels, count) for count in doublings)
        self.levels.to(next(model.parameters()))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Compute the maps: (B, C, H, W) -> {"0": (B, out_channels, H / s_0, W / s_0), "1": ...}, finest first.

        Rows and columns are rounded up.

        Raises:
            ValueError: If the model does not take images of this size, or its map has another grid than its patches.
        """
        (last,) = self.model.forward_intermediates(images, 1, norm=True, output_fmt="NCHW", intermediates_only=True)
        _check_grid(images, last, self.patch_stride)
        return OrderedDict((str(i), level(last)) for i, level in enumerate(self.levels))

    if TYPE_CHECKING:  # the calls of nn.Module return Any
        __call__: Callable[..., OrderedDict[str, Tensor]]


class ChannelNorm(nn.LayerNorm):
    """Normalise the channels of each cell: (B, D, H, W) -> (B, D, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each cell by itself."""
        return rearrange(super().forward(rearrange(x, "b d h w -> b h w d")), "b h w d -> b d h w")


def _make_level(channels: int, out_channels: int, doublings: int) -> nn.Sequential:
    """Return the layers from the last map to a map of the pyramid, whose grid is finer by ``2**doublings``."""
    layers: list[nn.Module] = []
    for step in range(doublings):
        if step:
            layers += [ChannelNorm(channels, eps=NORM_EPS), nn.GELU()]
        layers.append(nn.ConvTranspose2d(channels, channels // 2, kernel_size=2, stride=2))
        channels //= 2
    if doublings < 0:
        layers.append(nn.MaxPool2d(2**-doublings, ceil_mode=True))
    return nn.Sequential(
        *layers,
        nn.Conv2d(channels, out_channels, kernel_size=1, bias=False),  # the norm has a bias
        ChannelNorm(out_channels, eps=NORM_EPS),
        nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
        ChannelNorm(out_channels, eps=NORM_EPS),
    )


def _channels_and_stride(model: nn.Module) -> tuple[int, int]:
    """Return the channels of a model's last map, and the pixels from one of its cells to the next."""
    patch_stride = getattr(getattr(model, "patch_embed", None), "patch_stride", None)
    is_known = patch_stride is not None or hasattr(model, "feature_info")
    if not hasattr(model, "forward_intermediates") or not is_known:
        raise ValueError(
            f"the model is a {type(model).__name__} without timm's forward_intermediates and feature_info: give a "
            "vit.VisionTransformer, or a ViT of timm"
        )
    if patch_stride is None:
        last = model.feature_info[-1]
        return last["num_chs"], last["reduction"]
    rows, columns = patch_stride
    if rows != columns:
        raise ValueError(
            f"patches are {rows} rows and {columns} columns apart, and a map has one stride for both: take a model "
            "with square patches"
        )
    return model.embed_dim, rows


def _count_doublings(strides: Sequence[float], patch_stride: int) -> list[int]:
    """Return how often the stride of the patches is halved for each map; negative numbers count doublings.

    >>> _count_doublings((4, 8, 16, 32), patch_stride=16)
    [2, 1, 0, -1]
    """
    if not strides:
        raise ValueError("strides () name no map: (4, 8, 16, 32) is usual for patches of 16 pixels")
    for stride in strides:
        check_positive("strides", stride, "pixels from one cell of a map to the next")
        if not math.log2(patch_stride / stride).is_integer():
            usual = tuple(patch_stride / 4 * 2**i for i in range(4))
            raise ValueError(
                f"stride {stride} is not the stride of the patches ({patch_stride}) times or divided by a power of "
                f"two: take some of {', '.join(f'{each:g}' for each in usual)}"
            )
    if list(strides) != sorted(set(strides)):
        raise ValueError(f"strides {tuple(strides)} must grow from map to map: take {tuple(sorted(set(strides)))}")
    return [int(math.log2(patch_stride / stride)) for stride in strides]


def _check_grid(images: Tensor, last: Tensor, patch_stride: int) -> None:
    size, grid = tuple(images.shape[-2:]), tuple(last.shape[-2:])
    if any(
        cells not in (side // patch_stride, -(-side // patch_stride)) for side, cells in zip(size, grid, strict=True)
    ):
        raise ValueError(
            f"the model maps images of {size} pixels to {grid} cells, but its patches were {patch_stride} pixels apart "
            "when the pyramid was made: build the pyramid again, from a model with square patches"
        )
