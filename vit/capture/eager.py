"""Runs functions as they were written, so that what they call can be seen."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint


@contextmanager
def as_written() -> Iterator[None]:
    """Within the context, compiled functions run uncompiled, and ``checkpoint`` calls its function alone."""

    def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **_: Any) -> Any:
        return function(*args, **kwargs)

    with ExitStack() as stack:
        # A checkpoint computes again in the backward pass, after the interception. Torch has no public switch.
        stack.enter_context(patch.object(torch.utils.checkpoint, "_checkpoint_impl", call))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled; loading it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
