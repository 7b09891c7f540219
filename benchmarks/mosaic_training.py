"""Fine-tunes a classifier on mosaics of four photographs, so that it knows what is in each quarter.

Letters in the einops patterns: b images, k tiles of a mosaic, c classes.
"""

import copy

import torch
import torch.nn.functional as F
from einops import reduce
from torch import Tensor

import vit
from vit.explain.evaluation.ground_truth import mosaics

BATCH = 128
LEARNING_RATE = 5e-4


def train_on_mosaics(
    model: vit.VisionTransformer, images: Tensor, labels: Tensor, steps: int, seed: int = 0
) -> vit.VisionTransformer:
    """Return a copy of a classifier, trained on new mosaics; the target is 1/4 for each of the four classes.

    AdamW, with a learning rate that falls linearly to zero.

    Args:
        model: A trained classifier.
        images: Training images as the model expects them, (B, C, H, W).
        labels: Their classes, (B,).
        steps: Steps of 128 mosaics.
        seed: Seed of the mosaics.
    """
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        tiled, _, classes = mosaics(images[chosen], labels[chosen], generator)
        quarters = reduce(F.one_hot(classes, model.num_classes).float(), "b k c -> b c", "mean")
        F.cross_entropy(model(tiled), quarters).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


@torch.no_grad()
def recognised(model: vit.VisionTransformer, tiled: Tensor, labels: Tensor) -> float:
    """Return the share of mosaics whose asked class is among the model's four highest logits; chance is 4 / classes."""
    highest = torch.cat([model(part).topk(4, dim=1).indices for part in tiled.split(BATCH)])
    return (highest == labels[:, None]).any(dim=1).double().mean().item()
