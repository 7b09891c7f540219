"""Captured attention, against the explicit attention of every library."""

import copy
import gc
import weakref
from contextlib import nullcontext

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import vit
from tests.architectures import EXACT, LIBRARIES, WAYS, captured
from vit.capture.checks.steady import LOGIT_TOLERANCE, check_logits_unchanged
from vit.capture.experiments.moved import moved_by_images, two_of
from vit.explain import METHODS, InterceptAttention, attention_rollout, capture_attention, explain
from vit.explain.maps.subject import Subject

ONE_OF_EACH_LIBRARY = pytest.mark.parametrize("name", LIBRARIES)
EACH_WAY = pytest.mark.parametrize("name", WAYS)


def inputs_of(model, modules, images):
    """The input of each module for these images."""
    seen = []
    handles = [module.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for module in modules]
    model(images)
    for handle in handles:
        handle.remove()
    return seen


# Each library's own explicit attention: the oracles.


def explicit_of_ours(model, images):
    attention = [block.attn for block in model.blocks]
    grid = model.patch_embed.grid_of(*images.shape[-2:])
    return [
        layer.weights(tokens, grid=grid)
        for layer, tokens in zip(attention, inputs_of(model, attention, images), strict=True)
    ]


def explicit_of_timm(model, images):
    model = copy.deepcopy(model)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    weights = inputs_of(model, [block.attn.attn_drop for block in model.blocks], images)
    if model.attn_pool is not None:
        pool = model.attn_pool
        (tokens,) = inputs_of(model, [pool], images)
        query = pool.q(pool.latent).reshape(1, 1, 3, 4).transpose(1, 2)
        key = pool.kv(tokens)[..., :12].reshape(len(images), -1, 3, 4).transpose(1, 2)
        weights.append((query @ key.mT / 2).softmax(dim=-1))
    return weights


def weights_of_multihead(layers, tokens):
    return [
        layer(x, x, x, need_weights=True, average_attn_weights=False)[1]
        for layer, x in zip(layers, tokens, strict=True)
    ]


def explicit_of_torchvision(model, images):
    layers = [layer.self_attention for layer in model.encoder.layers]
    return weights_of_multihead(layers, inputs_of(model, layers, images))


def explicit_of_transformers(model, images):
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    return list(model(images, output_attentions=True).attentions)


def explicit_of_vit_pytorch(model, images):
    return [
        products.softmax(dim=-1)
        for products in inputs_of(model, [attention.attend for attention, _ in model.transformer.layers], images)
    ]


def explicit_of_torch(model, images):
    layers = list(model.encoder.layers)
    tokens = [layer.norm1(x) for layer, x in zip(layers, inputs_of(model, layers, images), strict=True)]
    return weights_of_multihead([layer.self_attn for layer in layers], tokens)


EXPLICIT = {
    "ours": explicit_of_ours,
    "timm": explicit_of_timm,
    "torchvision": explicit_of_torchvision,
    "transformers": explicit_of_transformers,
    "vit-pytorch": explicit_of_vit_pytorch,
    "torch": explicit_of_torch,
}


def test_captured_attention_is_the_explicit_attention_of_the_library(name, model, images, attentions):
    expected = EXPLICIT[name.split(",")[0]](model, images)
    # The eager softmax of transformers is always in float32.
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if name.startswith("transformers") else EXACT
    assert_close(list(attentions), expected, check_dtype=False, **tolerance)


def test_each_layer_gives_its_heads_over_all_tokens(architecture, attentions):
    n = architecture.tokens
    pooling = [(2, 3, 1, n - architecture.prefix)] if architecture.pooled else []
    assert [tuple(attn.shape) for attn in attentions] == architecture.depth * [(2, 3, n, n)] + pooling


def test_rows_of_attention_sum_to_one_where_it_is_a_softmax(architecture, attentions):
    for attn in attentions:
        assert torch.allclose(attn.sum(dim=-1), attn.new_tensor(1.0)) == architecture.stochastic
        assert not attn.isclose(attn.mean(dim=-1, keepdim=True)).all()


def test_the_logits_are_those_of_the_plain_model(model, images, attentions):
    with torch.no_grad():
        plain = model(images)
    assert_close(attentions.logits.detach(), getattr(plain, "logits", plain), **EXACT)


@ONE_OF_EACH_LIBRARY
def test_the_logits_of_fused_kernels_in_float32_are_the_same_up_to_rounding(architecture, model):
    model, images = copy.deepcopy(model).float(), architecture.images(dtype=torch.float32)
    with torch.no_grad():
        plain = model(images)
    assert_close(capture_attention(model, images).logits, getattr(plain, "logits", plain), rtol=1e-4, atol=1e-4)


@EACH_WAY
def test_the_gradient_of_a_logit_is_its_slope_when_attention_is_edited(name, model, images, attentions):
    gradients = torch.autograd.grad(attentions.logits[:, 3].sum(), attentions, retain_graph=True)
    generator = torch.Generator().manual_seed(0)
    for layer, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=generator).to(gradient)

        def logit(step, layer=layer, direction=direction):
            def edit(index, attn):
                return attn + step * direction if index == layer else attn

            with torch.no_grad(), InterceptAttention(model, edit):
                output = model(images)
            return getattr(output, "logits", output)[:, 3].sum().double()

        step = 1e-3 if "eager" in name else 1e-5  # its softmax is in float32
        slope = (logit(step) - logit(-step)) / (2 * step)
        assert gradient.abs().max() > 0
        assert_close((gradient * direction).sum().double(), slope, rtol=1e-3 if "eager" in name else 1e-6, atol=1e-6)


@ONE_OF_EACH_LIBRARY
def test_frozen_models_have_the_same_gradients(name, architectures, model_of):
    images, model = architectures[name].images(), copy.deepcopy(model_of(name)).requires_grad_(False)
    attentions, expected = capture_attention(model, images), captured(name)
    gradients = torch.autograd.grad(attentions.logits[:, 3].sum(), attentions)
    expected = torch.autograd.grad(expected.logits[:, 3].sum(), expected, retain_graph=True)
    assert_close(gradients, expected, **EXACT)


@ONE_OF_EACH_LIBRARY
def test_without_gradients_there_is_no_graph(name, architectures, model_of):
    with torch.no_grad():
        attentions = capture_attention(model_of(name), architectures[name].images())
    assert not any(x.requires_grad for x in [*attentions, attentions.logits])


@ONE_OF_EACH_LIBRARY
def test_no_parameter_gets_a_gradient(name, model_of):
    torch.autograd.grad(captured(name).logits[:, 3].sum(), captured(name), retain_graph=True)
    assert all(parameter.grad is None for parameter in model_of(name).parameters())


@ONE_OF_EACH_LIBRARY
def test_bfloat16_autocast_is_captured_within_its_rounding(name, architectures, model_of):
    model = copy.deepcopy(model_of(name)).float()
    images = architectures[name].images(dtype=torch.float32)
    with torch.no_grad():
        exact = capture_attention(model, images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = capture_attention(model, images)
    assert len(rounded) == 3
    assert_close(list(rounded), list(exact), rtol=0, atol=0.03, check_dtype=False)


# Other forms of attention, and softmaxes that are no attention.


class Attending(nn.Module):
    """A model of one layer, whose attention is the function given: (q, k, v) -> mixed values."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.qkv = nn.Conv2d(3, 36, 2, stride=2)

    def forward(self, images):
        q, k, v = self.qkv(images).flatten(2).reshape(len(images), 3, 3, 4, -1).transpose(-1, -2).unbind(1)
        return self.attend(q, k, v).mean(dim=2).flatten(1)


def attention_of(attend):
    torch.manual_seed(0)
    model, images = Attending(attend).double().eval(), torch.randn(2, 3, 6, 10, dtype=torch.float64)
    q, k, _ = model.qkv(images).flatten(2).reshape(2, 3, 3, 4, -1).transpose(-1, -2).unbind(1)
    return capture_attention(model, images), q @ k.mT


def test_a_scale_and_masks_given_to_the_fused_kernel_are_heeded():
    bias = torch.randn(15, 15, dtype=torch.float64)
    (attn,), products = attention_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, bias, scale=0.3))
    assert_close(attn, (0.3 * products + bias).softmax(dim=-1), **EXACT)

    (attn,), _ = attention_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, bias.expand(3, -1, -1)))
    assert_close(attn, (products / 2 + bias).softmax(dim=-1), **EXACT)

    (attn,), _ = attention_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    past = torch.ones(15, 15, dtype=torch.bool).tril()
    assert_close(attn, (products / 2).masked_fill(~past, -torch.inf).softmax(dim=-1), **EXACT)


def test_keys_shared_by_heads_are_repeated_for_them():
    def attend(q, k, v):
        q = torch.cat([q, -q], dim=1)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    (attn,), _ = attention_of(attend)
    _, products = attention_of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    # Heads 0 and 1 share the first keys; queries are those of heads 0, 1, 2 and the same with the sign turned.
    assert attn.shape == (2, 6, 15, 15)
    assert_close(attn[:, 0], (products[:, 0] / 2).softmax(dim=-1), **EXACT)
    assert not attn[:, 1].allclose((products[:, 1] / 2).softmax(dim=-1))
    assert_close(attn.sum(dim=-1), torch.ones_like(attn[..., 0]), **EXACT)


@pytest.mark.parametrize(
    "softmax",
    [
        lambda x: x.softmax(-1),
        lambda x: x.softmax(dim=3),
        lambda x: torch.softmax(x, -1),
        lambda x: torch.softmax(input=x, dim=-1),
        lambda x: F.softmax(x, dim=-1),
        lambda x: F.softmax(input=x, dim=-1),
        lambda x: F.softmax(x, -1, dtype=torch.float64),
        nn.Softmax(dim=-1),
    ],
    ids=["method", "method, dim=3", "torch", "torch, input=", "F", "F, input=", "F, dtype", "module"],
)
def test_every_way_to_call_the_softmax_is_seen(softmax):
    (attn,), products = attention_of(lambda q, k, v: softmax(q @ k.mT) @ v)
    assert_close(attn, products.softmax(dim=-1), **EXACT)


def test_a_softmax_over_heads_channels_or_one_key_is_no_attention():
    def attend(q, k, v):
        others = v.softmax(dim=1) + v.softmax(dim=-1) + v[..., :1].softmax(dim=-1)
        return (q @ k.mT).softmax(dim=-1) @ (v + others)

    attentions, products = attention_of(attend)
    assert_close(list(attentions), [products.softmax(dim=-1)], **EXACT)


@pytest.mark.parametrize(
    "mixed", [lambda v: v.softmax(dim=-2), lambda v: v.flatten(2).softmax(-1)[..., :1, None]], ids=["keys", "both"]
)
def test_a_softmax_over_keys_that_changes_the_values_mixes_them(mixed):
    with pytest.raises(ValueError, match="Attending mixes tokens in a way that cannot be intercepted"):
        attention_of(lambda q, k, v: (q @ k.mT).softmax(dim=-1) @ (v + mixed(v)))


class Multihead(nn.Module):
    """A model of one layer, whose attention is the function given: (module, tokens) -> logits."""

    def __init__(self, attend, **kwargs):
        super().__init__()
        self.attend, self.module = attend, nn.MultiheadAttention(12, 3, **{"batch_first": True} | kwargs)

    def forward(self, images):
        return self.attend(self.module, images.flatten(2).mT)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_multihead_attention_of_torch_still_returns_its_weights(batch_first, bias, average):
    returned = []

    def attend(module, x):
        x = x if batch_first else x.transpose(0, 1)
        y, weights = module(x, x, x, average_attn_weights=average)
        returned.append(weights)
        return (y if batch_first else y.transpose(0, 1)).flatten(1) + weights.flatten(1)[:, :1]

    model = Multihead(attend, bias=bias, batch_first=batch_first).double().eval()
    images = torch.randn(2, 12, 3, 5, dtype=torch.float64)
    model(images)
    expected = returned[0]
    (attn,) = capture_attention(model, images)
    assert attn.shape == (2, 3, 15, 15)
    assert_close(attn.mean(dim=1) if average else attn, expected, **EXACT)


def test_attention_masks_of_multihead_attention_are_heeded():
    def attend(module, x):
        hidden = torch.ones(15, 15, dtype=torch.bool).triu(1)  # for torch, True is what must not be seen
        return module(x, x, x, attn_mask=hidden, need_weights=False)[0].flatten(1)

    (attn,) = capture_attention(Multihead(attend).eval(), torch.randn(2, 12, 3, 5))
    assert not attn.triu(1).any()


@pytest.mark.parametrize("kwargs", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_multihead_attention_with_other_keys_is_refused(kwargs):
    def attend(module, x):
        return module(x, *2 * [x[..., : module.kdim]])[0].flatten(1)

    with pytest.raises(ValueError, match="padding, bias_k, static_k or add_zero_attn cannot be seen"):
        capture_attention(Multihead(attend, **kwargs).eval(), torch.randn(2, 12, 3, 5))


# Refusals.


@pytest.mark.parametrize("mechanism", ["linear", "performer", "lowrank", "linformer"])
def test_mechanisms_without_weights_say_that_there_is_nothing_to_show(mechanism, random_vit):
    kwargs = {"landmarks": 4} if mechanism in ("lowrank", "linformer") else {}
    model = random_vit(attention=mechanism, attention_kwargs=kwargs)
    with pytest.raises(ValueError, match=r"never forms the matrix of attention weights.*nothing to show"):
        capture_attention(model, torch.randn(2, 3, 6, 10).double())
    assert_nothing_left(model)


def test_a_model_in_training_is_refused(random_vit):
    with pytest.raises(ValueError, match=r"the model is in training mode, .*: call model.eval\(\) first"):
        capture_attention(random_vit().train(), torch.randn(2, 3, 6, 10).double())


def test_compiled_models_are_refused(random_vit):
    images = torch.randn(2, 3, 6, 10).double()
    with pytest.raises(ValueError, match=r"the model \(OptimizedModule\) is compiled, .*: give its ._orig_mod"):
        capture_attention(torch.compile(random_vit()), images)

    model = random_vit()
    model.compile()
    with pytest.raises(ValueError, match=r"the model \(VisionTransformer\) is compiled in place, .*: build the model"):
        capture_attention(model, images)

    model = random_vit()
    model.blocks[1].attn = torch.compile(model.blocks[1].attn)
    with pytest.raises(ValueError, match=r"OptimizedModule 'blocks.1.attn' is compiled, so attention in it cannot be"):
        capture_attention(model, images)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_scripted_and_traced_models_are_refused(architectures):
    images = architectures["timm"].images()
    for model in (
        torch.jit.trace(architectures["timm"].model(), images),
        torch.jit.script(architectures["timm"].model()),
    ):
        with pytest.raises(ValueError, match="is scripted, so attention in it cannot be seen: give the model it was"):
            capture_attention(model, images)


@pytest.mark.parametrize(
    "make",
    [
        lambda: timm.models.SwinTransformer(
            img_size=32, patch_size=4, window_size=4, embed_dim=12, depths=(2, 2), num_heads=(3, 3), num_classes=7
        ),
        lambda: torchvision.models.SwinTransformer(
            [4, 4], embed_dim=12, depths=[2, 2], num_heads=[3, 3], window_size=[4, 4], num_classes=7
        ),
    ],
    ids=["timm", "torchvision"],
)
def test_attention_within_windows_is_refused_and_other_methods_are_named(make):
    model, images = make().eval(), torch.randn(2, 3, 32, 32)
    with pytest.raises(
        ValueError, match=r"attends within windows.*2 images gave.*\(8, 3, 16, 16\).*: occlusion, input"
    ):
        capture_attention(model, images)
    with pytest.raises(ValueError, match="attends within windows"):
        explain(model, images, grid=(8, 8))
    assert explain(model, images, "occlusion", grid=(8, 8)).shape == (2, 8, 8)


@pytest.mark.parametrize("batch", [1, 4])
def test_attention_to_a_coarser_grid_is_refused_whatever_the_batch(batch):
    def attend(q, k, v):
        x = F.scaled_dot_product_attention(q, k, v)
        return F.scaled_dot_product_attention(x, k[:, :, :7], v[:, :, :7])

    with pytest.raises(ValueError, match=r"attends within windows or chunks, to a coarser grid"):
        capture_attention(Attending(attend).eval(), torch.randn(batch, 3, 6, 10))
    with pytest.raises(ValueError, match=r"attends within windows or chunks, to a coarser grid"):
        capture_attention(
            Attending(lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :, :1], v[:, :, :1])).eval(),
            torch.randn(batch, 3, 6, 10),
        )


def test_a_single_query_that_no_layer_stands_before_is_refused():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q[:, :, :1], k, v)

    with pytest.raises(ValueError, match=r"to a coarser grid.*\(2, 3, 1, 15\)"):
        capture_attention(Attending(attend).eval(), torch.randn(2, 3, 6, 10))


def test_a_model_without_attention_is_refused():
    cnn = nn.Sequential(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(dim=-1)).eval()
    with pytest.raises(ValueError, match=r"Sequential called none of torch's attention functions .*no attention, or"):
        capture_attention(cnn, torch.randn(2, 3, 6, 10))


def test_images_without_a_batch_are_refused(random_vit):
    with pytest.raises(ValueError, match=r"images have shape \(3, 6, 10\): give .*one image as images\[None\]"):
        capture_attention(random_vit(), torch.randn(3, 6, 10).double())


def test_a_model_that_is_no_classifier_is_refused():
    class Features(Attending):
        def forward(self, images):
            return {"features": super().forward(images)}

    with pytest.raises(ValueError, match=r"the model returned dict, which is no tensor and has no .logits"):
        capture_attention(Features(F.scaled_dot_product_attention).eval(), torch.randn(2, 3, 6, 10))


def test_a_model_whose_logits_move_is_refused():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)  # not switched off by eval()

    with pytest.raises(ValueError, match=r"logits .* differ by .* between two passes of the same images: the model i"):
        capture_attention(Attending(attend).eval(), torch.randn(2, 3, 6, 10))
    with pytest.raises(ValueError, match=r"of 360 pixel values are NaN or infinite"):
        capture_attention(Attending(F.scaled_dot_product_attention).eval(), torch.full((2, 3, 6, 10), torch.nan))


@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
@pytest.mark.parametrize(("moved", "is_refused"), [(0.9, False), (1.2, True)])
def test_without_images_the_allowed_difference_is_a_share_of_the_median_logit(size, moved, is_refused):
    plain = torch.tensor([[size, 0.0, -size, -1e9]], dtype=torch.float64)
    logits = plain + moved * LOGIT_TOLERANCE * torch.tensor([size, size, size, 0.0])
    with pytest.raises(ValueError, match="moved") if is_refused else nullcontext():
        check_logits_unchanged(nn.Identity(), None, logits, plain)


@pytest.mark.parametrize(("moved", "is_refused"), [(0.9, False), (1.2, True)])
def test_a_logit_near_zero_may_move_by_a_share_of_what_another_image_moves(moved, is_refused):
    class Mean(nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3))

    images, plain = torch.randn(2, 1, 5, 7, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    scale = moved_by_images(Mean(), two_of(images[:1]))
    with pytest.raises(ValueError, match="moved") if is_refused else nullcontext():
        check_logits_unchanged(Mean(), scale, plain + moved * LOGIT_TOLERANCE * scale, plain)


# Edits.


def logits_edited(model, images, edit):
    with torch.no_grad(), InterceptAttention(model, edit):
        return model(images)


@pytest.mark.parametrize("name", ["ours, softmax", "ours, chunked", "ours, window", "ours, topk", "timm"])
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (2, 1)])
def test_a_head_with_zero_weights_contributes_nothing(name, layer, head, architectures, model_of):
    def without_head(index, attn):
        return (
            torch.cat([attn[:, :head], 0 * attn[:, head : head + 1], attn[:, head + 1 :]], dim=1)
            if (index == layer)
            else attn
        )

    images, pruned = architectures[name].images(), copy.deepcopy(model_of(name))
    pruned.blocks[layer].attn.proj.weight.data[:, 4 * head : 4 * head + 4] = 0
    with torch.no_grad():
        assert_close(logits_edited(model_of(name), images, without_head), pruned(images), **EXACT)
        assert not pruned(images).allclose(model_of(name)(images))


@pytest.mark.parametrize("gated", [False, True])
def test_uniform_attention_gives_every_token_the_mean_of_the_values(gated, random_vit):
    model, images = random_vit(attention="gated" if gated else "softmax"), torch.randn(2, 3, 6, 10).double()

    def blind(attention, x):
        _, _, v = attention.heads(x)
        mean = v.mean(dim=2, keepdim=True).expand_as(v)
        if gated:
            gate = attention.mechanism.gate(x).sigmoid()
            mean = mean * gate.reshape(2, 16, 3, 4).transpose(1, 2)
        return attention.proj(mean.transpose(1, 2).reshape(2, 16, 12))

    with torch.no_grad():
        x = model.embed(images)
        for block in model.blocks:
            x = x + blind(block.attn, block.norm1(x))
            x = x + block.mlp(block.norm2(x))
        expected = model.forward_head(model.norm(x))
    uniform = logits_edited(model, images, lambda _, attn: torch.full_like(attn, 1 / attn.shape[-1]))
    assert_close(uniform, expected, **EXACT)


@ONE_OF_EACH_LIBRARY
def test_layers_are_counted_from_zero_in_the_order_of_their_calls(name, architectures, model_of):
    layers = []
    edited = logits_edited(model_of(name), architectures[name].images(), lambda i, attn: layers.append(i) or attn)
    assert layers == [0, 1, 2]
    with torch.no_grad():
        plain = model_of(name)(architectures[name].images())
    assert_close(getattr(edited, "logits", edited), getattr(plain, "logits", plain), **EXACT)


# The model is unchanged afterwards.


def assert_nothing_left(model):
    for path, module in model.named_modules():
        assert "forward" not in vars(module), path
        assert not module._forward_hooks, path
        assert not module._forward_pre_hooks, path
        assert not module._backward_hooks, path


@ONE_OF_EACH_LIBRARY
def test_hooks_and_replaced_functions_are_gone_afterwards(model, images):
    before = {path: set(vars(module)) for path, module in model.named_modules()}
    capture_attention(model, images)
    explain(model, images, "relevance")
    explain(model, images, "legrad")
    explain(model, images, "gradcam")
    assert_nothing_left(model)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == before


@ONE_OF_EACH_LIBRARY
def test_hooks_and_replaced_functions_are_gone_after_an_error(model, images):
    def fail(layer, attn):
        if layer == 1:
            raise ZeroDivisionError
        return attn

    with torch.no_grad():
        expected = model(images)
        with pytest.raises(ZeroDivisionError), InterceptAttention(model, fail):
            model(images)
        assert_nothing_left(model)
        output = model(images)
    assert torch.overrides._get_current_function_mode() is None
    assert_close(getattr(output, "logits", output), getattr(expected, "logits", expected), rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_fails_half_way_leaves_nothing(method, random_vit):
    model, images = random_vit(), torch.randn(2, 3, 6, 10).double()
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) > 3:
            raise ZeroDivisionError

    handle = model.head.register_forward_hook(fail)
    for _ in range(4):
        try:
            explain(model, images, method)
        except ZeroDivisionError:
            continue
    handle.remove()
    assert_nothing_left(model)
    assert torch.overrides._get_current_function_mode() is None


def test_one_interception_within_another_leaves_the_outer_one_working(random_vit):
    model, images = random_vit(), torch.randn(2, 3, 6, 10).double()
    layers = []

    def outer(layer, attn):
        layers.append(layer)
        return attn

    with torch.no_grad(), InterceptAttention(model, outer):
        with InterceptAttention(model, lambda _, attn: attn):
            pass
        model(images)
    assert layers == [0, 1, 2]
    assert_nothing_left(model)


def test_fifty_captures_leave_no_object_and_no_tensor(random_vit):
    model, images = random_vit(depth=1), torch.randn(1, 3, 6, 10).double()

    def alive():
        gc.collect()
        objects = gc.get_objects()
        return len(objects), sum(issubclass(type(x), torch.Tensor) for x in objects)

    capture_attention(model, images)
    gc.freeze()  # leaves out the objects of other tests
    objects, tensors = alive()
    for _ in range(50):
        capture_attention(model, images)
    after, tensors_after = alive()
    assert tensors_after == tensors
    assert after - objects < 50


class Alive(TorchDispatchMode):
    """Counts the matrices of tokens x tokens that are alive at once, in numbers of images."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.now, self.most = tokens, 0, 0
        self.counted = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **kwargs or {})
        for x in outputs if isinstance(outputs, tuple | list) else [outputs]:
            if isinstance(x, torch.Tensor) and x.shape[-2:] == (self.tokens, self.tokens):
                self.count(x.untyped_storage(), x.numel() // self.tokens**2)
        return outputs

    def count(self, storage, matrices):
        key = storage._cdata
        if key in self.counted:
            return
        self.counted.add(key)
        self.now += matrices
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.free, key, matrices)

    def free(self, key, matrices):
        self.counted.discard(key)
        self.now -= matrices


def most_matrices_alive(model, call):
    with Alive(tokens=16) as alive:
        call(model)
    return alive.most


@pytest.mark.parametrize("method", ["attention", "rollout"])
def test_maps_of_attention_alone_hold_one_layer_at_a_time(method, random_vit):
    images = torch.randn(4, 3, 6, 10).double()

    def alive(model, explained):
        subject = Subject(model, images)
        assert subject.anatomy.depth == len(model.blocks)
        return most_matrices_alive(model, lambda _: METHODS[method](subject)), most_matrices_alive(model, explained)

    (shallow, whole), (deep, whole_deep) = (
        alive(random_vit(depth=depth), lambda model: explain(model, images[:1], method)) for depth in (2, 9)
    )
    assert (deep, whole_deep) == (shallow, whole)
    assert deep <= 4 * 4 * 3  # four times the heads of the images: products, weights, and what is made of them


def test_the_counter_of_living_matrices_sees_what_a_capture_keeps(random_vit):
    images = torch.randn(1, 3, 6, 10).double()
    assert most_matrices_alive(random_vit(depth=11), lambda model: capture_attention(model, images)) >= 11 * 3
    streamed = explain(model := random_vit(), images)
    whole = attention_rollout(capture_attention(model, images))[:, 0, 1:].reshape(1, 3, 5)
    assert_close(streamed, whole, **EXACT)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pixels_that_are_no_numbers_are_counted_and_refused(value):
    model = vit.VisionTransformer(16, 8, embed_dim=12, depth=1, num_heads=3).eval()
    images = torch.zeros(2, 3, 16, 16)
    images[1, 0, 3, 3:5] = value
    for refused in (capture_attention, lambda *given: explain(*given, "occlusion")):
        with pytest.raises(ValueError, match="2 of 1536 pixel values are NaN or infinite"):
            refused(model, images)
