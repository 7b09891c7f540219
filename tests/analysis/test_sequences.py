"""Heads of encoder-decoders: importance against finite differences, curves against removal by hand."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import vit
from vit.analysis import prune_heads, sequence_head_importance, sequence_pruning_curve
from vit.analysis.modules import attention_modules
from vit.capture.sequence import KINDS, run_sequence
from vit.model.decoder import ImageToSequence, TransformerDecoder

IMAGES = torch.randn(7, 1, 8, 12, dtype=torch.float64)
TOKENS = torch.randint(0, 9, (7, 4))
TARGETS = torch.cat([TOKENS[:, 1:], torch.full((7, 1), 10)], dim=1)
TARGETS[3, 2:] = -1
BATCH = (IMAGES, TOKENS, TARGETS)


@pytest.fixture
def model():
    torch.manual_seed(0)
    encoder = vit.VisionTransformer((8, 12), 4, 1, embed_dim=12, depth=1, num_heads=3, num_classes=0)
    decoder = TransformerDecoder(11, 12, 2, 2, 7, context_dim=12)
    model = ImageToSequence(encoder, decoder, start=9, end=10).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def loss_of(model, row, edit):
    logits = run_sequence(model, IMAGES[row : row + 1], TOKENS[row : row + 1], edit=edit)
    return F.cross_entropy(logits[0], TARGETS[row], ignore_index=-1, reduction="sum").item()


def test_importance_is_the_mean_absolute_slope_of_the_loss_by_the_gate(model):
    importance = sequence_head_importance(model, BATCH, batch_size=3)
    assert {kind: [len(layer) for layer in importance[kind]] for kind in KINDS} == {
        "encoder": [3],
        "decoder": [2, 2],
        "cross": [2, 2],
    }
    for place in (("encoder", 0, 2), ("decoder", 1, 0), ("cross", 0, 1)):

        def scaled(factor, place=place):
            def edit(kind, layer, attn):
                if (kind, layer) != place[:2]:
                    return attn
                attn = attn.clone()
                attn[:, place[2]] *= factor
                return attn

            return edit

        slopes = [
            (loss_of(model, row, scaled(1 + 1e-6)) - loss_of(model, row, scaled(1 - 1e-6))) / 2e-6 for row in range(7)
        ]
        expected = sum(map(abs, slopes)) / 7
        assert importance[place[0]][place[1]][place[2]].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_ends_without_heads_of_its_kind_and_each_point_is_right(model, kind):
    points = sequence_pruning_curve(model, BATCH, BATCH, kind, batch_size=4)
    total = 3 if kind == "encoder" else 4
    assert [point.heads_left for point in points] == list(range(total, -1, -1))
    for point in points:
        assert len(set(point.removed)) == total - point.heads_left

        def edit(of, layer, attn, point=point):
            attn = attn.clone()
            for gone, head in point.removed if of == kind else []:
                if gone == layer:
                    attn[:, head] = 0
            return attn

        logits = run_sequence(model, IMAGES, TOKENS, edit=edit)
        right = (logits.argmax(-1) == TARGETS) | (TARGETS < 0)
        assert point.accuracy == right.all(dim=1).double().mean().item()
        expected = F.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), ignore_index=-1).item()
        assert point.loss == pytest.approx(expected)


def test_the_least_important_head_left_goes_first(model):
    points = sequence_pruning_curve(model, BATCH, BATCH, "cross")
    for before, after in pairwise(points):
        importance = sequence_head_importance(model, BATCH, without={"cross": before.removed})["cross"]
        left = {(i, h) for i in range(2) for h in range(2)} - set(before.removed)
        assert after.removed[-1] == min(left, key=lambda place: importance[place[0]][place[1]])


def test_a_random_order_is_that_of_its_seed(model):
    orders = [
        sequence_pruning_curve(model, BATCH, BATCH, "decoder", "random", seed=seed)[-1].removed for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(("kind", "layer"), [("encoder", 0), ("decoder", 1), ("cross", 2)])
def test_heads_cut_out_of_the_weights_give_the_same_logits(model, kind, layer):
    pruned = prune_heads(model, {layer: [1]})
    assert attention_modules(pruned)[layer].num_heads == attention_modules(model)[layer].num_heads - 1

    def edit(of, number, attn):
        attn = attn.clone()
        if (of, number) == (kind, 0):
            attn[:, 1] = 0
        return attn

    assert_close(pruned(IMAGES, TOKENS), run_sequence(model, IMAGES, TOKENS, edit=edit))


def test_a_kind_that_is_not_there_is_refused(model):
    with pytest.raises(ValueError, match="unknown kind 'self': choose 'encoder', 'decoder' or 'cross'"):
        sequence_pruning_curve(model, BATCH, BATCH, "self")

    class WithoutImages(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = TransformerDecoder(11, 12, 1, 2, 7).double()

        def forward(self, images, tokens):
            return self.decoder(tokens)

    with pytest.raises(ValueError, match="WithoutImages has no cross attention: choose another kind"):
        sequence_pruning_curve(WithoutImages().eval(), BATCH, BATCH, "cross")


def test_attention_that_nothing_reads_is_refused(model):
    class Watched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.watcher = model, torch.nn.MultiheadAttention(12, 3, batch_first=True).double()

        def forward(self, images, tokens):
            seen = self.model.encoder.forward_features(images)
            self.watcher(seen, seen, seen)
            return self.model(images, tokens)

    with pytest.raises(ValueError, match=r"Watched have no gradient .*: leave out attention that its logits do not"):
        sequence_head_importance(Watched().eval(), BATCH)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
def test_a_decoder_whose_first_block_has_no_heads_left_writes_the_same_with_a_cache(positions):
    torch.manual_seed(0)
    decoder = TransformerDecoder(11, 12, 2, 2, 7, positions=positions).double().eval()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    pruned = prune_heads(decoder, {0: [0, 1]})
    caches = pruned.new_caches()
    steps = [pruned(TOKENS[:, place : place + 1], caches=caches) for place in range(4)]
    assert_close(torch.cat(steps, dim=1), pruned(TOKENS))


def test_attention_of_a_model_without_the_heads_of_a_layer_is_not_numbered(model):
    pruned = prune_heads(model, {1: [0, 1]})
    for measure in (
        lambda: sequence_head_importance(pruned, BATCH),
        lambda: sequence_pruning_curve(pruned, BATCH, BATCH, "encoder"),
    ):
        with pytest.raises(ValueError, match="has a layer without heads"):
            measure()


def test_importance_adds_up_in_float32(model):
    found = sequence_head_importance(model.bfloat16(), (IMAGES.bfloat16(), TOKENS, TARGETS), batch_size=1)
    assert {layer.dtype for kind in KINDS for layer in found[kind]} == {torch.float32}
