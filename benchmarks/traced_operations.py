"""The fingerprint of a speed: every operation of a pass, its numbers, and which tensors it takes.

A pass is traced as the calls of torch's functions, in their order. Each tensor has a number, so that the trace says how
the operations hang together: two commits with the same trace compute the same function by the same work. What only
checks sizes, names or options is not in it.

This file imports public names of the package and passes of this folder alone, so that it runs in the tree of an earlier
commit, too (-P leaves out the folder of this file):

    PYTHONPATH=TREE:TREE/benchmarks python -P benchmarks/traced_operations.py '["inference"]'
"""

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_any, tree_map_only

SIZES = {"image_size": 32, "patch_size": 4, "embed_dim": 192, "depth": 2, "num_heads": 3}
IMAGES = 2
WRITTEN = 5  # tokens


class Trace(TorchFunctionMode):
    """Writes a line for each call of a function of torch that returns a tensor.

    Attributes:
        lines: The calls, such as ``%2 float32 [2, 65, 192] = torch.Tensor.add((%0, %1), {})``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.known: dict[int, tuple[int, Tensor]] = {}  # the tensor is kept, or another might get its id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if tree_any(lambda value: isinstance(value, Tensor), output):
            taken = f"{resolve_name(func) or func.__name__}({self.said(args)}, {self.said(kwargs or {})})"
            self.lines.append(f"{self.said(output)} = {taken}")
        return output

    def said(self, value: Any) -> str:
        """Return arguments or outputs as text: a tensor is its number, and at first its type and shape."""
        return str(tree_map_only(Tensor, self._number, value))

    def _number(self, tensor: Tensor) -> str:
        if id(tensor) in self.known:
            return f"%{self.known[id(tensor)][0]}"
        number = len(self.known)
        self.known[id(tensor)] = number, tensor
        return f"%{number} {str(tensor.dtype).removeprefix('torch.')} {[*tensor.shape]}"


def model_and_images(**options: Any) -> tuple[Any, Tensor]:
    """Return a small model of this package, and images for it."""
    import vit

    torch.manual_seed(0)
    return vit.VisionTransformer(**(SIZES | options)).eval(), torch.randn(IMAGES, 3, 32, 32)


def both_precisions(run: Callable[[], Any]) -> None:
    """Run a pass in float32, and then under autocast to bfloat16, which chooses other kernels."""
    run()
    with torch.autocast("cpu", torch.bfloat16):
        run()


def inference() -> Callable[[], Any]:
    """Return the forward pass, for the class token and for the mean of the patches."""
    (reads_token, images), (reads_mean, _) = model_and_images(), model_and_images(pool="mean")
    return torch.no_grad()(lambda: both_precisions(lambda: (reads_token(images), reads_mean(images))))


def training() -> Callable[[], Any]:
    """Return the forward pass of a training, which decides the backward pass."""
    model, images = model_and_images()
    model.train()
    return lambda: both_precisions(lambda: model(images))


def features() -> Callable[[], Any]:
    """Return the features after each block, in the two ways of timm."""
    model, images = model_and_images()
    ways = {
        "forward_intermediates": {"indices": 2, "norm": True, "intermediates_only": True},
        "get_intermediate_layers": {"n": 2, "norm": True, "reshape": True},
    }
    return torch.no_grad()(lambda: both_precisions(lambda: [getattr(model, way)(images, **ways[way]) for way in ways]))


def mixed() -> Callable[[], Any]:
    """Return the forward pass of images of several sizes in one batch."""
    model, images = model_and_images()
    return torch.no_grad()(lambda: model.forward_mixed([*images, images[0, :, :20, :28]]))


def merged() -> Callable[[], Any]:
    """Return the forward pass with tokens that are merged."""
    import vit

    model, images = model_and_images()
    merging = vit.TokenMerging(model, 8)
    return torch.no_grad()(lambda: merging(images))


def generation() -> Callable[[], Any]:
    """Return the generation of tokens beside a context, with and without a cache."""
    from vit.model.decoder import TransformerDecoder
    from vit.model.generation import Sampling, sample

    torch.manual_seed(0)
    decoder = TransformerDecoder(64, 48, 2, 2, WRITTEN, context_dim=48).eval()
    prompt, context = torch.zeros(IMAGES, 1, dtype=torch.long), torch.randn(IMAGES, 7, 48)
    ways = True, False
    return torch.no_grad()(
        lambda: [sample(decoder, prompt, context, WRITTEN, None, Sampling(), use_cache=way) for way in ways]
    )


def mechanisms() -> Callable[[], Any]:
    """Return a pass of each mechanism whose cost is compared."""
    from claims_cost import COLORS, one_pass

    torch.manual_seed(0)
    passes = [one_pass(name, 8)[0] for name in COLORS]
    return torch.no_grad()(lambda: [run() for run in passes])


PASSES = {each.__name__: each for each in (inference, training, features, mixed, merged, generation, mechanisms)}


def operations_of(name: str) -> str:
    """Return the hash of the operations of a pass.

    Raises:
        ValueError: If there is no such pass.
    """
    if name not in PASSES:
        raise ValueError(f"no pass {name!r}: choose one of {', '.join(PASSES)}")
    with torch.random.fork_rng(devices=[]):
        run = PASSES[name]()
        with Trace() as trace:
            run()
    return hashlib.blake2b("\n".join(trace.lines).encode(), digest_size=6).hexdigest()


if __name__ == "__main__":
    print(json.dumps({name: operations_of(name) for name in json.loads(sys.argv[1])}))
