"""Frozen blocks: what is trained, and how the frozen ones compute."""

import pytest
import torch

from vit import VisionTransformer
from vit.training.freezing import freeze_blocks
from vit.training.optimizer import parameter_groups

SIZES = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 3, "num_heads": 3}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_embedding_and_the_first_blocks_have_no_gradients(count):
    model = VisionTransformer(**SIZES, num_registers=2, pre_norm=True, mask_token=True)
    freeze_blocks(model, count)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    # Processes that train together wait for the gradient of everything that may have one.
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    later = tuple(f"blocks.{number}." for number in range(count, 3))
    assert trained == {name for name in model.state_dict() if name.startswith((*later, "norm.", "head."))}


def test_frozen_blocks_drop_nothing():
    model = VisionTransformer(**SIZES, dropout=0.5, drop_path=0.5).train()
    freeze_blocks(model, 2)
    assert [module.training for module in model.blocks] == [False, False, True]
    assert not model.pos_drop.training
    assert not any(module.training for module in model.blocks[0].modules())


def test_a_model_with_fewer_blocks_is_refused():
    with pytest.raises(ValueError, match=r"freeze \(4\) must be at most the depth \(3\)"):
        freeze_blocks(VisionTransformer(**SIZES), 4)


@pytest.mark.parametrize("muon", [False, True])
def test_frozen_parameters_are_in_no_group_and_all_others_in_exactly_one(muon):
    model = VisionTransformer(**SIZES, pool="map", num_registers=1, layer_scale=0.1)
    freeze_blocks(model, 1)
    groups = parameter_groups(model, 1.0, 0.05, layer_decay=0.5, muon=muon)
    grouped = [parameter for group in groups for parameter in group["params"]]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(map(id, grouped)) == sorted(map(id, trained))
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = 0.5 ** (3 - int(name[7])) if name.startswith("blocks.") else 0.5 if name.startswith("norm.") else 1.0
            assert rates[id(parameter)] == rate, name
