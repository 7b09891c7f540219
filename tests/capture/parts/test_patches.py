"""The experiment that finds which token is which patch."""

import pytest
import torch
from torch import nn

from tests.architectures import ours, randomised
from vit.capture.experiments.graph import attentions_behind
from vit.capture.interception.head_order import heads_first_calls
from vit.capture.parts.patches import Layout, find_patches


def found(model, images, num_tokens, call=0):
    return find_patches(model, images[:1], call, num_tokens)


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (5, 1), (2, 2), (3, 5), (7, 2)], ids=str)
@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("patch", [(2, 2), (3, 5)], ids=str)
def test_every_grid_is_found_behind_its_prefix_tokens(grid, registers, patch):
    size = (grid[0] * patch[0], grid[1] * patch[1])
    model = randomised(ours(image_size=size, patch_size=patch, num_registers=registers, depth=1)())
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1)).double()
    assert found(model, images, grid[0] * grid[1] + 1 + registers) == Layout(grid, 1 + registers)


def test_an_image_of_one_colour_is_changed_all_the_same():
    assert found(randomised(ours()()), torch.ones(1, 3, 6, 10).double(), 16) == Layout((3, 5), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_does_not_count_as_movement(dtype):
    model = randomised(ours(num_registers=2)()).to(dtype)
    assert found(model, torch.randn(1, 3, 6, 10).to(dtype), 18) == Layout((3, 5), 3)


class Loud(nn.Module):
    """A class token made of the whole image, which changes far more than the patches."""

    def __init__(self, scale):
        super().__init__()
        self.vit, self.whole, self.scale = ours(depth=1)(), nn.Linear(3 * 6 * 10, 12), scale

    def forward(self, images):
        tokens = self.vit.embed(images)
        whole = self.scale * self.whole(images.flatten(1))[:, None]
        block = self.vit.blocks[0]
        attn = block.attn  # no norm before it
        tokens = torch.cat([tokens[:, :1] + whole, tokens[:, 1:]], dim=1)
        return self.vit.forward_head(self.vit.norm(tokens + attn(tokens)))


@pytest.mark.parametrize("scale", [1, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_class_token_of_the_whole_image_is_no_patch_however_much_it_changes(dtype, scale):
    model = randomised(Loud(scale)).to(dtype)
    assert found(model, torch.randn(1, 3, 6, 10).to(dtype), 16) == Layout((3, 5), 1)


class Constant(nn.Module):
    """The state of a recurrent model begins without the image, which is added later."""

    def __init__(self):
        super().__init__()
        self.vit = ours(depth=1)()
        self.state = nn.Parameter(torch.randn(1, 16, 12))

    def forward(self, images):
        tokens, state = self.vit.embed(images), self.state
        state = self.vit.blocks[0](state.expand_as(tokens)) + tokens
        return self.vit.forward_head(self.vit.norm(state))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_that_do_not_depend_on_the_image_are_no_patches(dtype, seed):
    torch.manual_seed(seed)
    model = randomised(Constant()).to(dtype)
    assert found(model, torch.randn(1, 3, 6, 10).to(dtype), 16) is None


class Stem(nn.Module):
    """A model of ours behind convolutions, whose patches overlap and whose norm is over the whole image."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
        )
        self.vit = ours(image_size=(24, 40), patch_size=4)()

    def forward(self, images):
        return self.vit(self.stem(images))


def test_patches_behind_convolutions_and_a_norm_over_the_image_are_found():
    images = torch.randn(1, 3, 48, 80, generator=torch.Generator().manual_seed(1)).double()
    assert found(randomised(Stem()), images, 61) == Layout((6, 10), 1)


class Windows(nn.Module):
    """Attention in four windows of 2 x 2 patches, which share their queries' numbers."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 2, stride=2)

    def forward(self, images):
        x = self.patches(images).unflatten(2, (2, 2)).unflatten(4, (2, 2))  # (B, D, 2, 2, 2, 2)
        x = x.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)  # (B, windows, tokens, D)
        return nn.functional.scaled_dot_product_attention(x, x, x).mean(dim=(1, 2))


def test_tokens_of_several_windows_are_no_grid():
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    assert found(Windows().double().eval(), images, 4) is None


def test_the_forward_pass_ends_at_the_attention_that_is_looked_at():
    model, calls = randomised(ours()()), []
    heads_first_calls(model, torch.randn(2, 3, 6, 10).double())  # looked at once for each model, in a whole pass
    model.blocks[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    assert found(model, torch.randn(1, 3, 6, 10).double(), 16) is not None
    assert not calls


def test_an_attention_is_behind_all_that_was_computed_from_it():
    first, second, aside = (torch.rand(3, requires_grad=True).clone() for _ in range(3))
    chained = second * first.sum()
    nodes = [x.grad_fn for x in (first, second, aside)]
    assert attentions_behind(chained, nodes) == {0, 1}
    assert attentions_behind(chained.detach(), nodes) == set()
    assert attentions_behind(first.grad_fn, nodes[1:]) == set()
