"""Names of classes, given or not."""

from collections.abc import Sequence

from vit.support.printable import printable


def name_classes(class_names: Sequence[str] | None, num_classes: int) -> list[str]:
    """The names in the order of the logits, as they can be shown; numbers if there are none.

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
