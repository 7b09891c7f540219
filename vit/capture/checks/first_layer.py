"""Checks that no attention that was not seen comes before the first layer, among the tokens or maps of a stem.

The experiment of ``vit.capture.checks.mixing`` changes tokens of the first layer, and what comes before may mix pixels,
as a stem of convolutions does. Attention multiplies two tensors that both depend on the image, while a convolution, a
norm or a gate do not. Such a matrix product, or a function with a backward pass of its own, is found in the autograd
graph of the values of the first layer. It mixes tokens if one of them depends on two opposite corners of the image. A
product for each token alone does not.

Letters in the einops pattern: k copies of an image, h heads, m keys, d channels of a head.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from einops import reduce
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from vit.capture.experiments.graph import FollowValues, graph_alone
from vit.capture.experiments.moved import changes, noise_like, rounding, spread_of
from vit.capture.interception.followed import tensors
from vit.capture.interception.head_order import intercept
from vit.capture.parts.patches import values_of
from vit.capture.remedy import CHOOSE_OTHERS

# Of a matrix product, the last two nodes are the factors.
PRODUCTS = ("BmmBackward0", "MmBackward0", "BaddbmmBackward0", "AddmmBackward0")


class _ReachedError(Exception):
    """Ends a pass early, once the first layer is reached."""


@torch.inference_mode(False)
def check_first_layer(model: nn.Module, image: Tensor, call: int) -> None:
    """Check that nothing before an attention call mixes tokens by a product of two tensors that depend on the image.

    Nothing is checked for an image of whole numbers, which has no gradient.

    Args:
        model: A ViT in eval mode.
        image: One image as the model takes it, (1, C, H, W).
        call: Number of the first attention call that is a layer.

    Raises:
        ValueError: If there is such a product (the message names the module), or the graph does not lead to the image.
    """
    if not image.is_floating_point():
        return
    pixels = image.detach().clone().requires_grad_()
    values: list[Tensor] = []

    def look(number: int, attn: Tensor) -> Tensor:
        if number == call:
            values.append(intercepted.values)
            raise _ReachedError
        return attn

    owners: dict[Node, str] = {}
    intercepted = intercept(model, image, look)
    with torch.enable_grad(), graph_alone(), _noted(model, owners), FollowValues():
        copied = pixels * 1  # a model may write into its images, and not into a leaf
        try:
            with intercepted:
                model(copied)
        except _ReachedError:
            pass
    if not values:
        return
    depends = depending_on(values[0].grad_fn, copied.grad_fn)
    product = next((node for node in depends if _multiplies(node, depends)), None)
    is_seen = depends[values[0].grad_fn]
    if (is_seen and product is None) or not _see_opposite_corners(model, image, call):
        return
    if product is None:
        raise ValueError(
            f"{type(model).__name__} mixes tokens before the first attention that was seen, by what leaves no graph of "
            f"gradients, as within torch.inference_mode: take that away there, or {CHOOSE_OTHERS}"
        )
    path = owners.get(product, "")
    module = f"{type(model.get_submodule(path)).__name__} {path!r}" if path else "its forward method"
    raise ValueError(
        f"{type(model).__name__} multiplies two tensors that depend on the image before the first attention that was "
        f"seen ({module}), as attention of another kind does: write it with scaled_dot_product_attention, or "
        f"{CHOOSE_OTHERS}"
    )


def depending_on(result: Node | None, images: Node | None) -> dict[Node | None, bool]:
    """Return for each node of the autograd graph behind a result whether it depends on the images.

    >>> image, weight = (torch.ones(2, 2, requires_grad=True) * 1 for _ in range(2))
    >>> found = depending_on((image @ weight @ image.mT).grad_fn, image.grad_fn)
    >>> [node.name() for node in found if _multiplies(node, found)], found[weight.grad_fn]
    (['MmBackward0'], False)

    Args:
        result: The node that made the result, or None.
        images: The node that made the images, or None.
    """
    depends: dict[Node | None, bool] = {None: False} | {images: True}
    waiting = [result]
    while waiting:
        node = waiting[-1]
        sources = [] if node is None else [source for source, _ in node.next_functions]
        unknown = [source for source in sources if source not in depends]
        if node in depends or not unknown:
            waiting.pop()
            if node not in depends:
                depends[node] = any(depends[source] for source in sources)
        else:
            waiting += unknown
    return depends


def _multiplies(node: Node | None, depends: Mapping[Node | None, bool]) -> bool:
    """Return whether a node is a matrix product, or a function of its own, of two tensors that depend on the images."""
    if node is None or not (node.name() in PRODUCTS or isinstance(node, BackwardCFunction)):
        return False
    return sum(depends.get(source, False) for source, _ in node.next_functions[-2:]) == 2


@torch.no_grad()
def _see_opposite_corners(model: nn.Module, image: Tensor, call: int) -> bool:
    """Return whether a value of an attention call depends on two opposite corners of an image (1, C, H, W)."""
    rows, columns = (max(1, side // 4) for side in image.shape[-2:])
    corners = torch.zeros_like(image).repeat(2, 1, 1, 1)
    corners[0, :, :rows, :columns] = corners[1, :, -rows:, -columns:] = 1
    noise = spread_of(image) * noise_like(image)
    values = values_of(model, torch.cat([image, image + corners * noise, image]), call)
    one, other = reduce(changes(values)[:2], "k h m d -> k m", "max") > rounding(values)
    return bool((one & other).any())


@contextmanager
def _noted(model: nn.Module, owners: dict[Node, str]) -> Iterator[None]:
    """Within the context, note the innermost module that made each node of the autograd graph."""
    active = [""]  # paths of the modules that run, innermost last

    def note(made: object) -> None:
        waiting = [each.grad_fn for each in tensors([made])]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in owners:
                owners[node] = active[-1]
                waiting += [source for source, _ in node.next_functions]

    def enter(path: str, inputs: object) -> None:
        note(inputs)
        active.append(path)

    def leave(_: nn.Module, __: object, output: object) -> None:
        note(output)
        active.pop()

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda _, inputs, path=path: enter(path, inputs)))
            hooks.enter_context(module.register_forward_hook(leave))
        yield
