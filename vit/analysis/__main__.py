"""``python -m vit.analysis``: another name of ``python -m vit analysis``."""

import sys

from vit.__main__ import main

main(["analysis", *sys.argv[1:]])
