"""The comparison of libraries, at a size that takes milliseconds."""

import json

import pytest
import throughput
import torch
from throughput import main
from throughput_models import EXPLICIT, OURS, PEERS, SIZES, Size, check_same, counted_flops, ours, timm

TINY = Size(16, 4, 24, 2, 3, {"cpu": 2, "cuda": 2})
ALL = OURS | PEERS | EXPLICIT


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the benchmark on the tiny size, and return its cells."""
    monkeypatch.setitem(SIZES, "tiny", TINY)

    def run(*arguments):
        main(["--sizes", "tiny", "--rounds", "1", "--output", str(tmp_path), *arguments])
        return json.loads((tmp_path / "throughput.json").read_text())

    return run


def test_the_operations_are_those_computed_by_hand():
    # 4 patches of 48 numbers, 5 tokens of 2 channels, a hidden layer of 8, 10 classes.
    projections = 2 * 5 * (2 * 6 + 2 * 2 + 2 * 8 + 8 * 2)
    attention = 2 * (5 * 5 * 2 + 5 * 5 * 2)
    assert Size(8, 4, 2, 1, 1, {}).forward_flops() == projections + attention + 2 * 4 * 48 * 2 + 2 * 2 * 10


@pytest.mark.parametrize("name", ALL)
def test_the_operations_are_those_that_torch_counts(name):
    assert counted_flops(ALL[name](TINY), TINY) == TINY.forward_flops()


def test_explicit_attention_does_not_call_the_fused_kernel(monkeypatch):
    x = torch.randn(1, 3, 16, 16)
    for name in ("timm", "transformers"):
        fused, explicit = PEERS[name](TINY).eval(), EXPLICIT[f"{name}, explicit attention"](TINY).eval()
        explicit.load_state_dict(fused.state_dict())
        torch.testing.assert_close(explicit(x), fused(x))
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)
        explicit(x)
        with pytest.raises(TypeError):
            fused(x)
        monkeypatch.undo()


def test_all_models_but_that_of_vit_pytorch_have_the_same_parameters():
    models = {name: build(TINY) for name, build in (OURS | PEERS).items()}
    check_same(models, TINY)
    del models["vit-pytorch"].pos_embedding
    check_same(models, TINY)
    models["torchvision"] = ours(Size(16, 4, 24, 1, 3, {}))
    with pytest.raises(ValueError, match=r"same number of parameters: .*'torchvision'"):
        check_same(models, TINY)


def test_models_with_other_logits_are_not_the_same():
    with pytest.raises(ValueError, match="logits of ours and timm differ by"):
        check_same({"ours": ours(TINY), "timm": timm(Size(16, 4, 24, 2, 4, {}))}, TINY)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step_moves_every_weight_and_an_inference_step_none(dtype):
    images, labels = torch.randn(2, 3, 16, 16), torch.tensor([3, 7])
    model = ours(TINY)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    throughput.inference_step(model, images, labels, dtype)()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    throughput.training_step(model, images, labels, dtype)()
    assert not any(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_measures_every_library_in_every_cell(run, tmp_path, unpadded, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "WARM_UP", 1)
    cells = run("--dtypes", "bf16")
    kind, modes = throughput.DEVICE.type, ["inference", "train"]
    assert list(cells) == [f"tiny {mode} bf16 eager {kind}" for mode in modes]
    for mode, cell in zip(modes, cells.values(), strict=True):
        assert cell.keys() >= throughput.provenance().keys()
        assert list(cell["rows"]) == list(ALL if kind == "cpu" else OURS | PEERS)
        operations = TINY.forward_flops() * (3 if mode == "train" else 1)
        for row in cell["rows"].values():
            low, median, high = row["images_per_second"]
            assert 0 < low <= median <= high
            assert row["flops_per_second"] == pytest.approx(median * operations)
            assert row["of_ceiling"] == pytest.approx(median * operations / cell["ceiling_flops_per_second"])
            assert row["first_call_seconds"] > 0
        peers = {name: row["images_per_second"][1] for name, row in cell["rows"].items() if name not in OURS}
        assert cell["rows"][max(peers, key=peers.get)]["against_best_peer"] == [1, 1, 1]
        assert {row["computed"] for row in cell["rows"].values()} == {1}
    report = (tmp_path / "throughput.md").read_text()
    assert capsys.readouterr().out.strip() == report.strip()
    assert [line[3:] for line in report.splitlines() if line.startswith("## ")] == list(cells)
    assert unpadded(report).count("\n| transformers | ") == 2


def test_a_library_that_is_missing_or_fails_is_a_row_with_the_reason(run, tmp_path, unpadded, monkeypatch):
    def missing(size):
        raise ImportError("No module named 'timm'\nand more")

    def failing(size):
        model = ours(size)
        model.forward = lambda images: 1 / 0
        return model

    monkeypatch.setitem(PEERS, "timm", missing)
    monkeypatch.setitem(PEERS, "torchvision", failing)
    (cell,) = run("--modes", "train", "--dtypes", "fp32", "--batch", "3").values()
    assert cell["batch"] == 3
    assert cell["rows"]["timm"] == {"failed": "ImportError: No module named 'timm'"}
    assert cell["rows"]["torchvision"] == {"failed": "ZeroDivisionError: division by zero"}
    assert all(cell["rows"][name]["images_per_second"][0] > 0 for name in ("ours", "vit-pytorch", "transformers"))
    assert "| timm | ImportError: No module named 'timm' |" in unpadded((tmp_path / "throughput.md").read_text())


def test_sizes_for_a_gpu_are_refused_without_one(run, monkeypatch, capsys):
    monkeypatch.setattr(throughput, "DEVICE", torch.device("cpu"))
    with pytest.raises(SystemExit):
        run("--sizes", "384x12-p2-32")
    assert "384x12-p2-32 has a batch for GPUs only" in capsys.readouterr().err
