"""Names of the arithmetic of torch, whether it is written as an operator, a function or a method."""

from collections.abc import Callable
from typing import Any

PRODUCTS, QUOTIENTS = ("mul", "multiply"), ("div", "divide", "truediv", "true_divide")
SUMS, DIFFERENCES = ("add",), ("sub", "subtract")
COPIES = ("to", "type", "type_as", "float", "double", "half", "bfloat16", "clone", "contiguous", "dropout")


def arithmetic_name(func: Callable[..., Any]) -> tuple[str, bool]:
    """Return the name of a function without marks of its form, and whether its operands are reversed.

    >>> import torch
    >>> [arithmetic_name(func) for func in (torch.Tensor.__rsub__, torch.Tensor.mul_, torch.Tensor.__iadd__)]
    [('sub', True), ('mul', False), ('add', False)]
    """
    name = func.__name__.strip("_")
    is_variant = name[1:] in (*PRODUCTS, *QUOTIENTS, *SUMS, *DIFFERENCES)
    return (name[1:], name[0] == "r") if is_variant else (name, False)
