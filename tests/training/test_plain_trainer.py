"""What users of Lightning do in Python: a plain ``Trainer`` with our models and data, or with one of them."""

import csv
from pathlib import Path

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

import vit
from tests.user_classes import Bare, Manual, OneCycle, OwnData, Plain, Reused
from vit.data import Digits
from vit.objectives import ViTClassifier
from vit.training.seeded_steps import SeededSteps

SMALL = {"image_size": 8, "in_channels": 1, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning's advice


def trainer(**kwargs):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    if kwargs.get("barebones"):
        quiet = {}
    return Trainer(**quiet | {"max_steps": 3, "accelerator": "cpu"} | kwargs)


def model(cls=ViTClassifier, **kwargs):
    torch.manual_seed(0)
    return cls(**SMALL | kwargs)


def weights(module):
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_a_data_module_of_the_user_trains_the_same_weights_as_the_same_images_of_ours():
    ends = []
    for data in (Digits(batch_size=100, normalised=True), Digits(batch_size=100)):
        module = model(Plain, mean=Digits.mean, std=Digits.std)
        trainer().fit(module, data)
        ends.append(weights(module))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("interval", [5, 0.5])
def test_a_validation_between_two_steps_is_refused_as_its_checkpoint_lacks_gradients(interval):
    odd = trainer(accumulate_grad_batches=2, val_check_interval=interval, max_epochs=1, max_steps=-1)
    answer = r"a validation after every (5|3) of (12|6) batches lies between two steps of 2 batches"
    with pytest.raises(ValueError, match=answer):
        odd.fit(model(), Digits(batch_size=100 if interval == 5 else 200))
    trainer(accumulate_grad_batches=3, val_check_interval=6).fit(model(), Digits(batch_size=100))


def test_weights_alone_are_the_average_too(tmp_path):
    file, module = ModelCheckpoint(tmp_path, save_weights_only=True), model(ema_decay=0.9, lr=0.01)
    trainer(callbacks=[file], enable_checkpointing=True, max_epochs=2, max_steps=-1).fit(module, Digits(batch_size=100))
    saved = vit.load(file.best_model_path).state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in module.network.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"num_heads": 4}, "num_heads 2, and this model has num_heads 4"),
        ({"norm": "post"}, "norm 'pre', and this model has norm 'post'"),
        ({"residual": False}, "residual True, and this model has residual False"),
        ({"attention": "uniform"}, "attention .*'softmax'.*, and this model has attention .*'uniform'"),
        ({"pos_embed": "sincos"}, "pos_embed 'learned', and this model has pos_embed 'sincos'|tensors|pos_embed"),
        ({"pool": "mean", "fc_norm": False}, "pool 'cls', and this model has pool 'mean'"),
        ({"mlp": "gelu_tanh"}, "mlp 'gelu', and this model has mlp 'gelu_tanh'"),
    ],
)
def test_a_checkpoint_of_another_architecture_with_the_same_tensors_is_refused(tmp_path, changes, answer):
    file = ModelCheckpoint(tmp_path)
    trainer(callbacks=[file], enable_checkpointing=True).fit(model(), Digits(batch_size=100))
    with pytest.raises(ValueError, match=answer):
        trainer().test(model(**changes), Digits(), ckpt_path=file.best_model_path, verbose=False, weights_only=False)
    free = model(drop_path=0.1, patch_drop=0.5, grad_checkpointing=True, pad_images=True)
    trainer().test(free, Digits(), ckpt_path=file.best_model_path, verbose=False, weights_only=False)


def test_the_logged_loss_is_the_mean_since_the_last_one_if_accumulation_does_not_divide_the_epoch(tmp_path):
    losses = []

    class Noted(ViTClassifier):
        def training_loss(self, batch):
            losses.append(super().training_loss(batch))
            return losses[-1]

    logger = CSVLogger(tmp_path)
    options = {"accumulate_grad_batches": 4, "log_every_n_steps": 1, "max_epochs": 2, "max_steps": -1}
    trainer(logger=logger, **options).fit(model(Noted), Digits(batch_size=200))
    rows = csv.DictReader((Path(logger.log_dir) / "metrics.csv").open())
    logged = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    parts = torch.stack(losses).detach().split([4, 2, 4, 2])  # six batches an epoch, a step after 4 and after 2
    assert logged == pytest.approx([part.mean().item() for part in parts], rel=1e-5)


def test_what_the_model_sees_is_what_the_loader_gave():
    data, module = OwnData(), model(mean=OwnData.mean, std=OwnData.std)
    seen = []
    module.network.register_forward_pre_hook(lambda network, inputs: seen.append(inputs[0]))
    trainer().test(module, data, verbose=False)
    expected = torch.stack([data.parts["test"][number][0] for number in range(100)])
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-5)


def test_hooks_of_the_data_module_come_before_ours():
    class Scaled(Bare):
        """Gives bytes on the device, as those who augment there do."""

        def on_after_batch_transfer(self, batch, dataloader_idx):
            images, labels = batch
            return {"picture": (255 * (images * 0.376 + 0.305)).round().byte(), "y": labels}

    module = model()
    trainer().fit(module, Scaled())
    assert module.user_batches.normalised is False


def test_each_loader_is_asked_whether_it_normalises():
    class OnlyTrained(Bare):
        """Normalises the images of the training, and not those of the test."""

        def setup(self, stage):
            super().setup(stage)
            test = self.parts["test"]
            test.images = test.images * 0.376 + 0.305

    data, module = OnlyTrained(), model(mean=OwnData.mean, std=OwnData.std)
    trainer().fit(module, data)
    for evaluate in (trainer().test, trainer().predict):
        with pytest.raises(
            ValueError, match=r"from 0.00 to 1.00, so they are not normalised, and those of an earlier batch"
        ):
            evaluate(module, data)


@pytest.mark.parametrize("cls", [Plain, Reused, OneCycle, Manual])
def test_an_optimiser_of_the_user_trains_to_the_end_of_the_schedule(cls):
    module = model(cls)
    before = weights(module)
    trainer().fit(module, Digits(batch_size=100))
    assert module.progress == 1.0
    assert not torch.equal(weights(module), before)


def test_the_learning_rate_finder_sets_the_rate_of_a_training():
    module = model(lr=1e-3)
    found = Tuner(trainer(max_steps=40)).lr_find(module, datamodule=Digits(batch_size=100), num_training=30)
    assert module.hparams.lr == found.suggestion() != 1e-3


def test_the_learning_rate_finder_as_a_callback_scales_the_rates_of_all_layers():
    module, finder = (
        model(lr=1e-3, layer_decay=0.5, warmup=0.0, decay="constant"),
        LearningRateFinder(num_training_steps=30),
    )
    run = trainer(max_steps=40, callbacks=[finder])
    run.fit(module, Digits(batch_size=100))
    rates = sorted({group["lr"] for group in run.optimizers[0].param_groups})
    assert rates == pytest.approx([finder.optimal_lr.suggestion() * share for share in (0.25, 0.5, 1)])


@pytest.mark.parametrize("options", [{"num_sanity_val_steps": 2}, {"barebones": True}, {"enable_progress_bar": True}])
def test_options_of_lightning_that_train(options, capsys):
    module = model()
    trainer(**options).fit(module, Digits(batch_size=100))
    assert module.progress == 1.0


def test_overfitting_repeats_the_same_images_in_each_epoch():
    seen = []

    class Seeing(ViTClassifier):
        def training_loss(self, batch):
            seen.append(batch[0])
            return super().training_loss(batch)

    trainer(max_steps=-1, max_epochs=2, overfit_batches=2).fit(model(Seeing), Digits(batch_size=100))
    assert len(seen) == 4
    assert torch.equal(torch.cat(seen[:2]), torch.cat(seen[2:]))
    assert len(seen[0].unique(dim=0)) > 50


class SavedAtHalf(Callback):
    """Saves a checkpoint after two of four epochs, as the epoch ends or with its last step."""

    def __init__(self, path, hook):
        self.path = path
        setattr(self, hook, self.save)

    def save(self, trainer, *_):
        if trainer.global_step == 8:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end"])
@pytest.mark.parametrize("batch_size", [160, 320, 640])
def test_a_training_goes_on_from_its_half_in_batches_of_another_size(batch_size, hook, tmp_path):
    path, seen = tmp_path / "half.ckpt", []

    class Seeing(ViTClassifier):
        def on_train_batch_end(self, *args):
            super().on_train_batch_end(*args)
            seen.append((self.trainer.current_epoch, self.progress))

    def fit(module, size, callbacks, checkpoint=None):
        limits = {"max_steps": -1, "max_epochs": 4, "limit_val_batches": 0}
        data = Digits(batch_size=size)
        trainer(callbacks=[SeededSteps(0), *callbacks], **limits).fit(module, data, ckpt_path=checkpoint)

    fit(model(), 320, [SavedAtHalf(path, hook)])
    fit(model(Seeing), batch_size, [], path)
    steps = {160: 8, 320: 4, 640: 2}[batch_size]
    assert [epoch for epoch, _ in seen] == [2] * steps + [3] * steps
    assert [progress for _, progress in seen] == pytest.approx(
        [(1 + n / steps / 2) / 2 for n in range(1, 2 * steps + 1)]
    )


def test_an_epoch_that_a_limit_of_steps_has_cut_is_continued_to_its_end(tmp_path):
    seen = []

    class Noting(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append((trainer.current_epoch, trainer.global_step, batch[1].tolist()))

    def fit(folder, ckpt_path=None, **limits):
        seen.clear()
        file = ModelCheckpoint(tmp_path / folder, save_last=True)
        run = trainer(callbacks=[SeededSteps(0), Noting(), file], enable_checkpointing=True, **limits)
        run.fit(model(), Digits(batch_size=300), ckpt_path=ckpt_path)
        return [*seen]

    whole = fit("whole", max_epochs=3, max_steps=-1)
    cut = fit("cut", max_epochs=3, max_steps=6)
    assert whole == cut + fit("resumed", tmp_path / "cut" / "last.ckpt", max_epochs=3, max_steps=-1)


def test_without_the_average_a_training_goes_on_with_the_weights_of_its_optimiser(tmp_path):
    first = trainer()
    first.fit(model(ema_decay=0.9), Digits(batch_size=100))
    first.save_checkpoint(tmp_path / "average.ckpt")
    saved = torch.load(tmp_path / "average.ckpt", weights_only=True)
    assert not torch.equal(saved["state_dict"]["network.head.weight"], saved["training_weights"]["network.head.weight"])
    resumed = model()
    trainer().fit(resumed, Digits(batch_size=100), ckpt_path=tmp_path / "average.ckpt")  # which has no step left
    for name, parameter in resumed.named_parameters():
        assert torch.equal(parameter, saved["training_weights"][name])


def test_predictions_are_of_a_loader_of_images_of_pairs_and_of_our_test_images():
    module, images = model(), torch.rand(10, 1, 8, 8)
    alone = trainer().predict(module, DataLoader(images, 4))
    pairs = trainer().predict(module, DataLoader([(image, 0) for image in images], 4))
    assert [len(part) for part in alone] == [4, 4, 2]
    torch.testing.assert_close(torch.cat(alone), module.eval()(images).softmax(dim=-1))
    torch.testing.assert_close(torch.cat(pairs), torch.cat(alone))
    assert len(torch.cat(trainer().predict(module, Digits()))) == 359


class Theirs(LightningModule):
    """A module of the user, which takes normalised floats."""

    def __init__(self, batch_size=7):
        super().__init__()
        self.save_hyperparameters()
        self.layer, self.seen = torch.nn.Linear(64, 10), []

    def training_step(self, batch):
        images, labels = batch
        self.seen.append(images)
        return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_our_data_give_normalised_floats_to_a_module_of_the_user():
    module = Theirs()
    trainer(max_steps=-1, max_epochs=1).fit(module, Digits(batch_size=100, normalised=True))
    images = torch.cat(module.seen)
    assert images.dtype == torch.float32
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02


def test_mixed_batches_are_normalised_too():
    data = Digits(batch_size=100, normalised=True, mixup=0.8)
    data.setup("fit")
    images, targets = next(iter(data.train_dataloader()))
    assert (images.dtype, targets.shape) == (torch.float32, (100, 10))
    assert images.min() == pytest.approx(-0.305 / 0.376, abs=1e-4)


def test_the_arguments_of_the_data_reach_loggers_and_checkpoints_but_for_those_of_the_module(tmp_path):
    run = trainer(logger=True, default_root_dir=tmp_path)
    run.fit(Theirs(), Digits(batch_size=64, flip=True, normalised=True))
    logged = (tmp_path / "lightning_logs/version_0/hparams.yaml").read_text()
    assert "flip: true" in logged
    assert "batch_size: 7" in logged  # the word of the module
    run.save_checkpoint(tmp_path / "run.ckpt")
    again = Digits.load_from_checkpoint(tmp_path / "run.ckpt")
    assert (again.batch_size, again.augmentation["flip"]) == (64, True)


def test_a_training_on_a_cpu_keeps_the_memory_that_its_steps_free(monkeypatch):
    kept = []
    monkeypatch.setattr("vit.training.objective.keep_freed_memory", lambda: kept.append(True))
    trainer(max_steps=1).fit(model(), Digits(batch_size=100))
    assert kept == [True]
