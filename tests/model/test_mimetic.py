"""Initial weights of the attention."""

import pytest
import torch
from torch.testing import assert_close

from vit import VisionTransformer
from vit.model.decoder import TransformerDecoder
from vit.model.mimetic import mimetic_attention
from vit.objectives import ViTClassifier

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
    with pytest.raises(ValueError, match="SimplifiedAttention has none: take init glorot"):
        ViTClassifier(init="mimetic", attention="simplified", **SIZES)


@pytest.mark.parametrize("shared", [{"tie_qkv": True}, {"tie_kv": True}, {"num_kv_heads": 1}], ids=str)
def test_shared_projections_are_refused(shared):
    with pytest.raises(ValueError, match=r"init mimetic sets .* of each head, and tie_qkv \((True|False)\), tie_kv "):
        mimetic_attention(VisionTransformer(**SIZES, **shared))


@pytest.mark.parametrize("width", ["key_dim", "value_dim"])
def test_keys_and_values_of_another_width_are_refused(width):
    with pytest.raises(
        ValueError, match=r"init mimetic needs key_dim \(\d+\) and value_dim \(\d+\) as wide as a token"
    ):
        mimetic_attention(VisionTransformer(**SIZES, **{width: 2 * SIZES["num_heads"]}))


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
