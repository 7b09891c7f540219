"""Whether a model knows images like one."""

import json
from pathlib import Path

import pytest
import torch

import vit
from vit.explain import familiarity
from vit.explain.familiarity import caution, caution_about, energy, fingerprint_of, known_energies

KNOWN = {
    "percents": [*range(1, 100)],
    "energies": [0.1 * percent for percent in range(1, 100)],
    "caught": {
        "1": {"places": 0.2, "digits": 0.1, "noise": 0.5, "textures": 0.3},
        "5": {"places": 0.4, "digits": 0.2, "noise": 0.9, "textures": 0.3},
    },
}


@pytest.fixture(scope="module")
def model():
    return vit.load("cifar10")


def test_the_energy_is_the_log_of_the_sum_of_exponentials():
    assert energy(torch.tensor([[0.0, 0.0], [1.0, -torch.inf]])).tolist() == pytest.approx([0.6931472, 1.0])


@pytest.mark.parametrize(
    ("value", "said", "rates"),
    [
        (
            0.05,
            "more than 99 %",
            "1 % of the test images get this caution, 20 % of photographs of places, and 10 to",
        ),
        (0.15, "99 %", "5 % of the test images get this caution, 40 % of photographs of places, and 20 to 90 % of"),
        (0.45, "96 %", "5 % of the test images"),
    ],
)
def test_a_low_energy_is_a_caution_with_the_rates_of_its_level(value, said, rates):
    found = caution(KNOWN, value)
    assert f"is lower than that of {said} of the test images" in found.said
    assert found.rates.startswith(rates)
    assert found.rates.endswith("% of digits, noise and textures.")


@pytest.mark.parametrize("value", [0.5, 0.51, 9.0])
def test_other_energies_are_none(value):
    assert caution(KNOWN, value) is None


def test_the_packaged_model_and_no_other_has_energies_that_are_known(model):
    weak, strong = torch.full((10,), -2.0), torch.eye(10)[3] * 20
    assert "is lower than that of more than 99 % of the test images" in caution_about(model, weak).said
    assert caution_about(model, strong) is None
    changed = vit.load("cifar10")
    with torch.no_grad():
        changed.head.bias[0] += 1e-3
    assert caution_about(changed, weak) is None
    assert caution_about(vit.load("cifar10", num_classes=3), weak[:3]) is None


def test_the_file_beside_the_weights_is_about_them_and_follows_from_the_measurement(model):
    known = known_energies()
    assert known["weights"] == fingerprint_of(model)
    assert known["energies"] == sorted(known["energies"])
    results = json.loads((Path(vit.__file__).parents[1] / "benchmarks/results/familiarity.json").read_text())
    measured = results["scores"]["energy"]
    assert (known["energies"], known["caught"], known["images"]) == (
        measured["quantiles"],
        measured["caught"],
        results["images"],
    )
    assert {*map(int, known["caught"])} == {*familiarity.ALARMS}
