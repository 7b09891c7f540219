"""1,000 and 10,000 classes: what an evaluation keeps, and what page, table and results say."""

import json

import pytest
import torch

from vit.objectives.classify import evaluation as kept
from vit.objectives.classify.evaluation import Evaluation
from vit.objectives.classify.tables import evaluated_rows
from vit.runs.report import write_report
from vit.runs.tested_images import write_rows


def evaluated(classes, images=700):
    """An evaluation of invented predictions: most are right, and class 1 is taken for class 2 a hundred times."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % classes
    labels[:100] = 1
    said = torch.where(torch.rand(images, generator=generator) < 0.8, labels, (labels * 7 + 3) % classes)
    said[:100] = 2
    found = Evaluation(classes, torch.device("cpu"))
    for part in torch.arange(images).split(300):
        logits = torch.rand(len(part), classes, generator=generator)
        found.update(logits.scatter_add_(1, said[part][:, None], torch.full((len(part), 1), 5.0)), labels[part])
    return found, labels, said


@pytest.fixture(scope="module", params=[1000, 10_000])
def many(request):
    found, labels, said = evaluated(request.param)
    names = [f"class {number}" for number in range(request.param)]
    return found, names, labels, said


def test_the_largest_confusions_are_counted_without_a_matrix(many):
    found, names, labels, said = many
    assert found.accuracy == (labels == said).double().mean().item()
    first, *_ = scores = found.scores(names)["confusions"]
    assert first == {
        "class": "class 1",
        "predicted": "class 2",
        "count": 100,
        "share": 100 / (labels == 1).sum().item(),
    }
    assert len(scores) == kept.MOST_CONFUSED
    assert max(tensor.numel() for tensor in found.sums()) == 3 * len(names)


def test_of_more_than_a_thousand_classes_only_the_five_best_of_an_image_are_kept(many):
    found, names, _, said = many
    assert ("probabilities" in found.rows) == (len(names) <= kept.MOST_KEPT)
    assert found.rows["classes"].shape == (700, kept.BEST)
    assert found.rows["classes"][:, 0].equal(said)
    assert found.rows["best"].untyped_storage().nbytes() < 700 * 6 * 4


@pytest.fixture(scope="module")
def page(many, tmp_path_factory):
    """The folder of a run with the results, the table of images and the report."""
    found, names, *_ = many
    folder = tmp_path_factory.mktemp("run")
    scores = found.scores(names)
    results = {"experiment": "many", "test_accuracy": scores["accuracy"], "scores": scores}
    (folder / "results.json").write_text(json.dumps(results, indent=2))
    rows = evaluated_rows(found.rows, names, has_views=False)
    write_rows(folder / "test_images.csv", [{"file": str(index)} | row for index, row in rows.items()])
    return write_report(folder).parent


def test_results_page_and_table_stay_small(page, many):
    assert (page / "results.json").stat().st_size < 400_000
    assert (page / "report.html").stat().st_size < 200_000
    header = (page / "test_images.csv").read_text().splitlines()[0]
    assert header == "file,true_class,correct,class,probability,top5"
    text = (page / "report.html").read_text()
    assert f"{len(many[1]):,} classes, test images: the lowest and the highest 100" in text
    assert "The largest confusions, test images" in text


def test_the_lowest_and_the_highest_classes_are_told_and_those_without_images_are_not():
    rows = [{"name": number, "f1": None if number % 2 else number / 1000} for number in range(1000)]
    told = [row["name"] for row in kept.lowest_and_highest(rows, "f1")]
    assert told == [*range(0, 200, 2), *range(800, 1000, 2)]
    few = kept.lowest_and_highest(rows[:5], "f1")
    assert [row["name"] for row in few] == [0, 2, 4, 1, 3]
