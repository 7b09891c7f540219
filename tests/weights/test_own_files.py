"""Models saved as safetensors files: the same model comes back, and a file that is none is refused."""

import copy
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import vit
from vit.attention import MECHANISMS

SIZES = {"image_size": (6, 10), "patch_size": 2, "embed_dim": 12, "depth": 2, "num_heads": 3, "num_classes": 2}
SIZES |= {"pool": "cls+mean", "num_registers": 5}
DATA = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.3], "class_names": ["cat", "dog"], "crop_ratio": 0.875}


@pytest.fixture
def model():
    model = vit.VisionTransformer(**SIZES).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def description(model, path):
    """Returns and takes the description in a file."""
    vit.save(model, path)

    def rewrite(text):
        save_file(load_file(path), path, metadata={"vit": text})

    return rewrite


def test_the_model_comes_back_bit_for_bit_in_eval_mode(model, path):
    vit.save(model.train(), path)
    images = torch.randn(2, 3, 6, 10)
    loaded = vit.load(path)
    assert not any(module.training for module in loaded.modules())
    assert loaded.config == model.config
    assert_close(loaded(images), model.eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize("attention", MECHANISMS)
def test_so_does_every_mechanism(attention, path):
    model = vit.VisionTransformer(**SIZES, attention=attention).eval()
    vit.save(model, str(path))
    images = torch.randn(2, 3, 6, 10)
    assert_close(vit.load(str(path))(images), model(images), rtol=0, atol=0)


def test_a_model_in_half_precision_takes_half_the_bytes_and_is_loaded_in_single_precision(model, path):
    vit.save(model, path)
    whole = sum(tensor.nbytes for tensor in load_file(path).values())
    vit.save(copy.deepcopy(model).half(), path)
    assert 2 * sum(tensor.nbytes for tensor in load_file(path).values()) == whole
    loaded = vit.load(path)
    for name, tensor in model.state_dict().items():
        assert_close(loaded.state_dict()[name], tensor.half().float(), rtol=0, atol=0)


def test_a_new_head_is_part_of_the_description(model, path):
    model.reset_classifier(7)
    vit.save(model, path)
    assert vit.load(path).num_classes == 7


def test_what_the_model_knows_of_its_data_is_kept(model, path):
    vit.save(model, path)
    size = {"input_size": [3, 6, 10], "crop_pct": 1}
    assert vit.load(path).pretrained_cfg == size | {
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "class_names": None,
        "crop_ratio": 1,
    }
    model.pretrained_cfg = DATA
    vit.save(model, path)
    assert vit.load(path).pretrained_cfg == DATA | size | {"crop_pct": DATA["crop_ratio"]}


@pytest.mark.parametrize("change", [nn.ReLU(), nn.GELU("tanh"), nn.Sequential(nn.GELU())], ids=str)
def test_a_model_whose_modules_were_changed_is_refused_and_writes_nothing(model, path, change):
    model.blocks[0].mlp.act = change
    with pytest.raises(ValueError, match=r"^blocks\.0\.mlp\.act is not as model\.config describes it"):
        vit.save(model, path)
    assert not list(path.parent.iterdir())


def test_the_rate_that_the_training_changes_does_not_count(path):
    model = vit.VisionTransformer(**SIZES, patch_drop=0.5)
    model.patch_drop.rate = 0.0
    vit.save(model, path)
    assert vit.load(path).patch_drop.rate == 0.5


def test_weights_of_another_shape_are_refused(model, path):
    model.pos_embed = nn.Parameter(torch.zeros(1, 5, 12))
    with pytest.raises(ValueError, match=r"^the model comes from another architecture, 1 tensors differ: pos_embed is"):
        vit.save(model, path)


class Subclass(vit.VisionTransformer):
    """It might compute anything."""


@pytest.mark.parametrize("other", [nn.Linear(2, 3), Subclass(**SIZES)])
def test_other_modules_are_refused(other, path):
    with pytest.raises(
        ValueError, match=f"the model is a {type(other).__name__}, and only a vit.VisionTransformer is what its config"
    ):
        vit.save(other, path)


def test_a_subclass_is_not_loaded_either_and_the_error_does_not_speak_of_saving():
    with pytest.raises(ValueError, match=r"^the model is a Subclass, .* describes: take vit\.load\(model\.state_dict"):
        vit.load(Subclass(**SIZES))


def test_blocks_that_share_their_weights_are_saved_one_by_one(model, path):
    model.blocks[1] = model.blocks[0]
    vit.save(model, path)
    images = torch.randn(2, 3, 6, 10)
    assert_close(vit.load(path)(images), model(images), rtol=0, atol=0)


def test_what_json_does_not_hold_is_refused(model, path):
    model.pretrained_cfg = DATA | {"mean": torch.zeros(3)}
    with pytest.raises(ValueError, match="config and pretrained_cfg must be numbers, texts and lists of them: Object"):
        vit.save(model, path)


def test_another_suffix_is_refused(model, path):
    with pytest.raises(ValueError, match=r"model\.pth does not end in \.safetensors"):
        vit.save(model, path.with_suffix(".pth"))


def test_a_saved_file_may_be_read_by_all_who_may_read_new_files(model, path):
    vit.save(model, path)
    other = path.with_name("other")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_file_that_does_not_exist_is_refused(path):
    with pytest.raises(ValueError, match=f"^no file at {re.escape(str(path))}: vit.save writes"):
        vit.load(path)


def test_a_truncated_file_is_refused_wherever_it_ends(model, path):
    vit.save(model, path)
    whole = path.read_bytes()
    for length in [*range(0, 3000, 101), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors is no safetensors file, or is damaged"):
            vit.load(path)


def test_a_file_of_no_known_model_is_refused(path):
    save_file({"weight": torch.zeros(3)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="holds no Vision Transformer of a known format: its tensors are weight"):
        vit.load(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"config": 3, "pretrained_cfg": {}}', '{"config": {}}', "{'config'", "[" * 10**5]
)
def test_a_description_that_cannot_be_read_is_damage(description, path, text):
    description(text)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: its description of the model"):
        vit.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 10**9}, "describes a model of depth 1000000000, and holds 2 blocks"),
        ({"embed_dim": 12 * 10**6}, "comes from another architecture"),
        ({"embed_dim": "wide"}, "describes a model that cannot be built"),
        ({"width": 3}, "describes a model that cannot be built: .*unexpected keyword argument 'width'"),
    ],
)
def test_a_description_of_another_model_is_refused(model, description, path, changes, message):
    description(json.dumps({"config": model.config | changes, "pretrained_cfg": {}}))
    with pytest.raises(ValueError, match=message):
        vit.load(path)


WANTED = {
    "mean": "one number for each of 3 channels",
    "std": "one number above 0 for each of 3 channels",
    "class_names": "a printable name for each of 2 classes",
    "crop_ratio": r"from 0\.1 to 1",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("mean", value) for value in ("abc", None, [0.5, 0.5], [0.5, 0.5, float("nan")])),
        *(("std", value) for value in (3, [0.5, 0.5, 0])),
        *(("class_names", value) for value in (5, ["cat"], ["cat", 3], ["cat", "\x1b[2J"])),
        *(("crop_ratio", value) for value in (0, 1e-9, 0.05, 2, None, "x")),
    ],
)
def test_data_that_does_not_fit_the_model_is_refused(model, path, name, value):
    model.pretrained_cfg = DATA | {name: value}
    vit.save(model, path)
    with pytest.raises(ValueError, match=rf"model\.safetensors is damaged: {name} \(.*\) must be {WANTED[name]}$"):
        vit.load(path)


def test_weights_that_are_no_numbers_are_refused(model, path):
    with torch.no_grad():
        model.head.bias[1] = torch.nan
    vit.save(model, path)
    with pytest.raises(ValueError, match=r"model\.safetensors is of no use: 1 of the 2 numbers of head\.bias are NaN"):
        vit.load(path)


def test_a_kill_while_saving_leaves_the_earlier_file(model, path, monkeypatch):
    vit.save(model, path)
    before = path.read_bytes()

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save", killed)
    with pytest.raises(KeyboardInterrupt):
        vit.save(model, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("attention", "option", "value"),
    [("topk", "k", 2), ("window", "window", 3), ("softmax", "scaled", False), ("neighborhood", "kernel", 5)],
)
def test_a_mechanism_that_was_changed_is_refused(attention, option, value, path):
    model = vit.VisionTransformer(**SIZES, attention=attention)
    setattr(model.blocks[1].attn.mechanism, option, value)
    with pytest.raises(ValueError, match=r"^blocks\.1\.attn\.mechanism is not as model\.config describes it"):
        vit.save(model, path)


def test_positions_that_would_be_resized_in_another_way_are_refused(model, path):
    model.pos_embed_interpolation = "transformers"
    with pytest.raises(ValueError, match=r"^the model is not as model\.config describes it"):
        vit.save(model, path)


def test_a_model_keeps_the_options_that_it_was_built_with(path):
    options = {"window": 2}
    model = vit.VisionTransformer(**SIZES, attention="window", attention_kwargs=options).eval()
    options["window"] = 3
    copied, images = copy.deepcopy(model), torch.randn(2, 3, 6, 10)
    copied.config["attention_kwargs"]["window"] = 1
    vit.save(model, path)
    assert_close(vit.load(path)(images), model(images), rtol=0, atol=0)


def test_what_a_user_writes_on_a_model_does_not_count(model, path):
    model.name, model.blocks[0].number = "mine", 3
    vit.save(model, path)
    assert path.exists()
