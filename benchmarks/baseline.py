"""Baseline of the ten-minute recipe: as many minutes for timm's Vision Transformer, torchvision's loader and AdamW.

The model has the size of configs/cifar10_quick.yaml (96 channels, 6 blocks) and timm's defaults. torchvision's
ImageFolder and DataLoader read JPEG files with two workers, crop and flip are on PIL images, AdamW has a warm-up and a
cosine that the clock drives to zero, with label smoothing, clipped gradients, and bfloat16 where the hardware is faster
with it. timm's fused attention is off where its backward pass is slower, in bfloat16 on CPUs. This is not timm's best:
timm has Muon and patch dropping, too.

As in our recipe, 4 % of each class of DATA/train are held out. There is no validation between epochs, so that a little
more time is left to train. The clock starts with the request for the first batch. The images of DATA/test are read
once, at the end. Cells go to accuracy.json, beside those of accuracy.py, as soon as a seed is done.

    python benchmarks/baseline.py --data data/cifar10-jpeg [--minutes 10] [--lr 1e-3] [--seeds 0 1 2]
        [--output benchmarks/results]

The learning rate is the best of 1e-3, 2e-3 and 4e-3 on the validation images after 3 minutes of training on 2 CPU
cores (--minutes 3 --seeds 0 --lr RATE, 2026-11-21).
"""

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accuracy import cell_name, check_comparable, report
from records import command_line, machine, provenance, write_cell
from side_by_side import DEVICE, autocast
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_weight_decay
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms

from vit.commands.training_cli import fastest_precision
from vit.data.cifar import CIFAR10
from vit.data.split import stratified_split
from vit.training.flop import forward_flop
from vit.training.schedule import learning_rate_factor

NAME = "timm ViT 96x6, torchvision loader, AdamW"
BATCH = 128
WORKERS = 2
VAL_FRACTION = 0.04
WEIGHT_DECAY, WARMUP, LABEL_SMOOTHING, CLIP = 0.05, 0.05, 0.1, 1.0


def make_model(dtype: torch.dtype) -> nn.Module:
    """Return timm's Vision Transformer in the size of configs/cifar10_quick.yaml, with its fastest attention."""
    model = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=96, depth=6, num_heads=3, mlp_ratio=2.0, num_classes=CIFAR10.num_classes
    )
    if DEVICE.type == "cpu" and dtype == torch.bfloat16:
        for block in model.blocks:
            block.attn.fused_attn = False
    return model.to(DEVICE)


def image_sets(root: Path) -> dict[str, Dataset]:
    """Return the images of a folder: "train" with augmentation, "val" held out of it, and "test"."""
    numbers = [transforms.ToTensor(), transforms.Normalize(CIFAR10.mean, CIFAR10.std)]
    plain = transforms.Compose(numbers)
    augmented = transforms.Compose([transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), *numbers])
    train = datasets.ImageFolder(root / "train", augmented)
    kept, held_out = stratified_split(torch.tensor(train.targets), VAL_FRACTION)
    return {
        "train": Subset(train, kept.tolist()),
        "val": Subset(datasets.ImageFolder(root / "train", plain), held_out.tolist()),
        "test": datasets.ImageFolder(root / "test", plain),
    }


def epochs(train: Dataset) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches on the device, epoch after epoch."""
    loader = DataLoader(
        train,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=DEVICE.type == "cuda",
    )
    for _ in itertools.count():
        for images, labels in loader:
            yield images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)


def train(model: nn.Module, images: Dataset, seconds: float, dtype: torch.dtype, rate: float) -> dict[str, Any]:
    """Train for some seconds with a peak learning rate, and return epochs, steps and speed."""
    groups = param_groups_weight_decay(model, WEIGHT_DECAY, model.no_weight_decay())
    optimizer = torch.optim.AdamW(groups, lr=rate, fused=True)
    model.train()
    start, seen = time.monotonic(), 0
    for steps, (batch, labels) in enumerate(epochs(images), start=1):
        progress = min(1.0, (time.monotonic() - start) / seconds)
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate_factor(progress, WARMUP, "cosine")
        with autocast(DEVICE, dtype):
            loss = F.cross_entropy(model(batch).float(), labels, label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        seen += len(batch)
        if steps % 100 == 0:
            print(f"step {steps:,}, loss {loss.item():.3f}, {progress:.0%} of the time", file=sys.stderr)
        if time.monotonic() - start >= seconds:
            break
    passed = time.monotonic() - start
    training_flop = 3 * forward_flop(model, torch.zeros(1, 3, 32, 32, device=DEVICE))
    return {
        "epochs": round(seen / len(images), 2),
        "steps": steps,
        "seconds": round(passed, 1),
        "petaflop": round(seen * training_flop / 1e15, 4),
        "images_per_second": round(seen / passed, 1),
    }


@torch.no_grad()
def accuracies(model: nn.Module, images: Dataset, dtype: torch.dtype) -> tuple[float, float]:
    """Return the accuracy on images, and that of logits averaged over images and their mirror images."""
    model.eval()
    correct = torch.zeros(2, dtype=torch.long, device=DEVICE)
    for batch, labels in DataLoader(images, batch_size=512, num_workers=WORKERS):
        with autocast(DEVICE, dtype):
            logits, mirrored = (model(view.to(DEVICE)).float() for view in (batch, batch.flip(-1)))
        guesses = torch.stack([logits, logits + mirrored]).argmax(dim=-1)
        correct += (guesses == labels.to(DEVICE)).sum(dim=-1)
    alone, both = (correct / len(images)).tolist()
    return alone, both


def measure(data: Path, minutes: float, rate: float, seed: int) -> dict[str, Any]:
    """Train from a seed, then test, and return the numbers."""
    torch.manual_seed(seed)
    precision = fastest_precision("auto")
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    sets, model = image_sets(data), make_model(dtype)
    trained = train(model, sets["train"], 60 * minutes, dtype, rate)
    test, views = accuracies(model, sets["test"], dtype)
    return {
        "test_accuracy": test,
        "test_accuracy_views": views,
        "test_views": "flip",
        "val_accuracy": accuracies(model, sets["val"], dtype)[0],
        **trained,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "precision": precision,
        "seed": seed,
    }


def main(arguments: list[str] | None = None) -> None:
    """Train and write seed by seed, and print all cells."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/CLASS/*.jpg and test/CLASS/*.jpg")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of training (default: 10)")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate (default: 0.001)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    options = parser.parse_args(arguments)
    if missing := [part for part in ("train", "test") if not (options.data / part).is_dir()]:
        parser.error(f"no folder {options.data / missing[0]}: --data names a folder with train/ and test/ in it")
    path, recipe = options.output / "accuracy.json", f"{NAME}, {options.minutes:g} min"
    settings = {"data": options.data.name, "lr": options.lr}
    try:
        check_comparable(path, recipe, settings, machine())
    except ValueError as error:
        parser.error(str(error))
    for seed in options.seeds:
        made = provenance()
        cell = {"recipe": recipe, "peer": True, "settings": settings, "data": f"ImageFolder {options.data}"}
        cell |= measure(options.data, options.minutes, options.lr, seed)
        cell |= {"device": made["machine"]["gpu"] or f"{DEVICE.type}, {made['machine']['threads']} threads"}
        write_cell(path, cell_name(cell), cell | made, report)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
