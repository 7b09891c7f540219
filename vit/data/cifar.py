"""CIFAR-10 and CIFAR-100, downloaded and verified by torchvision."""

from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from einops import rearrange
from torchvision import datasets
from torchvision.datasets.utils import calculate_md5, check_integrity

from vit.data.module import ImageDataModule, ImageSet, Stage


class CIFAR10(ImageDataModule):
    """60,000 colour images of 32x32 pixels in 10 classes, 10,000 of them for test (Krizhevsky 2009).

    Args:
        root: Folder of the archive, which is downloaded if it is missing.
        kwargs: Batches, splits and augmentation, as for every data module.
    """

    source = datasets.CIFAR10
    num_classes = 10
    class_names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    image_size = (32, 32)
    in_channels = 3
    mean = [0.4914, 0.4822, 0.4465]
    std = [0.2470, 0.2435, 0.2616]

    def __init__(self, root: str = "data", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root)

    def prepare_data(self) -> None:
        """Download and extract the archive if it is missing; Lightning calls this in one process per machine.

        Raises:
            ValueError: If the archive is damaged, or missing and the download fails.
        """
        archive = self.root / self.source.filename
        extracted = self.root / self.source.base_folder
        if archive.exists() and (found := calculate_md5(str(archive))) != self.source.tgz_md5:
            raise ValueError(
                f"{archive} is damaged (md5 {found}, expected {self.source.tgz_md5}): delete it and run again, "
                "or copy an intact one there"
            )
        if not archive.exists() and not extracted.exists():
            print(f"downloading {self.source.url} to {self.root}")
        try:
            self.source(self.root, download=True)
        except (URLError, OSError, RuntimeError) as error:
            if damaged := self._damaged(extracted):
                raise ValueError(
                    f"{damaged} is damaged or missing: delete {extracted}, and put {self.source.filename} into "
                    f"{self.root}, or run again with a network ({error})"
                ) from None
            raise ValueError(
                f"no {type(self).__name__} in {self.root} and no download ({error}): put {self.source.filename} "
                f"into {self.root}, name its folder by --data.root, or try --data Digits, which needs no download"
            ) from None

    def _damaged(self, extracted: Path) -> Path | None:
        """Return the first file of an extracted archive that is missing or damaged; None if all are intact."""
        if not extracted.is_dir():
            return None
        files = ((extracted / name, md5) for name, md5 in (*self.source.train_list, *self.source.test_list))
        return next((path for path, md5 in files if not check_integrity(str(path), md5)), None)

    def load_sets(self) -> dict[Stage, ImageSet]:
        """Return the training and test images of the archive."""
        sets = {}
        for stage, train in (("train", True), ("test", False)):
            dataset = self.source(self.root, train=train)
            pixels = rearrange(np.asarray(dataset.data), "n h w c -> n c h w")
            sets[stage] = ImageSet(torch.from_numpy(pixels).contiguous(), torch.tensor(dataset.targets))
        return sets


class CIFAR100(CIFAR10):
    """60,000 colour images of 32x32 pixels in 100 classes, 10,000 of them for test (Krizhevsky 2009)."""

    source = datasets.CIFAR100
    num_classes = 100
    # fmt: off
    class_names = [
        "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl",
        "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair",
        "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin",
        "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp",
        "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
        "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck",
        "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
        "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
        "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger",
        "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
    ]
    # fmt: on
    mean = [0.5071, 0.4865, 0.4409]
    std = [0.2673, 0.2564, 0.2762]
