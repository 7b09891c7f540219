"""The order in which the callbacks of a run are called. Each callback has a file of its own."""

from collections.abc import Iterable

from lightning import Callback

from vit.training.checkpoints import RunCheckpoint
from vit.training.pictures import RunPictures
from vit.training.record import RunRecord
from vit.training.seeded_steps import SeededSteps
from vit.training.stop_at_nan import StopAtNaN

ORDER = (
    SeededSteps,  # seeds a step before the other callbacks can draw
    StopAtNaN,  # raises before a bad step is counted or saved
    RunPictures,  # prints what it could not draw before RunRecord prints how to resume
    RunRecord,  # completes the record before a checkpoint holds it
    RunCheckpoint,
)


def in_order(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return the callbacks in the order of ``ORDER``; a ValueError means that it has no place for one of them."""
    return sorted(callbacks, key=lambda callback: ORDER.index(type(callback)))
