"""The benchmark of plans: small ones, its report and picture, and what its figures have to show."""

import json

import pytest
from PIL import Image
from plan import GROWTH, LADDER, draw_growth, memory_rows, report
from records import RESULTS

MADE = {"command": "python benchmarks/plan.py", "machine": "a machine", "commit": "abc1234", "date": "2026-11-24"}
ROW = {"options": "--config digits", "parameters": 1e6, "training_flop": 3e9, "batch": 64, "bytes": 2e9}
ROW |= {"bytes_per_image": 3e7, "largest_batch": 900, "images_per_second": 2e5, "seconds": 7.0, "lines": ["a line"]}


def test_a_training_by_the_trainer_takes_what_is_planned(monkeypatch):
    monkeypatch.setattr("plan.SIZES", {"48x2": (48, 2, 3)})
    rows = [*memory_rows()]
    assert [(row["checkpointing"], row["precision"]) for row in rows] == [
        (checkpointing, precision) for checkpointing in (False, True) for precision in ("32-true", "bf16-mixed")
    ]
    for row in rows:
        assert row["planned"] == pytest.approx(row["measured"], rel=0.1)
        assert row["tracked"] == pytest.approx(row["measured"], rel=0.15)


def test_the_report_has_both_parts(tmp_path):
    memory = {"size": "48x2", "checkpointing": True, "precision": "32-true", "planned": 9e6, "measured": 10e6}
    memory["tracked"] = 8e6
    growth = {part: dict.fromkeys(of, ROW) for part, of in GROWTH.items()}
    steps = {"made": MADE, "ladder": dict.fromkeys(LADDER, ROW), "growth": growth}
    text = report({"memory": {"made": MADE, "rows": [memory]}, "steps": steps})
    assert "| 48x2 | yes | 32-true | 9.0 | 10.0 | -10.0 | 8.0 | -20.0 |" in " ".join(text.split())
    assert text.count("vit-attention plan --config digits\n\na line") == len(LADDER)
    draw_growth(growth, tmp_path / "growth.png")
    with Image.open(tmp_path / "growth.png") as picture:
        assert min(picture.size) > 200


def test_planned_memory_is_within_a_tenth_of_the_measured_one_at_three_sizes():
    rows = json.loads((RESULTS / "plan.json").read_text())["memory"]["rows"]
    assert len({row["size"] for row in rows}) == 3
    assert {row["checkpointing"] for row in rows} == {True, False}
    assert all(abs(row["planned"] / row["measured"] - 1) < 0.1 for row in rows)
