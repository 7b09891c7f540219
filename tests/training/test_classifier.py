import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer

from vit.training import ViTClassifier

SIZES = {"image_size": 6, "patch_size": 3, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 5}


def test_images_are_normalised_here_whether_bytes_or_floats():
    model = ViTClassifier(mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7], **SIZES).eval()
    pixels = torch.randint(0, 256, (2, 3, 6, 6), dtype=torch.uint8)
    normalised = torch.stack([(pixels[:, i] / 255 - 0.1 * (i + 1)) / (0.5 + 0.1 * i) for i in range(3)], dim=1)
    torch.testing.assert_close(model(pixels), model.vit(normalised))
    torch.testing.assert_close(model(pixels / 255), model.vit(normalised))


@pytest.mark.parametrize("soft", [False, True])
def test_the_loss_is_cross_entropy_with_smoothed_hard_or_soft_targets(soft):
    model = ViTClassifier(label_smoothing=0.2, **SIZES)
    images = torch.rand(7, 3, 6, 6)
    targets = torch.rand(7, 5).softmax(1) if soft else torch.randint(0, 5, (7,))
    probabilities = targets if soft else F.one_hot(targets, 5)
    smoothed = 0.8 * probabilities + 0.2 / 5
    trainer = Trainer(log_every_n_steps=1000, accelerator="cpu", logger=False, enable_checkpointing=False)
    model._trainer = trainer
    model.loss_sum, model.loss_count = torch.zeros(()), 0
    loss = model.training_step((images, targets), 0)
    expected = -(smoothed * model(images).log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(loss, expected)


def test_it_is_rebuilt_from_its_checkpoint_alone(tmp_path):
    model = ViTClassifier(lr=0.5, mean=[0.1, 0.2, 0.3], **SIZES)
    trainer = Trainer(accelerator="cpu", logger=False, max_epochs=0)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = ViTClassifier.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    images = torch.rand(2, 3, 6, 6)
    assert torch.equal(again.eval()(images), model.eval()(images))
    assert again.hparams.lr == 0.5


@pytest.mark.slow
def test_compiled_blocks_keep_their_names_and_their_output():
    model = ViTClassifier(compile=True, **SIZES)
    names, images = list(model.state_dict()), torch.rand(2, 3, 6, 6)
    plain = model(images)
    model.configure_model()
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(images), plain)
