"""The arguments that a model was built with."""

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class ModelConfig(dict[str, Any]):
    """The arguments of a model by name: a dict that attributes can be set on, as transformers' ``Trainer`` does.

    Only the items are compared and saved. They are loaded as an ``OrderedDict``, also with ``weights_only``.

    >>> config = ModelConfig(embed_dim=192)
    >>> config.use_cache = False
    >>> config == {"embed_dim": 192}
    True
    """

    def to_json_string(self) -> str:
        """Return the items as JSON, for loggers that transformers calls."""
        return json.dumps(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelConfig":
        return ModelConfig(copy.deepcopy(dict(self), memo))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[list[tuple[str, Any]]]]:
        return OrderedDict, (list(self.items()),)
