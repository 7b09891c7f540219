"""Types of floats: the widest of several, and double precision on a device that has none."""

import torch

from vit.support.precision import in_double, widest_type


class OnMps:
    """A tensor of an Apple GPU, which refuses float64."""

    device = torch.device("mps")

    def cpu(self):
        return torch.tensor([1.5, 2.5])

    def to(self, dtype):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")


def test_numbers_of_a_device_without_float64_are_converted_on_the_cpu():
    found = in_double(OnMps())
    assert (found.dtype, found.tolist()) == (torch.float64, [1.5, 2.5])


def test_other_numbers_stay_on_their_device():
    assert in_double(torch.zeros(2, device="meta")).is_meta


def test_the_widest_type_of_several_tensors_holds_all_and_is_no_half_type():
    half, single, double = torch.ones(1).bfloat16(), torch.ones(1), torch.ones(1).double()
    assert widest_type(half) == widest_type(half, single) == torch.float32
    assert widest_type(half, double, single) == torch.float64
