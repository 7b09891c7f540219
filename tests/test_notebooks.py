"""The notebooks run from top to bottom, and are committed with their outputs."""

import re
import shutil
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"(?<![\w.~-])(/(home|root|Users|tmp|opt|usr|mnt|workspace)/|[A-Z]:\\)")
# Sections that show a page or a report in words in place of a picture.
PAGES_AND_REPORTS = (
    "11. Explore every layer and head",
    "8. How far can each map be believed?",
    "3. How often it looks at the right digit",
    "4. Does it need to look there?",
    "7. Every layer and head",
)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(cell: nbformat.NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """The text of the outputs of a cell, pictures left out."""
    found = []
    for output in cell.outputs:
        found.append(output.get("text", ""))
        found += [str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of notebooks beside ``train.py`` and the configuration of a shorter training."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the kernel would not draw into the notebook
    shutil.copy(ROOT / "train.py", tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    config = tmp_path / "configs/digits.yaml"
    config.write_text(config.read_text().replace("max_epochs: 30", "max_epochs: 8"))
    (tmp_path / "notebooks").mkdir()
    for name in ("cifar10", "reading_digits"):
        shutil.copytree(ROOT / "notebooks" / name, tmp_path / "notebooks" / name)
    return tmp_path / "notebooks"


@each_notebook
def test_it_runs_from_top_to_bottom_and_draws_as_many_pictures_as_stored(path, folder):
    stored, fresh = (nbformat.read(path, as_version=4) for _ in range(2))
    for cell in code_cells(fresh):
        cell.outputs = []
        cell.source = cell.source.replace("[:100]", "[:10]")  # images to score maps with
        cell.source = cell.source.replace("[:500]", "[:40]").replace("[:200]", "[:20]")  # pictures to read
        # The same model with a quarter of the patches.
        cell.source = cell.source.replace('vit.load("cifar10")', 'vit.load("cifar10", patch_stride=4)')
        # Fewer photographs, the horse among them, and one to occlude patch by patch.
        cell.source = cell.source.replace('[Path("cifar10")])', '[Path("cifar10")])[-4:]').replace(
            "[3, 6, 8, 10]", "[3]"
        )
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources=resources).execute()
    assert [pictures(cell) for cell in fresh.cells] == [pictures(cell) for cell in stored.cells]
    outputs = [output for cell in code_cells(fresh) for output in cell.outputs]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]  # a reader would see the warnings


@each_notebook
def test_its_stored_outputs_are_those_of_one_run_without_errors(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert notebook.metadata.kernelspec.name == "python3"
    assert not any("execution" in cell.metadata for cell in cells)  # the times of that one run


@each_notebook
def test_each_section_with_code_is_numbered_and_shows_a_picture_or_what_stands_for_it(path):
    shown, section = Counter(), None
    for cell in nbformat.read(path, as_version=4).cells:
        heading = re.search(r"^## (.*)", cell.source, flags=re.MULTILINE) if cell.cell_type == "markdown" else None
        section = heading[1] if heading else section
        is_page = section in PAGES_AND_REPORTS and cell.get("outputs")
        shown[section] += 1 if is_page else pictures(cell)
    numbered = {name: count for name, count in shown.items() if name and name[0].isdigit()}
    assert [int(name.split(".")[0]) for name in numbered] == [*range(1, len(numbered) + 1)]
    assert all(numbered.values()), numbered


@each_notebook
def test_it_contains_no_absolute_path_and_is_small_enough_for_a_code_host_to_show(path):
    printed = [text for cell in code_cells(nbformat.read(path, as_version=4)) for text in texts(cell)]
    assert not [text for text in printed if ABSOLUTE_PATH.search(text)]
    assert path.stat().st_size < 1_500_000
