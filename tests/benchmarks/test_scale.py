"""Time and memory as images and batches grow, at sizes that take milliseconds."""

import json

import pytest
import scale
import torch
from records import provenance
from scale import allocated, main, report, slower

LIBRARIES = {"ours", "timm", "torchvision", "vit-pytorch", "transformers"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Measure few points, and return the cells."""
    points = {"tokens": {"inference": (8, 16)}, "batch": {"inference": (2,), "training": (2,)}}
    monkeypatch.setattr(scale, "POINTS", points | {"features": {"inference": (1,)}})
    monkeypatch.setattr(scale, "ROUNDS", (1, 2))

    def run(*arguments):
        main(["--output", str(tmp_path), "--seconds", "0", *arguments])
        return json.loads((tmp_path / "scale.json").read_text())

    return run


def test_memory_is_the_most_that_tensors_take_at_one_time():
    def call():
        first = torch.empty(1000, dtype=torch.uint8)
        second = torch.empty(500, dtype=torch.uint8)
        del first
        return second, torch.empty(900, dtype=torch.uint8)

    assert allocated(call) == 1500
    assert allocated(lambda: None) == 0


def test_all_libraries_are_measured_and_written_and_drawn(run, tmp_path, capsys, unpadded):
    cells = run("--dtypes", "fp32", "--parts", "tokens", "batch")
    assert set(cells) == {
        *("tokens 5 inference fp32", "tokens 17 inference fp32"),
        *("batch 2 inference fp32", "batch 2 training fp32"),
    }
    for cell in cells.values():
        assert set(cell["rows"]) == LIBRARIES
        assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in cell["rows"].values())
    training, inference = (cells[f"batch 2 {mode} fp32"]["rows"]["ours"]["bytes"] for mode in ("training", "inference"))
    assert training > 2 * inference
    assert (tmp_path / "scale_fp32.png").exists()
    text = (tmp_path / "scale.md").read_text()
    assert unpadded(text).index("| 5 |") < unpadded(text).index("| 17 |")
    assert capsys.readouterr().out.strip() == text.strip()


def test_features_of_both_ways_are_those_of_the_same_weights(run):
    (cell,) = run("--dtypes", "fp32", "--parts", "features").values()
    assert set(cell["rows"]) == {
        f"{name}, {way}" for name in ("ours", "timm") for way in ("forward_intermediates", "get_intermediate_layers")
    }
    calls = scale.feature_calls(torch.randn(2, 3, 32, 32), torch.float32)
    model, theirs = (calls[f"{name}, forward_intermediates"].args[0].cpu() for name in ("ours", "timm"))
    ways = {"indices": 4, "norm": True, "intermediates_only": True}
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(
        model.forward_intermediates(images, **ways), theirs.forward_intermediates(images, **ways), rtol=1e-4, atol=1e-4
    )


def cell_of(ours, **others):
    row = {"seconds": 0.1, "bytes": 2**20, "images_per_second": [1, 1, 1], "against_best_peer": [ours] * 3}
    facts = {"part": "tokens", "value": 65, "mode": "inference", "dtype": "fp32"} | provenance()
    return facts | {"rounds": 3, "rows": {"ours": row, "timm": row} | others}


def test_the_page_says_where_ours_is_slower():
    cells = {"tokens 65 inference fp32": cell_of(0.9), "batch 1 inference fp32": cell_of(0.96)}
    assert slower(cells).endswith("slower than the fastest other library at: one image of 65 tokens in fp32 (0.90).")
    assert slower({"tokens 65 inference fp32": cell_of(1.0)}).startswith("Nowhere is ours more than 5 %")


def test_a_library_that_fails_is_a_cell_of_the_table():
    text = report({"tokens 65 inference fp32": cell_of(1.2, torchvision={"failed": "RuntimeError: no memory"})})
    assert "100 ms (1.20), 1 MiB" in text
    assert "RuntimeError: no memory" in text


def test_one_library_that_fails_leaves_the_others(monkeypatch):
    def fails():
        raise RuntimeError("out of memory\nand more")

    rows = scale.compare({"ours": lambda: torch.zeros(3), "timm": lambda: torch.zeros(3), "other": fails}, 1, 0.0)[
        "rows"
    ]
    assert rows["other"] == {"failed": "RuntimeError: out of memory"}
    assert rows["ours"]["against_best_peer"][1] > 0
