"""The page of a text: its columns, its rows, and its pictures."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.explain import explain_text, text_explorer
from vit.explain.heatmap import displayable, overlay
from vit.explain.texts import cells_of_text
from vit.model.decoder import ImageToSequence, TransformerDecoder

IMAGE = torch.randn(1, 8, 12)
TOKENS = torch.tensor([9, 4, 2])


@pytest.fixture
def model():
    torch.manual_seed(0)
    encoder = vit.VisionTransformer((8, 12), 4, 1, embed_dim=24, depth=2, num_heads=3)
    decoder = TransformerDecoder(11, 24, 2, 2, 7, context_dim=24)
    return ImageToSequence(encoder, decoder, start=9, end=10).eval()


def pictures(page):
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(code))) for code in found]


def test_it_has_a_column_for_each_token_and_a_row_for_each_map(model):
    page = text_explorer(model, IMAGE, TOKENS, ["4", "<b>", "end"])
    assert re.findall(r"<th>([^<>]+)<small>(\d+) %</small></th>", page) == [
        (name, page_probability)
        for name, page_probability in zip(["4", "&lt;b&gt;", "end"], of_written(model), strict=True)
    ]
    rows = re.findall(r"<th>(rollout.*?|layer.*?)</th>", page)
    assert rows[:4] == [
        "rollout through the encoder",
        "layer 1, mean of the heads",
        "layer 1, head 0",
        "layer 1, head 1",
    ]
    assert len(rows) == 7
    assert len(pictures(page)) == 1 + 7 * 3
    assert "<script" not in page


def of_written(model):
    with torch.no_grad():
        probabilities = model(IMAGE[None], TOKENS[None])[0].softmax(dim=-1)
    written = [probabilities[0, 4], probabilities[1, 2], probabilities[2].max()]
    return [f"{100 * probability:.0f}" for probability in written]


def test_its_pictures_are_the_maps_over_the_image(model):
    page = text_explorer(model, IMAGE, TOKENS, ["4", "2", "end"])
    shown = pictures(page)
    image = displayable(IMAGE[None])
    for row, method in ((0, "rollout"), (1, "cross_attention")):
        maps = explain_text(model, IMAGE[None], TOKENS[None], method)[0]
        expected = overlay(image.expand(3, -1, -1, -1), maps)
        for step in range(3):
            pixels = torch.from_numpy(np.array(shown[1 + 3 * row + step].convert("RGB"))) / 255
            torch.testing.assert_close(pixels, expected[step].permute(1, 2, 0), atol=0.003, rtol=0)


def test_numbers_that_are_not_those_of_the_model_are_refused(model):
    names = ["4", "2", "end"]
    with pytest.raises(
        ValueError, match=r"not 1 \(num_prefix_tokens\) and 3 x 3 patches \(grid\): give the numbers of"
    ):
        text_explorer(model, IMAGE, TOKENS, names, grid=(3, 3))


def test_it_is_of_one_image_with_a_name_for_each_token(model):
    with pytest.raises(ValueError, match=r"image has shape \(1, 8, 12\), tokens \(3,\), and there are 2 names: give"):
        text_explorer(model, IMAGE, TOKENS, ["4", "2"])
    with pytest.raises(ValueError, match=r"image has shape \(1, 1, 8, 12\)"):
        text_explorer(model, IMAGE[None], TOKENS, ["4", "2", "end"])


def test_pictures_that_the_encoder_pads_have_the_cells_of_its_patches():
    torch.manual_seed(0)
    encoder = vit.VisionTransformer((7, 10), 4, 1, embed_dim=24, depth=1, num_heads=3, pad_images=True)
    reader = ImageToSequence(encoder, TransformerDecoder(11, 24, 1, 2, 7, context_dim=24), start=9, end=10).eval()
    image = torch.randn(1, 7, 10)
    shown = pictures(text_explorer(reader, image, TOKENS, ["4", "2", "end"]))
    maps, cells = explain_text(reader, image[None], TOKENS[None])[0], cells_of_text(reader, image[None])
    expected = overlay(displayable(image[None]).expand(3, -1, -1, -1), maps, cells=cells)
    pixels = torch.from_numpy(np.array(shown[1 + 3].convert("RGB"))) / 255
    torch.testing.assert_close(pixels, expected[0].permute(1, 2, 0), atol=0.003, rtol=0)
