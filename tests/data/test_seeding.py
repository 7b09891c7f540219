"""Random draws that depend on named numbers alone."""

import pytest
import torch

from vit.data.seeding import seeded


def drawn(*key):
    with seeded(*key):
        return torch.rand(()).item()


def test_draws_depend_on_every_number_of_the_key_and_on_their_order():
    assert drawn(0, 3) == drawn(0, 3)
    assert len({drawn(0, 3), drawn(3, 0), drawn(0, 4), drawn(1, 3), drawn(3), drawn(0, 3, 0), drawn(0, 30)}) == 7


@pytest.mark.parametrize("error", [None, KeyError])
def test_the_state_of_the_generator_is_restored_even_after_an_error(error):
    before = torch.get_rng_state()
    try:
        with seeded(0):
            torch.rand(3)
            if error:
                raise error
    except KeyError:
        pass
    assert torch.equal(torch.get_rng_state(), before)
