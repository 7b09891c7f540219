"""Low-rank adapters of peft on the joint projection: the example of docs/weights.md."""

import pytest
import torch
from torch.testing import assert_close

import vit

peft = pytest.importorskip("peft")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return vit.VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, num_classes=5).eval()


def adapted(model):
    return peft.get_peft_model(
        model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=["qkv"], modules_to_save=["head"])
    )


def test_adapters_start_as_the_model_itself_and_train_alone(model):
    images = torch.randn(4, 3, 8, 8)
    expected = model(images).detach()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lora = adapted(model)
    assert_close(lora(images), expected)
    trained = {name for name, parameter in lora.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name or "head" in name for name in trained)
    optimizer = torch.optim.AdamW([parameter for parameter in lora.parameters() if parameter.requires_grad], lr=0.1)
    for _ in range(2):  # the first step moves one of two factors, as the other is zero
        torch.nn.functional.cross_entropy(lora(images), torch.arange(4)).backward()
        optimizer.step()
    merged = lora.merge_and_unload()
    assert_close(merged(images), lora(images))
    changed = {name for name, tensor in merged.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.weight", "head.bias", "blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight"}


def test_the_class_token_path_of_the_last_block_sees_the_adapters(model):
    lora, images = adapted(model), torch.randn(2, 3, 8, 8)
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    inner = lora.base_model.model
    assert_close(inner(images), inner.forward_head(inner.forward_features(images)))


def test_merged_weights_are_saved(model, tmp_path):
    lora = adapted(model)
    merged = lora.merge_and_unload()
    vit.save(merged, tmp_path / "merged.safetensors")
    images = torch.randn(2, 3, 8, 8)
    assert_close(vit.load(tmp_path / "merged.safetensors")(images), merged(images))
