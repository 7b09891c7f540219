"""All methods by name, and ``explain``, which calls them."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.capture.experiments.graph import gradients_of
from vit.capture.parts.footprint import are_even
from vit.explain.maps.attention_based import attention, gradient_rollout, legrad, relevance, rollout
from vit.explain.maps.attnlrp import attnlrp
from vit.explain.maps.controls import center, deviation, edges, ink, random, uniform
from vit.explain.maps.gradients import gradcam, input_gradient, integrated_gradients, smoothgrad
from vit.explain.maps.perturbation import occlusion, token_drop
from vit.explain.maps.subject import Subject, Target
from vit.explain.maps.values import value, value_rollout
from vit.support.checks import nearest_hint

if TYPE_CHECKING:
    from vit.explain.inputs import Given

METHODS: dict[str, Callable[..., Tensor]] = {
    "attention": attention,
    "rollout": rollout,
    "value": value,
    "value_rollout": value_rollout,
    "gradient_rollout": gradient_rollout,
    "relevance": relevance,
    "legrad": legrad,
    "gradcam": gradcam,
    "input_gradient": input_gradient,
    "integrated_gradients": integrated_gradients,
    "smoothgrad": smoothgrad,
    "occlusion": occlusion,
    "token_drop": token_drop,
    "attnlrp": attnlrp,
    "random": random,
    "uniform": uniform,
    "center": center,
    "edges": edges,
    "deviation": deviation,
    "ink": ink,
}
CONTROLS = ("random", "uniform", "center", "edges", "deviation", "ink")
CLASS_AGNOSTIC = ("attention", "rollout", "value", "value_rollout", *CONTROLS)  # the same map for every class


def explain(
    model: nn.Module,
    images: "Tensor | Given | Sequence[Given]",
    method: str = "rollout",
    target: Target = None,
    *,
    versus: Target = None,
    grid: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    **options: Any,
) -> Tensor:
    """Return how much each patch matters, one map for each image: (B, C, H, W) -> (B, rows, columns), non-negative.

    Patches that lower the score get 0 here; ``METHODS[name](Subject(...))`` keeps their negative values. Methods have
    different units, so compare only the order of patches within an image.

    >>> import torch, vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> explain(model, torch.randn(5, 3, 32, 32), "relevance", target=7, versus=3).shape  # why 7 and not 3?
    torch.Size([5, 4, 4])
    >>> explain(vit.load("cifar10"), "cat.jpg", "relevance", target="cat").shape  # doctest: +SKIP
    torch.Size([1, 16, 16])

    Args:
        model: A ViT classifier in eval mode, from this or another library. Occlusion and the pixel-gradient methods
            take any classifier if ``grid`` is given.
        images: Images as the model takes them, (B, C, H, W); or an image file, a PIL image or a list of these,
            which are scaled, cropped and normalised for a model of ``vit.load`` or timm.
        method: A key of ``METHODS``. Those in ``CLASS_AGNOSTIC``, such as "rollout", ignore the class.
        target: The class to explain, by number or name: one for all images, or one for each. None is the predicted
            class.
        versus: A class to compare with. The map then explains why the target beats this class.
        grid: Rows and columns of patches, checked against the detected grid. Needed only if detection fails and no
            module has a ``patch_size``.
        num_prefix_tokens: Number of tokens before the patches, checked against the detected number.
        **options: Arguments of the method, such as ``head_fusion="max"`` for "rollout".

    Raises:
        ValueError: If there is no such method, argument or class, or the method does not fit the model.
    """
    if not isinstance(images, Tensor):
        from vit.explain.inputs import as_images  # imports Pillow, which tensors do not need

        images = as_images(model, images)
    subject = Subject(model, images, target, versus, grid, num_prefix_tokens)
    maps = signed_map(method, subject, **options).clamp(min=0)
    if "anatomy" in vars(subject) and not are_even(subject.anatomy.cells, subject.anatomy.grid):
        warnings.warn(
            f"{type(model).__name__} does not divide these images evenly into patches: give "
            "cells=vit.capture.examine(model, images).cells to vit.explain.overlay",
            stacklevel=2,
        )
    return maps


def check_method(method: str) -> None:
    """Check that there is a method of this name.

    >>> check_method("oclusion")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: unknown method 'oclusion': choose one of attention, ... (did you mean occlusion?)

    Raises:
        ValueError: If there is none; the message names the nearest one.
    """
    if not isinstance(method, str) or method not in METHODS:
        hint = nearest_hint(method, METHODS) if isinstance(method, str) else ""
        raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}{hint}")


@torch.inference_mode(False)  # gradients are needed even if the caller is in inference mode
def signed_map(method: str, subject: Subject, **options: Any) -> Tensor:
    """Return the map of a method; patches that lower the score are negative: -> (B, rows, columns).

    Raises:
        ValueError: If there is no such method, or it has no such argument, or the map has NaN or infinite values.
    """
    check_method(method)
    known = list(inspect.signature(METHODS[method]).parameters)[1:]
    unknown = [name for name in options if name not in known]
    if unknown:
        takes = ", ".join(known) or "none"
        raise ValueError(f"method {method!r} has no argument {unknown[0]!r}: it takes {takes}")
    with gradients_of(subject.model, "choose a method without gradients, such as rollout, attention or occlusion"):
        maps = METHODS[method](subject, **options)
    if not (finite := maps.isfinite().flatten(1).all(dim=1)).all():
        image = int((~finite).nonzero()[0])
        raise ValueError(
            f"the {method} map of image {image} has NaN or infinite values, as of numbers too large for "
            f"{subject.images.dtype}: leave the image out, or choose another method or a wider dtype"
        )
    return maps
