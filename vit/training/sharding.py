"""Sharded training by one word, ``--trainer.strategy fsdp2``, and the part of a tensor that a process has."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from vit.support.files import replacing
from vit.weights.distributed import numbered

COMPILED = "_orig_mod."  # what torch.compile adds to the name of a parameter


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, in the same memory; a tensor that is not sharded, as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class FullySharded(ModelParallelStrategy):
    """Shards weights, gradients and optimiser over all devices (FSDP2).

    Args:
        save_distributed_checkpoint: Whether each process saves its own part, in one folder. Otherwise the first process
            gathers all parts, and saves one file.
    """

    def __init__(self, save_distributed_checkpoint: bool = False) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=save_distributed_checkpoint)

    def setup_environment(self) -> None:
        """Shard over as many devices as there are."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Save a checkpoint beside the previous one, and then replace that."""
        if not self._save_distributed_checkpoint:
            # In ModelParallelStrategy, all processes would at once delete a folder that this file replaces.
            super(ModelParallelStrategy, self).save_checkpoint(checkpoint, filepath, storage_options)
            return
        with replacing(Path(filepath)) if self.is_global_zero else nullcontext() as unfinished:
            super().save_checkpoint(checkpoint, unfinished, storage_options)  # at the path that the first process names

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of an optimiser; for one file, as ``Optimizer.state_dict`` of a single process has it."""
        whole = not self._save_distributed_checkpoint
        options = StateDictOptions(full_state_dict=whole, cpu_offload=True)
        state = get_optimizer_state_dict(self.model, getattr(optimizer, "_optimizer", optimizer), options=options)
        return numbered(state) if whole and self.is_global_zero else state

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the weights and the optimisers from a checkpoint of any strategy; return the rest of it.

        Raises:
            ValueError: If an optimiser of the checkpoint has other groups of parameters.
        """
        path = Path(self.broadcast(checkpoint_path))
        if path.is_dir():
            return super().load_checkpoint(path, weights_only)
        # ModelParallelStrategy takes the n-th state for that of the model's n-th parameter. Optimisers number by group.
        checkpoint = torch.load(path, mmap=True, map_location="cpu", weights_only=weights_only)
        strict = self.lightning_module.strict_loading
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=strict)
        weights = checkpoint.pop("state_dict")
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            weights |= checkpoint.get("training_weights", {})  # the optimiser has trained these, not their average
        set_model_state_dict(self.model, weights, options=options)
        for optimizer, state in zip(self.optimizers, checkpoint.get("optimizer_states", []), strict=False):
            set_optimizer_state_dict(self.model, optimizer, named(state, optimizer, self.model), options=options)
        return checkpoint


def load_whole(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights, which every process has, into a sharded module."""
    set_model_state_dict(module, dict(weights), options=StateDictOptions(full_state_dict=True))


def named(state: Mapping[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of an optimiser with the names of parameters in place of numbers.

    The place in a group says which parameter a number is, as in ``Optimizer.load_state_dict``.

    Raises:
        ValueError: If the groups have other sizes than those of the optimiser.
    """
    name_of = {parameter: name.replace(COMPILED, "") for name, parameter in model.named_parameters()}
    names = [[name_of[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
    groups = state["param_groups"]
    saved, own = ([len(group) for group in kind] for kind in ([group["params"] for group in groups], names))
    if saved != own:
        raise ValueError(
            f"the optimizer of the checkpoint has groups of {saved} parameters, this one of {own}: train on with the "
            "--optimizer and the --model of the checkpoint"
        )
    numbers = [number for group in groups for number in group["params"]]
    name = dict(zip(numbers, [name for group in names for name in group], strict=True))
    return {
        "state": {name[number]: values for number, values in state["state"].items()},
        "param_groups": [group | {"params": own} for group, own in zip(groups, names, strict=True)],
    }
