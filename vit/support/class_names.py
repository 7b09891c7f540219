"""Names of classes: given, found, or made up."""

from collections.abc import Iterable, Sequence

from vit.support.checks import nearest_hint
from vit.support.printable import list_names, printable


def name_classes(class_names: Sequence[str] | None, num_classes: int) -> list[str]:
    """Return the names in the order of the logits, with unprintable characters escaped; numbers if there are none.

    >>> name_classes(None, 3), name_classes(["cat", "dog"], 2)
    (['0', '1', '2'], ['cat', 'dog'])

    Raises:
        ValueError: If there are more or fewer names than classes.
    """
    if class_names is None:
        return [str(number) for number in range(num_classes)]
    if len(class_names) != num_classes:
        raise ValueError(f"{len(class_names)} class_names for {num_classes} classes: give one for each, in their order")
    return [printable(str(name)) for name in class_names]


def match_classes(found: Iterable[str], known: Sequence[str] | None, place: object) -> list[str]:
    """Return the names of the classes: those found, sorted, or those of a trained model, which must include all found.

    >>> match_classes({"dog", "cat"}, None, "photos"), match_classes({"dog"}, ["cat", "dog", "eel"], "photos")
    (['cat', 'dog'], ['cat', 'dog', 'eel'])

    Args:
        found: Names of the classes that have images.
        known: Names of the model's classes, in the order of the logits; None without a model.
        place: Where the images are, for the message.

    Raises:
        ValueError: If a name is none of the model's.
    """
    if known is None:
        return sorted(found)
    if unknown := sorted(set(found) - set(known)):
        hinted = [f"{name}{nearest_hint(name, known)}" for name in unknown]
        raise ValueError(
            f"{place} has images of {list_names(hinted)}, and the model knows {list_names(known)}: name each class as "
            "one of these, or train a model of your classes by --model.init_from"
        )
    return list(known)
