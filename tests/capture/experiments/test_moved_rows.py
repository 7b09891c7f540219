import pytest
import torch

from vit.capture.experiments.moved_rows import moved_rows

KEYS = 7


def attention(query=None, key=None, scale=1.0):
    """Weights (3, 2, 5, 7) of three copies, of which the second has another query or another key."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 5, 3, generator=generator, dtype=torch.float64).repeat(3, 1, 1, 1)
    k = torch.randn(1, 2, KEYS, 3, generator=generator, dtype=torch.float64).repeat(3, 1, 1, 1)
    if query is not None:
        q[1, :, query] += 1
    if key is not None:
        k[1, :, key] += 1
    return (scale * q @ k.mT).softmax(dim=-1)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("query", [0, 3])
def test_the_row_of_a_changed_query_moves_alone(query, scale):
    moved = moved_rows(attention(query=query, scale=scale), 1, torch.ones(KEYS, dtype=torch.bool))
    assert moved.nonzero().tolist() == [[query]]


def test_a_changed_key_moves_every_row_unless_it_is_left_out():
    attn, still = attention(key=4), torch.ones(KEYS, dtype=torch.bool)
    assert moved_rows(attn, 1, still).all()
    still[4] = False
    assert not moved_rows(attn, 1, still).any()


def test_weights_that_a_mask_sets_to_zero_do_not_count():
    attn = attention(query=3)
    attn[..., 2] = 0
    assert moved_rows(attn, 1, torch.ones(KEYS, dtype=torch.bool)).nonzero().tolist() == [[3]]
