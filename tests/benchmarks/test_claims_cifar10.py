"""The experiment about attention and its rivals on CIFAR-10: equal size and time, options by validation, answers."""

import json
from pathlib import Path

import claims
import claims_cifar10
import claims_figures
import pytest
import records
from claims_cifar10 import ALL, FEW, KERNELS, SECONDS, SPEED, highest
from claims_rivals import COLORS, used_parameters
from claims_training import FAILS, HOLDS, OPEN
from parts import typed
from training_runs import TrainingError

DATA = Path("photos")


@pytest.fixture
def trainings(monkeypatch):
    """The arguments of all trainings, which do not run; a kernel of 5 and a rate of 0.006 are best."""
    typed = []

    def train(name, arguments, threads):
        assert threads == 1
        typed.append(arguments)
        score = 0.5 + 0.1 * ("--model.lr=0.006" in arguments) + 0.2 * ("--model.attention_kwargs.kernel=5" in arguments)
        results = {"test_accuracy": score, "val_accuracy": score, "images_per_second": 500.0, "parameters": 580_510}
        command = " ".join(["python train.py fit", *arguments])
        return results | {"command": command, "steps": int(arguments[arguments.index("--trainer.max_steps") + 1])}

    monkeypatch.setattr(claims_cifar10, "train", train)
    monkeypatch.setattr(claims_cifar10, "check_images", lambda folder: None)
    claims_cifar10.chosen.cache_clear()
    yield typed
    claims_cifar10.chosen.cache_clear()


def compared(few=0.5, many=0.7):
    """Cells of three seeds: accuracies of convolution after few and after all images; the others have 50 and 70 %."""
    of_settings = {
        name: 0.5 if setting["size"] == FEW else 0.7 for name, setting in claims_cifar10.SETTINGS.items()
    } | {f"convolution, {FEW:,} images": few, f"convolution, {ALL:,} images": many}
    shared = {"parameters": 580_510, "images_per_second": 500.0, "lr": 3e-3, "steps": 276}
    return {
        f"{name}, seed {seed}": shared
        | {"setting": name, "seed": seed, "accuracy": accuracy + 0.001 * (seed - 1)}
        | {"kernel": 5 if "convolution" in name else None}
        for name, accuracy in of_settings.items()
        for seed in range(3)
    }


@pytest.mark.parametrize(
    ("few", "many", "answers"),
    [(0.6, 0.6, [HOLDS, HOLDS]), (0.4, 0.8, [FAILS, FAILS]), (0.5, 0.7, [OPEN, OPEN])],
)
def test_few_and_enough_images_are_two_sentences(few, many, answers):
    assert [row["answer"] for row in claims_cifar10.rows(compared(few, many))] == answers


@pytest.mark.parametrize("missing", [f"uniform, {FEW:,} images", f"softmax, {ALL:,} images"])
def test_a_sentence_without_all_its_numbers_has_no_row(missing):
    cells = {name: cell for name, cell in compared().items() if cell["setting"] != missing}
    assert claims_cifar10.rows(cells) == []


def test_what_is_measured_so_far_has_a_table_and_a_picture(tmp_path):
    for first in (1, 5, 36):
        some = dict(list(compared().items())[:first])
        assert "580,510" in claims_cifar10.table(some)
        claims.CLAIMS["cifar10"].draw(some, tmp_path / "drawn.png")
        assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_the_picture_has_the_numbers_of_photographs(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(claims_figures.Figure, "savefig", lambda figure, path: drawn.append(figure))
    claims.CLAIMS["cifar10"].draw(compared(), tmp_path / "drawn.png")
    ticks = [tick.get_text() for tick in drawn[0].axes[1].get_xticklabels()]
    assert ticks == [f"{size:,}" for size in SECONDS]


def test_all_models_have_the_same_number_of_parameters_that_the_logits_depend_on(trainings, build):
    counts = {}
    root = Path(__file__).parents[2]
    for name in COLORS:
        for kernel in KERNELS if name == "convolution" else (None,):
            claims_cifar10.run(name, ALL, 0, DATA, 60, 3e-3, kernel, [])
            words = ["--config", str(root / claims_cifar10.CONFIG), *trainings[-1][2:]]
            del words[words.index("--data") : words.index("--data.val_fraction")]  # the folder is not there
            counts[name, kernel] = used_parameters(build(words).model.network)
    assert all(abs(count / counts["softmax", None] - 1) < 0.002 for count in counts.values()), counts


def test_a_mechanism_that_is_half_as_fast_takes_half_of_the_steps(trainings, monkeypatch):
    monkeypatch.setitem(SPEED, "recurrent", SPEED["softmax"] / 2)
    results = [claims_cifar10.run(name, FEW, 0, DATA, 60, 3e-3, None, []) for name in ("softmax", "recurrent")]
    assert results[0]["steps"] == round(60 * SPEED["softmax"] / 128)
    assert results[1]["steps"] == pytest.approx(results[0]["steps"] / 2, abs=1)


def test_learning_rate_and_kernel_are_those_of_the_best_validation_accuracy(trainings):
    choice = claims_cifar10.chosen("convolution", DATA)
    assert (choice["lr"], choice["kernel"]) == (6e-3, 5)
    tried = ["lr 0.003, kernel 3", "lr 0.003, kernel 5", "lr 0.0015, kernel 5", "lr 0.006, kernel 5"]
    assert [*choice["validation"]] == [*tried, "lr 0.012, kernel 5"]
    for words in trainings:
        assert words[words.index("--data.val_fraction") + 1] == "0.1"
        assert words[-2:] == ["--trainer.limit_test_batches", "0"]


@pytest.mark.parametrize("best", [1.0, 0.25, 8.0])
def test_a_rate_is_climbed_to_from_both_sides(best):
    assert highest(lambda rate: -abs(rate - best), 1.0) == best


def test_a_cell_keeps_its_training_which_takes_a_subset_and_is_not_validated(trainings, monkeypatch, tmp_path):
    monkeypatch.setattr(records, "commit", lambda: "abc1234")
    typed_words = ["cifar10", "--data", "photos", "--settings", f"softmax, {FEW:,} images", "--seeds", "5"]
    claims.main([*typed_words, "--output", str(tmp_path)])
    (cell,) = json.loads((tmp_path / "claims_cifar10.json").read_text()).values()
    assert (cell["accuracy"], cell["lr"], cell["kernel"], cell["seed"]) == (0.6, 6e-3, None, 5)
    command = cell["training"]["command"]
    assert "--seed_everything 5 --data ImageFolder --data.root photos --data.val_fraction 0.98" in command
    assert command.endswith("--trainer.limit_val_batches 0")
    line = typed(cell)
    assert line.startswith("--config configs/cifar10_quick.yaml --model.embed_dim=108")
    assert line.endswith("--model.attention=softmax --model.mlp_ratio=2.0 --model.lr=0.006")


def test_a_folder_with_other_images_is_refused_before_a_training(tmp_path, capsys):
    (tmp_path / "train/cat").mkdir(parents=True)
    (tmp_path / "train/cat/0.jpg").touch()
    with pytest.raises(SystemExit):
        claims.main(["cifar10", "--data", str(tmp_path)])
    assert "has 1 files in train/CLASS/, and CIFAR-10 has 50,000 training images: give" in capsys.readouterr().err


def test_a_training_that_fails_is_one_line(trainings, monkeypatch, tmp_path):
    def failing(*_, **__):
        raise TrainingError("softmax failed with exit status 2: error: no")

    monkeypatch.setattr(claims_cifar10, "train", failing)
    with pytest.raises(SystemExit, match=r"^error: softmax failed with exit status 2: error: no$"):
        claims.main(["cifar10", "--data", "photos", "--output", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["cifar10"], "cifar10 needs --data FOLDER"), (["reach", "--data", "photos"], "reach has no --data")],
)
def test_images_are_given_to_the_experiment_that_takes_them(arguments, error, capsys):
    with pytest.raises(SystemExit):
        claims.main(arguments)
    assert error in capsys.readouterr().err
