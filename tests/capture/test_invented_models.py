"""Models that nothing was prepared for: each notes its own attention, with which maps agree, or is refused.

Letters: b batch, h heads, n m tokens, d channels of a head.
"""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.utils import parametrizations
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from tests.architectures import EXACT
from vit import VisionTransformer
from vit.capture import capture_attention
from vit.capture.parts.skips import layers_without_patches
from vit.explain import explain

WIDTH, HEADS, PATCHES = 12, 3, 15
IMAGES = torch.randn(3, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Layer(nn.Module):
    """Self-attention and an MLP. ``mix(layer, q, k, v)`` returns the mixed values, and notes what mixed them."""

    def __init__(self, mix=None, heads=HEADS):
        super().__init__()
        self.mix, self.heads = mix or plain, heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 20), nn.GELU(), nn.Linear(20, WIDTH))
        self.own = nn.Parameter(torch.randn(heads, heads))
        self.bias = nn.Parameter(torch.randn(heads, 32, 32))
        self.noted, self.notes = [], False  # noted only where nothing is intercepted, as noting is a softmax too

    def split(self, tokens):
        return self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def note(self, weights):
        if self.notes:
            self.noted.append(weights())

    def join(self, mixed):
        return mixed.transpose(1, 2).flatten(2)

    def attend(self, tokens):
        q, k, v = self.split(tokens)
        return self.proj(self.join(self.mix(self, q, k, v)))

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


def logits_of(q, k):
    return q @ k.mT / 2


def by(weights_of):
    """A mix whose weights are computed by a function (layer, q, k)."""

    def mix(layer, q, k, v):
        weights = weights_of(layer, q, k)
        layer.note(lambda: weights)
        return weights @ v

    return mix


def softmax(q, k):
    return logits_of(q, k).softmax(dim=-1)


plain = by(lambda layer, q, k: softmax(q, k))


def fused(layer, q, k, v):
    layer.note(lambda: softmax(q, k))
    return F.scaled_dot_product_attention(q, k, v, scale=0.5)


class Invented(nn.Module):
    """Patches, a class token, layers, and a head that reads the class token. Parts are replaced by functions."""

    def __init__(self, *layers, prefix=1, run=None, read=None, classes=7):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.first = nn.Parameter(torch.randn(1, prefix, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, prefix + PATCHES, WIDTH))
        self.layers = nn.ModuleList(layers or [Layer(), Layer(fused), Layer()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)
        self.more = nn.Linear(WIDTH, WIDTH)
        self.run, self.reading = run, read

    def embed(self, images):
        patches = self.patches(images).flatten(2).mT
        return torch.cat([self.first.expand(patches.shape[0], -1, -1), patches], dim=1) + self.positions

    def through(self, tokens, step=lambda number, layer, tokens: layer(tokens)):
        for number, layer in enumerate(self.layers):
            tokens = step(number, layer, tokens)
        return tokens

    def read(self, tokens):
        tokens = self.norm(tokens)
        return self.head(self.reading(tokens) if self.reading else tokens[:, 0])

    def forward(self, images):
        return self.run(self, images) if self.run else self.read(self.through(self.embed(images)))


def invented(*layers, **parts):
    """A model in float64 with random parameters, the same ones at each call."""
    torch.manual_seed(0)
    model = Invented(*(deepcopy(layer) for layer in layers), **parts)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def noted_by(model, images):
    """The weights of all layers as the model notes them."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.noted, module.notes = [], True
    with torch.no_grad():
        model(images)
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    for layer in layers:
        layer.notes = False
    return [weights for layer in layers for weights in layer.noted]


def rolled(attentions):
    """Rollout by its formula."""
    result = torch.eye(attentions[0].shape[-1]).to(attentions[0])
    for attn in attentions:
        mixing = attn.mean(dim=1).clamp(min=0) / 2 + torch.eye(attn.shape[-1]).to(attn) / 2
        result = mixing / mixing.sum(dim=-1, keepdim=True) @ result
    return result


def cls(model):
    return {0: 1.0}


# Models that are read.


def interleaved(layer, tokens):
    return layer.qkv(tokens).unflatten(-1, (3, -1, layer.heads)).permute(2, 0, 4, 1, 3)


class Interleaved(Layer):
    """Channels of a head are every third one."""

    split = interleaved

    def join(self, mixed):
        return mixed.permute(0, 2, 3, 1).flatten(2)


class SequenceFirst(Layer):
    """Tokens come as (N, B, D)."""

    def forward(self, tokens):
        return super().forward(tokens.transpose(0, 1)).transpose(0, 1)


class Parallel(Layer):
    """Attention and MLP side by side."""

    def forward(self, tokens):
        return tokens + self.attend(self.norm1(tokens)) + self.mlp(self.norm2(tokens))


class Maps(Layer):
    """Tokens are made from a map of features before each projection, without a linear layer."""

    def split(self, tokens):
        return (
            F.conv1d(tokens.mT, self.qkv.weight[..., None], self.qkv.bias)
            .unflatten(1, (3, self.heads, -1))
            .permute(1, 0, 2, 4, 3)
        )


def with_sink(layer, q, k):
    logits = logits_of(q, k)
    sink = layer.own[0].view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
    return torch.cat([sink, logits], dim=-1).softmax(dim=-1)[..., 1:]


def differential(layer, q, k):
    (q1, q2), (k1, k2) = q.chunk(2, dim=-1), k.chunk(2, dim=-1)
    return logits_of(q1, k1).softmax(dim=-1) - 0.3 * logits_of(q2, k2).softmax(dim=-1)


def causal(layer, q, k):
    size = q.shape[-2]
    hidden = torch.ones(size, size, dtype=torch.bool).triu(1).flip(0, 1)  # the class token stands first and sees all
    return logits_of(q, k).masked_fill(hidden, -torch.inf).softmax(dim=-1)


def in_einsum(layer, q, k, v):
    weights = torch.einsum("xyqc,xykc->xyqk", q, k).div(2).softmax(dim=-1)
    layer.note(lambda: weights)
    return torch.einsum("zcka,zcqk->zcqa", v, weights)


def transposed(layer, q, k, v):
    weights = softmax(q, k)
    layer.note(lambda: weights)
    return (v.mT @ weights.mT).mT


def compiled_mix(layer, q, k, v):
    attend = torch.compile(lambda q, k, v: (q @ k.mT / 2).softmax(dim=-1) @ v, backend="eager")
    layer.note(lambda: softmax(q, k))
    return attend(q, k, v)


def squared(layer, q, k, v):
    """Two layers with the same weights, and no skip connection between them."""
    weights = softmax(q, k)
    layer.note(lambda: weights)
    layer.note(lambda: weights)
    return weights @ (weights @ v)


def alike(layer, q, k, v):
    """Learned weights, the same for all images."""
    weights = layer.bias[:, :16, :16].softmax(dim=-1)
    layer.note(lambda: weights.expand(len(q), -1, -1, -1))
    return weights @ v


def one_key(layer, q, k, v):
    """One key and one value for all heads."""
    weights = softmax(q, k[:, :1])
    layer.note(lambda: weights)
    return weights @ v[:, :1]


def sink_cut_by(cut):
    """A sink whose key is cut off by a function in place of an index."""

    def mix(layer, q, k, v):
        logits = logits_of(q, k)
        sink = layer.own[0].view(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        weights = cut(torch.cat([sink, logits], dim=-1).softmax(dim=-1))
        layer.note(lambda: weights)
        return weights @ v

    return mix


def backwards(model, images):
    """Every second layer sees the tokens backwards, with a softmax of its own."""

    def step(number, layer, tokens):
        return layer(tokens.flip(1)).flip(1) if number == 1 else layer(tokens)

    return model.read(model.through(model.embed(images), step))


def backwards_to_the_end(model, images):
    def step(number, layer, tokens):
        return layer(tokens.flip(1) if number == 1 else tokens)

    return model.read(model.through(model.embed(images), step).flip(1))


def weighted(tokens):
    """A mean of the tokens with learned weights, (1, N) times (B, N, D)."""
    weights = torch.linspace(-1, 1, tokens.shape[1], dtype=tokens.dtype)[None].softmax(dim=-1)
    return (weights @ tokens)[:, 0]


def shared_values(layer, q, k, v):
    """Heads with weights of their own, and values for all heads, in an einsum that sums over neither."""
    weights = softmax(q, k)
    layer.note(lambda: weights)
    return torch.einsum("bhqk,bkd->bhqd", weights, v[:, 0])


class Reusing(Layer):
    """A layer with the weights that the layer before has computed, as in LazyFormer."""

    def attend(self, tokens):
        weights = self.before.weights
        self.note(lambda: weights)
        return self.proj(self.join(weights @ self.split(tokens)[2]))


class Keeping(Layer):
    """A layer that keeps its weights for the next one."""

    def attend(self, tokens):
        q, k, v = self.split(tokens)
        self.weights = softmax(q, k)
        weights = self.weights
        self.note(lambda: weights)
        return self.proj(self.join(self.weights @ v))


def reusing():
    model = invented(Keeping(), Reusing(), Layer())
    model.layers[1].__dict__["before"] = model.layers[0]  # no submodule
    return model


class Kept(Layer):
    """Branches times the share of steps in which training keeps them."""

    def forward(self, tokens):
        tokens = tokens + 0.8 * self.attend(self.norm1(tokens))
        return tokens + 0.8 * self.mlp(self.norm2(tokens))


class Experts(Layer):
    """Each token chooses one of two experts. ``places`` is how many tokens of a batch find one."""

    def __init__(self, places=None):
        super().__init__()
        self.places = places

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(tokens))
        flat = self.norm2(tokens).flatten(0, 1)
        added = torch.zeros_like(flat)
        for number, expert in enumerate((self.mlp, self.mlp[0::2])):
            own = (flat[:, :2].argmax(dim=1) == number).nonzero()[: self.places, 0]
            added[own] = expert(flat[own])
        return tokens + added.view_as(tokens)


def parametrised():
    model = invented(Layer(), Layer(fused))
    for layer in model.layers:
        parametrizations.weight_norm(layer.qkv)
        parametrizations.spectral_norm(layer.proj)
    return model.eval()


def hooked():
    model = invented(Layer(), Layer(fused))
    model.layers[0].register_forward_hook(lambda layer, _, tokens: tokens * torch.linspace(1, 2, WIDTH).to(tokens))
    model.layers[1].proj.register_forward_hook(lambda layer, _, mixed: 2 * mixed)
    return model


def one_mixer(layer, q, k, v):
    """One matrix mixes the keys of all heads behind the softmax."""
    weights = layer.bias[:1, : q.shape[2], : q.shape[2]][None] @ softmax(q, k)
    layer.note(lambda: weights)
    return weights @ v


def in_linalg(layer, q, k, v):
    weights = softmax(q, k)
    layer.note(lambda: weights)
    return torch.linalg.matmul(weights, v)


def with_fewer_keys_than_values(layer, q, k, v):
    """One head of keys and three of values, shared in other ways."""
    layer.note(lambda: softmax(q, k[:, :1]))
    return F.scaled_dot_product_attention(q, k[:, :1], v, scale=0.5, enable_gqa=True)


def keeps(layer, q, k, v):
    """The layer keeps its weights, as for a later look."""
    layer.kept = softmax(q, k)
    layer.note(lambda: layer.kept)
    return layer.kept @ v


def keep_logits(model, images):
    """Each layer adds the logits of the one before."""
    tokens, before = model.embed(images), 0.0
    for layer in model.layers:
        q, k, v = layer.split(layer.norm1(tokens))
        before = before + logits_of(q, k)
        weights = before.softmax(dim=-1)
        layer.note(lambda weights=weights: weights)
        tokens = tokens + layer.proj(layer.join(weights @ v))
        tokens = tokens + layer.mlp(layer.norm2(tokens))
    return model.read(tokens)


def first_values(model, images):
    """Each layer mixes the values of the first one too."""
    tokens, first = model.embed(images), 0.0
    for layer in model.layers:
        q, k, v = layer.split(layer.norm1(tokens))
        first = first if torch.is_tensor(first) else v
        weights = softmax(q, k)
        layer.note(lambda weights=weights: weights)
        tokens = tokens + layer.proj(layer.join(weights @ (v + first)))
    return model.read(tokens)


def sequence_first(model, images):
    return model.read(model.through(model.embed(images).transpose(0, 1)).transpose(0, 1))


def twice_around(model, images):
    return model.read(model.layers[1](model.layers[0](model.layers[0](model.embed(images)))))


def with_other_weights(model, images):
    changed = {name: 0.7 * p for name, p in model.layers[1].named_parameters()}

    def step(number, layer, tokens):
        return torch.func.functional_call(layer, changed, (tokens,)) if number == 1 else layer(tokens)

    return model.read(model.through(model.embed(images), step))


def long_skip(model, images):
    first = model.embed(images)
    return model.read(model.through(first) + model.more(first))


class Routed(Layer):
    """A softmax over two experts, each weighed by its part of it; the attention is an einsum."""

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(tokens))
        gates = tokens[..., :2].softmax(dim=-1)
        normed = self.norm2(tokens)
        return tokens + gates[..., :1] * self.mlp(normed) + gates[..., 1:] * self.mlp(-normed)


def by_einsum(layer, q, k, v):
    weights = softmax(q, k)
    layer.note(lambda: weights)
    return torch.einsum("bhnm,bhmd->bhnd", weights, v)


def of_soft_values(layer, q, k, v):
    """Values of a softmax over channels, which is no attention."""
    layer.note(lambda: softmax(q, k))
    return softmax(q, k) @ v.softmax(dim=-1)


def in_chunks(layer, q, k, v):
    """Weights of some queries at a time, joined before they multiply the values."""
    layer.note(lambda: softmax(q, k))
    return torch.cat([softmax(some, k) for some in q.split(5, dim=2)], dim=2) @ v


def in_chunks_by_name(layer, q, k, v):
    """The same with the names of numpy."""
    layer.note(lambda: softmax(q, k))
    return torch.concatenate(tensors=[softmax(some, k) for some in q.split(5, dim=2)], axis=2) @ v


class Groups(Layer):
    """Each token chooses among four experts for each group of channels: a softmax of (images, tokens, groups, 4)."""

    def forward(self, tokens):
        tokens = tokens + self.attend(self.norm1(tokens))
        normed = self.norm2(tokens)
        gates = normed.unflatten(-1, (3, 4)).softmax(dim=-1)
        experts = torch.stack([self.mlp(factor * normed) for factor in (1, 2, 3, 4)], dim=-1).unflatten(2, (3, 4))
        return tokens + (experts * gates[:, :, :, None]).sum(dim=-1).flatten(2)


def logged(layer, q, k, v):
    """The weights are computed again to look at them."""
    layer.note(lambda: softmax(q, k))
    layer.last = softmax(q, k).detach()
    return F.scaled_dot_product_attention(q, k, v)


def with_ellipses(layer, q, k, v):
    weights = torch.einsum("...id,...jd->...ij", q / 2, k).softmax(dim=-1)
    layer.note(lambda: weights)
    return torch.einsum("...ij,...jd->...id", weights, v)


def joined_heads(layer, q, k, v):
    """Weights (images, queries, heads, keys) of two groups of heads, joined."""
    layer.note(lambda: softmax(q, k))
    first, second = (
        torch.einsum("bhqd,bhkd->bqhk", some / 2, k[:, of]).softmax(dim=-1)
        for some, of in ((q[:, :2], slice(0, 2)), (q[:, 2:], slice(2, 4)))
    )
    return torch.einsum("bqhk,bhkd->bhqd", torch.cat([first, second], dim=2), v)


def above_one(layer, q, k, v):
    """Values of which few are not zero."""
    layer.note(lambda: softmax(q, k))
    return softmax(q, k) @ (v - 1).relu()


READ = {
    "weights that are computed again to be kept": (lambda: invented(Layer(logged), Layer(logged)), cls),
    "einsums with ellipses": (lambda: invented(Layer(with_ellipses), Layer(with_ellipses)), cls),
    "weights of groups of heads": (lambda: invented(*2 * [Layer(joined_heads, heads=4)]), cls),
    "values of which few are not zero": (lambda: invented(Layer(above_one), Layer(above_one)), cls),
    "values of a softmax over channels": (lambda: invented(Layer(of_soft_values), Layer(of_soft_values)), cls),
    "weights in chunks of queries": (lambda: invented(Layer(in_chunks), Layer(in_chunks)), cls),
    "weights in chunks, joined by keywords": (lambda: invented(*2 * [Layer(in_chunks_by_name)]), cls),
    "experts for groups of channels": (lambda: invented(Groups(), Groups()), cls),
    "experts weighed by slices of a softmax": (lambda: invented(Routed(by_einsum), Routed(by_einsum)), cls),
    "heads of a number of their own in each layer": (lambda: invented(Layer(heads=1), Layer(heads=4), Layer()), cls),
    "channels of heads interleaved": (lambda: invented(Interleaved(), Interleaved(fused)), cls),
    "tokens before images": (lambda: invented(SequenceFirst(), SequenceFirst(fused), run=sequence_first), cls),
    "registers behind two class tokens": (
        lambda: invented(prefix=5, read=lambda x: x[:, :2].mean(dim=1)),
        lambda model: {0: 0.5, 1: 0.5},
    ),
    "a token for each class": (
        lambda: invented(prefix=4, classes=1, read=lambda x: x[:, :4].sum(dim=1)),
        lambda model: dict.fromkeys(range(4), 0.25),
    ),
    "class token less the mean": (
        lambda: invented(read=lambda x: x[:, 0] - 2 * x[:, 1:].mean(dim=1)),
        lambda model: {0: 1 / 3} | dict.fromkeys(range(1, 16), 2 / 3 / 15),
    ),
    "attention and MLP side by side": (lambda: invented(Parallel(), Parallel(fused)), cls),
    "one layer run twice": (lambda: invented(Layer(), Layer(fused), run=twice_around), cls),
    "queries, keys and values by a convolution of 1": (lambda: invented(Maps(), Maps(fused)), cls),
    "a learned bias for each pair of tokens": (
        lambda: invented(Layer(by(lambda layer, q, k: (logits_of(q, k) + layer.bias[:, :16, :16]).softmax(-1)))),
        cls,
    ),
    "a causal mask": (lambda: invented(Layer(by(causal)), Layer(by(causal))), cls),
    "talking heads": (
        lambda: invented(
            Layer(by(lambda layer, q, k: torch.einsum("bhnm,hg->bgnm", logits_of(q, k).softmax(-1), layer.own))),
            Layer(),
        ),
        cls,
    ),
    "a gate on the weights": (
        lambda: invented(Layer(by(lambda layer, q, k: logits_of(q, k).softmax(-1) * (k @ q.mT).mT.sigmoid())), Layer()),
        cls,
    ),
    "differential attention": (lambda: invented(Layer(by(differential)), Layer()), cls),
    "logits capped by tanh": (
        lambda: invented(Layer(by(lambda layer, q, k: (3 * (logits_of(q, k) / 3).tanh()).softmax(-1))), Layer()),
        cls,
    ),
    "a sink that takes attention away": (lambda: invented(Layer(by(with_sink)), Layer(by(with_sink))), cls),
    "weights over queries": (
        lambda: invented(Layer(by(lambda layer, q, k: logits_of(q, k).softmax(-2))), Layer()),
        cls,
    ),
    "einsum with letters of its own": (lambda: invented(Layer(in_einsum), Layer(in_einsum)), cls),
    "values times weights": (lambda: invented(Layer(transposed), Layer(transposed)), cls),
    "a softmax of a softmax": (
        lambda: invented(Layer(by(lambda layer, q, k: (5 * softmax(q, k)).softmax(-1))), Layer()),
        cls,
    ),
    "learned weights, the same for all images": (lambda: invented(Layer(), Layer(alike)), cls),
    "one key and value for all heads": (lambda: invented(Layer(one_key), Layer(one_key)), cls),
    "branches times the share that training keeps": (lambda: invented(Kept(), Kept(fused)), cls),
    "an expert for each token": (lambda: invented(Experts(), Experts()), cls),
    "parametrised weights": (parametrised, cls),
    "hooks that change what layers return": (hooked, cls),
    "weights shared by two layers": (reusing, cls),
    "a sink that is split off": (
        lambda: invented(Layer(sink_cut_by(lambda w: w.split([1, w.shape[-1] - 1], dim=-1)[1])), Layer()),
        cls,
    ),
    "a sink that is narrowed away": (
        lambda: invented(Layer(sink_cut_by(lambda w: w.narrow(-1, 1, w.shape[-1] - 1))), Layer()),
        cls,
    ),
    "a sink that is cut off": (
        lambda: invented(Layer(sink_cut_by(lambda w: torch.tensor_split(w, [1], dim=-1)[1])), Layer()),
        cls,
    ),
    "a mean with learned weights": (
        lambda: invented(read=weighted),
        lambda model: dict(enumerate(torch.linspace(-1, 1, 16).double().softmax(dim=0).tolist())),
    ),
    "values for all heads": (lambda: invented(Layer(shared_values), Layer()), cls),
    "a compiled function": (lambda: invented(Layer(compiled_mix), Layer()), cls),
    "one matrix over the keys of all heads": (lambda: invented(Layer(one_mixer), Layer(), Layer(one_mixer)), cls),
    "torch.linalg.matmul": (lambda: invented(Layer(in_linalg), Layer(in_linalg)), cls),
    "one head of keys, three of values": (lambda: invented(*[Layer(with_fewer_keys_than_values)] * 2), cls),
    "weights that are kept": (lambda: invented(Layer(keeps), Layer(keeps)), cls),
    "logits of the layer before": (lambda: invented(run=keep_logits), cls),
    "values of the first layer in all": (lambda: invented(run=first_values), cls),
    "weights that are exchanged for the call": (lambda: invented(run=with_other_weights), cls),
    "a skip from the first tokens to the last": (lambda: invented(run=long_skip), cls),
    "a checkpoint around each layer": (
        lambda: invented(
            run=lambda m, x: m.read(
                m.through(m.embed(x), lambda _, layer, tokens: checkpoint(layer, tokens, use_reentrant=False))
            )
        ),
        cls,
    ),
    "tokens detached between layers": (
        lambda: invented(run=lambda m, x: m.read(m.through(m.embed(x), lambda _, layer, t: layer(t.detach())))),
        cls,
    ),
    "channels last": (
        lambda: invented(run=lambda m, x: m.read(m.through(m.embed(x.contiguous(memory_format=torch.channels_last))))),
        cls,
    ),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", "ignore:attention has negative weights")
@pytest.mark.parametrize("name", READ)
def test_maps_are_those_of_the_weights_that_the_model_notes(name):
    make, reads = READ[name]
    model = make()
    expected = noted_by(model, IMAGES)
    found = capture_attention(model, IMAGES)
    assert_close([attn.detach() for attn in found], expected, **EXACT)
    shares = torch.zeros(expected[0].shape[-1]).double()
    for token, share in reads(model).items():
        shares[token] = share
    first = len(shares) - PATCHES
    row = torch.einsum("n,bnm->bm", shares, rolled(expected))[:, first:].unflatten(1, (3, 5))
    assert_close(explain(model, IMAGES, "rollout"), row, **EXACT)


def test_weights_over_queries_of_as_many_images_as_tokens_are_read():
    model = invented(Layer(by(lambda layer, q, k: logits_of(q, k).softmax(-2)), heads=1), Layer(heads=1))
    images = torch.randn(16, 3, 6, 10, dtype=torch.float64)
    assert_close([attn.detach() for attn in capture_attention(model, images)], noted_by(model, images), **EXACT)


@pytest.mark.parametrize("seed", range(8))
def test_small_models_take_the_same_pixels_of_all_images(seed):
    torch.manual_seed(seed)
    model = VisionTransformer((12, 12), 4, embed_dim=4, depth=1, num_heads=2, mlp_ratio=1).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert capture_attention(model, torch.randn(6, 3, 12, 12))[0].shape == (6, 2, 10, 10)


def test_an_image_whose_patches_are_not_found_is_refused_beside_others():
    def by_sign(model, images):
        bright = (images.mean((1, 2, 3)) > 0)[:, None, None, None]
        return model.read(model.through(model.embed(torch.where(bright, images, -images))))

    model = invented(run=by_sign)
    assert_close([attn.detach() for attn in capture_attention(model, IMAGES)], noted_by(model, IMAGES), **EXACT)
    with pytest.raises(ValueError, match="Invented takes its patches from other pixels of each image"):
        explain(model, IMAGES)


# No skip connection beside each attention, which rollout adds. The weights are right.


def around_two(model, images):
    """One skip connection around two attentions."""
    tokens = model.embed(images)
    for first, second in zip(model.layers[::2], model.layers[1::2], strict=True):
        tokens = tokens + second.attend(second.norm1(first.attend(first.norm1(tokens))))
    return model.read(tokens)


def anew(model, images):
    """The class token gets no skip connection in the second layer."""

    def step(number, layer, tokens):
        made = layer(tokens)
        return torch.cat([made[:, :1] - tokens[:, :1], made[:, 1:]], dim=1) if number == 1 else made

    return model.read(model.through(model.embed(images), step))


def leapfrog(model, images):
    """Each layer adds to the tokens of the layer before the last."""
    before = model.embed(images)
    tokens = model.more(before)
    for layer in model.layers:
        before, tokens = tokens, before + layer.attend(layer.norm1(tokens))
    return model.read(tokens)


WITHOUT_SKIP = {
    "weights applied twice": (lambda: invented(Layer(), Layer(squared)), 1),
    "one skip around two": (lambda: invented(*(Layer() for _ in range(4)), run=around_two), 0),
    "no skip of the class token": (lambda: invented(Attends(), Attends(), Attends(), run=anew), 1),
    "to the layer before the last": (lambda: invented(run=leapfrog), 1),
    "none at all": (lambda: invented(Alone(), Alone()), 0),
}


class Attends(Layer):
    """A layer without an MLP."""

    def forward(self, tokens):
        return tokens + self.attend(self.norm1(tokens))


class Alone(Layer):
    """A layer of attention alone."""

    def forward(self, tokens):
        return self.attend(tokens)


@pytest.mark.parametrize("name", WITHOUT_SKIP)
def test_rollout_is_refused_where_tokens_do_not_pass_each_attention_by(name):
    make, layer = WITHOUT_SKIP[name]
    model = make()
    expected = noted_by(model, IMAGES)
    assert_close([attn.detach() for attn in capture_attention(model, IMAGES)], expected, **EXACT)
    for method in ("rollout", "gradient_rollout", "relevance"):
        with pytest.raises(ValueError, match=f"layer {layer} of Invented has no skip connection beside its attention"):
            explain(model, IMAGES, method)


class Gather(Layer):
    """Latents gather tokens by attention, as in a Perceiver."""

    def forward(self, latents, tokens):
        q, (_, k, v) = self.split(self.norm1(latents))[0], self.split(self.norm2(tokens))
        latents = latents + self.proj(self.join(self.mix(self, q, k, v)))
        return latents + self.mlp(latents)


def gathered(model, images):
    """As many learned latents as tokens gather the image, and have skip connections from there on."""
    first, *others = model.layers
    tokens = first(model.more(model.positions.flip(1)).expand(len(images), -1, -1), model.embed(images))
    for layer in others:
        tokens = layer(tokens)
    return model.read(tokens)


@pytest.mark.parametrize("method", ["attention", "value", "legrad", "gradcam", "rollout", "relevance", "value_rollout"])
def test_latents_are_not_drawn_as_patches(method):
    with pytest.raises(ValueError, match=r"layer \d of Invented has no skip connection"):
        explain(invented(Gather(), Layer(), Layer(), run=gathered), IMAGES, method)


def test_a_class_token_that_begins_as_the_mean_of_the_patches_may_lose_itself():
    def run(model, images):
        tokens = model.embed(images)
        tokens = torch.cat([tokens[:, :1] + tokens[:, 1:].mean(dim=1, keepdim=True), tokens[:, 1:]], dim=1)
        first, *others = model.layers
        made = first(tokens)
        tokens = torch.cat([made[:, :1] - tokens[:, :1], made[:, 1:]], dim=1)
        for layer in others:
            tokens = layer(tokens)
        return model.read(tokens)

    assert layers_without_patches(invented(Attends(), Attends(), run=run), IMAGES[:1], [0, 1], []) == set()
    assert layers_without_patches(invented(Alone(), Attends()), IMAGES[:1], [0, 1], []) == {1}


@pytest.mark.parametrize("name", WITHOUT_SKIP)
def test_attention_to_tokens_that_are_no_longer_those_of_their_patches_is_refused(name):
    model = WITHOUT_SKIP[name][0]()
    if name in ("no skip of the class token", "to the layer before the last"):
        expected = noted_by(model, IMAGES)[-1].mean(dim=1)[:, 0, 1:].unflatten(1, (3, 5))
        assert_close(explain(model, IMAGES, "attention"), expected, **EXACT)
    else:
        with pytest.raises(
            ValueError, match="of Invented has no skip connection, so tokens hold what attention brought"
        ):
            explain(model, IMAGES, "attention")


# Models that are refused.


def cross(model, images):
    """The second layer reads learned tokens instead of its own."""

    def step(number, layer, tokens):
        if number != 1:
            return layer(tokens)
        q = layer.split(tokens)[0]
        _, k, v = layer.split(layer.bias[0, :9, :WIDTH].expand(len(tokens), -1, -1))
        return tokens + layer.proj(layer.join(softmax(q, k) @ v))

    return model.read(model.through(model.embed(images), step))


def streams(model, images):
    one, other = model.embed(images), model.embed(images.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1))
    return model.read(model.layers[0](one) + model.layers[1](other))


def changing(how, at=1):
    """A run whose tokens a function changes before one of the layers."""
    return lambda model, images: model.read(
        model.through(
            model.embed(images), lambda number, layer, tokens: layer(how(model, tokens) if number == at else tokens)
        )
    )


def sorted_by_content(model, tokens):
    order = tokens[..., :1].argsort(dim=1)
    return tokens.gather(1, order.expand_as(tokens))


def merged(model, tokens):
    return torch.cat([tokens[:, :2], (tokens[:, 2::2] + tokens[:, 3::2]) / 2], dim=1)


def pruned(model, tokens):
    best = tokens[:, 1:, :1].argsort(dim=1, descending=True)[:, :8] + 1
    return torch.cat([tokens[:, :1], tokens.gather(1, best.expand(-1, -1, WIDTH))], dim=1)


def mixed_by_mlp(model, tokens):
    return tokens + (tokens.mT @ model.layers[0].bias[0, :16, :16]).tanh().mT


def squeezed(model, tokens):
    """The mean token is a gate of all channels."""
    return tokens * model.more(tokens.mean(dim=1, keepdim=True)).sigmoid()


def exchanged(model, tokens):
    """The class token takes the place of a token that is chosen for each image."""
    chosen = tokens[:, 1:, 0].argmax(dim=1) + 1
    swapped = tokens.clone()
    swapped[range(len(tokens)), chosen] = tokens[:, 0]
    swapped[:, 0] = tokens[range(len(tokens)), chosen]
    return swapped


def smoothed(layer, q, k, v):
    return softmax(q, k) @ F.avg_pool1d(v.flatten(0, 1).mT, 3, 1, 1).mT.unflatten(0, v.shape[:2])


def five_axes(layer, q, k, v):
    q, k, v = (x.unflatten(1, (1, HEADS)) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[:, 0]


def by_hand(layer, q, k, v):
    weights = logits_of(q, k).exp()
    return (weights / weights.sum(dim=-1, keepdim=True))[..., None].mul(v[:, :, None]).sum(dim=3)


def nested(layer, q, k, v):
    q, k, v = (torch.nested.nested_tensor([*x.mT], layout=torch.jagged).mT for x in (q, k, v))
    return torch.stack([*F.scaled_dot_product_attention(q, k, v).unbind()])


class Other(Layer):
    """Attention to something else than the tokens of the layer before: ``other(model, images)``."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def forward(self, tokens):
        q = self.split(self.norm1(tokens))[0]
        _, k, v = self.split(self.norm1(self.seen))
        return tokens + self.proj(self.join(softmax(q, k) @ v))


def beside(model, images):
    model.layers[1].seen = model.layers[1].other(model, images)
    return model.read(model.through(model.embed(images)))


def memory(model, images):
    return model.layers[0].bias[0, :16, :WIDTH].expand(len(images), -1, -1)


class Some(Layer):
    """A layer for the images whose patches are bright."""

    def forward(self, tokens):
        chosen = tokens[:, 1:].mean(dim=(1, 2)) > -1.164
        tokens = tokens.clone()
        tokens[chosen] = super().forward(tokens[chosen])
        return tokens


class InParts(Layer):
    """Two images at a time."""

    def forward(self, tokens):
        return torch.cat([super(InParts, self).forward(part) for part in tokens.split(2)])


class InOneSequence(Layer):
    """The tokens of all images in one sequence; each attends to those of its image."""

    def forward(self, tokens):
        images, count, _ = tokens.shape
        hidden = ~torch.block_diag(*[torch.ones(count, count)] * images).bool()
        together = tokens.flatten(0, 1)[None]
        q, k, v = self.split(self.norm1(together))
        mixed = logits_of(q, k).masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v
        return (together + self.proj(self.join(mixed))).view_as(tokens)


def of_the_next(layer, q, k, v):
    return softmax(q, k) @ (v + v.roll(1, 0))


def centred(model, images):
    logits = model.read(model.through(model.embed(images)))
    return logits - logits.mean(dim=0)


def scaled_by_the_batch(model, images):
    """The image with the largest logit is as it is alone."""
    logits = model.read(model.through(model.embed(images)))
    return logits / logits.max()


def mirrored(model, images):
    both = model.through(model.embed(torch.cat([images, images.flip(-1)])))
    return model.read(both[: len(images)]) + model.read(both[len(images) :])


def either(layer, q, k, v):
    chooses = (v.mean(dim=(1, 2, 3)) > 0)[:, None, None, None]
    return torch.where(chooses, softmax(q, k) @ v, softmax(k, q) @ v)


def early_read(model, images):
    tokens = model.embed(images)
    return model.read(model.through(tokens)) + model.head(model.more(tokens)[:, 3])


def turned_if_bright(model, images):
    """The tokens of brighter images stand backwards from the second layer on."""
    bright = (images.mean(dim=(1, 2, 3)) > IMAGES[:2].mean())[:, None, None]

    def step(number, layer, tokens):
        return layer(torch.where(bright, tokens.flip(1), tokens) if number == 1 else tokens)

    tokens = model.through(model.embed(images), step)
    return model.read(torch.where(bright, tokens.flip(1), tokens))


def in_place(model, images):
    return model.read(model.through(model.embed(images.sub_(0.1))))


def rounded(model, images):
    return (100 * model.read(model.through(model.embed(images)))).floor() / 100


def backward_keys(layer, q, k, v):
    return softmax(q, k.flip(-2)) @ v.flip(-2)


def sigmoid_mix(layer, q, k, v):
    return (logits_of(q, k) - 1).sigmoid() / 8 @ v


def two_axes(layer, q, k, v):
    """Learned weights without axes of images and heads, as in a random Synthesizer."""
    return layer.bias[0, :16, :16].softmax(dim=-1) @ v


def two_axes_in_einsum(layer, q, k, v):
    return torch.einsum("nm,bhmd->bhnd", layer.bias[0, :16, :16].softmax(dim=-1), v)


def learned(layer, q, k, v):
    """Learned weights of each head, by no softmax."""
    weights = layer.bias[:, :16, :16].exp()
    return weights / weights.sum(dim=-1, keepdim=True) @ v


def learned_by_hand(layer, q, k, v):
    """The same by a product and a sum."""
    weights = layer.bias[:, :16, :16].exp()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return (weights[..., None] * v[:, :, None]).sum(dim=3)


class OfClass(Layer):
    """The class token attends to itself and the patches."""

    def forward(self, first, patches):
        q, k, v = self.split(self.norm1(torch.cat([first, patches], dim=1)))
        return first + self.proj(self.join(self.mix(self, q[:, :, :1], k, v)))


def by_logarithms(layer, q, k, v):
    return logits_of(q, k).log_softmax(dim=-1).exp() @ v


def class_attention(model, images):
    """As in CaiT: the layers before have patches alone."""
    patches = model.layers[0](model.patches(images).flatten(2).mT + model.positions[:, 1:])
    first = model.first.expand(len(images), -1, -1)
    for layer in model.layers[1:]:
        first = layer(first, patches)
    return model.read(first)


def scripted():
    return torch.jit.trace(invented(), IMAGES, check_trace=False)


def biased_by_torch(layer, q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(16, 16))


def with_own_keys(layer, q, k, v):
    """Learned keys and values in front of those of the tokens."""
    own = layer.own[None, :, :1, None].expand(len(q), -1, -1, q.shape[-1])
    return F.scaled_dot_product_attention(q, torch.cat([own, k], dim=2), torch.cat([own, v], dim=2))


REFUSED = {
    "learned keys": (
        lambda: invented(Layer(with_own_keys), Layer(with_own_keys)),
        "has 17 keys for 16 queries in its attention, as with learned keys, a prefix or a sink that has a value",
    ),
    "a softmax over the channels of queries": (
        lambda: invented(Layer(lambda layer, q, k, v: softmax(q.softmax(-1), k) @ v)),
        "or takes a softmax over channels: 2 images gave attention",
    ),
    "a mask of a type of its own": (lambda: invented(Layer(biased_by_torch)), "the attn_mask is a CausalBias, whose"),
    "cross-attention to learned tokens": (lambda: invented(run=cross), "to other tokens in some layers"),
    "two streams": (lambda: invented(Layer(), Layer(), run=streams), "attentions side by side"),
    "tokens sorted by their content": (
        lambda: invented(run=changing(sorted_by_content)),
        "mixed, exchanged or cut off|mixes tokens|moves its tokens",
    ),
    "tokens merged in pairs": (lambda: invented(run=changing(merged)), "to other tokens in some layers"),
    "tokens pruned": (lambda: invented(run=changing(pruned)), "to other tokens in some layers"),
    "tokens doubled": (
        lambda: invented(run=changing(lambda model, x: torch.cat([x, x], dim=1))),
        "to other tokens in some layers",
    ),
    "registers added between layers": (
        lambda: invented(run=changing(lambda model, x: torch.cat([x, model.first.expand(len(x), -1, -1)], dim=1))),
        "to other tokens in some layers",
    ),
    "an MLP over tokens": (lambda: invented(run=changing(mixed_by_mlp)), "mixes tokens in a way"),
    "a gate of the mean token": (lambda: invented(run=changing(squeezed)), "mixes tokens in a way"),
    "the class token exchanged": (
        lambda: invented(run=changing(exchanged)),
        "mixed, exchanged or cut off|mixes tokens",
    ),
    "values smoothed over tokens": (lambda: invented(Layer(), Layer(smoothed)), "mixes tokens in a way"),
    "attention of five axes": (lambda: invented(Layer(five_axes), Layer()), "cannot be intercepted"),
    "a product and a sum": (lambda: invented(Layer(), Layer(by_hand)), "mixes tokens in a way"),
    "mirror images in the batch": (lambda: invented(run=mirrored), "attends within windows|side by side|in a batch"),
    "one of two attentions": (lambda: invented(Layer(either), Layer()), "side by side"),
    "a head that reads early tokens": (lambda: invented(run=early_read), "read more than its last tokens"),
    "nested tensors": (lambda: invented(Layer(nested), Layer()), "attention over nested tensors cannot be seen"),
    "the tokens of the first layer once more": (
        lambda: invented(Layer(), Other(lambda model, x: model.embed(x)), run=beside),
        r"other tokens than those of the layer before \(the values of number 1 do not depend on number 0\)",
    ),
    "the mirror image": (
        lambda: invented(Layer(), Other(lambda model, x: model.embed(x.flip(-1))), run=beside),
        "other tokens than those of the layer before",
    ),
    "a memory of as many slots as tokens": (
        lambda: invented(Layer(), Other(memory), run=beside),
        "other tokens than those of the layer before",
    ),
    "a layer for some images": (lambda: invented(Layer(), Some(), Layer()), "skips a layer for some"),
    "two images at a time": (lambda: invented(InParts(), InParts()), "passes images in parts"),
    "all images in one sequence": (lambda: invented(InOneSequence()), "to several images at once"),
    "values of the next image": (
        lambda: invented(Layer(), Layer(of_the_next)),
        "the images of a batch change each other",
    ),
    "logits less the mean of the batch": (lambda: invented(run=centred), "the images of a batch change each other"),
    "logits divided by the largest of the batch": (
        lambda: invented(run=scaled_by_the_batch),
        "the images of a batch change each other",
    ),
    "experts with places for a whole batch": (
        lambda: invented(Experts(places=8), Experts(places=8)),
        "the images of a batch change each other",
    ),
    "tokens turned round in bright images": (
        lambda: invented(Layer(fused), Layer(fused), run=turned_if_bright),
        "puts the tokens of two images into different orders",
    ),
    "images changed in place": (lambda: invented(run=in_place), "writes into the images that it is given"),
    "logits rounded down": (lambda: invented(run=rounded), "is saturated, as by .* rounding"),
    "learned weights before all others": (
        lambda: invented(Layer(learned), Layer()),
        r"mixes tokens in a way .* \(Layer 'layers.0', before number 0",
    ),
    "learned weights after all others": (
        lambda: invented(Layer(), Layer(learned)),
        r"mixes tokens in a way .* \(Layer 'layers.1', after the last",
    ),
    "learned weights in a product and a sum before all others": (
        lambda: invented(Layer(learned_by_hand), Layer()),
        r"mixes tokens in a way .* \(Layer 'layers.0', before number 0",
    ),
    "learned weights in a product and a sum after all others": (
        lambda: invented(Layer(), Layer(learned_by_hand)),
        r"mixes tokens in a way .* \(Layer 'layers.1', after the last",
    ),
    "a second class attention that is not seen": (
        lambda: invented(Layer(), OfClass(fused), OfClass(by_logarithms), run=class_attention),
        r"mixes tokens in a way .* \(OfClass 'layers.2', after the last",
    ),
    "keys and values backwards in the last layer": (
        lambda: invented(Layer(), Layer(backward_keys)),
        "the keys of attention 1 stand in another order than its queries",
    ),
    "weights without images and heads": (
        lambda: invented(Layer(), Layer(two_axes)),
        r"cannot be intercepted \(of shape \(16, 16\)",
    ),
    "weights without images and heads, in an einsum": (
        lambda: invented(Layer(), Layer(two_axes_in_einsum)),
        r"cannot be intercepted \(of shape \(16, 16\)",
    ),
    "an exported model": (
        lambda: torch.export.export(invented(Layer(fused)), (IMAGES,)).module(),
        "is exported: it calls kernels by name",
    ),
    "a traced model": (scripted, "is scripted"),
    "an image turned round": (
        lambda: invented(run=lambda model, x: model.read(model.through(model.embed(x.flip(-1))))),
        "move no grid of patches",
    ),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit", "ignore:.*trace")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_reason(name):
    make, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        explain(make(), IMAGES, "rollout")


def test_every_second_layer_may_see_the_tokens_backwards():
    model, plain = (invented(Layer(), Layer(), Layer(), run=run) for run in (backwards, None))
    assert_close(list(capture_attention(model, IMAGES)), list(capture_attention(plain, IMAGES)), **EXACT)
    assert_close(explain(model, IMAGES, "rollout"), explain(plain, IMAGES, "rollout"), **EXACT)


def test_a_new_order_that_stays_to_the_end_is_undone_for_maps_and_refused_where_nothing_confirms_it():
    model, plain = invented(Layer(), Layer(), run=backwards_to_the_end), invented(Layer(), Layer())
    with pytest.raises(ValueError, match="the keys of attention 1, and perhaps its queries"):
        capture_attention(model, IMAGES)
    assert_close(explain(model, IMAGES, "rollout"), explain(plain, IMAGES, "rollout"), **EXACT)


@pytest.mark.parametrize("method", ["relevance", "gradient_rollout"])
def test_layers_that_share_their_weights_have_gradients_of_their_own(method):
    def copied(layer, tokens):
        layer.before.weights = layer.before.weights * 1.0  # the same numbers in another tensor
        return Reusing.attend(layer, tokens)

    shared, apart = reusing(), reusing()
    apart.layers[1].attend = lambda tokens: copied(apart.layers[1], tokens)
    assert_close(explain(shared, IMAGES, method, 3), explain(apart, IMAGES, method, 3), **EXACT)


def test_weights_that_are_changed_after_their_use_are_captured_as_they_were():
    def mix(layer, q, k, v):
        weights = softmax(q, k)
        layer.note(lambda: weights.clone())
        mixed = weights @ v
        weights.zero_()
        return mixed

    model = invented(Layer(), Layer(mix))
    with torch.no_grad():
        found = capture_attention(model, IMAGES[:1])
    assert_close(list(found), noted_by(model, IMAGES[:1]), **EXACT)


def test_attention_that_is_not_seen_is_found_with_as_many_tokens_as_copies_in_the_experiment():
    model = invented(Layer(), Layer(), Layer(sigmoid_mix), prefix=1)
    model.patches = nn.Conv2d(3, WIDTH, (3, 5), stride=(3, 5)).double()  # 2 x 2 patches and a class token
    model.positions = nn.Parameter(torch.randn(1, 5, WIDTH).double())
    with pytest.raises(ValueError, match="mixes tokens in a way that cannot be intercepted"):
        capture_attention(model, IMAGES)


def test_gradcam_reads_a_norm_behind_modules_that_change_nothing():
    model, bare = invented(Layer(), Layer()), invented(Layer(), Layer())
    for layer in model.layers:
        layer.norm1 = nn.Sequential(nn.Identity(), nn.Dropout(0.1), layer.norm1)
    model.eval()
    assert_close(explain(model, IMAGES, "gradcam", 3), explain(bare, IMAGES, "gradcam", 3), **EXACT)


def test_a_model_traced_by_fx_is_the_model():
    model = invented(Layer(fused), Layer(fused))
    traced = torch.fx.symbolic_trace(model)
    assert_close(list(capture_attention(traced, IMAGES)), list(capture_attention(model, IMAGES)), **EXACT)
    assert_close(explain(traced, IMAGES, "relevance"), explain(model, IMAGES, "relevance"), **EXACT)


def test_bfloat16_is_near_double_precision():
    model = invented()
    half = deepcopy(model).bfloat16()
    assert_close(explain(half, IMAGES.bfloat16()).double(), explain(model, IMAGES), rtol=0.1, atol=0.01)


def halved(layer, q, k, v):
    """Attention in half precision, within a model that is not."""
    return F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), scale=0.5).to(q.dtype)


@pytest.mark.parametrize("method", ["value", "value_rollout"])
def test_values_of_an_attention_in_half_precision_are_near_those_in_single(method):
    rough, model = invented(Layer(halved), Layer(halved)).float(), invented(Layer(fused), Layer(fused)).float()
    expected = explain(model, IMAGES.float(), method)
    found = explain(rough, IMAGES.float(), method)
    assert_close(found, expected, rtol=0.1, atol=0.03 * float(expected.max()))


@pytest.mark.parametrize("method", ["rollout", "relevance", "value"])
def test_an_autocast_within_the_model_is_near_double_precision(method):
    def run(model, images):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model.read(model.through(model.embed(images))).float()

    rough, model = (invented(Layer(fused), Layer(fused), run=each) for each in (run, None))
    expected = explain(model, IMAGES, method, **({"target": 3} if method == "relevance" else {}))
    found = explain(rough.float(), IMAGES.float(), method, **({"target": 3} if method == "relevance" else {}))
    assert_close(found.double(), expected, rtol=0.1, atol=0.03 * float(expected.max()))
