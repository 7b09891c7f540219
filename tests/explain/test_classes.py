"""Classes of a model by their names."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vit.explain.classes import check_one_of_several, class_names_of, class_number, class_numbers

PETS = ["cat", "dog", "eel"]


def model_with(**attributes):
    model = nn.Identity()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    "attributes",
    [
        {"pretrained_cfg": {"class_names": PETS}},
        {"pretrained_cfg": {"label_names": tuple(PETS)}},
        {"config": SimpleNamespace(id2label={2: "eel", 0: "cat", 1: "dog"})},
    ],
    ids=["vit.load", "timm", "transformers"],
)
def test_names_are_those_of_the_model(attributes):
    model = model_with(**attributes)
    assert class_names_of(model, 3) == PETS
    assert class_numbers(model, "dog", 3) == 1
    assert class_numbers(model, ["eel", 0], 3) == [2, 0]


def test_classes_without_names_or_of_another_head_are_numbers():
    assert class_names_of(nn.Identity(), 2) == ["0", "1"]
    assert class_names_of(model_with(pretrained_cfg={"class_names": PETS}), 2) == ["0", "1"]
    assert class_names_of(model_with(config=SimpleNamespace(id2label=dict(enumerate(PETS)))), 2) == ["0", "1"]
    with pytest.raises(ValueError, match="unknown class 'cat': the classes of this model have no names, give one from"):
        class_numbers(nn.Identity(), "cat", 2)


def test_numbers_stay_as_they_are():
    numbers = torch.tensor([1, 2])
    assert class_numbers(nn.Identity(), numbers, 3) is numbers
    assert class_number("2", PETS) == 2


@pytest.mark.parametrize("name", ["dgo", "3", "", "Dog"])
def test_an_unknown_name_is_refused_with_what_is_known(name):
    with pytest.raises(ValueError, match="choose one of cat, dog, eel, or a number from 0 to 2"):
        class_number(name, PETS)
    if name == "dgo":
        with pytest.raises(ValueError, match=r"unknown class 'dgo' \(did you mean dog\?\)"):
            class_number(name, PETS)


def test_a_name_of_two_classes_is_refused_with_their_numbers():
    with pytest.raises(ValueError, match="classes 1, 3 are all named 'crane': give one of these numbers"):
        class_number("crane", ["cat", "crane", "dog", "crane"])


def test_labels_by_number_are_in_the_order_of_the_numbers():
    labels = {str(number): f"class {number}" for number in range(12)}
    model = model_with(config=SimpleNamespace(id2label=labels))
    assert class_names_of(model, 12) == [f"class {number}" for number in range(12)]
    assert class_numbers(model, "class 2", 12) == 2


def test_labels_of_other_numbers_than_those_of_the_logits_are_no_names():
    model = model_with(config=SimpleNamespace(id2label={1: "cat", 2: "dog"}))
    assert class_names_of(model, 2) == ["0", "1"]


def test_a_probability_is_measured_of_one_of_two_classes_or_more():
    model = nn.Linear(1, 1)
    check_one_of_several(model, torch.zeros(3, 2), "removal")
    with pytest.raises(ValueError, match="Linear has one logit only"):
        check_one_of_several(model, torch.zeros(3, 1), "removal")
    with pytest.raises(ValueError, match=r"Linear returned scores of shape \(3, 5, 7\), not one for each class"):
        check_one_of_several(model, torch.zeros(3, 5, 7), "removal")
