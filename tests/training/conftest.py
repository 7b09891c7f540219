"""Runs of the command line on the digits, for the tests of this folder."""

from tests.digit_runs import (
    error_of,
    finished,
    folder,
    module_folder,
    no_pictures,
    pictures,
    run,
    trained,
    whole_and_resumed,
)

__all__ = [
    "error_of",
    "finished",
    "folder",
    "module_folder",
    "no_pictures",
    "pictures",
    "run",
    "trained",
    "whole_and_resumed",
]
