import pytest
import torch
from torch.testing import assert_close

from vit.analysis.truncation import (
    attention_spectra,
    leading_vectors,
    randomly_projected,
    truncated,
    truncation_curve,
)

EXACT = {"rtol": 1e-7, "atol": 1e-7}


def attention(tokens=7):
    return (3 * torch.randn(2, 3, tokens, tokens, dtype=torch.float64)).softmax(dim=-1)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_the_best_approximation_is_that_of_the_largest_singular_values(rank):
    attn = attention()
    u, s, vh = torch.linalg.svd(attn)
    expected = u[..., :rank] * s[..., None, :rank] @ vh[..., :rank, :]
    assert_close(truncated(attn, rank), expected, **EXACT)


@pytest.mark.parametrize("cut", [truncated, lambda attn, rank: randomly_projected(attn, rank, seed=3)])
def test_a_cut_attention_has_the_rank_asked_for_and_one_of_all_dimensions_is_unchanged(cut):
    attn = attention()
    for rank in (1, 3):
        assert (torch.linalg.matrix_rank(cut(attn, rank), rtol=1e-6) == rank).all()
    assert_close(cut(attn, 7), attn, rtol=1e-5, atol=1e-6)


def decaying(factor, size=190):
    """Symmetric matrices whose eigenvalues are powers of a factor."""
    basis = torch.linalg.qr(torch.randn(3, 2, size, size, dtype=torch.float64)).Q
    return basis * factor ** torch.arange(size).double() @ basis.mT, basis


@pytest.mark.parametrize("factor", [0.5, 0.9, 0.9999], ids=["at once", "slowly", "never"])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_leading_vectors_are_those_of_all_whether_the_iteration_converges_or_not(factor, count):
    matrices, basis = decaying(factor)
    found = leading_vectors(matrices, count)
    expected = basis[..., :count].flip(-1)
    assert_close((found * expected).sum(dim=-2).abs(), torch.ones(3, 2, count).double(), rtol=1e-6, atol=1e-6)


def test_matrices_that_converge_and_others_are_each_solved_in_one_batch():
    (fast, of_fast), (slow, of_slow) = decaying(0.5), decaying(0.9999)
    found = leading_vectors(torch.stack([fast, slow]), 2)
    for vectors, basis in zip(found, (of_fast, of_slow), strict=True):
        assert_close((vectors * basis[..., :2].flip(-1)).sum(dim=-2).abs(), torch.ones(3, 2, 2).double())


def test_few_vectors_of_many_take_no_full_decomposition(monkeypatch):
    sizes, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda x: sizes.append(x.shape[-1]) or eigh(x))
    leading_vectors(decaying(0.5)[0], 2)
    assert {*sizes} == {18}


def test_the_first_layer_is_decomposed_once_for_all_ranks(ours, images, labels, monkeypatch):
    from vit.analysis import truncation

    shapes, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda x: shapes.append(x.shape) or eigh(x))
    found = truncation_curve(ours, images, labels, [1, 3, 5])
    assert len(shapes) == 1 + 3 * 2
    monkeypatch.setattr(truncation, "truncated", lambda attn, rank, *_: truncated(attn, rank))
    assert found == truncation_curve(ours, images, labels, [1, 3, 5])


def test_a_random_subspace_is_farther_from_attention_than_the_best_one():
    attn = attention()
    best = (truncated(attn, 3) - attn).norm()
    assert best < 0.9 * (randomly_projected(attn, 3, seed=0) - attn).norm()


def test_random_subspaces_differ_between_heads_and_depend_on_the_seed_only():
    same = attention()[:, :1].expand(-1, 3, -1, -1)
    first = randomly_projected(same, 2, seed=0)
    assert_close(first, randomly_projected(same, 2, seed=0), rtol=0, atol=0)
    assert (first[:, 0] - first[:, 1]).abs().max() > 1e-3
    assert (first - randomly_projected(same, 2, seed=1)).abs().max() > 1e-3


def test_the_curve_ends_at_the_accuracy_of_the_model(ours, images):
    with torch.no_grad():
        labels = ours(images).argmax(dim=-1)
    points = truncation_curve(ours, images, labels, [1, 4, 16])
    assert [point.rank for point in points] == [1, 4, 16]
    assert (points[-1].accuracy, points[-1].random_accuracy) == (1, 1)
    assert points[0].random_accuracy < 1


def test_every_layer_is_cut(ours, images, monkeypatch):
    from vit.analysis import truncation

    cut = []
    monkeypatch.setattr(truncation, "truncated", lambda attn, rank, *_: cut.append(rank) or attn)
    truncation_curve(ours, images, torch.zeros(7, dtype=torch.long), [4, 99])
    assert cut == [4, 4, 4]  # three layers; 99 is more than the 16 tokens


def test_a_rank_that_is_given_twice_is_one_point(ours, images, labels):
    (point,) = truncation_curve(ours, images, labels, [1, 1])
    assert len(point.right) == len(images)


def test_a_rank_of_zero_is_refused(ours, images, labels):
    with pytest.raises(ValueError, match=r"ranks \(0\) must be a positive whole number: rank 0"):
        truncation_curve(ours, images, labels, [2, 0])


def test_attention_without_influence_is_no_layer(ours, watched, images, labels):
    assert_close(attention_spectra(watched, images), attention_spectra(ours, images))
    found, expected = (truncation_curve(model, images, labels, [2]) for model in (watched, ours))
    assert found == expected  # the random subspaces of a layer are those of its number
