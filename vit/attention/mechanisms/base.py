"""What all mechanisms share: how they say what they take, and the refusal of what they cannot do."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

from einops import einsum
from torch import Tensor, nn


class Mechanism(nn.Module):
    """How queries, keys and values become an output.

    A subclass has a ``forward(q, k, v)`` that maps (B, H, N, d), (B, H, M, d), (B, H, M, e) to (B, H, N, e). What it
    can use besides, it names as keyword arguments of ``forward``, and gets:

    - ``mask``: which keys a query may see, as in ``scaled_dot_product_attention``;
    - ``causal``: whether a query sees only the keys up to its own position;
    - ``grid``: rows and columns of the patches that end the sequence, or None if it is no image; the tokens
      before them are the prefix (class token, registers);
    - ``tokens``: the tokens (B, N, D) that the queries were projected from.

    What ``forward`` does not name, ``MultiHeadAttention`` refuses. In the same way the constructor gets what it
    names of ``num_heads``, ``embed_dim``, ``head_dim`` and ``value_head_dim`` (channels per head of queries and
    keys, and of values), ``block_index`` (which encoder block it is in) and ``grid_size`` (rows and columns of
    patches the model is built for); all else it names are options of the user.
    """

    projected: ClassVar[bool] = True  # False: q, k and v are the heads of the tokens themselves
    independent_queries: ClassVar[bool] = False  # True: what a query gets depends on no other query, nor on the grid
    takes: ClassVar[frozenset[str]]
    weights_take: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.takes = frozenset(_parameters(cls.forward)) - {"q", "k", "v"}
        cls.weights_take = frozenset(_parameters(cls.weights)) - {"q", "k"}

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Attention of every query over every key: (B, H, N, d), (B, H, M, d) -> (B, H, N, M).

        Raises:
            ValueError: If the mechanism has no such matrix.
        """
        raise ValueError(
            f"{type(self).__name__} never forms the matrix of attention weights, which is what makes it fast: "
            "there is nothing to show; train with attention 'softmax' to see weights"
        )

    def mix(self, weights: Tensor, v: Tensor, **around: Any) -> Tensor:
        """What ``forward`` makes of the values by these weights: (B, H, N, M), (B, H, M, e) -> (B, H, N, e)."""
        return einsum(weights, v, "b h n m, b h m d -> b h n d")


OFFERED = ("num_heads", "embed_dim", "head_dim", "value_head_dim", "block_index", "grid_size")


def build(name: str, mechanisms: dict[str, type[Mechanism]], options: dict[str, Any], **offered: Any) -> Mechanism:
    """Make the mechanism of that name, from the user's options and what its constructor names of ``offered``.

    Raises:
        ValueError: If there is no mechanism of that name, or an option is unknown or not of its type.
    """
    if name not in mechanisms:
        raise ValueError(f"unknown attention {name!r}: choose one of {', '.join(mechanisms)}")
    wanted = _parameters(mechanisms[name].__init__)
    unknown = [option for option in options if option not in wanted]
    if unknown:
        known = ", ".join(options_of(mechanisms[name])) or "none"
        raise ValueError(f"attention {name!r} has no argument {unknown[0]!r}: it takes {known}")
    kinds = get_type_hints(mechanisms[name].__init__)
    for option, value in options.items():
        kind = kinds.get(option)
        if kind in (int, int | None) and not (type(value) is int or (value is None and kind is not int)):
            raise ValueError(f"{option} ({value!r}) of attention {name!r} must be a whole number")
    return mechanisms[name](**{key: value for key, value in offered.items() if key in wanted} | options)


def options_of(mechanism: type[Mechanism]) -> list[str]:
    """What a user can choose of a mechanism: the arguments of its constructor that its surroundings do not offer.

    >>> from vit.attention import MECHANISMS
    >>> options_of(MECHANISMS["sparse"])
    ['block', 'stride']
    """
    return [name for name in _parameters(mechanism.__init__) if name not in OFFERED]


def _parameters(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.name != "self"]
