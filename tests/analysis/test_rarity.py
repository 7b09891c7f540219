import pytest
import torch
from scipy.stats import spearmanr
from torch.testing import assert_close

from vit.analysis import prune_heads
from vit.analysis.rarity import rare_attention, rarity
from vit.explain import capture_attention


def test_rarity_is_the_distance_to_the_most_similar_other_patch():
    images = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    found = rarity(images, (3, 5))
    patches = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(2, 15, 12)
    for image in range(2):
        for patch in range(15):
            others = [(patches[image, patch] - patches[image, other]).norm() for other in range(15) if other != patch]
            assert found[image, patch].item() == pytest.approx(min(others).item())


def test_it_is_spearmans_correlation_with_the_rarity_of_the_own_and_of_the_next_image(ours, images):
    ours, images = ours.double(), images.double()
    own, others = rare_attention(ours, images, batch_size=3)
    with torch.no_grad():
        attentions = capture_attention(ours, images)
    rare = rarity(images, (3, 5))
    for layer, attn in enumerate(attentions):
        received = attn.mean(dim=2)[..., 1:]
        for head in range(5):
            for found, shift in ((own, 0), (others, 1)):
                pairs = [(received[i, head], rare[(i - shift) % 7]) for i in range(7)]
                expected = sum(spearmanr(*pair).statistic for pair in pairs) / 7
                assert found[layer][head].item() == pytest.approx(expected, abs=1e-6)


def test_equal_values_share_a_rank_and_images_of_one_colour_count_zero(ours):
    images = torch.randn(5, 3, 1, 1).expand(5, 3, 12, 20)
    own, _ = rare_attention(ours, images)
    assert_close(torch.cat(own), torch.zeros(15))


def test_layers_without_heads_are_empty(ours, images):
    own, others = rare_attention(prune_heads(ours, {1: range(5)}), images)
    assert [len(layer) for layer in own] == [len(layer) for layer in others] == [5, 0, 5]


def test_the_control_needs_a_second_image(ours, images):
    with pytest.raises(ValueError, match=r"too few images \(1\)"):
        rare_attention(ours, images[:1])


def test_attention_without_influence_is_no_layer(ours, watched, images):
    assert_close(rare_attention(watched, images), rare_attention(ours, images))
