"""The experiments about sentences of the literature, at a size that takes a second, and their answers."""

import json
import re
from pathlib import Path

import claims
import claims_cost
import claims_heads
import claims_norms
import claims_objects
import claims_order
import claims_quality
import claims_reach
import claims_read
import claims_rivals
import claims_routed
import claims_scale
import pytest
import records
import torch
from claims_training import FAILS, HOLDS, OPEN, difference

ROOT = Path(__file__).parents[2]
TINY = {
    "reach": "convolution, depth 2, shuffled labels",
    "rivals": "convolution, 50 images",
    "scale": "width 8, 12.5% of the images",
    "norms": "pre, no residual, depth 2, warm-up",
    "order": "rows around, of other images",
    "read": "one sequence, causal",
    "quality": "softmax, 40% left out",
    "heads": "queries, keys and values tied",
    "objects": "digits in clutter",
    "routed": "at random, 2 of 8",
    "cost": "interleaved",
}


@pytest.fixture
def tiny(monkeypatch):
    trained = claims_reach, claims_rivals, claims_norms, claims_order, claims_quality, claims_heads, claims_routed
    for module in (*trained, claims_objects):
        monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(claims_scale, "STEPS", (1, 2))
    monkeypatch.setattr(claims_read, "STEPS", 2)
    monkeypatch.setattr(claims_read, "PICTURES", 64)
    monkeypatch.setattr(claims_objects, "SEEN", 4)
    claims_rivals.chosen.cache_clear()
    for name, value in {"SIDES": (4, 6, 8), "WINDOWS": (2, 4, 8), "WINDOW_SIDE": 8, "HEADS_SIDE": 2}.items():
        monkeypatch.setattr(claims_cost, name, value)
    monkeypatch.setattr(records, "commit", lambda: "abc1234")


@pytest.mark.parametrize("name", TINY)
def test_each_cell_is_written_once_and_a_second_call_measures_what_is_missing(name, tiny, tmp_path, capsys):
    setting = TINY[name]
    asked = [name, "--settings", setting, "--output", str(tmp_path)]
    claims.main([*asked, "--seeds", "5"])
    path = tmp_path / f"claims_{name}.json"
    first = json.loads(path.read_text())
    (cell,) = first.values()
    assert (cell["setting"], cell["seed"], cell["commit"]) == (setting, 5, "abc1234")
    assert cell["command"] == f"python benchmarks/claims.py {name}"
    assert cell["machine"]["threads"] == 1
    claims.main([*asked, "--seeds", "5", "6"])
    both = json.loads(path.read_text())
    assert list(both) == [f"{setting}, seed 5", f"{setting}, seed 6"]
    assert both[f"{setting}, seed 5"] == cell
    assert "measured before, at commit abc1234" in capsys.readouterr().err
    assert setting.split(",")[0] in path.with_suffix(".md").read_text()
    assert path.with_suffix(".png").exists() == (claims.CLAIMS[name].draw is not None)


def test_no_cell_is_begun_after_the_minutes(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(claims.time, "monotonic", iter([0.0, 61.0]).__next__)
    claims.main(["reach", "--minutes", "1", "--output", str(tmp_path)])
    assert "softmax, depth 1, seed 0 and what follows it is left for the next call" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["reach", "--settings", "softmax"], "unknown setting 'softmax': choose of 'softmax, depth 1'"),
        (["reach", "--minutes", "0"], "--minutes (0.0) must be a number above 0"),
        (["speed"], "invalid choice: 'speed'"),
    ],
)
def test_what_is_not_there_is_one_line(arguments, error, capsys):
    with pytest.raises(SystemExit) as end:
        claims.main(arguments)
    assert end.value.code == 2
    assert error in capsys.readouterr().err


def reached(softmax, convolution, near=0.9, shuffled=0.5):
    """Cells of seeds whose accuracy is the same at all distances, but for marks that a convolution reaches."""
    within = {"convolution, depth 1": 1, "convolution, depth 4": 4}
    of_settings = {
        "softmax, depth 1": softmax,
        "convolution, depth 1": convolution,
        "convolution, depth 4": [0.5, 0.5, 0.5],
        "softmax, depth 2, shuffled labels": [shuffled - 0.01, shuffled, shuffled + 0.01],
    }
    return {
        f"{setting}, seed {seed}": {
            "setting": setting,
            "accuracy": {str(r): near if r <= within.get(setting, 0) else value for r in range(1, 16)},
        }
        for setting, values in of_settings.items()
        for seed, value in enumerate(values)
    }


@pytest.mark.parametrize(
    ("softmax", "convolution", "answer"),
    [
        ([0.98, 0.99, 0.97], [0.50, 0.51, 0.49], HOLDS),
        ([0.50, 0.51, 0.49], [0.98, 0.99, 0.97], FAILS),
        ([0.98, 0.50, 0.51], [0.50, 0.51, 0.49], OPEN),
        ([0.98], [0.50, 0.51, 0.49], OPEN),
    ],
)
def test_the_answer_is_that_of_the_interval_over_seeds(softmax, convolution, answer):
    (row,) = claims_reach.rows(reached(softmax, convolution))
    assert row["answer"] == answer
    assert "softmax with shuffled labels: 50.0 % (47.5 to 52.5)" in row["control"]


@pytest.mark.parametrize("control", [{"near": 0.5}, {"shuffled": 0.9}])
def test_a_control_that_fails_gives_no_answer(control):
    (row,) = claims_reach.rows(reached([0.98, 0.99, 0.97], [0.50, 0.51, 0.49], **control))
    assert row["answer"] == OPEN


@pytest.mark.parametrize(
    ("name", "depth", "within"),
    [
        ("softmax", 1, [1] * 15),
        ("recurrent", 1, [1] * 15),
        ("convolution", 1, [1] + [0] * 14),
        ("convolution", 4, [1] * 4 + [0] * 11),
        ("window", 1, [12 / 15, 8 / 14, 4 / 13] + [0] * 12),  # within the four windows of 16 patches
    ],
)
def test_the_graph_of_a_mechanism_says_which_marks_meet(name, depth, within):
    assert list(claims_reach.reached(name)[depth - 1].values()) == pytest.approx(within)


def test_a_prediction_read_at_the_second_mark_depends_on_what_that_token_sees():
    torch.manual_seed(0)
    images = torch.rand(1, 1, 2, 32) / 4
    images[..., [6, 7, 20, 21]] = 1  # cells 3 and 10
    images.requires_grad_()
    model = claims_reach.ReadAtMark(claims_reach.build("convolution", 2))
    model(images)[0, 0].backward()
    seen = images.grad.abs().sum(dim=(0, 1, 2)).reshape(16, 2).sum(dim=1).nonzero().flatten()
    assert seen.tolist() == [8, 9, 10, 11, 12]


def test_live_bytes_are_those_that_are_alive_at_once():
    x = torch.zeros(100)
    with claims_cost.LiveBytes(x) as memory:
        view = x.reshape(10, 10)  # no memory of its own
        y = view + 1
        z = y + 1
        del y
        z = z + 1
    assert (memory.peak, memory.alive) == (800, 400)


def priced(of_tokens, of_window=2.0, of_heads=1.0):
    """Cells whose seconds and bytes are powers of the tokens, by mechanism; the others have 1."""
    sizes = (4096, 6400, 9216)
    cost = {
        name: {str(size): dict.fromkeys(("seconds", "bytes"), size ** of_tokens.get(name, 1.0)) for size in sizes}
        for name in claims_cost.COLORS
    }
    window = {str(width): {"seconds": width**of_window, "bytes": width} for width in (4, 8, 16)}
    return {
        f"interleaved, seed {seed}": {
            "setting": "interleaved",
            "tokens": cost,
            "window": window,
            "heads": {
                way: {str(k): {"seconds": (0.01 * seed + k**of_heads) * factor} for k in claims_cost.KEPT}
                for way, factor in (("chosen", 1.5), ("pruned", 1.0))
            },
        }
        for seed in range(3)
    }


def test_costs_are_three_sentences_about_exponents_and_one_about_heads():
    quadratic = {"softmax": 2.0, "explicit": 2.0}
    rows = claims_cost.rows(priced(quadratic))
    assert [row["answer"] for row in rows] == [HOLDS, HOLDS, HOLDS, HOLDS]
    assert "all heads, with a router over without: 1.50" in rows[-1]["control"]
    found = claims_cost.rows(priced(quadratic | {"linear": 2.0}, of_window=1.0, of_heads=-1.0))
    assert [row["answer"] for row in found] == [FAILS, HOLDS, FAILS, FAILS]
    assert claims_cost.rows({}) == []


@pytest.mark.parametrize("way", claims_cost.WAYS)
@pytest.mark.parametrize("k", [1, 4])
def test_a_layer_that_chooses_heads_computes_as_many_as_one_that_has_lost_the_others(way, k, monkeypatch):
    computed, attend = [], torch.nn.functional.scaled_dot_product_attention

    def counted(q, *inputs, **options):
        computed.append(q.shape[1])
        return attend(q, *inputs, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    run, _ = claims_cost.of_heads(way, k)
    assert run().shape == (4, 1024, 256)
    assert computed == [k]


def test_a_mechanism_stops_where_its_growth_leaves_the_budget():
    growing = {"4096": {"seconds": 0.1, "bytes": 1e6}, "6400": {"seconds": 0.2, "bytes": 2e6}}
    assert claims_cost.affordable({}, 64**2)
    assert claims_cost.affordable(growing, 96**2)
    assert not claims_cost.affordable({"6400": {"seconds": 10.0, "bytes": 1e6}}, 96**2)
    assert not claims_cost.affordable({"6400": {"seconds": 0.1, "bytes": 1e9}}, 96**2)
    assert not claims_cost.affordable(growing, 128**2)  # stopped before


def damaged(wrong, without, softmax=0.1, convolution=0.1):
    """Cells of three seeds with 40 % of the labels wrong or left out, and of what corruptions cost."""
    accuracies = {f"{name}, 40% wrong": wrong for name in claims_quality.COLORS}
    accuracies |= {f"{name}, 40% left out": without for name in claims_quality.COLORS}
    accuracies |= {f"{name}, 0% wrong": 0.95 for name in claims_quality.COLORS}
    cost = {"softmax": softmax, "convolution": convolution}
    return {
        f"{setting}, seed {seed}": {
            "setting": setting,
            "accuracy": {"as they are": accuracy + 0.001 * seed}
            | dict.fromkeys(claims_quality.CORRUPTIONS, accuracy - cost[setting.split(",")[0]]),
        }
        for setting, accuracy in accuracies.items()
        for seed in range(3)
    }


@pytest.mark.parametrize(("wrong", "without", "answer"), [(0.8, 0.9, HOLDS), (0.9, 0.8, FAILS), (0.9, 0.9, OPEN)])
def test_wrong_labels_are_compared_with_missing_ones(wrong, without, answer):
    labels, _ = claims_quality.rows(damaged(wrong, without))
    assert labels["answer"] == answer


@pytest.mark.parametrize(("softmax", "convolution", "answer"), [(0.1, 0.3, HOLDS), (0.3, 0.1, FAILS), (0.1, 0.1, OPEN)])
def test_robustness_is_the_accuracy_that_corruptions_cost(softmax, convolution, answer):
    _, images = claims_quality.rows(damaged(0.9, 0.9, softmax, convolution))
    assert images["answer"] == answer
    words = f"(above 0: softmax loses more): {'-' if answer is HOLDS else '+'}20.0 points ("
    assert answer is OPEN or words in images["measured"]


@pytest.mark.parametrize(
    ("both", "causal", "at_once", "answers"),
    [
        (0.9, 1.0, 1.0, [HOLDS, HOLDS, HOLDS]),
        (1.3, 1.2, 1.2, [FAILS, FAILS, FAILS]),
        (0.9, 0.9, 0.9, [HOLDS, OPEN, OPEN]),
    ],
)
def test_order_is_three_sentences_about_bits(both, causal, at_once, answers):
    bits = dict(zip(claims_order.SETTINGS, (1.1, causal, both, 1.5, at_once), strict=True))
    cells = {
        f"{setting}, seed {seed}": {"setting": setting, "bits": value + 0.01 * seed}
        for setting, value in bits.items()
        for seed in range(3)
    }
    assert [row["answer"] for row in claims_order.rows(cells)] == answers


def test_the_rows_around_are_those_of_another_image_and_the_middle_stays():
    pixels = torch.arange(10)[:, None, None].expand(10, 4, 4)
    others = claims_order.with_rows_of_others(pixels, seed=0)
    assert torch.equal(others[:, 1:3], pixels[:, 1:3])
    assert sorted(others[:, 0, 0].tolist()) == sorted(others[:, 3, 0].tolist()) == list(range(10))
    assert (others[:, 0] != pixels[:, 0]).any()


def test_a_sentence_begins_with_its_answer_and_its_numbers_stand_below():
    row = {"sentence": "Heads differ", "source": "One 2020", "answer": FAILS, "measured": "1", "control": "2"}
    first, *below = claims.answers([row]).splitlines()
    assert first == "- **Does not hold here**: Heads differ (One 2020)."
    assert below == ["  - Measured: 1.", "  - Control: 2."]
    assert claims.answers([]) == "No sentence has all its numbers yet."


def test_the_overview_counts_the_answers_and_lists_the_claims_below_their_section(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    assert claims.overview().startswith("Of 0 claims")
    cells = wired(**{"pre, depth 12, warm-up": 0.9, "pre, depth 12": 0.9})
    (tmp_path / "claims_norms.json").write_text(json.dumps(cells))
    first, _, _, _, section, *rows = claims.overview().splitlines()
    assert first.startswith('Of 3 claims, 2 hold here, 0 do not, and 1 stay open ("cannot tell").')
    assert "**[Residual connections and norms](#residual-connections-and-norms)** (unchecked)" in section
    answered = claims_norms.rows(cells)
    assert [row.strip("| ").split(" | ")[1].strip() for row in rows] == [row["answer"] for row in answered]
    for row, line in zip(answered, rows, strict=True):
        assert [cell.strip() for cell in line.strip("| ").split(" | ")] == [
            row["sentence"],
            row["answer"],
        ]


def test_a_section_has_each_claim_with_its_source_its_control_and_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    assert claims.of_section("norms").startswith("No sentence has all its numbers yet.")
    cells = wired(**{"pre, depth 12, warm-up": 0.9})
    (tmp_path / "claims_norms.json").write_text(json.dumps(cells))
    section = claims.of_section("norms")
    for row in claims_norms.rows(cells):
        assert f"{row['sentence']} ({row['source']})." in section
        assert f"Control: {row['control']}." in section
    assert section.endswith("Measured by `python benchmarks/claims.py norms`.")
    assert claims.of_section("cifar10").endswith(
        "Measured by `python benchmarks/claims.py cifar10 --data data/cifar10-jpeg`."
    )


def test_each_experiment_has_a_section_of_its_title_in_the_order_of_the_overview():
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/claims.md").read_text(), re.MULTILINE)
    assert [heading for heading in headings if heading != "Measure again"] == [
        each.title for each in claims.CLAIMS.values()
    ]


def test_a_sentence_without_all_its_numbers_has_no_row():
    assert claims_reach.rows(reached([], [0.5, 0.5])) == []
    assert claims_norms.rows({}) == []
    assert claims_quality.rows({}) == []
    assert claims_order.rows({}) == []
    assert claims_routed.rows({}) == []
    assert claims_heads.rows({}) == []


def wired(**accuracies):
    """Cells of three seeds at depth 12, by wiring; the others have 50 %."""
    return {
        f"{setting}, seed {seed}": {"setting": setting, "accuracy": accuracies.get(setting, 0.5) + 0.001 * seed}
        for setting in claims_norms.SETTINGS
        for seed in range(3)
    }


def test_residual_connections_and_the_warm_ups_of_both_norms_are_three_sentences():
    residual, post, pre = claims_norms.rows(wired(**{"pre, depth 12, warm-up": 0.9, "pre, depth 12": 0.9}))
    assert [row["answer"] for row in (residual, post, pre)] == [HOLDS, OPEN, HOLDS]
    assert "+40.0 points" in residual["measured"]
    _, post, pre = claims_norms.rows(wired(**{"post, depth 12, warm-up": 0.9, "pre, depth 12, warm-up": 0.9}))
    assert (post["answer"], pre["answer"]) == (HOLDS, FAILS)
    _, post, _ = claims_norms.rows(wired(**{"post, depth 12": 0.9}))
    assert post["answer"] == FAILS


def test_a_difference_without_spread_is_itself():
    assert difference([0.5, 0.5], [0.25, 0.25]) == (0.25, 0.25, 0.25)


def chosen(few, half):
    """Cells of three seeds by the way that heads are chosen: with two heads, and with four by image; else 90 %."""
    of_settings = {f"{way}, 2 of 8": accuracy for way, accuracy in few.items()} | {"by image, 4 of 8": half}
    return {
        f"{setting}, seed {seed}": {"setting": setting, "accuracy": of_settings.get(setting, 0.9) + 0.0001 * seed}
        for setting in claims_routed.SETTINGS
        for seed in range(3)
    }


@pytest.mark.parametrize(
    ("few", "half", "answers"),
    [
        ({"by image": 0.95}, 0.9, [HOLDS, HOLDS]),
        ({"by image": 0.95, "at random": 0.95}, 0.8, [OPEN, FAILS]),  # a gain that needs no router
        ({"by image": 0.85}, 0.89, [FAILS, OPEN]),
    ],
)
def test_chosen_heads_are_compared_with_the_same_for_all_with_random_ones_and_with_all(few, half, answers):
    assert [row["answer"] for row in claims_routed.rows(chosen(few, half))] == answers


def test_controls_choose_at_random_or_the_same_heads_and_computed_heads_are_counted_by_class():
    torch.manual_seed(0)
    images, labels = torch.randn(400, 1, 8, 8), torch.arange(400) % 10
    same, drawn = (
        torch.tensor(claims_routed.uses(claims_routed.build(way, 2), images, labels))
        for way in ("the same for all", "at random")
    )
    assert torch.equal(same, torch.tensor([1.0] * 2 + [0.0] * 6).expand(2, 10, 8))
    assert drawn.shape == (2, 10, 8)
    torch.testing.assert_close(drawn.mean(dim=1), torch.full((2, 8), 2 / 8), atol=0.08, rtol=0)
    by_token = torch.tensor(claims_routed.uses(claims_routed.build("by token", 2), images, labels))
    torch.testing.assert_close(by_token.sum(dim=-1), torch.full((2, 10), 2.0))


def test_pruning_keeps_the_heads_that_the_loss_depends_on():
    torch.manual_seed(0)
    model, images, labels = claims_routed.build(), torch.randn(40, 1, 8, 8), torch.arange(40) % 10
    with torch.no_grad():
        for block in model.blocks:
            block.attn.proj.weight[:, : 5 * 4] = 0  # all but the last three of eight heads
    pruned = claims_routed.with_most_important(model, 3, images, labels)
    assert [block.attn.num_heads for block in pruned.blocks] == [3, 3]
    torch.testing.assert_close(pruned.eval()(images), model(images))


def headed(joint, **accuracies):
    """Cells of three seeds whose rank of all heads together is multiplied by training; the others have 90 %."""
    return {
        f"{setting}, seed {seed}": {
            "setting": setting,
            "accuracy": accuracies.get(setting, 0.9) + 0.0001 * seed,
            "ranks_before": {"one head": 4.0, "all heads": 20.0},
            "ranks_after": {"one head": 3.0, "all heads": 20.0 * joint + 0.01 * seed},
        }
        for setting in claims_heads.SETTINGS
        for seed in range(3)
    }


def trained_on_cifar10(folder, **accuracies):
    """Write cells of heads.py, of three seeds with the same differences from the reference of 60 %."""
    names = "1 head", "attention by positions alone", "8 heads, unscaled", "queries, keys and values tied"
    cells = {
        f"{row}, seed {seed}": {
            "row": row,
            "seed": seed,
            "budget": 800,
            "test_accuracy": accuracies.get(row, 0.5) + 0.01 * seed,
        }
        for row in ("8 heads", "one head of keys and values", *names)
        for seed in range(3)
    }
    (folder / "heads.json").write_text(json.dumps(cells | {"questions": {}}))


def test_heads_are_seven_sentences_answered_on_cifar10_or_else_on_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(claims_heads, "RESULTS", tmp_path)
    of_cifar10 = {"8 heads": 0.6, "1 head": 0.55, "attention by positions alone": 0.65, "8 heads, unscaled": 0.6}
    trained_on_cifar10(tmp_path, **of_cifar10)
    rows = claims_heads.rows(headed(0.5, **{"1 head": 0.8, "8 channels of keys": 0.8}))
    assert [row["answer"] for row in rows] == [HOLDS, FAILS, OPEN, HOLDS, HOLDS, HOLDS, HOLDS]
    assert rows[0]["measured"].startswith(
        "CIFAR-10, 8 heads minus 1 head: +5.0 points (+5.0 to +5.0); digits, 8 heads minus 1 head: +10.0 points ("
    )
    assert rows[5]["measured"].startswith("digits, 8 heads minus 8 channels of keys: +10.0 points (")
    assert rows[-1]["control"] == "all heads together: 0.500; one head: 0.750"
    assert claims_heads.rows(headed(0.9))[-1]["answer"] == FAILS


def test_ranks_before_training_are_near_the_width_of_a_head_and_of_a_token():
    torch.manual_seed(0)
    ranks = claims_heads.ranks(claims_heads.vit.VisionTransformer(**claims_heads.MODEL, num_heads=8))
    assert 3 < ranks["one head"] < 4
    assert 16 < ranks["all heads"] < 32


@pytest.mark.parametrize("both_ways", [True, False])
def test_in_one_sequence_patches_see_no_text_and_a_token_sees_all_patches_and_no_later_token(both_ways):
    torch.manual_seed(0)
    model = claims_read.OneSequence(both_ways).eval()
    patches = model.encoder.patch_embed.num_patches
    mask = model.mask
    assert mask[:patches, :patches].all() == both_ways
    assert not mask[:patches, patches:].any()
    assert mask[patches:, :patches].all()
    images = torch.rand(2, 1, *model.encoder.patch_embed.image_size)
    tokens = torch.randint(0, 10, (2, 4))
    changed = tokens.clone()
    changed[:, 2] += 1
    with torch.no_grad():
        before, after, other = model(images, tokens), model(images, changed), model(images.flip(0), tokens)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])
    assert not torch.allclose(before[:, 0], other[:, 0])


def read_by(**accuracies):
    """Cells of three seeds of models that read, by setting; the others read nothing."""
    return {
        f"{setting}, seed {seed}": {"setting": setting, "accuracy": accuracies.get(setting, 0.0) + 0.01 * seed}
        for setting in claims_read.SETTINGS
        for seed in range(3)
    }


@pytest.mark.parametrize(
    ("two", "one", "of_others", "answer"),
    [(0.9, 0.5, 0.1, HOLDS), (0.5, 0.9, 0.1, FAILS), (0.5, 0.5, 0.1, OPEN), (0.5, 0.9, 0.5, OPEN)],
)
def test_a_sentence_about_reading_needs_models_that_read(two, one, of_others, answer):
    names = dict(zip(claims_read.SETTINGS, (two, one, one, of_others), strict=True))
    (row,) = claims_read.rows(read_by(**names))
    assert row["answer"] == answer
