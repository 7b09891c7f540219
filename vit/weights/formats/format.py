"""A format of weights: rules that rename and reshape tensors between this package and another library, both ways.

Letters in the einops patterns of the formats: d channels of a token, o output channels, h heads, e channels per head,
c image channels, p q rows and columns of a patch, n tokens.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

State = dict[str, Tensor]
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
OPENAI = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
HALVES = {"mean": [0.5] * 3, "std": [0.5] * 3}
Arguments = dict[str, Any]  # of VisionTransformer


@dataclass(frozen=True)
class Rule:
    """The place of a tensor of ours in the state dict of another library.

    Attributes:
        ours: Its name here; ``{i}`` is the number of a block.
        theirs: Its name there. Several tensors are stacked along the first axis; None is a tensor of zeros.
        pattern: einops pattern from each of theirs to its part of ours; None leaves the axes as they are.
    """

    ours: str
    theirs: tuple[str | None, ...]
    pattern: str | None = None


def _unchanged(state: State) -> State:
    return state


def _nothing(_: Any) -> Arguments:
    return {}


@dataclass(frozen=True)
class Reading:
    """Tensors of another library under our names.

    Attributes:
        state: The tensors.
        known: Names there of the tensors that were read or have no use.
        folded: Names here of those that were computed from several.
        zeros: Names here of biases that are missing there, and zero.
        arguments: Arguments of the model that the tensors there tell.
    """

    state: State
    known: set[str]
    folded: set[str]
    zeros: set[str]
    arguments: Arguments


@dataclass(frozen=True)
class Format:
    """The state dicts of one family of models of a library.

    Attributes:
        name: As users read it, such as "torchvision".
        rules: The place there of each tensor of ours.
        needs: Names of tensors that every such state dict has, without the prefix.
        lacks: Names of tensors that no such state dict has.
        outside: Regular expression of names that have no prefix, such as those of the head.
        unused: Regular expression of tensors that the backbone has no use for, such as a mask token.
        unused_outside: Regular expression of such tensors beside the model, whose names lack its prefix.
        zeros: Biases of ours that have no place there, and are zero.
        pools: What the heads of these models read, as in ``VisionTransformer``.
        defaults: Arguments of the model that the tensors do not tell.
        data: Mean and standard deviation of the pixels that these models expect; empty if they differ.
        from_config: Arguments that a config or the model's name tells there, but neither tensors nor format.
        requires: Arguments that every model has there, given those of ours.
        read_from_tensors: Further arguments, read from the tensors there.
        before_reading: Changes a state dict before it is read.
        after_reading: Changes our tensors after reading, such as one that is computed from several of theirs.
        before_writing: The reverse of ``after_reading``.
    """

    name: str
    rules: tuple[Rule, ...]
    needs: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    outside: str = ""
    unused: str = ""
    unused_outside: str = ""
    zeros: tuple[str, ...] = ()
    pools: tuple[str, ...] = ("cls",)
    defaults: Arguments = field(default_factory=dict)
    data: Mapping[str, list[float]] = field(default_factory=dict)
    from_config: tuple[str, ...] = ("mlp", "norm_eps")
    requires: Callable[[Arguments], Arguments] = _nothing
    read_from_tensors: Callable[[State], Arguments] = _nothing
    before_reading: Callable[[State], State] = _unchanged
    after_reading: Callable[[State], State] = _unchanged
    before_writing: Callable[[State], State] = _unchanged

    def prefix_in(self, names: Collection[str]) -> str | None:
        """Return the prefix of all names in a state dict of this format, or None if it has another format.

        Raises:
            ValueError: If several models of this format have prefixes of one length, so that none is the outer one.
        """
        first, *others = self.needs
        found = [
            prefix
            for prefix in (name.removesuffix(first) for name in names if name.endswith(first))
            if all(prefix + name in names for name in others) and not any(prefix + name in names for name in self.lacks)
        ]
        shortest = sorted(prefix for prefix in found if len(prefix) == min(map(len, found)))
        if len(shortest) > 1:
            raise ValueError(f"there are several models ({', '.join(shortest)}): give the tensors of one of them")
        return shortest[0] if shortest else None

    def read(self, state: State, prefix: str) -> Reading:
        """Return the tensors under our names, and what became of those there."""
        outside = {name: name for name in state if not name.startswith(prefix)}
        # Some of these names may be those of the model as well, without its prefix; blocks are those of a text model.
        short = {name: name for name in outside if not self._is_of_block(name)}
        short |= {name.removeprefix(prefix): name for name in state if name.startswith(prefix)}
        opened = self.before_reading({name: state[full] for name, full in short.items()})
        found, used = _read(opened, self.rules)
        # before_reading may rename or cut each tensor; it counts as read if rules read all that came of it.
        gone = {name: state[full] for name, full in short.items() if name not in opened}
        moved = {name for name, tensor in gone.items() if self.before_reading({name: tensor}).keys() <= used}
        known = {full for name, full in short.items() if name in used or name in moved}
        named = [*short.items(), *outside.items()]
        known |= {full for name, full in named if self.unused and re.fullmatch(self.unused, name)}
        known |= {full for full in outside if self.unused_outside and re.fullmatch(self.unused_outside, full)}
        weights = {name: found.get(name.removesuffix("bias") + "weight") for name in self.zeros}
        zeros = {name: weight.new_zeros(weight.shape[0]) for name, weight in weights.items() if weight is not None}
        ours = self.after_reading(found | zeros)
        folded = {name for name in ours if name not in zeros and ours[name] is not found.get(name)}
        return Reading(ours, known, folded, set(zeros), self.read_from_tensors(opened))

    def _is_of_block(self, name: str) -> bool:
        theirs = {their for rule in self.rules if "{i}" in rule.ours for their in rule.theirs if their}
        return any(re.fullmatch(re.escape(their).replace(r"\{i\}", r"\d+"), name) for their in theirs)

    def write(self, state: State, sizes: Mapping[str, int], prefix: str = "") -> State:
        """Return our tensors under the names of this format.

        Args:
            state: The tensors of a model.
            sizes: Lengths of axes that the patterns name, such as the number of heads.
            prefix: What stands before all names but those ``outside``.

        Raises:
            ValueError: If the format has no place for a tensor.
        """
        state = self.before_writing(dict(state))
        for name in self.zeros:
            if name in state and state[name].any():
                raise ValueError(f"{self.name} has no {name}, which is not zero here: save the model in another format")
            state.pop(name, None)
        written = _write(state, self.rules, sizes, self.name)
        is_outside = re.compile(self.outside).fullmatch if self.outside else lambda name: None
        return {name if is_outside(name) else prefix + name: tensor for name, tensor in written.items()}


def keep(*names: str) -> tuple[Rule, ...]:
    """Return rules for tensors that have the same name there."""
    return tuple(Rule(name, (name,)) for name in names)


def rename(names: Mapping[str, str], *kinds: str) -> tuple[Rule, ...]:
    """Return rules for modules of other names; ``kinds`` are their tensors, weight and bias unless given.

    >>> rename({"norm": "encoder.ln"}, "weight")
    (Rule(ours='norm.weight', theirs=('encoder.ln.weight',), pattern=None),)
    """
    kinds = kinds or ("weight", "bias")
    return tuple(Rule(f"{ours}.{kind}", (f"{theirs}.{kind}",)) for ours, theirs in names.items() for kind in kinds)


def rename_in_blocks(block: str, names: Mapping[str, str], *kinds: str) -> tuple[Rule, ...]:
    """Return rules for modules inside of each block, which is called ``block`` there."""
    return rename({f"blocks.{{i}}.{ours}": f"{block}.{theirs}" for ours, theirs in names.items()}, *kinds)


def stack(ours: str, *theirs: str) -> tuple[Rule, ...]:
    """Return rules for weight and bias of one linear layer that is several layers there."""
    return tuple(Rule(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)) for kind in ("weight", "bias"))


def _read(state: State, rules: Iterable[Rule]) -> tuple[State, set[str]]:
    """Return the tensors under our names, and the names there of those that were read.

    If several rules lead to one tensor, the first whose tensors are all there counts.
    """
    found: State = {}
    used: set[str] = set()
    for rule in _repeat_for_blocks(rules, state, lambda rule: next(filter(None, rule.theirs))):
        names = [name for name in rule.theirs if name]
        if rule.ours in found or not all(name in state for name in names):
            continue
        like = state[names[0]]
        parts = (torch.zeros_like(like) if name is None else state[name] for name in rule.theirs)
        parts = [part if rule.pattern is None else rearrange(part, rule.pattern) for part in parts]
        found[rule.ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
        used.update(names)
    return found, used


def _write(state: State, rules: Iterable[Rule], sizes: Mapping[str, int], format_name: str) -> State:
    """Return our tensors under the names of a format; if several rules name a tensor, the first counts."""
    written: State = {}
    placed: set[str] = set()
    for rule in _repeat_for_blocks(rules, state, lambda rule: rule.ours):
        if rule.ours not in state or rule.ours in placed:
            continue
        placed.add(rule.ours)
        parts = state[rule.ours].chunk(len(rule.theirs)) if len(rule.theirs) > 1 else [state[rule.ours]]
        for name, part in zip(rule.theirs, parts, strict=True):
            if name is not None:
                written[name] = part if rule.pattern is None else _rearrange_back(part, rule.pattern, sizes)
            elif part.any():
                raise ValueError(
                    f"{format_name} has no place for {rule.ours}, which is not zero: save the model in another format"
                )
    unplaced = sorted(state.keys() - placed)
    if unplaced:
        raise ValueError(
            f"{format_name} has no place for {', '.join(unplaced[:4])}{' and others' if len(unplaced) > 4 else ''}: "
            "save the model in another format"
        )
    return {name: tensor.clone().contiguous() for name, tensor in written.items()}


def _rearrange_back(tensor: Tensor, pattern: str, sizes: Mapping[str, int]) -> Tensor:
    theirs, ours = pattern.split(" -> ")
    named = set(re.findall(r"[a-z]+", pattern))
    return rearrange(tensor, f"{ours} -> {theirs}", **{axis: size for axis, size in sizes.items() if axis in named})


def _repeat_for_blocks(rules: Iterable[Rule], state: State, name_of: Callable[[Rule], str]) -> Iterator[Rule]:
    """Yield the rules with ``{i}`` replaced by the number of each block that the tensors have."""
    for rule in rules:
        if "{i}" not in rule.ours:
            yield rule
            continue
        pattern = re.compile(re.escape(name_of(rule)).replace(r"\{i\}", r"(\d+)"))
        numbers = sorted({int(match[1]) for match in map(pattern.fullmatch, state) if match})
        for i in numbers:
            theirs = tuple(name and name.replace("{i}", str(i)) for name in rule.theirs)
            yield Rule(rule.ours.replace("{i}", str(i)), theirs, rule.pattern)
