"""The claims about what heads relate: their measures against cases by hand."""

import claims_objects as experiment
import pytest
import torch
from claims_training import FAILS, HOLDS, OPEN
from einops import repeat

import vit


def even(patches):
    """Attention that is spread evenly over the other patches."""
    others = 1 - torch.eye(patches)
    return repeat(others / others.sum(dim=-1, keepdim=True), "n m -> 1 1 n m")


def mask(patches, *numbers):
    """A mask of some patches."""
    found = torch.zeros(1, patches, dtype=torch.bool)
    found[0, list(numbers)] = True
    return found


def test_even_attention_has_an_even_share_within_patches_and_between_them():
    inside, outside = mask(16, 1, 2, 5), mask(16, 7, 9)
    for first, last in ((inside, inside), (inside, outside), (outside, inside)):
        torch.testing.assert_close(experiment.share_of(even(16), first, last), torch.ones(1, 1))


def test_attention_to_the_other_patches_of_an_object_is_their_number_times_an_even_share():
    attended = torch.zeros(1, 1, 16, 16)
    attended[0, 0, 1, 2] = attended[0, 0, 2, 1] = 1.0
    inside = mask(16, 1, 2)
    assert experiment.share_of(attended, inside, inside).item() == pytest.approx(15)
    assert experiment.share_of(attended, inside, mask(16, 3, 4)).item() == 0


def test_a_digit_covers_the_four_patches_of_its_box():
    (found,) = experiment.cells_of(torch.tensor([[4, 8, 8, 8]])).view(1, 8, 8)
    assert found.nonzero().tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]


def test_a_patch_of_one_value_has_no_ink():
    images = torch.full((1, 1, 32, 32), -0.3)
    images[0, 0, 5, 30] = 1.0
    assert experiment.inked(images).nonzero().tolist() == [[0, 8 + 7]]


def test_heads_that_are_the_tokens_explain_them_whole_and_noise_explains_nothing():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(40, 9, 8, generator=generator)
    heads = torch.stack([tokens[..., :4], tokens[..., 4:]], dim=1)
    assert experiment.explained(heads, tokens, (0, 1)) == pytest.approx(1, abs=1e-2)
    assert experiment.explained(heads, tokens, (0,)) == pytest.approx(0.5, abs=0.05)
    assert experiment.explained(torch.randn(40, 2, 9, 4, generator=generator), tokens, (0, 1)) < 0.02


def test_a_model_that_looks_at_ink_is_no_model_that_looks_at_the_object(monkeypatch):
    images = torch.zeros(2, 1, 32, 32)
    boxes = torch.tensor([[0, 0, 8, 8], [16, 16, 8, 8]])
    images[0, 0, :8, :8:2] = images[1, 0, 16:24, 16:24:2] = 1.0
    images[:, 0, 28:, ::2] = 1.0  # the clutter, a row of patches
    seen = experiment.inked(images).float()
    attn = repeat(seen, "b m -> b h n m", h=1, n=64)
    attn = torch.nn.functional.pad(attn, (1, 0, 1, 0)) / attn.sum(dim=-1).amax()
    monkeypatch.setattr(experiment, "capture_attention", lambda model, images: [attn])
    own, elsewhere, clutter = experiment.parts_of_one_object(None, images, boxes)
    torch.testing.assert_close(own, clutter)
    assert (own > 2).all()
    torch.testing.assert_close(elsewhere, torch.zeros(2, 1))


def test_four_digits_of_a_mosaic_touch_and_each_has_four_patches():
    images = experiment.mosaics()
    assert images.shape[1:] == (1, 32, 32)
    digits = experiment.Digits()
    digits.setup("test")
    for number, (row, column, height, width) in enumerate(experiment.OF_ONE):
        shown = images[5, :, row : row + height, column : column + width]
        assert torch.equal(shown, digits.sets["test"].images[4 * 5 + number])
    assert not images[..., :8].any()
    assert not images[:, :, 24:].any()
    of_one, across = (experiment.cells_of(torch.tensor(places)) for places in (experiment.OF_ONE, experiment.ACROSS))
    assert of_one.sum(dim=1).tolist() == across.sum(dim=1).tolist() == [4, 4, 4, 4]
    assert (across.int() @ of_one.int().T).sort(dim=1).values.tolist() == [[0, 0, 2, 2]] * 4


def test_a_head_that_looks_at_neighbours_does_not_tell_digits_that_touch_apart(monkeypatch):
    centre = torch.stack(torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij"), dim=-1).reshape(64, 2)
    near = (torch.cdist(centre, centre, p=float("inf")) <= 1).float()
    digit = experiment.cells_of(torch.tensor(experiment.OF_ONE)).float()
    of_heads = torch.stack([near, 1e-3 + digit.T @ digit])  # its neighbours, and the patches of its digit
    attn = repeat(torch.nn.functional.pad(of_heads, (1, 0, 1, 0), value=0.1), "h n m -> b h n m", b=4)
    monkeypatch.setattr(experiment, "capture_attention", lambda model, images: [attn])
    own, across = experiment.parts_of_touching_objects(None, None)
    torch.testing.assert_close(own[:, 0], across[:, 0])
    assert (own[:, 1] > 2 * across[:, 1]).all()
    assert experiment.of_strongest(own, across) == [own[0, 1].item(), across[0, 1].item()]


def test_so_many_heads_are_as_many_numbers_as_the_control_has():
    torch.manual_seed(0)
    model = vit.VisionTransformer(**experiment.MODEL, **experiment.SETTINGS["digits in clutter"]).eval()
    with torch.no_grad():
        found = experiment.kept(model, torch.randn(30, 1, 32, 32))
    assert [len(found[name]) for name in ("kept", "kept by chance")] == [4, 4]
    assert found["kept by chance"][-1] > 0.98  # a random square matrix loses nothing but by the ridge
    assert found["kept by chance"] == sorted(found["kept by chance"])


def cells(own, clutter, kept, across=1.0):
    """Cells of three seeds."""
    numbers = dict(zip(experiment.TOUCHING, (2.0, across), strict=True)) | {
        "another place": 1.0,
        "clutter": clutter,
        "rare in others": 0.0,
        "kept by chance": [0.5, 0.6, 0.7, 0.8],
    }
    return {
        f"digits in clutter, seed {seed}": {
            "setting": "digits in clutter",
            "accuracy": 0.9,
            "before": numbers | {"object": 1.0, "rare": 0.0, "kept": [0.1] * 4},
            "after": numbers
            | {"object": own + 0.01 * seed, "rare": 0.01 * (seed - 1), "kept": [kept + 0.01 * seed] * 4},
        }
        for seed in range(3)
    }


def test_each_sentence_is_judged_against_its_higher_control():
    assert experiment.rows({}) == []
    found = experiment.rows(cells(own=3.0, clutter=2.0, kept=0.9))
    assert [row["answer"] for row in found] == [HOLDS, HOLDS, OPEN, HOLDS]
    found = experiment.rows(cells(own=3.0, clutter=4.0, kept=0.3, across=3.0))
    assert [row["answer"] for row in found] == [FAILS, FAILS, OPEN, FAILS]
    (line, *_) = experiment.rows(cells(own=3.0, clutter=2.0, kept=0.9))
    assert line["measured"].endswith("+1.01 (+0.99 to +1.03)")
    assert "90.0 % (90.0 to 90.0)" in experiment.table(cells(own=3.0, clutter=2.0, kept=0.9))
