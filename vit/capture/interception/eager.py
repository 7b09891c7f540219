"""Runs functions as they were written, so that what they call can be seen."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint

# Names of the generator around the function of a checkpoint, in different versions of torch.
GENERATORS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
ONE_AT_A_TIME = threading.RLock()


class _Plain:
    """Takes the place of the autograd function of a reentrant checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)


def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


@contextmanager
def as_written() -> Iterator[None]:
    """Within the context, compiled functions run uncompiled, and ``checkpoint`` only calls its function.

    Other threads wait, since what is replaced belongs to the process.
    """
    module = torch.utils.checkpoint
    with ONE_AT_A_TIME, ExitStack() as stack:
        # A checkpoint computes again in the backward pass, after the interception. Torch has no public switch.
        stack.enter_context(patch.object(module, "CheckpointFunction", _Plain))
        for name in (name for name in GENERATORS if hasattr(module, name)):
            stack.enter_context(patch.object(module, name, _nothing))
        if "torch._dynamo" in sys.modules:  # else nothing is compiled; loading it takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
