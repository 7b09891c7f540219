"""Passes pictures of a run to the loggers that take images, each by its own call."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from PIL import Image


def _to_tensorboard(logger: Any, name: str, path: Path, step: int) -> None:
    logger.experiment.add_image(name, np.asarray(Image.open(path).convert("RGB")), step, dataformats="HWC")


# The call of each logger, by the name of its class or a base class: the packages of most are not installed.
CALLS: dict[str, Callable[[Any, str, Path, int], Any]] = {
    "CometLogger": lambda logger, name, path, step: logger.experiment.log_image(str(path), name=name, step=step),
    "LitLogger": lambda logger, name, path, step: logger.log_file(str(path)),
    "MLFlowLogger": lambda logger, name, path, step: logger.experiment.log_artifact(logger.run_id, str(path)),
    "NeptuneLogger": lambda logger, name, path, step: logger.experiment[f"pictures/{name}"].upload(str(path)),
    "TensorBoardLogger": _to_tensorboard,
    "WandbLogger": lambda logger, name, path, step: logger.log_image(name, [str(path)], step=step),
}


@rank_zero_only
def log_pictures(loggers: Sequence[Logger], paths: Sequence[Path], step: int, name: str | None = None) -> None:
    """Pass pictures to the loggers that take images, under one ``name`` or, by default, that of each file."""
    for logger in loggers:
        call = next((CALLS[cls.__name__] for cls in type(logger).__mro__ if cls.__name__ in CALLS), None)
        for path in paths if call is not None else ():
            call(logger, name or path.stem, path, step)
