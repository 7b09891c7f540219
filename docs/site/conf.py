"""The site: README, docs/, notebooks, results and an API reference, from the same files that the repository shows.

    sphinx-build -c docs/site . build/site

The source is the root of the repository, so that a link between two pages works in both places.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from vit.version import __version__ as version

ROOT = Path(__file__).parents[2]
project = "vit"
release = version
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "notebooks/*.ipynb"]
include_patterns += ["benchmarks/RESULTS.md", "benchmarks/results/*.md", "vit/weights/*.md", "docs/site/*.md"]
nb_execution_mode = "off"
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "vit"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["pages.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True

RESULTS = "benchmarks/RESULTS"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:]+)\)")
PARTS = {
    "Start here": ("notebooks/attention_from_scratch", "notebooks/attention_rollout", "docs/analysis", "docs/data"),
    "Look inside": ("docs/explain", "docs/trust"),
    "Train": ("docs/training", "docs/sweeps", "docs/scale", "docs/decoders", "notebooks/reading_digits"),
    "Build": ("docs/backbone", "docs/weights", "docs/inference", "docs/comparison"),
    "Do research on attention": (
        "docs/attention",
        "CONTRIBUTING",
        "docs/claims",
        "docs/results",
        f"All numbers <{RESULTS}>",
    ),
    "Look up": ("docs/README", "docs/glossary", "docs/site/api", "vit/weights/cifar10", "CHANGELOG"),
}


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the table of contents to the first page and to that of the results."""
    if name == root_doc:
        for part, pages in PARTS.items():
            source[0] += _contents(f":caption: {part}", pages)
    if name == RESULTS:
        source[0] += _contents(":glob:", ["results/*"])


def _contents(option: str, pages: Iterable[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", option, "", *pages, "```", ""])


def unlink_folders(app: Sphinx, name: str, source: list[str]) -> None:
    """Leave the text of links to folders, which are no pages."""
    here = (ROOT / name).parent
    source[0] = LINK.sub(lambda link: link[1] if (here / link[2]).is_dir() else link[0], source[0])


def write_formula(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers draw without a script from elsewhere."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Write the page that a browser opens first."""
    if error is None:
        Path(app.outdir, "index.html").write_text(
            f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n', encoding="utf-8"
        )


def setup(app: Sphinx) -> None:
    """Connect them."""
    app.connect("source-read", add_contents)
    app.connect("source-read", unlink_folders)
    app.connect("build-finished", write_index)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
