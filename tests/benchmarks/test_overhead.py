"""Lightning against a bare loop, for two batches."""

import json

import overhead
import pytest
from overhead import main


def test_it_leaves_a_cell_with_both_and_a_report(tmp_path, capsys):
    main(["--rounds", "1", "--batches", "2", "--output", str(tmp_path)])
    ((title, cell),) = json.loads((tmp_path / "overhead.json").read_text()).items()
    assert title == f"{overhead.fastest_precision('auto')} {overhead.DEVICE.type}"
    assert list(cell["rows"]) == ["Lightning", "bare loop"]
    assert cell["rows"]["bare loop"]["against_best_peer"] == [1, 1, 1]
    lightning, bare = (cell["rows"][name]["images_per_second"][1] for name in cell["rows"])
    assert cell["rows"]["Lightning"]["against_best_peer"][1] == pytest.approx(lightning / bare)
    assert cell.keys() >= {"command", "machine", "commit"}
    printed = capsys.readouterr().out
    assert "| bare loop | " in printed
    assert "Validation and\ncheckpoints are left out of the measurement" in printed
