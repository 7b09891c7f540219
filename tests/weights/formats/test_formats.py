"""Weights of other libraries: tokens and logits are theirs, and files in their formats load there."""

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import vit
from tests.weights.formats.sources import NATIVE, OTHER, PEERS, made

EACH_PEER = pytest.mark.parametrize("name", PEERS)


def images_of(size):
    return torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@EACH_PEER
@torch.no_grad()
def test_a_module_of_another_library_gives_its_tokens_and_logits(name):
    peer, theirs, images = PEERS[name], made(name), images_of(NATIVE)
    ours = vit.load(theirs, **dict(peer.changes))
    assert_close(ours.forward_features(images), peer.tokens(theirs, images), rtol=peer.exact, atol=peer.exact)
    if peer.logits:
        assert_close(ours(images), peer.logits(theirs, images), rtol=peer.exact, atol=peer.exact)


@EACH_PEER
@torch.no_grad()
def test_positions_are_resized_by_the_convention_of_the_library(name):
    peer = PEERS[name]
    if not peer.resizes:
        pytest.skip("the library resizes no positions")
    theirs, images = made(name), images_of(OTHER)
    ours = vit.load(theirs)
    assert_close(ours.forward_features(images), peer.tokens(theirs, images), rtol=1e-5, atol=1e-5)


def library_of(name):
    return name.split()[0]


def saved(model, name, folder):
    """Save a model in the format of a library; return the path."""
    library = library_of(name)
    path = folder / {"timm": "model.safetensors", "torchvision": "model.pth", "transformers": "model"}[library]
    vit.save(model, path, format=library)
    return path


@EACH_PEER
@torch.no_grad()
def test_what_is_written_is_read_by_the_library(name, tmp_path):
    peer, theirs, images = PEERS[name], made(name), images_of(NATIVE)
    path = saved(vit.load(theirs), name, tmp_path)
    if library_of(name) == "transformers":
        again, loading = type(theirs).from_pretrained(path, dtype=torch.float64, output_loading_info=True)
        assert all(key.startswith("pooler.") for key in loading["missing_keys"])  # no part of a Vision Transformer
        assert not loading["unexpected_keys"]
    else:
        again = made(name)
        for parameter in again.parameters():
            torch.nn.init.zeros_(parameter)
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
        again.load_state_dict(state, strict=True)
    assert_close(peer.tokens(again.eval(), images), peer.tokens(theirs, images), rtol=peer.exact, atol=peer.exact)


@EACH_PEER
def test_what_is_written_is_read_again_bit_for_bit(name, tmp_path):
    ours = vit.load(made(name))
    told = {key: ours.config[key] for key in ("num_heads", "mlp", "norm_eps", "pos_embed_interpolation")}
    again = vit.load(saved(ours, name, tmp_path), image_size=NATIVE[0], pool=ours.pool, **told)
    expected, found = ours.state_dict(), again.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
