"""The network of a masked autoencoder against plain computations and the model of transformers."""

import pytest
import torch
from torch.autograd import grad

import vit
from vit.model import masked_autoencoder
from vit.model.masked_autoencoder import (
    PatchAutoencoder,
    cut_into_patches,
    hidden_patches,
    join_patches,
    reconstruction_losses,
)
from vit.model.positions import sinusoidal_positions_2d

ROWS, COLUMNS, P, Q, CHANNELS = 3, 5, 2, 3, 3  # of the grid, and of a patch


def autoencoder(**changes):
    torch.manual_seed(0)
    sizes = {"image_size": (ROWS * P, COLUMNS * Q), "patch_size": (P, Q), "in_channels": CHANNELS, "num_classes": 0}
    encoder = vit.VisionTransformer(**sizes | {"embed_dim": 28, "depth": 2, "num_heads": 7, "mlp_ratio": 1.5} | changes)
    return PatchAutoencoder(encoder, embed_dim=12, depth=1, num_heads=3).double().eval()


@pytest.fixture
def images():
    return torch.randn(7, CHANNELS, ROWS * P, COLUMNS * Q, dtype=torch.float64, generator=torch.manual_seed(1))


@pytest.fixture
def keep():
    return torch.rand(7, ROWS * COLUMNS, generator=torch.manual_seed(2)).argsort(dim=1)[:, :4]


def test_patches_are_cut_row_by_row_and_joined_again(images):
    patches = cut_into_patches(images, (P, Q))
    assert patches.shape == (7, 15, P * Q * CHANNELS)
    assert torch.equal(patches[4, 7].view(P, Q, CHANNELS), images[4, :, 2:4, 6:9].permute(1, 2, 0))
    assert torch.equal(join_patches(patches, (P, Q), (ROWS, COLUMNS)), images)


def test_the_loss_is_that_of_loops_over_images_and_hidden_patches(images, keep):
    predicted = torch.randn(7, 15, 18, dtype=torch.float64, generator=torch.manual_seed(3))
    found = reconstruction_losses(predicted, images, keep, (P, Q))
    for number in range(7):
        errors = []
        for patch in sorted(set(range(15)) - set(keep[number].tolist())):
            row, column = divmod(patch, COLUMNS)
            pixels = [
                images[number, channel, row * P + p, column * Q + q].item()
                for p in range(P)
                for q in range(Q)
                for channel in range(CHANNELS)
            ]
            mean = sum(pixels) / 18
            variance = sum((pixel - mean) ** 2 for pixel in pixels) / 17
            guesses = zip(predicted[number, patch].tolist(), pixels, strict=True)
            errors += [(guess - (pixel - mean) / (variance + 1e-6) ** 0.5) ** 2 for guess, pixel in guesses]
        assert found[number].item() == pytest.approx(sum(errors) / len(errors), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_numbers_of_visible_patches_may_be_narrow_integers(images, keep, dtype):
    network = autoencoder()
    found, narrow = network(images, keep), keep.to(dtype)
    assert torch.equal(network(images, narrow), found)
    losses = [reconstruction_losses(found, images, numbers, (P, Q)) for numbers in (narrow, keep)]
    assert torch.equal(*losses)


def test_a_loss_of_no_hidden_patch_is_refused(images):
    every = torch.arange(15).expand(7, 15)
    with pytest.raises(ValueError, match="keep has 15 of 15 patches, so that none is hidden and there is no error: le"):
        reconstruction_losses(torch.zeros(7, 15, 18), images, every, (P, Q))


def test_pixels_of_visible_patches_as_targets_have_no_gradient_and_those_of_hidden_ones_have(images, keep):
    predicted, targets = autoencoder()(images, keep).detach(), images.requires_grad_()
    (gradient,) = grad(reconstruction_losses(predicted, targets, keep, (P, Q)).sum(), targets)
    of_patches = cut_into_patches(gradient, (P, Q)).abs().amax(dim=2)
    hidden = hidden_patches(keep, 15)
    assert (of_patches[~hidden] == 0).all()
    assert (of_patches[hidden] > 0).all()


def test_the_encoder_sees_no_hidden_pixel(images, keep):
    network, images = autoencoder(), images.requires_grad_()
    (gradient,) = grad(network(images, keep).square().sum(), images)
    of_patches = cut_into_patches(gradient, (P, Q)).abs().amax(dim=2)
    hidden = hidden_patches(keep, 15)
    assert (of_patches[hidden] == 0).all()
    assert (of_patches[~hidden] > 0).all()


@pytest.mark.parametrize("registers", [0, 2])
def test_the_order_of_the_visible_patches_does_not_matter(images, keep, registers):
    network = autoencoder(num_registers=registers)
    torch.testing.assert_close(network(images, keep.flip(1)), network(images, keep))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": (4, 4), "patch_stride": 2, "image_size": 8}, "do not tile images of"),
        ({"image_size": (7, 15), "pad_images": True}, r"do not tile images of \(7, 15\)"),
        ({"patch_size": 1, "in_channels": 1}, r"patch_size \(1, 1\) and in_channels 1 make patches of one number"),
    ],
    ids=["overlapping", "padded", "one pixel"],
)
def test_patches_that_cannot_be_predicted_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        autoencoder(**changes)


def test_a_network_built_on_the_meta_device_and_filled_later_predicts_as_any_other(images, keep):
    network = autoencoder()
    with torch.device("meta"):
        other = autoencoder()
    other = other.to_empty(device="cpu")
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(other(images, keep), network(images, keep), rtol=0, atol=0)


def test_hidden_patches_enter_the_decoder_as_the_mask_token_plus_their_position(images, keep):
    network, entered = autoencoder(), []
    network.decoder.blocks[0].register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    network(images, keep)
    positions = sinusoidal_positions_2d((ROWS, COLUMNS), 12).double()
    expected = network.decoder.mask_token[0] + positions
    for tokens, visible in zip(entered[0][:, -ROWS * COLUMNS :], keep.tolist(), strict=True):
        hidden = [number for number in range(ROWS * COLUMNS) if number not in visible]
        torch.testing.assert_close(tokens[hidden], expected[hidden])


def test_positions_follow_the_input_size_of_the_encoder(keep):
    network = autoencoder(image_size=(COLUMNS * P, ROWS * Q))
    network.encoder.set_input_size((ROWS * P, 2 * COLUMNS * Q))
    fresh = PatchAutoencoder(network.encoder, embed_dim=12, depth=1, num_heads=3).double().eval()
    fresh.load_state_dict(network.state_dict())
    images = torch.randn(7, CHANNELS, ROWS * P, 2 * COLUMNS * Q, dtype=torch.float64)
    predicted = network(images, keep)
    assert predicted.shape[1] == 2 * ROWS * COLUMNS
    torch.testing.assert_close(predicted, fresh(images, keep), rtol=0, atol=0)


def test_as_many_patches_of_another_grid_are_refused(images, keep):
    with pytest.raises(
        ValueError, match=rf"images have \({COLUMNS * P}, {ROWS * Q}\) pixels, and the decoder has posit"
    ):
        autoencoder()(images.reshape(-1, CHANNELS, COLUMNS * P, ROWS * Q), keep)


def test_a_decoder_whose_channels_its_heads_do_not_divide_is_refused():
    encoder = vit.VisionTransformer(image_size=8, embed_dim=12, depth=1, num_heads=3)
    with pytest.raises(
        ValueError, match=r"decoder_dim \(14\) must be a multiple of 4 and of decoder_heads \(3\): take"
    ):
        PatchAutoencoder(encoder, embed_dim=14, depth=1, num_heads=3)


def test_prediction_and_loss_are_those_of_transformers(monkeypatch):
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    sizes = {"image_size": 12, "patch_size": 4, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    decoder = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2}
    widths = {"intermediate_size": 48, "decoder_intermediate_size": 32}
    config = ViTMAEConfig(**sizes, **decoder, **widths, mask_ratio=0.6, norm_pix_loss=True, layer_norm_eps=1e-6)
    torch.manual_seed(0)
    theirs = ViTMAEForPreTraining(config).double().eval()
    encoder = vit.VisionTransformer(12, 4, embed_dim=24, depth=2, num_heads=3, mlp_ratio=2.0, num_classes=0)
    ours = PatchAutoencoder(encoder, embed_dim=16, depth=2, num_heads=2).double().eval()
    state = theirs.state_dict()
    renamed = {
        "encoder.cls_token": state["vit.embeddings.cls_token"],
        "encoder.pos_embed": state["vit.embeddings.position_embeddings"],
        "decoder.mask_token": state["decoder.mask_token"],
    }
    for part, (name, other) in {
        "encoder.patch_embed.proj": ("vit.embeddings.patch_embeddings.projection", None),
        "encoder.norm": ("vit.layernorm", None),
        "decoder.embed": ("decoder.decoder_embed", None),
        "decoder.norm": ("decoder.decoder_norm", None),
        "decoder.pred": ("decoder.decoder_pred", None),
        "encoder.blocks": ("vit.layers", 2),
        "decoder.blocks": ("decoder.decoder_layers", 2),
    }.items():
        for kind in ("weight", "bias"):
            if other is None:
                renamed[f"{part}.{kind}"] = state[f"{name}.{kind}"]
                continue
            for i in range(other):
                block, of_theirs = f"{part}.{i}", f"{name}.{i}"
                projections = [state[f"{of_theirs}.attention.{each}_proj.{kind}"] for each in "qkv"]
                renamed |= {
                    f"{block}.norm1.{kind}": state[f"{of_theirs}.layernorm_before.{kind}"],
                    f"{block}.norm2.{kind}": state[f"{of_theirs}.layernorm_after.{kind}"],
                    f"{block}.attn.qkv.{kind}": torch.cat(projections),
                    f"{block}.attn.proj.{kind}": state[f"{of_theirs}.attention.o_proj.{kind}"],
                    f"{block}.mlp.fc1.{kind}": state[f"{of_theirs}.mlp.fc1.{kind}"],
                    f"{block}.mlp.fc2.{kind}": state[f"{of_theirs}.mlp.fc2.{kind}"],
                }
    ours.load_state_dict(renamed)
    images, noise = torch.randn(5, 3, 12, 12, dtype=torch.float64), torch.rand(5, 9, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs(images, noise=noise)
        keep = noise.argsort(dim=1)[:, :3]
        codes = theirs.decoder.decoder_pos_embed[0, 1:]  # whose channels have another order
        monkeypatch.setattr(masked_autoencoder, "sinusoidal_positions_2d", lambda grid_size, dim: codes)
        predicted = ours(images, keep)
    assert torch.equal(hidden_patches(keep, 9), expected.mask.bool())
    torch.testing.assert_close(predicted, expected.logits)
    losses = reconstruction_losses(predicted, images, keep, (4, 4))
    torch.testing.assert_close(losses.mean(), expected.loss)
