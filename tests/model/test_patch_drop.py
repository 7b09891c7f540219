"""Patches that are left out: which, how many, and with their positions."""

import pytest
import torch
from torch.testing import assert_close

import vit
from vit.model.patch_drop import PatchDrop


def numbered(images: int, prefix: int, patches: int) -> torch.Tensor:
    """Tokens whose channels are their position: (B, prefix + N, 3)."""
    return torch.arange(float(prefix + patches))[None, :, None].expand(images, -1, 3)


@pytest.mark.parametrize(("rate", "kept"), [(0.5, 6), (0.25, 8), (0.9, 1), (0.99, 1)])
def test_patch_drop_keeps_the_prefix_and_a_share_of_the_patches(rate, kept):
    tokens = PatchDrop(rate)(numbered(2, 2, 11), 2)[0]
    assert tokens.shape == (2, 2 + kept, 3)
    assert tokens[:, :2, 0].tolist() == [[0, 1]] * 2
    for image in tokens[:, 2:]:
        numbers = image[:, 0].tolist()
        assert len(set(numbers)) == kept
        assert numbers == sorted(numbers)
        assert set(numbers) <= set(range(2, 13))
        assert (image == image[:, :1]).all()


def test_patch_drop_keeps_the_rotary_angles_of_the_tokens_that_it_keeps():
    tokens, angles = PatchDrop(0.5)(numbered(3, 2, 11), 2, torch.arange(13.0)[:, None].expand(-1, 2))
    assert_close(angles, tokens[..., :2], rtol=0, atol=0)
    untouched = torch.randn(13, 2)
    assert PatchDrop(0.5).eval()(numbered(3, 2, 11), 2, untouched)[1] is untouched


@pytest.mark.parametrize("pos_embed", ["learned", "rope"])
def test_drawn_numbers_are_those_of_the_patches_that_a_training_step_keeps(pos_embed):
    sizes = {"image_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "pos_embed": pos_embed}
    model, images = vit.VisionTransformer(**sizes, patch_drop=0.75).train(), torch.randn(3, 3, 16, 16)
    torch.manual_seed(1)
    dropped = model.forward_features(images)
    torch.manual_seed(1)
    kept = model.patch_drop.draw(3, 16)
    assert kept.shape == (3, 4)
    assert torch.equal(model.forward_features(images, keep=kept), dropped)


def test_patch_drop_is_independent_for_each_image_and_uniform():
    drop, tokens = PatchDrop(0.5), numbered(4000, 1, 8)
    kept = drop(tokens, 1)[0][:, 1:, 0].long()
    frequencies = torch.bincount(kept.flatten(), minlength=9)[1:] / 4000
    assert (frequencies - 0.5).abs().max() < 0.05
    assert len({tuple(sorted(row)) for row in kept.tolist()}) == 70  # all ways to choose 4 of 8


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.0, True)])
def test_patch_drop_is_the_identity_in_eval_mode_and_at_rate_zero(rate, training):
    tokens = numbered(2, 1, 5)
    assert PatchDrop(rate).train(training)(tokens, 1)[0] is tokens


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_outside_zero_to_one_is_refused(rate):
    with pytest.raises(ValueError, match=rf"patch_drop \({rate}\) must be in \[0, 1\)"):
        PatchDrop(rate)
