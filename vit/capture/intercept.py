"""Intercepts attention weights where they multiply the values, in any running model.

Fused kernels do not return their weights, and every library calls them in its own way. But all libraries go through a
few functions of torch, which a ``TorchFunctionMode`` can replace. Here the explicit formula replaces them, so that the
weights are in the autograd graph. If a model computes weights by its own softmax, they are followed to the matrix
product with the values. Steps in between, such as mixing of heads, a second softmax or rescaling, are then part of the
weights (CaiT, DeepViT, ConViT). Our own mechanisms may work in tiles and chunks, which are not the attention of whole
images, so their ``weights`` method is called instead. The model is unchanged afterwards.

Letters in the einops patterns: b batch, n tokens, h heads, d channels per head, s the three of queries, keys, values.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from vit.attention.mechanisms.base import Mechanism
from vit.capture.eager import as_written
from vit.capture.fused import multi_head, scaled_dot_product
from vit.capture.remedy import CHOOSE_OTHERS

Edit = Callable[[int, Tensor], Tensor]

# timm and transformers turn on checkpointing by these attributes, in eval mode too. It is turned off here, because the
# recomputation in the backward pass would not be intercepted.
CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")

# Models with values of half precision in their last interception, as within an autocast of their own.
HALF: WeakSet[nn.Module] = WeakSet()


ONE_AT_A_TIME = threading.RLock()  # what an interception replaces belongs to the process


class Weights(NamedTuple):
    """What is known of a tensor that was computed from softmaxes."""

    shape: tuple[int, int]  # numbers of queries and keys
    softmaxes: frozenset[int]  # numbers of the softmaxes, counted in the order of their calls


class InterceptAttention(TorchFunctionMode):
    """A context that computes attention explicitly, so that ``edit`` can read or replace its weights.

    >>> def uniform(layer, attn):
    ...     return torch.full_like(attn, 1 / attn.shape[-1])
    >>> from vit import VisionTransformer
    >>> model = VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> with InterceptAttention(model, uniform):
    ...     logits = model(torch.randn(5, 3, 32, 32))  # every token gets the mean of the values

    Args:
        model: The model that runs within the context.
        edit: Called as ``edit(layer, attn)`` for each attention (B, H, N, M). Layers are counted from 0 in the order
            of their calls. The weights that ``edit`` returns multiply the values.
        num_images: Number B of images in a batch, which splits attention with three axes (B * H, N, M) into heads.
            If None, such attention is not intercepted.
        heads_first: Numbers of the calls whose three axes are (H * B, N, M), as ``heads_first_calls`` finds them.

    Attributes:
        values: The values (B, H, M, d) that belong to the weights last given to ``edit``.
        queries: Their queries (B, H, N, d), or None if the model computes its weights itself.
        unseen: Shapes of the queries or weights of attention that was not intercepted.
    """

    def __init__(
        self,
        model: nn.Module,
        edit: Edit,
        num_images: int | None = None,
        heads_first: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.heads_first = heads_first
        self.model = model
        self.edit = edit
        self.num_images = num_images
        self.num_calls = 0
        self.values: Tensor | None = None
        self.queries: Tensor | None = None
        self.unseen: list[tuple[int, ...]] = []
        self.weights = WeakTensorKeyDictionary()  # tensor computed from softmaxes -> its Weights
        self.unused: dict[int, tuple[int, ...]] = {}  # softmax -> its shape, until it multiplies values
        self.num_softmaxes = 0
        self.replaced: list[tuple[nn.Module, str, Any]] = []
        self.paused = False
        self.around = ExitStack()

    def __enter__(self) -> "InterceptAttention":
        """Replace the forward methods of our mechanisms and the functions of torch, and turn off checkpointing.

        Other threads that intercept wait, since what is replaced belongs to the process. Give each thread its own copy
        of the model: what another thread runs on this one is intercepted, too.
        """
        HALF.discard(self.model)
        with ExitStack() as around:
            around.enter_context(ONE_AT_A_TIME)
            around.callback(self._restore)
            for module in self.model.modules():
                if isinstance(module, Mechanism):
                    self._replace(module, "forward", partial(self._explicit_forward, module))
                for name in CHECKPOINTING:
                    if vars(module).get(name) is True:
                        self._replace(module, name, False)
            around.enter_context(as_written())
            self.around = around.pop_all()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Restore everything that was replaced."""
        with self.around:
            super().__exit__(*error)

    def _restore(self) -> None:
        for module, name, value in self.replaced:
            delattr(module, name)
            if value is not None:  # for example the forward set by an outer interception
                setattr(module, name, value)

    def _replace(self, module: nn.Module, name: str, value: Any) -> None:
        self.replaced.append((module, name, vars(module).get(name)))
        setattr(module, name, value)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute attention explicitly. Call every other function unchanged, and follow weights through it."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        explicit = EXPLICIT.get(func)
        if explicit is not None:
            return explicit(self, func, *args, **kwargs)
        result = func(*args, **kwargs)
        if len(self.weights):
            self.follow(result, (*args, *kwargs.values()))
        return result

    def _explicit_forward(self, mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, **around: Any) -> Tensor:
        self.paused = True  # a softmax inside must not count as another layer
        weights = mechanism.weights(q, k, **{name: around[name] for name in mechanism.weights_take})
        self.paused = False
        return mechanism.mix(self.edited(weights, v, q).to(v.dtype), v, **around)

    def edited(self, attn: Tensor, values: Tensor, queries: Tensor | None = None) -> Tensor:
        """Return the weights that replace ``attn``: (B, H, N, M), values (B, H, M, d) -> (B, H, N, M).

        Weights (1, H, N, M) or (H, N, M) are those of all images.
        """
        self._check_batched(values)
        if attn.ndim == 3 or len(attn) < len(values):
            attn = attn.expand(len(values), *attn.shape[-3:])
        if torch.finfo(values.dtype).bits < 32:
            HALF.add(self.model)
        # Gradients with respect to attention are needed even if the model is frozen.
        if torch.is_grad_enabled() and not attn.requires_grad:
            attn.requires_grad_()
        self.values, self.queries = values, queries
        self.num_calls += 1
        return self.edit(self.num_calls - 1, attn)

    def edited_product(self, attn: Tensor, values: Tensor) -> Tensor:
        """Return the weights that replace ``attn``: of shape (B, H, N, M) or (B * H, N, M), or (H, N, M) for all."""
        if values.ndim == 4:
            return self.edited(attn, values)
        if not self.splits(attn):
            return attn
        axes = self.axes
        return rearrange(self.edited(self.split(attn), self.split(values)), f"b h n m -> {axes} n m")

    def mark(self, probabilities: Tensor, before: Weights | None) -> None:
        """Start to follow the result of a softmax over keys. ``before`` is what is known of its input."""
        queries, keys = probabilities.shape[-2:]
        softmaxes = before.softmaxes if before else frozenset()
        self.weights[probabilities] = Weights((queries, keys), softmaxes | {self.num_softmaxes})
        if probabilities.ndim == 4:
            self.unused[self.num_softmaxes] = tuple(probabilities.shape)
        self.num_softmaxes += 1

    def mark_other_axis(self, probabilities: Tensor, keys: int) -> None:
        """Start to follow the result of a softmax over an axis other than the last, if one more axis is as long."""
        size = probabilities.shape[keys]
        if probabilities.ndim in (3, 4) and size > 1 and probabilities.shape.count(size) == 2:
            self.weights[probabilities] = Weights((size, size), frozenset())

    def splits(self, tensor: Tensor) -> bool:
        """Return whether the first axis of (B * H, ...) splits into images. If not, add the shape to ``unseen``."""
        self._check_batched(tensor)
        if self.num_images and len(tensor) % self.num_images == 0:
            return True
        self.unseen.append(tuple(tensor.shape))
        return False

    def check_all_images(self, call: int, attn: Tensor) -> None:
        """Raise a ValueError if an attention is not of all images that were passed."""
        if len(attn) != self.num_images:
            raise ValueError(
                f"attention {call} of {type(self.model).__name__} sees {len(attn)} of {self.num_images} copies of an "
                "image that were passed together: the model passes images in parts, or skips a layer for some, so "
                f"attention number n is not the same layer for all: {CHOOSE_OTHERS}"
            )

    def _check_batched(self, tensor: Tensor) -> None:
        """Raise a ValueError within ``torch.vmap``, which hides the axis of images."""
        if torch._C._functorch.is_batchedtensor(tensor):  # torch has no public function that tells
            raise ValueError(
                f"{type(self.model).__name__} runs its attention within torch.vmap, which hides the images of a batch: "
                "give the model that it maps, written for a batch"
            )

    @property
    def axes(self) -> str:
        """The first of the three axes that the next attention has."""
        return "(h b)" if self.num_calls in self.heads_first else "(b h)"

    def split(self, tensor: Tensor) -> Tensor:
        """Split the first axis into images and heads: (B * H, N, M) -> (B, H, N, M)."""
        return rearrange(tensor, f"{self.axes} n m -> b h n m", b=self.num_images)

    def mixes(self, attn: Tensor, values: Tensor) -> bool:
        """Return whether two tensors are weights and the values that they multiply."""
        weights = self.weights.get(attn)
        are_paired = attn.ndim == values.ndim < 5 or (attn.ndim, values.ndim) == (3, 4)
        return weights is not None and attn.shape[-2:] == weights.shape and are_paired

    def use(self, softmaxes: frozenset[int]) -> None:
        """Record that these softmaxes have multiplied values."""
        for softmax in softmaxes:
            self.unused.pop(softmax, None)

    def follow(self, result: Any, arguments: Iterable[Any]) -> None:
        """Follow weights to the results computed from them, if these still have an axis of queries and one of keys."""
        sources = [self.weights[x] for x in _tensors(arguments) if x in self.weights]
        for made in _tensors([result]) if sources else ():
            held = [source for source in sources if not Counter(source.shape) - Counter(made.shape)]
            if held and made.ndim >= 3:
                softmaxes = frozenset().union(*(source.softmaxes for source in held))
                self.weights[made] = Weights(held[0].shape, softmaxes)


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _tensors(argument)


def _softmax(
    mode: InterceptAttention,
    func: Callable[..., Tensor],
    input: Tensor,
    dim: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    probabilities = func(input, dim, *args, **kwargs)
    if dim is not None and dim % input.ndim < input.ndim - 1:
        mode.mark_other_axis(probabilities, dim)
        return probabilities
    over_keys = dim in (-1, input.ndim - 1) and input.is_floating_point() and input.shape[-1] > 1
    if input.ndim in (3, 4) and over_keys:
        mode.mark(probabilities, mode.weights.get(input))
    elif input.ndim > 4 and over_keys:
        mode.unseen.append(tuple(input.shape))
    return probabilities


def _matrix_product(
    mode: InterceptAttention, func: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    other, *rest = _tensors((*args, *kwargs.values()))
    if mode.mixes(input, other):
        mode.use(mode.weights[input].softmaxes)
        return func(mode.edited_product(input, other), *args, **kwargs)
    if input not in mode.weights and mode.mixes(other, input):  # values before weights, both transposed
        mode.use(mode.weights[other].softmaxes)
        return func(input, mode.edited_product(other.mT, input.mT).mT)
    product = func(input, *args, **kwargs)
    mode.follow(product, (input, other, *rest))
    return product


def _part(mode: InterceptAttention, func: Callable[..., Tensor], input: Tensor, index: Any) -> Tensor:
    part, weights = func(input, index), mode.weights.get(input)
    if weights is not None and input.shape[-2:] == weights.shape and part.shape[:-1] == input.shape[:-1]:
        mode.weights[part] = Weights(tuple(part.shape[-2:]), weights.softmaxes)  # without a key that takes no part
    else:
        mode.follow(part, (input,))
    return part


def _added_product(
    mode: InterceptAttention, func: Callable[..., Tensor], input: Tensor, batch1: Tensor, batch2: Tensor, **kwargs: Any
) -> Tensor:
    if mode.mixes(batch1, batch2):
        mode.use(mode.weights[batch1].softmaxes)
        batch1 = mode.edited_product(batch1, batch2)
    return func(input, batch1, batch2, **kwargs)


def _einsum(mode: InterceptAttention, func: Callable[..., Tensor], equation: str, *operands: Any) -> Tensor:
    factors = list(_tensors(operands))
    marked = [i for i, factor in enumerate(factors) if factor in mode.weights]
    letters = equation.replace(" ", "").split("->")[0].split(",")
    if len(marked) == 1 and len(factors) == 2 and "." not in equation:
        (i,) = marked
        weights, attn, values = mode.weights[factors[i]], factors[i], factors[1 - i]
        over, of, out = letters[i], letters[1 - i], equation.replace(" ", "").split("->")[-1]
        keys = [letter for letter in over if letter in of and letter not in out]
        queries = [letter for letter in over if letter not in of and letter in out]
        if attn.ndim in (3, 4) and len(keys) == len(queries) == 1:
            last = "".join(letter for letter in over if letter not in (*keys, *queries)) + queries[0] + keys[0]
            arranged = rearrange(attn, f"{' '.join(over)} -> {' '.join(last)}")
            if arranged.shape[-2:] == weights.shape:
                mode.use(weights.softmaxes)
                edited = mode.edited_product(arranged, _like(arranged, values, last, of))
                factors[i] = rearrange(edited, f"{' '.join(last)} -> {' '.join(over)}")
                return func(equation, *factors)
    product = func(equation, *factors)
    mode.follow(product, factors)
    return product


def _like(attn: Tensor, values: Tensor, over: str, of: str) -> Tensor:
    """Arrange values, whose axes ``of`` names, as (..., M, d). Repeat them for axes that only the attention has."""
    channels = "".join(letter for letter in of if letter not in over)
    sizes = {letter: size for letter, size in zip(over[:-2], attn.shape, strict=False) if letter not in of}
    return repeat(values, f"{' '.join(of)} -> {' '.join(over[:-2])} {over[-1]} ({' '.join(channels)})", **sizes)


EXPLICIT: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: scaled_dot_product,
    F.multi_head_attention_forward: multi_head,
    F.softmax: _softmax,
    torch.softmax: _softmax,
    Tensor.softmax: _softmax,
    torch.special.softmax: _softmax,
    F.softmin: _softmax,
    torch.matmul: _matrix_product,
    Tensor.matmul: _matrix_product,
    Tensor.__matmul__: _matrix_product,
    torch.bmm: _matrix_product,
    Tensor.bmm: _matrix_product,
    Tensor.__getitem__: _part,
    torch.baddbmm: _added_product,
    Tensor.baddbmm: _added_product,
    torch.einsum: _einsum,
}
