"""Example images of a run, and the copy of its model that looks at them."""

import pytest
import torch
from lightning import seed_everything
from PIL import Image
from torch.testing import assert_close

from vit.data.image_files import ImageFiles
from vit.data.module import ImageSet
from vit.explain import explain
from vit.objectives import ViTClassifier
from vit.training.example_images import evaluating, first_of_each_class, model_copy


@pytest.fixture
def classifier():
    seed_everything(0, verbose=False)
    kwargs = {"image_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 2, "num_classes": 3}
    return ViTClassifier(mean=[0.1] * 3, std=[0.5] * 3, **kwargs)


def test_the_model_is_as_before_after_an_analysis_of_its_copy(classifier):
    classifier.train()
    classifier.network.blocks[0].eval()
    classifier.network.blocks[1].compile()
    before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    modes = [module.training for module in classifier.modules()]
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    random_state = torch.get_rng_state()
    with (
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        model_copy(classifier, pixels) as (model, images),
    ):
        assert images.dtype == torch.float32
        assert explain(model, images, "relevance").shape == (2, 2, 2)
        assert not torch.is_autocast_enabled("cpu")
    assert modes == [module.training for module in classifier.modules()]
    assert classifier.network.blocks[1]._compiled_call_impl is not None
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.state_dict().items())
    assert all(parameter.grad is None for parameter in classifier.parameters())


def test_the_copy_takes_images_normalised_as_in_training(classifier):
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    with model_copy(classifier, pixels) as (model, images), torch.no_grad():
        assert_close(model(images), classifier.eval()(pixels))


def test_an_objective_is_evaluated_and_each_module_gets_its_mode_back_also_after_an_error(classifier):
    classifier.train()
    frozen = classifier.network.blocks[0].eval()

    def draw():
        with evaluating(classifier):
            assert not any(module.training for module in classifier.modules())
            assert torch.is_inference_mode_enabled()
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        draw()
    assert not any(module.training for module in frozen.modules())
    assert classifier.training
    assert classifier.network.head.training


def test_examples_take_turns_among_the_classes():
    labels = torch.tensor([2, 2, 0, 0, 0, 2])
    images = torch.arange(6)[:, None, None, None]
    chosen, theirs = first_of_each_class(ImageSet(images, labels), 5)
    assert chosen.flatten().tolist() == [2, 0, 3, 1, 4]
    assert theirs.tolist() == [0, 2, 0, 2, 0]
    assert len(first_of_each_class(ImageSet(images, labels), 100)[0]) == 6


def test_examples_are_read_from_files(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(paths):
        Image.new("L", (4, 4), 100 * number).save(path)
    image_set = ImageSet(ImageFiles(paths, [1, 0], (4, 4), 1), torch.tensor([1, 0]))
    images, labels = first_of_each_class(image_set, 2)
    assert images[:, 0, 0, 0].tolist() == [100, 0]
    assert labels.tolist() == [0, 1]
    paths[0].write_text("no image")
    with pytest.raises(ValueError, match=r"0\.png"):
        first_of_each_class(image_set, 2)
