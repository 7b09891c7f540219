"""The weights that are evaluated: of a checkpoint, or of a file or a name that ``vit.load`` reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only

from vit.commands.models import is_training_checkpoint, tell_assumed
from vit.training.objective import Objective
from vit.training.sharding import load_whole
from vit.weights import load, read_checkpoint


def read_evaluated(path: Path, wanted: Mapping[str, Any], encoder: str | None) -> dict[str, Any]:
    """Return weights as a checkpoint of an objective.

    Args:
        path: A checkpoint, or what ``vit.load`` reads.
        wanted: Arguments of ``vit.load``.
        encoder: Name of the Vision Transformer in the objective.
    """
    if is_training_checkpoint(path):
        return read_checkpoint(path)
    trained = load(str(path), **wanted)
    rank_zero_only(tell_assumed)(trained)
    state = {f"{encoder}.{name}": value for name, value in trained.state_dict().items()}
    if (thresholds := trained.pretrained_cfg.get("thresholds")) is not None:  # of several labels an image
        state["thresholds"] = torch.tensor(thresholds)
    about = {"hyper_parameters": trained.pretrained_cfg, "encoder": {"arguments": trained.config}}
    return about | {"state_dict": state}


def load_evaluated(model: Objective, checkpoint: dict[str, Any]) -> None:
    """Load the weights and the notes of a checkpoint into a model, also into a sharded one.

    Raises:
        ValueError: If the model has another architecture.
    """
    model.check_fits(checkpoint)
    if model.device_mesh is None:
        model.load_state_dict(checkpoint["state_dict"])
    else:
        load_whole(model, checkpoint["state_dict"])
    model.take_notes(checkpoint)
