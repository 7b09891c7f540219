"""The functions of torch in which attention weights appear and multiply values, with weights that may be edited.

A model that computes attention itself calls a softmax, and later a matrix product with the values.
"""

import string
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from vit.capture.interception.followed import Weights, tensors

if TYPE_CHECKING:
    from vit.capture.interception.intercept import InterceptAttention


def softmax(
    mode: "InterceptAttention",
    func: Callable[..., Tensor],
    input: Tensor,
    dim: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Compute a softmax. Its result is followed if it may be weights."""
    probabilities = func(input, dim, *args, **kwargs)
    if dim is not None and dim % input.ndim < input.ndim - 1:
        mode.followed.mark_other_axis(probabilities, dim)
        return probabilities
    over_keys = dim in (-1, input.ndim - 1) and input.is_floating_point() and input.shape[-1] > 1
    if input.ndim in (3, 4) and over_keys:
        mode.followed.mark(probabilities, mode.followed.known.get(input))
    elif input.ndim > 4 and over_keys:
        mode.unseen.append(tuple(input.shape))
    elif input.ndim == 2 and over_keys and input.shape[0] == input.shape[1]:
        mode.followed.without_images[probabilities] = tuple(input.shape)
    return probabilities


def matrix_product(
    mode: "InterceptAttention", func: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Compute a matrix product, with edited weights if it multiplies values."""
    followed = mode.followed
    other, *rest = tensors((*args, *kwargs.values()))
    if input in followed.without_images and other.ndim > 2:  # (N, M) times the tokens of all images
        mode.unseen.append(followed.without_images[input])
    if followed.are_weights_and_values(input, other):
        followed.mark_used(input)
        return func(mode.edited_product(input, other), *args, **kwargs)
    # The values may come before the weights, both transposed. One square matrix for all heads mixes the weights.
    is_square = input.ndim == other.ndim == 4 and input.shape[-1] == input.shape[-2] and input.shape[1] < other.shape[1]
    if input not in followed.known and not is_square and followed.are_weights_and_values(other, input):
        followed.mark_used(other)
        return func(input, mode.edited_product(other.mT, input.mT).mT)
    product = func(input, *args, **kwargs)
    followed.follow(product, (input, other, *rest))
    return product


def added_product(
    mode: "InterceptAttention",
    func: Callable[..., Tensor],
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    **kwargs: Any,
) -> Tensor:
    """Compute ``torch.baddbmm``, with edited weights if its product multiplies values."""
    if mode.followed.are_weights_and_values(batch1, batch2):
        mode.followed.mark_used(batch1)
        batch1 = mode.edited_product(batch1, batch2)
    return func(input, batch1, batch2, **kwargs)


def einsum(mode: "InterceptAttention", func: Callable[..., Tensor], equation: str, *operands: Any) -> Tensor:
    """Compute ``torch.einsum``, with edited weights if it multiplies values, in any order of its letters."""
    followed = mode.followed
    factors = list(tensors(operands))
    marked = [i for i, factor in enumerate(factors) if factor in followed.known]
    equation = _without_ellipsis(equation.replace(" ", ""), factors)
    letters, out = equation.split("->")[0].split(","), equation.split("->")[-1]
    if len(marked) == 1 and len(factors) == 2 and "." not in equation:
        (i,) = marked
        attn, values = factors[i], factors[1 - i]
        over, of = letters[i], letters[1 - i]
        keys = [letter for letter in over if letter in of and letter not in out]
        queries = [letter for letter in over if letter not in of and letter in out]
        if attn.ndim == 4 and len(queries) > 1 and keys == [over[-1]] and over[-2] in queries:
            queries = [over[-2]]  # the others are heads that share their values
        if attn.ndim in (3, 4) and len(keys) == len(queries) == 1:
            last = "".join(letter for letter in over if letter not in (*keys, *queries)) + queries[0] + keys[0]
            arranged = rearrange(attn, f"{' '.join(over)} -> {' '.join(last)}")
            if arranged.shape[-2:] == followed.known[attn].shape:
                followed.mark_used(attn)
                edited = mode.edited_product(arranged, _like(arranged, values, last, of))
                factors[i] = rearrange(edited, f"{' '.join(last)} -> {' '.join(over)}")
                return func(equation, *factors)
    product = func(equation, *factors)
    if len(factors) == 2 and "." not in equation and product.ndim > 2:
        for factor, of, others in zip(factors, letters, reversed(letters), strict=True):
            if factor in followed.without_images and of[0] not in others and of[1] in others and of[1] not in out:
                mode.unseen.append(followed.without_images[factor])  # (N, M) times the tokens of all images
    followed.follow(product, factors)
    return product


def _without_ellipsis(equation: str, factors: list[Tensor]) -> str:
    """Write letters in place of the ellipses of an equation, if each stands for as many axes.

    >>> _without_ellipsis("...ij,...jd->...id", [torch.zeros(2, 3, 4, 4), torch.zeros(2, 3, 4, 5)])
    'ABij,ABjd->ABid'
    """
    inputs, arrow, _ = equation.partition("->")
    counts = {factor.ndim - len(of) + 3 for of, factor in zip(inputs.split(","), factors, strict=False) if "..." in of}
    if len(counts) != 1 or not arrow:
        return equation
    names = [letter for letter in string.ascii_uppercase if letter not in equation][: counts.pop()]
    return equation.replace("...", "".join(names))


def _like(attn: Tensor, values: Tensor, over: str, of: str) -> Tensor:
    """Arrange values, whose axes ``of`` names, as (..., M, d). Repeat them for axes that only the attention has."""
    channels = "".join(letter for letter in of if letter not in over)
    sizes = {letter: size for letter, size in zip(over[:-2], attn.shape, strict=False) if letter not in of}
    return repeat(values, f"{' '.join(of)} -> {' '.join(over[:-2])} {over[-1]} ({' '.join(channels)})", **sizes)


def part(mode: "InterceptAttention", func: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Take parts of a tensor. Weights without a key, such as that of a sink, are still weights, but not one key alone.

    One key alone is the gate of a router, which multiplies tokens.
    """
    taken, weights = func(input, *args, **kwargs), mode.followed.known.get(input)
    for each in tensors([taken]) if weights is not None else ():
        if each.shape[-1:] == (1,) and input.shape[-1] > 1:
            continue
        if input.shape[-2:] == weights.shape and each.shape[:-1] == input.shape[:-1]:
            mode.followed.known[each] = Weights(tuple(each.shape[-2:]), weights.softmaxes)
        else:
            mode.followed.follow(each, (input,))
    return taken


def joined(mode: "InterceptAttention", func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Join tensors. Weights of some queries after those of others are still weights."""
    whole = func(*args, **kwargs)
    given = dict(zip(("tensors", "dim"), args, strict=False)) | kwargs
    parts = list(tensors([given["tensors"]]))
    known = [mode.followed.known.get(part) for part in parts]
    are_rows = given.get("dim", given.get("axis", 0)) in (-2, whole.ndim - 2) and all(known)
    if are_rows and all(part.shape[-2:] == weights.shape for part, weights in zip(parts, known, strict=True)):
        softmaxes = frozenset().union(*(weights.softmaxes for weights in known))
        mode.followed.known[whole] = Weights(tuple(whole.shape[-2:]), softmaxes)
    else:
        mode.followed.follow(whole, parts)
    return whole


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.softmax: softmax,
    torch.softmax: softmax,
    Tensor.softmax: softmax,
    torch.special.softmax: softmax,
    F.softmin: softmax,
    torch.matmul: matrix_product,
    torch.linalg.matmul: matrix_product,
    Tensor.matmul: matrix_product,
    Tensor.__matmul__: matrix_product,
    torch.bmm: matrix_product,
    Tensor.bmm: matrix_product,
    torch.baddbmm: added_product,
    Tensor.baddbmm: added_product,
    torch.einsum: einsum,
    **dict.fromkeys((Tensor.__getitem__, torch.narrow, Tensor.narrow, torch.split, Tensor.split), part),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), joined),
    **dict.fromkeys((torch.chunk, Tensor.chunk, torch.tensor_split, Tensor.tensor_split), part),
}
MATRIX_PRODUCTS = [func for func, explicit in FUNCTIONS.items() if explicit in (matrix_product, added_product, einsum)]
