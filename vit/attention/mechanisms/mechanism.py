"""The base class of all mechanisms, and their construction by name.

Letters in the einops patterns: b batch, h heads, n queries, m keys, d channels per head.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

from einops import einsum
from torch import Tensor, nn

from vit.attention.mechanisms.initial_weights import draw_weights


class Mechanism(nn.Module):
    """A map from queries, keys and values to an output.

    A subclass has a ``forward(q, k, v)`` that maps (B, H, N, d), (B, H, M, d), (B, H, M, e) to (B, H, N, e). Its other
    inputs are the keyword arguments that ``forward`` names:

    - ``mask``: the mask of the keys, as in ``scaled_dot_product_attention``;
    - ``causal``: whether a query attends only to the keys up to its own position;
    - ``grid``: rows and columns of the patches that end the sequence, or None for other sequences than images; the
      tokens before the patches are the prefix (class token, registers);
    - ``tokens``: the tokens (B, N, D) from which the queries are projected.

    ``MultiHeadAttention`` refuses a mask or causal attention if ``forward`` does not name it. Likewise, the constructor
    gets those of the following arguments that it names: ``num_heads``, ``embed_dim``, ``head_dim`` and
    ``value_head_dim`` (channels per head of queries and keys, and of values), ``block_index`` (number of the encoder
    block) and ``grid_size`` (rows and columns of patches for ``image_size``). Its other arguments are the user's
    options.

    The model calls ``init_weights`` to draw the initial weights, and ``no_weight_decay`` for the names of the
    parameters without weight decay.
    """

    projected: ClassVar[bool] = True  # False: q, k and v are slices of the tokens themselves
    independent_queries: ClassVar[bool] = False  # True: the output of a query depends on no other query, nor the grid
    # Number of parts of a head that rotary positions turn separately. 0: the mechanism does not attend by the dot
    # products of queries and keys alone, so rotating them would not encode the distance of their tokens.
    rotated_parts: ClassVar[int] = 1
    has_state: ClassVar[bool] = False  # True: causal attention needs only a state of constant size (see advance)
    takes: ClassVar[frozenset[str]]
    weights_take: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.takes = frozenset(_parameters(cls.forward)) - {"q", "k", "v"}
        cls.weights_take = frozenset(_parameters(cls.weights)) - {"q", "k"}

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute the attention weights: (B, H, N, d), (B, H, M, d) -> (B, H, N, M).

        Raises:
            ValueError: If the mechanism never forms them.
        """
        raise ValueError(
            f"{type(self).__name__} never forms the matrix of attention weights, which is what makes it fast: "
            "there is nothing to show; train with attention 'softmax' to see weights"
        )

    def mix(self, weights: Tensor, v: Tensor, **inputs: Any) -> Tensor:
        """Compute the output of ``forward`` from given weights: (B, H, N, M), (B, H, M, e) -> (B, H, N, e)."""
        return einsum(weights, v, "b h n m, b h m d -> b h n d")

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute causal attention of new tokens from the state before them, and the state after them.

        ``state`` is None before the first token. New tokens give the same outputs all at once or one by one.

        Raises:
            ValueError: If the mechanism has no such state.
        """
        raise ValueError(
            f"{type(self).__name__} has no state of constant size, but looks at all earlier tokens again: keep them in "
            "a KeyValueCache"
        )

    def init_weights(self) -> None:
        """Draw the initial weights. A mechanism with parameters or buffers of its own draws them here as well."""
        draw_weights(self)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay: by default its own that are not matrices."""
        return {name for name, parameter in self.named_parameters(recurse=False) if parameter.ndim != 2}


def undecayed_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters of a model's mechanisms that have no weight decay."""
    mechanisms = ((name, module) for name, module in model.named_modules() if isinstance(module, Mechanism))
    return {f"{name}.{own}" for name, mechanism in mechanisms for own in mechanism.no_weight_decay()}


SIZES = ("num_heads", "embed_dim", "head_dim", "value_head_dim")  # of the projections: users cannot set them
OFFERED = (*SIZES, "block_index", "grid_size")


def build(name: str, mechanisms: dict[str, type[Mechanism]], options: dict[str, Any], **offered: Any) -> Mechanism:
    """Build a mechanism by name, from the user's options and those of the ``offered`` arguments that it names.

    Raises:
        ValueError: If the name or an option is unknown, or an option has the wrong type.
    """
    if name not in mechanisms:
        raise ValueError(f"unknown attention {name!r}: choose one of {', '.join(mechanisms)}")
    arguments = _parameters(mechanisms[name].__init__)
    unknown = [option for option in options if option not in arguments or option in SIZES]
    if unknown:
        known = ", ".join(options_of(mechanisms[name])) or "none"
        raise ValueError(f"attention {name!r} has no argument {unknown[0]!r}: it takes {known}")
    kinds = get_type_hints(mechanisms[name].__init__)
    for option, value in options.items():
        kind = kinds.get(option)
        if kind in (int, int | None) and not (type(value) is int or (value is None and kind is not int)):
            raise ValueError(f"{option} ({value!r}) of attention {name!r} must be a whole number")
    return mechanisms[name](**{key: value for key, value in offered.items() if key in arguments} | options)


def options_of(mechanism: type[Mechanism]) -> list[str]:
    """Return the user's options of a mechanism: its constructor's arguments that ``MultiHeadAttention`` does not set.

    >>> from vit.attention import MECHANISMS
    >>> options_of(MECHANISMS["sparse"])
    ['block', 'stride']
    """
    return [name for name in _parameters(mechanism.__init__) if name not in OFFERED]


def _parameters(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.name != "self"]
