"""The site: it builds without a warning, and has every page and every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vit
import vit.explain

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as ``make site`` does; a warning, such as of a broken link, is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c", "docs/site", "."]
    built = subprocess.run([*words, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_the_repository_is_a_page_of_the_site(site):
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("benchmarks/results/*.md")]
    for page in [*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        assert site.joinpath(page.relative_to(ROOT)).with_suffix(".html").exists()
    assert "url=README.html" in (site / "index.html").read_text()


def test_the_reference_has_every_public_name(site):
    page = (site / "docs/site/api.html").read_text()
    names = {f"vit.{name}" for name in set(vit.__all__) - {"PRESETS", "__version__", "attention"}}
    names |= {f"vit.explain.{name}" for name in vit.explain.__all__ if not name.isupper()}
    assert not {name for name in names if f'id="{name}"' not in page}


def test_formulas_are_drawn_without_a_script(site):
    page = (site / "notebooks/attention_from_scratch.html").read_text()
    assert page.count("<math ") > 20
    assert not re.findall(r"<p>[^<]*\$[^<]*</p>", page)


WIDER = """() => [...document.querySelectorAll("table, pre")].filter(part => {
    const box = part.closest(".table-wrapper") || part
    return box.scrollWidth > box.clientWidth + 1
}).map(part => part.innerText.slice(0, 40))"""


def test_code_and_tables_fit_a_page_of_800_pixels(site, browser):
    with browser.new_context(viewport={"width": 800, "height": 900}) as context:
        tab = context.new_page()
        for page in ("README", "CONTRIBUTING", *(f"docs/{path.stem}" for path in ROOT.glob("docs/*.md"))):
            tab.goto((site / f"{page}.html").as_uri())
            assert tab.evaluate(WIDER) == [], page


def test_pages_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link)[^>]* (?:src|href)="(https?:[^"]+)"', page.read_text()), page
