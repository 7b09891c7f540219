"""Muon, against torch's own and against the singular values it promises."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vit import VisionTransformer
from vit.training.muon import MuonAdamW, orthogonalized
from vit.training.optimizer import make_optimizer

TINY = {"image_size": 6, "patch_size": 3, "embed_dim": 12, "depth": 2, "num_heads": 2, "num_classes": 3}


def one_group(*parameters: nn.Parameter, stacked: int = 1, **kwargs: float) -> MuonAdamW:
    return MuonAdamW([{"params": list(parameters), "muon": True, "stacked": stacked}], **kwargs)


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 5, 13), (2, 13, 5)])
def test_singular_values_become_about_one_and_the_directions_stay(shape):
    matrices = torch.randn(shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    result = orthogonalized(matrices).float()
    inside = left.mT @ result @ right.mT
    values = torch.diagonal(inside, dim1=-2, dim2=-1)
    assert 0.5 < values.min() <= values.max() < 1.4
    assert (inside - torch.diag_embed(values)).abs().max() < 0.1


@pytest.mark.parametrize("shape", [(7, 7), (5, 13), (13, 5)])
def test_steps_are_those_of_torchs_muon(shape):
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    options = {"lr": 0.1, "weight_decay": 0.3, "momentum": 0.9}
    pair = one_group(ours, **options), torch.optim.Muon([theirs], **options, adjust_lr_fn="match_rms_adamw")
    start = ours.detach().clone()
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in pair:
            optimizer.step()
    # Both iterate in bfloat16, in another order.
    assert (ours - theirs).abs().max() < 0.02 * (ours - start).abs().max()


def test_matrices_of_one_shape_together_do_what_each_does_alone():
    matrices = [nn.Parameter(torch.randn(5, 7)) for _ in range(3)]
    alone = [nn.Parameter(matrix.detach().clone()) for matrix in matrices]
    optimizers = one_group(*matrices), *(one_group(matrix) for matrix in alone)
    for matrix, copied in zip(matrices, alone, strict=True):
        matrix.grad = torch.randn(5, 7)
        copied.grad = matrix.grad.clone()
    for optimizer in optimizers:
        optimizer.step()
    assert_close(matrices, alone, rtol=0, atol=1e-4)


def test_stacked_matrices_are_made_orthogonal_one_by_one():
    torch.manual_seed(0)  # a matrix that is nearly singular loses its direction to rounding
    stacked = nn.Parameter(torch.zeros(3 * 5, 5))
    stacked.grad = torch.randn(15, 5) * torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(5)[:, None]
    one_group(stacked, stacked=3, lr=1.0, weight_decay=0.0).step()
    for third, gradient in zip(stacked.detach().split(5), stacked.grad.split(5), strict=True):
        expected = -0.2 * 5**0.5 * orthogonalized(gradient[None])[0].float()
        assert_close(third, expected, rtol=0, atol=0.04)  # bfloat16, in another order


def test_the_blocks_matrices_go_by_muon_and_all_else_by_adamw():
    model = VisionTransformer(**TINY)
    optimizer = make_optimizer("muon", model, 0.01, 0.0, (0.9, 0.99))
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = {names[p]: group for group in optimizer.param_groups for p in group["params"]}
    by_muon = {name for name, group in groups.items() if group["muon"]}
    parts = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert by_muon == {f"blocks.{i}.{part}.weight" for i in range(2) for part in parts}
    assert {groups[name]["stacked"] for name in by_muon if "qkv" in name} == {3}
    twin = copy.deepcopy(model)
    adamw = make_optimizer("adamw", twin, 0.01, 0.0, (0.9, 0.99))
    images = torch.randn(5, 3, 6, 6)
    for network, stepper in ((model, optimizer), (twin, adamw)):
        network(images).square().sum().backward()
        stepper.step()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs) == (name not in by_muon)


def test_a_schedule_reaches_both():
    model = VisionTransformer(**TINY)
    optimizer = make_optimizer("muon", model, 0.01, 0.05, (0.9, 0.99))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    model(torch.randn(5, 3, 6, 6)).square().sum().backward()
    optimizer.step()
    assert_close(list(model.parameters()), before, rtol=0, atol=0)


def test_a_resumed_optimiser_steps_as_the_one_that_went_on():
    model = VisionTransformer(**TINY)
    optimizer = make_optimizer("muon", model, 0.01, 0.05, (0.9, 0.99))
    images = torch.randn(5, 3, 6, 6)

    def train(network: nn.Module, stepper: torch.optim.Optimizer) -> None:
        for _ in range(2):
            stepper.zero_grad()
            network(images).square().sum().backward()
            stepper.step()

    train(model, optimizer)
    resumed = copy.deepcopy(model)
    anew = make_optimizer("muon", resumed, 0.01, 0.05, (0.9, 0.99))
    anew.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer)
    train(resumed, anew)
    assert_close(list(resumed.parameters()), list(model.parameters()), rtol=0, atol=0)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"not for a parameter of shape \(3,\)"):
        one_group(nn.Parameter(torch.zeros(3)))


def test_parameters_without_gradient_stay():
    frozen, trained = nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(3, 5))
    trained.grad = torch.randn(3, 5)
    one_group(frozen, trained).step()
    assert torch.equal(frozen.detach(), torch.ones(3, 5))
    assert not torch.equal(trained.detach(), torch.ones(3, 5))
