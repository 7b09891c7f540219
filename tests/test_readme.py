"""What the README and the contributing guide say to type runs."""

import json
import re
import statistics
from pathlib import Path

import pytest
import torch

import vit
from vit.attention import MECHANISMS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_python_runs_from_top_to_bottom():
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(code, names)
    assert isinstance(names["model"], vit.VisionTransformer)
    assert names["logits"].shape == (8, 10)
    assert names["tokens"].shape == (8, 1 + 96, 192)
    assert [part.shape for part in names["maps"]] == [(8, 192, 8, 8)] * 2
    assert names["weights"].shape == (1, 12, 65, 65)
    assert names["weights"].sum(-1).allclose(names["weights"].new_ones(()))
    assert names["answers"].shape == (8, 5, 192)
    assert [step.shape for step in names["steps"]] == [(8, 1, 192)] * 7
    assert [attn.shape for attn in names["attentions"]] == [(8, 12, 65, 65)] * 9
    assert names["rollout"].shape == names["relevance"].shape == (8, 8, 8)
    assert names["page"].lower().startswith("<!doctype html>")


def test_the_mechanism_of_the_contributing_guide_works_in_a_model_and_refuses_what_it_does_not_take(monkeypatch):
    monkeypatch.setattr(vit.attention.multihead, "MECHANISMS", table := dict(MECHANISMS))
    monkeypatch.setattr(vit.attention, "MECHANISMS", table)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["logits"].shape == (2, 10)
    block = names["model"].blocks[0]
    assert block.attn.mechanism.b.tolist() == [[[-0.5]]] * 12
    names["logits"].square().sum().backward()
    assert block.attn.mechanism.b.grad.abs().sum() > 0
    assert block.attn.weights(torch.randn(2, 5, 192)).shape == (2, 12, 5, 5)
    with pytest.raises(ValueError, match="attention 'sigmoid' cannot be causal"):
        vit.attention.MultiHeadAttention(192, 12, mechanism="sigmoid", causal=True)
    with pytest.raises(ValueError, match="attention 'sigmoid' has no argument 'shift': it takes offset"):
        vit.VisionTransformer(attention="sigmoid", attention_kwargs={"shift": 1.0})


@pytest.mark.parametrize(
    "name",
    sorted(set(re.findall(r"(?:configs|docs/images|benchmarks(?:/results)?|notebooks)/\w+\.\w+|\w+\.md", README))),
)
def test_the_files_it_names_exist(name):
    assert (ROOT / name).exists()


def row_with(text):
    (row,) = [line for line in README.splitlines() if line.startswith("|") and text in line]
    return row


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


RECIPES = {cell["recipe"] for cell in results("accuracy").values()}
VARIANTS = {"cifar10_quick, with a teacher", "cifar10_1h, with a teacher"}  # stand in benchmarks/RESULTS.md only


@pytest.mark.parametrize("recipe", sorted(RECIPES - VARIANTS))
def test_its_accuracies_are_those_of_the_results(recipe):
    cells = [cell for cell in results("accuracy").values() if cell["recipe"] == recipe]
    script = re.search(r"(benchmarks/\w+\.py|configs/\w+\.yaml)", cells[0]["command"])[1]
    row = row_with(f"{script} --data")
    for key in ("test_accuracy", "test_accuracy_views"):
        percent = [100 * cell[key] for cell in cells]
        spread = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
        assert f"{statistics.mean(percent):.1f}{spread} %" in row


@pytest.mark.parametrize(("mode", "what"), [("train", "training step"), ("inference", "inference")])
def test_its_speeds_are_those_of_the_results(mode, what):
    cells = results("throughput")
    ours = [cells[f"192x6-p4-32 {mode} {dtype} eager cpu"]["rows"]["ours"] for dtype in ("fp32", "bf16")]
    fp32, bf16 = (f"{row['against_best_peer'][1]:.2f}" for row in ours)
    assert f"{fp32} in fp32, {bf16} in bf16" in row_with(f"| {what}")


def test_its_speeds_of_larger_models_are_those_of_the_results():
    larger = {name: cell for name, cell in results("throughput").items() if not name.startswith("192x6")}
    for mode, what in (("train", "training"), ("inference", "inference")):
        found = [cell["rows"]["ours"]["against_best_peer"][1] for name, cell in larger.items() if f" {mode} " in name]
        assert len(found) == 3 * 2
        assert f"{what} {min(found):.2f} to {max(found):.2f}" in row_with("ViT-S/16 and ViT-B/16")


@pytest.mark.parametrize(
    ("cell", "what"),
    [("crop and flip cpu", "images cropped"), ("crop, flip and RandAugment cpu", "the same with Rand")],
)
def test_its_speeds_of_the_data_path_are_those_of_the_results(cell, what):
    rows = results("pipeline")[cell]["rows"]
    pil = rows["ours"]["images_per_second"][1] / rows["torchvision, PIL images, 2 workers"]["images_per_second"][1]
    assert f"| {rows['ours']['against_best_peer'][1]:.0f} (PIL images: {pil:.0f}) |" in row_with(what)


def test_its_overhead_is_that_of_the_results():
    rows = results("overhead")["bf16-mixed cpu"]["rows"]
    assert f"| {rows['Lightning']['against_best_peer'][1]:.2f} |" in row_with("training through Lightning")
