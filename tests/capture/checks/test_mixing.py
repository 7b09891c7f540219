"""Whatever mixes tokens is captured, or refused with the name of its module."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, of_timm, of_vit_pytorch, ours, randomised
from tests.capture.handwritten_attention import (
    HEADS,
    WIDTH,
    Attending,
    Block,
    expected_attention,
    fused,
    logits_between,
    spelled,
)
from tests.capture.test_invented_models import IMAGES as INVENTED_IMAGES
from tests.capture.test_invented_models import Layer, invented, noted_by, softmax
from tests.capture.wrapped_model import Around
from vit.attention.mechanisms import softmax_kernels
from vit.capture import capture_attention, examine
from vit.capture.experiments.halves import COPIES, separating_halves
from vit.capture.experiments.moved import rounding
from vit.explain import explain

IMAGES = torch.randn(2, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def by_heads(mix):
    """The mix on tensors of three axes (B * H, N, d)."""
    return lambda q, k, v: mix(*(x.flatten(0, 1) for x in (q, k, v))).unflatten(0, (len(q), -1))


def sink(q, k, v):
    return torch.cat([logits_between(q, k), torch.ones_like(q[..., :1])], dim=-1).softmax(dim=-1)[..., :-1] @ v


def queries_before_heads(q, k, v):
    attn = (torch.einsum("bhqd,bhkd->bqkh", q, k) / 2).softmax(dim=2)
    return torch.einsum("bqkh,bhkd->bhqd", attn, v)


def heads_before_keys(q, k):
    return (torch.einsum("bhqd,bhkd->bqhk", q, k) / 2).softmax(dim=-1)


READ = {
    "torch.special.softmax": lambda q, k, v: torch.special.softmax(logits_between(q, k), -1) @ v,
    "softmin": lambda q, k, v: F.softmin(-logits_between(q, k), dim=-1) @ v,
    "softmax over queries of keys": lambda q, k, v: logits_between(k, q).softmax(dim=-2).mT @ v,
    "einsum, keys first": lambda q, k, v: torch.einsum("bhkq,bhkd->bhqd", logits_between(k, q).softmax(dim=-2), v),
    "einsum, heads last": queries_before_heads,
    "einsum, heads before keys": lambda q, k, v: torch.einsum("bqhk,bhkd->bhqd", heads_before_keys(q, k), v),
    "heads before keys, permuted": lambda q, k, v: heads_before_keys(q, k).permute(0, 2, 1, 3) @ v,
    "values first": by_heads(lambda q, k, v: (v.mT @ logits_between(q, k).softmax(dim=-1).mT).mT),
    "baddbmm": by_heads(lambda q, k, v: torch.baddbmm(torch.zeros_like(v), logits_between(q, k).softmax(dim=-1), v)),
}
AT = pytest.mark.parametrize("layer", [0, 1, 2])


@AT
@pytest.mark.parametrize("spelling", READ)
def test_softmax_attention_in_this_spelling_is_read(spelling, layer):
    model = spelled(*(READ[spelling] if i == layer else fused for i in range(3)))
    assert_close(list(capture_attention(model, IMAGES)), expected_attention(model, IMAGES), **EXACT)


@AT
def test_the_column_of_an_attention_sink_takes_no_part(layer):
    model = spelled(*(sink if i == layer else fused for i in range(3)))
    attentions = capture_attention(model, IMAGES)
    products = logits_of_layer(model, layer)
    expected = products.exp() / (products.exp().sum(dim=-1, keepdim=True) + torch.e)
    assert_close(attentions[layer], expected, **EXACT)


def logits_of_layer(model, layer):
    """Products of queries and keys of a layer."""
    seen = []
    handle = model.blocks[layer].part.qkv.register_forward_hook(lambda _, __, output: seen.append(output))
    model(IMAGES)
    handle.remove()
    q, k, _ = seen[0].unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return logits_between(q, k)


def test_a_compiled_function_is_read_and_stays_as_it_was():
    compiled = torch.compile(lambda q, k, v: logits_between(q, k).softmax(dim=-1) @ v, backend="eager")
    model = spelled(fused, compiled, fused)
    with torch.no_grad():
        before = model(IMAGES)
        attentions = capture_attention(model, IMAGES)
        assert_close(model(IMAGES), before, **EXACT)
    assert_close(list(attentions), expected_attention(model, IMAGES), **EXACT)


def scripted():
    def attend(q, k, v):
        return torch.matmul(torch.softmax(torch.matmul(q, k.mT) / 2.0, -1), v)

    return torch.jit.script(attend)


class Convolution(nn.Module):
    """Mixes each token with its neighbours in the sequence."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)

    def forward(self, tokens):
        return self.conv(tokens.mT).mT


class TokenMLP(nn.Module):
    """Mixes tokens as MLP-Mixer does."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(16, 20), nn.GELU(), nn.Linear(20, 16))

    def forward(self, tokens):
        return self.mlp(tokens.mT).mT


def exp_over_sum(q, k, v):
    weights = logits_between(q, k).exp()
    return weights / weights.sum(dim=-1, keepdim=True) @ v


REFUSED = {
    "sigmoid": lambda q, k, v: (logits_between(q, k) - 2).sigmoid() @ v,
    "ReLU": lambda q, k, v: F.relu(logits_between(q, k)) / 16 @ v,
    "exp over sum": lambda q, k, v: (
        logits_between(q, k).exp() / logits_between(q, k).exp().sum(dim=-1, keepdim=True) @ v
    ),
    "exp of log_softmax": lambda q, k, v: F.log_softmax(logits_between(q, k), -1).exp() @ v,
    "sigmoid, product and sum": lambda q, k, v: (logits_between(q, k).sigmoid()[..., None] * v[:, :, None]).sum(dim=3),
}


@AT
@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("spelling", REFUSED)
def test_attention_of_another_kind_is_refused_in_any_layer(spelling, layer, pool):
    model = spelled(*(REFUSED[spelling] if i == layer else fused for i in range(3)), pool=pool)
    where = f"after the last of 2|before number {layer} of 2"
    words = rf"Spelled mixes tokens in .*'blocks.{layer}.part', ({where}) attentions"
    if layer == 0:
        words += "|every token depends on the whole image"
    with pytest.raises(ValueError, match=words):
        capture_attention(model, IMAGES)


@AT
def test_linear_attention_in_one_layer_is_refused(layer):
    def linear(q, k, v):
        return q.exp() @ (k.exp().mT @ v)

    with pytest.raises(ValueError, match=r"mixes tokens in a way|every token depends on the whole image"):
        capture_attention(spelled(*(linear if i == layer else fused for i in range(3))), IMAGES)


@AT
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_function_is_refused(layer):
    model = spelled(*(scripted() if i == layer else fused for i in range(3)))
    with pytest.raises(ValueError, match=rf"mixes tokens in .*\(Attending 'blocks.{layer}.part'"):
        capture_attention(model, IMAGES)


@pytest.mark.parametrize(("part", "name"), [(Convolution, r"part\.conv"), (TokenMLP, r"part\.mlp\.2")])
def test_other_mixing_between_attentions_is_refused(part, name):
    for call in (capture_attention, examine, explain):
        with pytest.raises(ValueError, match=rf"mixes tokens in .*'blocks.1.{name}', before number 1 of 2"):
            call(spelled(fused, part(), fused), IMAGES)
    with pytest.raises(ValueError, match=r"'blocks.2.part.mlp.2', after the last of 2"):
        capture_attention(spelled(fused, fused, TokenMLP()), IMAGES)


def test_a_class_token_that_takes_a_mean_between_layers_is_refused():
    def shared(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
            mean = tokens.mean(dim=1, keepdim=True)
            tokens = torch.cat([tokens[:, :1] + mean, tokens[:, 1:]], dim=1)
        return vit.read(tokens)

    with pytest.raises(ValueError, match=r"Around mixes tokens .*\(its forward method, before number 1 of 3"):
        capture_attention(Around(spelled(fused, fused, fused), shared).eval(), IMAGES)


# What is no mixing.


@pytest.mark.parametrize("mixed", ["before", "after"])
def test_a_linear_mixing_before_the_first_and_after_the_last_layer_is_none(mixed):
    convolution = Convolution()

    def around(vit, images):
        tokens = vit.embed(images)
        if mixed == "before":
            tokens = tokens + convolution(tokens)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.read(tokens + convolution(tokens) if mixed == "after" else tokens)

    model = Around(spelled(fused, fused), around).eval()
    convolution.double()
    assert len(capture_attention(model, IMAGES)) == 2
    unseen = Around(spelled(REFUSED["sigmoid"], fused, fused), around).eval()
    with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
        capture_attention(unseen, IMAGES)


def read_after(*parts, cut=0, pool="mean"):
    """A model of two layers whose tokens pass these parts after the last layer, perhaps without the first ones."""
    torch.manual_seed(1)
    parts = [Block(part).double() for part in parts]

    def run(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        tokens = tokens[:, cut:]
        for part in parts:
            tokens = part(tokens)
        return vit.read(tokens)

    return Around(spelled(fused, fused, pool=pool), run).eval()


@pytest.mark.parametrize("cut", [0, 1, 3])
@pytest.mark.parametrize("linear", [0, 1, 2])
@pytest.mark.parametrize("spelling", ["sigmoid", "ReLU", "sigmoid, product and sum"])
def test_attention_of_another_kind_behind_linear_mixing_and_cut_tokens_is_refused(spelling, linear, cut):
    model = read_after(*(Convolution() for _ in range(linear)), Attending(REFUSED[spelling]), cut=cut)
    with pytest.raises(ValueError, match=r"mixes tokens in a way .* after the last of 2 attentions"):
        capture_attention(model, IMAGES)


@pytest.mark.parametrize("cut", [0, 1, 3])
@pytest.mark.parametrize("linear", [1, 3])
def test_linear_mixing_of_tokens_of_which_some_are_cut_off_is_a_read_out(linear, cut):
    assert len(capture_attention(read_after(*(Convolution() for _ in range(linear)), cut=cut), IMAGES)) == 2


def test_a_convolution_and_an_activation_over_the_patches_are_a_read_out_and_attention_behind_them_is_refused():
    convolution, attend = nn.Conv2d(WIDTH, WIDTH, 3, padding=1).double(), Attending(REFUSED["sigmoid"]).double()

    def reading(last):
        def run(vit, images):
            tokens = vit.embed(images)
            for block in vit.blocks:
                tokens = block(tokens)
            patches = F.gelu(convolution(tokens[:, 1:].mT.unflatten(2, (3, 5))))
            return vit.head(last(patches.flatten(2).mT).mean(dim=1))

        return Around(spelled(fused, fused), run).eval()

    assert len(capture_attention(reading(lambda patches: patches), IMAGES)) == 2
    with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
        capture_attention(reading(attend), IMAGES)


SPLITS = {
    "split": lambda tokens: tokens.split([1, 15], dim=1)[1],
    "narrow": lambda tokens: tokens.narrow(1, 1, 15),
    "index_select": lambda tokens: tokens.index_select(1, torch.arange(1, 16)),
    "mask": lambda tokens: tokens[:, torch.arange(16) > 0],
    "every second": lambda tokens: tokens[:, ::2],
    "copy": lambda tokens: tokens[:, 1:].contiguous(),
    "means of pairs": lambda tokens: tokens.unflatten(1, (8, 2)).mean(dim=2),
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_tokens_are_cut_in_any_spelling(split):
    attend = Attending(REFUSED["sigmoid"]).double()

    def run(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.head(attend(split(tokens)).mean(dim=1))

    with pytest.raises(ValueError, match=r"Attending 'attend'|its forward method, after the last of 2"):
        capture_attention(Around(spelled(fused, fused), run).eval(), IMAGES)


def test_weights_that_pool_tokens_are_no_mixing():
    def pooled(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        weights = vit.head(tokens)[..., :1].softmax(dim=1)
        return vit.head((weights * tokens).sum(dim=1))

    assert len(capture_attention(Around(spelled(fused, fused), pooled).eval(), IMAGES)) == 2


@pytest.mark.parametrize(
    "make",
    [
        ours(pool="cls+mean", num_registers=2, layer_scale=1e-5),
        of_timm(global_pool="map"),
        of_timm(name="VisionTransformerDistilled"),
        of_vit_pytorch("SimpleViT", num_register_tokens=2),
    ],
    ids=["ours", "attention pooling", "distilled", "registers"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_mixing(make, dtype):
    assert len(capture_attention(randomised(make()).to(dtype), IMAGES.to(dtype))) >= 3


@pytest.mark.parametrize(("dtype", "weak"), [(torch.float32, 3e-5), (torch.float64, 1e-13)])
def test_weak_mixing_is_seen_down_to_the_rounding_of_the_type(dtype, weak):
    class Weak(Convolution):
        def forward(self, tokens):
            return weak * super().forward(tokens)

    with pytest.raises(ValueError, match="mixes tokens in a way"):
        capture_attention(spelled(fused, Weak(), fused).to(dtype), IMAGES.to(dtype))


def test_rounding_is_what_the_last_copy_differs_by_or_a_few_units_of_the_type():
    copies = torch.tensor([[2.0, -4.0], [9.0, 9.0], [2.0, -4.0]])
    assert rounding(copies) == pytest.approx(4 * 16 * 2**-23)
    copies[2, 0] += 1e-3
    assert rounding(copies) == pytest.approx(1e-2, rel=1e-3)
    assert rounding(torch.ones(3, 2, dtype=torch.bfloat16)) == 4 * 2**-7


def test_as_many_channels_as_tokens_confuse_nothing():
    model = ours(embed_dim=15, num_heads=3, class_token=False, pool="mean", pos_embed_init="normal")()
    assert len(capture_attention(randomised(model), IMAGES)) == 3


@pytest.mark.parametrize("prefix", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_before_the_patches_that_are_mixed_are_found(prefix, seed):
    def fuse(model, tokens):
        first = tokens[:, :1] + 0.3 * tokens[:, prefix - 1 : prefix]
        return torch.cat([first, tokens[:, 1:]], dim=1)

    def run(model, images):
        def step(number, layer, tokens):
            return layer(fuse(model, tokens) if number == 1 else tokens)

        return model.read(model.through(model.embed(images), step))

    model = invented(prefix=prefix, run=run)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
        capture_attention(model, IMAGES)


class FiveTokens(nn.Module):
    """As many tokens as copies that an experiment would pass: a class token and 2 x 2 patches, tokens before images."""

    def __init__(self, mixes):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 12, 2, stride=2), nn.Parameter(torch.randn(1, 1, 12))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, norm_first=True) for _ in "ab")
        self.mixing, self.head = nn.Linear(5, 5) if mixes else None, nn.Linear(12, 4)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).permute(2, 0, 1)
        tokens = torch.cat([self.first.expand(-1, len(images), -1), tokens])
        tokens = self.layers[0](tokens)
        if self.mixing:
            tokens = tokens + self.mixing(tokens.permute(1, 2, 0)).tanh().permute(2, 0, 1)
        return self.head(self.layers[1](tokens)[0])


@pytest.mark.parametrize("mixes", [False, True])
def test_as_many_tokens_as_copies_confuse_nothing(mixes):
    torch.manual_seed(0)
    model = FiveTokens(mixes).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    images = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    if mixes:
        with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
            capture_attention(model, images)
    else:
        assert [tuple(attn.shape) for attn in capture_attention(model, images)] == [(2, 3, 5, 5)] * 2
        assert explain(model, images).shape == (2, 2, 2)


class Contrast(Attending):
    """A convolution over the differences of what is mixed and the values, which vanish where tokens see themselves."""

    def __init__(self):
        super().__init__(None)
        self.over_tokens = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)

    def forward(self, tokens):
        q, k, v = self.qkv(tokens).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = logits_between(q, k).softmax(dim=-1) @ v
        differences = (mixed - v).transpose(1, 2).flatten(2)
        return self.proj(mixed.transpose(1, 2).flatten(2) + self.over_tokens(differences.mT).mT)


def test_mixing_that_vanishes_where_attention_is_the_identity_is_found():
    with pytest.raises(ValueError, match=r"mixes tokens .* \(Conv1d 'blocks.1.part.over_tokens', before number 2 of 3"):
        capture_attention(spelled(fused, Contrast(), fused), IMAGES)


class Exchanging(Block):
    """One token gets a little of another."""

    def __init__(self, to, of):
        super().__init__(Attending(fused))
        self.to, self.of = to, of

    def forward(self, tokens):
        tokens = tokens.clone()
        tokens[:, self.to] += 0.4 * tokens[:, self.of]
        return super().forward(tokens)


@pytest.mark.parametrize(("to", "of"), [(1, 9), (9, 1), (0, 15), (15, 0), (7, 15), (0, 8)])
def test_two_tokens_that_alone_are_mixed_are_found(to, of):
    model = spelled(fused, fused, fused)
    model.blocks[1] = randomised(Exchanging(to, of))
    with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
        capture_attention(model, IMAGES)


@pytest.mark.parametrize("count", [2, 3, 16, 17, 197])
def test_any_two_tokens_are_apart_in_one_of_the_halves(count):
    apart = torch.stack([half[:, None] != half for half in separating_halves(count)]).any(dim=0)
    assert torch.equal(apart, ~torch.eye(count, dtype=torch.bool))


class MixedAtTheEnd(nn.Module):
    """An MLP over the tokens, before their mean is read."""

    def __init__(self, channels):
        super().__init__()
        self.patches = nn.Conv2d(3, channels, 2, stride=2)
        self.attends = nn.MultiheadAttention(channels, 1, batch_first=True)
        self.over_tokens = nn.Sequential(nn.Linear(15, 20), nn.GELU(), nn.Linear(20, 15))
        self.head = nn.Linear(channels, 7)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).mT
        tokens = tokens + self.attends(tokens, tokens, tokens, need_weights=False)[0]
        return self.head((tokens + self.over_tokens(tokens.mT).mT).mean(dim=1))


@pytest.mark.parametrize("channels", [14, 16])
def test_an_mlp_over_tokens_behind_the_layers_is_refused(channels):
    with pytest.raises(ValueError, match=r"mixes tokens in a way .*'over_tokens.2', after the last of 1"):
        capture_attention(randomised(MixedAtTheEnd(channels)), IMAGES)


def test_the_experiments_are_few_passes_of_few_images():
    model, batches = spelled(fused, fused, fused), []
    model.register_forward_pre_hook(lambda _, args: batches.append(len(args[0])))
    capture_attention(model, IMAGES)
    # Three axes, attention, how far images move the logits, and two plain passes of both images; layers, one image
    # alone, places by four halves and five bands; then for each of two, mixing by four pairs of halves, for the other
    # by one, and codes of the tokens; for the first, products before the first layer, the last rows and the places of
    # their tokens.
    assert batches == [2, 2, 2, 2, 2, 1, 1, 1 + 4 + 5, *(5, 5, 5, 5), 1, *(6, 11, 6, 6), *(5, 6)]
    assert COPIES == 5


def similarity(tokens):
    return F.cosine_similarity(tokens[:, :, None], tokens[:, None], dim=-1)


@pytest.mark.parametrize("share", [0.0, 1e-6])
def test_what_mixes_tokens_may_be_logged_but_not_read(share):
    kept = []

    def run(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
            kept.append(similarity(tokens).softmax(dim=-1))
        return vit.read(tokens) + (share * kept[-1][:, 0, 1:2] if share else 0)

    model = Around(spelled(fused, fused), run).eval()
    if share:
        with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
            capture_attention(model, IMAGES)
    else:
        assert_close([*capture_attention(model, IMAGES)], [*capture_attention(model.vit, IMAGES)], **EXACT)


@pytest.mark.parametrize("pool", ["cls", "map"])
def test_attention_that_is_computed_in_parts_is_read_whole(monkeypatch, pool):
    model, images = ours(pool=pool)().bfloat16().eval(), IMAGES.bfloat16()
    expected = list(capture_attention(model, images))
    monkeypatch.setattr(softmax_kernels, "PART_BYTES", 1)
    with torch.no_grad():
        assert_close(list(capture_attention(model, images)), expected, **EXACT)


def to_maps(maps):
    return maps


def channels_last(maps):
    return maps.permute(0, 2, 3, 1)


def tokens_first(maps):
    return maps.flatten(2).permute(2, 0, 1)


class Stream(nn.Module):
    """Layers whose tokens are kept in another layout than (B, N, D), of which the first may be attention by hand."""

    def __init__(self, layout, first):
        super().__init__()
        self.layout, self.kinds = layout, (first, "softmax", "softmax")
        self.patches = nn.Conv2d(3, 12, 2, stride=2)
        self.qkv = nn.ModuleList(nn.Linear(12, 36) for _ in self.kinds)
        self.head = nn.Linear(12, 4)

    def forward(self, images):
        stream = self.layout(self.patches(images))
        for qkv, kind in zip(self.qkv, self.kinds, strict=True):
            stream = stream + self.mixed(stream, qkv, kind)
        axes = {to_maps: (2, 3), channels_last: (1, 2), tokens_first: 0}[self.layout]
        return self.head(stream.mean(dim=axes))

    def mixed(self, stream, qkv, kind):
        axis = {to_maps: 1, channels_last: 3, tokens_first: 2}[self.layout]
        projected = F.linear(stream.movedim(axis, -1), qkv.weight, qkv.bias).movedim(-1, axis)
        pattern = {to_maps: "b (p h d) y x", channels_last: "b y x (p h d)", tokens_first: "n b (p h d)"}[self.layout]
        tokens = "n" if self.layout is tokens_first else "(y x)"
        q, k, v = rearrange(projected, f"{pattern} -> p b h {tokens} d", p=3, h=3)
        scores = (q @ k.mT / 2).exp()
        result = scores / scores.sum(-1, keepdim=True) @ v if kind == "exp" else F.scaled_dot_product_attention(q, k, v)
        rows = {} if self.layout is tokens_first else {"y": 3}
        return rearrange(result, f"b h {tokens} d -> {pattern.replace('(p h d)', '(h d)')}", **rows)


@pytest.mark.parametrize("layout", [to_maps, channels_last, tokens_first])
def test_a_first_layer_of_another_kind_is_refused_in_any_layout_of_the_tokens(layout):
    same = randomised(Stream(layout, "softmax"))
    assert len(capture_attention(same, IMAGES)) == 3
    other = randomised(Stream(layout, "exp"))
    assert_close(other(IMAGES), same(IMAGES), **EXACT)
    for refused in (capture_attention, explain):
        with pytest.raises(ValueError, match="Stream mixes tokens in a way that cannot be intercepted"):
            refused(other, IMAGES)


def exclusive(layer, q, k, v):
    """What attention mixes without its part along the own value: nothing, if a token attends to itself alone."""
    weights = softmax(q, k)
    layer.note(lambda: weights)
    mixed = weights @ v
    return mixed - (mixed * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True) * v


def gated_by_all(layer, q, k, v):
    mixed = exclusive(layer, q, k, v)
    return mixed * mixed.mean(dim=2, keepdim=True).sigmoid()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_mixing_that_vanishes_if_each_token_attends_to_itself_alone_is_refused(place):
    def model(mix):
        return invented(*(Layer(mix) if number == place else Layer() for number in range(3)))

    assert_close(
        list(capture_attention(model(exclusive), INVENTED_IMAGES)), noted_by(model(exclusive), INVENTED_IMAGES), **EXACT
    )
    for refused in (capture_attention, explain):
        with pytest.raises(ValueError, match="Invented mixes tokens in a way that cannot be intercepted"):
            refused(model(gated_by_all), INVENTED_IMAGES)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN], ids=lambda kind: kind.__name__)
def test_a_recurrent_layer_behind_the_layers_mixes_tokens(kind):
    model = invented(run=lambda model, images: model.read(model.over(model.through(model.embed(images)))[0]))
    model.over = kind(WIDTH, WIDTH, batch_first=True).double()
    with pytest.raises(ValueError, match=rf"mixes tokens in a way that cannot be intercepted \({kind.__name__} 'over'"):
        capture_attention(model, INVENTED_IMAGES)
