"""The pictures of an evaluation with several labels an image: scores of the classes, mistakes, attention."""

from pathlib import Path

from lightning import LightningModule

from vit.data.module import ImageSet
from vit.objectives.classify.pictures import MISTAKE_LETTERS, MISTAKES, draw_attention, draw_classes
from vit.support.captioned import draw_captioned, trim_name
from vit.support.plotting import ORANGE


def draw_multilabel(classifier: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw the last evaluation of a ``MultilabelClassifier``, if there was one, and the attention, into a folder."""
    evaluation = classifier.evaluation
    if evaluation is not None:
        draw_classes(classifier.scores(), f"Scores of the classes on the {split} images", folder / "per_class.png")
        captions = [
            f"{trim_name(classifier.names[mistake.number], MISTAKE_LETTERS)}\n"
            f"{100 * mistake.probability:.0f} %, {'is there' if mistake.is_there else 'is not there'}"
            for mistake in evaluation.mistakes
        ]
        images = [mistake.image for mistake in evaluation.mistakes]
        title = f"The most confident mistakes on the {split} images"
        draw_captioned(images, captions, [ORANGE] * len(images), title, folder / "mistakes.png", **MISTAKES)
    draw_attention(classifier, folder, split, image_set)
