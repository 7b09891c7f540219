"""What other libraries do with a model: the table "Works with" of docs/backbone.md; peft is in test_lora.py."""

import copy
import json

import pytest
import timm
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from huggingface_hub import PyTorchModelHubMixin
from PIL import Image
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    TimmWrapperForImageClassification,
    TimmWrapperModel,
    Trainer,
    TrainingArguments,
)

import vit
from tests.architectures import EXACT, randomised
from vit.explain.inputs import as_images

SMALL = {"image_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 4}


def small(**kwargs):
    return randomised(vit.VisionTransformer(**SMALL | kwargs)).float().eval()


def images_of(model, batch=5):
    return torch.randn(batch, 3, *model.patch_embed.image_size, dtype=model.pos_embed.dtype)


# torch


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of the fused kernel under vmap, on the CPU
def test_torch_func_gives_the_gradients_of_each_image():
    model = small().double()
    images, labels = images_of(model), torch.tensor([0, 1, 2, 3, 1])

    def loss(parameters, image, label):
        return F.cross_entropy(functional_call(model, parameters, (image[None],)), label[None])

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    of_each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    for i in (0, 4):
        model.zero_grad()
        F.cross_entropy(model(images[i : i + 1]), labels[i : i + 1]).backward()
        expected = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
        assert_close({name: gradients[i] for name, gradients in of_each.items()}, expected, **EXACT)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:FutureWarning")  # torch's own jvp calls it
def test_torch_func_gives_directional_derivatives_by_the_kernel_that_has_them():
    model = small().double()
    images, direction = images_of(model), torch.randn(5, 3, 16, 16, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):  # torch's fused kernel has no forward derivative
        _, derivative = jvp(model, (images,), (direction,))
    step = 1e-6
    difference = (model(images + step * direction) - model(images - step * direction)) / (2 * step)
    assert_close(derivative, difference, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore")  # torchao warns of names that it will remove
def test_torchao_quantises_the_linear_layers_to_int8():
    torchao = pytest.importorskip("torchao.quantization")
    model = vit.load("cifar10")
    images = torch.randn(20, 3, 32, 32)
    quantised = copy.deepcopy(model)
    torchao.quantize_(quantised, torchao.Int8WeightOnlyConfig())
    assert "Int8Tensor" in type(quantised.blocks[0].attn.qkv.weight).__name__
    with torch.no_grad():
        assert_close(quantised(images), model(images), rtol=0.05, atol=0.1)
        assert not torch.equal(quantised(images), model(images))


# transformers, accelerate, the hub


def test_accelerate_prepares_and_trains_a_model():
    model = small()
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    before, images = model.head.weight.detach().clone(), images_of(model)
    accelerator.backward(prepared(images).square().mean())
    optimizer.step()
    assert not torch.equal(accelerator.unwrap_model(prepared).head.weight, before)
    assert_close(vit.load(accelerator.get_state_dict(prepared))(images), model(images))


@pytest.mark.filterwarnings("ignore")  # transformers warns of its own arguments
def test_the_trainer_of_transformers_trains_saves_and_resumes_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # TensorBoard writes below runs/ of the current folder
    torch.manual_seed(0)
    model = vit.VisionTransformer(**SMALL)
    labels = torch.arange(40) % 4
    pictures = torch.randn(40, 3, 16, 16) + labels[:, None, None, None]
    data = [{"images": image, "labels": label} for image, label in zip(pictures, labels, strict=True)]

    def loss(logits, labels, num_items_in_batch=None):
        return F.cross_entropy(logits, labels)

    def trainer(steps):
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=10,
            max_steps=steps,
            save_steps=20,
            learning_rate=1e-3,
            label_names=["labels"],
            use_cpu=True,
            report_to=["tensorboard"],
            disable_tqdm=True,
        )
        return Trainer(model, arguments, train_dataset=data, eval_dataset=data, compute_loss_func=loss)

    first = trainer(20)
    before = first.evaluate()["eval_loss"]
    first.train()
    assert first.evaluate()["eval_loss"] < before - 0.2
    saved = vit.load(tmp_path / "checkpoint-20" / "model.safetensors", num_heads=3)
    assert_close(saved(pictures), model.eval()(pictures))
    trainer(40).train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert (tmp_path / "checkpoint-40").exists()


WRAPPED = {
    "class token": {},
    "mean pooling": {"pool": "mean", "num_registers": 2, "layer_scale": 1e-3},
    "another activation": {"image_size": (12, 16), "mlp": "gelu_tanh", "qk_norm": True},
    "no head": {"num_classes": 0},
    "attention pooling": {"pool": "map", "class_token": False},
    "norm before": {"pre_norm": True, "mlp": "quick_gelu"},
    "grey": {"in_channels": 3, "qkv_bias": False, "no_embed_class": True},
}


@pytest.mark.parametrize("kwargs", WRAPPED.values(), ids=WRAPPED)
def test_a_folder_for_timm_is_read_by_timm_and_by_the_wrapper_of_transformers_and_again(kwargs, tmp_path):
    model = small(**kwargs)
    if model.config["pre_norm"]:
        model.patch_embed.proj.bias.data.zero_()  # as CLIP's, which has none
    model.pretrained_cfg |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    images, folder = images_of(model), tmp_path / "folder"
    vit.save(model, folder, format="timm")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert_close(theirs(images), model(images), rtol=1e-4, atol=1e-5)
    assert list(theirs.pretrained_cfg["mean"]) == [0.1, 0.2, 0.3]
    wrapper = TimmWrapperForImageClassification if model.num_classes else TimmWrapperModel
    wrapped = wrapper.from_pretrained(folder).eval()
    output = wrapped(images)
    assert_close(output.logits if model.num_classes else output.pooler_output, model(images), rtol=1e-4, atol=1e-5)
    wrapped.save_pretrained(tmp_path / "wrapped")
    for source in (folder, wrapped, tmp_path / "wrapped"):
        again = vit.load(source)
        assert torch.equal(again(images), model(images))
    assert vit.load(folder).pretrained_cfg["std"] == [0.4, 0.5, 0.6]


@pytest.mark.parametrize(("crop_ratio", "stretch"), [(1.0, False), (0.875, False), (1.0, True), (0.875, True)])
def test_a_folder_for_transformers_tells_how_photographs_are_scaled_and_cropped(crop_ratio, stretch, tmp_path):
    model = small(pool="cls")
    data = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_ratio": crop_ratio, "stretch": stretch}
    model.pretrained_cfg |= {name: value for name, value in data.items() if value is not False}
    vit.save(model, tmp_path / "folder", format="transformers")
    slopes = torch.linspace(0, 255, 40)[:, None] + torch.linspace(0, 60, 90)
    photo = Image.fromarray(slopes.clamp(max=255).byte().numpy()).convert("RGB")
    processor = AutoImageProcessor.from_pretrained(tmp_path / "folder")
    processed = processor(photo, return_tensors="pt").pixel_values
    assert_close(processed, as_images(model, photo), rtol=0, atol=0.03)
    again = vit.load(tmp_path / "folder")
    assert_close(as_images(again, photo), as_images(model, photo), rtol=0, atol=0)


def test_a_processor_that_does_not_normalise_is_followed(tmp_path):
    vit.save(small(pool="cls"), tmp_path / "folder", format="transformers")
    settings = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": 16, "do_normalize": False}
    (tmp_path / "folder/preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.5] * 3}))
    found = vit.load(tmp_path / "folder").pretrained_cfg
    assert (found["mean"], found["std"], found["crop_ratio"]) == ([0.0] * 3, [1.0] * 3, 0.8)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"size": 16, "feature_extractor_type": "ViTFeatureExtractor"}, {"stretch": True, "crop_ratio": 1.0}),
        ({"size": 20, "crop_size": 16, "do_center_crop": True}, {"stretch": True, "crop_ratio": 0.8}),
        (
            {"size": {"height": 20, "width": 20}, "crop_size": {"height": 16, "width": 16}, "do_center_crop": True},
            {"stretch": True, "crop_ratio": 0.8},
        ),
        (
            {"size": 20, "crop_size": 16, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor"},
            {"crop_ratio": 0.8},
        ),
        ({"rescale_factor": 1.0, "image_mean": [102.0] * 3, "image_std": [51.0] * 3}, {"mean": [0.4] * 3}),
        ({"do_rescale": False, "image_mean": [102.0] * 3, "image_std": [51.0] * 3}, {"std": [0.2] * 3}),
    ],
)
def test_processors_of_all_ages_and_ranges_are_followed(settings, expected, tmp_path):
    vit.save(small(pool="cls"), tmp_path / "folder", format="transformers")
    (tmp_path / "folder/preprocessor_config.json").write_text(json.dumps(settings))
    found = vit.load(tmp_path / "folder").pretrained_cfg
    assert {name: found[name] for name in expected} == {name: pytest.approx(value) for name, value in expected.items()}
    assert ("stretch" in found) == ("stretch" in expected)


def test_a_folder_for_transformers_tells_how_images_are_normalised(tmp_path):
    model = small(pool="cls")
    model.pretrained_cfg |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "class_names": ["a", "b", "c", "d"]}
    vit.save(model, tmp_path / "folder", format="transformers")
    pixels = torch.randint(256, (3, 16, 16), dtype=torch.uint8)
    processed = AutoImageProcessor.from_pretrained(tmp_path / "folder")(pixels, return_tensors="pt").pixel_values
    mean, std = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])[..., None, None]
    assert_close(processed[0], (pixels / 255 - mean) / std)
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "folder").eval()
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c", 3: "d"}
    assert_close(theirs(processed).logits, model(processed), rtol=1e-4, atol=1e-5)
    assert vit.load(tmp_path / "folder").pretrained_cfg["std"] == [0.4, 0.5, 0.6]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"norm_eps": 1e-5}, "a folder for timm has norm_eps 1e-06, not 1e-05"),
        ({"mlp": "swiglu"}, "a folder for timm has no mlp 'swiglu'"),
        ({"pos_embed": "sincos"}, "a folder for timm has pos_embed 'learned', not 'sincos'"),
    ],
)
def test_what_a_folder_for_timm_cannot_tell_is_refused(kwargs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        vit.save(small(**{"embed_dim": 24, **kwargs}), tmp_path / "folder", format="timm")


def test_arguments_in_a_folder_of_timm_that_tensors_do_not_show_are_read_or_refused(tmp_path):
    theirs = timm.create_model(
        "vit_tiny_patch16_224", embed_dim=24, depth=2, num_heads=3, act_layer="quick_gelu"
    ).eval()
    images = torch.randn(2, 3, 224, 224)
    for changed, message in (
        ({"act_layer": "quick_gelu"}, None),
        ({"norm_layer": "rmsnorm"}, "model_args has norm_layer"),
    ):
        arguments = {"embed_dim": 24, "depth": 2, "num_heads": 3} | changed
        timm.models.save_for_hf(theirs, tmp_path, model_args=arguments)
        if message is None:
            assert_close(vit.load(tmp_path)(images), theirs(images), rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(ValueError, match=message):
                vit.load(tmp_path)


class OnHub(PyTorchModelHubMixin, vit.VisionTransformer):
    """As a user would put a model on the hub."""


def test_the_mixin_of_the_hub_saves_to_a_folder_and_reads_it_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    model = OnHub(**SMALL, attention="topk", attention_kwargs={"k": 3}).eval()
    model.save_pretrained(tmp_path)
    images = images_of(model)
    for again in (OnHub.from_pretrained(tmp_path).eval(), vit.load(tmp_path)):
        assert torch.equal(again(images), model(images))


def test_the_mixin_of_the_hub_saves_what_the_model_has_become(tmp_path):
    torch.manual_seed(0)
    model = OnHub(**SMALL).eval()
    model.reset_classifier(4, pool="mean")
    model.set_input_size((8, 32))  # as many patches
    model.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 8, 32)
    for again in (OnHub.from_pretrained(tmp_path).eval(), vit.load(tmp_path)):
        assert again.config | {"image_size": tuple(again.config["image_size"])} == model.config
        assert torch.equal(again(images), model(images))
