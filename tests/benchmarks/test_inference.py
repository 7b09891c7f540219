"""The benchmark of inference on CPUs, with processes and models that take no time."""

import json
from itertools import count

import inference
import pytest
import torch
from throughput_models import EXPLICIT, PEERS
from torch import nn

import vit


@pytest.fixture
def cells(monkeypatch, tmp_path):
    """Run the benchmark with made-up times, and return its cells."""
    ticks = count(1)

    class Process:
        def __init__(self, candidate, dtype, batch):
            if candidate == "torchvision, compiled":
                raise ValueError("ImportError: no module")
            of_libraries = {"vit-pytorch, eager bf16 weights": 0.04, "timm, compiled": 0.03, "timm, openvino": 0.02}
            self.time = 0.01 if candidate.startswith("ours") else of_libraries.get(candidate, 0.05)

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
    found = [round(fast[f"against_best_{way}"], 3) for way in ("eager", "compiled", "openvino")]
    assert found == [4, 3, 2]
    assert [round(each) for each in fast["milliseconds"]] == [10, 10, 10]


def test_int8_is_measured_beside_bfloat16_alone():
    assert "ours, openvino int8" not in inference.candidates("fp32")


def test_the_libraries_run_in_every_way_that_is_faster_for_some():
    fp32, bf16 = (set(inference.candidates(dtype)) for dtype in ("fp32", "bf16"))
    plain = {f"{peer}, {way}" for peer in PEERS for way in ("eager", "compiled")}
    plain |= {f"{peer}, eager" for peer in EXPLICIT} | {"timm, openvino"}
    assert plain < fp32
    assert plain | {f"{each} bf16 weights" for each in plain - {"timm, openvino"}} < bf16


def test_weights_in_bfloat16_make_logits_in_bfloat16():
    found = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    model.register_forward_hook(lambda module, inputs, output: found.append((inputs[0].dtype, output.dtype)))
    for way in ("eager", "eager bf16 weights"):
        inference.in_torch(model, way, "bf16", torch.zeros(1, 3, 2, 2))()
    assert found == [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]


def test_our_model_has_the_size_of_the_others_and_reads_all_patches():
    model = inference.ours("mean")
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
