"""Pages in one HTML file each: Jinja templates in the frame of `frame.html`, with the pictures inside.

A page needs no other file, no server, no network and no script. Every text in it is escaped, control characters too.
"""

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from vit.support.printable import printable


def page_templates() -> Environment:
    """Return the templates by their paths below ``vit``, such as "runs/report.html"."""
    return Environment(
        loader=PackageLoader("vit", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )


def _shown(value: Any) -> Any:
    """Return what a template shows: of a text, no control characters, and no bytes that UTF-8 cannot hold."""
    return type(value)(printable(value, keep="\n\t")) if isinstance(value, str) else value


def data_url(picture: Path) -> str:
    """Return a PNG file as a URL that holds the file itself."""
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"
