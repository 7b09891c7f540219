"""Fine-tuning of released weights: the recipe, on a tiny model."""

import released_tuning
import torch

import vit


def test_all_weights_are_trained_and_dark_images_are_told_from_bright_ones():
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "patch_drop": 0.5}
    model = vit.VisionTransformer(**sizes)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters() if "head" not in name}
    labels = torch.arange(400) % 2
    images = torch.randn(400, 3, 8, 8) / 4 + labels[:, None, None, None]
    released_tuning.tune(model, images, labels, seed=0)
    assert not model.training
    assert model.num_classes == 2
    assert (model(images).argmax(dim=1) == labels).float().mean() > 0.95
    after = dict(model.named_parameters())
    assert all(not torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_row_is_a_model_with_its_seeds(unpadded):
    cells = {
        str(seed): {"model": "ours", "side": 32, "seed": seed, "seconds": 60.0 * seed, "accuracy": 0.5 + seed / 10}
        for seed in (1, 2)
    }
    assert "| ours | 32 x 32 | 65.0 ± 7.1 % | 1.5 ± 0.7 |" in unpadded(released_tuning.table(cells))
    assert released_tuning.note(cells).endswith("seeds 1, 2.")
