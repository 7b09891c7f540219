"""The benchmark of kept memory, on a model that takes milliseconds."""

import json
from types import SimpleNamespace

import kept_memory
import pytest
from throughput_models import Size


@pytest.fixture
def small(monkeypatch):
    """One size of two batches, in this process."""
    monkeypatch.setattr(kept_memory, "SIZES", {"tiny": Size(8, 4, 24, 1, 3, {})})
    monkeypatch.setattr(kept_memory, "BATCHES", {"tiny": (1, 2)})


def test_a_process_times_each_library_batch_and_type(small, monkeypatch, capsys):
    monkeypatch.setattr(kept_memory.vit, "keep_freed_memory", lambda: True)
    kept_memory.main(["--serve", "kept"])
    seconds = json.loads(capsys.readouterr().out)
    assert set(seconds) == {
        f"tiny, {batch} images, {dtype}, {library}"
        for batch in (1, 2)
        for dtype in ("fp32", "bf16")
        for library in ("ours", "timm")
    }
    assert all(each > 0 for each in seconds.values())


def test_processes_take_turns_and_ratios_are_those_of_a_round(tmp_path, monkeypatch, capsys):
    served = []

    def run(words, **_):
        served.append(words[-1])
        seconds = {"freed": 0.3, "kept": 0.1 if len(served) < 3 else 0.2}[words[-1]]
        return SimpleNamespace(stdout=json.dumps({"tiny, 2 images, fp32, ours": seconds}))

    monkeypatch.setattr(kept_memory, "subprocess", SimpleNamespace(run=run, PIPE=None))
    kept_memory.main(["--rounds", "2", "--output", str(tmp_path)])
    assert served == ["freed", "kept", "kept", "freed"]
    (row,) = json.loads((tmp_path / "kept_memory.json").read_text())["rows"].values()
    assert row["ratio"] == pytest.approx([1.875, 2.25, 2.625])
    assert "| 2.25 (" in capsys.readouterr().out


def test_a_system_that_keeps_no_memory_ends_with_a_line(monkeypatch):
    monkeypatch.setattr(kept_memory.vit, "keep_freed_memory", lambda: False)
    with pytest.raises(SystemExit, match="keeps no memory by request"):
        kept_memory.main(["--serve", "kept"])
