"""The report of a loading: what became of each tensor of a file."""

from dataclasses import dataclass, field

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
        zeros: Biases that the file has not, and that are zero.
        dropped: Tensors of the file, by their names there, that the model has no place for.
        fresh: Tensors of the model that stay its own, as initialised.
        assumed: What neither the tensors nor anything beside them tell, in words.
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
        kinds = {
            "resized": self.resized,
            "folded": self.folded,
            "zero": self.zeros,
            "dropped": self.dropped,
            "new": self.fresh,
        }
        kinds["assumed"] = self.assumed
        counts = [f"{len(self.matched)} as they are"]
        counts += [f"{len(self.renamed)} renamed"] if self.renamed else []
        named = [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]
        return f"weights of {self.origin} ({self.format}): {', '.join([*counts, *named])}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
