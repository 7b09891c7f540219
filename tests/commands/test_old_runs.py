"""Runs of the version before objectives had folders of their own: they load, and are continued.

That version itself went on with other images than those that were left of the epoch; the losses are of these.
"""

import json
import shutil
from pathlib import Path

import pytest

BEFORE = Path(__file__).parents[1] / "before"


@pytest.mark.parametrize("kind", ["classifier", "reader", "completer", "masked"])
def test_an_old_run_is_continued_with_the_images_that_were_left_of_its_epoch(run, folder, capsys, kind):
    shutil.copytree(BEFORE / kind, folder / kind)
    # All validation images, as that version took other ones for a part of them.
    typed = ["--trainer.max_steps", "4", "--trainer.limit_val_batches", "1.0", "--experiment", "continued"]
    run("fit", "--ckpt_path", folder / kind, *typed)
    (csv,) = (folder / "runs/continued").glob("*/metrics.csv")
    header, *rows = (line.split(",") for line in csv.read_text().splitlines())
    expected = json.loads((BEFORE / kind / "resumed.json").read_text())
    for name, losses in expected.items():
        found = [float(row[header.index(name)]) for row in rows if row[header.index(name)]]
        assert found == pytest.approx(losses, abs=1e-5)
    assert "AttentionMaps is switched off" not in capsys.readouterr().out
    results = json.loads(csv.with_name("results.json").read_text())
    assert results["finished"]
