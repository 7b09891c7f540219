"""The parts of ViTs of five libraries."""

import copy
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import vit
from tests.architectures import EXACT, LIBRARIES, ours, randomised
from tests.capture.test_invented_models import IMAGES as INVENTED
from tests.capture.test_invented_models import invented
from tests.capture.wrapped_model import Around
from vit.capture.anatomy import examine, patch_grid
from vit.capture.parts.token_places import Boundary
from vit.capture.parts.trace import Parts
from vit.explain import explain, logit_lens
from vit.explain.maps.subject import Subject


def test_grid_prefix_tokens_depth_and_readout_are_found(architecture, model, images):
    anatomy = examine(model, images)
    assert anatomy.grid == architecture.grid
    assert anatomy.num_prefix_tokens == architecture.prefix
    assert anatomy.num_tokens == architecture.tokens
    assert anatomy.depth == architecture.depth
    assert anatomy.pooled == architecture.pooled
    rows, columns = architecture.grid
    assert anatomy.patches == slice(architecture.prefix, architecture.prefix + rows * columns)
    assert_close(anatomy.readout, architecture.readout, check_dtype=False)
    assert anatomy.readout.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", LIBRARIES)
def test_parts_of_frozen_models_are_found_without_gradients_of_the_caller(architecture, model, images):
    with torch.no_grad():
        anatomy = examine(copy.deepcopy(model).requires_grad_(False), images)
    assert_close(anatomy.readout, architecture.readout, check_dtype=False)


# How each library names the parts: where tokens enter, the layers, their first norms, the last norm.
PARTS = {
    "ours": ("blocks", "norm1", "norm"),
    "timm": ("blocks", "norm1", "norm"),
    "torchvision": ("encoder.layers", "ln_1", "encoder.ln"),
    "transformers, ViT": ("vit.layers", "layernorm_before", "vit.layernorm"),
    "transformers, DINOv2": ("dinov2.encoder.layer", "norm1", "dinov2.layernorm"),
    "transformers, DINOv2 with registers": (
        "dinov2_with_registers.encoder.layer",
        "norm1",
        "dinov2_with_registers.layernorm",
    ),
    "transformers, DeiT with teacher": ("deit.layers", "layernorm_before", "deit.layernorm"),
    "vit-pytorch": ("transformer.layers", "0.norm", "transformer.norm"),
    "torch": ("encoder.layers", "norm1", "encoder.norm"),
}


def tokens_at(model, images, boundaries):
    """The tokens that pass each boundary."""
    seen = {}

    def keep(i):
        return lambda tokens: seen.setdefault(i, tokens)

    with torch.no_grad(), ExitStack() as stack:
        for i, boundary in enumerate(boundaries):
            stack.enter_context(boundary.changed(keep(i)))
        model(images)
    return [seen[i] for i in range(len(boundaries))]


def test_tokens_are_read_where_they_enter_each_layer_leave_its_norm_and_enter_the_last_norm(name, model, images):
    layers, first_norm, last_norm = PARTS.get(name.split(", eager")[0]) or PARTS[name.split(",")[0]]
    layers = list(model.get_submodule(layers))
    # vit-pytorch joins attention and MLP of a layer in a list, which is never called; the attention comes first.
    called = [layer[0] if isinstance(layer, nn.ModuleList) else layer for layer in layers]
    expected = tokens_at(
        model,
        images,
        [
            Boundary(called[0], "input"),
            *(Boundary(layer, "input") for layer in called),
            *(Boundary(layer.get_submodule(first_norm), "output") for layer in layers),
            Boundary(model.get_submodule(last_norm), "input"),
        ],
    )
    parts = examine(model, images).parts
    found = [parts.entry, *parts.layers, *(of_layer[0] for of_layer in parts.before_attention), parts.last]
    assert_close(tokens_at(model, images, found), expected, rtol=0, atol=0)
    assert [model.get_submodule(layer) for layer in parts.layer_names] == layers


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_layers_get_all_their_tokens_at_the_entry(model, images):
    entry = examine(model, images).parts.entry

    def logits(tokens):
        with torch.no_grad(), entry.changed(lambda _: tokens):
            output = model(images)
        return getattr(output, "logits", output)

    (tokens,) = tokens_at(model, images, [entry])
    with torch.no_grad():
        plain = model(images)
    assert_close(logits(tokens), getattr(plain, "logits", plain), **EXACT)
    # Nothing of the image passes by the entry, not along the residual stream either.
    alike = logits(tokens[:1].expand_as(tokens))
    assert_close(alike[0], alike[1], **EXACT)
    assert not logits(tokens)[0].allclose(logits(tokens)[1])


def test_a_boundary_is_changed_only_within(random_vit):
    model, images = random_vit(), torch.randn(2, 3, 6, 10).double()
    with torch.no_grad():
        plain = model(images)
        for boundary in (Boundary(model.blocks[1], "input"), Boundary(model.blocks[1], "output")):
            with boundary.changed(lambda tokens: 2 * tokens):
                assert not model(images).allclose(plain)
            assert_close(model(images), plain, rtol=0, atol=0)
            with pytest.raises(ZeroDivisionError), boundary.changed(lambda tokens: 1 / 0):
                model(images)
            assert_close(model(images), plain, rtol=0, atol=0)


class Named(nn.Module):
    """A block that is called by keyword, and returns its tokens in a tuple."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden, grid=None):
        return self.block(hidden, grid), "and more"


class CallsByName(nn.Module):
    """A model that calls them so."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit
        self.layers = nn.ModuleList(Named(block) for block in vit.blocks)

    def forward(self, images):
        tokens = self.vit.embed(images)
        for layer in self.layers:
            tokens, _ = layer(hidden=tokens, grid=(3, 5))
        return self.vit.forward_head(self.vit.norm(tokens))


def test_layers_called_by_keyword_that_return_tuples_are_followed(random_vit):
    vit, images = random_vit(), torch.randn(2, 3, 6, 10).double()
    wrapped = CallsByName(vit).eval()
    for method in ("token_drop", "gradcam", "legrad", "rollout"):
        assert_close(explain(wrapped, images, method), explain(vit, images, method), **EXACT)
    for side in ("input", "output"):
        with torch.no_grad(), Boundary(wrapped.layers[1], side).changed(lambda tokens: 0 * tokens):
            alike = wrapped(images)
        assert_close(alike[0], alike[1], **EXACT)


def test_a_vit_inside_other_modules_is_found(random_vit):
    vit, images = random_vit(num_registers=2), torch.randn(2, 3, 6, 10).double()
    inside = nn.Sequential(nn.Identity(), nn.ModuleDict({"a": vit})["a"]).eval()
    found, expected = examine(inside, images), examine(vit, images)
    assert (found.grid, found.num_prefix_tokens, found.depth) == ((3, 5), 3, 3)
    assert_close(found.readout, expected.readout)
    assert found.parts.layer_names == ["1.blocks.0", "1.blocks.1", "1.blocks.2"]


def test_a_model_of_one_layer_has_its_parts(random_vit):
    vit, images = random_vit(depth=1), torch.randn(2, 3, 6, 10).double()
    anatomy = examine(vit, images)
    assert anatomy.parts.layer_names == ["blocks.0"]
    found = tokens_at(vit, images, [anatomy.parts.layers[0], anatomy.parts.before_attention[0][0], anatomy.parts.last])
    expected = [Boundary(vit.blocks[0], "input"), Boundary(vit.blocks[0].norm1, "output"), Boundary(vit.norm, "input")]
    assert_close(found, tokens_at(vit, images, expected), rtol=0, atol=0)


def shared_layers(vit, images):
    """One block for all layers, as in ALBERT."""
    tokens = vit.embed(images)
    for _ in range(3):
        tokens = vit.blocks[0](tokens)
    return vit.forward_head(vit.norm(tokens))


def test_layers_that_share_one_module_have_no_names_but_maps_of_attention(random_vit):
    model, images = Around(random_vit(depth=1), shared_layers).eval(), torch.randn(2, 3, 6, 10).double()
    anatomy = examine(model, images)
    assert anatomy.depth == 3
    assert anatomy.parts == Parts(entry=None, layer_names=[], layers=[], before_attention=[], last=None)
    assert explain(model, images, "relevance").shape == (2, 3, 5)
    with pytest.raises(ValueError, match=r"legrad needs a module for each layer that takes .*, and one after"):
        explain(model, images, "legrad")
    with pytest.raises(ValueError, match=r"gradcam needs a module for each layer that takes .*: choose 'relevance'"):
        explain(model, images, "gradcam")
    with pytest.raises(ValueError, match=r"cannot be left out, as .*: choose 'occlusion'"):
        explain(model, images, "token_drop")


def test_a_head_of_zeros_is_taken_to_read_the_first_token(random_vit):
    model = random_vit()
    nn.init.zeros_(model.head.weight)
    readout = examine(model, torch.randn(2, 3, 6, 10).double()).readout
    assert readout.tolist() == [1.0] + 15 * [0.0]


# Grid and number of prefix tokens given by the user.


def test_a_given_grid_and_prefix_that_agree_are_taken(random_vit):
    model, images = random_vit(num_registers=2), torch.randn(2, 3, 6, 10).double()
    anatomy = examine(model, images, grid=(3, 5), num_prefix_tokens=3)
    assert (anatomy.grid, anatomy.patches) == ((3, 5), slice(3, 18))
    assert explain(model, images, "uniform", grid=(3, 5)).shape == (2, 3, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grid": (5, 3)}, "3 prefix tokens and 5 x 3"),
        ({"grid": (4, 5)}, "3 prefix tokens and 4 x 5"),
        ({"num_prefix_tokens": 2}, "2 prefix tokens and 3 x 5"),
    ],
)
def test_a_given_grid_or_prefix_that_pixels_contradict_is_refused(options, said, random_vit):
    found = "changed strips of an image move 3 x 5 patches after 3 tokens: leave out grid and num_prefix_tokens"
    with pytest.raises(ValueError, match=f"was said to have {said} patches, but {found}"):
        explain(random_vit(num_registers=2), torch.randn(2, 3, 6, 10).double(), **options)


def test_the_grid_is_rows_then_columns():
    class Patches(nn.Module):
        patch_size = (2, 5)

    assert patch_grid(Patches(), torch.empty(1, 3, 6, 35)) == (3, 7)
    assert patch_grid(nn.Sequential(nn.ReLU(), Patches()), torch.empty(1, 3, 2, 10)) == (1, 2)
    with pytest.raises(ValueError, match="images of 7 x 35 pixels are no whole number of patches of 2 x 5: resize"):
        patch_grid(Patches(), torch.empty(1, 3, 7, 35))
    with pytest.raises(ValueError, match="images of 6 x 36 pixels are no whole number of patches of 2 x 5: resize"):
        patch_grid(Patches(), torch.empty(1, 3, 6, 36))


def test_the_grid_of_a_model_that_does_not_say_its_patch_size_is_found():
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.attend = nn.Conv2d(3, 12, 2, stride=2), nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, images):
            x = self.patches(images).flatten(2).mT
            return self.attend(x, x, x)[0].mean(dim=1)

    model, images = Silent().eval(), torch.randn(2, 3, 6, 10)
    assert explain(model, images, residual=0.0).shape == (2, 3, 5)
    assert explain(model, images, "occlusion").shape == (2, 3, 5)


def test_several_attentions_of_one_query_are_refused(random_vit):
    class PooledTwice(nn.Module):
        def __init__(self, vit):
            super().__init__()
            self.vit, self.attend = vit, nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, images):
            x = self.vit.forward_features(images)
            x = self.attend(x[:, :1], x, x)[0] + self.attend(x[:, 1:2], x, x)[0]
            return self.vit.head(x[:, 0])

    model = PooledTwice(random_vit()).double().eval()
    with pytest.raises(
        ValueError, match=r"PooledTwice has 3 attentions of all tokens and 2 of one query .* only a single, last"
    ):
        explain(model, torch.randn(2, 3, 6, 10).double())


def test_a_model_that_is_random_is_refused(random_vit):
    model = Around(random_vit(), lambda vit, images: vit(images) + torch.randn(2, 7)).eval()
    with pytest.raises(
        ValueError, match=r"the logits of Around differ by .* between two passes of the same images: the model is r"
    ):
        explain(model, torch.randn(2, 3, 6, 10).double())


def test_only_the_first_images_and_strips_of_one_are_passed(random_vit):
    model, batches = random_vit(), []
    handle = model.register_forward_pre_hook(lambda _, args: batches.append(len(args[0])))
    assert Subject(model, torch.randn(5, 3, 6, 10).double()).anatomy.depth == 3
    handle.remove()
    # Five strips of rows at most, six of columns, beside the image itself.
    assert max(batches) <= 11
    # Two ask whether the model is random, two whether images change each other, five how far images move the logits,
    # one whether the layers hold the residual stream, and one where it ends.
    assert batches.count(2) == 16
    assert batches.count(3) == 2  # the last tokens of the first image in the passes of both, or those before the last
    assert batches[4:10] == [5, 2, 5, 5, 5, 5]  # whether images change each other


@pytest.mark.parametrize(
    "name", ["vit_dlittle_patch16_reg1_gap_256", "vit_small_patch16_18x2_224"], ids=["differential", "parallel"]
)
def test_attentions_side_by_side_are_not_taken_for_layers_in_a_row(name):
    import timm

    model = timm.create_model(name, img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=3).eval()
    with pytest.raises(ValueError, match="VisionTransformer has attentions side by side"):
        examine(model, torch.randn(1, 3, 32, 32))


def test_parts_are_found_in_inference_mode_too(random_vit):
    model, images = random_vit(), torch.randn(1, 3, 6, 10).double()
    expected = examine(model, images)
    with torch.inference_mode():
        assert_close(examine(model, images).readout, expected.readout)


class Grouped(nn.Module):
    """A model whose blocks are in groups, as those of large DINOv2 models."""

    def __init__(self, whole):
        super().__init__()
        self.whole = [whole]  # no module of its own
        self.norm, self.head = whole.norm, whole.head
        self.stages = nn.ModuleList([nn.Sequential(*whole.blocks[:2]), nn.Sequential(*whole.blocks[2:])])

    def forward(self, images):
        tokens = self.whole[0].embed(images)
        for stage in self.stages:
            tokens = stage(tokens)
        return self.head(self.norm(tokens)[:, 0])


def test_blocks_in_groups_are_layers_of_their_own():
    whole = vit.VisionTransformer((6, 10), 2, embed_dim=12, depth=4, num_heads=3, num_classes=7).eval()
    nn.init.normal_(whole.head.weight)
    grouped, images = Grouped(whole).eval(), torch.randn(2, 3, 6, 10)
    names = ["stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1"]
    assert examine(grouped, images).parts.layer_names == names
    assert_close(logit_lens(grouped, images), logit_lens(whole, images))
    for method in ("gradcam", "legrad"):
        assert_close(explain(grouped, images, method), explain(whole, images, method))


class Cropping(nn.Module):
    """A Vision Transformer that changes each image by what it shows: ``change(image)``, if its mean is above 0."""

    def __init__(self, model, change):
        super().__init__()
        self.model, self.change = model, change

    def forward(self, images):
        return self.model(torch.stack([self.change(image) if image.mean() > 0 else image for image in images]))


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.flip(-1),
        lambda image: image.roll(4, -1),
        lambda image: image[:, :, 2:-2].repeat(1, 1, 2)[:, :, :10],
    ],
    ids=["mirrored", "rolled", "cropped"],
)
def test_images_whose_patches_have_other_pixels_are_refused_together(random_vit, change):
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 3, 6, 10, generator=generator).double()
    images = torch.stack([one - 1, other + 1])
    model = Cropping(random_vit(), change).eval()
    with pytest.raises(ValueError, match="Cropping takes its patches from other pixels of each image"):
        examine(model, images)
    with pytest.raises(ValueError, match="Cropping takes its patches from other pixels of each image"):
        explain(model, images)
    assert explain(model, images[:1]).shape == (1, 3, 5)


def test_a_model_with_as_many_channels_as_tokens_is_examined():
    """Its map of patches, flattened, has as many channels as there are tokens."""
    model = randomised(ours(embed_dim=16, num_heads=1)())
    assert examine(model, torch.randn(2, 3, 6, 10).double()).grid == (3, 5)


@pytest.mark.parametrize("difference", [0, 1e-7, 1e-6, 1e-3])
def test_images_that_are_nearly_equal_hide_nothing(difference):
    """As two decoders make them of one file."""

    def run(model, images):
        beside = model.head(model.patches(images).mean(dim=(2, 3)))
        return model.read(model.through(model.embed(images))) + beside

    model = invented(run=run).float()
    images = torch.cat([INVENTED[:1], INVENTED[:1] + difference * INVENTED[1:2]]).float()
    with pytest.raises(ValueError, match="the logits of Invented read more than its last tokens"):
        explain(model, images, "rollout")
