"""What all objectives share: the base of their modules, optimisers, schedule, moving average, freezing."""

import importlib
from typing import Any

# Class paths in the configs of earlier versions, and where these classes are now.
MOVED = {
    **dict.fromkeys(("ImageCompleter", "SequenceReader", "ViTClassifier"), "vit.objectives"),
    "AttentionMaps": "vit.runs.attention_over_time",
    "EMA": "vit.training.ema",
}


def __getattr__(name: str) -> Any:
    if name not in MOVED:
        raise AttributeError(f"vit.training has no {name!r}")
    return getattr(importlib.import_module(MOVED[name]), name)
