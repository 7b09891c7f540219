"""The experiment about attention, convolution and recurrence: the same size, options by validation, and its answers."""

import claims_figures
import claims_rivals
import pytest
import torch
from claims_rivals import ALL, COLORS, FEW, HIDDEN, KERNELS, SIZES
from claims_training import FAILS, HOLDS, OPEN


def compared(few=0.6, many=0.9, shuffled=0.1):
    """Cells of three seeds: accuracies of convolution after few and after all images; the others have 60 and 90 %."""
    of_settings = {
        name: shuffled if setting["shuffled"] else 0.6 if setting["size"] in FEW else 0.9
        for name, setting in claims_rivals.SETTINGS.items()
    }
    of_settings |= {f"convolution, {size:,} images": few if size in FEW else many for size in SIZES}
    return {
        f"{name}, seed {seed}": {
            "setting": name,
            "seed": seed,
            "accuracy": accuracy + 0.001 * (seed - 1),
            "parameters": 22_000,
            "step_ms": 6.0 if "convolution" in name else 8.0,
            "lr": 3e-3,
            "kernel": 5 if "convolution" in name else None,
        }
        for name, accuracy in of_settings.items()
        for seed in range(3)
    }


@pytest.mark.parametrize(
    ("few", "many", "answers"),
    [
        (0.8, 0.8, [HOLDS, HOLDS]),
        (0.5, 0.95, [FAILS, FAILS]),
        (0.6, 0.9, [OPEN, OPEN]),
    ],
)
def test_few_and_enough_images_are_two_sentences(few, many, answers):
    assert [row["answer"] for row in claims_rivals.rows(compared(few, many))] == answers


@pytest.mark.parametrize("shuffled", [0.05, 0.2])
def test_nothing_is_answered_if_shuffled_labels_are_not_at_chance(shuffled):
    assert [row["answer"] for row in claims_rivals.rows(compared(0.8, 0.8, shuffled))] == [OPEN, OPEN]


def test_a_row_names_controls_and_times():
    first, second = claims_rivals.rows(compared(0.8, 0.8))
    assert "over softmax, 50 or 150 images minus 1,199: +30.0 points (" in first["measured"]
    assert "the lead with 50 or 150 images: +20.0 points (+19.8 to +20.2)" in first["control"]
    assert "uniform minus softmax there: +0.0 points" in first["control"]
    assert "softmax with shuffled labels: 10.0 % (9.8 to 10.2)" in first["control"]
    assert "a step: softmax 8.0 ms, convolution 6.0 ms" in second["control"]


def test_a_sentence_without_all_its_numbers_has_no_row():
    cells = compared()
    for missing in ("uniform, 50 images", f"softmax, {ALL:,} images", f"softmax, {ALL:,} images, shuffled labels"):
        assert claims_rivals.rows({n: cell for n, cell in cells.items() if cell["setting"] != missing}) == []


def test_a_seed_counts_where_it_has_all_sizes_and_what_is_there_is_shown(tmp_path):
    cells = compared(0.8, 0.8)
    for first in (1, 20, 40):
        some = dict(list(cells.items())[:first])
        claims_rivals.table(some)
        claims_rivals.rows(some)
        claims_figures.draw_rivals(some, tmp_path / "drawn.png")
    del cells[f"softmax, {FEW[1]:,} images, seed 2"]
    assert claims_rivals.accuracies(cells, "softmax", *FEW) == pytest.approx([0.599, 0.6])
    assert len(claims_rivals.accuracies(cells, "softmax", FEW[0])) == 3


def test_the_table_states_size_and_chosen_options():
    text = claims_rivals.table(compared(0.8, 0.8))
    assert "22,000" in text
    assert "0.003, kernel 5" in text
    assert "With shuffled labels: softmax 10.0 % (9.8 to 10.2), convolution 10.0 % (9.8 to 10.2)." in text


def test_all_models_have_the_same_number_of_parameters_that_the_logits_depend_on():
    counts = {
        (name, kernel): claims_rivals.used_parameters(claims_rivals.build(name, kernel))
        for name in COLORS
        for kernel in (KERNELS if name == "convolution" else (None,))
    }
    of_softmax = counts["softmax", None]
    assert of_softmax == sum(parameter.numel() for parameter in claims_rivals.build("softmax").parameters())
    assert all(abs(count / of_softmax - 1) < 0.02 for count in counts.values()), counts
    for name in COLORS:
        assert claims_rivals.build(name).blocks[0].mlp.fc1.out_features == HIDDEN[name]


def test_learning_rate_and_kernel_are_those_of_the_best_validation_accuracy(monkeypatch):
    rates, asked = [], []
    monkeypatch.setattr(claims_rivals, "fit", lambda *args, lr, **kwargs: rates.append(lr))

    def score(data, split, model):
        asked.append(split)
        kernel = model.blocks[0].attn.mechanism.kernel.shape[-1]
        return 0.9 if (rates[-1], kernel) == (1e-2, 5) else 0.5

    monkeypatch.setattr(claims_rivals, "accuracy_on", score)
    claims_rivals.chosen.cache_clear()
    choice = claims_rivals.chosen("convolution")
    claims_rivals.chosen.cache_clear()
    assert (choice["lr"], choice["kernel"]) == (1e-2, 5)
    assert len(choice["validation"]) == 8
    assert choice["validation"]["lr 0.01, kernel 5"] == 0.9
    assert set(asked) == {"val"}


def test_subsets_are_nested_and_share_no_image_with_validation_or_test():
    data = claims_rivals.digits()
    assert len(data.sets["train"].labels) == ALL
    small, large = (claims_rivals.subset(data, size, seed=1) for size in FEW)
    assert torch.equal(small[0], large[0][: FEW[0]])
    assert torch.equal(small[1], large[1][: FEW[0]])
    assert not torch.equal(small[1], claims_rivals.subset(data, FEW[0], seed=2)[1])


def test_shuffled_labels_are_the_same_labels_in_another_order(monkeypatch):
    seen = []
    monkeypatch.setattr(claims_rivals, "fit", lambda model, images, labels, **kwargs: seen.append(labels))
    monkeypatch.setattr(claims_rivals, "chosen", lambda name: {"lr": 1e-3, "kernel": None, "validation": {}})
    for shuffled in (False, True):
        claims_rivals.measure({"attention": "uniform", "size": ALL, "shuffled": shuffled}, seed=0)
    right, wrong = seen
    assert torch.equal(right.sort().values, wrong.sort().values)
    assert (right == wrong).double().mean() < 0.2
