"""Trains a classifier of handwritten digits in two workers of Ray Train, of one core each.

    python docs/ray_train.py

Needs ``pip install "ray[train]"``. Ray starts the workers, connects them, and starts them again after a failure.
"""

import ray
from lightning import Trainer
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, get_checkpoint
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchTrainer

from vit.data import Digits
from vit.objectives import ViTClassifier


def train(settings: dict) -> None:
    """Train in one worker, from the last checkpoint that was reported if there is one."""
    model = ViTClassifier(image_size=8, patch_size=2, in_channels=1, embed_dim=32, depth=2, num_heads=2, lr=5e-3)
    trainer = Trainer(
        max_epochs=settings["epochs"],
        accelerator="cpu",
        devices=1,  # in this worker
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        enable_checkpointing=False,  # the callback reports one to Ray after each epoch
        enable_progress_bar=False,
        logger=False,
    )
    checkpoint = get_checkpoint()
    if checkpoint is None:
        prepare_trainer(trainer).fit(model, Digits())
    else:
        with checkpoint.as_directory() as folder:
            path = f"{folder}/{RayTrainReportCallback.CHECKPOINT_NAME}"
            prepare_trainer(trainer).fit(model, Digits(), ckpt_path=path)


if __name__ == "__main__":
    ray.init(num_cpus=2)
    result = TorchTrainer(
        train,
        train_loop_config={"epochs": 20},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=2), checkpoint_config=CheckpointConfig(num_to_keep=1)
        ),
    ).fit()
    print(f"val_accuracy {result.metrics['val_accuracy']:.3f} in {result.path}")
