"""The rules by which AttnLRP passes relevance through each function that a model calls (Achtibat et al. 2024).

Which rule a function needs is found by experiment: from what it makes of scaled inputs.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from vit.capture.interception.arithmetic import COPIES, DIFFERENCES, PRODUCTS, QUOTIENTS, SUMS, arithmetic_name
from vit.explain.norms import NORMS

OTHER_METHODS = "choose 'relevance', 'gradient_rollout' or a method that removes patches (token_drop, occlusion)"
CUTS = (Tensor.detach, torch.detach, Tensor.data.__get__)  # what they return may be kept, but must not be computed with
FACTOR, FACTOR_OF_FLOAT16 = 64, 2  # of the inputs in the experiment; float16 ends at 65,504
# Functions that are affine whatever their numbers. Others might have a bound that one image does not reach.
LINEAR = ("linear", "matmul", "rmatmul", "bmm", "baddbmm", "addmm", "einsum", "conv2d")
# Functions of one number, by their name in torch: all relevance of the output goes to the input.
ELEMENTWISE = ("elu", "erf", "gelu", "hardsigmoid", "hardswish", "hardtanh", "mish", "relu6", "sigmoid", "silu")
ELEMENTWISE += ("softplus", "tanh")
# Of these and the functions above, activations are written as products.
POINTWISE = (*PRODUCTS, *QUOTIENTS, *SUMS, *DIFFERENCES, *COPIES, "neg", "negative")

Rule = Callable[["_Call"], Any]
Rules = list[tuple[Callable[..., Any], Rule]]


def find_rules(model: nn.Module, run: Callable[[], Tensor]) -> Rules:
    """Return the functions that a model calls in one pass, each with the rule that it needs.

    Args:
        model: The model, which is named in errors.
        run: Passes one image, and returns its logits.

    Raises:
        ValueError: If there is no rule for a function, or what the model computes is not seen.
    """
    with _Below() as below, _FindRules(below) as rules:
        run()
    if below.seen:
        raise ValueError(
            f"attnlrp does not see what {type(model).__name__} computes in compiled or scripted functions "
            f"({', '.join(sorted(below.seen))}): {OTHER_METHODS}"
        )
    cuts = [func for func, rule in rules.found if rule is _as_cut]
    if cuts:
        unchanged = run()
        with _ChangeCut():
            changed = run()
        if not torch.equal(unchanged, changed):
            raise _no_rule(cuts[0])
    return rules.found


class _Below(TorchDispatchMode):
    """Names the operations on tokens that no call of a function of torch leads to, as those of scripted functions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.is_known = False  # within a call that has a rule

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation."""
        with torch._C.DisableTorchFunction():  # the look is no call of the model
            name = func.overloadpacket.__name__
            if not self.is_known and name != "detach" and any(x.requires_grad for x in _tensors(args)):
                self.seen.add(name)
            return func(*args, **(kwargs or {}))


class _FindRules(TorchFunctionMode):
    """Finds by experiment which rule each call of a function needs, and follows it.

    A function needs none if it is affine along the ray from 0 to its inputs: ``f(kx) + (k - 1) f(0) = k f(x)``. The
    factor k is large, so that functions with a bound, such as a clamp, reach it. A product is a function that is so in
    each of two inputs, but not in both together.
    """

    def __init__(self, below: _Below) -> None:
        super().__init__()
        self.below = below
        self.found: Rules = []
        self.pointwise = _Pointwise()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function by its rule.

        Raises:
            ValueError: If there is no rule for it.
        """
        was_known, self.below.is_known = self.below.is_known, True
        try:
            return self._result(_Call(func, args, kwargs or {}))
        finally:
            self.below.is_known = was_known

    def _result(self, call: "_Call") -> Any:
        func = call.func
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, _tensors(call.args))):
            raise ValueError(f"attnlrp has no rule for {_name(func)} within torch.func, as in vmap: {OTHER_METHODS}")
        if not call.inputs:
            return func(*call.args, **call.kwargs)
        if not torch.is_grad_enabled():
            result = func(*call.args, **call.kwargs)
            if _floats(result) and func is not Tensor.detach:
                raise ValueError(
                    f"attnlrp has no rule for {_name(func)} without a gradient, as in an autograd.Function or within "
                    f"no_grad: {OTHER_METHODS}"
                )
            return result
        rule = call.rule(self.pointwise)
        self.found.append((func, rule))
        result = rule(call)
        self.pointwise.follow(call, result)
        return result


class _ChangeCut(TorchFunctionMode):
    """Changes what is detached, so that the logits tell whether they are computed from it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and change sign, size and mean of what it detaches."""
        result = func(*args, **(kwargs or {}))
        return 1 - 2 * result if func in CUTS and args[0].requires_grad else result


class FollowRules(TorchFunctionMode):
    """Follows the rules that were found for the calls of one image."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = iter(rules)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function by its rule.

        Raises:
            ValueError: If it is not the function that was called for one image.
        """
        call = _Call(func, args, kwargs or {})
        if not call.inputs or not torch.is_grad_enabled():
            return func(*args, **kwargs or {})
        expected, rule = next(self.rules, (None, None))
        if expected != func or rule is None:  # methods of properties are equal, and not the same
            raise ValueError("the model calls other functions for a batch than for one image: give images one by one")
        return rule(call)


class _Call:
    """One call of a function, and its tensors that depend on the tokens."""

    def __init__(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.inputs = list({id(x): x for x in _tensors((*args, *kwargs.values())) if x.requires_grad}.values())
        name = func.__name__
        is_method = name.endswith("_") and not name.endswith("__")
        self.works_in_place = is_method or name.startswith("__i") or name == "__setitem__"

    def rule(self, pointwise: "_Pointwise") -> Rule:
        """Find the rule of this call."""
        name = self.func.__name__.strip("_")
        if self.func in NORMS:
            return _as_norm
        if self.func in CUTS:
            return _as_cut
        if name == "softmax":
            return _as_it_is
        if name in ELEMENTWISE and len(self.inputs) == 1:
            return _along_chord
        if self.is_constant():
            return _as_constant
        if self.is_affine_in(self.inputs):
            return _as_it_is if name in LINEAR else _as_affine
        if len(self.inputs) == 2 and all(self.is_affine_in([x]) for x in self.inputs):
            gate = pointwise.gate(self)
            return _as_product if gate is None else partial(_as_gated, gate=gate)
        raise _no_rule(self.func)

    @torch.no_grad()
    def is_constant(self) -> bool:
        """Return whether the result does not depend on its inputs at all, such as a product with 0."""
        zeros, noise = ({id(x): draw(x) for x in self.inputs} for draw in (torch.zeros_like, torch.randn_like))
        same = {id(x): x.clone() for x in self.inputs}  # an activation may work in place
        at = [_floats(self.tried_with(changed)) for changed in (same, zeros, noise)]
        return bool(at[0]) and all(
            torch.equal(one, other) for one, *others in zip(*at, strict=True) for other in others
        )

    @torch.no_grad()
    def is_affine_in(self, inputs: list[Tensor]) -> bool:
        """Return whether the call is affine along the ray from 0 to some of its inputs."""
        kind = inputs[0].device.type
        in_float16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
        factor = FACTOR_OF_FLOAT16 if in_float16 or any(x.dtype == torch.float16 for x in inputs) else FACTOR
        at = [_floats(self.tried_with({id(x): _scaled(x, times) for x in inputs})) for times in (0, 1, factor)]
        return all(
            torch.allclose(
                many + (factor - 1) * zero,
                factor * one,
                rtol=10 * _rounding(one),
                atol=factor * _rounding(one) * _size(one),
            )
            for zero, one, many in zip(*at, strict=True)
        )

    def tried_with(self, changed: Mapping[int, Tensor]) -> Any:
        """Call the function as ``with_inputs`` does, and leave its tensors as they are, also if it works in place."""
        if not self.works_in_place:
            return self.with_inputs(changed)
        copies = {id(x): x.clone() for x in _tensors((*self.args, *self.kwargs.values()))}
        return self.with_inputs(copies | changed)

    def with_inputs(self, changed: Mapping[int, Tensor]) -> Any:
        """Call the function with some of its tensors replaced, by id."""

        def replaced(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return type(value)(map(replaced, value))
            return changed.get(id(value), value) if isinstance(value, Tensor) else value

        return self.func(*replaced(self.args), **{name: replaced(value) for name, value in self.kwargs.items()})


class _Pointwise:
    """Follows tensors that are computed number by number from another one, as x / 2 and sigmoid(x) are from x.

    Two tensors of equal numbers are one source: a model may slice or compute x twice, as in ``x[..., :4] *
    sigmoid(x[..., :4])``.
    """

    def __init__(self) -> None:
        self.origins = WeakTensorKeyDictionary()  # tensor -> its source, and whether an activation lies between

    def follow(self, call: _Call, result: Any) -> None:
        """Follow the result of a call, if it is computed number by number from one tensor, or a view of such a result.

        A product of two tensors that are made of it, such as x * x, is an activation.
        """
        self._follow_views(call, result)
        name, _ = arithmetic_name(call.func)
        if name not in (*ELEMENTWISE, *POINTWISE):
            return
        origins = [self._origin(x) for x in call.inputs if x.shape == result.shape]
        source = origins[0][0] if origins else result
        if len(origins) == len(call.inputs) and all(_are_same(source, other) for other, _ in origins):
            is_activated = any(activated for _, activated in origins)
            is_bent = name in ELEMENTWISE or (name in (*PRODUCTS, *QUOTIENTS) and len(origins) > 1)
            self.origins[result] = source, is_activated or is_bent

    def gate(self, call: _Call) -> int | None:
        """Return which of two factors, 0 or 1, is an activation of what the other is made of; None if none is.

        Raises:
            ValueError: If both are.
        """
        (source, is_gate), (other, is_other_gate) = map(self._origin, call.inputs)
        if not (is_gate or is_other_gate) or not _are_same(source, other):
            return None
        if is_gate and is_other_gate:
            raise _no_rule(call.func)
        return int(is_other_gate)

    def _origin(self, x: Tensor) -> tuple[Tensor, bool]:
        return self.origins.get(x, (x, False))

    def _follow_views(self, call: _Call, result: Any) -> None:
        """Follow parts of a tensor that is followed: they are made of the same parts of its source."""
        views = _tensors([result])
        of_all = [x for x in call.inputs if all(view._base is not None and view._base is _base(x) for view in views)]
        source, is_activated = self._origin(of_all[0]) if of_all else (None, False)
        if source is None or source is of_all[0] or source.shape != of_all[0].shape or call.works_in_place:
            return
        with torch.no_grad():
            parts = _tensors([call.with_inputs({id(of_all[0]): source})])
        for view, part in zip(views, parts, strict=True):
            self.origins[view] = part, is_activated


def _base(x: Tensor) -> Tensor:
    """Return the tensor that a view shows, or the tensor itself."""
    return x if x._base is None else x._base


@torch.no_grad()
def _are_same(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))


def _as_it_is(call: _Call) -> Any:
    result = call.func(*call.args, **call.kwargs)
    if any(not x.requires_grad for x in _floats(result)):
        raise _no_rule(call.func)
    return result


def _as_affine(call: _Call) -> Any:
    """Return the result of a function that was found to be affine for one image, if it is so for these, too."""
    if not call.is_affine_in(call.inputs):
        raise _no_rule(call.func)
    return _as_it_is(call)


def _as_constant(call: _Call) -> Any:
    """Return the result of a function that was found to be constant for one image, if it is so for these, too."""
    if not call.is_constant():
        raise ValueError(
            f"{_name(call.func)} has no effect on the first image and one on others, as an expert of a mixture that "
            "none of its tokens chooses: give images one by one"
        )
    with torch.no_grad():
        return call.func(*call.args, **call.kwargs)


def _as_cut(call: _Call) -> Any:
    """Detach. ``find_rules`` checks that the result does not reach the logits."""
    return call.func(*call.args, **call.kwargs)


def _as_norm(call: _Call) -> Tensor:
    norm = NORMS[call.func](*call.args, **call.kwargs)
    return norm.output(norm.scale().detach())


def _as_product(call: _Call) -> Any:
    """Give each of two factors half of the relevance."""
    return call.with_inputs({id(x): (x + x.detach()) / 2 for x in call.inputs})


def _as_gated(call: _Call, gate: int) -> Any:
    """Give all relevance to the factor that is no gate: both factors are one activation, such as x * sigmoid(x)."""
    held = call.inputs[gate]
    return call.with_inputs({id(held): held.detach()})


def _along_chord(call: _Call) -> Tensor:
    """Return f(x), with the slope of the line from (0, f(0)) to (x, f(x)) for a gradient: f(0) is a bias."""
    (x,) = call.inputs
    with torch.no_grad():
        # Copies, because the activation may work in place.
        start, end = (call.with_inputs({id(x): at}) for at in (torch.zeros_like(x), x.clone()))
        shortest = torch.finfo(x.dtype).eps ** 0.5  # of a chord: at 0, it is the tangent
        step = torch.where(x.abs() < shortest, shortest, x)
        slope = (call.with_inputs({id(x): step.clone()}) - start) / step
    return end + slope * (x - x.detach())


def _no_rule(func: Callable[..., Any]) -> ValueError:
    return ValueError(f"attnlrp has no rule for {_name(func)}, which the model calls: {OTHER_METHODS}")


def _name(func: Callable[..., Any]) -> str:
    return resolve_name(func) or func.__name__


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _floats(result: Any) -> list[Tensor]:
    return [x for x in _tensors([result]) if x.is_floating_point() or x.is_complex()]


def _rounding(tensor: Tensor) -> float:
    return 0.02 if torch.finfo(tensor.dtype).bits < 32 else 1e-4


def _scaled(tensor: Tensor, factor: int) -> Tensor:
    return torch.where(tensor.isfinite(), factor * tensor, tensor)  # logits of masked keys are -inf


def _size(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 1.0
