import pytest
import torch
from timm.models import group_parameters
from timm.optim import create_optimizer_v2

from vit import VisionTransformer
from vit.model.decoder import ImageToSequence, TransformerDecoder
from vit.training.optimizer import make_optimizer, parameter_groups


@pytest.fixture
def model() -> VisionTransformer:
    sizes = {"image_size": 6, "patch_size": 3, "embed_dim": 8, "depth": 3, "num_heads": 2}
    return VisionTransformer(**sizes, num_registers=2, layer_scale=0.1, qk_norm=True)


def settings(model: VisionTransformer, groups: list[dict]) -> dict[str, tuple[float, float]]:
    """Name of each parameter -> (learning rate, weight decay)."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}


def test_every_parameter_is_in_exactly_one_group(model):
    grouped = [parameter for group in parameter_groups(model, 0.1, 0.05, 0.5) for parameter in group["params"]]
    assert len(grouped) == len(set(grouped)) == len(list(model.parameters()))


def test_only_weight_matrices_decay(model):
    decays = {name: decay for name, (_, decay) in settings(model, parameter_groups(model, 0.1, 0.05)).items()}
    decayed = {name for name, decay in decays.items() if decay > 0}
    linear = {f"blocks.{i}.{part}.weight" for i in range(3) for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")}
    assert decayed == linear | {"patch_embed.proj.weight", "head.weight"}
    assert set(decays.values()) == {0.0, 0.05}


def test_layer_decay_gives_each_layer_a_real_learning_rate(model):
    rates = {name: rate for name, (rate, _) in settings(model, parameter_groups(model, 0.8, 0.05, 0.5)).items()}
    assert rates["head.weight"] == 0.8
    assert rates["blocks.2.mlp.fc1.weight"] == rates["blocks.2.ls1.gamma"] == rates["norm.bias"] == 0.4
    assert rates["blocks.1.norm1.weight"] == 0.2
    assert rates["blocks.0.attn.q_norm.weight"] == 0.1
    assert rates["pos_embed"] == rates["cls_token"] == rates["reg_token"] == rates["patch_embed.proj.bias"] == 0.05


@pytest.mark.parametrize(("kwargs", "last"), [({"pool": "mean"}, "fc_norm."), ({"pool": "map"}, "attn_pool.")], ids=str)
def test_what_follows_the_blocks_learns_at_the_rate_of_the_head(kwargs, last):
    model = VisionTransformer(image_size=6, patch_size=3, embed_dim=8, depth=3, num_heads=2, **kwargs)
    rates = {name: rate for name, (rate, _) in settings(model, parameter_groups(model, 0.8, 0.05, 0.5)).items()}
    assert {rate for name, rate in rates.items() if name.startswith((last, "head."))} == {0.8}
    assert any(name.startswith(last) for name in rates)


def test_the_layer_decay_of_timm_gives_the_same_groups(model):
    theirs = create_optimizer_v2(model, opt="adamw", lr=0.8, weight_decay=0.05, layer_decay=0.75)
    for group in theirs.param_groups:
        group["lr"] = 0.8 * group["lr_scale"]
    groups = parameter_groups(model, 0.8, 0.05, 0.75)
    assert len(groups) == len(theirs.param_groups)
    ours = settings(model, groups)
    for name, rate_and_decay in settings(model, theirs.param_groups).items():
        assert rate_and_decay == pytest.approx(ours[name]), name


def test_the_blocks_are_one_layer_to_a_coarse_matcher(model):
    names = [name for name, _ in model.named_parameters()]
    layers = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert {layers[name] for name in names if name.startswith("blocks.")} == {1}


@pytest.mark.parametrize(
    ("shared", "matrices"),
    [({}, 3), ({"tie_qkv": True}, 1), ({"tie_kv": True}, 2), ({"num_kv_heads": 1}, 1), ({"key_dim": 6}, 1)],
    ids=str,
)
def test_muon_takes_the_projections_of_attention_apart_where_they_are_of_one_height(shared, matrices):
    model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3, **shared)
    groups = parameter_groups(model, 0.1, 0.05, muon=True)
    (found,) = (g["stacked"] for g in groups for p in g["params"] if p is model.blocks[0].attn.qkv.weight)
    assert found == matrices
    optimizer = make_optimizer("muon", model, 0.1, 0.05, (0.9, 0.99))
    before = model.blocks[0].attn.qkv.weight.detach().clone()
    model(torch.randn(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.blocks[0].attn.qkv.weight, before)


def test_layer_decay_holds_under_a_scheduler(model):
    optimizer = make_optimizer("adamw", model, 0.8, 0.05, (0.9, 0.99), layer_decay=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.25)
    model(torch.randn(1, 3, 6, 6)).sum().backward()
    optimizer.step()
    scheduler.step()
    rates = {name: rate for name, (rate, _) in settings(model, optimizer.param_groups).items()}
    assert rates["head.weight"] == 0.2
    assert rates["pos_embed"] == 0.0125


def test_an_unknown_optimizer_is_refused(model):
    with pytest.raises(ValueError, match="unknown optimizer 'sgd': choose 'adamw' or 'muon'"):
        make_optimizer("sgd", model, 0.1, 0.0, (0.9, 0.99))


def test_muon_finds_the_matrices_of_encoder_and_decoder():
    encoder = VisionTransformer(image_size=6, patch_size=3, embed_dim=8, depth=1, num_heads=2)
    same, other = (TransformerDecoder(5, width, 1, 2, max_length=4, context_dim=8) for width in (8, 12))
    stacked = {}
    for decoder in (same, other):
        reader = ImageToSequence(encoder, decoder, start=3, end=4)
        names = {parameter: name for name, parameter in reader.named_parameters()}
        groups = parameter_groups(reader, 0.1, 0.05, muon=True)
        stacked[decoder] = {names[p]: group["stacked"] for group in groups for p in group["params"] if group["muon"]}
        undecayed = {names[p] for group in groups for p in group["params"] if not group["weight_decay"] and p.ndim > 1}
        assert undecayed == {
            *("encoder.cls_token", "encoder.pos_embed", "decoder.pos_embed", "decoder.token_embed.weight")
        }
    shared = {"attn.qkv": 3, "attn.proj": 1, "cross_attn.proj": 1, "mlp.fc1": 1, "mlp.fc2": 1}
    of_encoder = {f"encoder.blocks.0.{name}.weight": n for name, n in shared.items() if "cross" not in name}
    for decoder, cross in ((same, {"cross_attn.qkv": 3}), (other, {"cross_attn.q": 1, "cross_attn.kv": 2})):
        of_decoder = {f"decoder.blocks.0.{name}.weight": n for name, n in (shared | cross).items()}
        assert stacked[decoder] == of_encoder | of_decoder


def test_a_mechanism_without_projections_has_the_matrices_of_its_mlp():
    model = VisionTransformer(image_size=6, patch_size=3, embed_dim=8, depth=1, num_heads=2, attention="simplified")
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, 0.1, 0.05, muon=True)
    found = {names[p] for group in groups for p in group["params"] if group["muon"]}
    assert found == {"blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"}


@pytest.mark.parametrize("muon", [False, True])
def test_the_groups_are_the_same_without_weight_decay(model, muon):
    with_it, without = (parameter_groups(model, 0.1, decay, 0.5, muon=muon) for decay in (0.05, 0.0))
    assert [[id(each) for each in group["params"]] for group in with_it] == [
        [id(each) for each in group["params"]] for group in without
    ]
    assert {group["weight_decay"] for group in without} == {0.0}
