import pytest
import timm
import torch
import torchvision
from einops import rearrange
from torch import nn

import vit
from vit.analysis import measures, projection_ranks, prune_heads, weight_importance
from vit.analysis.modules import attention_modules
from vit.analysis.projections import head_projections


@pytest.fixture
def tv():
    return torchvision.models.VisionTransformer(24, 8, 2, 3, 24, 48)


def test_projections_of_a_head_are_those_that_make_its_logits_and_output(ours):
    attention, tokens = ours.blocks[1].attn, torch.randn(1, 7, 40)
    of = head_projections(attention)
    q, k, v = (tokens @ rearrange(weight, "h d c -> h c d") for weight in (of.query, of.key, of.value))
    biases = (rearrange(bias, "(h d) -> h 1 d", h=5) for bias in attention.qkv.bias.chunk(3))
    for ours_is, is_expected, bias in zip((q, k, v), attention.heads(tokens), biases, strict=True):
        torch.testing.assert_close(ours_is + bias, is_expected[0])
    written = (v @ rearrange(of.output, "h o d -> h d o")).sum(0)
    torch.testing.assert_close(written, attention.proj(rearrange(v, "h n d -> n (h d)")) - attention.proj.bias)


def test_spectra_are_those_of_the_products_per_head_and_of_their_sum(ours):
    ranks = projection_ranks(ours)
    assert len(ranks) == 3
    q, k, v = (rearrange(weight, "(h d) c -> h d c", h=5) for weight in ours.blocks[2].attn.qkv.weight.chunk(3))
    output = rearrange(ours.blocks[2].attn.proj.weight, "o (h d) -> h o d", h=5)
    query_key, value_output = q.mT @ k, output @ v
    for found, product in ((ranks[2].query_key, query_key), (ranks[2].value_output, value_output)):
        assert found.shape == (5, 8)
        torch.testing.assert_close(found.float(), torch.linalg.svdvals(product)[:, :8], atol=1e-5, rtol=1e-4)
    for found, product in ((ranks[2].shared_query_key, query_key), (ranks[2].shared_value_output, value_output)):
        torch.testing.assert_close(found.float(), torch.linalg.svdvals(product.sum(0)), atol=1e-4, rtol=1e-4)


def test_equal_heads_share_their_dimensions():
    model = vit.VisionTransformer(24, 8, embed_dim=24, depth=1, num_heads=3)
    with torch.no_grad():
        model.blocks[0].attn.qkv.weight.copy_(torch.eye(8, 24).repeat(9, 1))
    (ranks,) = projection_ranks(model)
    found = ranks.effective_ranks()
    torch.testing.assert_close(found["query_key"], torch.full((3,), 8.0, dtype=torch.float64))
    assert found["shared_query_key"].item() == pytest.approx(8)
    assert found["value_output"].shape == (3,)


def test_spectra_of_torchvision_are_those_of_its_projections(tv):
    ranks = projection_ranks(tv)
    attention = attention_modules(tv)[1]
    q, k, v = (rearrange(weight, "(h d) c -> h d c", h=3) for weight in attention.in_proj_weight.chunk(3))
    torch.testing.assert_close(
        ranks[1].shared_query_key.float(), torch.linalg.svdvals((q.mT @ k).sum(0)), atol=1e-5, rtol=1e-4
    )
    output = rearrange(attention.out_proj.weight, "o (h d) -> h o d", h=3)
    torch.testing.assert_close(
        ranks[1].value_output.float(), torch.linalg.svdvals(output @ v)[:, :8], atol=1e-5, rtol=1e-4
    )


def test_values_may_be_of_another_width_than_keys():
    of = head_projections(vit.attention.MultiHeadAttention(24, 3, key_dim=12, value_dim=36))
    assert (of.query.shape, of.value.shape, of.output.shape) == ((3, 4, 24), (3, 12, 24), (3, 24, 12))


@pytest.mark.parametrize(
    "attention",
    [
        timm.models.tiny_vit.Attention(24, key_dim=4, num_heads=3, attn_ratio=2, resolution=(2, 2)),
        timm.models.efficientformer.Attention(24, key_dim=4, num_heads=3, attn_ratio=2, resolution=2),
        timm.models.maxxvit.AttentionCl(24, dim_head=8),
        timm.models.maxxvit.AttentionCl(24, dim_head=8, head_first=False),
        timm.models.vision_transformer.Attention(24, num_heads=3),
    ],
    ids=lambda attention: type(attention).__module__.rpartition(".")[2],
)
@torch.no_grad()
def test_projections_of_timm_make_its_output_however_they_are_stored(attention):
    for name, bias in attention.named_parameters():
        if name.endswith("bias"):
            bias.zero_()
    tokens = torch.randn(1, 4, 24)
    of = head_projections(attention)
    q, k, v = (getattr(attention, "norm", nn.Identity())(tokens) @ each.mT for each in of[:3])
    attn = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
    torch.testing.assert_close((attn @ v @ of.output.mT).sum(dim=0, keepdim=True), attention(tokens))


class OwnAttention(nn.Module):
    """Attention that stores the rows of qkv in some order, with a norm in front of proj."""

    def __init__(self, order, norm, heads=2):
        super().__init__()
        self.num_heads, self.order = heads, order
        self.qkv, self.norm, self.proj = nn.Linear(8, 24), norm, nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), f"b n {self.order} -> three b h n d", three=3, h=self.num_heads)
        return self.proj(self.norm(rearrange((q @ k.mT).softmax(dim=-1) @ v, "b h n d -> b n (h d)")))


@pytest.mark.parametrize("heads", [2, 4])  # the rows of the first head are keys, or values of the third
def test_an_unknown_order_of_rows_is_refused(heads):
    with pytest.raises(ValueError, match="OwnAttention stores the rows of qkv in another order than queries, keys"):
        projection_ranks(nn.Sequential(OwnAttention("(h three d)", nn.Identity(), heads)))


def test_attention_over_channels_is_refused():
    with pytest.raises(ValueError, match="XCA attends over channels and not over tokens"):
        projection_ranks(nn.Sequential(timm.models.xcit.XCA(24, num_heads=3)))


def test_rows_that_are_used_without_their_module_are_taken_in_the_usual_order():
    attention = timm.models.eva.EvaAttention(
        24, num_heads=3, qk_norm=False, scale_norm=False
    )  # F.linear(x, qkv.weight)
    values = attention.qkv.weight[48:].unflatten(0, (3, 8))
    assert torch.equal(head_projections(attention).value, values)


def test_a_norm_in_front_of_the_output_projection_is_not_taken_for_another_order():
    assert len(projection_ranks(nn.Sequential(OwnAttention("(three h d)", nn.LayerNorm(8))))) == 1


def test_layers_pruned_of_all_heads_are_left_out(timms):
    assert len(projection_ranks(prune_heads(timms, {1: range(5)}))) == 2


def test_effective_ranks_are_those_of_the_measures(ours):
    ranks = projection_ranks(ours)[0]
    torch.testing.assert_close(
        ranks.effective_ranks()["shared_value_output"], measures.effective_rank(ranks.shared_value_output)
    )


def test_models_of_unknown_projections_are_refused():
    with pytest.raises(ValueError, match="Sequential has no attention with qkv and proj"):
        projection_ranks(nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="MultiHeadAttention has no joint projection"):
        projection_ranks(vit.VisionTransformer(24, 8, embed_dim=24, depth=1, num_heads=3, attention="simplified"))


def test_the_pooling_attention_of_siglip_does_not_stand_for_its_layers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3}
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**sizes, image_size=8, patch_size=4))
    for measure in (projection_ranks, weight_importance):
        with pytest.raises(ValueError, match="has attention of 3 SiglipAttention beside 1 MultiheadAttention"):
            measure(model)


@pytest.mark.parametrize(
    ("name", "other"),
    [("convit_tiny", "GPSA"), ("twins_svt_small", "GlobalSubSampleAttn"), ("cait_xxs24_224", "ClassAttn")],
)
def test_layers_of_another_attention_are_not_left_out_in_silence(name, other):
    with pytest.raises(ValueError, match=rf"has attention of \d+ {other} beside \d+ "):
        projection_ranks(timm.create_model(name))


def test_pooling_attention_is_not_a_layer():
    model = timm.models.VisionTransformer(24, 8, embed_dim=24, depth=2, num_heads=3, global_pool="map")
    assert len(projection_ranks(model)) == 2


@pytest.mark.parametrize("sharing", [{"num_kv_heads": 1}, {"tie_qkv": True}, {"tie_kv": True}])
def test_heads_that_share_projections_are_refused(sharing):
    with pytest.raises(ValueError, match=r"rows of qkv for 4 heads: heads that share"):
        head_projections(vit.attention.MultiHeadAttention(24, 4, **sharing))


def test_projections_of_transformers_give_the_same_ranks_as_one_joint_matrix(transformers_vit):
    attention = attention_modules(transformers_vit)[0]
    joint = vit.attention.MultiHeadAttention(40, 5)
    separate = [attention.q_proj, attention.k_proj, attention.v_proj]
    joint.qkv.weight.data = torch.cat([projection.weight.data for projection in separate])
    joint.proj.weight.data = attention.o_proj.weight.data
    for name, found in head_projections(attention)._asdict().items():
        torch.testing.assert_close(found, getattr(head_projections(joint), name), rtol=0, atol=0)
    assert len(projection_ranks(transformers_vit)) == 3
