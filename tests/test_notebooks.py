"""The notebooks run from top to bottom, and are committed with what they print and draw."""

import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"(?<![\w.~-])(/(home|root|Users|tmp|opt|usr|mnt|workspace)/|[A-Z]:\\)")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(cell: nbformat.NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


def texts(cell: nbformat.NotebookNode) -> list[str]:
    """What the outputs of a cell say, pictures left out."""
    said = []
    for output in cell.outputs:
        said.append(output.get("text", ""))
        said += [str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
    return said


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_it_runs_from_top_to_bottom_and_draws_as_many_pictures_as_stored(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # else the kernel would not draw into the notebook
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    for cell in code_cells(fresh):
        cell.outputs = []
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources=place).execute()
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
def test_each_numbered_section_shows_a_picture(path):
    shown, section = Counter(), None
    for cell in nbformat.read(path, as_version=4).cells:
        heading = re.search(r"^## (.*)", cell.source, flags=re.MULTILINE) if cell.cell_type == "markdown" else None
        section = heading[1] if heading else section
        shown[section] += pictures(cell)
    numbered = {name: count for name, count in shown.items() if name and name[0].isdigit()}
    assert numbered
    assert all(numbered.values()), numbered


@each_notebook
def test_its_stored_outputs_name_no_place_on_a_machine(path):
    said = [text for cell in code_cells(nbformat.read(path, as_version=4)) for text in texts(cell)]
    assert not [text for text in said if ABSOLUTE_PATH.search(text)]


@each_notebook
def test_it_is_small_enough_to_be_shown_beside_the_code(path):
    assert path.stat().st_size < 1_500_000
