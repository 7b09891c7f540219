"""AttnLRP against relevance that is passed on layer by layer, by the rules of the paper."""

import copy
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, IMAGES, TARGET, VERSUS, made, randomised
from tests.capture.wrapped_model import Around
from vit.explain.maps.methods import signed_map
from vit.explain.maps.relevance_rules import FollowRules, find_rules
from vit.explain.maps.subject import Subject

ROWS = torch.arange(3)


class Rules:
    """The rules of Achtibat et al. (2024), each with division by the output as written there."""

    def __init__(self):
        self.absorbed = torch.zeros(3, dtype=torch.float64)  # by biases and by the constant of the softmax

    def absorb(self, relevance):
        self.absorbed += relevance.flatten(1).sum(dim=1)

    def linear(self, relevance, x, weight, bias):
        """LRP-epsilon, epsilon 0: ``R_i = sum_j x_i w_ji R_j / z_j``; the bias keeps ``b_j R_j / z_j``."""
        z = x @ weight.T + bias
        self.absorb(bias * relevance / z)
        return x * ((relevance / z) @ weight)

    def norm(self, relevance, x, layer):
        """The division by the deviation passes relevance on; the subtraction of the mean is linear."""
        deviation = (x.var(dim=-1, correction=0, keepdim=True) + layer.eps).sqrt()
        z = (x - x.mean(dim=-1, keepdim=True)) / deviation * layer.weight + layer.bias
        self.absorb(layer.bias * relevance / z)
        share = relevance / z * layer.weight / deviation
        return x * (share - share.mean(dim=-1, keepdim=True))

    def sum(self, relevance, one, other):
        return relevance * one / (one + other), relevance * other / (one + other)

    def product(self, relevance, attn, values):
        """The uniform rule: half for each factor, by the terms of the sum."""
        terms = attn[..., None] * values[:, :, None]  # b h n m d
        shares = terms * (relevance / (2 * terms.sum(dim=3)))[:, :, :, None]
        return shares.sum(dim=-1), shares.sum(dim=2)

    def softmax(self, relevance, logits):
        """``R_i = x_i (R_i - s_i sum_j R_j)``; the rest belongs to the constant of the expansion."""
        passed = logits * (relevance - logits.softmax(dim=-1) * relevance.sum(dim=-1, keepdim=True))
        self.absorb(relevance.sum(dim=-1) - passed.sum(dim=-1))
        return passed


@torch.no_grad()
def by_hand(model, images, target):
    """Relevance of the tokens that enter the first layer, (B, N), and what is absorbed, (B,)."""
    rules, kept = Rules(), []
    tokens = model.embed(images)
    for block in model.blocks:
        normed = block.norm1(tokens)
        q, k, v = block.attn.qkv(normed).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / 2
        mixed = (logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        added = block.attn.proj(mixed)
        middle = tokens + added
        hidden = block.mlp.fc1(block.norm2(middle))
        transformed = block.mlp.fc2(F.gelu(hidden))
        kept.append((block, tokens, normed, q, k, v, logits, mixed, added, middle, hidden, transformed))
        tokens = middle + transformed
    features = model.norm(tokens)[:, 0]
    of_target = torch.zeros(3, 7, dtype=torch.float64)
    of_target[ROWS, target] = model.head(features)[ROWS, target]
    relevance = torch.zeros_like(tokens)
    relevance[:, 0] = rules.linear(of_target, features, model.head.weight, model.head.bias)
    relevance = rules.norm(relevance, tokens, model.norm)
    for block, tokens, normed, q, k, v, logits, mixed, added, middle, hidden, transformed in reversed(kept):
        relevance, branch = rules.sum(relevance, middle, transformed)
        branch = rules.linear(branch, F.gelu(hidden), block.mlp.fc2.weight, block.mlp.fc2.bias)
        branch = rules.linear(branch, block.norm2(middle), block.mlp.fc1.weight, block.mlp.fc1.bias)
        relevance = relevance + rules.norm(branch, middle, block.norm2)
        relevance, branch = rules.sum(relevance, tokens, added)
        branch = rules.linear(branch, mixed, block.attn.proj.weight, block.attn.proj.bias)
        of_attn, of_v = rules.product(branch.unflatten(-1, (3, 4)).transpose(1, 2), logits.softmax(dim=-1), v)
        of_logits = rules.softmax(of_attn, logits)
        pairs = q[:, :, :, None] * k[:, :, None] / 2  # b h n m d
        shares = pairs * (of_logits / (2 * pairs.sum(dim=-1)))[..., None]
        of_qkv = [part.transpose(1, 2).flatten(2) for part in (shares.sum(dim=3), shares.sum(dim=2), of_v)]
        branch = rules.linear(torch.cat(of_qkv, dim=-1), normed, block.attn.qkv.weight, block.attn.qkv.bias)
        relevance = relevance + rules.norm(branch, tokens, block.norm1)
    return relevance.sum(dim=-1), rules.absorbed


def test_it_is_the_relevance_that_is_passed_on_layer_by_layer(random_vit):
    model = random_vit()
    relevance, absorbed = by_hand(model, IMAGES, TARGET)
    found = signed_map("attnlrp", Subject(model, IMAGES, TARGET))
    assert_close(found, relevance[:, 1:].view(3, 3, 5), rtol=1e-6, atol=1e-8)
    # No relevance is lost: what is not of a patch is of the class token, or absorbed.
    assert_close(relevance.sum(dim=1) + absorbed, model(IMAGES)[ROWS, TARGET].detach(), **EXACT)
    assert (found < 0).any()


@pytest.mark.parametrize("library", ["timm", "timm, not fused"])
def test_it_is_the_same_for_the_same_weights_in_another_library(library, random_vit):
    ours, theirs = (signed_map("attnlrp", Subject(model, IMAGES, TARGET)) for model in (random_vit(), made(library)))
    assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("attention", ["uniform", "positional"])
@pytest.mark.parametrize("mlp", ["gelu", "quick_gelu", "swiglu"])
@pytest.mark.parametrize("pool", ["mean", "cls+mean"])
def test_without_biases_and_with_attention_of_its_own_all_relevance_is_the_tokens(attention, mlp, pool):
    model = vit.VisionTransformer(
        image_size=(6, 10),
        patch_size=2,
        embed_dim=12,
        depth=3,
        num_heads=3,
        num_classes=7,
        attention=attention,
        mlp=mlp,
        pool=pool,
        class_token=pool != "mean",
    )
    model = randomised(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias") or name == "cls_token":
                parameter.zero_()
        model.pos_embed[:, : model.num_prefix_tokens] = 0  # relevance of the class token is not on the map
        if model.num_prefix_tokens:
            model.pos_embed.zero_()
    subject = Subject(model, IMAGES, TARGET, VERSUS)
    assert_close(signed_map("attnlrp", subject).sum(dim=(1, 2)), subject.score(subject.logits), **EXACT)


def test_an_activation_passes_all_relevance_on_however_small_its_input():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = randomised(vit.VisionTransformer(**TINY, attention="uniform"))

        def forward(self, images):
            return F.gelu(1e-6 * self.vit(images))

    model = Small().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    subject = Subject(model, IMAGES, 2)
    assert_close(signed_map("attnlrp", subject).sum(dim=(1, 2)), subject.score(subject.logits), rtol=1e-6, atol=0)


TINY = {
    "image_size": (6, 10),
    "patch_size": 2,
    "embed_dim": 12,
    "depth": 1,
    "num_heads": 3,
    "num_classes": 7,
    "pool": "mean",
    "class_token": False,
}


def product(one, other, multiply=torch.mul):
    """The uniform rule, as input times gradient: half of the gradient for each factor."""
    return (multiply(one, other.detach()) + multiply(one.detach(), other)) / 2


def activation(x, function):
    """What the output has more than f(0), which is a bias, is the input's."""
    start = function(torch.zeros_like(x))
    return start + x * ((function(x) - start) / x).detach()


def normalised(x, layer):
    """The deviation is a constant."""
    deviation = (x.var(dim=-1, correction=0, keepdim=True) + layer.eps).sqrt().detach()
    return (x - x.mean(dim=-1, keepdim=True)) / deviation * layer.weight + layer.bias


def softmax_mixed(logits, v):
    return product(logits.softmax(dim=-1), v, torch.matmul)


def dot_products(q, k):
    return product(q, k.mT, torch.matmul) / 2


def additive(layer, x, q, k, v):
    sums = activation(q[:, :, :, None] + k[:, :, None], torch.tanh)
    return softmax_mixed((sums * layer.direction[:, None, None]).sum(dim=-1), v)


def general(layer, x, q, k, v):
    return softmax_mixed(dot_products(q @ layer.form, k), v)


def gated(layer, x, q, k, v):
    gates = activation(layer.gate(x), torch.sigmoid).unflatten(-1, (3, 4)).transpose(1, 2)
    return product(softmax_mixed(dot_products(q, k), v), gates)


def routed(layer, x, q, k, v):
    gates = 3 * (x.mean(dim=1) @ layer.router.T).softmax(dim=-1)
    left_out = gates.argmin(dim=-1)  # two of three heads are taken
    gates = gates * (torch.arange(3) != left_out[:, None])
    weights = product(dot_products(q, k).softmax(dim=-1), gates[:, :, None, None])  # a gate is a factor of the weights
    return product(weights, v, torch.matmul)


@pytest.mark.parametrize("mix", [additive, general, gated, routed])
def test_it_is_input_times_the_gradient_of_a_model_whose_functions_keep_the_rules(mix):
    model = randomised(vit.VisionTransformer(**TINY | {"depth": 2}, attention=mix.__name__))
    tokens = model.embed(IMAGES).detach().requires_grad_()
    x = tokens
    for block in model.blocks:
        normed = normalised(x, block.norm1)
        heads = block.attn.qkv(normed).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
        x = x + block.attn.proj(mix(block.attn.mechanism, normed, *heads).transpose(1, 2).flatten(2))
        x = x + block.mlp.fc2(activation(block.mlp.fc1(normalised(x, block.norm2)), F.gelu))
    logits = model.head(normalised(x.mean(dim=1), model.fc_norm))
    assert_close(logits, model(IMAGES), **EXACT)
    (gradient,) = torch.autograd.grad(logits[ROWS, TARGET].sum(), tokens)
    expected = (tokens * gradient).detach().sum(dim=-1).view(3, 3, 5)
    assert_close(signed_map("attnlrp", Subject(model, IMAGES, TARGET)), expected, rtol=1e-6, atol=1e-8)


# Refusals.


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (lambda logits: logits / logits.norm(dim=1, keepdim=True), "torch.Tensor.div"),
        (lambda logits: logits.square(), "torch.Tensor.square"),
        (lambda logits: logits * logits, "torch.Tensor.mul"),
        (lambda logits: logits.cos(), "torch.Tensor.cos"),
        (lambda logits: logits.log_softmax(dim=1), "torch.Tensor.log_softmax"),
    ],
    ids=["division", "square", "product with itself", "cos", "log_softmax"],
)
def test_a_function_without_a_rule_is_refused_by_its_name(after, named, random_vit):
    model = Around(random_vit(depth=1), lambda model, images: after(model(images))).eval()
    with pytest.raises(ValueError, match=f"attnlrp has no rule for {named}, which the model calls: choose 'relevance'"):
        signed_map("attnlrp", Subject(model, IMAGES, 1))


class OwnGradient(torch.autograd.Function):
    """The sine, with its gradient written by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


def to_script(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def scripted(x):
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch 2.15 deprecates scripts
        return torch.jit.script(to_script)(x)


@pytest.mark.parametrize(
    ("activation", "reason"),
    [
        (OwnGradient.apply, r"no rule for torch\.Tensor\.sin without a gradient, as in an autograd\.Function"),
        (scripted, r"does not see what Activated computes in compiled or scripted functions \(.*sigmoid.*\)"),
        (torch.func.vmap(F.silu), r"no rule for torch\.nn\.functional\.silu within torch\.func, as in vmap"),
        (lambda x: x.clamp(max=5), r"no rule for torch\.Tensor\.clamp, which the model calls"),
    ],
    ids=["own gradient", "scripted", "vmap", "a bound that no logit reaches"],
)
def test_what_no_rule_can_follow_is_refused(activation, reason):
    with pytest.raises(ValueError, match=reason):
        of_activation(activation)


def test_a_bound_that_the_first_image_does_not_reach_is_refused_for_one_that_does():
    small, large = (torch.full((1, 2, 3), number, requires_grad=True) for number in (0.01, 1.0))
    rules = find_rules(nn.Identity(), lambda: small.clamp(max=5))
    with FollowRules(rules):
        kept = small.clamp(max=5)
    assert_close(kept, small)
    with pytest.raises(ValueError, match=r"attnlrp has no rule for torch\.Tensor\.clamp"), FollowRules(rules):
        large.clamp(max=5)


@pytest.mark.parametrize("cut", [Tensor.detach, torch.detach, lambda tokens: tokens.data])
def test_what_is_detached_may_be_kept_but_not_computed_with(cut, random_vit):
    kept = []

    def keeping(vit, images, computes=False):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
            kept.append(cut(tokens))
        tokens = torch.where(kept[-1] > 0, tokens, tokens / 2) if computes else tokens  # whose gradient is right
        return vit.head(vit.norm(tokens)[:, 0])

    model = random_vit()
    found = signed_map("attnlrp", Subject(Around(model, keeping).eval(), IMAGES, TARGET))
    assert_close(found, signed_map("attnlrp", Subject(model, IMAGES, TARGET)), **EXACT)
    computing = Around(model, lambda vit, images: keeping(vit, images, computes=True)).eval()
    with pytest.raises(ValueError, match=r"attnlrp has no rule for torch\.(Tensor\.)?(detach|data)"):
        signed_map("attnlrp", Subject(computing, IMAGES, TARGET))


def test_a_product_of_complex_numbers_has_the_rule_of_a_product():
    def turned(x):  # (a + ib)^2 has the real part a^2 - b^2
        pairs = torch.view_as_complex(torch.stack([x, x.flip(1)], dim=-1))
        other = torch.view_as_complex(torch.stack([x, -x.flip(1)], dim=-1))
        return (pairs * other).real

    def written_out(x):
        return x * x.clone() + x.flip(1) * x.flip(1).clone()

    assert_close(of_activation(turned), of_activation(written_out), **EXACT)


def test_a_model_that_treats_batches_and_single_images_differently_is_refused(random_vit):
    model = Around(random_vit(depth=1), lambda model, images: model(images) if len(images) == 1 else model(images) * 1)
    with pytest.raises(ValueError, match="calls other functions for a batch than for one image"):
        signed_map("attnlrp", Subject(model.eval(), IMAGES, 1))


def test_the_parameters_require_gradients_afterwards_as_before(random_vit):
    model = copy.deepcopy(random_vit())
    model.head.weight.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    signed_map("attnlrp", Subject(model, IMAGES, 1))
    with pytest.raises(ValueError, match="no rule"):
        signed_map("attnlrp", Subject(Around(model, lambda model, images: model(images).square()).eval(), IMAGES, 1))
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before


class Joined(nn.Module):
    """A layer of vit-pytorch with its skip connections."""

    def __init__(self, attention, mlp):
        super().__init__()
        self.attention, self.mlp = attention, mlp

    def forward(self, tokens):
        tokens = self.attention(tokens) + tokens
        return self.mlp(tokens) + tokens


def test_a_skip_connection_beside_the_module_of_the_first_attention_carries_relevance_too():
    model = made("vit-pytorch, SimpleViT")
    twin = copy.deepcopy(model)
    layers = [Joined(*layer) for layer in twin.transformer.layers]
    twin.transformer = nn.Sequential(*layers, twin.transformer.norm)
    found, expected = (signed_map("attnlrp", Subject(each, IMAGES, TARGET)) for each in (model, twin))
    assert_close(found, expected, **EXACT)


def test_two_classes_of_one_image_have_the_maps_that_each_has_alone():
    model = made("vit-pytorch, SimpleViT")
    twice = IMAGES[:1].repeat(2, 1, 1, 1)
    both = signed_map("attnlrp", Subject(model, twice, torch.tensor([1, 4])))
    alone = [signed_map("attnlrp", Subject(model, IMAGES[:1], target)) for target in (1, 4)]
    assert_close(both, torch.cat(alone), **EXACT)


class Activated(nn.Module):
    """Logits of the sums of the tokens, behind an activation."""

    def __init__(self, activation):
        super().__init__()
        self.vit, self.activation = randomised(vit.VisionTransformer(**TINY, attention="uniform")), activation

    def forward(self, images):
        return self.activation(self.vit(images) * 1.0)


def of_activation(activation):
    torch.manual_seed(0)
    return signed_map("attnlrp", Subject(Activated(activation).eval(), IMAGES, 2))


tanh_gelu = partial(F.gelu, approximate="tanh")


@pytest.mark.parametrize(
    ("written", "as_function"),
    [
        (lambda x: x * x.sigmoid(), F.silu),
        (lambda x: torch.sigmoid(x) * x, F.silu),
        (lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), F.gelu),
        (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
        (lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x))), tanh_gelu),
        (lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))), tanh_gelu),
        (lambda x: torch.multiply(x, torch.sigmoid(x.clone()).to(x.dtype)), F.silu),
        (lambda x: x[:, :] * x[:, :].sigmoid(), F.silu),
        (lambda x: (x.mT * x.sigmoid().mT).mT, F.silu),
        (lambda x: x.flatten().sigmoid().view_as(x) * x, F.silu),
        (lambda x: (x + 0) * (x + 0).sigmoid(), F.silu),
        (lambda x: torch.cat([x.chunk(3, dim=1)[n] * x.sigmoid().chunk(3, dim=1)[n] for n in range(3)], 1), F.silu),
        (nn.SiLU(inplace=True), F.silu),
        (nn.Hardswish(inplace=True), F.hardswish),
    ],
    ids=[
        "silu",
        "silu, gate first",
        "gelu",
        "mish",
        "fast gelu",
        "cubic gelu",
        "silu, cast",
        "silu, sliced twice",
        "silu, transposed",
        "silu, flat gate",
        "silu, computed twice",
        "silu, in parts",
        "silu in place",
        "hardswish in place",
    ],
)
def test_an_activation_has_one_map_however_it_is_written(written, as_function):
    assert_close(of_activation(written), of_activation(as_function), **EXACT)


def test_a_gate_of_another_part_of_a_tensor_is_a_product():
    """SwiGLU: the first half is an activation, and the second is multiplied by it."""
    written = of_activation(lambda x: x[:, :3] * x[:, :3].sigmoid() * x[:, 3:6])
    assert_close(written, of_activation(lambda x: F.silu(x[:, :3]) * x[:, 3:6]), **EXACT)


def test_a_product_of_two_activations_of_one_tensor_is_refused():
    with pytest.raises(ValueError, match=r"attnlrp has no rule for torch.Tensor.mul"):
        of_activation(lambda x: x.sigmoid() * x.tanh())


class Experts(nn.Module):
    """An MLP, and a second one for some tokens."""

    def __init__(self, mlp, least):
        super().__init__()
        self.mlp, self.further, self.least = mlp, copy.deepcopy(mlp), least

    def forward(self, tokens):
        return self.mlp(tokens) + (tokens[..., :1] > self.least).to(tokens) * self.further(tokens)


def test_an_expert_that_no_token_of_the_first_image_chooses_is_no_constant_for_others(random_vit):
    model, entered = random_vit(), []
    with model.blocks[1].mlp.register_forward_pre_hook(lambda _, args: entered.append(args[0])):
        model(IMAGES)
    largest = entered[0][..., 0].detach().amax(dim=1)
    first, second = largest.argsort()[:2].tolist()
    model.blocks[1].mlp = Experts(model.blocks[1].mlp, float(largest[[first, second]].mean()))

    def of_images(*numbers):
        return signed_map("attnlrp", Subject(model, IMAGES[[*numbers]], TARGET[[*numbers]]))

    assert_close(of_images(second, first), torch.cat([of_images(second), of_images(first)]), **EXACT)
    with pytest.raises(ValueError, match="has no effect on the first image and one on others, as an expert of a"):
        of_images(first, second)


def test_a_layer_that_adds_in_place_has_the_map_of_one_that_does_not(random_vit):
    def in_place(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens += block.attn(block.norm1(tokens))
            tokens += block.mlp(block.norm2(tokens))
        return vit.head(vit.norm(tokens)[:, 0])

    model = random_vit()
    with pytest.warns(UserWarning, match="changed in place"):  # a norm needs the tokens for its own gradient
        found = signed_map("attnlrp", Subject(Around(model, in_place).eval(), IMAGES, TARGET))
    assert_close(found, signed_map("attnlrp", Subject(model, IMAGES, TARGET)), **EXACT)


def gated_by(vit, images, multiply):
    tokens = vit.embed(images)
    branch = multiply(vit.blocks[0].norm1(tokens), vit.blocks[0].mlp.fc2(vit.blocks[0].mlp.fc1(tokens)))
    for block in vit.blocks:
        tokens = block(tokens)
    return vit.head(vit.norm(tokens + branch)[:, 0])


def multiplied_in_place(x, gate):
    x *= gate
    return x


def summed_in_place(x, gate):
    out = torch.zeros_like(x)
    out += x * gate
    return out


@pytest.mark.parametrize("in_place", [multiplied_in_place, summed_in_place])
def test_a_product_or_a_sum_in_place_has_the_rule_of_one_that_is_not(in_place, random_vit):
    model = random_vit()
    maps = [
        signed_map("attnlrp", Subject(Around(model, lambda v, x, m=m: gated_by(v, x, m)).eval(), IMAGES, TARGET))
        for m in (in_place, torch.mul)
    ]
    assert_close(*maps, **EXACT)
