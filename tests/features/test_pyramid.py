"""The simple feature pyramid: against a slow and plain form, by the pixels that a cell sees, in detectors, trained."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce, repeat
from torch import nn
from torch.testing import assert_close
from torchvision.models.detection import FasterRCNN, RetinaNet

import vit
from vit.features import FeaturePyramid

KINDS = BACKGROUND, DISC, SQUARE = range(3)
SIDE = 32


def backbone(patch=4, grid=(5, 7), **kwargs):
    size = (grid[0] * patch, grid[1] * patch)
    model = vit.VisionTransformer(size, patch, embed_dim=24, depth=2, num_heads=3, num_classes=0, **kwargs)
    return model.double().eval()


def pyramid_of(model, strides=(4, 8, 16, 32), out_channels=6):
    """A pyramid all of whose weights are drawn, norms included."""
    pyramid = FeaturePyramid(model, out_channels, strides)
    for parameter in pyramid.levels.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    return pyramid


def images_of(model, count=2):
    return torch.randn(count, 3, *model.patch_embed.image_size, dtype=torch.float64)


def plain_norm(x, norm):
    centred = x - x.mean(dim=1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()
    return scaled * norm.weight[:, None, None] + norm.bias[:, None, None]


def plain_double(x, layer):
    """Every cell becomes a 2 x 2 block."""
    blocks = einsum(x, layer.weight, "b c h w, c d p q -> b d h p w q")
    return rearrange(blocks, "b d h p w q -> b d (h p) (w q)") + layer.bias[:, None, None]


def plain_pool(x, cells):
    """Every block of cells becomes its maximum; blocks at the border may be smaller."""
    below, right = -x.shape[2] % cells, -x.shape[3] % cells
    return reduce(
        F.pad(x, (0, right, 0, below), value=-torch.inf), "b d (h p) (w q) -> b d h w", "max", p=cells, q=cells
    )


def plain_end(x, layers):
    narrow, first, wide, second = layers
    x = plain_norm(einsum(x, narrow.weight[..., 0, 0], "b c h w, d c -> b d h w"), first)
    around = F.pad(x, (1, 1, 1, 1))
    rows, columns = x.shape[2:]
    neighbours = torch.stack([around[:, :, i : i + rows, j : j + columns] for i in range(3) for j in range(3)])
    weight = rearrange(wide.weight, "d c i j -> (i j) d c")
    return plain_norm(einsum(neighbours, weight, "n b c h w, n d c -> b d h w"), second)


@pytest.mark.parametrize("grid", [(5, 7), (4, 8), (1, 1)])
def test_the_maps_are_those_of_a_slow_and_plain_form(grid):
    model = backbone(8, grid)
    pyramid, images = pyramid_of(model, (2, 4, 8, 16, 32)), images_of(model)
    last = rearrange(model.forward_features(images)[:, 1:], "b (h w) d -> b d h w", h=grid[0])
    quarter, half, same, double, fourfold = pyramid.levels
    twice = F.gelu(plain_norm(plain_double(last, quarter[0]), quarter[1]))
    expected = [
        plain_end(plain_double(twice, quarter[3]), quarter[4:]),
        plain_end(plain_double(last, half[0]), half[1:]),
        plain_end(last, same),
        plain_end(plain_pool(last, 2), double[1:]),
        plain_end(plain_pool(plain_pool(last, 2), 2), fourfold[1:]),
    ]
    found = pyramid(images)
    assert list(found) == ["0", "1", "2", "3", "4"]
    for one, other in zip(found.values(), expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("patch", "grid", "strides", "shapes"),
    [
        (4, (5, 7), (4, 8, 16, 32), [(5, 7), (3, 4), (2, 2), (1, 1)]),
        (16, (11, 3), (4, 8, 16, 32), [(44, 12), (22, 6), (11, 3), (6, 2)]),
        (14, (3, 5), (3.5, 7, 14, 28), [(12, 20), (6, 10), (3, 5), (2, 3)]),
        (7, (2, 13), (7,), [(2, 13)]),
        (32, (3, 1), (8, 64), [(12, 4), (2, 1)]),
    ],
)
def test_shapes_for_any_grid_and_stride_of_patches(patch, grid, strides, shapes):
    model = backbone(patch, grid)
    pyramid = FeaturePyramid(model, 6, strides)
    assert [tuple(found.shape) for found in pyramid(images_of(model)).values()] == [(2, 6, *shape) for shape in shapes]
    assert (pyramid.out_channels, pyramid.strides) == (6, strides)


def test_the_stride_counts_and_not_the_size_of_patches_that_overlap():
    model = vit.VisionTransformer((20, 28), 8, embed_dim=24, depth=1, num_heads=3, patch_stride=4)
    found = FeaturePyramid(model, 6, (2, 4, 8))(torch.randn(1, 3, 20, 28))
    assert [tuple(each.shape[2:]) for each in found.values()] == [(10, 14), (5, 7), (3, 4)]


def test_images_of_other_sizes_and_padded_ones_have_their_own_grids():
    model = backbone(4, (5, 7), pad_images=True)
    found = FeaturePyramid(model, 6, (2, 4, 8))(torch.randn(1, 3, 13, 18, dtype=torch.float64))
    assert [tuple(each.shape[2:]) for each in found.values()] == [(8, 10), (4, 5), (2, 3)]


def seen_pixels(pyramid, size, name, cell):
    """First and last row and column of the pixels that a cell depends on."""
    images = torch.randn(1, 3, *size, dtype=torch.float64, requires_grad=True)
    chosen = pyramid(images)[name][0, :, cell[0], cell[1]]
    (gradient,) = torch.autograd.grad(chosen @ torch.randn(len(chosen), dtype=torch.float64), images)
    rows, columns = reduce(gradient.abs(), "1 c h w -> h w", "max").nonzero().unbind(dim=1)
    return [(axis.min().item(), axis.max().item()) for axis in (rows, columns)]


@pytest.mark.parametrize("cell", [(0.5, 0.5), (0.2, 0.7), (0.0, 1.0), (0.9, 0.3)])
@pytest.mark.parametrize("name", ["0", "1", "2", "3"])
def test_a_cell_sees_the_pixels_at_its_place_and_those_of_the_cells_around_it(name, cell):
    stride, patch, grid = (2, 4, 8, 16)[int(name)], 8, (16, 24)
    # The class token would carry every patch to every other: here there is none, and a patch attends to itself.
    model = backbone(
        patch, grid, class_token=False, pool="mean", attention="neighborhood", attention_kwargs={"kernel": 1}
    )
    pyramid, size = pyramid_of(model, (2, 4, 8, 16), out_channels=16), model.patch_embed.image_size
    chosen = [int(share * (side // stride - 1)) for share, side in zip(cell, size, strict=True)]
    # The 3 x 3 convolution sees one cell more on each side, and a cell the whole patches that it touches.
    expected = [
        (max(i - 1, 0) * stride // patch * patch, -(-min((i + 2) * stride, side) // patch) * patch - 1)
        for i, side in zip(chosen, size, strict=True)
    ]
    assert seen_pixels(pyramid, size, name, chosen) == expected


def test_a_bright_square_is_at_the_same_place_of_all_maps():
    class Pixels(nn.Module):
        """A backbone whose map is the mean of each 8 x 8 pixels, its negative, and zeros."""

        feature_info = ({"num_chs": 8, "reduction": 8},)

        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(()))

        def forward_intermediates(self, images, indices, norm, output_fmt, intermediates_only):
            mean = reduce(images, "b c (h p) (w q) -> b 1 h w", "mean", p=8, q=8)
            return [torch.cat([mean, -mean, 0 * repeat(mean, "b 1 h w -> b d h w", d=6)], dim=1)]

    pyramid = FeaturePyramid(Pixels(), 2, (2, 4, 8, 16, 32))
    for layer in pyramid.levels.modules():  # every convolution copies the first two channels
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.zeros_(layer.weight)
            for i in range(2):
                middle = slice(None) if isinstance(layer, nn.ConvTranspose2d) else layer.kernel_size[0] // 2
                layer.weight.data[i, i, middle, middle] = 1
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    images = torch.zeros(1, 3, 64, 96)
    images[..., 32:64, 64:96] = 1
    found = pyramid(images)
    for stride, each in zip(pyramid.strides, found.values(), strict=True):
        bright = torch.zeros(64 // stride, 96 // stride)
        bright[32 // stride :, 64 // stride :] = 1  # a norm over two channels leaves the sign of their difference
        assert_close(each[0], torch.stack([bright, -bright]), atol=1e-3, rtol=0)


def test_gradients_reach_every_weight_of_the_backbone_unless_it_is_frozen():
    pyramid = pyramid_of(backbone(8, (4, 4)), (2, 8, 16))
    images = images_of(pyramid.model)
    sum(found.pow(3).sum() for found in pyramid(images).values()).backward()
    assert [name for name, value in pyramid.named_parameters() if value.grad is None or not value.grad.any()] == []
    pyramid.zero_grad()
    pyramid.model.requires_grad_(False)
    sum(found.pow(3).sum() for found in pyramid(images).values()).backward()
    assert all(value.grad is None for value in pyramid.model.parameters())
    assert all(value.grad.any() for value in pyramid.levels.parameters())


def test_the_weights_are_drawn_by_the_seed_and_have_the_type_of_the_backbone():
    model = backbone()
    pyramids = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        pyramids.append(FeaturePyramid(model, 6).levels.state_dict())
    first, same, other = pyramids
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["0.0.weight"], other["0.0.weight"])
    assert {value.dtype for value in first.values()} == {torch.float64}


@pytest.mark.parametrize(
    ("name", "kwargs", "strides"),
    [
        ("vit_tiny_patch16_224", {"img_size": 48, "depth": 2}, (4, 8, 16, 32)),
        ("vit_small_patch14_dinov2", {"img_size": 42, "depth": 2}, (7, 14)),
        ("convnext_atto", {"depths": (1, 1, 1, 1)}, (4, 8, 16, 32)),
    ],
)
def test_a_model_of_timm_is_taken(name, kwargs, strides):
    model = timm.create_model(name, **kwargs).eval()
    side = kwargs.get("img_size", 64)
    found = FeaturePyramid(model, 6, strides)(torch.randn(1, 3, side, side))
    assert [each.shape for each in found.values()] == [(1, 6, -(-side // each), -(-side // each)) for each in strides]


def test_the_same_weights_give_the_same_maps_in_our_model_and_in_that_of_timm():
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=2).double().eval()
    pyramid = pyramid_of(theirs)
    ours = FeaturePyramid(vit.load(theirs), 6)
    ours.levels.load_state_dict(pyramid.levels.state_dict())
    images = torch.randn(2, 3, 48, 48, dtype=torch.float64)
    for one, other in zip(ours(images).values(), pyramid(images).values(), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize(
    ("strides", "message"),
    [
        (
            (4, 12),
            r"stride 12 is not the stride of the patches \(8\) times or divided by a power of two: take some of 2, ",
        ),
        ((4, 7.5), r"stride 7\.5 is not the stride of the patches \(8\)"),
        ((8, 4), r"strides \(8, 4\) must grow from map to map: take \(4, 8\)"),
        ((4, 4), r"strides \(4, 4\) must grow from map to map: take \(4,\)"),
        ((0, 4), r"strides \(0\) must be a number above 0"),
        ((), r"strides \(\) name no map"),
        ((0.25, 8), "the 24 channels of the model cannot be halved 5 times, from stride 8 to 0.25: leave out"),
    ],
)
def test_strides_that_do_not_fit_are_refused(strides, message):
    with pytest.raises(ValueError, match=message):
        FeaturePyramid(backbone(8), 6, strides)


@pytest.mark.parametrize(
    ("out_channels", "message"),
    [(0, r"out_channels \(0\) must be a positive"), (1, r"out_channels \(1\) leaves nothing")],
)
def test_maps_without_channels_are_refused(out_channels, message):
    with pytest.raises(ValueError, match=message):
        FeaturePyramid(backbone(), out_channels)


def test_backbones_without_a_map_of_square_cells_are_refused():
    with pytest.raises(ValueError, match="the model is a Linear without timm's forward_intermediates and feature_info"):
        FeaturePyramid(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="patches are 4 rows and 8 columns apart, and a map has one stride for both"):
        FeaturePyramid(vit.VisionTransformer(32, (4, 8), embed_dim=24, depth=1, num_heads=3))
    oblong = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=(8, 16), depth=1)
    with pytest.raises(ValueError, match=r"images of \(32, 32\) pixels to \(4, 2\) cells, .* were 16 pixels apart"):
        FeaturePyramid(oblong, 6)(torch.randn(1, 3, 32, 32))
    pyramid = FeaturePyramid(model := backbone(8, (4, 4)), 6)
    model.set_input_size(patch_size=4)
    with pytest.raises(
        ValueError, match=r"\(32, 32\) pixels to \(8, 8\) cells, .* were 8 pixels .* build the pyramid again"
    ):
        pyramid(images_of(model))


@pytest.mark.parametrize("detector", [FasterRCNN, RetinaNet])
def test_detectors_of_torchvision_take_it_as_their_backbone(detector):
    torch.manual_seed(0)
    model = vit.VisionTransformer(64, 16, embed_dim=24, depth=1, num_heads=3)
    # Five maps for the five sizes of anchors that both have by default.
    pyramid = FeaturePyramid(model, 8, (4, 8, 16, 32, 64))
    network = detector(pyramid, num_classes=4, min_size=64, max_size=128, size_divisible=64)
    images = [torch.rand(3, 50, 70), torch.rand(3, 64, 64)]
    found = network.eval()(images)
    assert [sorted(each) for each in found] == [["boxes", "labels", "scores"]] * 2
    for each, image in zip(found, images, strict=True):
        assert (each["boxes"] >= 0).all()
        assert (each["boxes"] <= torch.tensor([*image.shape[:0:-1]] * 2)).all()
    targets = [{"boxes": torch.tensor([[4.0, 4.0, 40.0, 30.0]]), "labels": torch.tensor([1])}] * 2
    sum(network.train()(images, targets).values()).backward()
    assert model.patch_embed.proj.weight.grad.any()


def scenes(count, generator):
    """Noisy images with a disc and a square of any place, size and colour, and the class of each pixel."""

    def draw(low, high, *shape):
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    axis = torch.arange(SIDE) + 0.5
    images, labels = torch.zeros(count, 3, SIDE, SIDE), torch.full((count, SIDE, SIDE), BACKGROUND)
    disc_is_left = draw(0, 1, 1, 1) < 0.5
    for kind in (DISC, SQUARE):
        radius = draw(6, 8, 1, 1)
        left = torch.where(disc_is_left == (kind == DISC), 0, SIDE // 2)
        rows = axis[:, None] - radius - draw(0, 1, 1, 1) * (SIDE - 2 * radius)
        columns = axis - left - radius - draw(0, 1, 1, 1) * (SIDE / 2 - 2 * radius)
        if kind == DISC:
            inside = rows**2 + columns**2 < radius**2
        else:
            side = radius * math.pi**0.5  # of the same area
            inside = (rows.abs() < side / 2) & (columns.abs() < side / 2)
        signs = torch.randint(2, (count, 3, 1, 1), generator=generator) * 2 - 1
        images = torch.where(inside[:, None], signs * draw(0.3, 1, 3, 1, 1), images)
        labels[inside] = kind
    return images + 0.1 * torch.randn(images.shape, generator=generator), labels


def mean_iou(found, labels):
    overlaps = [
        ((found == kind) & (labels == kind)).sum() / ((found == kind) | (labels == kind)).sum() for kind in KINDS
    ]
    return torch.stack(overlaps).mean().item()


class Segmenter(nn.Module):
    """A tiny backbone, its pyramid, and a linear classifier of the cells of the finest map, which is enlarged."""

    def __init__(self):
        super().__init__()
        model = vit.VisionTransformer(SIDE, 4, embed_dim=48, depth=2, num_heads=3, num_classes=0)
        self.pyramid = FeaturePyramid(model, 32)
        self.head = nn.Conv2d(32, len(KINDS), kernel_size=1)

    def forward(self, images):
        return F.interpolate(self.head(self.pyramid(images)["0"]), size=images.shape[-2:], mode="bilinear")


def segmented():
    """The classes that a trained model finds in new images, and the true ones."""
    steps = 800
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Segmenter()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, cycle_momentum=False)
    for _ in range(steps):
        images, labels = scenes(8, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        schedule.step()
    images, labels = scenes(300, generator)
    with torch.no_grad():
        return model.eval()(images).argmax(dim=1), labels


# One test, because the workers of pytest-xdist would each train a model for tests of their own.
def test_a_segmenter_learns_more_than_outlines_and_colours_can_tell_as_it_tells_discs_from_squares():
    found, labels = segmented()
    constant = max(mean_iou(torch.full_like(labels, kind), labels) for kind in KINDS)
    # Colours say where a shape is, and nothing about which: perfect outlines, with one class for both shapes.
    outlines = max(mean_iou(labels.sign() * kind, labels) for kind in (DISC, SQUARE))
    assert constant < outlines < 0.55
    assert mean_iou(found, labels) > outlines + 0.2
    in_shapes = (labels != BACKGROUND) & (found != BACKGROUND)
    assert (found == labels)[in_shapes].float().mean() > 0.8
    assert ((found == BACKGROUND) == (labels == BACKGROUND)).float().mean() > 0.95
