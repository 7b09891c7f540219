"""Lightning against a bare loop, for two batches."""

import json
from functools import partial

import overhead
import pytest
import torch
from overhead import main


def test_it_leaves_a_cell_of_all_four_and_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="eager"))
    main(["--rounds", "1", "--batches", "2", "--output", str(tmp_path)])
    ((title, cell),) = json.loads((tmp_path / "overhead.json").read_text()).items()
    assert title == f"{overhead.fastest_precision('auto')} {overhead.DEVICE.type}"
    assert list(cell["rows"]) == ["Lightning", "bare loop", "Lightning, compiled", "bare loop, compiled"]
    rates = {name: row["images_per_second"][1] for name, row in cell["rows"].items()}
    for name, row in cell["rows"].items():
        loop = "bare loop, compiled" if "compiled" in name else "bare loop"
        assert row["against_best_peer"][1] == pytest.approx(rates[name] / rates[loop])
    assert cell.keys() >= {"command", "machine", "commit"}
    printed = capsys.readouterr().out
    assert "| bare loop " in printed
    assert "validation and checkpoints are left out of the measurement" in printed
