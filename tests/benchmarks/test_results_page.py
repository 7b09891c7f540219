"""The page of all results, from numbers made up for the test, and that of the repository."""

import itertools
import json
import re
from pathlib import Path

import ablate
import accuracy
import pytest
import results_page
from accuracy_figure import measured_points
from matplotlib.text import Annotation
from records import RESULTS, machine, provenance, write_cell
from results_page import FILES, PUBLISHED, main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def put(results_of):
    """Put a cell into accuracy.json in a folder."""

    def put(folder, recipe, seed, value, **others):
        cell = {"recipe": recipe, "machine": machine()} | results_of(seed, value) | others
        write_cell(folder / "accuracy.json", accuracy.cell_name(cell), cell, accuracy.report)

    return put


@pytest.fixture(scope="module")
def results(tmp_path_factory, put):
    """A folder with recipes on two data sets, an ablation and a comparison of speeds."""
    results = tmp_path_factory.mktemp("benchmarks") / "results"
    for seed, value in enumerate([0.71, 0.72, 0.75]):
        put(results, "quick", seed, value)
    put(results, "quick", 0, 0.76, device="NVIDIA H200", petaflop=0.1)
    put(results, "one minute", 0, 0.93, petaflop=15.0)
    put(results, "ten minutes", 0, 0.963, petaflop=160.0, commit="abc1234")
    put(results, "timm, AdamW", 0, 0.6, peer=True)
    put(results, "untested", 0, None)
    for seed, value in ((6, 0.97), (7, 0.98), (8, 0.99)):
        put(results, "digits", seed, value, data="Digits", petaflop=0.001, commit="abc1234")
    facts = provenance() | {"seed": 0, "steps": 70, "val_loss": 1.0, "budget": 70}
    for part, changed, value in ((ablate.RECIPE, [], 0.6), ("no flip", ["--data.flip", "false"], 0.58)):
        cell = {"recipe": "quick", "part": part, "changed": changed, "val_accuracy": value} | facts
        write_cell(results / "ablation.json", part, cell, ablate.report)
    rows = {
        "ours": {"images_per_second": [9.0, 1200.0, 1300.0], "against_best_peer": [1.1, 1.2, 1.3], "of_ceiling": 0.5},
        "ours, class token alone": {"images_per_second": [9.0, 1010.0, 1300.0], "against_best_peer": [1.0, 1.01, 1.02]},
        "timm": {"images_per_second": [9.0, 1000.0, 1100.0], "against_best_peer": [1.0, 1.0, 1.0]},
        "torchvision": {"failed": "ImportError"},
    }
    for row in rows.values():
        row |= {"flops_per_second": 1e12, "of_ceiling": 0.5, "computed": 1, "parameters": 7, "first_call_seconds": 1.0}
    cell = {"batch": 2, "rounds": 1, "ceiling_flops_per_second": 2e12, "rows": rows}
    made = provenance() | {"command": "python benchmarks/throughput.py", "commit": "abc1234"}
    older = {"rows": {name: row for name, row in rows.items() if name != "ours, class token alone"}, "commit": ""}
    for name, changed in (("192x6 train", {}), ("older train", older)):
        write_cell(results / "throughput.json", name, cell | made | changed, FILES["throughput"].report)
    return results


@pytest.fixture(scope="module")
def page(results, unpadded):
    """The text of the page, and the figure of its plot."""
    figures = []
    with pytest.MonkeyPatch.context() as patch:
        draw = results_page.draw_accuracy
        patch.setattr(results_page, "draw_accuracy", lambda *given: figures.append(draw(*given)))
        main(["--results", str(results)])
    return unpadded((results.parent / "RESULTS.md").read_text()), figures[0]


def test_without_results_the_page_has_no_section(tmp_path):
    main(["--results", str(tmp_path / "results")])
    text = (tmp_path / "RESULTS.md").read_text()
    assert "##" not in text
    assert "|" not in text
    assert not (tmp_path / "results").exists()


def test_recipes_come_best_first_with_command_machine_date_and_commit(page, results):
    text, _ = page
    assert re.findall("^## (.*)", text, re.MULTILINE) == [
        *("Accuracy on CIFAR-10", "Accuracy on other data", "What each part of a recipe is worth"),
        *("The same Vision Transformer in five libraries", "All numbers"),
    ]
    assert text.index("| quick, NVIDIA H200 | 76.00 |") < text.index("| quick, cpu | 72.67 ± 2.08 |")
    date = machine()["date"]
    (made,) = [line for line in text.splitlines() if line.startswith("- quick, cpu: ")]
    assert "`python train.py fit --config configs/quick.yaml --seed_everything SEED` on " in made
    assert made.endswith(f"{date}, commit not recorded (unchecked).")
    (made,) = [line for line in text.splitlines() if line.startswith("- ten minutes, cpu: ")]
    assert made.endswith(f"{date}, abc1234 (unchecked).")
    assert "The defaults of timm's model and torchvision's loader" in text
    assert (results / "accuracy_petaflop.png").stat().st_size > 10_000
    assert text.count("arXiv 2112.13492") == 1


def test_other_data_have_a_table_of_their_own_and_no_point(page, results):
    text, figure = page
    before, after = text.split("## Accuracy on other data")
    assert "digits" not in before
    (row,) = [line for line in after.splitlines() if line.startswith("| digits, cpu |")]
    assert row.startswith("| digits, cpu | 98.00 ± 1.00 |")
    assert row.endswith("| 6, 7, 8 |")
    assert not any("digits" in text.get_text() for text in figure.axes[0].texts)
    assert "## digits, cpu" in (results / "accuracy.md").read_text()


def test_ablation_and_speeds_have_sections_of_their_own(page):
    text, _ = page
    assert "### quick, 70 steps" in text
    assert "| no flip | `--data.flip false` | 70 | 58.00 | -2.00 |" in text
    speeds = "| 1,200 (9 to 1,300) | 1.20 (1.10 to 1.30) |"
    assert f"| 192x6 train {speeds} 1.01 (1.00 to 1.02) | timm | 50% |" in text
    assert f"| older train {speeds} | timm | 50% |" in text
    command = "`python benchmarks/throughput.py`"
    assert f"Made by {command} (abc1234 (unchecked)), {command} (commit not recorded (unchecked))." in text
    assert "bare loop" not in text


def test_no_label_lies_on_another_or_leaves_the_plot(page, results):
    _, figure = page
    cells = json.loads((results / "accuracy.json").read_text())
    groups = accuracy.recipes({name: cell for name, cell in cells.items() if cell["recipe"] != "digits"})
    points = measured_points(groups)
    assert [(point["name"], point["kind"], point["deviation"] > 0) for point in points] == [
        ("one minute", "measured", False),
        ("quick, NVIDIA H200", "measured", False),
        ("quick, cpu", "measured", True),
        ("ten minutes", "measured", False),
        ("timm", "peer", False),
    ]
    assert_labels_are_apart(figure, len(points) + len(PUBLISHED))


def assert_labels_are_apart(figure, count):
    (axes,) = figure.axes
    figure.draw_without_rendering()
    labels = [text for text in axes.texts if isinstance(text, Annotation) and text.get_visible()]
    assert len(labels) == count
    boxes = [text.get_window_extent() for text in labels]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


def test_the_labels_of_the_published_plot_are_in_it_and_apart(tmp_path):
    cells = accuracy.with_first_stages(json.loads((RESULTS / "accuracy.json").read_text()))
    cifar = {name: cell for name, cell in cells.items() if "cifar10" in cell["data"].lower()}
    points = measured_points(accuracy.recipes(cifar))
    assert {"one hour", "packaged", "ten minutes"} <= {point["name"] for point in points}
    figure = results_page.draw_accuracy(points + PUBLISHED, tmp_path / "plot.png")
    assert_labels_are_apart(figure, len(points) + len(PUBLISHED))


def test_cells_of_another_folder_are_added(put, tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "draw_accuracy", lambda points, path: None)
    put(tmp_path / "results", "quick", 0, 0.71)
    put(tmp_path / "results", "quick", 1, 0.72)
    put(tmp_path / "other", "quick", 1, 0.5)
    put(tmp_path / "other", "quick", 0, 0.96, device="NVIDIA H200")
    main(["--results", str(tmp_path / "results"), "--add", str(tmp_path / "other")])
    cells = json.loads((tmp_path / "results" / "accuracy.json").read_text())
    assert {name: cell["test_accuracy"] for name, cell in cells.items()} == {
        "quick, NVIDIA H200, seed 0": 0.96,
        "quick, cpu, seed 0": 0.71,
        "quick, cpu, seed 1": 0.5,
    }


def test_the_pages_of_the_repository_are_those_of_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "draw_accuracy", lambda points, path: None)
    monkeypatch.setattr(results_page, "FILES", {name: file._replace(draw=None) for name, file in FILES.items()})
    there = ROOT / "benchmarks" / "results"
    (tmp_path / "results").mkdir()
    for path in there.glob("*.json"):
        (tmp_path / "results" / path.name).write_text(path.read_text())
    main(["--results", str(tmp_path / "results")])
    names = ["RESULTS.md", *(f"results/{name}.md" for name in FILES if (there / f"{name}.json").exists())]
    differing = [name for name in names if (tmp_path / name).read_text() != (there.parent / name).read_text()]
    assert not differing, "run python benchmarks/results_page.py"


def test_every_result_of_the_repository_has_command_machine_and_date():
    for path in (ROOT / "benchmarks" / "results" / f"{name}.json" for name in FILES):
        results = json.loads(path.read_text()) if path.exists() else {}
        for made in [results["made"]] if "made" in results else results.values():
            made = made.get("made", made.get("note", made))
            assert made["command"].startswith("python ")
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"] if "date" in made else made["machine"]["date"])


def test_every_published_number_has_a_public_source():
    assert len({point["name"] for point in PUBLISHED}) == len(PUBLISHED)
    for point in PUBLISHED:
        assert point["kind"] in ("pure", "other")
        assert 50 < point["accuracy"] < 100
        assert 0 < point["petaflop"][0] <= point["petaflop"][1]
        assert point["source"].startswith(("arXiv ", "github.com/"))
