"""Runs of the command line on the digits, for the tests of this folder."""

from tests.digit_runs import *  # noqa: F403 (pytest finds fixtures by their names here)
