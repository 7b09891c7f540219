"""Principal components, against scikit-learn and by hand."""

import pytest
import torch
from sklearn.decomposition import PCA

from vit.features import as_colours, pca


def spread_out(*shape, seed=0):
    """Vectors whose channels have different variances, so that the components are well apart."""
    noise = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mixed = noise @ torch.randn(shape[-1], shape[-1], generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return mixed * torch.arange(1, shape[-1] + 1) + 3


@pytest.mark.parametrize(("count", "channels", "components"), [(53, 7, 3), (53, 7, 7), (5, 11, 4)])
def test_components_are_those_of_scikit_learn_up_to_sign(count, channels, components):
    vectors = spread_out(count, channels)
    found, theirs = pca(vectors, components), PCA(components, svd_solver="full").fit(vectors.numpy())
    expected = torch.from_numpy(theirs.components_)
    signs = (found.components * expected).sum(dim=1).sign()
    torch.testing.assert_close(found.components, expected * signs[:, None])
    torch.testing.assert_close(found.scores, torch.from_numpy(theirs.transform(vectors.numpy())) * signs)
    torch.testing.assert_close(found.mean, torch.from_numpy(theirs.mean_))
    torch.testing.assert_close(found.explained, torch.from_numpy(theirs.explained_variance_ratio_))


def test_the_largest_entry_of_a_component_is_positive_whatever_the_sign_of_the_features():
    vectors = spread_out(53, 7)
    found, negated = pca(vectors), pca(-vectors)
    for components in (found.components, negated.components):
        assert (components.amax(dim=1) == components.abs().amax(dim=1)).all()
    torch.testing.assert_close(negated.components, found.components)
    torch.testing.assert_close(negated.scores, -found.scores)


def test_the_order_of_the_vectors_does_not_change_the_components():
    vectors = spread_out(53, 7)
    order = torch.randperm(53, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(pca(vectors[order]).scores, pca(vectors).scores[order])


def test_images_share_mean_and_components():
    images = spread_out(3, 17, 5)
    found, flat = pca(images), pca(images.flatten(0, 1))
    assert found.scores.shape == (3, 17, 3)
    torch.testing.assert_close(found.scores, flat.scores.unflatten(0, (3, 17)))
    torch.testing.assert_close((images - found.mean) @ found.components.T, found.scores)


def test_half_precision_is_computed_in_float32():
    vectors = spread_out(53, 7).bfloat16()
    torch.testing.assert_close(pca(vectors).scores, pca(vectors.float()).scores)


def test_colours_have_one_scale_for_the_set_of_images():
    scores = torch.tensor([[[0.0, -1.0], [1.0, 3.0]], [[4.0, 1.0], [2.0, 0.0]]])
    colours = as_colours(scores, margin=0)
    torch.testing.assert_close(colours, torch.tensor([[[0.0, 0.0], [0.25, 1.0]], [[1.0, 0.5], [0.5, 0.25]]]))
    assert not torch.allclose(as_colours(scores[:1], margin=0), colours[:1])  # it depends on the others


def test_a_few_outliers_do_not_set_the_scale():
    scores = torch.arange(200.0)[:, None]
    scores[-1] = 1e6
    colours = as_colours(scores)
    assert colours[100].item() == pytest.approx((100 - 2) / (197 - 2))
    assert colours[-1] == 1
    assert colours[0] == 0


def test_equal_scores_have_a_colour():
    assert (as_colours(torch.full((4, 3), 2.0)) == 0).all()


@pytest.mark.parametrize(
    ("features", "components", "message"),
    [
        (torch.ones(4), 1, r"features have shape \(4,\): give \(N, D\), or \(B, N, D\)"),
        (torch.ones(3, 8), 3, "3 vectors of 8 channels have at most 2 components, and 3 are asked for"),
        (torch.ones(9, 2), 3, "9 vectors of 2 channels have at most 2 components"),
        (torch.full((9, 4), torch.nan), 2, "contain NaN or infinity"),
        (torch.ones(9, 4), 0, "components"),
    ],
)
def test_what_has_no_components_is_refused(features, components, message):
    with pytest.raises(ValueError, match=message):
        pca(features, components)


def test_a_margin_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match=r"margin \(0.5\) must be at least 0 and less than 0.5"):
        as_colours(torch.ones(4, 3), margin=0.5)
