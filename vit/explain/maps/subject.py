"""The subject of a map: a model, images, and the score to explain.

Letters in the einops patterns: b batch, c image channels, r s grid rows and columns, y x pixel rows and columns,
k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from vit.capture.anatomy import VARIES, Anatomy, ContradictionError, examine, patch_grid
from vit.capture.checks.alike import pass_alike
from vit.capture.checks.capturable import check_capturable, check_pixels
from vit.capture.checks.every_image import check_every_image, check_every_skip
from vit.capture.checks.influence import Lost, lost_tokens
from vit.capture.checks.same_pixels import check_same_pixels
from vit.capture.checks.steady import check_independent, check_steady
from vit.capture.experiments.moved import differentiable, differing, two_of, usual_changes
from vit.capture.parts.footprint import even_cells
from vit.capture.parts.last_tokens import fixes_logits
from vit.capture.parts.logits import logits_of, result_of
from vit.capture.parts.skips import layer_without_skip, layers_without_patches
from vit.capture.parts.token_places import Boundary
from vit.explain.classes import class_numbers
from vit.explain.maps.rollout import readout_map
from vit.support.precision import at_least_float32

Target = int | str | Sequence[int | str] | Tensor | None


def _is_grid(grid: Any) -> bool:
    is_pair = isinstance(grid, tuple | list) and len(grid) == 2
    return is_pair and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in grid)


def check_finite_logits(logits: Tensor) -> None:
    """Raise a ValueError if the logits of an image (B, ...) are NaN or infinite."""
    if not (finite := logits.isfinite().flatten(1).all(dim=1)).all():
        raise ValueError(
            f"the logits of image {int((~finite).nonzero()[0])} are NaN or infinite: leave it out, or look at the "
            "weights; float16 ends at 65,504, and float32 does not"
        )


@dataclass
class Subject:
    """A model, images, and the score to explain: the logit of a class, or the difference of two logits.

    Attributes:
        model: A classifier in eval mode.
        images: Images as the model takes them, (B, C, H, W).
        target: The class to explain, by number or name: one for all images, or one for each (B,). None is the predicted
            class.
        versus: The class to compare with. If given, the score is the target's logit minus this one.
        grid: Rows and columns of patches. None detects them from the tokens, or from ``patch_size`` if the model has no
            tokens.
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.
    """

    model: nn.Module
    images: Tensor
    target: Target = None
    versus: Target = None
    grid: tuple[int, int] | None = None
    num_prefix_tokens: int | None = None
    slope_is_measured: bool | None = field(default=None, init=False)  # None: not tried yet

    def __post_init__(self) -> None:
        check_pixels(self.images)
        check_capturable(self.model)
        if not self.images.is_floating_point():
            raise ValueError(
                f"images are {self.images.dtype}, whose pixels have no gradient and no grey of 0: give floats as the "
                "model takes them, normalised"
            )
        self.images = differentiable(self.images)
        check_steady(self.model, self.images)
        check_independent(self.model, self.images)
        self.grid = self._found_grid() if self.grid is None else self.grid
        if not _is_grid(self.grid):
            raise ValueError(f"grid ({self.grid!r}) must be (rows, columns), as (14, 14)")
        height, width = self.images.shape[-2:]
        if self.grid[0] > height or self.grid[1] > width:
            raise ValueError(
                f"grid {tuple(self.grid)} has more rows or columns than the images of {height} x {width} pixels: give "
                "fewer"
            )

    @cached_property
    def anatomy(self) -> Anatomy:
        """The parts of the model, for methods that need its attention or its layers."""
        found = examine(self.model, self.images, self.grid, self.num_prefix_tokens)
        check_every_image(self.model, self.images, found.calls, found.orders)
        check_every_skip(self.model, self.images, found.calls, found.orders, found.reading.place)
        check_same_pixels(self.model, self.images, found)
        return found

    @cached_property
    def readout(self) -> Tensor:
        """Share of each token in the logits of each image, (B, N), as in ``Anatomy.readout``."""
        self.check_reads_last()
        anatomy, fixed = self.anatomy, self.anatomy.readout
        if anatomy.pooled or (len(self.images) <= 2 and not anatomy.readout_varies):
            return repeat(fixed, "n -> b n", b=len(self.images))
        rough = anatomy.reading.shares(self.model, self.images, in_short=True)
        if not anatomy.readout_varies and ((rough - rough[:1]).abs() <= VARIES * rough.max()).all():
            return repeat(fixed, "n -> b n", b=len(self.images))
        shares = anatomy.reading.shares(self.model, self.images)
        if ((shares > 0) != (fixed > 0)).any():
            raise anatomy.varying_readout_error()
        moved = (shares - fixed).abs().max()
        return shares if anatomy.readout_varies or moved > VARIES * shares.max() else fixed.expand_as(shares)

    @cached_property
    def score_readout(self) -> Tensor:
        """``readout`` without tokens that the score does not read, such as tokens of other classes."""
        readout = self.readout
        if self.anatomy.pooled or ((readout > 0).sum(dim=1) == 1).all():
            return readout
        read = readout * (self.anatomy.reading.shares(self.model, self.images, self.contrast) > 0)
        return read / reduce(read, "b n -> b 1", "sum")

    def check_reads_last(self) -> None:
        """Raise a ValueError if the logits of an image read anything but its last tokens."""
        self.anatomy.check_reads_last()
        if not self._passes_alike:
            with torch.no_grad():
                check_finite_logits(result_of(self.model(self.images)))
            raise ValueError(
                f"{type(self.model).__name__} passes some of these images another way than the first two (through "
                "another number of layers, or its logits read tokens of another layer): give images one at a time, or "
                "choose occlusion, input_gradient, integrated_gradients or smoothgrad"
            )

    @cached_property
    def _passes_alike(self) -> bool:
        return pass_alike(self.model, self.images, self.anatomy)

    @cached_property
    def cell_of_pixel(self) -> Tensor:
        """Index of the patch of each pixel, (H, W): the nearest one if patches overlap, -1 if no patch sees the pixel.

        If the patches of the model are not known, the grid divides the image evenly.
        """
        try:
            return self.anatomy.cells
        except ContradictionError:
            raise
        except ValueError:  # as in _found_grid
            return even_cells(self.images.shape[-2:], self.grid).to(self.images.device)

    @cached_property
    def logits(self) -> Tensor:
        """The logits of the images, (B, classes)."""
        with torch.no_grad():
            logits = logits_of(self.model(self.images))
        if logits.ndim != 2:
            raise ValueError(
                f"{type(self.model).__name__} returned scores of shape {tuple(logits.shape)}, not one for each class "
                "(B, classes): wrap it in a module that returns these, for example the mean over places, or choose "
                "attention, rollout, value or value_rollout, which need no class"
            )
        check_finite_logits(logits)
        return logits

    @cached_property
    def contrast(self) -> Tensor:
        """Weights of the logits in the score, (B, classes): 1 for the target, -1 for ``versus``."""
        target = self._one_hot("target", self.logits.argmax(dim=-1) if self.target is None else self.target)
        if self.versus is None:
            return target
        contrast = target - self._one_hot("versus", self.versus)
        if same := (contrast == 0).all(dim=-1).nonzero()[:, 0].tolist():
            raise ValueError(
                f"target and versus are both {int(target[same[0]].argmax())} for image {same[0]}: give two classes"
            )
        return contrast

    def score(self, logits: Tensor) -> Tensor:
        """Return the score of each image: logits (B, classes) -> (B,)."""
        return reduce(logits * self.contrast, "b k -> b", "sum")

    def score_of(self, images: Tensor, contrast: Tensor) -> Tensor:
        """Return the scores of images, in the form that Captum calls: (B, C, H, W), contrast (B, classes) -> (B,)."""
        return reduce(logits_of(self.model(images)) * contrast, "b k -> b", "sum")

    def logits_are_made_of(self, place: Boundary) -> bool:
        """Return whether the logits are computed from the tokens at a place and nothing else of the image."""
        if not differing(self.images).any():  # equal images would show nothing
            return fixes_logits(self.model, place, two_of(self.images))
        return fixes_logits(self.model, place, self.images, usual_changes(self.logits))

    @cached_property
    def without_skip(self) -> int | None:
        """The first layer without a skip connection beside its attention, or None."""
        anatomy = self.anatomy
        calls, layers, place = anatomy.calls[: anatomy.depth], anatomy.parts.layers, anatomy.reading.place
        return layer_without_skip(self.model, self.images[:1], calls, layers, place)

    def check_skips(self) -> None:
        """Raise a ValueError if a layer has no skip connection, which the formula of a map adds to each attention."""
        if self.without_skip is not None:
            raise ValueError(
                f"layer {self.without_skip} of {type(self.model).__name__} has no skip connection beside its attention "
                "alone (without it, tokens are lost), and this map adds one to each layer: choose occlusion, or, if no "
                "layer has one, rollout with residual=0.0"
            )

    @cached_property
    def without_patches(self) -> set[int]:
        """The layers whose tokens are no longer those of their patches."""
        anatomy = self.anatomy
        return layers_without_patches(self.model, self.images[:1], anatomy.calls[: anatomy.depth], anatomy.parts.layers)

    def check_patches_kept(self, layers: Sequence[int]) -> None:
        """Raise a ValueError if the tokens that enter a layer, from 0 on, are no longer those of their patches."""
        if lost := sorted(self.without_patches & {*layers}):
            raise ValueError(
                f"a layer before layer {lost[0]} of {type(self.model).__name__} has no skip connection, so tokens hold "
                "what attention brought there, or what replaced them, and not their own patches, on which this map "
                "would draw them: choose an earlier layer, occlusion, or, if no layer has a skip connection, rollout "
                "with residual=0.0"
            )

    @cached_property
    def lost_tokens(self) -> Lost | None:
        """Tokens that do not take what an attention gives them, or None."""
        return self._lost_tokens()

    def _lost_tokens(self, layer: int | None = None) -> Lost | None:
        anatomy = self.anatomy
        place, read = anatomy.reading.place, self.readout > 0
        if anatomy.reading.order is not None:  # the tokens there are not in the order of their shares
            place = None
        return lost_tokens(self.model, self.images, anatomy.calls, anatomy.depth, place, read, layer)

    def check_taken(self, remedy: str, layer: int | None = None) -> None:
        """Raise a ValueError if some tokens do not take what an attention gives them, which a map would still count.

        If a layer is given, only its attention counts, and only tokens that the logits read.
        """
        self.check_reads_last()
        if (lost := self.lost_tokens) is not None and layer is not None:
            lost = self._lost_tokens(layer)
        if lost is not None:
            raise ValueError(
                f"{lost.count} of {self.anatomy.num_tokens} tokens of {type(self.model).__name__} do not take what the "
                f"attention of layer {lost.layer} gives them (image {lost.image} of the batch), as with prompts that "
                f"each layer has of its own, or layers that are skipped, and this map would count it: {remedy}"
            )

    def as_map(self, tokens: Tensor) -> Tensor:
        """Pick the patches among all tokens and arrange their values as a map: (B, N) -> (B, rows, columns).

        Raises:
            ValueError: If there is not one row for each image.
        """
        if len(tokens) != len(self.images):
            raise ValueError(
                f"{type(self.model).__name__} passes {len(tokens)} rows of tokens for {len(self.images)} images, as "
                "models do that pass several views of each, so no map belongs to one image: choose occlusion, "
                "input_gradient, integrated_gradients or smoothgrad"
            )
        return rearrange(tokens[:, self.anatomy.patches], "b (r s) -> b r s", r=self.anatomy.grid[0])

    def readout_map(self, mixing: Tensor) -> Tensor:
        """Return the patches in the row that the logits read: (B, N, M) -> (B, rows, columns)."""
        self.check_reads_last()
        return readout_map(self.anatomy, mixing, None if mixing.shape[1] == 1 else self.readout)

    def sum_over_patches(self, pixels: Tensor) -> Tensor:
        """Add up the values of the pixels of each patch: (B, C, H, W) -> (B, rows, columns)."""
        seen = at_least_float32(torch.where(self.cell_of_pixel < 0, 0.0, pixels))  # 16 bits lose terms of long sums
        flat = reduce(seen, "b c y x -> b (y x)", "sum")
        cells = repeat(self.cell_of_pixel.clamp(min=0), "y x -> b (y x)", b=len(flat))
        sums = flat.new_zeros(len(flat), self.grid[0] * self.grid[1]).scatter_add(1, cells, flat)
        return rearrange(sums, "b (r s) -> b r s", r=self.grid[0])

    def paint_grey(self, patches: Tensor) -> Tensor:
        """Return the images with the pixels of these patches set to 0: indices (B, n) -> (B, C, H, W)."""
        keep = self.images.new_ones(len(patches), self.grid[0] * self.grid[1]).scatter(1, patches, 0.0)
        kept = torch.where(self.cell_of_pixel < 0, 1.0, keep[:, self.cell_of_pixel.clamp(min=0)])
        return self.images * rearrange(kept, "b y x -> b 1 y x")

    def _found_grid(self) -> tuple[int, int]:
        try:
            return self.anatomy.grid
        except ContradictionError:
            raise
        except ValueError as reason:  # a CNN or a hierarchical model, which pixel methods can still explain
            try:
                return patch_grid(self.model, self.images)
            except ValueError as unsaid:
                raise ValueError(f"{reason}; methods of pixels need a grid, and {unsaid}") from reason

    def _one_hot(self, name: str, classes: Target) -> Tensor:
        batch, num_classes = self.logits.shape
        numbers = class_numbers(self.model, classes, num_classes)
        try:
            classes = torch.as_tensor(numbers, device=self.logits.device)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{name} ({numbers!r}) must be a class, or one for each image") from error
        if classes.ndim > 1 or (classes.ndim == 1 and len(classes) != batch):
            raise ValueError(
                f"{name} has shape {tuple(classes.shape)} for {batch} images: give one class, or one for each"
            )
        is_number = not (classes.is_floating_point() or classes.is_complex()) and classes.dtype != torch.bool
        numbers = classes.long() if is_number else classes
        if not is_number or not ((numbers >= 0) & (numbers < num_classes)).all():
            raise ValueError(f"{name} ({classes.tolist()}) must be classes from 0 to {num_classes - 1}")
        return nn.functional.one_hot(numbers.expand(batch), num_classes).to(self.logits)
