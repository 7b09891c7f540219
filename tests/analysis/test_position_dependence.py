import pytest
from torch.testing import assert_close

import vit
from vit.analysis import position_dependence
from vit.analysis.position_dependence import enlarged, position_accuracies


@pytest.fixture
def seen(monkeypatch):
    """The positions and the size of the images, each time that accuracy is measured."""
    found = []

    def measured(model, images, labels, batch_size):
        found.append((model.pos_embed.detach().clone(), tuple(images.shape[-2:])))
        return 0.1 * len(found)

    monkeypatch.setattr(position_dependence, "accuracy", measured)
    return found


@pytest.fixture
def model():
    return vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=1, num_heads=5, num_registers=1).eval()


def test_patches_keep_exchange_or_share_their_positions_and_the_prefix_keeps_its_own(model, images, labels, seen):
    found = position_accuracies(model, images, labels)
    assert found == {"own": 0.1, "mean": 0.2, "shuffled": pytest.approx(0.3), "larger": 0.4}
    (own, _), (mean, _), (shuffled, _), (larger, size) = seen
    for changed in (mean, shuffled):
        assert_close(changed[:, :2], own[:, :2], rtol=0, atol=0)
    assert_close(mean[:, 2:], own[:, 2:].mean(dim=1, keepdim=True).expand(1, 15, 40))
    assert_close(shuffled[0, 2:].sort(dim=0).values, own[0, 2:].sort(dim=0).values)
    assert (shuffled != own).any()
    assert_close(larger, own, rtol=0, atol=0)
    assert size == (16, 32)  # 18 x 30, to the nearest patches of 4
    assert_close(model.pos_embed.data, own, rtol=0, atol=0)


def test_the_model_has_its_positions_again_after_an_error(model, images, labels, monkeypatch):
    own = model.pos_embed.detach().clone()
    answers = iter([0.5])
    monkeypatch.setattr(position_dependence, "accuracy", lambda *_, **__: next(answers))
    with pytest.raises(StopIteration):
        position_accuracies(model, images, labels)
    assert_close(model.pos_embed.data, own, rtol=0, atol=0)


@pytest.mark.parametrize(("scale", "size"), [(1, (12, 20)), (1.5, (16, 32)), (0.1, (4, 4))])
def test_enlarged_images_have_a_whole_number_of_patches(images, scale, size):
    assert enlarged(images, scale, (4, 4)).shape == (7, 3, *size)


def test_models_of_other_libraries_are_refused(timms, images, labels):
    with pytest.raises(ValueError, match="VisionTransformer is of another library"):
        position_accuracies(timms, images, labels)


@pytest.mark.parametrize("pos_embed", ["rope", "none"])
def test_positions_that_are_not_added_cannot_be_exchanged(pos_embed, images, labels):
    model = vit.VisionTransformer(image_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3, pos_embed=pos_embed)
    with pytest.raises(ValueError, match=f"pos_embed '{pos_embed}' adds no positions to the tokens"):
        position_accuracies(model.eval(), images, labels)
