"""The result of loading: tensors with the arguments of their model, and a report of what became of each tensor."""

from dataclasses import dataclass, field
from typing import Any

from vit.support.printable import list_names
from vit.weights.formats.format import Arguments, State

SHOWN = 4


@dataclass
class LoadReport:
    """What became of the tensors of a file, by their names here.

    >>> report = LoadReport("vit.safetensors", "timm", matched=["norm.weight"], fresh=["head.weight", "head.bias"])
    >>> print(report)
    weights of vit.safetensors (timm): 1 as they are, new: head.weight, head.bias

    Attributes:
        origin: Where the tensors come from.
        format: The format of their names.
        matched: Taken as they are, under their name there.
        renamed: Taken as they are, from other names or from several tensors.
        resized: Taken in another size: patches, positions, input channels.
        folded: Computed from several tensors, such as a class token to which its position is added.
        zeros: Biases that the file lacks and that are zero.
        dropped: Tensors of the file, by their names there, that the model has no place for.
        fresh: Tensors of the model that stay as initialised.
        assumed: Arguments that neither the tensors nor anything beside them tell, in words.
    """

    origin: str
    format: str
    matched: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    zeros: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the report as one line."""
        words = [f"{len(self.matched)} as they are"]
        words += [f"{len(self.renamed)} renamed"] if self.renamed else []
        kinds = {"resized": self.resized, "folded": self.folded, "zero": self.zeros}
        kinds |= {"dropped": self.dropped, "new": self.fresh, "assumed": self.assumed}
        for kind, names in kinds.items():
            words += [f"{kind}: {list_names(names, SHOWN)}"] if names else []
        return f"weights of {self.origin} ({self.format}): {', '.join(words)}"


@dataclass(frozen=True)
class LoadedWeights:
    """Trained tensors under our names, the arguments of their model, and what is known of its data.

    Attributes:
        state: The tensors. They lack those that the report calls fresh.
        arguments: All arguments of the ``VisionTransformer``.
        data: ``mean``, ``std``, ``class_names`` and so on, as far as they are known.
        report: What became of the tensors so far.
    """

    state: State
    arguments: Arguments
    data: dict[str, Any]
    report: LoadReport

    @property
    def is_whole(self) -> bool:
        """Whether the tensors embed images: blocks alone do not."""
        return "patch_embed.proj.weight" in self.state
