"""Classes of a model by their names."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from vit.support.checks import nearest_hint
from vit.support.class_names import name_classes

MOST_NAMED = 20  # classes in a message


def class_names_of(model: nn.Module, num_classes: int) -> list[str]:
    """Return the names of a model's classes, in the order of the logits; their numbers if it has none.

    They are those of ``pretrained_cfg`` of ``vit.load`` and timm, or of ``config.id2label`` of transformers.
    """
    settings = getattr(model, "pretrained_cfg", None)
    settings = settings if isinstance(settings, Mapping) else {}
    names = settings.get("class_names") or settings.get("label_names")
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not names and isinstance(labels, Mapping) and len(labels) == num_classes:
        by_number = {str(number): name for number, name in labels.items()}
        names = [by_number.get(str(number)) for number in range(num_classes)]
        names = None if None in names else names
    return name_classes(names if names and len(names) == num_classes else None, num_classes)


def thresholds_of(model: nn.Module) -> Sequence[float] | None:
    """Return the threshold of the probability of each class if the model gives several labels, or else None."""
    settings = getattr(model, "pretrained_cfg", None)
    return settings.get("thresholds") if isinstance(settings, Mapping) else None


def check_one_of_several(model: nn.Module, logits: Tensor, measured: str) -> None:
    """Raise a ValueError unless a model gives each image one of several classes, whose probability is measured.

    Args:
        model: The model.
        logits: Its logits.
        measured: What is measured by the probability, as the error says it.
    """
    name = type(model).__name__
    if thresholds_of(model) is not None:
        raise ValueError(
            f"{name} gives several labels an image, and {measured} is measured by the probability of one class: draw "
            "its maps, which need none"
        )
    if logits.ndim != 2:
        raise ValueError(
            f"{name} returned scores of shape {tuple(logits.shape)}, not one for each class (B, classes): wrap it in a "
            "module that returns these, for example the mean over places"
        )
    if logits.shape[1] < 2:
        raise ValueError(
            f"{name} has one logit only, whose probability by softmax is always 1: wrap it in a module that returns a "
            "logit for each of two classes, as torch.cat([0 * logit, logit], dim=1)"
        )


def class_number(name: str, names: Sequence[str]) -> int:
    """Return the number of a class by its name, or by its number as a text.

    >>> class_number("dog", ["cat", "dog"]), class_number("0", ["cat", "dog"])
    (1, 0)

    Raises:
        ValueError: If no class has this name, or several have it.
    """
    found = [number for number, known in enumerate(names) if known == name]
    if len(found) > 1:
        raise ValueError(f"classes {', '.join(map(str, found))} are all named {name!r}: give one of these numbers")
    if found:
        return found[0]
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    last = len(names) - 1
    if list(names) == [str(number) for number in range(len(names))]:
        raise ValueError(f"unknown class {name!r}: the classes of this model have no names, give one from 0 to {last}")
    listed = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    raise ValueError(
        f"unknown class {name!r}{nearest_hint(name, names)}: choose one of {listed}, or a number from 0 to {last}"
    )


def class_numbers(model: nn.Module, classes: Any, num_classes: int) -> int | Tensor | list[int]:
    """Return classes by number: names, or a list of names, become numbers, and numbers stay as they are."""
    if isinstance(classes, str):
        return class_number(classes, class_names_of(model, num_classes))
    if isinstance(classes, list | tuple) and any(isinstance(each, str) for each in classes):
        return [class_numbers(model, each, num_classes) for each in classes]
    return classes
