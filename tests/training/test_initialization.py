"""Initial weights of the attention and of the patch embedding."""

import pytest
import torch
from torch.testing import assert_close

from vit import VisionTransformer
from vit.model.decoder import TransformerDecoder
from vit.model.embedding import PatchEmbed
from vit.objectives import ViTClassifier
from vit.training.initialization import mimetic_attention, whiten_patches

SIZES = {"image_size": 8, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3}


@pytest.fixture
def model() -> VisionTransformer:
    result = VisionTransformer(**SIZES)
    mimetic_attention(result)
    return result


def per_head(model: VisionTransformer, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key weights of each head, (H, d, D)."""
    q, k, _ = model.blocks[block].attn.qkv.weight.detach().view(3, 3, 16, 48)
    return q, k


def test_queries_and_keys_of_every_head_compare_tokens_nearly_as_they_are(model):
    for block in range(2):
        for q, k in zip(*per_head(model, block), strict=True):
            product = q.T @ k
            diagonal, rest = product.diagonal(), product - torch.diag(product.diagonal())
            assert diagonal.mean() > 0.25
            assert rest.mean().abs() < 0.02


def test_values_and_output_together_are_a_negative_identity_and_noise(model):
    attn = model.blocks[1].attn
    product = (attn.proj.weight @ attn.qkv.weight[2 * 48 :]).detach()
    assert product.diagonal().mean() == pytest.approx(-0.4, abs=0.05)
    noise = product + 0.4 * torch.eye(48)
    assert noise.std() == pytest.approx(0.4 / 48**0.5, rel=0.1)


def test_a_head_has_the_best_factors_of_its_rank(model):
    torch.manual_seed(1)
    mimetic_attention(model)
    torch.manual_seed(1)
    target = 0.7 * torch.randn(48, 48) / 48**0.5 + 0.7 * torch.eye(48)
    left, values, right = torch.linalg.svd(target)
    best = left[:, :16] @ torch.diag(values[:16]) @ right[:16]
    q, k = per_head(model, 0)
    assert_close(q[0].T @ k[0], best, rtol=1e-4, atol=1e-5)


def test_heads_and_blocks_start_differently(model):
    products = [q.T @ k for block in range(2) for q, k in zip(*per_head(model, block), strict=True)]
    assert all((a - b).abs().max() > 0.1 for i, a in enumerate(products) for b in products[:i])


def test_nothing_but_the_weights_of_attention_changes():
    model = VisionTransformer(**SIZES)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mimetic_attention(model)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {f"blocks.{i}.attn.{part}.weight" for i in range(2) for part in ("qkv", "proj")}


def test_the_classifier_starts_as_asked():
    def first_product(init: str) -> torch.Tensor:
        torch.manual_seed(0)
        q, k = per_head(ViTClassifier(init=init, **SIZES).network, 0)
        return (q[0].T @ k[0]).diagonal().mean()

    assert first_product("mimetic") > 0.25
    assert first_product("glorot").abs() < 0.1


def test_attention_without_projections_is_refused():
    with pytest.raises(ValueError, match="simplified attention has none: take init glorot"):
        ViTClassifier(init="mimetic", attention="simplified", **SIZES)


@pytest.mark.parametrize("shared", [{"tie_qkv": True}, {"tie_kv": True}, {"num_kv_heads": 1}], ids=str)
def test_shared_projections_are_refused(shared):
    with pytest.raises(
        ValueError, match="init mimetic sets queries, keys and values of each head, and some are shared"
    ):
        mimetic_attention(VisionTransformer(**SIZES, **shared))


def test_the_self_attention_of_decoders_starts_as_that_of_encoders():
    torch.manual_seed(0)
    decoder = TransformerDecoder(5, 24, depth=2, num_heads=2, max_length=4, context_dim=24)
    before = {name: weight.clone() for name, weight in decoder.state_dict().items()}
    mimetic_attention(decoder)
    changed = {name for name, weight in decoder.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {f"blocks.{i}.attn.{part}.weight" for i in range(2) for part in ("qkv", "proj")}
    q, k, _ = decoder.blocks[1].attn.qkv.weight.detach().chunk(3)
    product = q.T @ k
    assert product.diagonal().mean() > 5 * (product - product.diagonal().diag()).mean().abs()


def correlated_images() -> torch.Tensor:
    """Images whose neighbouring pixels are alike, as in photographs."""
    return torch.nn.functional.avg_pool2d(torch.randn(300, 3, 10, 10, generator=torch.Generator().manual_seed(0)), 3, 1)


def test_the_channels_of_whitened_patches_vary_alike_and_independently(monkeypatch):
    monkeypatch.setattr("vit.training.initialization.FLOOR", 0.0)
    embed = VisionTransformer(8, 4, embed_dim=96, depth=1, num_heads=1).patch_embed
    images = correlated_images()
    whiten_patches(embed, images)
    tokens = embed(images).detach().flatten(0, 1)
    assert_close(tokens[:, :48].T.cov(), torch.eye(48), rtol=0, atol=1e-2)
    assert_close(tokens[:, 48:] - tokens[:, 48:].mean(0), tokens[:, :48].mean(0) - tokens[:, :48])


@pytest.mark.parametrize(("channels", "signs"), [(1, [1]), (3, [1, 1, -1]), (4, [1, 1, -1, -1]), (5, [1, 1, -1, -1])])
def test_filters_come_from_the_largest_variance_on_then_with_the_other_sign_and_the_rest_is_kept(channels, signs):
    # Patches of two pixels, a + b and a - b, with a of the larger variance.
    a, b = torch.tensor([2.0, 2.0, -2.0, -2.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    images = torch.stack([a + b, a - b], dim=1)[:, None, None]
    embed = PatchEmbed((1, 2), (1, 2), in_channels=1, embed_dim=channels)
    before = embed.proj.weight.detach().clone().flatten(1)
    whiten_patches(embed, images)
    largest, smallest = 2 * a.var(), 2 * b.var()  # along (1, 1) and (1, -1), of length 1 each
    floor = 0.05 * (largest + smallest) / 2
    golden = [torch.tensor([0.5, 0.5]).sqrt(), torch.tensor([0.5, 0.5]).sqrt() * torch.tensor([1.0, -1.0])]
    golden = [direction / (v + floor).sqrt() for direction, v in zip(golden, (largest, smallest), strict=True)] * 2
    filters = embed.proj.weight.detach().flatten(1)
    firsts = [filters[number] @ golden[number] > 0 for number in range(min(channels, 2))]  # the sign of one is free
    for number, sign in enumerate(signs):
        expected = golden[number] * sign * (1 if firsts[number % 2] else -1)
        assert_close(filters[number], expected)
    assert torch.equal(filters[len(signs) :], before[len(signs) :])


def test_patches_that_overlap_are_whitened_as_they_are():
    embed = PatchEmbed(8, 4, in_channels=3, embed_dim=96, patch_stride=2)
    plain = PatchEmbed(8, 4, in_channels=3, embed_dim=96)
    images = torch.randn(100, 3, 8, 8)
    whiten_patches(embed, images)
    whiten_patches(plain, torch.cat([images[:, :, r : r + 4, c : c + 4] for r in (0, 2, 4) for c in (0, 2, 4)]))
    assert_close(embed.proj.weight.abs(), plain.proj.weight.abs(), rtol=1e-3, atol=1e-4)


def test_too_few_patches_to_whiten_are_an_error():
    message = "whitening needs 48 patches or more, as many as a patch has numbers, and the training images have 12"
    with pytest.raises(ValueError, match=message):
        whiten_patches(PatchEmbed(8, 4, in_channels=3, embed_dim=96), torch.randn(3, 3, 8, 8))


def test_images_of_one_colour_cannot_be_whitened():
    with pytest.raises(ValueError, match="divides by the variance of patches, and all are equal: take normal"):
        whiten_patches(PatchEmbed(8, 4, in_channels=3, embed_dim=96), torch.zeros(30, 3, 8, 8))
