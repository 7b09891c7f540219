"""Which images form each batch, on each process of a distributed run."""

from collections.abc import Iterator

import torch
from torch import Tensor


class BatchSampler:
    """Indices of the images of each batch; the same for any number of processes.

    A global batch of ``batch_size * world_size`` images is cut into one slice per process, so that the
    processes together see what one process with the joined batch would see. The order depends on
    ``seed`` and the epoch alone, which makes a resumed run repeat it.

    Training (``shuffle``) leaves out the last incomplete batch of an epoch, another few images each time.
    Evaluation takes every image once, and fills the last batch up with the index -1.

    Args:
        num_images: Images in the set.
        batch_size: Images per batch and process.
        shuffle: Whether to draw a new order each epoch (training) or keep the given one (evaluation).
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
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if num_images < world_size:
            raise ValueError(f"{num_images} images cannot be shared among {world_size} processes: use fewer devices")
        self.num_images = num_images
        self.batch_size = min(batch_size, num_images // world_size) if shuffle else batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.first_batch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the images; called before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.num_images, self.batch_size * self.world_size)
        return whole if self.shuffle else whole + bool(rest)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the indices (batch_size,) of each batch of this process; after a resume, of those that are left."""
        first, self.first_batch = self.first_batch, 0
        order = self._order()
        global_size = self.batch_size * self.world_size
        for batch in range(first, len(self)):
            together = order[batch * global_size : (batch + 1) * global_size]
            share = -(-len(together) // self.world_size)
            padded = torch.nn.functional.pad(together, (0, share * self.world_size - len(together)), value=-1)
            yield padded[self.rank * share : (self.rank + 1) * share]

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.num_images)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return torch.randperm(self.num_images, generator=generator)
