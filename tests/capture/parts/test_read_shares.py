"""How much of each token the logits read, against Jacobians by hand."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, ours, randomised
from tests.capture.test_invented_models import WIDTH, invented
from tests.capture.wrapped_model import Around
from vit.capture import capture_attention, examine
from vit.explain import attention_rollout, explain
from vit.explain.maps import Subject, signed_map

IMAGES = torch.randn(3, 3, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SQUARE = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def rolled_and_read(model, images, shares):
    """The rollout of a model without prefix tokens, read by these shares (B, N): (B, N)."""
    return torch.einsum("bn,bnm->bm", shares, attention_rollout(capture_attention(model, images)))


def test_images_of_a_batch_have_the_exact_shares_of_the_first_two():
    def both(tokens):
        return tokens[:, 0] + tokens[:, 1:].mean(dim=1) @ turn

    turn = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = invented(read=both, classes=40)
    fixed = examine(model, IMAGES).readout
    assert_close(Subject(model, IMAGES).readout, fixed.expand(3, -1), **EXACT)


@pytest.mark.parametrize("classes", [7, 40])
def test_the_shares_of_a_class_token_and_a_mean_are_those_of_the_whole_jacobian(classes):
    def both(tokens):
        return tokens[:, 0] + tokens[:, 1:].mean(dim=1) @ turn

    turn = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, last = invented(read=both, classes=classes), []
    with model.norm.register_forward_hook(lambda _, __, output: last.append(output[:1])):
        model(IMAGES)
    jacobian = torch.autograd.functional.jacobian(lambda tokens: model.head(both(tokens)), last[0])
    norms = jacobian[0, :, 0].square().sum(dim=(0, 2)).sqrt()
    assert_close(examine(model, IMAGES).readout, norms / norms.sum(), **EXACT)


def test_a_head_that_reads_each_token_before_they_are_pooled_is_behind_the_last_tokens():
    model, last = invented(read=lambda tokens: tokens), []
    model.add_module("scores", model.head)
    model.head = Pooled(model.scores)
    with model.norm.register_forward_hook(lambda _, __, output: last.append(output)):
        model(IMAGES)
    # logits_k = log sum_n exp(w_k x_n), so that d logits_k / d x_n = softmax_n(w_k x_n) w_k.
    weights = model.scores(last[0]).softmax(dim=1)
    norms = (weights.square() @ model.scores.weight.square().sum(dim=1)).sqrt()
    shares = norms / norms.sum(dim=1, keepdim=True)
    subject = Subject(model, IMAGES)
    assert_close(subject.readout, shares, **EXACT)
    assert_close(signed_map("rollout", subject).flatten(1), rolled_and_read(model, IMAGES, shares)[:, 1:], **EXACT)


class Pooled(nn.Module):
    """Scores of each token, then the logarithm of the sum of their exponentials over the tokens."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, tokens):
        return self.scores(tokens).logsumexp(dim=1)


def of_cct():
    from vit_pytorch.cct import CCT

    torch.manual_seed(0)
    cct = CCT(img_size=32, embedding_dim=12, num_layers=3, num_heads=3, mlp_ratio=2.0, num_classes=7)
    randomised(cct.classifier)
    nn.init.normal_(cct.classifier.attention_pool.weight, std=5.0)
    return cct.double().eval()


def test_the_sequence_pooling_of_cct_is_read_by_its_jacobian():
    model, tokens = of_cct(), []
    handle = model.classifier.norm.register_forward_hook(lambda _, __, output: tokens.append(output))
    model(SQUARE)
    handle.remove()
    x, head, pool = tokens[0], model.classifier.fc.weight, model.classifier.attention_pool
    weights = pool(x).softmax(dim=1)  # (B, N, 1)
    mean = (weights * x).sum(dim=1, keepdim=True)
    # logits = W sum_n w_n x_n with w = softmax(g x), so that d logits / d x_n = w_n W (1 + (x_n - mean) g^T).
    jacobians = weights[..., None] * (head @ (torch.eye(12) + (x - mean)[..., None] * pool.weight[0]))
    norms = jacobians.flatten(2).norm(dim=-1)
    expected = norms / norms.sum(dim=1, keepdim=True)
    subject = Subject(model, SQUARE)
    assert_close(subject.readout, expected, **EXACT)
    assert not expected[0].allclose(expected[1], rtol=0.1)
    assert_close(signed_map("rollout", subject).flatten(1), rolled_and_read(model, SQUARE, expected), **EXACT)
    # They are near the weights of the pooling, and far from even shares.
    assert torch.corrcoef(torch.stack([expected.flatten(), weights.flatten()]))[0, 1] > 0.9
    assert subject.anatomy.readout_varies
    last = capture_attention(model, SQUARE)[-1].mean(dim=1)
    expected = torch.einsum("bn,bnm->bm", expected, last)
    assert_close(signed_map("attention", subject).flatten(1), expected, **EXACT)


def test_shares_that_hardly_vary_are_those_of_each_image():
    scorer = torch.randn(12, 1, dtype=torch.float64)

    def run(vit, images):
        tokens = vit.forward_features(images)
        return vit.head(((3e-5 * tokens @ scorer).softmax(dim=1) * tokens).sum(dim=1))

    model = Around(randomised(ours(class_token=False, pool="mean")()), run).eval()
    tokens = model.vit.forward_features(IMAGES).detach().requires_grad_()
    pooled = ((3e-5 * tokens @ scorer).softmax(dim=1) * tokens).sum(dim=1)
    logits = pooled @ model.vit.head.weight.T
    slopes = [torch.autograd.grad(logits[:, k].sum(), tokens, retain_graph=True)[0] for k in range(logits.shape[1])]
    norms = torch.stack(slopes).square().sum(dim=(0, -1)).sqrt()
    expected = norms / norms.sum(dim=1, keepdim=True)
    assert not torch.equal(expected[0], expected[1])
    assert torch.allclose(expected[0], expected[1], rtol=1e-3)
    assert_close(Subject(model, IMAGES).readout, expected, **EXACT)


def test_the_weights_of_a_pooling_are_the_shares():
    weights = torch.rand(15, dtype=torch.float64).softmax(dim=0)

    def run(vit, images):
        return vit.head(torch.einsum("n,bnd->bd", weights, vit.forward_features(images)))

    model = Around(randomised(ours(class_token=False, pool="mean")()), run).eval()
    anatomy = examine(model, IMAGES)
    assert_close(anatomy.readout, weights, **EXACT)
    assert not anatomy.readout_varies
    expected = rolled_and_read(model, IMAGES, weights.expand(3, -1))
    assert_close(explain(model, IMAGES).flatten(1), expected, **EXACT)


@pytest.mark.parametrize("classes", [2, 16, 17, 300])
def test_any_number_of_logits_gives_the_shares_of_tokens_that_one_matrix_reads(classes):
    weights = torch.rand(16, dtype=torch.float64)

    def run(vit, images):
        return vit.head(torch.einsum("n,bnd->bd", weights, vit.forward_features(images)))

    model = Around(randomised(ours(num_classes=classes)()), run).eval()
    assert_close(examine(model, IMAGES).readout, weights / weights.sum(), **EXACT)


def test_a_head_that_is_no_linear_layer_has_the_shares_of_its_pooling():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.vit = ours(num_classes=0, class_token=False, pool="mean")()
            self.head = nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 7))

        def forward(self, images):
            return self.head(self.vit(images))

    anatomy = examine(randomised(Deep()), IMAGES)
    assert_close(anatomy.readout, torch.full((15,), 1 / 15, dtype=torch.float64), **EXACT)
    assert not anatomy.readout_varies


def test_without_a_norm_after_the_layers_the_tokens_of_the_last_layer_are_read():
    def run(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.head(0.7 * tokens[:, 0] + 0.3 * tokens[:, 5])

    model = Around(randomised(ours()()), run).eval()
    expected = torch.zeros(16).double()
    expected[0], expected[5] = 0.7, 0.3
    assert_close(examine(model, IMAGES).readout, expected, **EXACT)


def test_where_no_module_passes_all_tokens_on_the_rows_of_the_last_attention_are_read():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.head = nn.Conv2d(3, 12, 2, stride=2), nn.Linear(12, 7)

        def forward(self, images):
            x = self.patches(images).flatten(2).mT
            mixed = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
            return self.head(0.25 * mixed[:, 3] + 0.75 * mixed[:, 7])

    model = randomised(Bare())
    anatomy = examine(model, IMAGES)
    assert anatomy.reading.place is None
    # The rows have other values beside them, but both are read in the same way.
    assert anatomy.readout.nonzero()[:, 0].tolist() == [3, 7]
    assert_close(anatomy.readout[7], torch.tensor(0.75).double(), **EXACT)


def test_tokens_that_pass_by_the_last_module_are_no_place_to_read():
    def run(vit, images):
        tokens = vit.embed(images)
        for block in vit.blocks:
            tokens = block(tokens)
        return vit.head(vit.norm(tokens)[:, 0] + tokens[:, 4])

    model = Around(randomised(ours()()), run).eval()
    readout = examine(model, IMAGES).readout
    assert readout.nonzero()[:, 0].tolist() == [0, 4]


def test_the_slopes_of_a_model_in_float16_are_not_lost():
    torch.manual_seed(0)
    model = vit.VisionTransformer(32, 4, embed_dim=48, depth=2, num_heads=3, class_token=False, pool="mean").eval()
    with torch.no_grad():
        model.head.weight.mul_(0.01)  # slopes as of many patches
    images = torch.randn(2, 3, 32, 32)
    assert_close(examine(model.half(), images.half()).readout.float(), torch.full((64,), 1 / 64), rtol=0.01, atol=0)


@pytest.mark.parametrize(
    "squash",
    [
        torch.sigmoid,
        lambda logits: logits.clamp(0, 1),
        nn.functional.hardsigmoid,
        lambda logits: torch.cat([0 * logits, logits], dim=1).softmax(dim=1),
    ],
    ids=["sigmoid", "clamp", "hardsigmoid", "softmax"],
)
def test_a_saturated_output_is_not_taken_for_one_that_reads_the_first_token(squash):
    model = ours(pool="mean", class_token=False, num_classes=1)().eval()
    with torch.no_grad():
        model.head.bias.fill_(200)
    with pytest.raises(
        ValueError, match="the output of Around is saturated, as by a sigmoid, softmax, clamp or rounding"
    ):
        examine(Around(model, lambda vit, images: squash(vit(images))).eval(), torch.randn(2, 3, 6, 10))


def test_a_head_of_zeros_reads_the_first_token_as_said():
    model = ours(num_classes=3)().eval()
    nn.init.zeros_(model.head.weight)
    assert examine(model, torch.randn(2, 3, 6, 10)).readout.tolist() == [1.0] + [0.0] * 15


class FunctionalEnd(nn.Module):
    """A Vision Transformer whose final norm and mean are functions: no module holds its last tokens."""

    def __init__(self, arrange):
        super().__init__()
        self.body = randomised(ours(class_token=False, pool="mean")()).double().eval()
        self.arrange = arrange

    def forward(self, images):
        tokens = self.body.embed(images)
        for block in self.body.blocks[:-1]:
            tokens = block(tokens)
        last = self.body.blocks[-1]
        tokens = tokens + last.attn(last.norm1(tokens))
        width = tokens.shape[-1:]
        tokens = nn.functional.layer_norm(tokens, width)
        return (self.arrange(tokens) if self.arrange else tokens.mean(dim=1)) @ self.body.head.weight.mT


@pytest.mark.parametrize(
    "arrange",
    [
        None,
        lambda tokens: tokens.transpose(0, 1).contiguous().mean(dim=0),  # tokens before images
        lambda tokens: tokens.mT.unflatten(2, (3, 5)).contiguous().mean(dim=(2, 3)),  # rows and columns
    ],
)
def test_tokens_that_only_a_function_returns_are_read_by_their_jacobian(arrange):
    model = FunctionalEnd(arrange).eval()
    assert_close(examine(model, IMAGES).readout, torch.full((15,), 1 / 15, dtype=torch.float64), **EXACT)
    expected = rolled_and_read(model, IMAGES, torch.full((3, 15), 1 / 15, dtype=torch.float64))
    assert_close(explain(model, IMAGES).flatten(1), expected, **EXACT)


@pytest.mark.parametrize(("before", "after", "token"), [(True, True, 0), (False, True, -1), (False, False, 0)])
def test_a_token_that_is_read_in_another_order_is_that_of_the_attention(before, after, token):
    class Turned(FunctionalEnd):
        """The tokens may stand backwards in the last attention, and behind it."""

        def forward(self, images):
            tokens = self.body.embed(images)
            for block in self.body.blocks[:-1]:
                tokens = block(tokens)
            last = self.body.blocks[-1]
            turned = tokens.flip(1) if before else tokens
            tokens = turned + last.attn(last.norm1(turned))
            tokens = tokens.flip(1) if after else tokens
            return nn.functional.layer_norm(tokens, tokens.shape[-1:])[:, token] @ self.body.head.weight.mT

    model = Turned(None).eval()
    for block in model.body.blocks:
        block.mlp = nn.Identity()
    shares = examine(model, IMAGES).readout
    assert shares.tolist() == [1.0, *[0.0] * 14]


@pytest.mark.parametrize("count", [15, 16, 17])
def test_as_many_images_as_tokens_are_told_apart_if_tokens_come_first(count):
    """Tokens (N, B, D) that only functions hold, in a batch of N, or one image more or less."""

    def run(model, images):
        tokens = model.embed(images).transpose(0, 1)
        for layer in model.layers:
            tokens = tokens + layer.attend(layer.norm1(tokens.transpose(0, 1))).transpose(0, 1)
            tokens = tokens + layer.mlp(layer.norm2(tokens))
        return model.head((tokens * tokens.square().mean(dim=-1, keepdim=True).rsqrt())[0])

    images = torch.cat([IMAGES, *[IMAGES + 0.1 * number for number in range(1, 6)]])[:count]
    found = explain(invented(run=run), images, "rollout")
    assert_close(found, torch.cat([explain(invented(run=run), images[k : k + 1], "rollout") for k in range(count)]))


class Scaling(nn.Module):
    """A norm without a function of torch."""

    def forward(self, tokens):
        return tokens / tokens.std(dim=-1, keepdim=True)


def mean(tokens):
    return tokens.mean(dim=1)


def one_and_mean(tokens):
    return tokens[:, 3] + 0.5 * tokens[:, 1:].mean(dim=1)


@pytest.mark.parametrize("read", [mean, one_and_mean])
@pytest.mark.parametrize("make", [partial(nn.LayerNorm, WIDTH), partial(nn.RMSNorm, WIDTH), Scaling])
def test_a_norm_that_is_used_before_each_layer_too_is_read_where_it_is_used_last(make, read):
    def run(model, images):
        tokens = model.embed(images)
        for layer, norm in zip(model.layers, model.norms, strict=True):
            tokens = layer(norm(tokens))
        return model.read(tokens)

    def with_norms(norm, norms):
        model = invented(run=run, read=read)
        model.norm, model.norms = norm, nn.ModuleList(norms)
        return model.double()

    norm = make()
    shared = with_norms(norm, [norm] * 3)
    copied = with_norms(norm, [make() for _ in range(3)])
    assert_close(examine(shared, IMAGES).readout, examine(copied, IMAGES).readout, **EXACT)


@pytest.mark.parametrize("read", [mean, one_and_mean])
@pytest.mark.parametrize(
    ("function", "module"), [(F.layer_norm, nn.LayerNorm), (F.rms_norm, nn.RMSNorm), (torch.layer_norm, nn.LayerNorm)]
)
def test_a_norm_that_is_a_function_is_read_like_a_module(function, module, read):
    def run(model, images):
        tokens = model.through(model.embed(images))
        return model.head(read(function(tokens, (WIDTH,))))

    of_module = invented(read=read)
    of_module.norm = module(WIDTH).double()
    shares = examine(of_module, IMAGES).readout
    assert (shares[1:] > 0).all()
    assert_close(examine(invented(run=run), IMAGES).readout, shares, **EXACT)


UNEVEN = torch.arange(1.0, 16.0, dtype=torch.float64)


@pytest.mark.parametrize("weights", [torch.ones_like(UNEVEN) / 15, UNEVEN / UNEVEN.sum()], ids=["mean", "uneven"])
@pytest.mark.parametrize("layout", ["patches", "rows and columns", "channels first", "images second"])
def test_a_norm_of_the_patches_alone_is_read_like_one_of_all_tokens(layout, weights):
    """What it returns has fewer tokens, or is a map, and the other tokens are not read."""
    layouts = {
        "patches": lambda model, patches: model.norm(patches),
        "rows and columns": lambda model, patches: model.norm(patches.unflatten(1, (3, 5))).flatten(1, 2),
        "images second": lambda model, patches: model.norm(patches.transpose(0, 1)).transpose(0, 1),
        "channels first": lambda model, patches: model.kept(model.norm(patches).mT.unflatten(2, (3, 5))).flatten(2).mT,
    }

    def run(model, images):
        tokens = model.through(model.embed(images))
        return model.head(torch.einsum("n,bnd->bd", weights, layouts[layout](model, tokens[:, 1:])))

    of_all = invented(read=lambda tokens: torch.einsum("n,bnd->bd", weights, tokens[:, 1:]))
    of_patches = invented(run=run)
    of_patches.kept = nn.Identity()
    shares = examine(of_all, IMAGES).readout
    assert_close(shares[1:], weights, **EXACT)
    assert_close(examine(of_patches, IMAGES).readout, shares, **EXACT)
    for method in ("rollout", "relevance", "value"):
        assert_close(explain(of_patches, IMAGES, method), explain(of_all, IMAGES, method), **EXACT)


def test_a_class_token_and_a_mean_are_read_behind_a_norm_of_tokens_that_stand_before_images():
    def run(model, images):
        tokens = model.norm(model.through(model.embed(images)).transpose(0, 1))
        return model.head(one_and_mean(tokens.transpose(0, 1)))

    shares = examine(invented(read=one_and_mean), IMAGES).readout
    assert_close(examine(invented(run=run), IMAGES).readout, shares, **EXACT)


def functional(norm, tokens):
    return F.layer_norm(tokens, (WIDTH,), norm.weight, norm.bias)


def grouped(norm, tokens):
    return F.group_norm(tokens.flatten(0, 1), 1, norm.weight, norm.bias).reshape(tokens.shape)


def mixed_up(norm, tokens):
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    return norm(tokens[:, order])[:, order.argsort()]


NORMED = {
    "class token apart": lambda norm, t: torch.cat([functional(norm, t[:, :1]), norm(t[:, 1:])], dim=1),
    "class token (B, D) and a map": lambda norm, t: torch.cat(
        [norm(t[:, 0])[:, None], norm(t[:, 1:].unflatten(1, (3, 5))).flatten(1, 2)], dim=1
    ),
    "halves": lambda norm, t: torch.cat([norm(t[:, :7]), norm(t[:, 7:])], dim=1),
    "token by token": lambda norm, t: torch.stack([norm(token) for token in t.unbind(1)], dim=1),
    "all images in a row": lambda norm, t: norm(t.flatten(0, 1)).unflatten(0, t.shape[:2]),
    "all images in a row, tokens first": lambda norm, t: (
        norm(t.transpose(0, 1).flatten(0, 1)).unflatten(0, (16, len(t))).transpose(0, 1)
    ),
    "group norm of rows": grouped,
    "native": lambda norm, t: torch.native_layer_norm(t, [WIDTH], norm.weight, norm.bias, norm.eps)[0],
    "patches backwards": lambda norm, t: torch.cat([norm(t[:, :1]), norm(t[:, 1:].flip(1)).flip(1)], dim=1),
    "another order": mixed_up,
    "twice": lambda norm, t: torch.cat([norm(t[:, :1]), norm(norm(t[:, 1:]))], dim=1),
}


@pytest.mark.parametrize(
    ("way", "count"), [*((way, 3) for way in NORMED), ("token by token", 1), ("all images in a row, tokens first", 1)]
)
def test_tokens_that_are_normed_apart_are_read_behind_their_norms(way, count):
    def run(model, images):
        return model.head(one_and_mean(NORMED[way](model.norm, model.through(model.embed(images)))))

    images = IMAGES[:count]
    model, of_all = invented(run=run), invented(read=one_and_mean)
    if way == "twice":  # the norm of the patches would change them again
        nn.init.ones_(model.norm.weight), nn.init.zeros_(model.norm.bias)
        nn.init.ones_(of_all.norm.weight), nn.init.zeros_(of_all.norm.bias)
        model.norm.eps = of_all.norm.eps = 0
    expected = Subject(of_all, images).readout
    assert_close(model(images), of_all(images))
    assert_close(Subject(model, images).readout, expected, **EXACT)
    assert (expected[:, 3] > 3 * expected[:, 4]).all()


@pytest.mark.parametrize("passed_on", [False, True])
def test_a_module_and_the_function_that_it_calls_are_one_norm(passed_on):
    """Class token and patches have norms of two kinds, each of which is called once."""

    def run(model, images):
        tokens = model.through(model.embed(images))
        first = model.norm(tokens[:, 0])
        first = model.kept(first) if passed_on else first
        return model.head(0.5 * first + F.rms_norm(tokens[:, 1:], (WIDTH,)).mean(dim=1))

    model = invented(run=run)
    model.kept = nn.Identity()
    expected = torch.tensor([1 / 3, *[2 / 45] * 15], dtype=torch.float64)
    assert_close(examine(model, IMAGES).readout, expected, **EXACT)


def test_a_token_that_a_norm_gets_twice_is_read_at_both_places():
    """The slopes of a token add up, and not their squares."""

    def read(tokens):
        return tokens[:, 0] + tokens[:, 1:].mean(dim=1) + 0.5 * tokens[:, 0]

    def run(model, images):
        tokens = model.through(model.embed(images))
        one = model.norm(tokens[:, 0]) + model.norm(tokens[:, 1:]).mean(dim=1)
        return model.head(one + 0.5 * model.norm(tokens)[:, 0])

    shares = examine(invented(read=read), IMAGES).readout
    assert_close(shares[0], torch.tensor(0.6, dtype=torch.float64))
    assert_close(examine(invented(run=run), IMAGES).readout, shares, **EXACT)


def test_a_token_that_two_norms_make_different_is_read_before_them():
    def run(model, images):
        tokens = model.through(model.embed(images))
        return model.head(model.norm(tokens[:, 0]) + F.rms_norm(tokens, (WIDTH,)).mean(dim=1))

    anatomy = examine(invented(run=run), IMAGES)
    assert not anatomy.reading.norms


def test_registers_behind_the_patches_that_no_norm_gets_have_no_share():
    weights = torch.linspace(1, 2, 9, dtype=torch.float64)

    def run(model, images):
        tokens = model.through(model.embed(images))
        return model.head(torch.einsum("n,bnd->bd", weights, model.norm(tokens[:, 1:10])))

    shares = examine(invented(run=run), IMAGES).readout
    expected = torch.zeros(16, dtype=torch.float64)
    expected[1:10] = weights / weights.sum()
    assert_close(shares, expected, **EXACT)


@pytest.mark.parametrize("beside", ["a token without a norm", "a norm of a mean"])
def test_tokens_are_read_before_norms_that_do_not_get_all_of_them(beside):
    """A norm of one token alone, beside tokens of another length, would give shares in two units."""

    def run(model, images):
        tokens = model.through(model.embed(images))
        others = tokens[:, 1:].mean(dim=1)
        others = others if beside == "a token without a norm" else model.other(others)
        return model.head(model.norm(tokens[:, 0]) + others)

    model, last = invented(run=run), []
    model.other = nn.LayerNorm(WIDTH).double()
    with model.layers[-1].register_forward_hook(lambda _, __, output: last.append(output)):
        model(IMAGES)

    def logits_of(tokens):
        others = tokens[:, 1:].mean(dim=1)
        others = others if beside == "a token without a norm" else model.other(others)
        return model.head(model.norm(tokens[:, 0]) + others)

    jacobians = [torch.autograd.functional.jacobian(logits_of, tokens[None])[0, :, 0] for tokens in last[0]]
    norms = torch.stack([jacobian.square().sum(dim=(0, 2)).sqrt() for jacobian in jacobians])
    assert_close(Subject(model, IMAGES).readout, norms / norms.sum(dim=1, keepdim=True), **EXACT)


def test_norms_whose_number_follows_from_the_number_of_images_are_no_places():
    """A norm for each image in the stem, so that the final norm has another number in another batch."""

    def run(model, images):
        tokens = torch.stack([model.norm(tokens) for tokens in model.embed(images)])
        tokens = model.through(tokens)
        return model.head(one_and_mean(torch.cat([model.norm(tokens[:, :1]), model.norm(tokens[:, 1:])], dim=1)))

    model = invented(run=run)
    for count in (1, 2, 3):
        shares = Subject(model, IMAGES[:count]).readout
        assert_close(shares[:1], Subject(model, IMAGES[:1]).readout, **EXACT)
