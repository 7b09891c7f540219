"""Passes copies of an image in which no token attends to the other half, and looks where their tokens are mixed.

Letters in the einops patterns: k copies of an image, r the rest of their axis, h heads, n tokens, m keys, d channels of
a head or a token, c all other axes, y x rows and columns of patches.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.experiments.halves import drawn_half
from vit.capture.experiments.moved import changes, rounding
from vit.capture.experiments.moved_rows import moved_rows
from vit.capture.experiments.token_layouts import LAYOUTS, SEQUENCE, by_token, is_flattened_map, other_layout
from vit.capture.interception.followed import tensors
from vit.capture.interception.head_order import heads_first_calls
from vit.capture.interception.intercept import InterceptAttention
from vit.capture.interception.products import MATRIX_PRODUCTS
from vit.capture.parts.logits import result_of
from vit.capture.remedy import CHOOSE_OTHERS

LEAST, SPREAD, TURN = 0.7, 0.6, 0.618  # of the weights of tokens to themselves, which differ between neighbours
NEXT = 0.2  # weight of the next token of the same half
STEP = 0.5  # added to weights of the identity if tokens are changed within an attention
COARSER = 4  # times the rounding of a value, for sums of several
CHANNELS_LAST = (F.linear, F.layer_norm)


@dataclass(frozen=True)
class MixingPlace:
    """The first result in which a token depends on both halves."""

    path: str  # of the innermost module that made it
    number: int  # among all results
    is_linear: bool  # whether the effects of both halves add up


class MixedError(Exception):
    """Ends the experiment: a token depends on both halves."""

    def __init__(self, place: MixingPlace, call: int | None) -> None:
        super().__init__()
        self.place, self.call = place, call  # the call that the tokens enter, or None after the last
        self.is_embedding = False


class IdentityPass(TorchFunctionMode):
    """One pass of copies of an image, in which each token attends to itself and a little to the next of its half.

    Its own weight is not quite one, and another for each token. If a module mixes the differences of attention and
    values, they would be zero at a weight of one.

    Args:
        model: A ViT in eval mode.
        copies: The image, ``num_copies`` times, (K, C, H, W).
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number of tokens of an image.
        start: How many results of functions pass before one may be changed as tokens.
        looks_at_all: Whether to look at the results between the layers too, which takes time.
        reached: Called with the number of each attention call.
        half: Which tokens are in one half, (N,); None takes a random half.
        is_read_out: Whether only tokens after the last layer are changed.
        any_layout: Whether tokens before the first layer may be changed as maps, (K, D, rows, columns) or
            (K, rows, columns, D), or with the tokens first, (N, K, D), too.
        aside: Numbers of results that are not looked at, as they do not reach the logits.
        spoiled: Number of a result that is replaced by another one; None replaces none.

    Attributes:
        is_entered: Whether tokens were changed before the first layer.
        logits: What the model returned in the last run, (K, classes).
    """

    def __init__(
        self,
        model: nn.Module,
        copies: Tensor,
        calls: Sequence[int],
        num_tokens: int,
        start: int,
        looks_at_all: bool = False,
        reached: Callable[[int], None] = lambda _: None,
        half: Tensor | None = None,
        is_read_out: bool = False,
        any_layout: bool = False,
        aside: Collection[int] = (),
        spoiled: int | None = None,
    ) -> None:
        super().__init__()
        self.aside, self.spoiled, self.logits = aside, spoiled, torch.empty(0)
        self.is_read_out, self.any_layout, self.is_entered = is_read_out, any_layout, False
        # Of sequences of tokens, of which some may be cut off or joined after the last layer.
        self.lengths, self.widths = {num_tokens}, set[int]()
        self.looks_at_all, self.copies, self.reached = looks_at_all, copies, reached
        heads_first = heads_first_calls(model, copies)
        self.model, self.calls, self.num_tokens, self.start = model, calls, num_tokens, start
        self.generator = torch.Generator().manual_seed(0)
        self.half = drawn_half(num_tokens) if half is None else half
        self.active = [""]  # paths of the modules that run, innermost last
        self.num_results = 0
        self.is_changed = False
        self.layer = -1  # the last that was entered
        self.moving: tuple[Tensor, ...] = ()  # which of its values move with each half
        self.first: MixingPlace | None = None  # where tokens were mixed first since then
        self.is_pooled = False  # an attention of fewer queries has made the last tokens
        self.heads_first = bool(heads_first)
        self.intercepted = InterceptAttention(model, self.identity, len(copies), heads_first)

    def run(self, around: AbstractContextManager[Any] | None = None) -> MixingPlace | None:
        """Pass the copies, and return where tokens are mixed first after the last layer, if they are."""
        with (
            _paths(self.model, self.active, self.look),
            self.intercepted,
            self,
            unmoved(self.model),
            around or nullcontext(),
        ):
            self.logits = result_of(self.model(self.copies))
        if self.first is None or not self.is_behind_layers:
            return None
        if not self.first.is_linear:
            raise MixedError(self.first, None)
        return self.first

    @property
    def is_behind_layers(self) -> bool:
        """Whether the last layer was entered."""
        return self.layer == len(self.calls) - 1

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and change the first tokens that it returns, or look at its result."""
        result = func(*args, **(kwargs or {}))
        self.num_results += 1
        if self.num_results == self.spoiled:
            result = _spoiled(result)
        if self.is_behind_layers:
            self.note_lengths(result)
        if not self.is_changed and self.num_results > self.start and (layout := self.entry(func, args, result)):
            self.is_changed, self.is_entered = True, self.layer < 0
            return self.changed(result, layout)
        self.look(result, func, args)
        return result

    def entry(self, func: Callable[..., Any], args: tuple[Any, ...], result: Any) -> str | None:
        """Return the layout of a result that is new tokens; None of others."""
        if not isinstance(result, Tensor) or not result.is_floating_point() or any(each is result for each in args):
            return None
        if result.ndim == 3 and result.shape[0] == len(self.copies) and result.shape[1] in self.lengths:
            is_map = self.layer < 0 and bool(args) and is_flattened_map(args[0], result)
            is_clear = result.shape[1] != result.shape[2] or func in CHANNELS_LAST
            return SEQUENCE if is_clear and not is_map else None
        return other_layout(result, len(self.copies), self.lengths) if self.any_layout and self.layer < 0 else None

    def note_lengths(self, result: Any) -> None:
        """Note the number of tokens of a result (K, n, D), as wide as tokens and fewer: some were cut off or joined."""
        for made in tensors([result]):
            if made.ndim != 3 or made.shape[0] != len(self.copies) or not made.is_floating_point():
                continue
            _, count, channels = made.shape
            if count in self.lengths:
                self.widths.add(channels)
            elif 1 < count < self.num_tokens and channels in self.widths and count not in self.widths:
                self.lengths.add(count)

    def in_sequence(self, result: Tensor) -> Tensor:
        """Return a map of patches (K, D, rows, columns), as a convolution makes it, as tokens; all else unchanged."""
        if self.any_layout and self.layer < 0 and (layout := other_layout(result, len(self.copies), self.lengths)):
            return rearrange(result, f"{layout} -> {LAYOUTS[layout]}")
        if result.ndim != 4 or result.shape[0] != len(self.copies):
            return result
        is_map = result.shape[1] in self.widths and result.shape[2] * result.shape[3] in self.lengths
        return rearrange(result, "k d y x -> k (y x) d") if is_map else result

    def changed(self, result: Tensor, layout: str) -> Tensor:
        """Add noise to the tokens of one half, the other half and both, in a result of this layout."""
        tokens = rearrange(result, f"{layout} -> {LAYOUTS[layout]}")
        noise = torch.randn(tokens.shape[1:], generator=self.generator).to(tokens) * tokens.std()
        changed = tokens + self.halves(tokens, tokens.shape[1])[..., None] * noise
        rows = {"y": result.shape[layout.split().index("y")]} if "y" in layout else {}
        return rearrange(changed, f"{LAYOUTS[layout]} -> {layout}", **rows)

    def halves(self, like: Tensor, count: int) -> Tensor:
        """Return which of the last ``count`` tokens of each copy are changed, (K, N) of zeros and ones."""
        half = self.half[-count:]
        nothing = torch.zeros_like(half)
        unchanged = [nothing] * (len(self.copies) - 4)
        return torch.stack([nothing, half, ~half, ~nothing, *unchanged]).to(like)

    def identity(self, call: int, attn: Tensor) -> Tensor:
        """Return weights of tokens to those of their half alone, after a look at the tokens that enter an attention."""
        self.reached(call)
        if call in self.calls:
            self.intercepted.check_all_images(call, attn)
        is_lost = call in self.calls and not self.is_pooled and not self.enter(call, attn) and not self.is_read_out
        if attn.shape[-2] != attn.shape[-1]:
            self.is_pooled |= call in self.calls
            # Query n sees token n alone, so that the tokens that pool the others depend on one half at most.
            return torch.eye(*attn.shape[-2:]).to(attn).expand(attn.shape) if call in self.calls else attn
        identity = self.within_halves(attn.shape[-1], call in self.calls).to(attn)
        if is_lost and attn.shape[-1] == self.num_tokens:  # nothing was changed yet, or the next layer does not get it
            identity = identity * (1 + STEP * rearrange(self.halves(attn, self.num_tokens), "k m -> k 1 1 m"))
        return identity.expand(attn.shape)

    def within_halves(self, count: int, is_layer: bool) -> Tensor:
        """Return weights of each token to itself and, less, to the next one that moves with the same half, (N, N).

        A module that takes the own value away from what attention returns, as exclusive attention does, would leave
        nothing of a token that attends to itself alone.
        """
        weights = own_weights(count).diag()
        for moving in self.moving if is_layer else ():
            places = moving.nonzero()[:, 0].cpu()
            weights[places, places.roll(-1)] += NEXT
        return weights

    def enter(self, call: int, attn: Tensor) -> bool:
        """Check the values of a layer. Return whether either half of the tokens changes any of them."""
        values = self.intercepted.values
        one, other = reduce(changes(values)[:2], "k h m d -> k m", "max") > rounding(values)
        if (one & other).any():
            mixed = MixedError(self.first or MixingPlace(self.active[-1], self.num_results, is_linear=False), call)
            mixed.is_embedding = self.layer < 0 and mixed.place.is_linear
            raise mixed
        self.check_rows(call, attn, one, other)
        self.moving = one, other
        self.layer, self.first = self.layer + 1, None
        return bool((one | other).any())

    def check_rows(self, call: int, attn: Tensor, one: Tensor, other: Tensor) -> None:
        """Check that each query moves with the same half as its value: which values move with each half, (M,) twice.

        If a model multiplies queries by keys itself, its weights are looked at in place of the queries.
        """
        if attn.shape[-2] != len(one):
            return
        queries = self.intercepted.queries
        if queries is None:
            of_one, of_other = (moved_rows(attn, which, ~half) for which, half in enumerate((one, other), start=1))
            if (of_one & of_other).any() or (of_one.sum(), of_other.sum()) != (one.sum(), other.sum()):
                return  # a row may move by all keys, or hardly by its query
        else:
            of_one, of_other = reduce(changes(queries)[:2], "k h m d -> k m", "max") > rounding(queries)
        if (one & of_other & ~of_one).any() or (other & of_one & ~of_other).any():
            raise ValueError(
                f"the tokens of {type(self.model).__name__} are mixed, exchanged or cut off between its attentions in "
                f"a way that cannot be undone (the keys of attention {call} stand in another order than its queries): "
                f"{CHOOSE_OTHERS}"
            )

    def look(self, result: Any, func: Callable[..., Any] | None = None, args: tuple[Any, ...] = ()) -> None:
        """Record the first result since the last layer in which a token depends on both halves.

        A product with weights of each head for all pairs of tokens is attention, even if these are learned and it is
        linear. So is the sum of a product (K, H, N, M, d).
        """
        is_between = 0 <= self.layer < len(self.calls) - 1 and not self.looks_at_all
        is_aside = self.num_results in self.aside
        tokens = None if self.first or is_between or is_aside else self.tokens_of(result)
        if tokens is None:
            return
        allowed = rounding(tokens)
        one, other = reduce(changes(tokens)[:2], "k n c -> k n", "max") > allowed
        if not (one & other).any():
            return
        plain, first, second, both = tokens[:4, one & other]
        is_linear = not ((both - first - second + plain).abs() > COARSER * allowed).any()
        is_linear = is_linear and not self.is_attention(func, args)
        if not (_is_scaled(plain, first, allowed) | _is_scaled(plain, second, allowed)).all():
            self.first = MixingPlace(self.active[-1], self.num_results, is_linear)

    def tokens_of(self, result: Any) -> Tensor | None:
        """Return a result by token, (K, N, everything else), or None if it has no tokens.

        A token that has pooled the others, (K, 1, D) or (K, D), is one token.
        """
        if not isinstance(result, Tensor) or not any(True for _ in tensors([result])):  # also if it is nested
            return None
        if not result.is_floating_point() or not result.numel() or not result.ndim:
            return None
        if not self.is_pooled:
            return by_token(self.in_sequence(result), len(self.copies), self.lengths, self.heads_first)
        copies, *others = result.shape
        of_all = self.lengths | {length + 1 for length in self.lengths}  # keys of class attention have one more
        is_of_pooled = copies == len(self.copies) and not of_all & {*others, prod(others[1:])}
        return rearrange(result, "k ... -> k 1 (...)") if is_of_pooled else None

    def is_attention(self, func: Callable[..., Any] | None, args: tuple[Any, ...]) -> bool:
        """Return whether a function multiplies tokens by weights of each head, or sums such products."""
        if func in MATRIX_PRODUCTS:
            return any(map(self.are_weights, tensors(args)))
        pairs = (sum(size in self.lengths for size in summed.shape) > 1 for summed in tensors(args) if summed.ndim > 4)
        return func in (torch.sum, Tensor.sum) and any(pairs)

    def are_weights(self, factor: Tensor) -> bool:
        """Return whether a tensor is of heads and two axes of tokens, (..., H, N, N), and the same for all copies."""
        if factor.ndim < 3 or factor.shape[-1] != factor.shape[-2] or factor.shape[-1] not in self.lengths:
            return False
        # Channels of tokens (K, N, D) may be as many as tokens. The first and the last copy are of one image.
        is_of_copies = len(factor) == len(self.copies) and torch.allclose(factor[0], factor[-1])
        return not is_of_copies or torch.allclose(factor[0], factor[1])


def own_weights(count: int) -> Tensor:
    """Return weights near one, (N,), which differ between tokens and most between neighbours."""
    return LEAST + SPREAD * (TURN * torch.arange(count)).frac()


def _spoiled(result: Any) -> Any:
    """Return something else than what a function returned, also of a tuple of tensors, as of a recurrent layer."""
    if isinstance(result, tuple):
        return tuple(_spoiled(each) if isinstance(each, Tensor) else each for each in result)
    return 1 - 2 * result


@contextmanager
def unmoved(model: nn.Module) -> Iterator[None]:
    """Within the context, modules with ``moves_to_register`` leave the numbers of patches in place."""
    moving = [module for module in model.modules() if getattr(module, "moves_to_register", False)]
    for module in moving:
        module.moves_to_register = False
    try:
        yield
    finally:
        for module in moving:
            module.moves_to_register = True


@contextmanager
def _paths(model: nn.Module, active: list[str], look: Callable[[Any], None]) -> Iterator[None]:
    """Within the context, keep the paths of the running modules, and look at what each returns."""

    def leave(_: nn.Module, args: Any, output: Any) -> None:
        with torch._C.DisableTorchFunction():  # the look is no result of the model, and is not counted as one
            look(output[0] if isinstance(output, tuple) and output else output)
        active.pop()

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, path=path: active.append(path)))
            hooks.enter_context(module.register_forward_hook(leave))
        yield


def _is_scaled(plain: Tensor, moved: Tensor, allowed: float) -> Tensor:
    """Return which tokens were only multiplied by a number, as by a weight in a mean: (n, c) twice -> (n,)."""
    factor = (plain * moved).sum(dim=-1, keepdim=True) / plain.square().sum(dim=-1, keepdim=True)
    return ((moved - factor * plain).abs() <= COARSER * allowed).all(dim=-1)
