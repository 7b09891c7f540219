"""Maps of what tokens add to tokens, against the sums written out."""

from contextlib import ExitStack
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.architectures import EXACT, IMAGES, made, of_timm, randomised
from tests.capture.test_invented_models import IMAGES as INVENTED
from tests.capture.test_invented_models import Layer, Parallel, invented, sequence_first, softmax
from tests.capture.wrapped_model import Around
from vit import VisionTransformer
from vit.capture import examine
from vit.capture.attention_output import capture_outputs
from vit.explain import explain
from vit.explain.maps.subject import Subject

# One of each way in which libraries call attention and its projection.
ADDING = [
    "ours, softmax",
    "ours, window",
    "timm",
    "timm, not fused",
    "timm, map",
    "torchvision",
    "transformers, ViT",
    "transformers, ViT, eager",
    "vit-pytorch, ViT",
    "torch",
]


def outputs_of_attention(captured):
    """What the captured weights, values and projections give, without biases: (B, N, C) of each layer."""
    for found in captured:
        mixed = (found.attn.to(found.values.dtype) @ found.values).transpose(1, 2).flatten(2)
        yield mixed @ found.projection.mT


@pytest.mark.parametrize("name", ADDING)
def test_weights_values_and_projection_give_what_attention_adds(name, model, images):
    anatomy = examine(model, images)
    captured = capture_outputs(model, images, anatomy.calls)
    assert len(captured) == anatomy.depth + anatomy.pooled
    outputs = {}

    def keep(module, _, output):
        projection = module.out_proj if isinstance(module, nn.MultiheadAttention) else module
        outputs[projection.weight.data_ptr()] = projection, output[0] if isinstance(output, tuple) else output

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.MultiheadAttention):
                stack.enter_context(module.register_forward_hook(keep))
        model(images)
    for found, added in zip(captured, outputs_of_attention(captured), strict=True):
        projection, output = outputs[found.projection.data_ptr()]
        bias = 0 if projection.bias is None else projection.bias
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if name.startswith("transformers") else EXACT
        assert_close(added + bias, output.view_as(added), **tolerance)


def written_out(block, tokens, attn):
    """The vectors that token m adds to token n, (B, N, M, D), by a sum over heads, for a block of timm or ours."""
    batch, num_tokens, dim = tokens.shape
    v = block.attn.qkv(block.norm1(tokens))[..., 2 * dim :].view(batch, num_tokens, 3, dim // 3)
    weights = block.attn.proj.weight.view(dim, 3, dim // 3)
    if not isinstance(block.ls1, nn.Identity):
        weights = weights * block.ls1.gamma[:, None, None]
    vectors = torch.zeros(batch, num_tokens, num_tokens, dim, dtype=tokens.dtype)
    for head in range(3):
        vectors += attn[:, head, :, :, None] * (v[:, None, :, head] @ weights[:, head].mT)
    return vectors


def layers_of(model, images):
    """The tokens that enter each block, and what is added by token to token."""
    seen = []
    handles = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in model.blocks]
    model(images)
    for handle in handles:
        handle.remove()
    for block, tokens in zip(model.blocks, seen, strict=True):
        qkv = block.attn.qkv(block.norm1(tokens)).view(*tokens.shape[:2], 3, 3, -1).permute(2, 0, 3, 1, 4)
        attn = (qkv[0] @ qkv[1].mT / qkv.shape[-1] ** 0.5).softmax(dim=-1)
        yield tokens, written_out(block, tokens, attn)


@pytest.fixture(params=[None, 1e-1], ids=["plain", "LayerScale"])
def timm_model(request):
    """A model of timm, with LayerScale or without."""
    return randomised(of_timm(init_values=request.param)())


@torch.no_grad()
def test_value_is_the_length_of_the_sum_over_heads(timm_model):
    layers = list(layers_of(timm_model, IMAGES))
    for layer in (0, 1, -1):
        expected = layers[layer][1][:, 0, 1:].norm(dim=-1).view(3, 3, 5)
        assert_close(explain(timm_model, IMAGES, "value", layer=layer), expected, **EXACT)


@torch.no_grad()
def test_value_rollout_multiplies_shares_that_count_the_skip_connection_by_its_length(timm_model):
    rolled = torch.eye(16, dtype=torch.float64).expand(3, -1, -1)
    for tokens, vectors in layers_of(timm_model, IMAGES):
        vectors = vectors.clone()
        for n in range(16):
            vectors[:, n, n] += tokens[:, n]
        norms = vectors.norm(dim=-1)
        rolled = norms / norms.sum(dim=-1, keepdim=True) @ rolled
    assert_close(explain(timm_model, IMAGES, "value_rollout"), rolled[:, 0, 1:].view(3, 3, 5), **EXACT)


@torch.no_grad()
def test_value_rollout_may_start_at_a_later_layer(timm_model):
    tokens, vectors = list(layers_of(timm_model, IMAGES))[-1]
    norms = vectors.norm(dim=-1)
    own = (vectors[:, 0, 0] + tokens[:, 0]).norm(dim=-1)
    row = torch.cat([own[:, None], norms[:, 0, 1:]], dim=1)
    expected = (row / row.sum(dim=1, keepdim=True))[:, 1:].view(3, 3, 5)
    assert_close(explain(timm_model, IMAGES, "value_rollout", start_layer=2), expected, **EXACT)


def test_a_patch_without_value_adds_nothing_whatever_its_attention():
    model = made("timm")
    (found,) = capture_outputs(model, IMAGES, [2])
    assert found.attn[..., 5].min() > 0
    plain = explain(model, IMAGES, "value")

    def without_value(module, args, output):
        output = output.clone()
        output[:, 5, 24:] = 0
        return output

    handle = model.blocks[-1].attn.qkv.register_forward_hook(without_value)
    silent = explain(model, IMAGES, "value")
    handle.remove()
    assert (silent.flatten(1)[:, 4] == 0).all()
    assert (plain.flatten(1)[:, 4] > 0).all()


@pytest.mark.parametrize("attention", ["gated", "differential"])
def test_values_behind_a_gate_or_a_norm_are_refused(attention, random_vit):
    with pytest.raises(ValueError, match="does not enter a linear layer unchanged, so what each token adds"):
        explain(random_vit(attention=attention), IMAGES, "value")


def test_tokens_that_are_averaged_before_the_projection_are_refused():
    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.head = nn.Conv2d(3, 12, 2, stride=2), nn.Linear(12, 7)

        def forward(self, images):
            x = self.patches(images).flatten(2).mT.unflatten(-1, (3, 4)).transpose(1, 2)
            mixed = nn.functional.scaled_dot_product_attention(x, x, x)
            return self.head(mixed.mean(dim=2).flatten(1))

    with pytest.raises(ValueError, match="of Averaged mixes does not enter a linear layer unchanged"):
        explain(randomised(Averaged()), IMAGES, "value")


def test_shared_layers_and_tokens_first_have_the_values_of_layers_of_their_own():
    def run(model, images):
        tokens = model.embed(images)
        for _ in range(2):
            tokens = model.layers[0](tokens)
        return model.read(tokens)

    shared = invented(Layer(), run=run)
    apart = invented(Layer(), Layer())
    apart.load_state_dict(shared.state_dict(), strict=False)
    apart.layers[1].load_state_dict(shared.layers[0].state_dict())
    assert_close(explain(shared, INVENTED, "value"), explain(apart, INVENTED, "value"), **EXACT)


def by_keywords(mixed, weight, bias):
    return nn.functional.linear(input=mixed, weight=weight, bias=bias)


def by_product(mixed, weight, bias):
    return mixed @ weight.T + bias


def by_addmm(mixed, weight, bias):
    """As in the Conv1D of GPT-2."""
    return torch.addmm(bias, mixed.flatten(0, 1), weight.T).view_as(mixed)


@pytest.mark.parametrize("project", [by_keywords, by_product, by_addmm])
def test_a_projection_is_read_however_it_is_written(project):
    class Written(Layer):
        def attend(self, tokens):
            return project(self.join(self.mix(self, *self.split(tokens))), self.proj.weight, self.proj.bias)

    written, plain = invented(Written(), Written()), invented(Layer(), Layer())
    for method in ("value", "value_rollout", "relevance"):
        assert_close(explain(written, INVENTED, method), explain(plain, INVENTED, method), **EXACT)


def test_tokens_of_all_images_in_one_axis_have_the_values_of_tokens_in_two():
    class InOneAxis(Layer):
        def forward(self, tokens):
            mixed = self.join(self.mix(self, *self.split(self.norm1(tokens))))
            summed = tokens.flatten(0, 1) + self.proj(mixed.flatten(0, 1))
            return (summed + self.mlp(self.norm2(summed))).view_as(tokens)

    for method in ("value", "value_rollout"):
        found, expected = (explain(invented(of(), of()), INVENTED, method) for of in (InOneAxis, Layer))
        assert_close(found, expected, **EXACT)


def test_shared_layers_with_an_adapter_beside_the_projection_are_refused():
    class Adapted(Layer):
        def attend(self, tokens):
            mixed = self.join(self.mix(self, *self.split(tokens)))
            return self.proj(mixed) + mixed @ self.own_adapter

        def __init__(self):
            super().__init__()
            self.own_adapter = nn.Parameter(torch.randn(12, 12))

    def run(model, images):
        tokens = model.embed(images)
        for _ in range(2):
            tokens = model.layers[0](tokens)
        return model.read(tokens)

    for layers in ([Adapted()], [Adapted(), Adapted()]):
        with pytest.raises(ValueError, match="does not add the output of its attention alone and directly"):
            explain(invented(*layers, run=run if len(layers) == 1 else None), INVENTED, "value")


def test_layers_and_shared_modules_are_checked(random_vit):
    with pytest.raises(ValueError, match=r"layer \(3\) must be one of 3 layers, from -3 to 2"):
        explain(random_vit(), IMAGES, "value", layer=3)
    with pytest.raises(ValueError, match=r"start_layer \(3\) must be one of the 3 layers"):
        explain(random_vit(), IMAGES, "value_rollout", start_layer=3)


def test_attention_pooling_multiplies_its_own_shares_last():
    subject = Subject(made("timm, map"), IMAGES)
    captured = capture_outputs(subject.model, IMAGES, subject.anatomy.calls)
    pool = captured[-1]
    vectors = sum(
        pool.attn[:, head, 0, :, None] * (pool.values[:, head] @ pool.projection[:, 4 * head : 4 * head + 4].mT)
        for head in range(3)
    )
    row = vectors.norm(dim=-1)
    row = row / row.sum(dim=-1, keepdim=True)
    (*_, (tokens, vectors)) = layers_of(subject.model, IMAGES)
    vectors = vectors.clone()
    for n in range(15):  # the model has no class token
        vectors[:, n, n] += tokens[:, n]
    norms = vectors.norm(dim=-1)
    shares = norms / norms.sum(dim=-1, keepdim=True)
    expected = (row[:, None] @ shares).view(3, 3, 5)
    assert_close(explain(subject.model, IMAGES, "value_rollout", start_layer=2), expected, **EXACT)


WAYS = {
    "factor before": lambda added: 0.1 * added,
    "quotient": lambda added: added / 10,
    "factor of its own": lambda added: added.float().double().mul(torch.tensor([0.1]).double()),
    "each channel": lambda added: torch.full((12,), 0.1, dtype=added.dtype) * added,
}


class Scaled(Layer):
    """What the attention adds is a tenth of its projection."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, tokens):
        tokens = tokens + WAYS[self.way](self.attend(self.norm1(tokens)))
        return tokens + self.mlp(self.norm2(tokens))


class InPlace(Scaled):
    """The sum is computed in place."""

    def forward(self, tokens):
        tokens = tokens.clone()
        tokens.add_(self.attend(self.norm1(tokens)), alpha=0.1)
        return tokens + self.mlp(self.norm2(tokens))


class Gated(Layer):
    """A gate for each token, a norm, or another step after the projection, also in place."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, tokens):
        added = self.attend(self.norm1(tokens))
        gate = tokens.mean(dim=-1, keepdim=True).sigmoid()
        steps = {
            "gate": lambda: added * gate,
            "norm": lambda: self.norm2(added),
            "gate in place": lambda: added.mul_(gate),
            "relu in place": lambda: torch.relu_(added),
            "view in place": lambda: added.view(-1).sigmoid_().view(added.shape),
            "part in place": lambda: added.__setitem__((slice(None), 0), 0.3 * added[:, 0]) or added,
            "reversed quotient": lambda: 2 / (2 + added.abs()),
            "reversed difference": lambda: 2 - added,
        }
        return tokens + steps[self.way]() + self.mlp(self.norm2(tokens))


def rolled_by_hand(model, factor):
    tokens, rolled = model.embed(INVENTED), torch.eye(16, dtype=torch.float64)
    for layer in model.layers:
        q, k, v = layer.split(layer.norm1(tokens))
        projection = layer.proj.weight.unflatten(1, (3, -1))
        added = factor * torch.einsum("bhnm,bhmd,chd->bnmc", softmax(q, k), v, projection)
        norms = (added + torch.einsum("nm,bnc->bnmc", torch.eye(16).double(), tokens)).norm(dim=-1)
        rolled = norms / norms.sum(dim=-1, keepdim=True) @ rolled
        tokens = layer(tokens)
    return added.norm(dim=-1)[:, 0, 1:].view(-1, 3, 5), rolled[:, 0, 1:].view(-1, 3, 5)


@pytest.mark.parametrize("way", [*WAYS, "in place"])
def test_factors_after_the_projection_are_part_of_what_is_added(way):
    model = invented(*(InPlace(way) if way == "in place" else Scaled(way) for _ in range(3)))
    of_layer, rolled = rolled_by_hand(model, 0.1)
    assert_close(explain(model, INVENTED, "value"), of_layer, rtol=1e-7, atol=0)
    assert_close(explain(model, INVENTED, "value_rollout"), rolled, rtol=1e-7, atol=0)


@pytest.mark.parametrize(
    "way",
    [
        *("gate", "norm", "gate in place", "relu in place", "view in place", "part in place", "reversed quotient"),
        "reversed difference",
    ],
)
@pytest.mark.parametrize("method", ["value", "value_rollout"])
def test_what_changes_the_projection_by_token_before_the_sum_is_refused(way, method):
    with pytest.raises(ValueError, match="layer 1 of Invented does not add the output of its attention alone"):
        explain(invented(Layer(), Gated(way)), INVENTED, method)


def test_another_layer_refuses_the_value_of_none(random_vit):
    model = invented(Layer(), Gated("gate"))
    plain = invented(Layer(), Layer())
    plain.load_state_dict(model.state_dict(), strict=False)
    assert_close(explain(model, INVENTED, "value", layer=0), explain(plain, INVENTED, "value", layer=0), **EXACT)
    with pytest.raises(ValueError, match="layer 1 of Invented does not add"):
        explain(model, INVENTED, "value", layer=1)


class After(Layer):
    """Something changes the tokens after the first sum, or beside the projection of a layer without skip connection."""

    def __init__(self, way):
        super().__init__()
        self.way, self.adapter = way, nn.Linear(12, 12)

    def forward(self, tokens):
        mixed = self.join(self.mix(self, *self.split(self.norm1(tokens))))
        added = self.proj(mixed)
        steps = {
            "mean of both": lambda: 0.7 * tokens + 0.3 * (tokens + added),
            "lerp": lambda: torch.lerp(tokens, tokens + added, self.bias[0, 0, :12].sigmoid()),
            "second sum": lambda: tokens + added + added,
            "gate of all channels": lambda: (tokens + added) * tokens.sigmoid(),
            "adapter without skip": lambda: added + self.adapter(mixed),
        }
        tokens = steps[self.way]()
        return tokens + self.mlp(self.norm2(tokens))


@pytest.mark.parametrize("way", ["mean of both", "lerp", "second sum", "gate of all channels", "adapter without skip"])
def test_what_changes_the_tokens_after_the_first_sum_is_refused(way):
    model = invented(Layer(), After(way))
    with pytest.raises(ValueError, match="layer 1 of Invented does not add the output of its attention alone"):
        explain(model, INVENTED, "value")


@pytest.mark.parametrize("openness", [1 - 1e-3, 1 - 1e-4])
def test_a_gate_that_is_nearly_open_is_one(openness):
    def gated(layer, q, k, v):
        return openness * (softmax(q, k) @ v)

    with pytest.raises(ValueError, match="does not enter a linear layer unchanged"):
        explain(invented(Layer(), Layer(gated)), INVENTED, "value")


def test_a_gate_for_each_token_is_none_for_each_channel_of_as_many():
    model = randomised(of_timm(embed_dim=16, num_heads=2)())
    gates = torch.linspace(0.5, 2, 16, dtype=torch.float64)
    model.blocks[1].attn.register_forward_hook(lambda _, __, output: output * gates)
    explain(model, IMAGES, "value", layer=1)
    model.blocks[1].attn.register_forward_hook(lambda _, __, output: (output.mT * gates).mT)
    with pytest.raises(ValueError, match="layer 1 of VisionTransformer does not add the output of its attention alone"):
        explain(model, IMAGES, "value", layer=1)


@pytest.mark.parametrize("kwargs", [{}, {"init_values": 0.1}], ids=str)
def test_a_sum_with_an_mlp_side_by_side_is_refused_where_it_comes_first_alone(kwargs):
    from timm.models.vision_transformer import ParallelScalingBlock

    model = randomised(of_timm(block_fn=ParallelScalingBlock, **kwargs)())
    with pytest.raises(
        ValueError, match=r"layer 2 .* alone and directly to the tokens .* such as that with an adapter or an MLP"
    ):
        explain(model, IMAGES, "value")
    explain(invented(Parallel(), Parallel()), INVENTED, "value")  # x + attention + MLP is added from the left


@pytest.mark.parametrize("factor", [1, 1.8], ids=["plain", "DeepNorm"])
def test_sums_in_the_method_of_the_model_are_read(factor):
    def run(model, images):
        tokens = model.embed(images)
        for layer in model.layers:
            tokens = factor * tokens + layer.attend(layer.norm1(tokens))
            tokens = tokens + layer.mlp(layer.norm2(tokens))
        return model.read(tokens)

    model, seen = invented(Layer(), Layer(), run=run), []
    with model.layers[1].qkv.register_forward_hook(lambda _, __, output: seen.append(output)):
        model(INVENTED)
    q, k, v = seen[0].unflatten(-1, (3, 3, -1)).permute(2, 0, 3, 1, 4)
    added = torch.einsum("bhnm,bhmd,chd->bnmc", softmax(q, k), v, model.layers[1].proj.weight.unflatten(1, (3, -1)))
    assert_close(explain(model, INVENTED, "value"), added[:, 0, 1:].norm(dim=-1).view(-1, 3, 5).detach(), **EXACT)


@pytest.mark.parametrize("number", [0, 1, 2], ids="layer {}".format)
@pytest.mark.parametrize("is_bright", [[1, 1, 1], [0, 0, 1]], ids=["all", "the last"])
def test_a_gate_behind_a_sum_in_the_method_of_the_model_is_found(is_bright, number):
    def run(model, images):
        gate = torch.where(images.mean(dim=(1, 2, 3)) > 1, 0.25, 1.0)[:, None, None]
        tokens = model.embed(images)
        for index, layer in enumerate(model.layers):
            tokens = (gate if index == number else 1) * (tokens + layer.attend(layer.norm1(tokens)))
            tokens = tokens + layer.mlp(layer.norm2(tokens))
        return model.read(tokens)

    model = invented(Layer(), Layer(), Layer(), run=run)
    explain(model, INVENTED, "value", layer=number)
    images = INVENTED[[0, 1, 0]] + 3 * torch.tensor(is_bright)[:, None, None, None]
    with pytest.raises(ValueError, match=f"layer {number} of Invented does not add the output of its attention"):
        explain(model, images, "value", layer=number)


@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize("read", ["class token", "mean of patches"])
def test_a_factor_after_the_last_sum_is_found_by_the_token_that_is_read(factor, read):
    class Bare(Layer):
        def forward(self, tokens):
            tokens = tokens + self.attend(self.norm1(tokens))
            return tokens * self.own.new_tensor(range(1, 13)) if factor else tokens

    def run(model, images):
        tokens = model.layers[1](model.layers[0](model.embed(images)))
        return model.head(model.norm(tokens[:, 0] if read == "class token" else tokens[:, 1:].mean(dim=1)))

    model = invented(Layer(), Bare(), run=run)
    if not factor:
        assert explain(model, INVENTED, "value").shape == (len(INVENTED), 3, 5)
        return
    with pytest.raises(ValueError, match="layer 1 of Invented does not add the output of its attention alone"):
        explain(model, INVENTED, "value")


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_layer_that_one_image_skips_adds_nothing_and_has_no_map(skipped, random_vit):
    def run(model, images):
        tokens, is_bright = model.embed(images), images.mean(dim=(1, 2, 3)) > 1
        for number, block in enumerate(model.blocks):
            changed = block(tokens)
            tokens = torch.where(is_bright[:, None, None] & (number == skipped), tokens, changed)
        return model.forward_head(model.norm(tokens))

    vit = random_vit(depth=3)
    model, images = Around(vit, run).eval(), torch.cat([IMAGES, IMAGES[:1] + 3])
    assert_close(explain(model, IMAGES, "value", layer=skipped), explain(vit, IMAGES, "value", layer=skipped), **EXACT)
    with pytest.raises(ValueError, match=f"do not take what the attention of layer {skipped} gives them .image 3"):
        explain(model, images, "value", layer=skipped)


class GatedIfBright(Layer):
    """Multiplies tokens of bright images somewhere."""

    def __init__(self, where):
        super().__init__()
        self.where, self.is_bright = where, None

    def forward(self, entered):
        gates = {self.where: torch.where(self.is_bright, 0.25, 1.0)[:, None, None]}
        tokens = entered + self.attend(self.norm1(entered))
        tokens = tokens * gates.get("behind the sum", 1.0)
        tokens = tokens + self.mlp(self.norm2(tokens))
        tokens = tokens * gates.get("behind the layer", 1.0)
        return entered + gates.get("around the layer", 1.0) * (tokens - entered)


@pytest.mark.parametrize("number", [0, 1, 2], ids="layer {}".format)
@pytest.mark.parametrize("where", ["behind the sum", "behind the layer", "around the layer"])
@pytest.mark.parametrize("method", ["value", "value_rollout"])
def test_a_gate_that_works_for_a_later_image_alone_is_found(method, where, number):
    def run(model, images):
        tokens = model.embed(images)
        for layer in model.layers:
            layer.is_bright = images.mean(dim=(1, 2, 3)) > 1
            tokens = layer(tokens)
        return model.read(tokens)

    layers = [GatedIfBright(where if index == number else "nowhere") for index in range(3)]
    model, options = invented(*layers, run=run), {"layer": number} if method == "value" else {}
    explain(model, INVENTED, method, **options)
    bright = INVENTED[:1] + 3
    several = torch.cat([INVENTED, bright, torch.randn(13, *bright.shape[1:]).to(bright)])  # as many as tokens
    for images in (torch.cat([INVENTED, bright]), torch.cat([INVENTED, bright, INVENTED]), several):
        with pytest.raises(ValueError, match=f"layer {number} of Invented does not add the output of its attention"):
            explain(model, images, method, **options)


def test_as_many_images_as_tokens_are_tested():
    """The two images differ by rounding alone, so that the copy of the first may differ most."""
    images = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for seed in (5, 10, 13, 18):  # at which it does
        torch.manual_seed(seed)
        model = VisionTransformer(image_size=4, patch_size=4, embed_dim=24, depth=3, num_heads=3, num_classes=5)
        model = model.double().eval()
        assert explain(model, images, "value").shape == (2, 1, 1)


def test_as_many_copies_as_tokens_are_told_apart_if_tokens_come_first():
    class TokensFirst(Layer):
        def forward(self, tokens):
            tokens = tokens + self.attend(self.norm1(tokens).transpose(0, 1)).transpose(0, 1)
            return tokens + self.mlp(self.norm2(tokens))

    first = invented(*(TokensFirst() for _ in range(15)), run=sequence_first)
    plain = invented(*(Layer() for _ in range(15)))
    assert_close(explain(first, INVENTED[:1], "value"), explain(plain, INVENTED[:1], "value"), **EXACT)


@pytest.mark.filterwarnings("ignore")  # torchao warns of names that it will remove
@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_quantised_projections_are_what_they_do(config):
    torchao = pytest.importorskip("torchao.quantization")
    model = invented(Layer(), Layer()).float()
    quantised = deepcopy(model)
    torchao.quantize_(quantised, getattr(torchao, config)())
    found, expected = (explain(each.eval(), INVENTED.float(), "value") for each in (quantised, model))
    assert_close(found, expected, rtol=0.1, atol=0.1 * float(expected.max()))
    assert not torch.equal(found, expected)
