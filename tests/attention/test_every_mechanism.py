"""Properties of every mechanism of the table, alone and in a model."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import vit
from vit.attention import MECHANISMS, MultiHeadAttention
from vit.attention.mechanisms import build
from vit.attention.mechanisms.mechanism import options_of
from vit.model.positions import rotary_angles

EVERY = pytest.mark.parametrize("name", [*MECHANISMS, "routed by token"])  # the first word is that of the table
EXACT = {"rtol": 1e-9, "atol": 1e-9}
# Small enough that the output differs from softmax on a grid of 3 x 5 patches.
OPTIONS = {
    "chunked": {"chunk": 7},
    "window": {"window": 2},
    "neighborhood": {"kernel": 3},
    "sparse": {"block": 3, "stride": 4},
    "topk": {"k": 3},
    "performer": {"num_features": 9},
    "lowrank": {"landmarks": 3, "iterations": 3},
    "linformer": {"landmarks": 3},
    "routed by token": {"by": "token"},
}


def attention(name, grid, heads=2, head_dim=6, **kwargs):
    return MultiHeadAttention(
        heads * head_dim,
        heads,
        mechanism=name.split()[0],
        mechanism_kwargs=OPTIONS.get(name),
        block_index=1,
        grid_size=grid,
        **kwargs,
    )


def small_model(name, **kwargs):
    arguments = {"image_size": (12, 20), "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2} | kwargs
    return vit.VisionTransformer(attention=name.split()[0], attention_kwargs=OPTIONS.get(name), **arguments)


@EVERY
@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([1, 2, 3, 5, 7, 11]),
    columns=st.sampled_from([1, 2, 3, 5, 7, 13]),
    prefix=st.integers(0, 2),
    heads=st.integers(1, 3),
    head_dim=st.sampled_from([2, 4, 6, 10]),
    batch=st.integers(0, 2),
)
def test_it_takes_grids_of_any_size_any_heads_and_any_batch(name, rows, columns, prefix, heads, head_dim, batch):
    module = attention(name, (rows, columns), heads, head_dim).double()
    tokens = torch.randn(batch, prefix + rows * columns, heads * head_dim, dtype=torch.float64, requires_grad=True)
    output = module(tokens, grid=(rows, columns))
    assert output.shape == tokens.shape
    (gradient,) = torch.autograd.grad(output.sum(), tokens)
    assert output.isfinite().all()
    assert gradient.isfinite().all()


@EVERY
def test_an_image_of_a_batch_does_not_depend_on_the_others(name):
    module = attention(name, (3, 5)).double()
    tokens = torch.randn(3, 16, 12, dtype=torch.float64)
    together = module(tokens, grid=(3, 5))
    assert_close(together, torch.cat([module(x[None], grid=(3, 5)) for x in tokens]), **EXACT)


@pytest.mark.parametrize("name", [name for name, kind in MECHANISMS.items() if kind.independent_queries])
def test_a_query_by_itself_has_the_same_output_if_the_mechanism_says_so(name):
    module = attention(name, (3, 5)).double()
    tokens = torch.randn(2, 16, 12, dtype=torch.float64)
    assert_close(module(tokens[:, :1], context=tokens), module(tokens, grid=(3, 5))[:, :1], **EXACT)


@EVERY
def test_its_gradients_are_those_of_finite_differences(name):
    torch.manual_seed(0)
    module = attention(name, (2, 3), heads=2, head_dim=2).double()
    tokens = torch.randn(1, 7, 4, dtype=torch.float64, requires_grad=True)
    parameters = [p for p in module.mechanism.parameters() if p.requires_grad]
    assert torch.autograd.gradcheck(lambda x, *_: module(x, grid=(2, 3)), (tokens, *parameters))


@EVERY
def test_its_gradients_of_gradients_are_those_of_finite_differences_or_refused(name):
    torch.manual_seed(0)
    module = attention(name, (3, 3), heads=2, head_dim=2).double()
    tokens = torch.randn(1, 10, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(tokens, grid=(3, 3)).square().sum(), tokens, create_graph=True)
    try:
        torch.autograd.grad(gradient.square().sum(), tokens)
    except RuntimeError as error:
        if "is not implemented" not in str(error):  # as torch says of its fused kernels
            raise
        return
    assert torch.autograd.gradgradcheck(lambda x: module(x, grid=(3, 3)), tokens)


@EVERY
def test_its_weights_times_the_values_are_its_output_or_it_refuses_to_show_them(name):
    module = attention(name, (3, 5)).double()
    tokens = torch.randn(2, 16, 12, dtype=torch.float64)
    if name in ("linear", "performer", "lowrank", "linformer"):
        with pytest.raises(ValueError, match="never forms the matrix of attention weights"):
            module.weights(tokens, grid=(3, 5))
        return
    weights = module.weights(tokens, grid=(3, 5))
    assert weights.shape == (2, 2, 16, 16)
    mixed = weights @ module.heads(tokens)[2]
    if name == "differential":
        mixed = module.mechanism.norm(mixed) * (1 - module.mechanism.lambda_init)
    if name == "gated":
        mixed = mixed * module.mechanism.gate(tokens).sigmoid().unflatten(-1, (2, 6)).transpose(1, 2)
    assert_close(module(tokens, grid=(3, 5)), module.proj(mixed.transpose(1, 2).flatten(2)), **EXACT)


@EVERY
def test_masks_and_causality_are_supported_or_refused(name):
    tokens, mask = torch.randn(2, 16, 12), torch.ones(16, 16, dtype=torch.bool).tril(-3)
    takes = MECHANISMS[name.split()[0]].takes
    if "mask" in takes:
        module = attention(name, (3, 5))
        changed = tokens.clone()
        changed[:, 10:] += 1.0
        assert_close(module(tokens, mask=mask)[:, :10], module(changed, mask=mask)[:, :10])
        assert module(tokens, mask=mask).isfinite().all()
    else:
        with pytest.raises(ValueError, match="takes no mask: leave it out, or choose one of softmax"):
            attention(name, (3, 5))(tokens, mask=mask)
    if "causal" in takes:
        module = attention(name, (3, 5), causal=True)
        assert_close(module(tokens)[:, :10], module(tokens[:, :10]))
    else:
        with pytest.raises(ValueError, match="cannot be causal: choose one of softmax"):
            attention(name, (3, 5), causal=True)


@EVERY
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", [-1e9, torch.finfo(torch.float32).min])
def test_a_number_added_to_all_logits_of_a_query_changes_neither_output_nor_gradients(name, causal, value):
    if not {"mask", "causal"} <= MECHANISMS[name.split()[0]].takes:
        return
    module, tokens = attention(name, (3, 5), causal=causal), torch.randn(2, 16, 12, requires_grad=True)
    masks = torch.zeros(2, 16, 16)
    masks[1, 5, : 6 if causal else 16] = value  # for all keys that query 5 sees
    outputs = [module(tokens, mask=mask) for mask in masks]
    assert_close(*outputs)
    assert_close(*(torch.autograd.grad(output.square().sum(), [tokens, *module.parameters()]) for output in outputs))
    assert_close(*(module.weights(tokens, mask=mask) for mask in masks))


@EVERY
@pytest.mark.parametrize("causal", [False, True])
def test_weights_have_a_row_for_each_query_or_are_refused(name, causal):
    if causal and "causal" not in MECHANISMS[name.split()[0]].takes:
        return
    module, tokens = attention(name, (3, 5), causal=causal), torch.randn(2, 5, 12)
    for keys in (3, 7):
        try:
            weights = module.weights(tokens, torch.randn(2, keys, 12))
        except ValueError:
            continue
        assert weights.shape == (2, 2, 5, keys)


@EVERY
def test_without_keys_the_output_is_that_of_zeros_or_it_is_refused(name):
    module, tokens = attention(name, (3, 5)), torch.randn(2, 5, 12)
    try:
        output = module(tokens, torch.randn(2, 0, 12))
    except ValueError:
        return
    assert_close(output, module.proj(torch.zeros(2, 5, 12)))


@EVERY
@pytest.mark.parametrize("causal", [False, True])
def test_rotary_positions_are_relative_or_refused(name, causal):
    if causal and "causal" not in MECHANISMS[name.split()[0]].takes:
        return
    module = attention(name, (3, 5), head_dim=4, causal=causal).double()
    for parameter in module.mechanism.parameters():  # some weights start so that queries and keys are unchanged
        parameter.data += 0.3 * torch.randn_like(parameter)
    tokens, places = torch.randn(2, 16, 8, dtype=torch.float64), torch.arange(16.0).double()
    grid = None if causal else (3, 5)
    if name in ("linear", "additive", "general", "recurrent", "uniform", "positional", "convolution"):
        with pytest.raises(ValueError, match=r"rotary positions would not be distances: choose other"):
            module(tokens, grid=grid, angles=rotary_angles(places, 4))
        return
    here, there = (module(tokens, grid=grid, angles=rotary_angles(places + shift, 4)) for shift in (0, 7))
    further = module(tokens, grid=grid, angles=rotary_angles(2 * places, 4))
    assert (further - here).abs().max() > 1e-6, "the angles change nothing"
    if name == "performer":  # random features approximate the products, and come near them with their number
        return
    assert_close(here, there, **EXACT)


@EVERY
def test_under_autocast_it_is_near_float32(name):
    torch.manual_seed(0)
    module = attention(name, (3, 5))
    tokens = torch.randn(2, 16, 12, requires_grad=True)
    expected = module(tokens, grid=(3, 5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(tokens, grid=(3, 5))
        gradient = torch.autograd.grad(output.float().sum(), tokens)[0]
    assert gradient.isfinite().all()
    if name == "topk":  # rounding may change which keys are kept
        return
    assert_close(output.float(), expected, rtol=0.05, atol=0.05)


@EVERY
# The fused CPU kernel has no batching rule in torch 2.15, which therefore calls it image by image, and warns.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_under_vmap_it_has_the_same_losses_and_gradients_per_image(name):
    module = attention(name, (2, 3)).double()
    batch = torch.randn(3, 7, 12, dtype=torch.float64)

    def loss(tokens):
        return module(tokens[None], grid=(2, 3)).square().sum()

    gradients, losses = torch.func.vmap(torch.func.grad_and_value(loss))(batch)
    for tokens, *per_image in zip(batch, gradients, losses, strict=True):
        assert_close(per_image, list(torch.func.grad_and_value(loss)(tokens)), **EXACT)


@EVERY
def test_compiled_it_is_one_graph_and_gives_the_same_output_and_gradients(name):
    torch.manual_seed(0)
    torch.compiler.reset()
    module = attention(name, (3, 5))
    tokens = torch.randn(2, 16, 12, requires_grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")  # the same graph, without 10 s of C++
    outputs = [function(tokens, grid=(3, 5)) for function in (compiled, module)]
    inputs = [tokens, *module.parameters()]
    gradients = [torch.autograd.grad(output.square().sum(), inputs) for output in outputs]
    assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)


@EVERY
def test_exported_it_takes_batches_of_any_size(name):
    module = attention(name, (3, 5)).eval()
    shapes = {"x": {0: torch.export.Dim("batch")}, "grid": (None, None)}
    inputs = ((torch.randn(2, 16, 12),), {"grid": (3, 5)})
    exported = torch.export.export(module, *inputs, dynamic_shapes=shapes).module()
    for batch in (1, 5):
        tokens = torch.randn(batch, 16, 12)
        assert_close(exported(tokens, grid=(3, 5)), module(tokens, grid=(3, 5)), rtol=1e-4, atol=1e-5)


@EVERY
@pytest.mark.parametrize("kwargs", [{"num_registers": 3}, {"class_token": False, "pool": "mean"}])
def test_models_take_images_of_another_size_and_every_parameter_gets_a_gradient(name, kwargs):
    model = small_model(name, **kwargs)
    assert model(torch.randn(2, 3, 20, 28)).shape == (2, 10)
    model(torch.randn(2, 3, 12, 20)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@EVERY
def test_the_last_intermediate_features_of_a_model_are_its_features(name):
    model, images = small_model(name).eval(), torch.randn(2, 3, 20, 28)
    final, features = model.forward_intermediates(images, output_fmt="NLC", return_prefix_tokens=True)
    assert_close(final, model.forward_features(images), rtol=0, atol=0)
    patches, prefix = features[-1]
    assert_close(model.norm(torch.cat([prefix, patches], dim=1)), final, rtol=0, atol=0)


@EVERY
def test_a_checkpoint_restores_it(name, tmp_path):
    model, other = small_model(name).eval(), small_model(name).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    images = torch.randn(2, 3, 12, 20)
    assert_close(other(images), model(images), rtol=0, atol=0)


def test_shifted_windows_alternate_with_unshifted_ones():
    model = small_model("window", depth=4)
    assert [block.attn.mechanism.shift for block in model.blocks] == [0, 1, 0, 1]


def test_no_file_of_the_package_is_long():
    folder = Path(vit.attention.__file__).parent
    assert [file.name for file in folder.rglob("*.py") if len(file.read_text().splitlines()) > 350] == []


def test_the_page_of_attention_has_a_row_for_each_mechanism_with_its_arguments():
    page = (Path(__file__).parents[2] / "docs/attention.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", page.split("\n## ")[1], flags=re.MULTILINE)
    written = {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows}
    assert written == {name: list(options_of(mechanism)) for name, mechanism in MECHANISMS.items()}


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_needs_no_options(name):
    offered = {"num_heads": 2, "embed_dim": 12, "head_dim": 6, "value_head_dim": 6, "block_index": 0}
    assert isinstance(build(name, MECHANISMS, {}, **offered, grid_size=(2, 3)), MECHANISMS[name])
