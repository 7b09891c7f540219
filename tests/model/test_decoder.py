"""Decoders: no token sees a later one, steps with a cache equal one pass, and the modules around them."""

import math

import pytest
import torch
from torch import nn
from torch.export.dynamic_shapes import Dim
from torch.testing import assert_close

import vit
from vit.attention import MECHANISMS
from vit.model.decoder import ImageToSequence, TransformerDecoder
from vit.model.decoder_block import DecoderBlock
from vit.model.encoder_block import EncoderBlock
from vit.model.positions import sinusoidal_positions

V, D, T, M, C = 13, 24, 7, 5, 12  # tokens of the vocabulary, channels, tokens, tokens and channels of the context
CAUSAL = [name for name, mechanism in MECHANISMS.items() if "causal" in mechanism.takes]
EXACT = {"rtol": 0, "atol": 1e-9}


def with_positions(mechanisms, positions):
    """Each mechanism with each of the positions that it takes."""
    pairs = [(name, kind) for name in mechanisms for kind in positions]
    return [pair for pair in pairs if pair[1] != "rope" or MECHANISMS[pair[0]].rotated_parts]


def randomised(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.double().eval()


def built(**kwargs):
    return randomised(TransformerDecoder(V, D, depth=2, num_heads=3, max_length=T, context_dim=C, **kwargs))


def test_a_rotary_block_without_angles_is_refused(context):
    decoder = built(positions="rope")
    with pytest.raises(ValueError, match="turn by rotary angles, and none are given"):
        decoder.blocks[0](torch.randn(2, T, D).double(), context)


def test_rotary_positions_need_pairs_of_channels_in_each_part_of_a_head():
    differential = {"attention": "differential", "positions": "rope"}
    TransformerDecoder(V, 24, depth=1, num_heads=3, max_length=T, **differential)  # two parts of 4
    with pytest.raises(ValueError, match=r"embed_dim \(24\) over num_heads \(4\) must be a multiple of 4 .* 2 parts"):
        TransformerDecoder(V, 24, depth=1, num_heads=4, max_length=T, **differential)


@pytest.fixture
def tokens():
    return torch.randint(V, (2, T))


@pytest.fixture
def context():
    return torch.randn(2, M, C, dtype=torch.float64)


# The block.


def test_a_block_is_that_of_torch(context):
    ours = randomised(DecoderBlock(D, 3, context_dim=D, mlp_ratio=2))
    theirs = nn.TransformerDecoderLayer(
        D, 3, 2 * D, dropout=0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    theirs = theirs.double().eval()
    for one, other in (
        (theirs.self_attn.in_proj_weight, ours.attn.qkv.weight),
        (theirs.self_attn.in_proj_bias, ours.attn.qkv.bias),
        (theirs.multihead_attn.in_proj_weight, ours.cross_attn.qkv.weight),
        (theirs.multihead_attn.in_proj_bias, ours.cross_attn.qkv.bias),
    ):
        one.data = other.data
    for one, other in (
        (theirs.self_attn.out_proj, ours.attn.proj),
        (theirs.multihead_attn.out_proj, ours.cross_attn.proj),
        (theirs.linear1, ours.mlp.fc1),
        (theirs.linear2, ours.mlp.fc2),
        (theirs.norm1, ours.norm1),
        (theirs.norm2, ours.norm_cross),
        (theirs.norm3, ours.norm2),
    ):
        one.load_state_dict(other.state_dict())
    x, memory = torch.randn(2, T, D, dtype=torch.float64), torch.randn(2, M, D, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    assert_close(ours(x, memory), theirs(x, memory, tgt_mask=causal, tgt_is_causal=True), **EXACT)


def test_a_block_without_context_has_the_weights_of_an_encoder_block():
    block, encoder = DecoderBlock(D, 3), vit.model.EncoderBlock(D, 3)
    assert block.state_dict().keys() == encoder.state_dict().keys()


def test_a_context_is_neither_missing_nor_unasked_for(context):
    with pytest.raises(ValueError, match="this block attends to a context: pass it"):
        DecoderBlock(D, 3, context_dim=C)(torch.randn(2, T, D))
    with pytest.raises(ValueError, match="built without context_dim: pass no context, or give context_dim its width"):
        DecoderBlock(D, 3)(torch.randn(2, T, D), context.float())


# The decoder.


@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
def test_the_logits_of_a_step_depend_on_no_later_token(positions, tokens, context):
    decoder = built(positions=positions)
    embedded = {}
    decoder.token_embed.register_forward_hook(lambda module, inputs, output: embedded.update(tokens=output))
    logits = decoder(tokens, context)
    for step in range(T):
        (gradient,) = torch.autograd.grad(logits[:, step].square().sum(), embedded["tokens"], retain_graph=True)
        assert gradient[:, step + 1 :].abs().sum() == 0
        assert gradient[:, : step + 1].abs().sum(dim=-1).min() > 0


@pytest.mark.parametrize(("attention", "positions"), with_positions(CAUSAL, ["learned", "sincos", "rope"]))
def test_steps_with_a_cache_give_the_logits_of_one_pass(positions, attention, tokens, context):
    decoder = built(positions=positions, attention=attention)
    caches = decoder.new_caches(M)
    parts = [decoder(part, context, caches=caches) for part in tokens.split([1, 3, 1, 2], dim=1)]
    assert_close(torch.cat(parts, dim=1), decoder(tokens, context), **EXACT)


MASKED = [name for name in CAUSAL if "mask" in MECHANISMS[name].takes]


@pytest.mark.parametrize(("attention", "positions"), with_positions(MASKED, ["learned", "rope"]))
def test_without_a_prefix_a_decoder_is_causal_and_with_a_full_one_an_encoder(attention, positions, tokens, context):
    options = {"attention": attention, "positions": positions}
    causal, encoder = built(**options), built(**options, causal=False)
    for prefix, same in ((0, causal), (1, causal), (T, encoder)):
        assert_close(built(**options, prefix=prefix)(tokens, context), same(tokens, context), rtol=0, atol=1e-12)


def test_a_full_prefix_gives_the_tokens_of_encoder_blocks(tokens):
    decoder = randomised(TransformerDecoder(V, D, 2, 3, T, prefix=T))
    states = decoder.token_embed(tokens) + decoder.pos_embed
    for block in decoder.blocks:
        of_encoder = EncoderBlock(D, 3).double().eval()
        of_encoder.load_state_dict(block.state_dict())
        states = of_encoder(states)
    assert_close(decoder.forward_features(tokens), decoder.norm(states), rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
def test_a_token_sees_the_prefix_and_what_comes_before_it(positions, tokens, context):
    prefix = 3
    decoder = built(positions=positions, prefix=prefix)
    embedded = {}
    decoder.token_embed.register_forward_hook(lambda module, inputs, output: embedded.update(tokens=output))
    logits = decoder(tokens, context)
    for step in range(T):
        (gradient,) = torch.autograd.grad(logits[:, step].square().sum(), embedded["tokens"], retain_graph=True)
        seen = max(prefix, step + 1)
        assert gradient[:, seen:].abs().sum() == 0
        assert gradient[:, :seen].abs().sum(dim=-1).min() > 0


@pytest.mark.parametrize(("attention", "positions"), with_positions(MASKED, ["learned", "rope"]))
@pytest.mark.parametrize("parts", [[3, 1, 1, 2], [5, 2], [7]])
def test_steps_after_a_prefix_with_a_cache_give_the_logits_of_one_pass(parts, attention, positions, tokens, context):
    decoder = built(positions=positions, attention=attention, prefix=3)
    caches = decoder.new_caches(M)
    steps = [decoder(part, context, caches=caches) for part in tokens.split(parts, dim=1)]
    assert_close(torch.cat(steps, dim=1), decoder(tokens, context), rtol=0, atol=1e-12)


def test_a_prefix_is_given_at_once(tokens, context):
    decoder = built(prefix=3)
    for caches in (None, decoder.new_caches(M)):
        with pytest.raises(ValueError, match=r"2 tokens are fewer than the prefix \(3\), whose tokens see each other"):
            decoder(tokens[:, :2], context, caches=caches)


@pytest.mark.parametrize("attention", ["linear", "recurrent"])
def test_a_decoder_whose_mechanism_has_a_state_keeps_nothing_that_grows(attention, tokens, context):
    decoder = built(attention=attention)
    caches, sizes = decoder.new_caches(M), []
    for part in tokens.split(1, dim=1):
        decoder(part, context, caches=caches)
        sizes.append([cache.tokens._state.numel() for cache in caches])
    assert sizes == [sizes[0]] * T
    assert caches[0].context.length == M


@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_shared_heads_of_keys_and_values_make_projections_and_caches_smaller(num_kv_heads, tokens, context):
    decoder = built(num_kv_heads=num_kv_heads)
    block = decoder.blocks[0]
    width = D // 3 * num_kv_heads
    assert block.attn.qkv.weight.shape == (D + 2 * width, D)
    assert block.cross_attn.kv.weight.shape == (2 * width, C)
    caches = decoder.new_caches(M)
    parts = [decoder(part, context, caches=caches) for part in tokens.split([1, 3, 1, 2], dim=1)]
    assert_close(torch.cat(parts, dim=1), decoder(tokens, context), **EXACT)
    for cache in (caches[0].tokens, caches[0].context):
        assert cache.context(len(cache._k), cache.length)[0].shape[1] == num_kv_heads


def test_caches_of_another_depth_are_refused():
    decoder = TransformerDecoder(V, 12, depth=2, num_heads=3, max_length=4)
    with pytest.raises(ValueError, match=r"there are 1 caches for 2 blocks: take those of new_caches\(\)"):
        decoder(torch.zeros(1, 1, dtype=torch.long), caches=decoder.new_caches()[:1])


def test_arguments_reach_the_blocks_and_the_embedding(tokens):
    options = {"qk_norm": True, "mlp_ratio": 1.5, "qkv_bias": False, "dropout": 0.25, "drop_path": 0.5}
    decoder = TransformerDecoder(V, D, 3, 3, T, context_dim=C, attention="topk", attention_kwargs={"k": 4}, **options)
    block = decoder.blocks[1]
    assert isinstance(block.attn.q_norm, nn.LayerNorm)
    assert isinstance(block.cross_attn.q_norm, nn.LayerNorm)
    assert block.mlp.fc1.out_features == 36
    assert block.attn.qkv.bias is None
    assert block.attn.mechanism.k == 4
    assert [block.drop_path.probability for block in decoder.blocks] == [0, 0.25, 0.5]
    assert {module.p for module in decoder.modules() if isinstance(module, nn.Dropout)} == {0.25}
    silent = TransformerDecoder(V, D, 1, 3, T, dropout=0.5)
    nn.init.zeros_(silent.blocks[0].mlp.fc2.weight)
    nn.init.zeros_(silent.blocks[0].attn.proj.weight)
    assert not torch.equal(silent(tokens), silent(tokens))  # the embedding is dropped as well


def test_differential_attention_starts_at_the_lambda_of_its_block():
    decoder = TransformerDecoder(V, D, depth=3, num_heads=3, max_length=T, attention="differential")
    found = [block.attn.mechanism.lambda_init for block in decoder.blocks]
    assert found == pytest.approx([0.8 - 0.6 * math.exp(-0.3 * number) for number in range(3)])


def test_logits_are_the_product_of_the_normed_tokens_and_the_embedding(tokens, context):
    decoder = built()
    states = decoder.token_embed(tokens) + decoder.pos_embed
    for block in decoder.blocks:
        states = block(states, context)
    assert_close(decoder(tokens, context), decoder.norm(states) @ decoder.token_embed.weight.T, **EXACT)


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_decoder_is_exported_and_compiled_for_any_length(positions):
    decoder = TransformerDecoder(V, D, 1, 3, T, positions=positions).eval()
    program = torch.export.export(
        decoder, (torch.zeros(2, 5, dtype=torch.long),), dynamic_shapes=({1: Dim("length", min=2, max=T)},)
    )
    compiled = torch.compile(decoder, backend="eager", fullgraph=True, dynamic=True)
    for length in (3, 5, 7):
        tokens = torch.randint(V, (2, length))
        assert_close(program.module()(tokens), decoder(tokens))
        assert_close(compiled(tokens), decoder(tokens))


@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
def test_the_order_of_the_tokens_counts(positions, context):
    decoder = built(positions=positions)
    logits = decoder(torch.tensor([[1, 2, 3], [2, 1, 3]]), context[:1].repeat(2, 1, 1))
    assert (logits[0, -1] - logits[1, -1]).abs().max() > 1e-3


def test_tied_output_is_the_product_with_the_embedding_and_saves_a_matrix(tokens, context):
    tied, free = built(), built(tie_output=False)
    free.load_state_dict(tied.state_dict() | {"head.weight": tied.token_embed.weight})
    assert_close(free(tokens, context), tied(tokens, context), **EXACT)
    sizes = [sum(parameter.numel() for parameter in decoder.parameters()) for decoder in (free, tied)]
    assert sizes[0] - sizes[1] == V * D


def test_the_angles_of_a_decoder_in_double_precision_are_as_precise():
    decoder = randomised(TransformerDecoder(12, 24, depth=1, num_heads=3, max_length=300, positions="rope")).eval()
    tokens, seen = torch.arange(300)[None] % 12, []
    decoder.blocks[0].register_forward_pre_hook(lambda _, __, named: seen.append(named["angles"]), with_kwargs=True)
    decoder(tokens)
    assert seen[0].dtype == torch.float64
    assert_close(seen[0][:, 1], torch.arange(300, dtype=torch.float64) / 10_000 ** (2 / 8), rtol=0, atol=1e-12)


def test_fixed_codes_are_not_trained_and_those_of_the_formula():
    decoder = TransformerDecoder(V, D, 1, 3, T, positions="sincos")
    assert not decoder.pos_embed.requires_grad
    assert_close(decoder.pos_embed[0], sinusoidal_positions(T, D))


def test_an_untrained_decoder_is_undecided(tokens):
    torch.manual_seed(0)
    entropy = torch.distributions.Categorical(logits=TransformerDecoder(V, D, 2, 3, T).eval()(tokens)).entropy()
    assert entropy.min() > 0.98 * torch.tensor(V).log()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[0, V]]), r"token 13 is outside the vocabulary of 13 \(0 to 12\)"),
        (torch.tensor([[-1, 2]]), "token -1 is outside the vocabulary"),
        (torch.zeros(1, T + 1, dtype=torch.long), r"8 tokens are more than max_length \(7\): shorten them"),
        (torch.zeros(2, 3), r"tokens are torch.float32 of shape \(2, 3\): give whole numbers \(batch, T\)"),
        (torch.zeros(2, 3, dtype=torch.bool), "tokens are torch.bool"),
        (torch.zeros(3, dtype=torch.long), r"tokens are torch.int64 of shape \(3,\)"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        TransformerDecoder(V, D, 1, 3, T)(tokens)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("filled", [0, 3])
def test_a_refused_step_leaves_the_caches_as_they_were(filled, attention, tokens, context):
    decoder = built(attention=attention)
    expected = decoder(tokens, context)
    caches = decoder.new_caches(M)
    if filled:
        decoder(tokens[:, :filled], context, caches=caches)
    wrong = torch.randn(2, M, C + 1).double()
    with pytest.raises(ValueError, match="context"):
        decoder(tokens[:, filled:], wrong, caches=caches)
    with pytest.raises(ValueError, match="context"):
        decoder.blocks[0](torch.randn(2, 1, D).double(), wrong, cache=caches[0])
    assert [cache.tokens.length for cache in caches] == [filled, filled]
    assert_close(decoder(tokens[:, filled:], context, caches=caches), expected[:, filled:], **EXACT)


def test_cached_tokens_count_towards_the_length():
    decoder = TransformerDecoder(V, D, 1, 3, T)
    caches = decoder.new_caches()
    decoder(torch.zeros(1, T, dtype=torch.long), caches=caches)
    with pytest.raises(ValueError, match=r"8 tokens are more than max_length \(7\)"):
        decoder(torch.zeros(1, 1, dtype=torch.long), caches=caches)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"vocab_size": 0}, r"vocab_size \(0\) must be a positive whole number"),
        ({"max_length": 0}, r"max_length \(0\) must be"),
        ({"positions": "absolute"}, "positions 'absolute'"),
        ({"attention": "neighborhood"}, "attention 'neighborhood' cannot be causal"),
        ({"num_heads": 0}, r"num_heads \(0\) must be a positive whole number"),
        ({"embed_dim": 15, "positions": "rope"}, r"embed_dim \(15\) over num_heads \(3\) must be a multiple of 2 for"),
        (
            {"positions": "rope", "attention": "linear"},
            "LinearAttention does not attend by the dot products of queries and keys alone",
        ),
        ({"num_kv_heads": 2}, r"num_heads \(3\) must be divisible by num_kv_heads \(2\)"),
        ({"num_heads": 5}, r"embed_dim \(24\) must be divisible by num_heads \(5\)"),
        ({"prefix": -1}, r"prefix \(-1\) must be a whole number of at least 0"),
        ({"prefix": 8}, r"prefix \(8\) is longer than max_length \(7\)"),
        ({"prefix": 2, "causal": False}, r"prefix \(2\) changes nothing if causal is False"),
        ({"prefix": 2, "attention": "linear"}, "LinearAttention takes no mask"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(kwargs, message):
    arguments = {"vocab_size": V, "embed_dim": D, "depth": 1, "num_heads": 3, "max_length": T}
    with pytest.raises(ValueError, match=message):
        TransformerDecoder(**arguments | kwargs)


# Images to sequences.


@pytest.fixture
def reader():
    encoder = vit.VisionTransformer(image_size=(4, 10), patch_size=2, embed_dim=C, depth=1, num_heads=2)
    return randomised(ImageToSequence(encoder, TransformerDecoder(V, D, 2, 3, T, context_dim=C), start=11, end=12))


def test_the_tokens_of_the_encoder_are_the_context(reader, tokens):
    images = torch.randn(2, 3, 4, 10, dtype=torch.float64)
    features = reader.encoder.forward_features(images)
    assert features.shape == (2, 11, C)
    assert_close(reader(images, tokens), reader.decoder(tokens, features), **EXACT)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_is_read_as_each_image_alone(reader, num_beams):
    images = torch.randn(5, 3, 4, 10, dtype=torch.float64)
    together = reader.generate(images, num_beams=num_beams)
    for image, tokens in zip(images, together, strict=True):
        alone = reader.generate(image[None], num_beams=num_beams)[0]
        assert tokens[: len(alone)].tolist() == alone.tolist()
        assert set(tokens[len(alone) :].tolist()) <= {12}


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_cache_changes_no_token_and_reads_each_once(reader, num_beams):
    images = torch.randn(5, 3, 4, 10, dtype=torch.float64)
    read, written = {}, {}
    for use in (True, False):
        widths = read[use] = []
        hook = reader.decoder.register_forward_pre_hook(
            lambda _, inputs, widths=widths: widths.append(inputs[0].shape[1])
        )
        written[use] = reader.generate(images, num_beams=num_beams, use_cache=use).tolist()
        hook.remove()
    assert written[True] == written[False]
    assert set(read[True]) == {1}
    assert max(read[False]) > 1


def test_random_reading_differs_and_beams_are_not_random(reader):
    images = torch.randn(1, 3, 4, 10, dtype=torch.float64).expand(50, 3, 4, 10)
    torch.manual_seed(0)
    assert len(reader.generate(images, temperature=1.0).unique(dim=0)) > 10
    assert len(reader.generate(images).unique(dim=0)) == 1
    with pytest.raises(ValueError, match=r"beam search \(num_beams 3\) draws nothing: set temperature to 0"):
        reader.generate(images, num_beams=3, temperature=1.0)


def test_no_sequence_is_longer_than_asked_for(reader):
    images = torch.randn(2, 3, 4, 10, dtype=torch.float64)
    assert reader.generate(images, max_length=2).shape[1] <= 2
    with pytest.raises(ValueError, match=r"8 tokens after a prompt of 1 .* \(7\): ask for at most 7"):
        reader.generate(images, max_length=8)


@pytest.mark.parametrize(("name", "value"), [("num_beams", 0), ("num_beams", -1), ("max_length", 0)])
def test_numbers_out_of_their_range_are_named_as_they_were_given(reader, name, value):
    with pytest.raises(ValueError, match=rf"{name} \({value}\) must be a positive whole number"):
        reader.generate(torch.randn(1, 3, 4, 10, dtype=torch.float64), **{name: value})


def test_reading_keeps_no_graph_of_the_encoder(reader):
    enabled = []
    reader.encoder.norm.register_forward_hook(lambda *_: enabled.append(torch.is_grad_enabled()))
    reader.generate(torch.randn(1, 3, 4, 10, dtype=torch.float64))
    assert enabled == [False]


def test_marks_outside_the_vocabulary_are_refused(reader):
    with pytest.raises(ValueError, match=r"end \(13\) is outside the vocabulary of 13"):
        ImageToSequence(reader.encoder, reader.decoder, start=11, end=13)


def test_an_encoder_in_training_mode_is_not_read(reader):
    reader.encoder.train()
    with pytest.raises(ValueError, match=r"the encoder is in training mode, .*: call \.eval\(\) first"):
        reader.write(torch.randn(2, 3, 4, 10, dtype=torch.float64))
