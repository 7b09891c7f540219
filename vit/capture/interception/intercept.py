"""Intercepts attention weights where they multiply the values, in any running model.

Fused kernels do not return their weights, and every library calls them in its own way. But all libraries go through a
few functions of torch, which a ``TorchFunctionMode`` can replace. Here the explicit formula replaces them, so that the
weights are in the autograd graph (fused.py). If a model computes weights by its own softmax, they are followed to the
matrix product with the values (followed.py, products.py). Our own mechanisms may work in tiles and chunks, which are
not the attention of whole images, so their ``weights`` method is called instead. The model is unchanged afterwards.

Letters in the einops patterns: b batch, n queries, m keys, h heads.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vit.attention.mechanisms.mechanism import Mechanism
from vit.capture.interception.eager import ONE_AT_A_TIME, as_written
from vit.capture.interception.followed import FollowedWeights
from vit.capture.interception.fused import multi_head, scaled_dot_product
from vit.capture.interception.products import FUNCTIONS
from vit.capture.remedy import CHOOSE_OTHERS

Edit = Callable[[int, Tensor], Tensor]

# timm and transformers turn on checkpointing by these attributes, in eval mode too. It is turned off here, because the
# recomputation in the backward pass would not be intercepted.
CHECKPOINTING = ("grad_checkpointing", "gradient_checkpointing")

# Models with values of half precision in their last interception, as within an autocast of their own.
HALF_PRECISION_MODELS: WeakSet[nn.Module] = WeakSet()


EXPLICIT: dict[Callable[..., Any], Callable[..., Any]] = FUNCTIONS | {
    F.scaled_dot_product_attention: scaled_dot_product,
    F.multi_head_attention_forward: multi_head,
}


class InterceptAttention(TorchFunctionMode):
    """A context that computes attention explicitly, so that ``edit`` can read or replace its weights.

    >>> def uniform(layer, attn):
    ...     return torch.full_like(attn, 1 / attn.shape[-1])
    >>> from vit import VisionTransformer
    >>> model = VisionTransformer(image_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3).eval()
    >>> with InterceptAttention(model, uniform):
    ...     logits = model(torch.randn(5, 3, 32, 32))  # every token gets the mean of the values

    Args:
        model: The model that runs within the context.
        edit: Called as ``edit(layer, attn)`` for each attention (B, H, N, M). Layers are counted from 0 in the order
            of their calls. The weights that ``edit`` returns multiply the values.
        num_images: Number B of images in a batch, which splits attention with three axes (B * H, N, M) into heads.
            If None, such attention is not intercepted.
        heads_first: Numbers of the calls whose three axes are (H * B, N, M), as ``heads_first_calls`` finds them.

    Attributes:
        values: The values (B, H, M, d) that belong to the weights last given to ``edit``.
        queries: Their queries (B, H, N, d), or None if the model computes its weights itself.
        unseen: Shapes of the queries or weights of attention that was not intercepted.
        followed: Weights that the model computes by a softmax of its own, on their way to the values.
    """

    def __init__(
        self,
        model: nn.Module,
        edit: Edit,
        num_images: int | None = None,
        heads_first: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.heads_first = heads_first
        self.model = model
        self.edit = edit
        self.num_images = num_images
        self.num_calls = 0
        self.values: Tensor | None = None
        self.queries: Tensor | None = None
        self.unseen: list[tuple[int, ...]] = []
        self.followed = FollowedWeights()
        self.replaced: list[tuple[nn.Module, str, Any]] = []
        self.paused = False
        self.around = ExitStack()

    def __enter__(self) -> "InterceptAttention":
        """Replace the forward methods of our mechanisms and the functions of torch, and turn off checkpointing.

        Other threads that intercept wait, since what is replaced belongs to the process. Give each thread its own copy
        of the model: what another thread runs on this one is intercepted, too.
        """
        HALF_PRECISION_MODELS.discard(self.model)
        with ExitStack() as around:
            around.enter_context(ONE_AT_A_TIME)
            around.callback(self._restore)
            for module in self.model.modules():
                if isinstance(module, Mechanism):
                    self._replace(module, "forward", partial(self._explicit_forward, module))
                for name in CHECKPOINTING:
                    if vars(module).get(name) is True:
                        self._replace(module, name, False)
            around.enter_context(as_written())
            self.around = around.pop_all()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Restore everything that was replaced."""
        with self.around:
            super().__exit__(*error)

    def _restore(self) -> None:
        for module, name, value in self.replaced:
            delattr(module, name)
            if value is not None:  # for example the forward set by an outer interception
                setattr(module, name, value)

    def _replace(self, module: nn.Module, name: str, value: Any) -> None:
        self.replaced.append((module, name, vars(module).get(name)))
        setattr(module, name, value)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute attention explicitly. Call every other function unchanged, and follow weights through it."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        explicit = EXPLICIT.get(func)
        if explicit is not None:
            return explicit(self, func, *args, **kwargs)
        result = func(*args, **kwargs)
        if len(self.followed.known):
            self.followed.follow(result, (*args, *kwargs.values()))
        return result

    def _explicit_forward(self, mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor, **around: Any) -> Tensor:
        self.paused = True  # a softmax inside must not count as another layer
        weights = mechanism.weights(q, k, **{name: around[name] for name in mechanism.weights_take})
        self.paused = False
        return mechanism.mix(self.edited(weights, v, q).to(v.dtype), v, **around)

    def edited(self, attn: Tensor, values: Tensor, queries: Tensor | None = None) -> Tensor:
        """Return the weights that replace ``attn``: (B, H, N, M), values (B, H, M, d) -> (B, H, N, M).

        Weights (1, H, N, M) or (H, N, M) are those of all images.
        """
        self._check_batched(values)
        if attn.ndim == 3 or len(attn) < len(values):
            attn = attn.expand(len(values), *attn.shape[-3:])
        if torch.finfo(values.dtype).bits < 32:
            HALF_PRECISION_MODELS.add(self.model)
        # Gradients with respect to attention are needed even if the model is frozen.
        if torch.is_grad_enabled() and not attn.requires_grad:
            attn.requires_grad_()
        # A complex number is two real ones for all that looks at values.
        self.values = torch.view_as_real(values).flatten(-2) if values.is_complex() else values
        self.queries = queries
        self.num_calls += 1
        with torch._C.DisableTorchFunction():  # modes that watch the model do not see what the edit computes
            return self.edit(self.num_calls - 1, attn)

    def edited_product(self, attn: Tensor, values: Tensor) -> Tensor:
        """Return the weights that replace ``attn``: of shape (B, H, N, M) or (B * H, N, M), or (H, N, M) for all.

        Raises:
            ValueError: If weights are complex numbers.
        """
        if attn.is_complex():
            if attn.imag.any():
                raise ValueError(
                    f"the attention weights of {type(self.model).__name__} are complex numbers, of which a map shows "
                    f"no more than a part: {CHOOSE_OTHERS}"
                )
            return self.edited_product(attn.real, values).to(attn.dtype)
        if values.ndim == 4:
            return self.edited(attn, values)
        if not self.splits_by_image(attn):
            return attn
        axes = self.first_axis
        return rearrange(self.edited(self.split(attn), self.split(values)), f"b h n m -> {axes} n m")

    def splits_by_image(self, tensor: Tensor) -> bool:
        """Return whether the first axis of (B * H, ...) splits into images. If not, add the shape to ``unseen``."""
        self._check_batched(tensor)
        if self.num_images and len(tensor) % self.num_images == 0:
            return True
        self.unseen.append(tuple(tensor.shape))
        return False

    def check_all_images(self, call: int, attn: Tensor) -> None:
        """Raise a ValueError if an attention is not of all images that were passed."""
        if len(attn) != self.num_images:
            raise ValueError(
                f"attention {call} of {type(self.model).__name__} sees {len(attn)} of {self.num_images} copies of an "
                "image that were passed together: the model passes images in parts, or skips a layer for some, so "
                f"attention number n is not the same layer for all: {CHOOSE_OTHERS}"
            )
        if len(self.values) != self.num_images:
            raise ValueError(
                f"attention {call} of {type(self.model).__name__} has values of {len(self.values)} of "
                f"{self.num_images} copies of an image that were passed together, as if a matrix of the model mixes "
                f"the weights before they mix tokens: {CHOOSE_OTHERS}"
            )

    def _check_batched(self, tensor: Tensor) -> None:
        """Raise a ValueError within ``torch.vmap``, which hides the axis of images."""
        if torch._C._functorch.is_batchedtensor(tensor):  # torch has no public function that tells
            raise ValueError(
                f"{type(self.model).__name__} runs its attention within torch.vmap, which hides an axis, that of "
                "images or of heads: write it for a batch, without vmap"
            )

    @property
    def first_axis(self) -> str:
        """The einops pattern of the first axis of the next attention with three axes: heads may come first."""
        return "(h b)" if self.num_calls in self.heads_first else "(b h)"

    def split(self, tensor: Tensor) -> Tensor:
        """Split the first axis into images and heads: (B * H, N, M) -> (B, H, N, M)."""
        return rearrange(tensor, f"{self.first_axis} n m -> b h n m", b=self.num_images)
