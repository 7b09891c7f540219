"""The two recipes of baseline.py: model, images, optimiser and schedule from the parts of timm and torchvision.

"defaults" is what their documentation shows: timm's model as it is, JPEG files that torchvision's ImageFolder reads,
crop and flip on PIL images in two workers, AdamW, a cosine.

"strongest" is the best that their parts allow for this model in ten minutes on CPUs:

- timm's model with half of the patches dropped in the first 70 % of the time, the mean of the patches in front of the
  head (beside a class token, as in ours), and positions that start as sines and cosines;
- timm's Muon with Nesterov momentum (`nmuon`). It takes weights as they are: those of queries, keys and values are one
  matrix of 288 x 96. Biases, norms, tokens and positions are NAdamW's by timm's own rule. Patch embedding and head are,
  too, as Muon's authors advise; timm has the option `fallback_list` for it;
- timm's polynomial schedule of power 1, in thousandths of the time;
- images decoded before the clock starts, and reflected once over their borders, by 2 pixels as in ours. torchvision's
  v2 transforms crop and flip each image by itself: on a whole batch they draw once for all of its images. Normalising
  is done for whole batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import PolyLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms
from torchvision.transforms import v2

from vit.data.cifar import CIFAR10
from vit.data.split import stratified_split
from vit.training.schedule import learning_rate_factor

WEIGHT_DECAY = 0.05
PADDING = 2
TICKS = 1000  # of timm's scheduler, which counts in whole numbers
PATCH_DROP, PATCH_DROP_UNTIL = 0.5, 0.7
SIZE = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 6, "num_heads": 3, "mlp_ratio": 2.0}

Schedule = Callable[[float], None]


@dataclass(frozen=True)
class Recipe:
    """A way to train timm's Vision Transformer of configs/cifar10_quick.yaml.

    Attributes:
        name: Its name in the results.
        make_model: Builds the model.
        image_sets: Reads a folder: "train" with augmentation, "val" held out of it by a share of each class, "test".
        finish: Makes normalised images of a batch of a loader.
        make_optimizer: Makes the optimiser for a model and a peak learning rate.
        make_schedule: Returns what sets the learning rate, and all else that changes, by the share of the time.
        workers: Processes that load images.
    """

    name: str
    make_model: Callable[[], VisionTransformer]
    image_sets: Callable[[Path, float], dict[str, Dataset]]
    finish: Callable[[Tensor], Tensor]
    make_optimizer: Callable[[VisionTransformer, float], Optimizer]
    make_schedule: Callable[[VisionTransformer, Optimizer], Schedule]
    workers: int

    def dropped(self, model: VisionTransformer) -> float:
        """Return the share of the patches that the model drops in training."""
        return getattr(model.patch_drop, "prob", 0.0)


def default_model() -> VisionTransformer:
    """Return timm's Vision Transformer in the size of configs/cifar10_quick.yaml."""
    return VisionTransformer(**SIZE, num_classes=CIFAR10.num_classes)


def default_images(root: Path, val_fraction: float) -> dict[str, Dataset]:
    """Return the images of a folder, read from their files each time."""
    numbers = [transforms.ToTensor(), transforms.Normalize(CIFAR10.mean, CIFAR10.std)]
    plain = transforms.Compose(numbers)
    crop = transforms.RandomCrop(32, padding=4)
    augmented = transforms.Compose([crop, transforms.RandomHorizontalFlip(), *numbers])
    train = datasets.ImageFolder(root / "train", augmented)
    kept, held_out = stratified_split(torch.tensor(train.targets), val_fraction)
    return {
        "train": Subset(train, kept.tolist()),
        "val": Subset(datasets.ImageFolder(root / "train", plain), held_out.tolist()),
        "test": datasets.ImageFolder(root / "test", plain),
    }


def default_optimizer(model: VisionTransformer, rate: float) -> Optimizer:
    """Return AdamW."""
    groups = param_groups_weight_decay(model, WEIGHT_DECAY, model.no_weight_decay())
    return torch.optim.AdamW(groups, lr=rate, fused=True)


def default_schedule(model: VisionTransformer, optimizer: Optimizer) -> Schedule:
    """Return a warm-up and a cosine."""
    rate = optimizer.defaults["lr"]

    def schedule(progress: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate_factor(progress, 0.05, "cosine")

    return schedule


class Decoded(Dataset):
    """Images in memory, each transformed by itself as it is read.

    Args:
        images: uint8, (N, C, H, W).
        labels: Their classes, (N,).
        transform: Takes and returns an image (C, H, W).
    """

    def __init__(self, images: Tensor, labels: Tensor, transform: nn.Module) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image and its class."""
        return self.transform(self.images[index]), self.labels[index]


def decoded(folder: Path) -> tuple[Tensor, Tensor]:
    """Decode class folders: images (N, C, H, W) in uint8, classes (N,)."""
    loader = DataLoader(datasets.ImageFolder(folder, v2.PILToTensor()), batch_size=500, num_workers=2)
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


def strong_images(root: Path, val_fraction: float) -> dict[str, Dataset]:
    """Return the images of a folder, decoded beforehand."""
    images, labels = decoded(root / "train")
    kept, held_out = stratified_split(labels, val_fraction)
    padded = v2.functional.pad(images[kept], PADDING, padding_mode="reflect")
    augment = v2.Compose([v2.RandomCrop(32), v2.RandomHorizontalFlip()])
    return {
        "train": Decoded(padded, labels[kept], augment),
        "val": Decoded(images[held_out], labels[held_out], nn.Identity()),
        "test": Decoded(*decoded(root / "test"), nn.Identity()),
    }


def strong_model() -> VisionTransformer:
    """Return timm's Vision Transformer with patch dropping, the mean of the patches, and sines and cosines."""
    model = VisionTransformer(
        **SIZE,
        num_classes=CIFAR10.num_classes,
        global_pool="avg",
        patch_drop_rate=PATCH_DROP,
    )
    codes = build_sincos2d_pos_embed(model.patch_embed.grid_size, model.embed_dim)
    with torch.no_grad():
        model.pos_embed.zero_()
        model.pos_embed[0, model.num_prefix_tokens :] = codes
    return model


def strong_optimizer(model: VisionTransformer, rate: float) -> Optimizer:
    """Return timm's Muon."""
    return create_optimizer_v2(
        model,
        "nmuon",
        lr=rate,
        weight_decay=WEIGHT_DECAY,
        momentum=0.95,
        betas=(0.9, 0.99),
        fallback_list=("patch_embed.*", "head.*"),
        fallback_no_weight_decay=True,
    )


def strong_schedule(model: VisionTransformer, optimizer: Optimizer) -> Schedule:
    """Return a warm-up and a line to zero; patches are dropped until most of the time has passed."""
    warmup = TICKS // 25
    scheduler = PolyLRScheduler(
        optimizer, t_initial=TICKS - warmup, power=1.0, warmup_t=warmup, warmup_prefix=True, t_in_epochs=False
    )

    def schedule(progress: float) -> None:
        scheduler.step_update(int(TICKS * progress))
        model.patch_drop.prob = PATCH_DROP if progress < PATCH_DROP_UNTIL else 0.0

    return schedule


RECIPES = {
    "defaults": Recipe(
        "timm ViT 96x6, torchvision loader, AdamW",
        default_model,
        default_images,
        nn.Identity(),
        default_optimizer,
        default_schedule,
        workers=2,
    ),
    "strongest": Recipe(
        "timm ViT 96x6, strongest recipe",
        strong_model,
        strong_images,
        v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(CIFAR10.mean, CIFAR10.std)]),
        strong_optimizer,
        strong_schedule,
        workers=1,
    ),
}
