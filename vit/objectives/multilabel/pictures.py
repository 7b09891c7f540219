"""The pictures of an evaluation with several labels per image: scores of the classes, mistakes, attention."""

from pathlib import Path

from lightning import LightningModule

from vit.data.image_set import ImageSet
from vit.objectives.classify.pictures import (
    MISTAKE_LETTERS,
    caption_of_file,
    draw_attention,
    draw_classes,
    draw_mistaken,
)
from vit.objectives.classify.roc_picture import draw_curves
from vit.support.captioned import trim_names
from vit.support.fonts import drawable
from vit.support.plotting import plain_text


def draw_multilabel(classifier: LightningModule, folder: Path, split: str, image_set: ImageSet) -> None:
    """Draw the last evaluation of a ``MultilabelClassifier``, if there was one, and the attention, into a folder."""
    evaluation = classifier.evaluation
    if evaluation is not None:
        draw_classes(classifier.scores(), f"Scores of the classes on the {split} images", folder / "per_class.png")
        draw_mistakes(classifier, f"The most confident mistakes on the {split} images", image_set, folder)
        targets, shown = evaluation.targets.bool(), range(len(classifier.names))
        draw_curves(
            evaluation.probabilities, targets, classifier.scores(), shown, f"{split} images", folder / "roc.png"
        )
    draw_attention(classifier, folder, split, image_set)


@plain_text
def draw_mistakes(classifier: LightningModule, title: str, image_set: ImageSet, folder: Path) -> None:
    """Draw the wrong labels that are farthest from their threshold: each image with its file, the label, the truth."""
    mistakes = classifier.evaluation.mistakes
    with drawable([*classifier.names, *(image_set.name(mistake.index) for mistake in mistakes)]) as names:
        classes = trim_names(names[: len(classifier.names)], MISTAKE_LETTERS)
        files = names[len(classifier.names) :]
        captions = [
            f"{caption_of_file(file)}\n{classes[mistake.number]}\n"
            f"{100 * mistake.probability:.0f} %, {'is there' if mistake.is_there else 'is not there'}"
            for mistake, file in zip(mistakes, files, strict=True)
        ]
        draw_mistaken(image_set, [mistake.index for mistake in mistakes], captions, title, folder / "mistakes.png")
