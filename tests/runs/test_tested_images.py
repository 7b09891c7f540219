"""The table of the test images: its rows are those of the data set, and what it says is what the model says."""

import csv
import hashlib
import json

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from tests.tiny import CPU, TINY
from vit.data import Digits
from vit.runs.tested_images import read_rows, write_rows

KNOWN = ["2", "3", "5", "7"]  # classes of the files


def results(folder) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_the_accuracies_of_the_table_are_those_of_the_results_to_the_last_bit(finished):
    rows, record = read_rows(finished), results(finished)
    assert [row["file"] for row in rows] == [str(number) for number in range(record["scores"]["count"])]
    for said, score in (("class", "test_accuracy"), ("class_over_views", "test_accuracy_views")):
        assert sum(row[said] == row["true_class"] for row in rows) / len(rows) == record[score]
    assert {row["correct"] == "true" for row in rows if row["class"] == row["true_class"]} == {True}
    assert {row["correct"] == "true" for row in rows if row["class"] != row["true_class"]} == {False}


def test_the_results_name_the_tested_file_and_its_digest(finished):
    record, checkpoint = results(finished), finished / "checkpoints/last.ckpt"
    assert record["tested_file"] == "runs/tiny/version_0/checkpoints/last.ckpt"
    assert record["tested_sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()


def test_a_run_that_keeps_no_checkpoint_names_no_tested_file(run, folder):
    run("fit", *TINY, "--trainer.max_steps", 1, "--trainer.enable_checkpointing", "false")
    record = results(folder / "runs/digits/version_0")
    assert record["test_accuracy"] is not None
    assert "tested_file" not in record


@pytest.fixture
def files(folder):
    """Thirty digits of four classes as files, in a folder of test images alone."""
    data = Digits()
    data.setup("fit")
    part = data.sets["test"]
    for number, (image, label) in enumerate(zip(part.images, part.labels.tolist(), strict=True)):
        place = folder / "photos/test" / str(label)
        if str(label) in KNOWN and number < 80:
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(place / f"{number:03}.png")
    return sorted((folder / "photos").rglob("*.png"))


def test_files_of_a_part_of_the_classes_have_rows_that_load_and_predict_repeat(run, finished, files, folder, capsys):
    of_files = ["--data", "ImageFolder", "--data.root", "photos", "--data.num_workers", 0]
    run("test", "--ckpt_path", finished, *of_files, *CPU, "--model.test_views", "none")
    evaluation = finished / "evaluations/test_last_0"
    rows = read_rows(evaluation)
    assert [row["file"] for row in rows] == [str(path.relative_to(folder / "photos")) for path in files]
    assert [row["true_class"] for row in rows] == [path.parent.name for path in files]

    model = vit.load(finished / "checkpoints/last.ckpt")
    mean, std = (model.pretrained_cfg[name][0] for name in ("mean", "std"))
    pixels = np.stack([np.array(Image.open(path)) for path in files])[:, None] / 255
    with torch.no_grad():
        probabilities = model(torch.from_numpy((pixels - mean) / std).float()).softmax(dim=1)
    found = [[float(row[f"P({digit})"]) for digit in range(10)] for row in rows]
    torch.testing.assert_close(torch.tensor(found), probabilities, rtol=1e-5, atol=1e-6)
    assert [row["class"] for row in rows] == [str(number) for number in probabilities.argmax(dim=1).tolist()]

    record = results(evaluation)
    assert record["test_accuracy"] == sum(row["correct"] == "true" for row in rows) / len(rows)
    said = "4 of 10 classes are in these images; none is of 0, 1, 4, 6, 8, 9"
    assert said in capsys.readouterr().out
    assert f'<p class="note">{said}.</p>' in (evaluation / "report.html").read_text()
    absent = [row for row in record["scores"]["classes"] if row["name"] not in KNOWN]
    assert {value for row in absent for name, value in row.items() if name not in ("name", "support")} == {None}
    present = [row["recall"] for row in record["scores"]["classes"] if row["name"] in KNOWN]
    assert record["scores"]["balanced_accuracy"] == pytest.approx(np.mean(present))

    run("predict", "--ckpt_path", finished, "--data.root", "photos", "--output", "said.csv", *CPU)
    with (folder / "said.csv").open() as file:
        predicted = [{**row, "file": row["file"].removeprefix("photos/")} for row in csv.DictReader(file)]
    assert predicted == [{name: row[name] for name in predicted[0]} for row in rows]


def test_a_test_of_some_batches_has_the_rows_of_an_even_part_of_the_images(run, finished):
    run("test", "--ckpt_path", finished, *CPU, "--trainer.limit_test_batches", 2)
    rows, every = read_rows(finished / "evaluations/test_last_0"), read_rows(finished)
    drawn = {row["file"] for row in rows}
    assert len(drawn) == 200
    assert drawn != {row["file"] for row in every[:200]}
    assert rows == [row for row in every if row["file"] in drawn]


def test_names_that_are_no_text_are_escaped(tmp_path):
    write_rows(tmp_path / "test_images.csv", [{"file": "a\udcff.png", "class": 'the "cat", sleeping'}])
    assert read_rows(tmp_path) == [{"file": "a\\udcff.png", "class": 'the "cat", sleeping'}]


def test_names_that_look_like_formulas_are_quoted_in_the_file_and_plain_when_read(tmp_path):
    rows = [{"file": "+/7.png", "class": "=", "share": "-0.5"}]
    write_rows(tmp_path / "test_images.csv", rows)
    assert "'+/7.png,'=,-0.5" in (tmp_path / "test_images.csv").read_text()
    assert read_rows(tmp_path) == rows


def test_a_folder_without_a_table_has_no_rows(tmp_path):
    assert read_rows(tmp_path) == []
