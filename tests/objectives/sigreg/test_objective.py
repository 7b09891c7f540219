"""LeJEPA, trained and asked from the command line."""

import json

import pytest
import torch

import vit
from tests.tiny import CPU, MODEL
from vit.objectives import SIGReg
from vit.objectives.sigreg.normality import sketched_normality

SIGREG = [
    *("--data", "Digits", "--data.batch_size", "400", "--model", "SIGReg", *MODEL, *CPU),
    *("--model.projection_dim", "8", "--model.local_views", "1", "--trainer.max_epochs", "2", "--experiment", "sigreg"),
]


def learner(**changes):
    torch.manual_seed(0)
    sizes = {"image_size": (6, 10), "patch_size": 2, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}
    return SIGReg(**sizes | {"projection_dim": 5} | changes)


def test_the_loss_is_the_weighted_mean_of_invariance_and_regularisation():
    module = learner(global_views=2, local_views=1, sigreg_weight=0.3)
    projected = torch.randn(3, 7, 5, generator=torch.manual_seed(1))
    is_real = torch.tensor([True] * 6 + [False])
    found = module.losses_of_projections(projected, is_real, step=4)
    for image in range(7):
        centre = (projected[0, image] + projected[1, image]) / 2
        distance = sum((projected[view, image] - centre).square().mean() for view in range(3)) / 3
        expected = 0.7 * distance + 0.3 * sketched_normality(projected, is_real, 4)
        torch.testing.assert_close(found[image], expected)


def test_the_views_of_a_training_pass_the_network_and_small_ones_have_half_of_the_patches():
    module = learner(global_views=1, local_views=2)
    images = torch.randint(0, 256, (4, 1, 6, 10), dtype=torch.uint8)
    torch.manual_seed(5)
    views = module.cut(images)
    assert [view.shape[2:] for view in views] == [(6, 10), (2, 4), (2, 4)]
    projected = torch.stack([module.network((view / 255 - 0.5) / 0.5) for view in views])
    expected = module.losses_of_projections(projected, torch.ones(4, dtype=torch.bool), 0).mean()
    torch.manual_seed(5)
    torch.testing.assert_close(module.training_loss((images, torch.zeros(4))), expected)
    torch.manual_seed(5)
    torch.testing.assert_close(module.training_loss((images / 255, torch.zeros(4))), expected)


def test_an_evaluation_has_the_same_views_each_time_and_leaves_the_random_numbers_of_the_training():
    module = learner().eval()
    images, real = torch.randint(0, 256, (4, 1, 6, 10), dtype=torch.uint8), torch.ones(4, dtype=torch.bool)
    before = torch.get_rng_state()
    assert torch.equal(module.losses(images, real, 2), module.losses(images, real, 2))
    assert not torch.equal(module.losses(images, real, 2), module.losses(images, real, 3))
    assert torch.equal(torch.get_rng_state(), before)


def test_an_image_that_fills_a_batch_up_leaves_the_losses_of_the_others_as_they_are():
    module, is_real = learner().eval(), torch.tensor([True] * 3 + [False])
    images, other = torch.randint(0, 256, (2, 4, 1, 6, 10), dtype=torch.uint8)
    other[:3] = images[:3]
    torch.testing.assert_close(module.losses(images, is_real, 2)[:3], module.losses(other, is_real, 2)[:3])


def test_the_operations_are_those_of_all_views():
    module = learner(global_views=2, local_views=3, mlp_ratio=2.0)

    def forward(patches):
        tokens = patches + 1
        block = patches * 4 * 12 + tokens * 8 * 12**2 + 2 * tokens**2 * 12
        positions = 0 if patches == 15 else patches * 15 * 12  # are resized
        return positions + block + 12 * 48 + 48 * 48 + 48 * 5

    assert module.training_flop() == 3 * 2 * (2 * forward(15) + 3 * forward(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["global_views=1", "local_views=0"],
            "global_views (1) and local_views (0) are fewer than the 2 views that SI",
        ),
        (["global_views=0", "local_views=2"], "global_views (0) must be a positive whole number"),
        (["sigreg_weight=0"], "sigreg_weight (0) lets the features of all images become the same: 0.05 is usual"),
        (["sigreg_weight=1"], "sigreg_weight (1.0) must be in [0, 1): 0.05 is usual"),
        (["projection_dim=0"], "projection_dim (0) must be a positive whole number"),
    ],
)
def test_options_without_a_meaning_are_refused_in_one_line(error_of, options, message):
    assert error_of("fit", *SIGREG, *(f"--model.{option}" for option in options)).startswith(f"error: {message}")


def test_a_batch_of_one_is_refused_in_one_line(error_of):
    message = error_of("fit", *SIGREG, "--data.batch_size", "1")
    assert message.startswith(
        "error: a batch of 1 is too small for SIGReg, which compares images: take a batch_size of 2"
    )


def test_a_run_learns_shows_its_views_and_its_checkpoint_is_a_backbone(run, folder, pictures, capsys):
    run("fit", *SIGREG)
    place = folder / "runs/sigreg/version_0"
    results = json.loads((place / "results.json").read_text())
    assert results["test_effective_rank"] == pytest.approx(results["scores"]["effective_rank"])
    assert {path.name for path in place.glob("*.png")} == {"curves.png", "neighbours.png", "views.png"}
    assert "warning" not in capsys.readouterr().out
    model = vit.load(place / "checkpoints/last.ckpt")
    state = torch.load(place / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(model.blocks[1].mlp.fc2.weight, state["network.encoder.blocks.1.mlp.fc2.weight"])


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed):
    whole, resumed = whole_and_resumed(SIGReg, *SIGREG, "--model.dropout", "0.1", "--model.ema_decay", "0.9")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
