from itertools import pairwise
from math import isnan

import pytest
import timm
import torch
import torch.nn.functional as F

from vit.analysis import (
    ablation_importance,
    head_importance,
    head_removal,
    prune_heads,
    pruning_curve,
    weight_importance,
)
from vit.analysis.head_removal import Shared


@pytest.fixture
def batches(images, labels):
    return list(zip(images.split(4), labels.split(4), strict=True))


def lowest(importance, count):
    """The least important heads, by layer and number."""
    values = torch.cat(importance).tolist()
    order = sorted(range(len(values)), key=values.__getitem__)[:count]
    return {layer: sorted(i % 5 for i in order if i // 5 == layer) for layer in sorted({i // 5 for i in order})}


def test_each_point_is_the_model_without_its_removed_heads(ours, images, labels, batches):
    points = pruning_curve(ours, batches, (images, labels), step=4)
    assert [point.heads_left for point in points] == [15, 11, 7, 3, 0]
    assert points[0].removed == {}
    assert points[-1].removed == {layer: [0, 1, 2, 3, 4] for layer in range(3)}
    for before, point in pairwise(points):
        assert all(set(heads) <= set(point.removed[layer]) for layer, heads in before.removed.items())
    for point in points:
        pruned = prune_heads(ours, point.removed)
        with torch.no_grad():
            logits = pruned(images)
        assert point.accuracy == pytest.approx((logits.argmax(-1) == labels).float().mean().item())
        assert point.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
        assert point.parameters == sum(parameter.numel() for parameter in pruned.parameters())
        assert point.images_per_second > 0
        assert point.speedup > 0


RANKED = {"importance": head_importance, "oracle": ablation_importance}


@pytest.mark.parametrize("order", RANKED)
def test_the_least_important_heads_go_first_and_are_ranked_anew(ours, images, labels, batches, order):
    first, second = pruning_curve(ours, batches, (images, labels), order, step=3)[1:3]
    assert first.removed == lowest(RANKED[order](ours, images, labels), 3)
    pruned = prune_heads(ours, first.removed)
    left = [(layer, head) for layer in range(3) for head in range(5) if head not in first.removed.get(layer, [])]
    ranking = torch.cat(RANKED[order](pruned, images, labels)).argsort().tolist()[:3]
    gone = {left[i] for i in ranking} | {(layer, head) for layer, heads in first.removed.items() for head in heads}
    assert {(layer, head) for layer, heads in second.removed.items() for head in heads} == gone


def test_without_ranking_anew_the_first_order_holds(ours, images, labels, batches):
    points = pruning_curve(ours, batches, (images, labels), step=3, rerank=False)
    assert points[3].removed == lowest(head_importance(ours, images, labels), 9)


def test_heads_of_small_weights_go_first_in_the_order_of_weights(ours, images, labels, batches):
    points = pruning_curve(ours, batches, (images, labels), "weight", step=4)
    assert points[2].removed == lowest(weight_importance(ours), 8)


def test_the_random_order_depends_on_the_seed_only(ours, images, labels, batches):
    def removed(seed, step):
        points = pruning_curve(ours, batches, (images, labels), "random", seed=seed, step=step)
        return {point.heads_left: point.removed for point in points}

    coarse = removed(0, 4)
    assert coarse[11] != removed(1, 4)[11]
    assert removed(0, 2).items() >= coarse.items()


def test_speed_is_that_of_the_pruned_model_beside_the_full_one(ours, images, labels, batches, monkeypatch):
    monkeypatch.setattr(head_removal, "_seconds", lambda model, images: 0.5 if model is ours else 0.2)
    *_, last = pruning_curve(ours, batches, (images, labels), "weight")
    assert (last.images_per_second, last.speedup) == (4 / 0.2, 2.5)


def test_without_rounds_nothing_is_timed(ours, images, labels, batches, monkeypatch):
    monkeypatch.setattr(head_removal, "_seconds", None)
    *_, last = pruning_curve(ours, batches, (images, labels), "weight", rounds=0)
    assert isnan(last.speedup)
    assert isnan(last.images_per_second)
    assert last.accuracy == pruning_curve(ours, batches, (images, labels), "random", rounds=0)[-1].accuracy


def test_curves_share_what_they_measure_on_equal_models(ours, images, labels, batches, monkeypatch):
    measured, ranked = [], []
    measure, oracle = head_removal._measure, head_removal.ablation_importance
    monkeypatch.setattr(head_removal, "_measure", lambda *args: measured.append(args[3]) or measure(*args))
    monkeypatch.setattr(head_removal, "ablation_importance", lambda *args: ranked.append(args) or oracle(*args))
    options = {"step": 5, "rerank": False, "rounds": 0}
    shared = Shared()
    found = [pruning_curve(ours, batches, (images, labels), x, shared=shared, **options) for x in ("oracle", "weight")]
    # All heads, ten, five and none: ten and five differ in the two orders.
    assert len(measured) == 6
    assert shared.importance(ours, (images, labels), "oracle")[0].shape == (5,)
    assert len(ranked) == 1
    alone = [pruning_curve(ours, batches, (images, labels), x, **options) for x in ("oracle", "weight")]
    for points, others in zip(found, alone, strict=True):
        for point, other in zip(points, others, strict=True):
            assert (point.removed, point.accuracy, point.loss) == (other.removed, other.accuracy, other.loss)


def test_a_tenth_of_the_heads_goes_at_once_by_default(timms, images, labels, batches):
    points = pruning_curve(timms, batches, (images, labels), "weight")
    assert [point.heads_left for point in points] == [15, 13, 11, 9, 7, 5, 3, 1, 0]


def test_a_pruned_model_is_pruned_further(ours, images, labels, batches):
    pruned = prune_heads(ours, {1: range(5), 2: [0]})
    for order in ("importance", "weight"):
        points = pruning_curve(pruned, batches, (images, labels), order, step=6)
        assert [point.heads_left for point in points] == [9, 3, 0]


def test_a_model_of_timm_with_the_same_weights_is_pruned_alike(ours, images, labels, batches):
    twin = timm.models.VisionTransformer(
        img_size=(12, 20), patch_size=4, embed_dim=40, depth=3, num_heads=5, num_classes=10
    )
    twin.load_state_dict(ours.state_dict())
    for order in ("importance", "oracle", "weight", "random"):
        found, expected = (
            pruning_curve(model, batches, (images, labels), order, step=5, rerank=False)
            for model in (twin.eval(), ours)
        )
        for point, other in zip(found, expected, strict=True):
            assert (point.removed, point.parameters) == (other.removed, other.parameters)
            assert point.loss == pytest.approx(other.loss, rel=1e-4)


def test_a_model_of_transformers_is_pruned_in_every_order(transformers_vit, images, labels, batches):
    for order in ("importance", "oracle", "weight", "random"):
        points = pruning_curve(transformers_vit, batches, (images, labels), order, step=5)
        assert [point.heads_left for point in points] == [15, 10, 5, 0]
        assert all(after.parameters < before.parameters for before, after in pairwise(points))


def test_only_the_heads_of_the_chosen_layers_go(ours, images, labels, batches):
    for order in ("importance", "oracle", "weight", "random"):
        points = pruning_curve(ours, batches, (images, labels), order, step=2, layers=[1])
        assert [point.heads_left for point in points] == [15, 13, 11, 10]
        assert points[-1].removed == {1: [0, 1, 2, 3, 4]}
    first = pruning_curve(ours, batches, (images, labels), step=2, layers=[1])[1]
    assert first.removed == {1: sorted(head_importance(ours, images, labels)[1].argsort()[:2].tolist())}
    both = pruning_curve(ours, batches, (images, labels), "weight", step=5, layers=[0, 2])
    assert [point.heads_left for point in both] == [15, 10, 5]
    assert set(both[-1].removed) == {0, 2}


def test_invalid_arguments_are_refused(ours, images, labels, batches):
    ranking = (images, labels)
    with pytest.raises(ValueError, match="unknown order 'best'"):
        pruning_curve(ours, batches, ranking, "best")
    with pytest.raises(ValueError, match=r"step \(0\) must be a positive whole number"):
        pruning_curve(ours, batches, ranking, step=0)
    with pytest.raises(ValueError, match="there is no layer 3: layers are 0 to 2"):
        pruning_curve(ours, batches, ranking, layers=[1, 3])
    with pytest.raises(ValueError, match="there are no batches"):
        pruning_curve(ours, [], ranking)
    with pytest.raises(ValueError, match="can be read again"):
        pruning_curve(ours, iter(batches), ranking)
    with pytest.raises(ValueError, match="training mode"):
        pruning_curve(ours.train(), batches, ranking, "weight")


@pytest.mark.parametrize("order", ["importance", "oracle"])
def test_layers_that_are_others_than_the_modules_are_not_ranked(watched, images, labels, batches, order):
    heads = r"have \[5, 5, 5\] heads, its attention modules \[5, 5, 5, 5\], which run in the order \[1, 0, 2, 3\]"
    with pytest.raises(ValueError, match=f"{heads}: heads can be ranked by 'weight' and 'random' alone"):
        pruning_curve(watched, batches, (images, labels), order)


def test_layers_that_run_in_another_order_than_the_modules_are_not_ranked(ours, images, labels, batches):
    ours._modules = {"registered_first": ours.blocks[2], **ours._modules}
    with pytest.raises(ValueError, match=r"run in the order \[1, 2, 0\]"):
        pruning_curve(ours, batches, (images, labels))
