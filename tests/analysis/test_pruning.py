import pytest
import timm
import torch
from einops import rearrange

import vit
from vit.analysis import prune_heads
from vit.analysis.modules import NoHeads, attention_modules, head_count
from vit.analysis.pruning import check_separate
from vit.capture.attention import run_intercepted

HEADS = {0: [0, 3], 1: [4], 2: [1, 2, 3]}
EACH_LIBRARY = pytest.mark.parametrize("library", ["ours", "timms"])


def with_gates(model, images, heads):
    """Logits of a model whose attention is zero in these heads."""

    def edit(layer, attn):
        gates = torch.ones(attn.shape[1], dtype=attn.dtype)
        gates[list(heads.get(layer, []))] = 0
        return attn * rearrange(gates, "h -> h 1 1")

    with torch.no_grad():
        return run_intercepted(model, images, edit)


def assert_pruned_is_gated(model, images, heads):
    model, images = model.double(), images.double()
    pruned = prune_heads(model, heads)
    with torch.no_grad():
        found = pruned(images)
    torch.testing.assert_close(found, with_gates(model, images, heads), atol=1e-10, rtol=0)
    assert (found - model(images)).abs().max() > 1e-3
    return pruned


@EACH_LIBRARY
def test_a_pruned_model_equals_the_model_with_zeroed_heads(request, library, images):
    model = request.getfixturevalue(library)
    pruned = assert_pruned_is_gated(model, images, HEADS)
    assert [block.attn.num_heads for block in pruned.blocks] == [3, 4, 2]
    assert [block.attn.num_heads for block in model.blocks] == [5, 5, 5]


def test_a_pruned_model_of_transformers_equals_it_with_zeroed_heads(transformers_vit, images):
    model, images = transformers_vit.double(), images.double()
    for heads in (HEADS, {1: range(5)}):
        pruned = prune_heads(model, heads)
        with torch.no_grad():
            found = pruned(images).logits
            torch.testing.assert_close(found, with_gates(model, images, heads), atol=1e-10, rtol=0)
        assert (found - model(images).logits).abs().max() > 1e-3
    counts = [head_count(attention) for attention in attention_modules(prune_heads(model, HEADS))]
    assert counts == [3, 4, 2]
    emptied = prune_heads(prune_heads(model, {1: [0, 1]}), {1: range(3)})
    assert [head_count(attention) for attention in attention_modules(emptied)] == [5, 0, 5]
    assert "vit.layers.1.attention.o_proj.bias" in emptied.state_dict()


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"qkv_bias": False}], ids=str)
def test_models_with_qk_norm_or_without_biases_are_pruned(images, options):
    widths = {"patch_size": 4, "embed_dim": 40, "depth": 3, "num_heads": 5}
    for model in (
        vit.VisionTransformer(image_size=(12, 20), **widths, **options),
        timm.models.VisionTransformer(
            img_size=(12, 20), **widths, norm_layer=torch.nn.LayerNorm, proj_bias=False, **options
        ),
    ):
        torch.nn.init.normal_(model.head.weight)
        assert_pruned_is_gated(model.eval(), images, HEADS | {1: range(5)})


MECHANISMS = {
    "chunked": {"chunk": 5},
    "window": {"window": 2},
    "neighborhood": {"kernel": 3},
    "sparse": {},
    "topk": {},
    "uniform": {},
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_of_separate_heads_are_pruned(images, name):
    model = vit.VisionTransformer(
        (12, 20), 4, embed_dim=40, depth=3, num_heads=5, attention=name, attention_kwargs=MECHANISMS[name]
    )
    torch.nn.init.normal_(model.head.weight)
    assert_pruned_is_gated(model.eval(), images, HEADS)


@EACH_LIBRARY
def test_a_layer_without_heads_keeps_the_bias_of_its_output(request, library, images):
    model = request.getfixturevalue(library)
    pruned = assert_pruned_is_gated(model, images, {1: range(5)})
    left = pruned.blocks[1].attn
    assert isinstance(left, NoHeads)
    assert not left.training
    torch.testing.assert_close(left.proj["bias"], model.blocks[1].attn.proj.bias)
    assert_pruned_is_gated(model, images, {layer: range(5) for layer in range(3)})


@EACH_LIBRARY
def test_pruning_twice_is_pruning_once(request, library, images):
    model = request.getfixturevalue(library)
    once = prune_heads(model, {0: range(5), 1: [0, 1], 2: [2]})
    twice = prune_heads(prune_heads(model, {0: range(5), 1: [0]}), {1: [0], 2: [2]})
    torch.testing.assert_close(twice(images), once(images))


@EACH_LIBRARY
def test_the_weights_of_pruned_heads_are_gone(request, library):
    model = request.getfixturevalue(library)

    def size(model):
        return sum(parameter.numel() for parameter in model.parameters())

    # Of six heads four projections of 8 channels, and the biases of three of them.
    assert size(model) - size(prune_heads(model, HEADS)) == 6 * (4 * 8 * 40 + 3 * 8)
    attention = prune_heads(model, HEADS).blocks[2].attn
    assert (attention.qkv.out_features, attention.proj.in_features) == (48, 16)
    assert attention.qkv.weight.untyped_storage().nbytes() == 4 * 48 * 40


def test_a_pruned_model_can_be_trained_and_frozen_weights_stay_frozen(ours, images):
    ours.blocks[0].attn.qkv.weight.requires_grad_(False)
    pruned = prune_heads(ours, HEADS)
    pruned(images).sum().backward()
    assert pruned.blocks[0].attn.qkv.weight.grad is None
    assert pruned.blocks[1].attn.qkv.weight.grad.abs().sum() > 0


NOT_SEPARATE = [name for name in vit.attention.MECHANISMS if name not in ("softmax", *MECHANISMS)]


@pytest.mark.parametrize("name", NOT_SEPARATE)
def test_mechanisms_whose_heads_are_not_separate_are_refused(name):
    model = vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=1, num_heads=5, attention=name)
    with pytest.raises(ValueError, match=r"heads of \w+Attention cannot be pruned, as they interact or have weights"):
        prune_heads(model, {0: [1]})


@pytest.mark.parametrize(
    "sharing", [{"num_kv_heads": 1}, {"tie_qkv": True}, {"tie_kv": True}, {"context_dim": 12}], ids=str
)
def test_shared_projections_are_refused(sharing):
    with pytest.raises(ValueError, match="heads that share projections cannot be pruned"):
        check_separate(vit.attention.MultiHeadAttention(24, 4, **sharing))


def test_other_attentions_are_refused():
    with pytest.raises(ValueError, match=r"swin_transformer.WindowAttention .* \(.*relative_position_bias_table\)"):
        check_separate(timm.models.swin_transformer.WindowAttention(24, 3, window_size=(2, 2)))
    with pytest.raises(ValueError, match=r"AttentionRope cannot be pruned \(weights besides qkv and proj: none\)"):
        check_separate(timm.layers.AttentionRope(24, 3))
    with pytest.raises(ValueError, match=r"Attention cannot be pruned \(weights besides qkv and proj: gate, norm\)"):
        check_separate(timm.layers.Attention(24, 3, gated=True, scale_norm=True, norm_layer=torch.nn.LayerNorm))


def test_heads_that_do_not_exist_are_refused(ours):
    with pytest.raises(ValueError, match="layer 1 has 5 heads, counted from 0: there is no head 5"):
        prune_heads(ours, {1: [4, 5]})
    with pytest.raises(ValueError, match=r"the heads of layer 1 \(4\) must be a list: give \{1: \[4\]\}"):
        prune_heads(ours, {1: 4})
    with pytest.raises(ValueError, match="there is no layer 3: layers are 0 to 2"):
        prune_heads(ours, {3: [0]})


@pytest.mark.parametrize("doomed", [torch.tensor([0, 3]), torch.tensor([0, 3]).numpy(), range(0, 4, 3)], ids=str)
def test_heads_may_be_tensors_arrays_or_ranges(ours, images, doomed):
    torch.testing.assert_close(prune_heads(ours, {1: doomed})(images), prune_heads(ours, {1: [0, 3]})(images))


def test_parameters_of_a_frozen_model_stay_frozen(ours):
    pruned = prune_heads(ours.requires_grad_(False), {0: range(5), 1: [2]})
    assert not any(parameter.requires_grad for parameter in pruned.parameters())


def test_a_layer_without_heads_and_without_a_bias_adds_nothing(ours, images):
    ours.blocks[1].attn.proj.bias = None
    pruned = prune_heads(ours, {1: range(5)})
    assert not [name for name, _ in pruned.named_parameters() if name.startswith("blocks.1.attn")]
    tokens = torch.randn(2, 16, 40)
    assert not pruned.blocks[1].attn(tokens).any()
    assert pruned(images).shape == (7, 10)


def test_weights_of_a_pruned_model_load_into_one_pruned_alike(ours, images):
    heads = {0: range(5), 2: [0, 3]}
    pruned = prune_heads(ours, heads)
    fresh = prune_heads(vit.VisionTransformer((12, 20), 4, embed_dim=40, depth=3, num_heads=5).eval(), heads)
    fresh.load_state_dict(pruned.state_dict())
    assert torch.equal(fresh(images), pruned(images))


def test_layers_that_share_one_attention_are_refused():
    model = vit.VisionTransformer(8, 4, embed_dim=12, depth=2, num_heads=3).eval()
    model.blocks[1].attn = model.blocks[0].attn
    with pytest.raises(ValueError, match="several layers share one attention"):
        prune_heads(model, {0: [1]})
