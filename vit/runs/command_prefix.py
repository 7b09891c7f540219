"""How a command of a training is typed: by the script of a checkout, or by the installed command."""

import sys
from pathlib import Path

SCRIPT, INSTALLED = "train.py", "vit-attention"


def command_prefix() -> str:
    """Return what stands before ``fit`` in a command that this process prints: a wheel has no script."""
    return f"python {SCRIPT}" if Path(sys.argv[0]).name == SCRIPT else INSTALLED
