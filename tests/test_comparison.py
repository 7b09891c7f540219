"""docs/comparison.md: cells of ours link to tests, and the cells of other libraries that can be tried are."""

import re
from pathlib import Path

import pytest
import timm
import timm.optim
import torch
import torchvision
from timm.models.vision_transformer import checkpoint_filter_fn
from timm.utils import AttentionExtract
from torch import nn
from transformers import ViTConfig, ViTForImageClassification
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.recorder import Recorder

PAGE = Path(__file__).parents[1] / "docs/comparison.md"
TABLES = [
    [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE)
]
IMAGES, SQUARE, WIDE = (torch.zeros(2, 3, 16, 16), torch.zeros(2, 3, 24, 24), torch.zeros(2, 3, 16, 24))


def of_timm(**kwargs):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **sizes | kwargs).eval()


def of_transformers(**kwargs):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    return ViTForImageClassification(ViTConfig(**sizes | {"image_size": 16, "patch_size": 4} | kwargs)).eval()


def of_torchvision(**kwargs):
    sizes = {"image_size": 16, "patch_size": 4, "num_layers": 2, "num_heads": 3, "hidden_dim": 24, "mlp_dim": 48}
    return torchvision.models.VisionTransformer(**sizes | kwargs).eval()


def of_vit_pytorch(**kwargs):
    sizes = {"image_size": 16, "patch_size": 4, "num_classes": 5, "dim": 24, "depth": 2, "heads": 3, "mlp_dim": 48}
    return ViT(**sizes | kwargs).eval()


class AtAnySize(nn.Module):
    """A model of transformers that resizes its positions."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images, interpolate_pos_encoding=True).logits


def test_every_row_has_all_columns_and_each_cell_of_ours_names_files_of_tests():
    *tried, three_more, for_maps = TABLES
    assert {len(table[0]) for table in tried} == {6}
    assert (len(three_more[0]), len(for_maps[0])) == (4, 7)
    for table in TABLES:
        assert {len(row) for row in table} == {len(table[0])}
        assert all(all(row) for row in table[2:])
    assert {table[0][1] for table in tried} == {"vit"}
    for row in [row for table in tried for row in table[2:]]:
        linked = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\)", row[1])
        assert linked, row[0]
        assert all("\ndef test_" in (PAGE.parents[1] / file).read_text() for file in linked)


def test_other_sizes_need_a_switch_in_timm_and_transformers_and_fail_elsewhere():
    assert of_timm(dynamic_img_size=True)(WIDE).shape == (2, 5)
    assert AtAnySize(of_transformers())(WIDE).shape == (2, 2)
    for model in (of_timm(), of_transformers(), of_torchvision(), of_vit_pytorch()):
        with pytest.raises((AssertionError, ValueError, RuntimeError)):
            model(SQUARE)


def test_smaller_images_take_positions_of_other_places_in_vit_pytorch():
    model, small = of_vit_pytorch(), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        logits = model(small)
        model.pos_embedding[3:5] += torch.randn(24)  # the class token is 0: the third and fourth patch of the first row
        assert not torch.allclose(model(small), logits)
        logits = model(small)
        model.pos_embedding[5:] += torch.randn(24)  # the second row, which has two patches of the small image
        assert torch.equal(model(small), logits)


def test_training_on_images_that_are_not_square_is_for_all_but_torchvision_and_then_one_size_in_transformers():
    assert of_timm(img_size=(16, 24))(WIDE).shape == (2, 5)
    assert of_vit_pytorch(image_size=(16, 24))(WIDE).shape == (2, 5)
    wide = of_transformers(image_size=(16, 24))
    assert wide(WIDE).logits.shape == (2, 2)
    with pytest.raises(RuntimeError, match="invalid for input"):
        AtAnySize(wide)(SQUARE)
    with pytest.raises(TypeError):
        of_torchvision(image_size=(16, 24))


def test_other_channels_are_for_all_but_torchvision():
    grey = torch.zeros(2, 1, 16, 16)
    for model in (of_timm(in_chans=1), of_transformers(num_channels=1), of_vit_pytorch(channels=1)):
        model(grey)
    with pytest.raises(TypeError, match="in_channels"):
        of_torchvision(in_channels=1)


@pytest.mark.parametrize("make", [of_transformers, of_torchvision])
def test_timm_reads_neither_transformers_nor_torchvision(make):
    model = of_timm()
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(checkpoint_filter_fn(make().state_dict(), model))


@pytest.mark.parametrize("make", [of_torchvision, of_vit_pytorch])
def test_torchvision_and_vit_pytorch_read_their_own_weights(make):
    with pytest.raises(RuntimeError, match="Missing key"):
        make().load_state_dict(of_timm().state_dict())


def test_trained_models_of_timm_and_torchvision():
    assert len(timm.list_models(pretrained=True)) > 1000
    assert len([name for name in torchvision.models.list_models() if name.startswith("vit_")]) == 5


@pytest.mark.filterwarnings("ignore")
def test_attention_is_not_there_as_models_are_built():
    assert AttentionExtract(of_timm(), method="hook")(IMAGES) == {}
    with pytest.raises(RuntimeError, match="No node names found"):
        AttentionExtract(of_timm(), method="fx")
    model = of_transformers()
    assert model(IMAGES, output_attentions=True).attentions == ()
    model.set_attn_implementation("eager")
    assert len(model(IMAGES, output_attentions=True).attentions) == 2
    assert Recorder(of_vit_pytorch())(IMAGES)[1].shape == (2, 2, 3, 17, 17)
    simple = SimpleViT(image_size=16, patch_size=4, num_classes=5, dim=24, depth=2, heads=3, mlp_dim=48)
    assert Recorder(simple)(IMAGES)[1] is None


def test_features_are_maps_in_timm_and_tokens_in_transformers():
    assert of_timm().get_intermediate_layers(IMAGES, n=1, reshape=True)[0].shape == (2, 24, 4, 4)
    assert of_transformers()(IMAGES, output_hidden_states=True).hidden_states[0].shape == (2, 17, 24)


@pytest.mark.parametrize("make", [of_timm, of_transformers, of_torchvision, of_vit_pytorch])
def test_all_compile_to_one_graph(make):
    torch.compile(make(), fullgraph=True, backend="eager")(IMAGES)


def export(model, example=IMAGES):
    rows, columns = (4 * torch.export.Dim(name, min=2) for name in ("rows", "columns"))
    shapes = ({0: torch.export.Dim("batch", min=1), 2: rows, 3: columns},)
    return torch.export.export(model, (example,), dynamic_shapes=shapes, strict=False).module()


def test_programs_take_images_of_any_size_in_timm_and_of_some_sizes_in_transformers():
    program = export(of_timm(dynamic_img_size=True))
    assert [len(program(images)) for images in (IMAGES, SQUARE, WIDE)] == [2, 2, 2]
    at_any_size = AtAnySize(of_transformers())
    of_training, of_others = export(at_any_size), export(at_any_size, WIDE)
    for program, taken, refused in ((of_training, IMAGES, SQUARE), (of_others, SQUARE, IMAGES)):
        program(taken)
        with pytest.raises(AssertionError, match="Guard failed"):
            program(refused)


@pytest.mark.parametrize("make", [of_torchvision, of_vit_pytorch])
def test_programs_of_torchvision_and_vit_pytorch_are_for_the_size_of_the_training(make):
    with pytest.raises(Exception, match=r"Guard failed|Constraints violated"):
        export(make())(WIDE)


def test_the_learning_rates_of_timm_are_equal_beside_a_field_that_differs():
    groups = timm.optim.create_optimizer_v2(of_timm(), "adamw", lr=1e-3, layer_decay=0.5).param_groups
    assert {group["lr"] for group in groups} == {1e-3}
    assert len({group["lr_scale"] for group in groups}) > 2
