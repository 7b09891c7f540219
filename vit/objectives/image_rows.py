"""The results of an evaluation for each image, of all processes together, in the order of the data set."""

import torch
from torch import Tensor
from torchmetrics.utilities.distributed import gather_all_tensors

from vit.objectives.processes import are_several_processes, number_of_processes
from vit.training.evaluated_images import PADDING


class ImageRows:
    """Columns with a value for each image, which grow batch by batch.

    >>> rows = ImageRows()
    >>> rows.add(torch.tensor([2, 0]), torch.tensor([True, True]), label=torch.tensor([7, 5]))
    >>> rows.add(torch.tensor([1, 0]), torch.tensor([True, False]), label=torch.tensor([6, PADDING]))
    >>> rows.gather()["label"]
    tensor([5, 6, 7])
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[Tensor]] = {}
        self.seen = 0

    def add(self, index: Tensor | None, is_real: Tensor, **columns: Tensor) -> None:
        """Add a batch.

        Args:
            index: Place of each image in the data set, (B,); None numbers the images as they come.
            is_real: Whether the row is of an image and not padding, (B,).
            columns: Values of each image, (B, ...).
        """
        if index is None:
            index = torch.arange(self.seen, self.seen + len(is_real))
            if are_several_processes():  # no two images have the same number
                index = number_of_processes() * index + torch.distributed.get_rank()
        self.seen += len(is_real)
        columns["index"] = index.to(is_real.device).where(is_real, PADDING)
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def gather(self) -> dict[str, Tensor]:
        """Return the columns of all processes, (N, ...), on the CPU; each process has to call this.

        The processes have equally many rows, as their batches are filled up.
        """
        columns = {name: torch.cat(parts) for name, parts in self.parts.items()}
        if are_several_processes():
            columns = {name: torch.cat(gather_all_tensors(values)) for name, values in columns.items()}
        columns = {name: values.cpu() for name, values in columns.items()}
        order = columns["index"].argsort(stable=True)
        order = order[columns["index"][order] != PADDING]
        return {name: values[order] for name, values in columns.items()}
