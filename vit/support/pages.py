"""Pages in one HTML file each: Jinja templates in the frame of `frame.html`, with the pictures inside.

A page needs no other file, no server, no network and no script, and every text in it is escaped.
"""

import base64
from pathlib import Path

from jinja2 import Environment, PackageLoader


def page_templates() -> Environment:
    """Return the templates by their paths below ``vit``, such as "runs/report.html"."""
    return Environment(loader=PackageLoader("vit", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def data_url(picture: Path) -> str:
    """Return a PNG file as a URL that holds the file itself."""
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"
