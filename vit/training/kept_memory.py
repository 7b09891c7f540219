"""The earlier place of ``vit.keep_freed_memory``, for code that imports it from here."""

from vit.support.kept_memory import keep_freed_memory

__all__ = ["keep_freed_memory"]
