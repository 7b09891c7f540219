"""The statistic of normality against its closed form, its mean, and what it must see."""

import math

import pytest
import torch

from vit.objectives.sigreg.normality import epps_pulley, sketched_normality


def all_of(samples):
    return torch.ones(samples.shape[1], dtype=torch.bool)


def closed_form(x):
    """The statistic of samples (B,) with the integrals over the whole line solved (Epps and Pulley 1983)."""
    count = len(x)
    pairs = (-((x[:, None] - x) ** 2) / 2).exp().sum() / count**2
    to_normal = 2 / count / math.sqrt(2) * (-(x**2) / 4).exp().sum()
    return count * math.sqrt(2 * math.pi) * (pairs - to_normal + 1 / math.sqrt(3))


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.1, 0.0), (2.0, 0.5), (1.0, 3.0)])
def test_it_equals_its_closed_form(scale, offset):
    samples = offset + scale * torch.randn(2, 101, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    found = epps_pulley(samples, all_of(samples))
    for view in range(2):
        for column in range(3):
            assert found[view, column].item() == pytest.approx(
                closed_form(samples[view, :, column]).item(), rel=1e-5, abs=1e-4
            )


@pytest.mark.parametrize("count", [8, 64])
def test_its_mean_over_normal_samples_does_not_depend_on_their_number(count):
    samples = torch.randn(1, count, 20_000, generator=torch.manual_seed(0))
    expected = math.sqrt(2 * math.pi) * (1 - 1 / math.sqrt(3))
    assert epps_pulley(samples, all_of(samples)).mean().item() == pytest.approx(expected, rel=0.02)


def test_samples_that_fill_a_batch_up_do_not_count():
    samples = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.manual_seed(0))
    is_real = torch.tensor([True] * 5 + [False] * 2)
    torch.testing.assert_close(epps_pulley(samples, is_real), epps_pulley(samples[:, :5], all_of(samples[:, :5])))


def normal(count=128, channels=16):
    return torch.randn(1, count, channels, generator=torch.manual_seed(1))


@pytest.mark.parametrize(
    "collapsed",
    [
        torch.zeros(1, 128, 16),
        normal(1).expand(-1, 128, -1),
        normal() * 0.1,
        normal() * (torch.arange(16) < 2),
        normal()[:, :, :1].expand(-1, -1, 16),
        normal().sign(),
    ],
    ids=["zero", "one point", "small", "a plane", "a line", "corners"],
)
def test_it_rises_for_samples_that_are_not_normal_in_all_directions(collapsed):
    assert sketched_normality(collapsed, all_of(collapsed), 0) > 1.05 * sketched_normality(
        normal(), all_of(normal()), 0
    )


def test_each_step_has_other_directions_and_a_step_always_the_same():
    samples = normal() ** 3
    assert sketched_normality(samples, all_of(samples), 3) == sketched_normality(samples, all_of(samples), 3)
    assert sketched_normality(samples, all_of(samples), 3) != sketched_normality(samples, all_of(samples), 4)


def test_samples_that_follow_its_gradient_become_normal():
    samples = (0.01 * normal(64, 4)).requires_grad_()
    optimizer = torch.optim.Adam([samples], lr=0.05)
    for step in range(150):
        optimizer.zero_grad()
        sketched_normality(samples, all_of(samples), step).backward()
        optimizer.step()
    covariance = samples[0].T.cov()
    torch.testing.assert_close(covariance, torch.eye(4), atol=0.35, rtol=0)
