"""Maps of the steps of a reader, and whether they peak on the letter that is written."""

import pytest
import torch
from einops import rearrange
from PIL import Image
from torch.testing import assert_close

import vit
from vit.capture import examine
from vit.capture.sequence import capture_sequence
from vit.explain.maps.rollout import attention_rollout
from vit.explain.text_figures import draw_text_maps
from vit.explain.texts import cells_of_text, explain_text, peaks_on_boxes
from vit.model.decoder import ImageToSequence, TransformerDecoder

IMAGES = torch.randn(2, 1, 8, 12)
TOKENS = torch.tensor([[9, 4, 2, 0], [9, 1, 10, 10]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    encoder = vit.VisionTransformer((8, 12), 4, 1, embed_dim=24, depth=2, num_heads=3, num_registers=2)
    decoder = TransformerDecoder(11, 24, 2, 2, 7, context_dim=24)
    return ImageToSequence(encoder, decoder, start=9, end=10).eval()


def test_a_map_is_the_mean_of_the_heads_of_the_last_layer_over_the_patches(model):
    expected = capture_sequence(model, IMAGES, TOKENS).cross[1].mean(dim=1)[..., 3:]
    maps = explain_text(model, IMAGES, TOKENS)
    assert maps.shape == (2, 4, 2, 3)
    assert_close(rearrange(maps, "b t r s -> b t (r s)"), expected)
    assert not maps.requires_grad


def test_rollout_goes_on_through_the_encoder(model):
    found = capture_sequence(model, IMAGES, TOKENS)
    expected = (found.cross[1].mean(dim=1) @ attention_rollout(found.encoder))[..., 3:]
    assert_close(rearrange(explain_text(model, IMAGES, TOKENS, "rollout"), "b t r s -> b t (r s)"), expected)


def test_a_map_does_not_depend_on_later_tokens(model):
    maps, changed = explain_text(model, IMAGES, TOKENS), TOKENS.clone()
    changed[:, 2:] = 5
    assert_close(explain_text(model, IMAGES, changed)[:, :2], maps[:, :2])


def test_another_model_needs_its_grid(model):
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, images, tokens):
            return self.inner(images, tokens)

    wrapped = Wrapped().eval()
    with pytest.raises(ValueError, match="the patches of Wrapped are not known: give grid and num_prefix_tokens"):
        explain_text(wrapped, IMAGES, TOKENS)
    maps = explain_text(wrapped, IMAGES, TOKENS, grid=(2, 3), num_prefix_tokens=3)
    assert_close(maps, explain_text(model, IMAGES, TOKENS))
    with pytest.raises(ValueError, match=r"the image has 9 tokens, and not 1 \(num_prefix_tokens\) and 2 x 3 patches"):
        explain_text(wrapped, IMAGES, TOKENS, grid=(2, 3), num_prefix_tokens=1)


def test_what_is_no_reader_is_refused(model):
    decoder = TransformerDecoder(11, 24, 2, 2, 7).eval()
    decoder.forward = lambda images, tokens: TransformerDecoder.forward(decoder, tokens)
    with pytest.raises(ValueError, match="has no cross-attention, so its tokens look at no image"):
        explain_text(decoder, IMAGES, TOKENS, grid=(2, 3))
    with pytest.raises(ValueError, match="method"):
        explain_text(model, IMAGES, TOKENS, "gradient")


def test_a_peak_counts_if_a_quarter_of_its_patch_is_in_the_box():
    maps = torch.zeros(2, 2, 2, 3)
    maps[0, 0, 0, 1] = maps[0, 1, 1, 2] = maps[1, 0, 0, 0] = 1
    boxes = torch.zeros(2, 2, 4, dtype=torch.long)
    boxes[0, 0] = torch.tensor([0, 6, 2, 6])  # a quarter of the patch in row 0, column 1
    boxes[0, 1] = torch.tensor([0, 0, 4, 4])  # another patch
    boxes[1, 0] = torch.tensor([0, 0, 3, 1])  # less than a quarter of the peak, and no patch has more
    with pytest.raises(ValueError, match="no cell inside"):
        peaks_on_boxes(maps, boxes, (8, 12))
    boxes[1, 0, 3] = 2
    assert peaks_on_boxes(maps, boxes, (8, 12)).tolist() == [1, 0, 1]


def test_the_sheet_has_a_row_for_each_picture(tmp_path):
    images, maps = torch.rand(2, 1, 8, 12), torch.rand(2, 3, 2, 3)
    heights = []
    for count in (1, 2):
        draw_text_maps(images[:count], maps[:count], ["402", ""][:count], tmp_path / "reading.png", title="a title")
        with Image.open(tmp_path / "reading.png") as picture:
            heights.append(picture.height)
    assert heights[1] > heights[0] + 100


@pytest.fixture
def padding():
    """A reader whose encoder pads pictures of 7 x 10 pixels to 8 x 12."""
    torch.manual_seed(0)
    encoder = vit.VisionTransformer((7, 10), 4, 1, embed_dim=24, depth=2, num_heads=3, pad_images=True)
    return ImageToSequence(encoder, TransformerDecoder(11, 24, 2, 2, 7, context_dim=24), start=9, end=10).eval()


def test_the_cells_of_pictures_that_are_padded_are_those_that_the_experiment_finds(padding):
    images = torch.randn(2, 1, 7, 10)
    cells = cells_of_text(padding, images)
    assert cells.tolist()[0] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert torch.equal(cells, examine(padding.encoder, images).cells)


def test_the_cells_of_another_model_are_not_known():
    assert cells_of_text(torch.nn.Identity(), IMAGES) is None


def test_a_peak_is_looked_for_in_the_cells_of_padded_pictures(padding):
    cells, maps = cells_of_text(padding, torch.zeros(1, 1, 7, 10)), torch.zeros(1, 1, 2, 3)
    maps[0, 0, 1, 2] = 1
    boxes = torch.tensor([[[4, 8, 3, 1]]])  # half of the six pixels that the last patch has
    assert peaks_on_boxes(maps, boxes, (7, 10), cells).tolist() == [1]
    with pytest.raises(
        ValueError, match="images of 7 x 10 pixels cannot be divided evenly into 2 x 3 patches: give ce"
    ):
        peaks_on_boxes(maps, boxes, (7, 10))


def test_the_sheet_has_the_cells_of_padded_pictures(padding, tmp_path):
    images, maps = torch.rand(1, 1, 7, 10), torch.rand(1, 2, 2, 3)
    cells = cells_of_text(padding, images)
    draw_text_maps(images, maps, ["40"], tmp_path / "reading.png", cells=cells)
    assert (tmp_path / "reading.png").exists()


def test_an_encoder_that_mixes_tokens_unseen_has_no_rollout(model):
    class Mixing(torch.nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, tokens, *args, **kwargs):
            tokens = self.block(tokens, *args, **kwargs)
            return tokens + (tokens @ tokens.mT).relu() @ tokens / 100

    model.encoder.blocks[0] = Mixing(model.encoder.blocks[0])
    with pytest.raises(ValueError, match="VisionTransformer mixes tokens in a way that cannot be intercepted"):
        explain_text(model, IMAGES, TOKENS, "rollout")
    assert explain_text(model, IMAGES, TOKENS).shape == (2, 4, 2, 3)
