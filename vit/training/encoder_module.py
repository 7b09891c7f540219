"""A LightningModule with a Vision Transformer, which normalises images itself."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Self, get_args

import torch
from lightning import LightningModule
from torch import Tensor, nn

from vit.model.embedding import to_pair
from vit.model.mimetic import Init, mimetic_attention
from vit.model.vision_transformer import VisionTransformer
from vit.support.checks import check_choice
from vit.training.flop import training_flop
from vit.weights.architecture import DEFAULTS, TRAINING_ONLY
from vit.weights.surgery import differing_arguments

# Arguments that may differ from those of the checkpoint. Some act only in training, or on images of another size. The
# others change names or shapes of tensors, which are compared anyway.
MAY_CHANGE = frozenset(
    (
        *TRAINING_ONLY,
        *("image_size", "pad_images", "pos_embed_interpolation", "pos_embed_init", "fc_norm", "num_classes"),
    )
)


class EncoderModule(LightningModule):
    """A module whose ``network`` is, or contains, a Vision Transformer.

    An objective inherits from it after ``Objective``, ``class ViTClassifier(Objective, EncoderModule)``, so that it has
    the hyper-parameters of both.

    Args:
        mean: Mean of each image channel, in [0, 1], which is subtracted from images; None is 0.5 for each.
        std: Standard deviation of each image channel, in [0, 1], by which images are divided; None is 0.5 for each.
        init: Initial attention weights: Glorot's uniform distribution, or "mimetic", close to the structure of trained
            attention (Trockman and Kolter 2023).
        vit_kwargs: Arguments of the VisionTransformer.

    Raises:
        ValueError: If ``mean`` or ``std`` has not one finite number for each channel, or a deviation is not above 0.
    """

    encoder = "network"

    def __init__(
        self, mean: list[float] | None = None, std: list[float] | None = None, init: Init = "glorot", **vit_kwargs: Any
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_choice("init", init, get_args(Init))
        encoder = VisionTransformer(**vit_kwargs)
        if encoder.mask_token is not None:  # no objective hides patches by it, and DDP would wait for its gradient
            encoder.mask_token.requires_grad_(False)
        channels, given = encoder.patch_embed.in_channels, {"mean": mean, "std": std}
        self._of_channels = {name: numbers_of_channels(name, numbers, channels) for name, numbers in given.items()}
        for name, numbers in self._of_channels.items():
            # Not in the state_dict, whose names stay timm's; vit.load reads them from the hyper-parameters.
            self.register_buffer(name, torch.tensor(numbers)[:, None, None], persistent=False)
        self.network = self.build_network(encoder)
        if init == "mimetic":
            mimetic_attention(self.network)

    def build_network(self, encoder: VisionTransformer) -> nn.Module:
        """Return the model that is trained: the encoder, or one around it."""
        return encoder

    def _set_hparams(self, hp: Any) -> None:
        """Keep ``mean`` and ``std`` as lists: a checkpoint with tensors or numbers of NumPy would not load safely."""
        super()._set_hparams(hp)
        for name in ("mean", "std"):
            if self.hparams.get(name) is not None:
                self.hparams[name] = as_list(self.hparams[name])

    def to_empty(self, *, device: torch.device | str | int | None, recurse: bool = True) -> Self:
        """Move to a device without values, except ``mean`` and ``std``, which no state_dict would bring back."""
        super().to_empty(device=device, recurse=recurse)
        for name, numbers in self._of_channels.items():
            self.get_buffer(name).copy_(torch.tensor(numbers, device="cpu")[:, None, None])
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images, uint8 or float in [0, 1], by ``mean`` and ``std``: (B, C, H, W)."""
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        return (images - self.mean * scale).div_(self.std * scale)

    def training_flop(self) -> int:
        """Return the floating-point operations of a training step per image, in matrix products."""
        return training_flop(self.get_submodule(self.encoder))


def as_list(numbers: Any) -> list[Any]:
    """Return a number, or those of a sequence, an array or a tensor, as a list of Python's own numbers.

    >>> as_list(torch.tensor([0.5, 0.25])), as_list((0.5, torch.tensor(0.25)))
    ([0.5, 0.25], [0.5, 0.25])
    """
    plain = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    values = [plain] if isinstance(plain, Real) else [*plain]
    return [number.tolist() if hasattr(number, "tolist") else number for number in values]


def numbers_of_channels(name: str, numbers: Any, channels: int) -> list[float]:
    """Return the mean or the standard deviation of each channel; None is 0.5 for each.

    >>> numbers_of_channels("mean", [0.5], channels=3)
    Traceback (most recent call last):
    ValueError: mean has 1 numbers for 3 channels: give one for each

    Raises:
        ValueError: If there is not one number for each channel, one is not finite, or a deviation is not above 0.
    """
    if numbers is None:
        return [0.5] * channels
    found = [float(number) for number in as_list(numbers)]
    if len(found) != channels:  # one number would be taken for all channels
        raise ValueError(f"{name} has {len(found)} numbers for {channels} channels: give one for each")
    if wrong := [number for number in found if not math.isfinite(number) or (name == "std" and number <= 0)]:
        raise ValueError(f"{name} has {wrong[0]:g}: give finite numbers{', above 0' * (name == 'std')}")
    return found


def check_same_arguments(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Check that the encoder of a checkpoint computes what this one does, where shapes do not tell.

    Raises:
        ValueError: If an argument differs that is not in ``MAY_CHANGE``.
    """
    if differing := differing_arguments(DEFAULTS | dict(theirs), dict(ours), MAY_CHANGE):
        there, here = differing
        raise ValueError(
            f"the checkpoint was trained with {there}, and this model has {here}: leave out the --model options, or "
            "give those of the checkpoint"
        )


def remedy_of_misfit(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the remedy for weights that do not fit, from their hyper-parameters and those of this model.

    >>> remedy_of_misfit({"image_size": 32}, {"image_size": (8, 12)})
    'its images have (32, 32) pixels and these (8, 12): leave out --data.image_size, or give images of (32, 32)'
    """
    sizes = [to_pair(found["image_size"]) for found in (theirs, ours) if "image_size" in found]
    if len(set(sizes)) == 2:
        there, here = sizes
        return (
            f"its images have {there} pixels and these {here}: leave out --data.image_size, or give images of {there}"
        )
    return "leave out the --model options, or give those of the checkpoint"
