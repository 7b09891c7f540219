"""Compilation of a network for its training by torch.compile."""

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from vit.inference.engines import check_compiler
from vit.model.decoder_block import DecoderBlock
from vit.model.encoder_block import EncoderBlock
from vit.support.first_process import print_once

LONGEST = 200  # characters of an error of a compiler


def compile_for_training(network: nn.Module, device: torch.device) -> None:
    """Compile a network in place, at its first step: as a whole for a CPU, block by block if it is sharded or on a GPU.

    On a CPU, casts, norms and copies take as long as the products of a small model, and the whole model gives the
    compiler more of them to join. On a GPU, all blocks share one program, so that a deep model starts soon.

    If nothing can be compiled for the CPU, the network stays as it is, and a line says so. A second call does nothing.
    """
    is_whole = device.type == "cpu" and not isinstance(network, FSDPModule)
    parts = [network] if is_whole else blocks_of(network)
    if any(part._compiled_call_impl is not None for part in parts):
        return
    if device.type == "cpu":
        try:
            check_compiles()
        except ValueError as error:
            print_once(f"the training is not compiled, so its steps take longer: {error}")
            return
    print_once("torch.compile compiles the first training step, which takes some 20 seconds")
    for part in parts:
        part.compile(dynamic=False)  # a program for each number of tokens; with patch_drop there are two


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network, in the order of its modules."""
    return [module for module in network.modules() if isinstance(module, EncoderBlock | DecoderBlock)]


def check_compiles() -> None:
    """Check that torch.compile works for this CPU, by a small function.

    Raises:
        ValueError: If there is no C++ compiler, or it lacks something, such as the headers of Python.
    """
    check_compiler()
    try:
        torch.compile(_double, dynamic=False)(torch.ones(32))
    except Exception as error:  # torch's compiler, the C++ compiler and the loader have errors of their own
        lines = [line.strip() for line in str(error).splitlines() if " error: " in line]  # as C++ compilers write it
        said = (lines or [type(error).__name__])[0][:LONGEST]
        raise ValueError(
            f"torch.compile fails on this machine ({said}): repair the compiler, or add --model.compile false"
        ) from error


def _double(numbers: Tensor) -> Tensor:
    return numbers + numbers
