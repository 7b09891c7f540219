"""What pyproject.toml cannot say: configs/ goes into the package, and the links of README.md become absolute.

A publishing workflow knows the address of the repository, and tells it by the variable REPOSITORY_URL. Without it the
links stay as they are.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
REPOSITORY = os.environ.get("REPOSITORY_URL", "").rstrip("/")
LINK = re.compile(r"(\]\(|src=\"|href=\")(?!https?:|#)([^)\"\s]+)")


class BuildWithConfigs(build_py):
    """Copies the configs beside the modules of a wheel; a checkout has them beside the package."""

    def run(self) -> None:
        """Build the package, then copy."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(ROOT / "configs", Path(self.build_lib, "vit", "configs"), dirs_exist_ok=True)


def readme() -> str:
    """Return README.md, with absolute links if the address of the repository is known."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return LINK.sub(_absolute, text) if REPOSITORY else text


def _absolute(link: re.Match) -> str:
    kind = "raw" if Path(link[2]).suffix in (".png", ".svg") else "blob"
    return f"{link[1]}{REPOSITORY}/{kind}/HEAD/{link[2]}"


addresses = {
    "Source": REPOSITORY,
    "Changelog": f"{REPOSITORY}/blob/HEAD/CHANGELOG.md",
    "Issues": f"{REPOSITORY}/issues",
}
setup(
    cmdclass={"build_py": BuildWithConfigs},
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=addresses if REPOSITORY else {},
)
