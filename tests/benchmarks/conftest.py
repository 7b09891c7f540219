"""Lets the tests import the benchmarks, which import each other as scripts of one folder do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
