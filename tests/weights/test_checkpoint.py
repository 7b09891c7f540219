"""Checkpoints: loading ours, of today and of before; refusing what is none, is another's, or would run code."""

import io
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from vit.attention import MECHANISMS
from vit.objectives import ViTClassifier
from vit.weights import read_checkpoint
from vit.weights.checkpoint import is_ours, upgrade

SIZES = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 2}
SIZES |= {"pool": "cls+mean", "num_registers": 5}
CLASSIFIER = {"lr": 1e-3, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3], "class_names": ["cat", "dog"]}


@pytest.fixture
def model():
    model = vit.VisionTransformer(**SIZES)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


@pytest.fixture
def checkpoint(model):
    state = {f"vit.{name}": tensor for name, tensor in model.state_dict().items()}
    return {"state_dict": state, "hyper_parameters": CLASSIFIER | SIZES, "epoch": 3}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.ckpt"


def test_a_loaded_model_is_in_eval_mode_and_gives_the_same_logits(model, checkpoint, path):
    torch.save(checkpoint, path)
    images = torch.randn(2, 3, 6, 10)
    loaded = vit.load(path)
    assert not any(module.training for module in loaded.modules())
    assert_close(loaded(images), model(images), rtol=0, atol=0)
    assert_close(vit.load(str(path))(images), model(images), rtol=0, atol=0)


def test_a_loaded_model_knows_how_its_images_are_normalised_and_its_classes_are_named(checkpoint, path):
    torch.save(checkpoint, path)
    expected = {name: CLASSIFIER[name] for name in ("mean", "std", "class_names")} | {"crop_ratio": 1.0}
    assert vit.load(path).pretrained_cfg == expected | {"input_size": [3, 6, 10], "crop_pct": 1.0}


def test_what_the_checkpoint_does_not_say_is_what_the_classifier_took(checkpoint, path):
    checkpoint["hyper_parameters"] = SIZES
    torch.save(checkpoint, path)
    assert vit.load(path).pretrained_cfg == {
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "class_names": None,
        "crop_ratio": 1.0,
        "input_size": [3, 6, 10],
        "crop_pct": 1.0,
    }
    classifier = ViTClassifier(**SIZES)
    assert classifier.mean.flatten().tolist() == classifier.std.flatten().tolist() == [0.5] * 3


@pytest.mark.parametrize("prefix", ["network.", "network.encoder.", "teacher.", ""])
@pytest.mark.parametrize("attention", MECHANISMS)
def test_models_with_every_attention_are_loaded_from_where_the_checkpoint_says(path, attention, prefix):
    model = vit.VisionTransformer(**SIZES, attention=attention)
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    state |= {"decoder.weight": torch.zeros(3)} if prefix else {}
    encoder = {"prefix": prefix, "arguments": model.config, "about": {"thresholds": [0.3, 0.6]}}
    torch.save({"state_dict": state, "hyper_parameters": {}, "module": "Later", "encoder": encoder}, path)
    images, loaded = torch.randn(2, 3, 6, 10), vit.load(path)
    assert_close(loaded(images), model.eval()(images), rtol=0, atol=0)
    assert (loaded.config, loaded.pretrained_cfg["thresholds"]) == (model.config, [0.3, 0.6])


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (None, r"last\.ckpt holds no Vision Transformer: Later\.load_from_checkpoint reads it"),
        ({"prefix": 3, "arguments": SIZES}, r"last\.ckpt is damaged: its encoder needs a prefix and arguments"),
        ({"prefix": "vit.", "arguments": [3]}, r"last\.ckpt is damaged: its encoder needs a prefix and arguments"),
        ({"prefix": "vit.", "arguments": SIZES | {"a\nb": 3}}, r"unexpected keyword argument 'a\\nb'$"),
        ({"prefix": "vit.", "arguments": SIZES | {"depth": torch.ones(3)}}, r"last\.ckpt is damaged: arguments are"),
        ({"prefix": "net.", "arguments": SIZES}, r"depth 2, and holds 0 blocks: it is damaged"),
        ({"prefix": "vit.", "arguments": SIZES, "about": {"thresholds": [0.3]}}, r"damaged: thresholds \(\[0\.3\]\)"),
    ],
    ids=str,
)
def test_an_encoder_that_is_none_or_is_not_described_is_refused(checkpoint, path, encoder, message):
    torch.save(checkpoint | {"module": "Later", "encoder": encoder}, path)
    with pytest.raises(ValueError, match=message):
        vit.load(path)


@pytest.mark.parametrize(
    ("kind", "prefix", "classes"),
    [("classifier", "network.", 10), ("reader", "network.encoder.", 0), ("completer", "", 0), ("masked", "", 0)],
)
def test_a_checkpoint_of_the_version_before_has_the_names_of_today(kind, prefix, classes):
    before = Path(__file__).parents[1] / "before" / kind / "checkpoints/last.ckpt"
    contents = read_checkpoint(before)
    for part in (contents[part] for part in ("state_dict", "training_weights") if part in contents):
        assert any(name.startswith("network.") for name in part)
        assert not any(name.startswith(("vit.", "reader.", "model.")) for name in part)
    if not prefix:
        assert contents["encoder"] is None
        with pytest.raises(ValueError, match="holds no Vision Transformer: ImageCompleter"):
            vit.load(before)
        return
    model = vit.load(before)
    assert contents["encoder"] == {"prefix": prefix, "arguments": model.config}
    assert (model.config["num_classes"], model.embed_dim) == (classes, 8)
    assert model(torch.randn(2, *model.pretrained_cfg["input_size"])).isfinite().all()


@pytest.mark.parametrize("name", ["vit.embeddings.cls_token", "model.blocks.0.norm1.weight", "network.cls_token"])
def test_a_checkpoint_of_another_package_keeps_its_names(name):
    contents = {"state_dict": {name: torch.zeros(2)}, "hyper_parameters": {"lr": 0.1}}
    assert upgrade(dict(contents)) == contents


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 10**9}, "describes a model of depth 1000000000, and holds 2 blocks: it is damaged"),
        ({"embed_dim": 12 * 10**6}, "comes from another architecture, .* tensors differ: .*: it is damaged"),
        ({"embed_dim": "wide"}, "describes a model that cannot be built: "),
        ({"patch_size": [1, 2, 3]}, "cannot be built: patch_size .* must be a positive whole number"),
        ({"num_heads": 5}, r"embed_dim \(12\) must be divisible by num_heads \(5\)"),
    ],
)
def test_a_description_of_another_model_is_refused_before_it_takes_memory(checkpoint, path, settings, message):
    checkpoint["hyper_parameters"] = CLASSIFIER | SIZES | settings
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match=message):
        vit.load(path)


@pytest.mark.parametrize(("name", "value"), [("vit.head.bias", 3), (7, torch.zeros(2))])
def test_weights_are_tensors_by_name(checkpoint, path, name, value):
    checkpoint["state_dict"][name] = value
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match=rf"last\.ckpt .* training run: {name!r} of its weights is not a tensor"):
        vit.load(path)


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(1).expand(2),  # 5 kB of such a file would take any amount of memory
        torch.zeros(2, device="meta"),
        torch.zeros(2).to_sparse(),
    ],
    ids=["repeated", "meta", "sparse"],
)
def test_weights_without_a_number_for_each_place_are_refused(checkpoint, path, weight):
    checkpoint["state_dict"]["vit.head.bias"] = weight
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged: vit\.head\.bias has \(2,\) numbers"):
        vit.load(path)


@pytest.mark.parametrize("data", [None, "CIFAR10", {"init_args": [3]}, {"init_args": None}, {}, 0.875])
def test_images_are_cropped_as_those_of_the_training_were_if_the_checkpoint_tells(checkpoint, path, data):
    tells = isinstance(data, float)
    torch.save(checkpoint | {"data": {"init_args": {"crop_ratio": data}} if tells else data}, path)
    assert vit.load(path).pretrained_cfg["crop_ratio"] == (data if tells else 1)


def test_a_mean_that_is_a_tensor_is_refused(checkpoint, path):
    checkpoint["hyper_parameters"] = CLASSIFIER | SIZES | {"mean": torch.zeros(3)}
    torch.save(checkpoint, path)
    with pytest.raises(
        ValueError, match=r"last\.ckpt is damaged: mean \(tensor.* must be one number for each of 3 channels"
    ):
        vit.load(path)


def test_a_file_that_may_not_be_read_is_told_as_such(checkpoint, path, monkeypatch):
    def forbidden(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    torch.save(checkpoint, path)
    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read: Permission denied"):
        vit.load(path)


@pytest.mark.parametrize("kind", ["nothing", "folder"])
def test_a_path_without_a_file_is_refused_with_the_place_to_look(path, kind):
    if kind == "folder":
        path.mkdir()
    with pytest.raises(ValueError, match=f"no checkpoint at {re.escape(str(path))}: runs keep theirs in runs/"):
        vit.load(path)


TEXTS = ["", "readable text\n", "Epoch 3: the loss is 1.7\n", "<!DOCTYPE html>\n", "epoch,step,train_loss\n0,10,2.3\n"]


@pytest.mark.parametrize("text", [*TEXTS, "# A recipe\ntrainer:\n", "version https://git-lfs.github.com/spec/v1\n"])
def test_a_text_file_is_refused_as_no_checkpoint(path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"last\.ckpt is not a checkpoint, or is damaged") as refusal:
        vit.load(path)
    assert "code" not in str(refusal.value)


@pytest.mark.parametrize(
    ("zipped", "message"),
    [
        (True, r"last\.ckpt is not a checkpoint, or is damaged"),
        (False, r"last\.ckpt is "),  # of the format before torch 1.6: cut within a name, it seems to want another
    ],
)
def test_a_truncated_checkpoint_is_refused_wherever_it_ends(checkpoint, path, zipped, message):
    file = io.BytesIO()
    torch.save(checkpoint, file, _use_new_zipfile_serialization=zipped)
    whole = file.getvalue()
    # Ends within the first bytes, where the structure is, then some within the tensors, then the last.
    for length in [*range(0, 1021, 11), *range(1021, len(whole) - 1, 1021), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=message):
            vit.load(path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("call", ["open", "exec", "os.system"])
def test_pickled_code_is_refused_and_not_executed(checkpoint, path, tmp_path, call, zipped):
    created = tmp_path / "created"
    function, arguments = {
        "open": (open, (str(created), "w")),
        "exec": (exec, (f"open({str(created)!r}, 'w')",)),
        "os.system": (os.system, (f"touch {created}",)),
    }[call]

    class Trap:
        """Creates a file when it is unpickled."""

        def __reduce__(self):
            return function, arguments

    checkpoint["hyper_parameters"] = CLASSIFIER | SIZES | {"callback": Trap()}
    torch.save(checkpoint, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"last\.ckpt is refused: it carries pickled code.* plain tensors"):
        vit.load(path)
    assert not created.exists()


@pytest.mark.parametrize(
    "contents",
    [
        *(torch.zeros(3), [1, 2, 3], "state_dict hyper_parameters", {}, {"state_dict": {}}, {"hyper_parameters": {}}),
        {"state_dict": [], "hyper_parameters": {}},
        {"state_dict": {}, "hyper_parameters": []},
    ],
    ids=str,
)
def test_what_is_no_dictionary_with_both_parts_is_refused(path, contents):
    torch.save(contents, path)
    message = r"last\.ckpt is not a checkpoint of a training run: it lacks state_dict or hyper_parameters"
    with pytest.raises(ValueError, match=message):
        vit.load(path)


def test_another_architecture_is_refused_with_the_first_tensors_that_differ(checkpoint, path):
    checkpoint["hyper_parameters"] = CLASSIFIER | SIZES | {"mlp_ratio": 2.0}
    torch.save(checkpoint, path)
    message = (
        r"last\.ckpt comes from another architecture, 6 tensors differ: blocks.0.mlp.fc1.bias is \(48,\) and not "
        r"\(24,\); .*; .*; blocks.1.mlp.fc1.bias is .*; and 2 more: it is damaged"
    )
    with pytest.raises(ValueError, match=message):
        vit.load(path)


@pytest.mark.parametrize("part", ["tensor", "pickle", "directory of the archive", "attributes of a tensor"])
def test_a_flipped_byte_is_damage_and_not_another_model(tmp_path, part):
    path = tmp_path / "last.ckpt"
    weight = torch.arange(1000.0)
    torch.save({"state_dict": {"weight": weight}, "hyper_parameters": {"depth": 3}}, path)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"/data/0"))  # of the tensor, in the directory
    place, mask = {
        "tensor": (content.index(weight.numpy().tobytes()) + 1234, 0x01),
        "pickle": (content.index(b"depth"), 0x01),
        "directory of the archive": (entry + 24, 0x01),  # the size of the tensor
        "attributes of a tensor": (entry + 38, 0x10),  # a directory, which torch would not read
    }[part]
    content[place] ^= mask
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"last\.ckpt is (not a checkpoint, or is )?damaged") as refusal:
        vit.load(path)
    assert "architecture" not in str(refusal.value)


@pytest.mark.parametrize("own", [{}, {"num_heads": 3}])
def test_a_checkpoint_of_others_whose_net_is_called_vit_is_ours_only_if_it_names_the_heads(own):
    known = {"embed_dim": 192, "depth": 12, "patch_size": 16, "image_size": 224, "num_classes": 7} | own
    contents = {"state_dict": {"vit.cls_token": torch.zeros(1, 1, 192)}, "hyper_parameters": known}
    assert is_ours(contents) == bool(own)
