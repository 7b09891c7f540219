"""Google's .npz files: those of vision_transformer, and those of big_vision, which number the layers in another way."""

from dataclasses import replace

from vit.weights.formats.format import HALVES, Format, Rule, State

BLOCK = "Transformer/encoderblock_{i}"
STACKED = "Transformer/encoderblock/"  # big_vision may keep all blocks in one array


def norm(ours: str, theirs: str) -> tuple[Rule, ...]:
    """Return the rules of a layer norm."""
    return Rule(f"{ours}.weight", (f"{theirs}/scale",)), Rule(f"{ours}.bias", (f"{theirs}/bias",))


def dense(ours: str, theirs: str) -> tuple[Rule, ...]:
    """Return the rules of a linear layer."""
    return Rule(f"{ours}.weight", (f"{theirs}/kernel",), "d o -> o d"), Rule(f"{ours}.bias", (f"{theirs}/bias",))


def projections(ours: str, theirs: str, *names: str) -> tuple[Rule, ...]:
    """Return the rules of a projection to heads that is several projections there."""
    return (
        Rule(f"{ours}.weight", tuple(f"{theirs}/{name}/kernel" for name in names), "d h e -> (h e) d"),
        Rule(f"{ours}.bias", tuple(f"{theirs}/{name}/bias" for name in names), "h e -> (h e)"),
    )


def output(ours: str, theirs: str) -> tuple[Rule, ...]:
    """Return the rules of the output projection of attention."""
    return (
        Rule(f"{ours}.weight", (f"{theirs}/out/kernel",), "h e d -> d (h e)"),
        Rule(f"{ours}.bias", (f"{theirs}/out/bias",)),
    )


def rules(attention: str, norm2: str, mlp: str, positions: str) -> tuple[Rule, ...]:
    """Return the rules of a model whose layers have these names."""
    pool = "MAPHead_0"
    return (
        Rule("cls_token", ("cls",)),
        Rule("pos_embed", (positions,)),
        Rule("patch_embed.proj.weight", ("embedding/kernel",), "p q c d -> d c p q"),
        Rule("patch_embed.proj.bias", ("embedding/bias",)),
        *norm("blocks.{i}.norm1", f"{BLOCK}/LayerNorm_0"),
        *projections("blocks.{i}.attn.qkv", f"{BLOCK}/{attention}", "query", "key", "value"),
        *output("blocks.{i}.attn.proj", f"{BLOCK}/{attention}"),
        *norm("blocks.{i}.norm2", f"{BLOCK}/{norm2}"),
        *dense("blocks.{i}.mlp.fc1", f"{BLOCK}/{mlp}/Dense_0"),
        *dense("blocks.{i}.mlp.fc2", f"{BLOCK}/{mlp}/Dense_1"),
        *norm("norm", "Transformer/encoder_norm"),
        Rule("attn_pool.latent", (f"{pool}/probe",)),
        *projections("attn_pool.q", f"{pool}/MultiHeadDotProductAttention_0", "query"),
        *projections("attn_pool.kv", f"{pool}/MultiHeadDotProductAttention_0", "key", "value"),
        *output("attn_pool.proj", f"{pool}/MultiHeadDotProductAttention_0"),
        *norm("attn_pool.norm", f"{pool}/LayerNorm_0"),
        *dense("attn_pool.mlp.fc1", f"{pool}/MlpBlock_0/Dense_0"),
        *dense("attn_pool.mlp.fc2", f"{pool}/MlpBlock_0/Dense_1"),
        *dense("head", "head"),
    )


def _read_heads(state: State) -> dict[str, int]:
    kernel = next((tensor for name, tensor in state.items() if name.endswith("/query/kernel")), None)
    return {} if kernel is None or kernel.ndim < 2 else {"num_heads": kernel.shape[-2]}


def _unstack(state: State) -> State:
    """Give each block tensors of its own."""
    apart = {
        f"Transformer/encoderblock_{i}/{name.removeprefix(STACKED)}": part
        for name, tensor in state.items()
        if name.startswith(STACKED)
        for i, part in enumerate(tensor)
    }
    return apart | {name: tensor for name, tensor in state.items() if not name.startswith(STACKED)}


GOOGLE = Format(
    "Google .npz",
    rules("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3", "Transformer/posembed_input/pos_embedding"),
    needs=("embedding/kernel", "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"),
    # Google trains with flax's GELU, which is the approximation by tanh.
    defaults={"mlp": "gelu_tanh", "pos_embed_interpolation": "google"},
    from_config=(),
    requires=lambda _: {"qkv_bias": True},
    read_from_tensors=_read_heads,
    data=HALVES,
)
BIG_VISION = replace(
    GOOGLE,
    name="Google .npz (big_vision)",
    rules=rules("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0", "pos_embedding"),
    needs=("embedding/kernel", "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"),
    pools=("cls", "mean", "map"),
)
BIG_VISION_STACKED = replace(
    BIG_VISION,
    name="Google .npz (big_vision, blocks in one array)",
    needs=("embedding/kernel", "Transformer/encoderblock/MlpBlock_0/Dense_0/kernel"),
    before_reading=_unstack,
)
