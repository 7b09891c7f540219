"""Features of handwritten digits that were learned without labels, beside raw pixels and an untrained network."""

import torch

import vit
from tests.tiny import CPU
from vit.data import Digits
from vit.features import extract
from vit.features.classifiers import knn_accuracy

LEARN = [
    *("--data", "Digits", "--data.batch_size", "256", "--model", "SIGReg", "--model.patch_size", "4", *CPU),
    *("--model.embed_dim", "96", "--model.depth", "2", "--model.num_heads", "3", "--model.mlp_ratio", "2"),
    *("--model.pool", "mean", "--model.optimizer", "muon", "--model.lr", "5e-3", "--model.decay", "linear"),
    *("--model.global_scale", "[0.7,1]", "--model.local_views", "0", "--model.flip", "false"),
    *("--model.distort", "false", "--model.sigreg_weight", "0.02", "--model.projection_dim", "32"),
    *("--trainer.check_val_every_n_epoch", "80", "--trainer.limit_test_batches", "0", "--experiment", "digits"),
]


# One test, as its trainings take half a minute.
def test_neighbours_by_learned_features_are_right_more_often_than_by_pixels_or_untrained_features(run, folder):
    data = Digits()
    data.setup("fit")
    known, asked = data.sets["train"], data.sets["test"]
    few = torch.cat([(known.labels == digit).nonzero()[:10, 0] for digit in range(10)])

    def accuracies(features):
        """With all labels of the training images, and with ten of each digit."""
        of_known, of_asked = features(known.images), features(asked.images)
        parts = (torch.arange(len(known.labels)), few)
        return [knn_accuracy(of_known[part], known.labels[part], of_asked, asked.labels) for part in parts]

    def learned(*arguments):
        checkpoint = run("fit", *LEARN, *arguments).run_folder / "checkpoints/last.ckpt"
        return accuracies(lambda images: extract(vit.load(checkpoint), images.split(256)))

    found, untrained = learned("--trainer.max_epochs", "80"), learned("--trainer.max_steps", "1", "--model.lr", "0")
    pixels = accuracies(lambda images: images.flatten(1).float())
    assert found[0] > pixels[0] > untrained[0] + 0.02
    assert found[1] > pixels[1] + 0.02 > untrained[1] + 0.05
