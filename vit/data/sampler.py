"""The images of each batch, on each process of a distributed run."""

from collections.abc import Iterator

import torch
from torch import Tensor


class BatchSampler:
    """The indices of the images of each batch.

    Each process gets a slice of the batch that one process would take with ``batch_size * world_size``. The order
    depends only on ``seed`` and the epoch, so that a resumed run repeats it.

    Training (``shuffle``) takes a new random order in each epoch and drops the last incomplete batch. Evaluation takes
    every image once, in the order of the data set, and pads the last batch with the index -1.

    Args:
        num_images: Images of the data set.
        batch_size: Images of a batch of one process.
        shuffle: Whether the order is that of training.
        balance: Class of each image, (N,), to train on each class equally often; None draws each image once.
        seed: Seed of the order.
        rank: Number of this process.
        world_size: Number of processes.

    Raises:
        ValueError: If there are fewer images than processes.
    """

    def __init__(
        self,
        num_images: int,
        batch_size: int,
        *,
        shuffle: bool = False,
        balance: Tensor | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if num_images < world_size:
            raise ValueError(f"{num_images} images cannot be shared among {world_size} processes: use fewer devices")
        self.num_images = num_images
        self.batch_size = min(batch_size, num_images // world_size) if shuffle else batch_size
        self.shuffle = shuffle
        self.balance = balance
        self.fixed = False  # whether each epoch has the order of the first one
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.first_batch = 0
        self.shift = 0  # images by which the order of this epoch is shifted, after a resume with another batch size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which decides the order; Lightning calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        complete, rest = divmod(self.num_images, self.global_size)
        return complete if self.shuffle else complete + bool(rest)

    @property
    def global_size(self) -> int:
        """Images of a batch of all processes."""
        return self.batch_size * self.world_size

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the indices (batch_size,) of each batch of this process; after a resume, of the remaining batches."""
        first, self.first_batch = self.first_batch, 0
        yield from self.batches(first)

    def batches(self, first: int) -> Iterator[Tensor]:
        """Yield the indices (batch_size,) of each batch of this process in this epoch, from batch ``first`` on."""
        order = self._order().roll(-self.shift)
        for batch in range(first, len(self)):
            indices = order[batch * self.global_size : (batch + 1) * self.global_size]
            size = -(-len(indices) // self.world_size)
            padded = torch.nn.functional.pad(indices, (0, size * self.world_size - len(indices)), value=-1)
            yield padded[self.rank * size : (self.rank + 1) * size]

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.num_images)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + (0 if self.fixed else self.epoch))
        if self.balance is not None:
            return balanced_order(self.balance, generator)
        return torch.randperm(self.num_images, generator=generator)


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return as many indices as there are images, in random order, equally many of each class: (N,) -> (N,).

    An image is repeated only after all others of its class. If the classes do not divide N, random ones have one more.

    >>> labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 2, 2])
    >>> labels[balanced_order(labels, torch.Generator().manual_seed(0))].bincount()
    tensor([3, 3, 3])
    """
    classes = labels.unique()
    classes = classes[torch.randperm(len(classes), generator=generator)]
    shares = (len(labels) + len(classes) - 1 - torch.arange(len(classes))) // len(classes)
    drawn = []
    for label, share in zip(classes, shares.tolist(), strict=True):
        members = (labels == label).nonzero().squeeze(1)
        rounds = range(-(-share // len(members)))
        in_turn = torch.cat([members[torch.randperm(len(members), generator=generator)] for _ in rounds])
        drawn.append(in_turn[:share])
    return torch.cat(drawn)[torch.randperm(len(labels), generator=generator)]
