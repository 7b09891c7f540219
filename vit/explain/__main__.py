"""``python -m vit.explain``: another name of ``python -m vit explain``."""

import sys

from vit.__main__ import main

main(["explain", *sys.argv[1:]])
