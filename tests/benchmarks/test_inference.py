"""The benchmark of inference on CPUs, with processes and models that take no time."""

import json
from itertools import count

import inference
import pytest
import torch
from throughput_models import PEERS

import vit


@pytest.fixture
def cells(monkeypatch, tmp_path):
    """Run the benchmark with made-up times, and return its cells."""
    ticks = count(1)

    class Process:
        def __init__(self, candidate, dtype, batch):
            if candidate == "torchvision, compiled":
                raise ValueError("ImportError: no module")
            self.time = 0.01 if candidate.startswith("ours") else 0.02

        def seconds(self):
            return self.time + next(ticks) * 1e-9

        def end(self):
            pass

    monkeypatch.setattr(inference, "Process", Process)
    inference.main(["time", "--dtypes", "bf16", "--batches", "1", "128", "--rounds", "2", "--output", str(tmp_path)])
    return json.loads((tmp_path / "inference.json").read_text())


def test_every_candidate_has_a_row_beside_the_best_of_the_others(cells, capsys):
    assert list(cells) == ["bf16 batch 1", "bf16 batch 128"]
    rows = cells["bf16 batch 128"]["rows"]
    assert rows.keys() == set(inference.candidates("bf16"))
    assert rows["torchvision, compiled"] == {"failed": "ImportError: no module"}
    fast = rows["ours, openvino int8"]
    assert (round(fast["against_best_eager"], 3), round(fast["against_best_compiled"], 3)) == (2, 2)
    assert [round(each) for each in fast["milliseconds"]] == [10, 10, 10]


def test_int8_is_measured_beside_bfloat16_alone():
    assert "ours, openvino int8" not in inference.candidates("fp32")
    assert {f"{peer}, {way}" for peer in PEERS for way in ("eager", "compiled")} < set(inference.candidates("fp32"))


def test_our_model_has_the_size_of_the_others_and_reads_all_patches():
    model = inference.ours()
    assert (model.pool, model.embed_dim, len(model.blocks), model.patch_embed.num_patches) == ("mean", 192, 6, 64)


def test_the_accuracy_is_that_of_the_predictions(monkeypatch, tmp_path, save_noise):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            save_noise(tmp_path / part / name, 2)
    monkeypatch.setattr(vit, "load", lambda name: model)
    monkeypatch.setattr(vit, "optimize", lambda model, dtype, calibration: Fast())
    model = vit.VisionTransformer(num_classes=2)
    model.pretrained_cfg |= {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}

    class Fast:
        engine = "none"

        def __call__(self, images):
            return torch.tensor([[2.0, 1]]).expand(len(images), 2)

    cell = inference.accuracy(tmp_path, ["fp32", "int8"], 4)
    assert cell == {"images": 4, "rows": {"none fp32": {"accuracy": 0.5}, "none int8": {"accuracy": 0.5}}}
