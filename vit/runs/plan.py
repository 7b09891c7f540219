"""What a training will take: operations, memory and time, computed by steps on tensors that have no memory.

PyTorch's FakeTensorMode runs a model on tensors of the meta device: shapes, types and lifetimes are those of a real
step, but no number is computed.
"""

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from vit.model.embedding import to_pair
from vit.training.batch_advice import FILLED
from vit.training.compilation import blocks_of
from vit.training.freezing import freeze_blocks
from vit.training.objective import Objective

BATCHES = (4, 5)  # batch sizes that are measured: memory is linear in the batch size
DTYPES = {
    "32-true": (torch.float32, None),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "16-mixed": (torch.float32, torch.float16),
    "bf16-true": (torch.bfloat16, None),
    "16-true": (torch.float16, None),
}
"""By the name of a precision: the type of the weights, and that of the products if it differs."""


@dataclass(frozen=True)
class Line:
    """Bytes that are alive at one moment of a step: ``fixed + each * batch``."""

    fixed: float
    each: float

    def at(self, batch: int) -> float:
        """Return the bytes with batches of a size."""
        return self.fixed + self.each * batch


@dataclass(frozen=True)
class Plan:
    """What a training takes on each device.

    Attributes:
        parameters: Number of parameters of the whole model.
        training_flop: Operations of a training step per image, in matrix products and convolutions.
        inference_flop: Operations of a forward pass in evaluation mode per image.
        weights: Bytes of the parameters and buffers of a device.
        gradients: Bytes of the gradients of a device.
        optimizer: Bytes of the averages of the optimiser of a device.
        average: Bytes of the moving average of the weights.
        exchanged: Bytes of what devices exchange: the buckets of DDP, or the whole blocks of FSDP2.
        moments: The moments of a step at which the memory may be largest.
        is_shardable: Whether fsdp2 could divide weights, gradients and averages over several devices.
    """

    parameters: int
    training_flop: float
    inference_flop: float
    weights: float
    gradients: float
    optimizer: float
    average: float
    exchanged: float
    moments: tuple[Line, ...]
    is_shardable: bool = True

    def memory(self, batch: int) -> float:
        """Return the largest number of bytes that are alive at one moment of a step."""
        return max(moment.at(batch) for moment in self.moments)

    def activations(self, batch: int) -> float:
        """Return the bytes at that moment without weights, gradients, averages and exchange."""
        kept = self.weights + self.gradients + self.optimizer + self.average + self.exchanged
        return max(0.0, self.memory(batch) - kept)

    def largest_batch(self, memory: float) -> int:
        """Return the largest batch of a device with this many bytes of memory, a tenth of which stays free.

        Raises:
            ValueError: If not even one image fits.
        """
        room = FILLED * memory
        if self.memory(1) > room:
            sharding = "--trainer.strategy fsdp2, " if self.is_shardable else ""
            raise ValueError(
                f"a batch of one takes {self.memory(1) / 1e9:,.3g} GB, more than {FILLED:.0%} of memory "
                f"({memory / 1e9:g} GB): take --model.grad_checkpointing true, {sharding}a smaller model, or a larger "
                "--memory"
            )
        return min(int((room - moment.fixed) / moment.each) for moment in self.moments if moment.each > 0)


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, each time one is made.

    Values are not known: a number that is read is 0, a condition is true, and a mask selects everything.

    >>> with FakeTensorMode(), LiveMemory() as memory:
    ...     kept = torch.zeros(3, 5)
    ...     total = (kept + 1).sum()
    >>> memory.bytes  # of 15 numbers, twice that, and then a sum as well
    [60, 120, 124]
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[int, weakref.ref]] = {}
        self.total = 0
        self.bytes: list[int] = []

    def add(self, tensor: Tensor) -> None:
        """Count the memory of a tensor until it is freed; tensors may share it."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.alive:
            self.total += size
            self.alive[key] = size, weakref.ref(storage, lambda _: self._free(key))
            self.bytes.append(self.total)

    def _free(self, key: int) -> None:
        self.total -= self.alive.pop(key)[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count the tensors that it makes."""
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool
        if func is aten.nonzero.default:
            return args[0].new_empty((args[0].numel(), args[0].ndim), dtype=torch.long)
        if func is aten.index.Tensor:
            args = (args[0], [index for each in args[1] for index in _as_numbers(each)])
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return found


def _as_numbers(index: Tensor | None) -> list[Tensor | None]:
    """Return an index as it is; for a mask, return for each axis an index of all its entries."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [index.new_empty(index.numel(), dtype=torch.long) for _ in range(index.ndim)]


def plan_training(
    module: Objective, precision: str, *, devices: int = 1, strategy: str = "auto", on_gpu: bool = True
) -> Plan:
    """Return what a training takes on each device. The module is changed, and cannot be trained afterwards.

    Weights, gradients, averages and activations are those of a step of the module's own loss and optimiser. DDP keeps
    the gradients a second time, in buckets that it exchanges. FSDP2 keeps a part of weights, gradients and averages on
    each device and, while they are used, two whole blocks with their gradients.

    Args:
        module: An objective that was built on the meta device.
        precision: A key of DTYPES.
        devices: Number of devices that train together.
        strategy: "fsdp2" shards; with any other strategy, each device keeps all.
        on_gpu: Whether attention uses the kernels of GPUs.

    Raises:
        ValueError: If the precision is not in DTYPES, the module's loss reads values, which a plan does not have, or
            the weights are to be sharded and the module needs them whole.
    """
    if strategy == "fsdp2":
        module.check_shardable()
    if precision not in DTYPES:
        raise ValueError(f"precision {precision!r} has no plan: take one of {', '.join(DTYPES)}")
    weight_type, product_type = DTYPES[precision]
    if on_gpu:  # float16 has the same size, and CPUs have an attention of their own for bfloat16
        weight_type, product_type = (torch.float16 if kind is torch.bfloat16 else kind for kind in DTYPES[precision])
    if (count := module.hparams.get("freeze")) is not None:
        freeze_blocks(module.network, count)
    _leave_out_values(module)
    with FakeTensorMode(allow_non_fake_inputs=True):  # such as the rate of DropPath
        _as_if_on_cpu(module, weight_type)
        moments, training_flop = [], 0.0
        try:
            for share, rate in _phases(module):
                if rate is not None:
                    module.network.patch_drop.rate = rate
                found, states = zip(*(_step_bytes(module, product_type, batch) for batch in BATCHES), strict=True)
                moments += _lines(*found)
                training_flop += share * _flop(module)
            inference_flop = _flop(module.eval())
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ValueError(
                f"{type(module).__name__} reads values in its training step, which a plan does not know ({error}): "
                "measure a short run of fit instead"
            ) from None
    parameters = [*module.parameters()]
    weights = _nbytes([*parameters, *module.buffers()])
    gradients = _nbytes([parameter for parameter in parameters if parameter.requires_grad])
    count = sum(map(Tensor.numel, parameters))
    average = 0 if module.hparams.get("ema_decay") is None else 4 * count
    shards = devices if strategy == "fsdp2" else 1
    exchanged = 2 * _whole_blocks(module.network) if shards > 1 else gradients if devices > 1 else 0
    added = average + exchanged - (1 - 1 / shards) * (weights + gradients + states[0])
    return Plan(
        count,
        training_flop,
        inference_flop,
        weights / shards,
        gradients / shards,
        states[0] / shards,
        average,
        exchanged,
        tuple(Line(line.fixed + added, line.each) for line in moments),
        module.is_shardable,
    )


def _as_if_on_cpu(module: Objective, dtype: torch.dtype) -> None:
    """Replace the tensors on the meta device by fake tensors that claim to be on a CPU."""
    module._device = torch.device("cpu")  # set directly, as Lightning's own method would move the tensors
    made: dict[Tensor, Tensor] = {}  # modules may share a parameter
    for part in module.modules():
        for name, old in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            if old not in made:
                fake = torch.empty(old.shape, dtype=dtype if old.is_floating_point() else old.dtype)
                made[old] = nn.Parameter(fake, old.requires_grad) if isinstance(old, nn.Parameter) else fake
            (part._parameters if isinstance(old, nn.Parameter) else part._buffers)[name] = made[old]


def _phases(module: Objective) -> list[tuple[float, float | None]]:
    """Return the share of the steps of each phase of a training, and the share of patches that is dropped in it."""
    until = module.hparams.get("patch_drop_until", 1.0)
    return [(1.0, None)] if until == 1 else [(until, module.drop_rate), (1 - until, 0.0)]


def _leave_out_values(module: Objective) -> None:
    """Let views be empty tensors: cutting them would read random numbers, which a plan does not have."""
    if views := getattr(module, "views", None):
        views._view = lambda images, scale, size: images.new_empty(*images.shape[:2], *size)


def _batch(module: Objective, count: int) -> tuple[Tensor, Tensor]:
    """Return images and their labels: class numbers, or tokens if the data has texts."""
    hp = module.hparams
    images = torch.zeros(count, hp.get("in_channels", 3), *to_pair(hp.get("image_size", 32)), dtype=torch.uint8)
    shape = (count, hp.max_length + 2) if "max_length" in module.from_data else (count,)
    return images, torch.zeros(shape, dtype=torch.long)


def _step_bytes(module: Objective, product_type: torch.dtype | None, batch: int) -> tuple[list[int], int]:
    """Return the bytes that are alive after each tensor that a step makes, and the bytes of the optimiser.

    The gradients of the previous step are there, and so are the averages of the optimiser.
    """
    module.train()
    optimizer = _optimizer_of(module)
    with LiveMemory() as memory:
        for tensor in (*module.parameters(), *module.buffers()):
            memory.add(tensor)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        images = _batch(module, batch)
        memory.bytes.clear()
        with torch.autocast("cpu", product_type, enabled=product_type is not None):
            loss = module.training_loss(images)
        optimizer.zero_grad()  # between both passes, as Lightning does
        loss.backward()
        del loss
        optimizer.step()
    return memory.bytes, _nbytes(
        [each for each in tree_leaves([*optimizer.state.values()]) if isinstance(each, Tensor)]
    )


def _optimizer_of(module: Objective) -> torch.optim.Optimizer:
    """Return the optimiser of a module from whichever of Lightning's forms its method returns."""
    found = module.configure_optimizers()
    if isinstance(found, list | tuple):
        found = found[0]
    if isinstance(found, list | tuple):
        found = found[0]
    return found["optimizer"] if isinstance(found, dict) else found


def _lines(first: list[int], second: list[int]) -> list[Line]:
    """Return the moments of a step as lines in the batch, from their bytes at two sizes; the highest of each slope."""
    if len(first) != len(second):  # the step depends on the batch: only its largest moment is known
        first, second = [max(first)], [max(second)]
    small, large = BATCHES
    highest: dict[float, float] = {}
    for low, high in zip(first, second, strict=True):
        each = (high - low) / (large - small)
        highest[each] = max(low - each * small, highest.get(each, -math.inf))
    return [Line(fixed, each) for each, fixed in highest.items()]


def _flop(module: Objective) -> float:
    """Return the operations per image in matrix products, with those of the backward pass if the module trains."""
    # Eager and unfused, as compiled blocks and some fused kernels hide their products.
    with (
        torch.compiler.set_stance("force_eager"),
        sdpa_kernel(SDPBackend.MATH),
        torch.set_grad_enabled(module.training),
        LiveMemory(),
        FlopCounterMode(display=False) as counter,
    ):
        loss = module.training_loss(_batch(module, BATCHES[0]))
        if module.training:
            loss.backward()
    return counter.get_total_flops() / BATCHES[0]


def _whole_blocks(network: nn.Module) -> int:
    """Return the bytes of the weights that FSDP2 holds whole at one time: two blocks, and all outside of blocks."""
    sizes = [_nbytes([*block.parameters()]) for block in blocks_of(network)]
    return _nbytes([*network.parameters()]) - sum(sizes) + sum(sorted(sizes)[-2:])


def _nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
