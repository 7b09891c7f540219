"""The models of five libraries, for the tests of this folder."""

from tests.architectures import *  # noqa: F403
