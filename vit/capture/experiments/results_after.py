"""Sees or changes what functions return after an attention."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class ResultsAfter(TorchFunctionMode):
    """Numbers the results with three or more axes of functions after an attention call, and passes them to ``change``.

    It is entered after the interception, so that it sees what the model calls and not what the interception does.
    """

    def __init__(self, call: int, change: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.call, self.change, self.number = call, change, -1

    def reached(self, call: int) -> None:
        """Count from 0 once the attention call is reached."""
        if call == self.call:
            self.number = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and pass its result to ``change``."""
        result = func(*args, **(kwargs or {}))
        if self.number < 0 or not isinstance(result, Tensor) or result.ndim < 3 or not result.is_floating_point():
            return result
        self.number += 1
        return self.change(self.number, result)
