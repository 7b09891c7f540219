"""The reader, trained and asked from the command line."""

import csv
import json

import pytest
import torch
from PIL import Image

import vit
from tests.digit_runs import drawing
from tests.tiny import CPU, run_command
from vit.data import DigitStrings
from vit.data.strings import save_numbers
from vit.objectives import SequenceReader
from vit.objectives.read.evaluation import next_tokens

SIZES = {"image_size": (8, 12), "patch_size": 4, "in_channels": 1, "embed_dim": 12, "depth": 1, "num_heads": 3}
READ = [
    *("--data", "DigitStrings", "--data.count", "64", "--data.batch_size", "16", "--model", "SequenceReader"),
    *("--model.patch_size", "16", "--model.embed_dim", "8", "--model.depth", "1", "--model.num_heads", "2"),
    *("--model.decoder_depth", "1", *CPU, "--trainer.max_epochs", "2"),
]


def reader(**kwargs):
    torch.manual_seed(0)
    return SequenceReader("abc", 3, **SIZES | kwargs)


@pytest.fixture(autouse=True, scope="module")
def few_numbers():
    """Validation and test of 20 pictures each, made in no time."""
    numbers = DigitStrings.numbers

    def few(data, stage):
        data.counts |= {"val": 20, "test": 20}
        return numbers(data, stage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DigitStrings, "numbers", few)
        yield


@pytest.fixture(scope="module")
def trained(few_numbers, module_folder):
    with drawing():
        run_command("fit", *READ, "--experiment", "read")
    return module_folder / "runs/read/version_0"


def test_the_loss_is_the_cross_entropy_of_letters_and_ends_alone():
    module = reader().eval()
    images, tokens = torch.rand(2, 1, 8, 12), module.alphabet.encode(["ab", "c"], 3)
    log_probabilities = module(images, tokens[:, :-1]).log_softmax(dim=-1)
    written = [(0, 0, "a"), (0, 1, "b"), (0, 2, None), (1, 0, "c"), (1, 1, None)]
    losses = [
        -log_probabilities[row, step, module.alphabet.end if letter is None else "abc".index(letter)]
        for row, step, letter in written
    ]
    torch.testing.assert_close(module.training_loss((images, tokens)), torch.stack(losses).mean())


def test_heads_share_keys_and_values_in_the_encoder_and_in_both_attentions_of_the_decoder():
    block = reader(num_kv_heads=1).network.decoder.blocks[-1]
    assert (block.attn.num_kv_heads, block.cross_attn.num_kv_heads) == (1, 1)
    block = reader().network.decoder.blocks[-1]
    assert (block.attn.num_kv_heads, block.cross_attn.num_kv_heads) == (3, 3)


def test_it_normalises_the_pictures():
    module = reader(mean=[0.25], std=[0.5]).eval()
    tokens = module.alphabet.encode(["ab"], 3)
    images = torch.randint(0, 256, (1, 1, 8, 12), dtype=torch.uint8)
    expected = module.network((images / 255 - 0.25) / 0.5, tokens[:, :-1])
    torch.testing.assert_close(module(images, tokens[:, :-1]), expected)


def test_a_text_counts_as_read_in_just_the_case_that_greedy_decoding_writes_it():
    module = reader().eval()
    for parameter in module.parameters():  # so that it writes different texts
        torch.nn.init.normal_(parameter, std=0.5)
    images = torch.randn(200, 1, 8, 12)
    generated = module.read(images)
    texts = module.alphabet.decode(generated.tokens)
    tokens = module.alphabet.encode([text[:3] for text in texts], 3)
    tokens[::2, 1] = torch.randint(0, 3, (100,))
    module.evaluation = module.new_evaluation()
    module.validation_step((images, tokens), 0)
    exact = (generated.tokens == tokens[:, 1:]).all(dim=1).sum().item()
    assert 0 < exact < 200
    assert module.evaluation.accuracy == exact / 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operations_are_those_of_all_matrix_products(dtype):
    module = reader(mlp_ratio=2).to(dtype)
    patches, tokens, width = 6, 4, 12  # and a class token
    block = 4 * width**2 + 2 * 2 * width**2  # weights of attention and MLP
    encoder = patches * 16 * width + 7 * block + 2 * 7 * 7 * width
    own = 4 * tokens * width**2 + 2 * tokens * tokens * width
    cross = 2 * tokens * width**2 + 2 * 7 * width**2 + 2 * tokens * 7 * width
    decoder = 2 * (own + cross + tokens * 4 * width**2) + tokens * width * 5
    assert module.training_flop() == 3 * 2 * (encoder + decoder)


@pytest.mark.parametrize("options", [{"pool": "mean"}, {"pool": "mean", "class_token": False}], ids=str)
def test_the_encoder_keeps_its_last_norm_whatever_is_pooled(options, tmp_path):
    module = reader(**options).eval()
    assert isinstance(module.network.encoder.norm, torch.nn.LayerNorm)
    saved = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams)}
    module.on_save_checkpoint(saved)
    torch.save(saved | {"pytorch-lightning_version": "2.6.4"}, tmp_path / "last.ckpt")
    images = torch.randn(2, 1, 8, 12)
    encoder = vit.load(tmp_path / "last.ckpt")
    assert torch.equal(encoder.forward_features(images), module.network.encoder.forward_features(images))


def test_pooling_by_attention_which_no_reader_needs_is_refused():
    with pytest.raises(
        ValueError, match=r"pool \('map'\) makes one token of all, and a reader reads all tokens: leave it out"
    ):
        reader(pool="map")


def test_the_start_is_never_written_nor_counted():
    module = reader().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    images, start = torch.randn(200, 1, 8, 12), module.alphabet.start
    tokens = torch.full((200, 1), start)
    assert (module(images, tokens).argmax(dim=-1) == start).any()  # it is the most probable token for some
    for num_beams in (1, 3):
        assert start not in module.read(images, num_beams).tokens


def test_a_reader_in_training_mode_reads_nothing():
    with pytest.raises(ValueError, match=r"training mode, in which dropout is random: call reader.eval\(\) first"):
        reader().train().read(torch.rand(1, 1, 8, 12))


def test_rows_that_pad_a_batch_do_not_count():
    module = reader().eval()
    module.evaluation = module.new_evaluation()
    tokens = torch.cat([module.alphabet.encode(["ab"], 3), torch.full((2, 5), -1)])
    module.validation_step((torch.rand(3, 1, 8, 12), tokens), 0)
    module.validation_step((torch.rand(2, 1, 8, 12), tokens[1:]), 1)
    assert module.evaluation.count == 1
    module.places = [torch.tensor([0, -1])]  # a sampler repeats the second one, to fill the batch up
    module.validation_step((torch.rand(2, 1, 8, 12), tokens[:1].expand(2, -1)), 0)
    assert module.evaluation.count == 2


def test_the_decoder_has_room_for_the_longest_text():
    module = reader()
    tokens = module.alphabet.encode(["abc"], 3)
    assert module(torch.rand(1, 1, 8, 12), tokens[:, :-1]).shape == (1, 4, 5)
    assert next_tokens(tokens, module.alphabet.end)[0, -1] == module.alphabet.end


def test_a_run_has_scores_pictures_and_a_report(trained):
    results = json.loads((trained / "results.json").read_text())
    assert results["test_accuracy"] == results["scores"]["accuracy"]
    assert sum(row["support"] for row in results["scores"]["lengths"]) == results["scores"]["count"] == 20
    for name in ("reading.png", "attention.png", "curves.png"):
        with Image.open(trained / name) as picture:
            assert min(picture.size) > 200
    page = (trained / "report.html").read_text()
    assert "pictures by the length of their text" in page
    assert "confusion" not in page.lower()


def test_its_checkpoint_tells_the_command_line_what_it_is(trained, run, error_of, folder):
    last = trained / "checkpoints/last.ckpt"
    assert torch.load(last, weights_only=True)["module"] == "SequenceReader"
    resumed = run("fit", "--ckpt_path", last, "--trainer.max_epochs", "3")
    assert isinstance(resumed.model, SequenceReader)
    assert resumed.trainer.global_step == 12
    run("test", "--ckpt_path", last)
    evaluated = json.loads((trained / "evaluations/test_last_0/results.json").read_text())
    assert evaluated["test_accuracy"] == json.loads((trained / "results.json").read_text())["test_accuracy"]
    again = run("fit", "--config", trained / "config.yaml", "--trainer.max_epochs", "1")
    assert isinstance(again.model, SequenceReader)


def test_its_defaults_are_its_own(run, capsys):
    with pytest.raises(SystemExit):
        run("fit", "--data", "DigitStrings", "--model", "SequenceReader", "--print_config")
    printed = capsys.readouterr().out
    for default in ("optimizer: muon", "lr: 0.003", "decay: linear"):
        assert default in printed


def test_a_resumed_run_ends_with_the_same_bits(whole_and_resumed):
    whole, resumed = whole_and_resumed(SequenceReader, *READ, "--model.dropout", "0.1", "--model.ema_decay", "0.9")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_predict_writes_the_texts_of_a_folder_of_pictures(trained, run, folder):
    save_numbers(DigitStrings(count=5).numbers("train"), folder / "pictures")
    (folder / "pictures/texts.csv").unlink()
    Image.new("RGB", (200, 50)).save(folder / "pictures/wide.png")
    run("predict", "--ckpt_path", trained / "checkpoints/last.ckpt", "--data.root", folder / "pictures")
    with (trained / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "text", "probability"]
    assert len(rows) == 6
    module = SequenceReader.load_from_checkpoint(trained / "checkpoints/last.ckpt", weights_only=True).eval()
    images = DigitStrings(count=5).numbers("train").images
    generated = module.read(images)
    for row, text, score in zip(rows, module.alphabet.decode(generated.tokens), generated.scores, strict=False):
        assert row["text"] == text
        assert float(row["probability"]) == pytest.approx(score.exp().item(), abs=1e-3)


def test_beam_search_never_reads_a_less_probable_text():
    module = reader().eval()
    images = torch.rand(50, 1, 8, 12)
    greedy, beams = module.read(images), module.read(images, num_beams=4)
    per_token = (one.scores / one.lengths for one in (greedy, beams))
    assert (next(per_token) <= next(per_token) + 1e-5).all()


def test_other_texts_are_read_with_the_letters_of_the_training(run, error_of, folder):
    for name, texts in (("long", ["ab", "cab", "b", "ca", "ba"]), ("short", ["a", "b"])):
        (folder / name).mkdir()
        for number in range(len(texts)):
            Image.new("L", (12, 8), 40 * number).save(folder / name / f"{number}.png")
        lines = ["file,text", *(f"{number}.png,{text}" for number, text in enumerate(texts))]
        (folder / name / "texts.csv").write_text("\n".join(lines))
    fit = ["fit", "--data", "ImageStrings", "--data.root", "long", "--data.batch_size", "1", *READ[6:]]
    run(*fit, "--model.patch_size", "4", "--experiment", "own", "--data.num_workers", "0")
    last = "runs/own/version_0/checkpoints/last.ckpt"
    short = ["--data.root", "short", "--data.val_fraction", "0.5", "--data.test_fraction", "0"]
    run("validate", "--ckpt_path", last, *short)
    for number in range(2):
        Image.new("L", (24, 16), 40 * number).save(folder / f"short/{number}.png")
    run("validate", "--ckpt_path", last, *short)  # larger pictures are scaled
    message = error_of("test", "--ckpt_path", last, "--data.root", "short", "--data.letters", "ab")
    assert "the checkpoint reads the letters 'abc' and the data has 'ab': take data of the first" in message
    message = error_of("test", "--ckpt_path", last, "--data.root", "short", "--data.max_length", "2")
    assert message.endswith("the checkpoint reads 3 letters and the data 2: set --data.max_length 3")


def test_attention_maps_of_classifiers_are_switched_off(run, capsys):
    run("fit", *READ, "--trainer.callbacks+", "vit.training.AttentionMaps", "--trainer.max_epochs", "1")
    assert (
        "AttentionMaps is switched off: it draws classifiers, and this is a SequenceReader" in capsys.readouterr().out
    )


def test_vit_load_returns_the_encoder(trained):
    encoder = vit.load(trained / "checkpoints/last.ckpt")
    module = SequenceReader.load_from_checkpoint(trained / "checkpoints/last.ckpt", weights_only=True).eval()
    images = torch.randn(2, 1, 32, 96)
    torch.testing.assert_close(encoder.forward_features(images), module.network.encoder.forward_features(images))
    assert encoder.num_classes == 0


@pytest.mark.parametrize("is_early", [False, True])
def test_the_encoder_says_that_it_takes_whole_pictures_also_of_an_early_checkpoint(is_early, trained, tmp_path):
    checkpoint = torch.load(trained / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["encoder"]["about"] == {"stretch": True}
    if is_early:
        del checkpoint["encoder"]["about"]
    torch.save(checkpoint, tmp_path / "reader.ckpt")
    encoder = vit.load(tmp_path / "reader.ckpt")
    vit.save(encoder, tmp_path / "reader.safetensors")
    assert (
        encoder.pretrained_cfg["stretch"] is vit.load(tmp_path / "reader.safetensors").pretrained_cfg["stretch"] is True
    )
    assert "stretch" not in vit.load("cifar10").pretrained_cfg


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--data", "DigitStrings"], "DigitStrings has texts and no classes: add --model SequenceReader"),
        (["--data", "Digits", "--model", "SequenceReader"], "SequenceReader reads texts, and the data has none"),
        ([*READ, "--model.num_beams", "0"], "num_beams (0) must be a positive whole number"),
        ([*READ, "--model.decoder_depth", "x"], "--model.decoder_depth: expected a whole number, got x"),
        ([*READ, "--model.positions", "fixed"], "--model.positions: expected one of ['learned', 'sincos'"),
        ([*READ, "--model.letters", "abc"], "--model.letters is that of the data: set --data.letters"),
        (
            ["--data", "DigitStrings", "--model.decoder_depth", "2"],
            "is an option of SequenceReader, MaskedAutoencoder: ",
        ),
        (
            ["--data", "DigitStrings", "--model", "Reader"],
            "unknown model 'Reader': choose one of ViTClassifier, SequenceReader, ImageCompleter, ",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(error_of, arguments, answer):
    assert answer in error_of("fit", *arguments, *CPU, "--trainer.max_steps", "1")
