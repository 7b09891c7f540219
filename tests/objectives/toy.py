"""The smallest objective: an encoder whose feature tells how bright an image is. It has no accuracy."""

from pathlib import Path
from types import SimpleNamespace

import torch

from vit.support.files import replacing
from vit.training.description import Picture, Score, Table
from vit.training.encoder_module import EncoderModule
from vit.training.objective import Objective


class Brightness(Objective, EncoderModule):
    """Predicts the mean brightness of an image.

    Args:
        kwargs: Training and model.
    """

    monitor = Score("error", "Error", better="lower", unit="")
    pictures = (Picture("dot", "A dot", "A dot"),)
    from_data = (*Objective.from_data, "mean", "std")
    prediction_columns = ("brightness",)

    def forward(self, images):
        return self.network(self.normalise(images)).mean(dim=1)

    def training_loss(self, batch):
        return (self(batch[0]) - batch[0].float().mean(dim=(1, 2, 3)) / 255).square().mean()

    def new_evaluation(self):
        sums = torch.zeros(2)
        return SimpleNamespace(total=sums, sums=lambda: [sums], count=0, error=0.0, loss=0.0, scores=lambda: {})

    def validation_step(self, batch, batch_idx):
        found = self.evaluation
        found.total += torch.tensor([self.training_loss(batch) * len(batch[0]), len(batch[0])])
        found.count, found.error = int(found.total[1]), (found.total[0] / found.total[1]).item()
        found.loss, found.scores = found.error, lambda: {"error": found.error, "count": found.count}

    test_step = validation_step

    def draw(self, folder: Path, split, image_set):
        from PIL import Image

        with replacing(folder / "dot.png") as path:
            Image.new("L", (4, 4)).save(path, format="png")

    @classmethod
    def tables(cls, scores, split):
        return [
            Table(f"The error on {split} images", ("images", "error"), [("all", cls.monitor.text(scores["error"]))])
        ]

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def prediction_rows(self, outputs):
        return [{"brightness": f"{value:.3f}"} for value in outputs.tolist()]
