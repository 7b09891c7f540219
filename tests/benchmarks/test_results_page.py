"""The page of all results, from numbers made up for the test."""

import itertools
import json

import ablate
import accuracy
import pytest
import results_page
from accuracy_figure import draw_accuracy, measured_points
from matplotlib.text import Annotation
from records import machine, write_cell
from results_page import PUBLISHED, main


@pytest.fixture
def put(results_of):
    """Put a cell into accuracy.json in a folder."""

    def put(folder, recipe, seed, value, **others):
        cell = {"recipe": recipe, "machine": machine()} | results_of(seed, value) | others
        write_cell(folder / "accuracy.json", accuracy.cell_name(cell), cell, accuracy.report)

    return put


@pytest.fixture
def results(tmp_path, put):
    """A folder with three seeds of a recipe."""
    for seed, value in enumerate([0.71, 0.72, 0.75]):
        put(tmp_path / "results", "quick", seed, value)
    return tmp_path / "results"


def text_of(folder):
    main(["--results", str(folder)])
    return (folder.parent / "RESULTS.md").read_text()


def test_nothing_measured_is_nothing_written(tmp_path):
    text = text_of(tmp_path / "results")
    assert "##" not in text
    assert "|" not in text
    assert not (tmp_path / "results").exists()


def test_recipes_come_best_first_with_command_machine_and_date(results, put):
    put(results, "slow", 0, 0.84)
    put(results, "digits", 0, 0.98, data="Digits")
    text = text_of(results)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Accuracy on CIFAR-10", "## All numbers"]
    assert "digits" not in text  # 98 % of something else
    assert text.index("| slow, cpu | 84.00 |") < text.index("| quick, cpu | 72.67 ± 2.08 |")
    date = machine()["date"]
    (made,) = [line for line in text.splitlines() if line.startswith("- quick, cpu: ")]
    assert "`python train.py fit --config configs/quick.yaml --seed_everything SEED` on " in made
    assert date in made
    assert (results / "accuracy_petaflop.png").stat().st_size > 10_000
    assert text.count("arXiv 2112.13492") == 1
    assert "our arithmetic" in text


def test_ablation_and_speeds_have_sections_of_their_own(results):
    facts = {"machine": machine(), "command": "python train.py fit", "seed": 0, "steps": 70, "val_loss": 1.0}
    facts["budget"] = 70
    for part, changed, value in ((ablate.RECIPE, [], 0.6), ("no flip", ["--data.flip", "false"], 0.58)):
        cell = {"recipe": "quick", "part": part, "changed": changed, "val_accuracy": value} | facts
        write_cell(results / "ablation.json", part, cell, ablate.report)
    rows = {
        "ours": {"images_per_second": [9.0, 1200.0, 1300.0], "against_best_peer": [1.1, 1.2, 1.3], "of_ceiling": 0.5},
        "timm": {"images_per_second": [9.0, 1000.0, 1100.0], "against_best_peer": [1.0, 1.0, 1.0]},
        "torchvision": {"failed": "ImportError"},
    }
    cell = {"machine": machine(), "command": "python benchmarks/throughput.py", "rows": rows}
    write_cell(results / "throughput.json", "192x6 train", cell, str)
    text = text_of(results)
    assert "### quick, 70 steps" in text
    assert "| no flip | `--data.flip false` | 70 | 58.00 | -2.00 |" in text
    assert "| 192x6 train | 1,200 (9 to 1,300) | 1.20 (1.10 to 1.30) | timm | 50% |" in text
    assert "bare loop" not in text


def test_cells_of_another_folder_are_taken_over(results, put, tmp_path):
    put(tmp_path / "other", "quick", 1, 0.5)
    put(tmp_path / "other", "quick", 0, 0.96, device="NVIDIA H200")
    main(["--results", str(results), "--add", str(tmp_path / "other")])
    cells = json.loads((results / "accuracy.json").read_text())
    assert {name: cell["test_accuracy"] for name, cell in cells.items()} == {
        "quick, NVIDIA H200, seed 0": 0.96,
        **{f"quick, cpu, seed {seed}": value for seed, value in enumerate([0.71, 0.5, 0.75])},
    }


def test_no_label_lies_on_another_or_leaves_the_plot(results, put, tmp_path):
    put(results, "one minute", 0, 0.93, petaflop=15.0)
    put(results, "ten minutes", 0, 0.963, petaflop=160.0)
    put(results, "quick, with a teacher", 0, 0.7, petaflop=0.1)
    put(results, "untested", 0, None)
    points = measured_points(accuracy.recipes(json.loads((results / "accuracy.json").read_text())))
    assert [(point["name"], point["deviation"] > 0) for point in points] == [
        ("one minute", False),
        ("quick", True),
        ("quick, with a teacher", False),
        ("ten minutes", False),
    ]
    figure = draw_accuracy(points + PUBLISHED, tmp_path / "plot.png")
    (axes,) = figure.axes
    figure.draw_without_rendering()
    labels = [text for text in axes.texts if isinstance(text, Annotation) and text.get_visible()]
    assert len(labels) == len(points) + len(PUBLISHED)
    boxes = [text.get_window_extent() for text in labels]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


def test_every_published_number_has_a_source_that_others_can_find():
    assert len({point["name"] for point in PUBLISHED}) == len(PUBLISHED)
    for point in PUBLISHED:
        assert point["kind"] in ("pure", "other")
        assert 50 < point["accuracy"] < 100
        assert 0 < point["petaflop"][0] <= point["petaflop"][1]
        assert point["source"].startswith(("arXiv ", "github.com/"))


def test_every_file_of_results_can_be_taken_over():
    assert results_page.REPORTS.keys() == results_page.SECTIONS.keys()
