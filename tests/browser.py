"""A browser that opens the pages of the package."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

import pytest

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def running_browser() -> Iterator:
    """A browser; without one the test is skipped, or fails where REQUIRE_BROWSER is 1."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _no_browser("playwright is not installed: pip install playwright")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        except Error as error:
            _no_browser(f"no Chromium starts (playwright install chromium): {error.message.splitlines()[0]}")
        yield browser
        browser.close()


def _no_browser(reason: str) -> NoReturn:
    if os.environ.get("REQUIRE_BROWSER") == "1":
        pytest.fail(f"REQUIRE_BROWSER is 1, but {reason}")
    pytest.skip(reason)


@contextmanager
def opened(browser, path: Path, **options) -> Iterator:
    """A browser's page of this file; afterwards, it must have printed nothing and loaded nothing else."""
    messages, requests = [], []
    with browser.new_context(**options) as context:
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        yield page
    assert not messages
    assert {url for url in requests if not url.startswith("data:")} <= {path.as_uri(), "about:srcdoc"}


def axe_core() -> str:
    """The program of axe-core: the file that AXE_CORE names, or that of axe-playwright-python; else as no browser."""
    if path := os.environ.get("AXE_CORE"):
        return Path(path).read_text(encoding="utf-8")
    try:
        return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    except ModuleNotFoundError:
        return _no_browser(
            "axe-core is not there: pip install axe-playwright-python, or AXE_CORE=FILE names axe.min.js"
        )


def violations(page, axe: str, rules: Sequence[str] = WCAG) -> list[str]:
    """What breaks one of the rules on a page, by default of WCAG 2.2, A and AA: each rule and element."""
    page.evaluate(axe)
    found = page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)["violations"]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]
