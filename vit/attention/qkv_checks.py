"""Checks that queries, keys and values fit together."""

from torch import Tensor


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise a ValueError if queries, keys and values do not fit together."""
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(
            f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} axes: attention takes 4, (batch, heads, tokens, channels)"
        )
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{shapes}: queries have {q.shape[-1]} channels and keys {k.shape[-1]}; make them equal")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{shapes}: there are {k.shape[-2]} keys and {v.shape[-2]} values; give each key a value")
    if not q.shape[:2] == k.shape[:2] == v.shape[:2]:
        raise ValueError(
            f"{shapes}: batch and heads must be the same; repeat keys and values for heads that share them"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype} and v {v.dtype}: bring them to one dtype with .to(dtype)")
    if not q.device == k.device == v.device:
        raise ValueError(f"q is on {q.device}, k on {k.device} and v on {v.device}: move them with .to(device)")


def check_are_last(q: Tensor, k: Tensor) -> None:
    """Raise a ValueError if there are more queries than keys: causal queries are the last of the keys' positions."""
    if q.shape[-2] > k.shape[-2]:
        raise ValueError(
            f"there are {q.shape[-2]} queries and {k.shape[-2]} keys, and the queries of causal attention are the last "
            "of the keys' positions: give at least as many keys"
        )


def check_has_keys(q: Tensor, k: Tensor) -> None:
    """Raise a ValueError if there are queries and no keys."""
    if q.shape[-2] and not k.shape[-2]:
        raise ValueError(
            f"there are {q.shape[-2]} queries and {k.shape[-2]} keys: give at least one key, or take attention "
            "'softmax', whose output is zero without keys"
        )
