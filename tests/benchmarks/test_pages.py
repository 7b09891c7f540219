"""The tables in README.md, docs/ and the model cards, generated from the files of results."""

import json
import re

import pages
import pytest


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_results(path):
    assert path.read_text() == pages.filled(path.read_text()), "run python benchmarks/pages.py"


def test_every_table_is_on_a_page():
    text = "".join(path.read_text() for path in pages.PAGES)
    assert {name for _, name in pages.TABLE.findall(text)} == pages.TABLES.keys()


def test_a_table_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="no table 'speeds': choose one of highlights, results"):
        pages.filled("<!-- table: speeds -->\n<!-- end -->")


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (
            "<!-- table: speed -->\ntext\n<!-- table: loading -->\n<!-- end -->",
            "table speed has no <!-- end --> before",
        ),
        ("<!-- table: speed -->\n<!-- end -->\n<!-- table: loading -->\ntext", "the last table of the page has no"),
    ],
)
def test_a_table_without_an_end_is_refused_before_text_is_lost(page, message):
    with pytest.raises(ValueError, match=message):
        pages.filled(page)


def row_of(table, *words):
    (row,) = [line for line in table.splitlines() if all(word in line for word in words)]
    return row


@pytest.fixture
def change(tmp_path, monkeypatch):
    """Change the cells of a file of results, in a copy of them all."""
    for path in pages.RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(pages, "RESULTS", tmp_path)

    def change(name, edit):
        path = tmp_path / f"{name}.json"
        cells = json.loads(path.read_text())
        edit(cells)
        path.write_text(json.dumps(cells))

    return change


def test_a_training_has_a_row_once_it_is_measured_with_its_seeds_and_commit(change):
    def measure_digits(cells):
        template = cells["cifar10, cpu, seed 0"]
        template = {name: value for name, value in template.items() if name not in ("fingerprint", "stale")}
        for seed, accuracy in ((6, 0.97), (7, 0.99)):
            facts = {"recipe": "digits", "seed": seed, "test_accuracy": accuracy, "test_accuracy_views": None}
            cells[f"digits, cpu, seed {seed}"] = template | facts | {"commit": "abc1234", "fingerprint": {}}

    change("accuracy", lambda cells: [cells.pop(name) for name in [*cells] if name.startswith("digits")])
    assert "digits" not in pages.results()
    change("accuracy", measure_digits)
    row = row_of(pages.results(), "digits")
    assert "98.0 ± 1.4 %, 2 seeds" in row
    assert "commit abc1234" in row_of(pages.accuracy(), "handwritten digits")
    assert "6, 7" in row_of(pages.accuracy(), "digits")


@pytest.mark.parametrize("commit", [None, "abc1234-dirty"])
def test_a_commit_that_is_not_known_exactly_is_left_out_but_never_the_mark(commit, change):
    change("accuracy", lambda cells: [cell.update(stale=None, commit=commit) for cell in cells.values()])
    row = row_of(pages.accuracy(), "handwritten digits")
    assert not any(word in row for word in ("commit", "dirty", "out-of-date"))
    change("accuracy", lambda cells: [cell.update(stale="vit has changed") for cell in cells.values()])
    assert "(out-of-date)" in row_of(pages.accuracy(), "handwritten digits")


def test_tables_of_the_same_origin_on_one_page_state_it_once(change):
    assert "Measured on" in pages.reading()
    assert "Measured on" not in pages.peaks() + pages.pruned()
    readers = [name for name in pages.read("decoders") if name.startswith("read_digits")]
    change("decoders", lambda cells: [cells[name].pop("reading") for name in readers[1:]])
    assert "Measured on" in pages.peaks()


@pytest.mark.parametrize(("stale", "note"), [("vit/training has changed", " (out-of-date)"), (None, "")])
def test_the_readme_marks_results_that_are_out_of_date(change, stale, note):
    change("inference", lambda cells: [cell.update(stale=stale, commit="abc1234") for cell in cells.values()])
    (row,) = (" ".join(line.split()) for line in pages.results().splitlines() if "vit.optimize in fp32" in line)
    assert re.search(rf" compiled{re.escape(note)} \|$", row)


def test_the_readme_says_first_what_was_measured_and_what_of_it_is_out_of_date(change):
    def train(cells):
        for cell in cells.values():
            cell |= {"test_accuracy": 0.625 if cell["recipe"].startswith("timm") else 0.75, "stale": None}
            cell |= {"stale": "vit has changed"} if "torchvision loader" in cell["recipe"] else {}

    def draw(cells):
        scores = {"attnlrp": 0.75, "relevance": 0.5, "rollout": 0.25, "center": 0.125}
        for cell in cells.values():
            for row in cell.get("photographs", ()):
                row["drop"] = [scores.get(row["method"], 0.0) + shift for shift in (0.0, -0.125, 0.25)]

    change("accuracy", train)
    change("explanations", draw)
    change("inference", lambda cells: cells["fp32 batch 128"].update(stale="vit has changed"))
    learns, fast, maps = (" ".join(item.split()) for item in pages.highlights().split("- **")[1:])
    assert "75.0 ± 0.0 % on CIFAR-10" in learns
    assert re.search(
        r"reaches \[62.5 ± 0.0 %\]\(.*\) with the strongest recipe found for it \(ours is better\)\.", learns
    )
    assert "torchvision's loader" not in learns  # whose training is out of date
    ratios = re.findall(r"\d\.\d\d", pages.results().split("vit.optimize in fp32")[1].split("\n")[0])
    least = float(re.search(r"at least (\d\.\d) times as fast", fast)[1])
    assert least <= min(map(float, ratios)) < least + 0.1
    assert re.search(
        r"batches of 128 at least .* \(fp32 \(out-of-date\)\)\. "
        r"The engine is OpenVINO, which makes timm's model as fast\. "
        r"Without `vit.optimize`, \[single images\]\(.*\) run at [\d.]+ to [\d.]+ times the speed of the fastest\.",
        fast,
    )
    assert "for `gradcam`, 0.50 (0.38 to 0.75) for `relevance`, 0.12 (0.00 to 0.38) for the best control, 0.25" in maps
    assert "0.25 (0.12 to 0.50) for `rollout`" in maps
    for name in ("accuracy", "inference", "explanations"):
        change(name, lambda cells: [cell.get("made", cell).update(stale=None) for cell in cells.values()])
    assert "out-of-date" not in pages.highlights().lower()


@pytest.mark.parametrize("table", ["maps", "maps_found"])
def test_controls_are_the_last_rows_and_maps_of_any_class_are_named(table):
    methods = re.findall(r"^\| `(\w+)`(?: \((.*?)\))?", pages.TABLES[table](), re.MULTILINE)
    kinds = [kind for _, kind in methods]
    assert kinds == sorted(kinds, key=lambda kind: kind == "control")
    assert {name for name, kind in methods if kind == "any class"} == {"value", "attention", "rollout", "value_rollout"}


def test_our_speed_with_the_shortcut_of_before_has_no_row(change):
    def measure_every_token(cells):
        for name, cell in cells.items():
            speed = 1.01 if "fp32" in name else 1.02
            row = {"images_per_second": [9.0] * 3, "against_best_peer": [1.0, speed, 1.1], "computed": 1.0}
            cell["rows"]["ours"] = row

    change("throughput", measure_every_token)
    assert "speed: training " in row_of(pages.results(), "1.01 to 1.02 ", "training")
    assert "shortcut" not in pages.results()
    assert "shortcut" not in pages.speed()
    row = row_of(pages.speed(), "192x6-p4-32 ", "training ")
    assert [cell.strip() for cell in row.split("|")[3:7]] == ["1.01", "1.02", "1.01", "1.02"]


def test_the_sentence_below_a_table_has_each_machine_once_with_all_its_dates_and_commits():
    made = {"machine": "one", "date": "2026-01-01", "commit": "abc1234", "fingerprint": {}}
    later = made | {"date": "2026-01-02"}
    cells = [{"made": made}, {"made": later}, {"made": made | {"machine": "two"}}]
    assert pages.measured_on(cells) == (
        "Measured on one, 2026-01-01, commit abc1234, 2026-01-02; two, 2026-01-01, commit abc1234."
    )
