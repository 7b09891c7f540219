"""The message about a training whose loss ended far above that of its first steps."""

import math
from collections.abc import Mapping, Sequence

# A training that learns nothing ends at the loss of its first steps. Overfitting raises the loss of the evaluation.
FAR_IN_TRAINING = 1.5
FAR_IN_EVALUATION = 10.0


def describe_divergence(train: Sequence[Mapping[str, float]], evaluated: float, num_classes: int) -> str | None:
    """Return a message if a training diverged; None if it did not.

    It diverged if the last training loss is above 1.5 times the loss at the start. It also diverged if the loss of the
    last evaluation is above 10 times that. The loss at the start is the larger of that of the first steps and that of
    equal probabilities for all classes.

    >>> describe_divergence([{"loss": 2.3}, {"loss": 0.4}], evaluated=5.1, num_classes=10)

    Args:
        train: The history of the training loss, the first steps first; a training of few steps has none.
        evaluated: The loss of the last evaluation.
        num_classes: Number of classes; 0 for data without classes.
    """
    if not train and not num_classes:
        return None
    losses = [entry["loss"] for entry in train]
    start = max([*losses[:1], math.log(max(num_classes, 2))])
    last = [("training", loss, FAR_IN_TRAINING) for loss in losses[-1:]]
    for name, loss, far in [*last, ("evaluation", evaluated, FAR_IN_EVALUATION)]:
        if not loss <= far * start:  # NaN is not
            return (
                f"the training diverged: the last {name} loss is {loss:.3g}, and it began at about {start:.3g}; try a "
                "lower --model.lr, or a longer --model.warmup"
            )
    return None
