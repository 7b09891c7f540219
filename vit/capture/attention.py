"""Captures the attention of any running ViT, and checks that this leaves the logits unchanged."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vit.capture.checks.alone import check_alone, check_count, check_logits_alone, project_attention
from vit.capture.checks.capturable import check_capturable, check_pixels
from vit.capture.checks.dependence import Dependents, Made, check_in_a_row, find_dependents, influential
from vit.capture.checks.every_image import check_every_image
from vit.capture.checks.first_layer import check_first_layer
from vit.capture.checks.mixing import check_unmixed
from vit.capture.checks.places import check_places
from vit.capture.checks.steady import check_images_unchanged, check_independent, check_logits_unchanged, repeated
from vit.capture.experiments.graph import graph_alone
from vit.capture.experiments.moved import differentiable, moved_by_images, two_of
from vit.capture.interception.head_order import intercept
from vit.capture.interception.intercept import Edit
from vit.capture.interception.kernels import count_kernels
from vit.capture.parts.logits import result_of
from vit.capture.parts.order import (
    Orders,
    check_last_rows,
    check_same_orders,
    in_first_order,
    in_own_order,
    token_orders,
)
from vit.capture.remedy import CHOOSE_OTHERS


class Attentions(list[Tensor]):
    """The attention (B, H, N, M) of each layer, first layer first, and the logits (B, classes) of the same pass.

    All are in one autograd graph: ``torch.autograd.grad(attentions.logits[:, 3].sum(), attentions)`` returns the
    gradient of class 3 with respect to every attention weight.
    """

    logits: Tensor


def capture_attention(model: nn.Module, images: Tensor) -> Attentions:
    """Return the attention of every layer: images (B, C, H, W) -> a list of (B, H, N, M), first layer first.

    The model is any ViT in eval mode: ours, your own, or one of timm, torchvision, transformers or vit-pytorch. Its
    attention may be fused. The weights are those that multiply the values. They are in the autograd graph of
    ``.logits`` unless gradients are off. Attention that does not influence the logits is left out. If a model moves its
    tokens between layers, they are brought back into the order of the first layer.

    >>> import vit
    >>> model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> [tuple(attn.shape) for attn in capture_attention(model, torch.randn(5, 3, 32, 32))]
    [(5, 3, 17, 17), (5, 3, 17, 17)]

    Raises:
        ValueError: If attention cannot be intercepted (a compiled or scripted model, a kernel that bypasses torch, a
            mechanism without weights), if it is not over whole images (a hierarchy of windows), if capturing it
            changes the logits, if it differs between an image alone and the same image in a batch, if anything else
            mixes tokens, if the order of tokens cannot be found in a layer or differs between two images, or if the
            model writes into the images.
    """
    images = differentiable(images)
    given = images.detach().clone()
    attentions = capture_unchecked(model, images)
    check_images_unchanged(model, images, given)
    usual = moved_by_images(model, two_of(images[:1]))
    check_logits_unchanged(model, usual, attentions.logits, repeated(model, images))
    calls, dependents, of_first = _layers(model, images[:1])
    check_count(model, len(attentions), len(images), len(dependents.reached))
    check_in_a_row(model, calls, dependents)
    if len(images) > 1:
        with torch.no_grad():
            alone, of_last = projected_attentions(model, images[-1:])
        check_alone(model, [project_attention(attn) for attn in attentions], alone, len(images) - 1, calls)
        for row, of_one in ((0, of_first), (-1, of_last)):
            check_logits_alone(model, len(images), usual, attentions.logits[row], of_one[0])
    check_independent(model, images)
    check_places(model, images[:1], calls[0])
    num_tokens = attentions[calls[0]].shape[-1]
    check_unmixed(model, images[:1], calls, num_tokens)
    check_first_layer(model, images[:1], calls[0])
    orders = token_orders(model, images[:1], calls, num_tokens)
    if calls[-1] not in orders:
        check_last_rows(model, images[:1], calls, num_tokens)
    if len(images) > 1:
        other = images[-1:]
        check_unmixed(model, other, calls, num_tokens, in_short=True)
        check_same_orders(model, orders, token_orders(model, other, calls, num_tokens))
    check_every_image(model, images, calls, orders)
    attentions[:] = [attentions[call] for call in calls]
    return capture_unchecked(model, images, calls, orders) if orders else attentions


def capture_unchecked(
    model: nn.Module, images: Tensor, calls: Sequence[int] | None = None, orders: Orders | None = None
) -> Attentions:
    """Return the attention of ``calls`` (None is all) as ``capture_attention`` does, without its checking passes."""
    attentions = Attentions()

    def keep(_: int, attn: Tensor) -> Tensor:
        # Layers may share one tensor, whose gradient would be the sum of theirs, or write into it after its use.
        attentions.append(attn.clone())
        return attentions[-1]

    attentions.logits = run_intercepted(model, images, keep, calls, orders)
    return attentions


def projected_attentions(model: nn.Module, images: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the projection of each attention call, (B, H, N), and the logits. See ``project_attention``."""
    projections: list[Tensor] = []

    def keep(_: int, attn: Tensor) -> Tensor:
        projections.append(project_attention(attn))
        return attn

    logits = run_intercepted(model, images, keep)
    return projections, logits


def influential_calls(model: nn.Module, image: Tensor) -> list[int]:
    """Return the numbers of the attention calls that influence the logits of an image (1, C, H, W).

    Raises:
        ValueError: If there is no such call, or for the reasons of ``run_intercepted``.
    """
    return _layers(model, image)[0]


@torch.inference_mode(False)
@torch.enable_grad()
def _layers(model: nn.Module, image: Tensor) -> tuple[list[int], Dependents, Tensor]:
    """Return the numbers of the attention calls that influence the logits, what depends on each, and the logits."""
    made = []

    def keep(_: int, attn: Tensor, values: Tensor) -> Tensor:
        copied = attn.clone()
        made.append(Made(copied.grad_fn, values.grad_fn))
        return copied

    with graph_alone():
        logits = run_with_values(model, image, keep)
    dependents = find_dependents(model, image, logits, made)
    calls = influential(dependents)
    if not calls:
        raise ValueError(
            f"no attention of {type(model).__name__} has an influence on its logits: they are computed from something "
            f"else: {CHOOSE_OTHERS}"
        )
    return calls, dependents, logits.detach()


def run_intercepted(
    model: nn.Module, images: Tensor, edit: Edit, calls: Sequence[int] | None = None, orders: Orders | None = None
) -> Tensor:
    """Return the logits of a model while ``edit`` reads or replaces its attention: (B, C, H, W) -> (B, classes).

    Args:
        model: A ViT in eval mode.
        images: Images as the model takes them.
        edit: Called as ``edit(layer, attn)``. The weights that it returns multiply the values.
        calls: Numbers of the attention calls that count as layers, as in ``Anatomy.calls``; None is all.
        orders: For each call whose tokens are in another order: their places, as in ``Anatomy.orders``.

    Raises:
        ValueError: As in ``capture_attention``, but changed logits are allowed, because an edit may change them.
    """

    def in_order(call: int, attn: Tensor, _: Tensor) -> Tensor:
        if calls is not None and call not in calls:
            return attn
        order = orders.get(call) if orders else None
        return in_own_order(edit(call if calls is None else calls.index(call), in_first_order(attn, order)), order)

    return run_with_values(model, images, in_order, calls)


def run_with_values(
    model: nn.Module, images: Tensor, edit: Callable[[int, Tensor, Tensor], Tensor], calls: Sequence[int] | None = None
) -> Tensor:
    """Return what ``run_intercepted`` does, while ``edit(call, attn, values)`` gets the values (B, H, M, d), too."""
    check_capturable(model)
    check_pixels(images)
    shapes: list[torch.Size] = []

    def checked(call: int, attn: Tensor) -> Tensor:
        if calls is None or call in calls:
            shapes.append(attn.shape)
            _check_whole_images(model, images, shapes)
        return edit(call, attn, intercepted.values)

    try:
        with intercept(model, images, checked) as intercepted:
            logits = result_of(model(images))
    except RuntimeError as error:
        if type(error).__module__.startswith("torch._dynamo") or "FlexAttention" in str(error):
            raise _unseen(model, "flex_attention, which compiles itself") from error
        raise
    if intercepted.unseen:
        raise _unseen(
            model,
            f"of shape {intercepted.unseen[0]}, in windows, with axes of its own, or without those of images and heads",
        )
    # Beside attention that was seen, a softmax is logged or is over channels or experts, or ``check_unmixed`` finds it.
    if intercepted.followed.unused and not shapes:
        shape = next(iter(intercepted.followed.unused.values()))
        product = "neither a matrix product nor an einsum of two tensors that names each axis"
        raise _unseen(model, f"a softmax of shape {shape}: {product} multiplies values (B, H, M, d) by it")
    if not shapes:
        counts = count_kernels(model, images)
        if counts:
            found = ", ".join(f"{name} {count} times" for name, count in counts.items())
            raise _unseen(model, f"{found}, of which none is called from Python and mixes values in a matrix product")
        raise ValueError(
            f"{type(model).__name__} called none of torch's attention functions (scaled_dot_product_attention, "
            "multi_head_attention_forward, softmax over (batch, heads, queries, keys) times values): it has no "
            "attention, or a kernel of its own, which has to be switched off to see it"
        )
    return logits


def _unseen(model: nn.Module, what: str) -> ValueError:
    return ValueError(
        f"{type(model).__name__} has attention that cannot be intercepted ({what}): switch it to "
        f"scaled_dot_product_attention if it offers that, or {CHOOSE_OTHERS}"
    )


def _check_whole_images(model: nn.Module, images: Tensor, shapes: list[torch.Size]) -> None:
    batch, _, queries, keys = shapes[-1]
    first = shapes[0]
    pooling = queries == 1 and len(shapes) > 1  # one query at the end pools the tokens
    if queries > 1 and any(shape[-2] == 1 for shape in shapes[1:-1]):
        raise ValueError(
            f"{type(model).__name__} has an attention of one query before an attention of all tokens (number "
            f"{len(shapes) - 1}), as a block that adds something of all tokens to each: it mixes tokens, and no row of "
            f"attention shows it: {CHOOSE_OTHERS}"
        )
    if batch == len(images) and (pooling or (queries == keys == first[-1])):
        return
    if batch == len(images) and 1 < queries < keys and shapes[-1][-2:] == first[-2:]:
        raise ValueError(
            f"{type(model).__name__} has {keys} keys for {queries} queries in its attention, as with learned keys, a "
            f"prefix or a sink that has a value: some keys are no tokens of the image: {CHOOSE_OTHERS}"
        )
    raise ValueError(
        f"{type(model).__name__} attends within windows or chunks, to a coarser grid, to several images at once, to "
        "other tokens in some layers, with axes in another order than (images, heads, queries, keys), or takes a "
        "softmax over channels: "
        f"{len(images)} images gave attention of shape {tuple(shapes[-1])}, and {tuple(first)} in the first layer. The "
        "maps of such layers do not multiply, as in Swin and other hierarchies: use scaled_dot_product_attention over "
        f"whole images, or {CHOOSE_OTHERS}"
    )
