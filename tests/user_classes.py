"""What a user brings along: a data module of float images that it normalises, subclasses, optimisers of one's own."""

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from vit.data import Digits
from vit.objectives import ViTClassifier

MEAN, STD = 0.305, 0.376


class Rows(Dataset):
    """Normalised images with their labels, as pairs or as dictionaries."""

    def __init__(self, images, labels, as_dicts):
        self.images, self.labels, self.as_dicts = images, labels, as_dicts

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, label = self.images[index], self.labels[index]
        return {"image": image, "label": label, "number": index} if self.as_dicts else (image, label)


class Bare(LightningDataModule):
    """The digits, normalised; it tells nothing about them.

    Args:
        batch: Images of a batch.
        as_dicts: Whether batches are dictionaries.
    """

    def __init__(self, batch: int = 100, as_dicts: bool = False) -> None:
        super().__init__()
        self.batch, self.as_dicts = batch, as_dicts

    def setup(self, stage):
        ours = Digits()
        ours.setup(stage)
        self.parts = {}
        for split, images in ours.sets.items():
            pixels = (images.images.float() / 255 - MEAN) / STD
            self.parts[split] = Rows(pixels, images.labels, self.as_dicts)

    def train_dataloader(self):
        return DataLoader(self.parts["train"], batch_size=self.batch, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts["val"], batch_size=self.batch)

    def test_dataloader(self):
        return DataLoader(self.parts["test"], batch_size=self.batch)

    predict_dataloader = test_dataloader


class OwnData(Bare):
    """The digits, normalised, with what a model needs to know of them."""

    num_classes, image_size, in_channels = 10, (8, 8), 1
    mean, std = (MEAN,), (STD,)
    class_names = tuple("0123456789")


class Letters(OwnData):
    """The same with other names."""

    class_names = tuple("abcdefghij")


class Unsaid(OwnData):
    """The digits in [0, 1], without a word on how to normalise them or what they are called."""

    mean = std = class_names = None

    def setup(self, stage):
        super().setup(stage)
        for part in self.parts.values():
            part.images = part.images * STD + MEAN


class Mine(ViTClassifier):
    """A classifier whose loss is halved.

    Args:
        share: Factor of the loss.
        kwargs: Those of every classifier.
    """

    def __init__(self, share: float = 0.5, **kwargs) -> None:
        super().__init__(**kwargs)

    def training_loss(self, batch):
        return self.hparams.share * super().training_loss(batch)


class Plain(ViTClassifier):
    """An optimiser without a schedule."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Reused(ViTClassifier):
    """Our optimiser without our schedule."""

    def configure_optimizers(self):
        return super().configure_optimizers()["optimizer"]


class OneCycle(ViTClassifier):
    """A schedule of torch."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(ViTClassifier):
    """A training step that steps its optimiser itself."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.training_loss(batch))
        optimizer.step()
