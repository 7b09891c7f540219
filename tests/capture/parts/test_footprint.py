"""Which pixels each patch is made of, against gradients of the tokens and against cells by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.architectures import of_timm, of_transformers, ours, randomised
from tests.capture.wrapped_model import Around
from vit.capture import examine
from vit.capture.parts.footprint import are_even, cell_edges, check_even, even_cells


def pixels(rows, columns):
    return torch.randn(2, 3, rows, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Cut(nn.Module):
    """One layer of attention over the tokens (B, D, rows, columns) that ``cut`` makes of the images."""

    def __init__(self, cut, **conv):
        super().__init__()
        self.cut = cut
        self.conv = nn.Conv2d(3, 12, **conv) if conv else None
        self.attend = nn.MultiheadAttention(12, 3, batch_first=True)

    def tokens(self, images):
        return self.cut(images) if self.conv is None else self.conv(self.cut(images))

    def forward(self, images):
        x = self.tokens(images).flatten(2).mT
        return self.attend(x, x, x)[0].mean(dim=1)


def seen_by_gradient(model, images):
    """The token of each pixel, which sees it alone, or -1: (H, W)."""
    images = images[:1].clone().requires_grad_()
    cells = torch.full(images.shape[-2:], -1)
    for number, token in enumerate(model.tokens(images).flatten(2)[0].mT):
        (slope,) = torch.autograd.grad(token.pow(2).sum(), images, retain_graph=True)
        seen = slope[0].abs().sum(dim=0) > 0
        assert (cells[seen] == -1).all()
        cells[seen] = number
    return cells


DISJOINT = {
    "whole patches": (Cut(lambda x: x, kernel_size=4, stride=4), (12, 20)),
    "centre crop": (Cut(lambda x: x[..., 5:17, 3:19], kernel_size=4, stride=4), (24, 26)),
    "border that the stride leaves": (Cut(lambda x: x, kernel_size=7, stride=7), (39, 23)),
    "gaps between patches": (Cut(lambda x: x, kernel_size=3, stride=5), (19, 24)),
    "padded at the right and below": (Cut(lambda x: F.pad(x, (0, 3, 0, 1)), kernel_size=8, stride=8), (23, 13)),
    "padded on all sides": (Cut(lambda x: F.pad(x, (3, 2, 1, 2)), kernel_size=8, stride=8), (21, 27)),
    "every second pixel": (Cut(lambda x: x[..., ::2, 1::2], kernel_size=4, stride=4), (24, 40)),
    "patches of unequal size": (Cut(lambda x: F.adaptive_avg_pool2d(x, (2, 5)), kernel_size=1), (6, 10)),
    "one row": (Cut(lambda x: x[..., 2:6, :], kernel_size=4, stride=4), (9, 17)),
}


@pytest.mark.parametrize("name", DISJOINT)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_pixel_belongs_to_the_patch_that_it_moves_or_to_none(name, dtype):
    model, size = DISJOINT[name]
    model, images = randomised(model).to(dtype), pixels(*size).to(dtype)
    expected = seen_by_gradient(model, images)
    found = examine(model, images)
    assert found.grid == tuple(model.tokens(images).shape[-2:])
    assert torch.equal(found.cells, expected)


def test_patches_that_timm_pads_end_where_the_image_ends():
    model = randomised(of_timm(img_size=32, patch_size=16, dynamic_img_size=True, dynamic_img_pad=True)())
    rows, columns = torch.arange(72) // 16, torch.arange(40) // 16
    assert torch.equal(examine(model, pixels(72, 40)).cells, 3 * rows[:, None] + columns)


def test_patches_that_we_pad_end_where_the_image_ends():
    model = randomised(ours(image_size=(33, 10), patch_size=(16, 2), pad_images=True)())
    assert torch.equal(
        examine(model, pixels(33, 10)).cells, 5 * (torch.arange(33) // 16)[:, None] + torch.arange(10) // 2
    )


def test_the_dinov2_of_transformers_never_sees_pixels_beyond_whole_patches():
    model = randomised(of_transformers("Dinov2ForImageClassification", patch_size=14, image_size=28)())
    inside = even_cells((28, 28), (2, 2))
    assert torch.equal(examine(model, pixels(39, 39)).cells, F.pad(inside, (0, 11, 0, 11), value=-1))


@pytest.mark.parametrize(
    ("conv", "side", "expected"),
    [
        ({"kernel_size": 4, "stride": 2}, 10, [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]),
        ({"kernel_size": 6, "stride": 4, "padding": 1}, 12, 4 * [0] + 4 * [1] + 4 * [2]),
        ({"kernel_size": 6, "stride": 4, "padding": 1}, 15, 4 * [0] + 4 * [1] + 5 * [2] + 2 * [-1]),
    ],
    ids=["no padding", "padding", "padding and a border"],
)
def test_a_pixel_of_overlapping_patches_belongs_to_the_nearest(conv, side, expected):
    rows = torch.tensor(expected)
    cells = torch.where((rows[:, None] < 0) | (rows < 0), -1, (rows.max() + 1) * rows[:, None] + rows)
    assert torch.equal(examine(randomised(Cut(lambda x: x, **conv)), pixels(side, side)).cells, cells)


def test_our_overlapping_patches_are_centred_on_even_cells():
    anatomy = examine(randomised(ours(image_size=(12, 20), patch_size=8, patch_stride=4)()), pixels(12, 20))
    assert are_even(anatomy.cells, anatomy.grid)
    assert anatomy.grid == (3, 5)


class Louder(Cut):
    """The tokens of each further row respond ten times as much."""

    def tokens(self, images):
        x = super().tokens(images)
        return x * 10.0 ** torch.arange(x.shape[2])[:, None].to(x)


def test_a_line_belongs_to_the_patch_whose_share_is_largest_and_not_to_the_loudest():
    torch.manual_seed(0)
    plain, louder = (randomised(kind(lambda x: x, kernel_size=6, stride=4)) for kind in (Cut, Louder))
    louder.load_state_dict(plain.state_dict())
    images = pixels(14, 18)
    assert torch.equal(examine(louder, images).cells, examine(plain, images).cells)


class Turned(nn.Module):
    """Values are complex numbers, and weights are cast to complex ones, or are some."""

    def __init__(self, phase):
        super().__init__()
        self.cut = Cut(lambda x: x, kernel_size=2, stride=2)
        self.head, self.phase = nn.Linear(12, 4), phase

    def forward(self, images):
        x = self.cut.tokens(images).flatten(2).mT.unflatten(2, (3, 4)).transpose(1, 2)
        weights = (x @ x.mT).softmax(dim=-1)
        values = torch.complex(x, x.flip(-1))
        mixed = (weights.to(values.dtype) * (1 + self.phase * 1j)) @ values
        return self.head(torch.cat([mixed.real, mixed.imag], dim=-1)[..., :4].transpose(1, 2).flatten(2).mean(dim=1))


def test_complex_values_have_pixels_as_real_ones_and_complex_weights_are_refused():
    images = pixels(6, 10)
    assert examine(randomised(Turned(0.0)), images).grid == (3, 5)
    with pytest.raises(ValueError, match="the attention weights of Turned are complex numbers"):
        examine(randomised(Turned(0.5)), images)


def brick(shift):
    """Patches of 4 x 4 pixels, of which those of every second row are moved to the right."""

    def cut(x):
        rows = [x[..., top : top + 4, (shift if top % 8 else 0) :][..., :16] for top in range(0, 16, 4)]
        return torch.cat(rows, dim=-2)

    return cut


@pytest.mark.parametrize("shift", [1, 2])
def test_patches_like_bricks_are_refused(shift):
    with pytest.raises(
        ValueError, match=r"no rows and columns of pixels \(column \d+ of the pixels moves some|no grid"
    ):
        examine(randomised(Cut(brick(shift), kernel_size=4, stride=4)), pixels(16, 18))


def test_a_round_window_is_refused():
    places = torch.linspace(-1, 1, 16)
    window = (places[:, None] ** 2 + places**2 < 1).double()
    with pytest.raises(ValueError, match=r"no rows and columns of pixels \(row \d+ of the pixels moves some"):
        examine(randomised(Cut(lambda x: x * window, kernel_size=4, stride=4)), pixels(16, 16))


@pytest.mark.parametrize("hidden", [[(0, 0)], [(1, 2), (5, 5), (15, 15)]], ids=str)
def test_single_pixels_that_are_never_seen_belong_to_no_patch(hidden):
    window = torch.ones(16, 16, dtype=torch.float64)
    expected = even_cells((16, 16), (4, 4))
    for row, column in hidden:
        window[row, column], expected[row, column] = 0, -1
    model = randomised(Cut(lambda x: x * window, kernel_size=4, stride=4))
    assert torch.equal(examine(model, pixels(16, 16)).cells, expected)


@pytest.mark.parametrize("pool", [F.max_pool2d, lambda x, size: F.relu(F.max_pool2d(x, size))], ids=["max", "relu"])
def test_pixels_of_which_a_maximum_is_taken_are_seen_all_the_same(pool):
    model = randomised(Cut(lambda x: pool(x, 2), kernel_size=2, stride=2))
    assert torch.equal(examine(model, pixels(8, 12)).cells, even_cells((8, 12), (2, 3)))


@pytest.mark.parametrize("seed", [2, 5, 7])
def test_pixels_that_a_relu_hides_by_chance_are_seen_all_the_same(seed):
    first, second = nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.Conv2d(5, 12, 2, stride=2)
    model = randomised(Cut(nn.Sequential(first, nn.ReLU(), second).double()), seed)
    assert torch.equal(examine(model, pixels(16, 24)).cells, even_cells((16, 24), (4, 6)))


def test_tokens_made_without_gradients_have_their_cells_too():
    class Frozen(Cut):
        def tokens(self, images):
            return super().tokens(images).detach()

    model = randomised(Frozen(lambda x: x[..., 1:], kernel_size=4, stride=4))
    assert torch.equal(examine(model, pixels(8, 9)).cells, F.pad(even_cells((8, 8), (2, 2)), (1, 0), value=-1))


def test_patches_closer_than_pixels_are_refused():
    model = randomised(Cut(lambda x: x.repeat_interleave(4, dim=-2), kernel_size=2, stride=2))
    with pytest.raises(ValueError, match=r"closer than the pixels|no grid of patches"):
        examine(model, pixels(6, 10))


def test_even_cells_and_their_edges():
    cells = even_cells((4, 6), (2, 3))
    assert cells.tolist() == [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5], [3, 3, 4, 4, 5, 5]]
    assert are_even(cells, (2, 3))
    rows, columns = cell_edges(F.pad(cells, (1, 2, 3, 0), value=-1), (2, 3))
    assert rows.tolist() == [[3, 5], [5, 7]]
    assert columns.tolist() == [[1, 3], [3, 5], [5, 7]]
    with pytest.raises(
        ValueError, match=r"ViT does not divide images of 4 x 7 pixels evenly into 2 x 3 .*4 pixels are"
    ):
        check_even(F.pad(cells, (1, 0), value=-1), (2, 3), "ViT")


def test_a_model_that_crops_has_the_cells_of_its_crop():
    model = randomised(Around(ours()(), lambda vit, images: vit(images[..., 2:8, 3:13])))
    expected = F.pad(even_cells((6, 10), (3, 5)), (3, 4, 2, 1), value=-1)
    assert torch.equal(examine(model, pixels(9, 17)).cells, expected)
