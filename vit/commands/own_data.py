"""What a user's own data module tells the model about its images, by attributes."""

from collections.abc import Iterable, Mapping
from typing import Any

from lightning import LightningDataModule

from vit.training.encoder_module import as_list

# What a model has to know of images, with examples.
NEEDED = {"image_size": 32, "in_channels": 3, "num_classes": 10}


def arguments_of_own_data(
    data: LightningDataModule, names: Iterable[str], of_weights: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a model that a data module has as attributes.

    Args:
        data: The data module.
        names: Names of the arguments, without those that the user typed.
        of_weights: What the trained weights tell of their images; it stands in for missing attributes.

    Raises:
        ValueError: If the model needs to know more.
    """
    found = {name: of_weights.get(name) if (value := getattr(data, name, None)) is None else value for name in names}
    if missing := [name for name in NEEDED if name in found and found[name] is None]:
        options = " ".join(f"--model.{name} {NEEDED[name]}" for name in missing)
        raise ValueError(
            f"{type(data).__name__} has no {', '.join(missing)}: add {options}, or set attributes of these names"
        )
    lists = {name: as_list(found[name]) for name in ("mean", "std") if found.get(name) is not None}
    lists |= {"class_names": list(classes)} if (classes := found.get("class_names")) is not None else {}
    return {name: value for name, value in found.items() if value is not None} | lists
