"""Checks, before anything is computed, that a model hides no attention, and that images have the right shape."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from vit.capture.interception.followed import tensors

OF_TORCH = ("_parameters", "_buffers", "_modules")  # attributes of a module in which torch keeps its tensors


def check_capturable(model: nn.Module) -> None:
    """Raise a ValueError if a model or its batch norm is in training mode, or it hides its attention or its gradients.

    Compiled and scripted models hide their attention. Weights and kept tensors of inference mode have no gradient.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"the model is {model!r}, and no torch.nn.Module: give an instance, such as vit.load('cifar10')"
        )
    for module in model.modules():
        nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
        if any(isinstance(node.target, torch._ops.OpOverload) for node in nodes):
            raise ValueError(
                f"{type(model).__name__} is exported: it calls kernels by name, so its attention cannot be seen: give "
                "the model it was made from"
            )
    if model.training:
        raise ValueError("the model is in training mode, in which dropout moves its logits: call model.eval() first")
    for name, module in model.named_modules():
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{name!r} of {type(model).__name__} is in training mode: it normalises by the images of the batch, "
                "and each pass would change its averages: call model.eval() first"
            )
        module_in_words = f"{type(module).__name__} {name!r}" if name else f"the model ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{module_in_words} is scripted, so attention in it cannot be seen: give the model it was made from"
            )
        if hasattr(module, "_orig_mod"):
            raise ValueError(f"{module_in_words} is compiled, so attention in it cannot be seen: give its ._orig_mod")
        if module._compiled_call_impl is not None:
            raise ValueError(
                f"{module_in_words} is compiled in place, so attention in it cannot be seen: build the model "
                "anew and load its weights, or compile a copy"
            )
    for name, tensor in chain(model.named_parameters(), model.named_buffers(), _kept_tensors(model)):
        with torch._C.DisableTorchFunction():  # modes that watch the model do not see this look
            is_of_inference = tensor.is_inference()
        if is_of_inference:
            raise ValueError(
                f"{name!r} of {type(model).__name__} was made in torch.inference_mode, so that nothing has a gradient: "
                "give copy.deepcopy(model), made outside of it"
            )


def _kept_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that modules keep as plain attributes, such as tables of positions from an earlier pass."""
    for path, module in model.named_modules():
        for name, kept in vars(module).items():
            for tensor in tensors([kept]) if name not in OF_TORCH else ():
                yield f"{path}.{name}".removeprefix("."), tensor


def check_pixels(images: Tensor) -> None:
    """Raise a ValueError if there are no images, or ``check_drawable`` refuses them."""
    check_drawable(images)
    if not images.numel():
        raise ValueError("there are no images: give at least one")


def check_drawable(images: Tensor) -> None:
    """Raise a ValueError if the shape of the images is not (B, C, H, W), or a pixel is NaN or infinite."""
    if images.layout != torch.strided:
        raise ValueError(f"images are {images.layout}: give images.to_dense()")
    if images.ndim != 4:
        raise ValueError(
            f"images have shape {tuple(images.shape)}: give (batch, channels, rows, columns), one image as images[None]"
        )
    if images.is_meta:
        raise ValueError("images are on the meta device, which holds no pixels: load model and images to another one")
    if images.is_quantized or images.is_nested or (images.is_floating_point() and images.dtype.itemsize == 1):
        raise ValueError(f"images are {'nested' if images.is_nested else images.dtype}: give plain float32 tensors")
    if not (finite := images.isfinite()).all():
        raise ValueError(
            f"{int((~finite).sum())} of {images.numel()} pixel values are NaN or infinite: look at how the images were "
            "normalised (a std of 0?)"
        )
