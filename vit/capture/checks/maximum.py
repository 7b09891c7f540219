"""Finds a maximum over tokens, by which each channel reads another token for each image.

One half of the tokens is changed, then the other, as in ``mixing.py``. A maximum over tokens makes numbers that depend
on both halves from numbers that depend on one each. A maximum over channels or over classes does not.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.capture.checks.mixing import change_halves
from vit.capture.experiments.halves import is_mixed, is_unmixed, num_copies
from vit.capture.interception.followed import tensors
from vit.capture.parts.last_tokens import by_image

MAXIMA = (
    *(torch.max, Tensor.max, torch.amax, Tensor.amax, torch.maximum, Tensor.maximum, torch.fmax, Tensor.fmax),
    *(torch.topk, Tensor.topk, torch.sort, Tensor.sort, torch.median, Tensor.median, torch.kthvalue, Tensor.kthvalue),
    *(torch.quantile, Tensor.quantile, F.max_pool1d, F.max_pool2d, torch.max_pool1d, torch.max_pool2d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, torch.cummax, Tensor.cummax, torch.aminmax, Tensor.aminmax),
    *(torch.gather, Tensor.gather, torch.take_along_dim, Tensor.take_along_dim, torch.where, Tensor.where),
)


def takes_maximum(model: nn.Module, image: Tensor, calls: Sequence[int], num_tokens: int, start: int) -> bool:
    """Return whether a model takes a maximum over tokens after its last layer.

    Args:
        model: A ViT in eval mode.
        image: One image as the model takes it, (1, C, H, W).
        calls: Numbers of the attention calls that are layers.
        num_tokens: Number of tokens of an image.
        start: What ``check_unmixed`` returned.
    """
    if num_tokens < 2:
        return False
    watch = _WatchMaximum(calls[-1], num_copies(num_tokens))
    change_halves(model, image, calls, num_tokens, start, watch, watch.reached)
    return watch.seen


class _WatchMaximum(TorchFunctionMode):
    """A context that sets ``seen`` to True at a maximum over tokens after an attention call."""

    def __init__(self, call: int, copies: int) -> None:
        super().__init__()
        self.call, self.copies, self.is_after, self.seen = call, copies, False, False

    def reached(self, call: int) -> None:
        """Look from this attention call on."""
        self.is_after = self.is_after or call == self.call

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and record whether it is a maximum over tokens."""
        result = func(*args, **(kwargs or {}))
        if self.is_after and func in MAXIMA:
            before = [by_image(x, self.copies) for x in _numbers((*args, *(kwargs or {}).values())) if x.ndim > 1]
            after = [by_image(x, self.copies) for x in _numbers([result])]
            if before and after and all(x is not None for x in (*before, *after)):
                is_by_token = is_unmixed(torch.cat([x.flatten(1) for x in before], dim=1))
                self.seen |= is_by_token and any(map(is_mixed, after))
        return result


def _numbers(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors of numbers, without those of indices."""
    return [x for x in tensors(values) if x.is_floating_point()]
