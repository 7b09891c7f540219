"""The table of heads: of designed attention, whose kinds are known, and of models of several libraries."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import nn

import vit
from tests.architectures import ARCHITECTURES, made
from vit.analysis import describe_heads, measures, prune_heads
from vit.analysis.head_table import Head
from vit.explain import capture_attention


class Attend(nn.Module):
    """Attention by given logits."""

    def forward(self, tokens, logits):
        values = repeat(tokens, "b n c -> b h n c", h=logits.shape[1])
        nothing = torch.zeros_like(values)
        return rearrange(F.scaled_dot_product_attention(nothing, nothing, values, logits), "b h n c -> b n (h c)")


class Designed(nn.Module):
    """A layer over 3 x 5 patches and a class token with heads of given attention, and a last one for bright patches."""

    patch_size = (4, 6)

    def __init__(self, *attn):
        super().__init__()
        self.logits = torch.stack(attn).log()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 3))
        self.layer1 = Attend()
        self.head = nn.Linear(3 * (len(attn) + 1), 3)

    def forward(self, images):
        pixels = reduce(images, "b c (y p) (x q) -> b (y x) c", "mean", p=4, q=6)
        tokens = torch.cat([repeat(self.cls_token, "1 1 c -> b 1 c", b=len(images)), pixels], dim=1)
        to_bright = repeat(50 * tokens[..., 0], "b m -> b 1 n m", n=tokens.shape[1])
        logits = repeat(self.logits, "h n m -> b h n m", b=len(images))
        mixed = self.layer1(tokens, torch.cat([logits, to_bright], dim=1))
        return self.head(reduce(mixed, "b n h -> b h", "mean"))


def to_patches(attn):
    """Attention between 15 patches, and that of a class token to all: (15, 15) -> (16, 16)."""
    whole = torch.full((16, 16), 1 / 16)
    whole[1:, 0], whole[1:, 1:] = 0, attn
    return whole


@pytest.fixture
def table():
    left = torch.zeros(15, 15)
    for i in range(15):
        left[i, i if i % 5 == 0 else i - 1] = 1
    to_class = torch.zeros(16, 16)
    to_class[:, 0], to_class[:, 1:] = 0.7, 0.3 / 15
    model = Designed(to_patches(left), to_class).eval()
    brightness = torch.rand(11, 15, generator=torch.Generator().manual_seed(0))
    return describe_heads(model, repeat(brightness, "b (y x) -> b 3 (y p) (x q)", y=3, p=4, q=6), batch_size=4)


def test_kinds_and_measures_are_those_of_the_designed_heads(table):
    left, to_class, to_bright = table.heads
    assert [head.kind for head in table.heads] == ["positional", "sink", "sink"]
    assert to_bright.follows == pytest.approx(1, abs=0.01)
    assert (left.offset, left.offset_score) == ((0, -1), 1)
    assert left.distance == pytest.approx(6 * 12 / 15)
    assert to_class.relative_distance == pytest.approx(1)
    assert to_class.raw_distance == pytest.approx(0.3 * table.uniform_distance)
    assert (to_class.sink, to_class.sink_share) == (pytest.approx(16 * 0.7), pytest.approx(0.7))
    assert to_class.class_to_prefix == pytest.approx(to_class.patch_to_prefix) == pytest.approx(0.7)
    assert left.class_to_prefix == pytest.approx(1 / 16)
    assert left.patch_to_prefix == 0
    assert to_bright.positional < 0.5 < left.positional


class ByContent(nn.Module):
    """A layer over 3 x 5 patches, in which a patch attends to those whose brightness and its own sum to one."""

    patch_size = (4, 6)

    def __init__(self):
        super().__init__()
        self.layer1 = Attend()
        self.head = nn.Linear(3, 3)

    def logits(self, patches):
        bright = patches[..., 0]
        return -4 * (rearrange(bright, "b n -> b 1 n 1") + rearrange(bright, "b m -> b 1 1 m") - 1).abs()

    def forward(self, images):
        patches = reduce(images, "b c (y p) (x q) -> b (y x) c", "mean", p=4, q=6)
        return self.head(reduce(self.layer1(patches, self.logits(patches)), "b n c -> b c", "mean"))


class ByWhole(ByContent):
    """Attention to one of two rows, by the brightness of the whole image."""

    def logits(self, patches):
        rows = torch.zeros(2, 15)
        rows[0, :5], rows[1, 10:] = 30, 30
        bright = reduce(patches, "b n c -> b 1 1 1", "mean") > 0.4
        return torch.where(bright, rows[0], rows[1]).expand(-1, 1, 15, -1)


def test_content_moves_along_with_the_image_and_what_differs_for_another_reason_is_mixed():
    brightness = torch.rand(8, 15, generator=torch.Generator().manual_seed(3))
    brightness[::2] *= 0.7
    images = repeat(brightness, "b (y x) -> b 3 (y p) (x q)", y=3, p=4, q=6)
    (content,), (mixed,) = (describe_heads(model.eval(), images).heads for model in (ByContent(), ByWhole()))
    assert content.follows == pytest.approx(1, abs=1e-4)
    assert mixed.follows < 0.3
    assert max(content.positional, mixed.positional) < 0.7
    assert (content.kind, mixed.kind) == ("content", "mixed")


def test_an_image_alone_in_its_batch_and_a_single_patch_have_no_share(ours, images):
    whole = describe_heads(ours, images[:6], batch_size=6).heads
    split = describe_heads(ours, images[:7], batch_size=6).heads
    assert [head.follows for head in split] == pytest.approx([head.follows for head in whole], abs=1e-5)
    single = vit.VisionTransformer(8, 8, embed_dim=12, depth=1, num_heads=3).eval()
    assert all(head.follows != head.follows for head in describe_heads(single, torch.randn(4, 3, 8, 8)).heads)


KIND = {"sink_share": 0.1, "positional": 0.2, "offset_score": 0.3, "relative_distance": 0.8, "follows": 0.6}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "content"),
        ({"follows": 0.4}, "mixed"),
        ({"follows": float("nan")}, "mixed"),
        ({"relative_distance": 0.4}, "local"),
        ({"relative_distance": 0.4, "positional": 0.95}, "positional"),
        ({"offset_score": 0.95}, "positional"),
        ({"offset_score": 0.95, "sink_share": 0.31}, "sink"),
    ],
)
def test_the_first_threshold_passed_names_the_kind(changed, kind):
    head = dict.fromkeys(Head.__dataclass_fields__, 0) | KIND | changed
    assert Head(**head).kind == kind


def test_a_table_has_rows_and_prints_as_markdown(table):
    rows = table.to_rows()
    assert [(row["layer"], row["head"]) for row in rows] == [(0, 0), (0, 1), (0, 2)]
    assert rows[1]["kind"] == "sink"
    titles, rules, *lines = str(table).splitlines()
    cells = [cell.strip() for cell in lines[0].split("|")]
    assert cells[1:4] == ["0", "0", "positional"]
    assert cells[titles.split("|").index(" offset ")] == "+0 -1"
    assert set(rules) <= set("|-:")
    assert len(lines) == 3


def test_measures_are_means_over_images_for_any_batch_size(ours, images):
    whole = capture_attention(ours, images)
    attn = whole[1].detach()
    table = describe_heads(ours, images, batch_size=3)
    second = table.heads[5:10]
    expected = {
        "distance": measures.attention_distance(attn, (3, 5), (4, 4), 1),
        "raw_distance": measures.attention_distance(attn, (3, 5), (4, 4), 1, renormalise=False),
        "entropy": measures.attention_entropy(attn),
        "confidence": attn.amax(-1).mean(-1),
        "class_to_prefix": attn[:, :, 0, 0],
        "patch_to_prefix": attn[:, :, 1:, 0].mean(-1),
        "self_mass": measures.self_mass(attn),
        "effective_rank": measures.effective_rank(torch.linalg.svdvals(attn)),
        "stable_rank": measures.stable_rank(torch.linalg.svdvals(attn)),
        "sink": measures.sink_score(attn),
        "sink_share": measures.sink_score(attn) / 16,
    }
    for name, values in expected.items():
        found = torch.tensor([getattr(head, name) for head in second])
        torch.testing.assert_close(found, values.float().mean(0), msg=lambda text, name=name: f"{name}: {text}")
    deviation = (attn - attn.mean(0)).square().sum((-1, -2)).sum(0) / 6
    positional = torch.tensor([head.positional for head in second])
    torch.testing.assert_close(positional, 1 - deviation / attn.square().sum((-1, -2)).mean(0))
    counts = measures.offset_counts(attn, (3, 5), 1)
    torch.testing.assert_close(
        torch.tensor([head.offset_score for head in second]), measures.offset_score(counts, (3, 5))[0]
    )
    redundancies = measures.redundancy(torch.cat([layer.detach().mean(0) for layer in whole]))
    torch.testing.assert_close(torch.tensor([head.redundancy for head in table.heads]), redundancies)
    assert second[0].relative_distance == pytest.approx(second[0].distance / table.uniform_distance)
    spectrum = torch.linalg.svdvals(attn.double())
    torch.testing.assert_close(table.spectra[1], (spectrum / spectrum.sum(-1, keepdim=True)).mean(0))
    torch.testing.assert_close(table.offset_maps[1], measures.offset_map(attn.mean(0), (3, 5), 1))


@pytest.mark.parametrize("name", ["ours, mean without class token", "timm, map", "torchvision", "vit-pytorch, ViT"])
def test_heads_of_every_library_are_described(name):
    table = describe_heads(made(name), ARCHITECTURES[name].images())
    assert [(head.layer, head.head) for head in table.heads] == [divmod(number, 3) for number in range(9)]
    assert all(0 < head.entropy <= 1.0001 for head in table.heads)
    assert table.grid == ARCHITECTURES[name].grid
    if "without" in name:
        assert table.heads[0].class_to_prefix != table.heads[0].class_to_prefix  # NaN
        assert table.heads[0].patch_to_prefix == 0


def test_a_single_image_is_refused(ours, images):
    with pytest.raises(ValueError, match=r"too few images \(1\)"):
        describe_heads(ours, images[:1])


def test_attention_with_negative_weights_is_refused():
    model = vit.VisionTransformer(24, 8, embed_dim=24, depth=1, num_heads=3, attention="differential")
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.normal_()
    with pytest.raises(ValueError, match="attention of layer 0 has negative weights"):
        describe_heads(model.eval(), torch.randn(2, 3, 24, 24))


def test_layers_keep_their_numbers_where_one_has_lost_all_heads(ours, images):
    table = describe_heads(prune_heads(ours, {1: range(5)}), images)
    assert [head.layer for head in table.heads] == [0] * 5 + [2] * 5


def test_attention_without_influence_has_no_heads(ours, watched, images):
    found, expected = (describe_heads(model, images) for model in (watched, ours))
    assert found.heads == expected.heads
