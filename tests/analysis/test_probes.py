import pytest
import torch

import vit
from tests.architectures import ARCHITECTURES, made
from vit.analysis import prune_heads
from vit.analysis.probes import Probe, probe_layers


def squares(count, seed):
    """Images of 12 x 20 pixels whose patches of 4 have random colours; the class is whether the image is bright."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 3, 5, generator=generator)
    labels = torch.arange(count) % 2
    images = images + 2 * labels[:, None, None, None]
    return images.repeat_interleave(4, 2).repeat_interleave(4, 3), labels


@pytest.fixture
def sets():
    return squares(40, 0), squares(30, 1)


def designed(**kwargs):
    """A model whose attention and MLP add nothing to the tokens."""
    torch.manual_seed(0)
    model = vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=2, num_heads=5, **kwargs).eval()
    for block in model.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            torch.nn.init.zeros_(layer.weight)
    return model


def test_tokens_that_pass_unchanged_keep_class_colour_and_place(sets):
    before, *after = probe_layers(designed(), *sets).layers
    assert after == [before, before]
    assert before.class_accuracy == 1
    assert before.colour > 0.99
    assert before.position > 0.9


def test_without_positions_only_the_place_is_lost(sets):
    for probe in probe_layers(designed(pos_embed="none"), *sets).layers:
        assert probe.class_accuracy == 1
        assert probe.colour > 0.99
        assert probe.position < 0.1


def test_row_and_column_count_by_their_variance(sets):
    model = designed()
    codes = torch.arange(3.0).repeat_interleave(5)[:, None] * torch.ones(40)
    with torch.no_grad():
        model.pos_embed[0, 1:] = codes  # of the row alone, whose variance is 2/3 beside 2 of the column
    for probe in probe_layers(model, *sets).layers:
        assert probe.position == pytest.approx(0.25, abs=0.06)


def test_shuffled_classes_are_not_read(sets):
    (images, labels), (others, expected) = sets
    shuffled = labels[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    probe = probe_layers(designed(), (images, shuffled), (others, expected)).layers[-1]
    assert probe.class_accuracy < 0.8
    assert probe.colour > 0.99


def test_a_head_that_looks_nowhere_keeps_nothing_of_a_patch(sets):
    model = designed()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:80] = 0  # all logits are equal
    for heads in probe_layers(model, *sets).heads:
        assert len(heads) == 5
        for probe in heads:
            assert probe.colour < 0.5
            assert probe.position < 0.1


def test_each_head_is_probed_by_its_own_output(sets):
    model = designed(attention_kwargs={"scaled": False})
    with torch.no_grad():
        for block in model.blocks:  # each token attends to itself alone, and the first head has no values
            block.attn.qkv.weight[:80] = 8 * torch.eye(40).repeat(2, 1)
            block.attn.qkv.weight[80:88] = 0
    for first, *others in probe_layers(model, *sets).heads:
        assert first == Probe(0.5, pytest.approx(0, abs=0.1), pytest.approx(0, abs=0.1))
        assert all(probe.class_accuracy > 0.9 for probe in others)


@pytest.mark.parametrize("name", ["timm", "torchvision", "vit-pytorch, ViT"])
def test_models_of_other_libraries_are_probed_and_their_heads_where_they_can_be_told_apart(sets, name):
    rows, columns = ARCHITECTURES[name].image
    found = probe_layers(made(name), *((images[..., :rows, :columns].double(), labels) for images, labels in sets))
    assert len(found.layers) == 4
    assert [len(heads) for heads in found.heads] == ([3, 3, 3] if name == "timm" else [])


@pytest.mark.parametrize("part", [0, 1])
def test_labels_are_one_class_for_each_image(ours, images, labels, part):
    for wrong in (torch.nn.functional.one_hot(labels), labels[:, None], labels[:1]):
        parts = [(images, labels), (images, labels)]
        parts[part] = images, wrong
        with pytest.raises(ValueError, match="give"):
            probe_layers(ours, *parts)


def test_a_layer_without_heads_is_refused(ours, images, labels):
    pruned = prune_heads(ours, {1: range(5)})
    with pytest.raises(ValueError, match="layer 1 has no heads left: probe the model before pruning"):
        probe_layers(pruned, (images, labels), (images, labels))
