"""The attention of decoders: told apart, equal to the formula, in the graph, of ours and of transformers."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from vit.capture.sequence import capture_sequence, run_sequence
from vit.model.decoder import ImageToSequence, TransformerDecoder
from vit.model.image_gpt import ImageGPT
from vit.model.positions import rotary_angles


def reader(tokens=5, positions="learned", **kwargs):
    torch.manual_seed(0)
    encoder = vit.VisionTransformer((8, 12), 4, embed_dim=24, depth=3, num_heads=3, num_registers=tokens - 2, **kwargs)
    decoder = TransformerDecoder(11, 24, 2, 2, 7, context_dim=24, positions=positions)
    return ImageToSequence(encoder, decoder, start=9, end=10).double().eval()


IMAGES = torch.randn(2, 3, 8, 12, dtype=torch.float64)
TOKENS = torch.tensor([[9, 4, 2, 0, 1], [9, 1, 10, 10, 10]])


@pytest.mark.parametrize("positions", ["learned", "sincos", "rope"])
def test_each_kind_is_the_attention_of_its_module(positions):
    model = reader(positions=positions)
    found = capture_sequence(model, IMAGES, TOKENS)
    assert [len(layers) for layers in (found.encoder, found.decoder, found.cross)] == [3, 2, 2]
    block = model.decoder.blocks[0]
    context = model.encoder.forward_features(IMAGES)
    states = model.decoder.token_embed(TOKENS)
    angles = None
    if positions == "rope":
        angles = rotary_angles(torch.arange(5), model.decoder.head_dim)
    else:
        states = states + model.decoder.pos_embed[:, :5]
    normed = block.norm1(states)
    assert_close(found.decoder[0], block.attn.weights(normed, angles=angles))
    states = states + block.attn(normed, angles=angles)
    assert_close(found.cross[0], block.cross_attn.weights(block.norm_cross(states), context))
    encoder = model.encoder
    first = encoder.blocks[0]
    assert_close(found.encoder[0], first.attn.weights(first.norm1(encoder.embed(IMAGES))))
    assert_close(found.logits, model(IMAGES, TOKENS))


def test_a_text_as_long_as_the_image_is_told_apart_too():
    model = reader(tokens=4)  # 6 patches, a class token and 2 registers: 9 tokens
    tokens = torch.randint(0, 9, (2, 7))
    assert capture_sequence(model, IMAGES, tokens).cross[0].shape == (2, 2, 7, 9)
    model = reader(tokens=2)  # 7 tokens of the image, 7 of the text
    found = capture_sequence(model, IMAGES, tokens)
    assert [len(layers) for layers in (found.encoder, found.decoder, found.cross)] == [3, 2, 2]
    assert not found.decoder[1].triu(1).any()
    assert found.cross[1].triu(1).any()


def test_a_single_token_is_enough():
    found = capture_sequence(reader(), IMAGES, TOKENS[:, :1])
    assert [len(layers) for layers in (found.encoder, found.decoder, found.cross)] == [3, 2, 2]


def test_all_of_it_is_in_the_graph_of_the_logits():
    found = capture_sequence(reader(), IMAGES, TOKENS)
    layers = [*found.encoder, *found.decoder, *found.cross]
    slopes = torch.autograd.grad(found.logits[:, -1].sum(), layers)
    assert all(slope.abs().sum() > 0 for slope in slopes)


def test_a_decoder_alone_has_causal_attention():
    model = ImageGPT(5, (2, 3), 24, 2, 3).eval()
    found = capture_sequence(model, torch.randint(0, 5, (2, 2, 3)))
    assert (len(found.encoder), len(found.decoder), len(found.cross)) == (0, 2, 0)
    assert found.decoder[0].shape == (2, 3, 6, 6)


def test_attention_can_be_replaced():
    model = reader()

    def uniform(kind, layer, attn):
        return torch.full_like(attn, 1 / attn.shape[-1]) if (kind, layer) == ("cross", 1) else attn

    changed = run_sequence(model, IMAGES, TOKENS, edit=uniform)
    block = model.decoder.blocks[1]
    context = model.encoder.forward_features(IMAGES)
    _, _, v = block.cross_attn.heads(torch.zeros(2, 1, 24).double(), context)
    mean = block.cross_attn.proj(v.mean(dim=2).flatten(1))
    block.cross_attn.forward = lambda x, *_, **__: mean[:, None].expand_as(x)
    assert_close(changed, model(IMAGES, TOKENS))


def test_an_encoder_decoder_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    encoder = transformers.ViTConfig(image_size=8, patch_size=4, **sizes)
    decoder = transformers.BertConfig(vocab_size=11, is_decoder=True, add_cross_attention=True, **sizes)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.VisionEncoderDecoderModel(config).eval()
    found = capture_sequence(model, torch.randn(2, 3, 8, 8), torch.tensor([[9, 4, 2], [9, 1, 3]]))
    assert [len(layers) for layers in (found.encoder, found.decoder, found.cross)] == [2, 2, 2]
    assert found.cross[0].shape == (2, 3, 3, 5)


def test_an_encoder_is_refused():
    model = vit.VisionTransformer(8, 4, embed_dim=24, depth=2, num_heads=3).eval()
    with pytest.raises(ValueError, match="no attention of VisionTransformer is causal: capture_attention is for"):
        capture_sequence(model, torch.randn(2, 3, 8, 8))


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match="training mode"):
        capture_sequence(reader().train(), IMAGES, TOKENS)


class HeadsFirst(nn.Module):
    """A decoder that splits its channels into heads before the images: (H * B, T, d)."""

    def forward(self, tokens):
        q = torch.cat(tokens.split(4, dim=2), dim=0)
        attn = (q @ q.mT).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(dim=-1)
        return torch.cat((attn @ q).split(len(tokens), dim=0), dim=2)


def test_heads_before_images_are_not_taken_for_images():
    tokens = torch.randn(3, 5, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="the decoder attention of HeadsFirst differs between an image alone and"):
        capture_sequence(HeadsFirst().eval(), tokens)
    assert capture_sequence(HeadsFirst().eval(), tokens[:1]).decoder[0].shape == (1, 2, 5, 5)


class Windows(nn.Module):
    """A reader whose encoder attends within the two halves of the rows of patches."""

    def __init__(self):
        super().__init__()
        self.reader = reader()

    def forward(self, images, tokens):
        x = images.mean(dim=1).unflatten(1, (2, 4)).flatten(0, 1)[:, None]  # two windows of an image, (2 B, 1, 4, 12)
        return self.reader(images, tokens) + nn.functional.scaled_dot_product_attention(x, x, x).mean()


@pytest.mark.parametrize("count", [1, 2])
def test_attention_within_windows_is_not_taken_for_that_of_images(count):
    with pytest.raises(ValueError, match=rf"Windows attends within windows.*\({count} inputs gave attention of shape"):
        capture_sequence(Windows().eval(), IMAGES[:count], TOKENS[:count])


def test_several_texts_of_one_image_are_captured():
    found = capture_sequence(OfOneImage().eval(), IMAGES[:1], TOKENS)
    assert [layers[0].shape[0] for layers in (found.encoder, found.decoder, found.cross)] == [1, 2, 2]


class OfOneImage(nn.Module):
    """A reader that encodes one image for all texts."""

    def __init__(self):
        super().__init__()
        self.reader = reader()

    def forward(self, images, tokens):
        context = self.reader.encoder.forward_features(images)
        return self.reader.decoder(tokens, context.expand(len(tokens), -1, -1))
