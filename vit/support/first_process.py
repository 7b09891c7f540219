"""What only the first of several processes does."""

from collections.abc import Callable

try:
    from lightning.pytorch.utilities import rank_zero_only
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise

    def rank_zero_only(function: Callable) -> Callable:
        """Return the function: without Lightning, there is one process."""
        return function


@rank_zero_only
def print_once(line: str) -> None:
    """Print a line, in the first process only."""
    print(line, flush=True)
