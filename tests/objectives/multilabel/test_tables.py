"""The tables of several labels an image, beside what the evaluation counts."""

import pytest
import torch

from vit.objectives.multilabel.evaluation import MultilabelEvaluation
from vit.objectives.multilabel.tables import evaluated_rows, mistakes_table
from vit.runs.tested_images import read_rows, write_rows


@pytest.mark.parametrize(
    "names",
    [["cat", "dog"], ["-ve", "+ve"], ["=a", "b"], ["-1", "1"], ["a; b", "c"], ["c", "@a; b"], ["'a", "b"]],
    ids=" | ".join,
)
def test_the_wrong_labels_of_the_report_are_those_of_the_evaluation_whatever_classes_are_called(names, tmp_path):
    evaluation = MultilabelEvaluation(torch.full((2,), 0.5), torch.device("cpu"))
    labels = torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]])
    evaluation.update(9 * labels - 4.5, torch.cat([labels[:3], torch.tensor([[0.0, 1]])]))
    rows = evaluated_rows(evaluation.rows, evaluation.thresholds, names, has_views=False)
    write_rows(tmp_path / "test_images.csv", [{"file": f"{place}.png"} | row for place, row in rows.items()])
    (table,) = mistakes_table(read_rows(tmp_path), evaluation.scores(names))
    assert table.rows == [("3.png", names[1], "1.1", "50.0", "is there")]
