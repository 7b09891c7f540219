"""README.md, CONTRIBUTING.md and docs/: code runs, commands parse, files exist, and sentences follow from results."""

import json
import re
import shlex
import shutil
import statistics
from pathlib import Path
from typing import get_args

import pytest
import torch
from PIL import Image

import train
import vit
from tests.digit_runs import train_once
from vit.__main__ import COMMANDS, TRAINING
from vit.analysis.head_table import Kind
from vit.attention import MECHANISMS
from vit.commands import folds, plan
from vit.commands.configs import find_configs
from vit.commands.training_cli import ViTCLI
from vit.explain.maps import CLASS_AGNOSTIC, CONTROLS, METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {path: path.read_text() for path in PAGES}
SHAPE = re.compile(r"^(\w+) = .*  # (?:(\d+) of )?(\([\d, +]+\))$", re.MULTILINE)
OPTIONS = re.compile(r"`((?:--(?:model|data|trainer)\.\S+ [^\s`]+ ?)+)`")

WRITTEN = [path for path in PAGES if path.name != "README.md"]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def blocks(page, kind):
    return [block for found, block in re.findall(r"```(\w*)\n(.*?)```", TEXT[page], re.DOTALL) if found == kind]


def commands(page, start):
    """Command lines of a page that start with some words, without comments, as lists of arguments."""
    lines = "\n".join(blocks(page, "")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{start} ")]


@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if path.name != "CONTRIBUTING.md" and blocks(path, "python")],
    ids=lambda path: path.name,
)
def test_python_runs_from_top_to_bottom_and_gives_the_shapes_in_its_comments(
    page, tmp_path, tmp_path_factory, monkeypatch
):
    if "runs/digits" in TEXT[page]:  # the run that make demo leaves, of a smaller model
        runs = train_once(tmp_path_factory.getbasetemp())
        shutil.copytree(runs / "tiny", tmp_path / "runs/digits")
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (50, 40), "orange").save("photo.jpg")
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    names: dict = {}
    for code in blocks(page, "python"):
        exec(code, names)
        for name, count, shape in SHAPE.findall(code):
            tensors = names[name] if count else [names[name]]
            assert [tuple(tensor.shape) for tensor in tensors] == [eval(shape)] * int(count or 1), name


def test_the_mechanism_of_the_contributing_guide_works_in_a_model_and_refuses_what_it_does_not_take(monkeypatch):
    monkeypatch.setattr(vit.attention.multihead, "MECHANISMS", table := dict(MECHANISMS))
    monkeypatch.setattr(vit.attention, "MECHANISMS", table)
    (code,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    names: dict = {}
    exec(code, names)
    assert names["logits"].shape == (2, 10)
    block = names["model"].blocks[0]
    assert block.attn.mechanism.b.flatten().tolist() == pytest.approx([-4.2] * 12)
    names["logits"].square().sum().backward()
    assert block.attn.mechanism.b.grad.abs().sum() > 0
    assert block.attn.weights(torch.randn(2, 5, 192)).shape == (2, 12, 5, 5)
    with pytest.raises(ValueError, match="attention 'sigmoid' cannot be causal"):
        vit.attention.MultiHeadAttention(192, 12, mechanism="sigmoid", causal=True)
    with pytest.raises(ValueError, match="attention 'sigmoid' has no argument 'shift': it takes offset"):
        vit.VisionTransformer(attention="sigmoid", attention_kwargs={"shift": 1.0})


@pytest.fixture(scope="module")
def parse():
    """Parse the arguments of train.py, without building or running anything."""
    found = []

    def keep(cli, parser, args):
        found.append(parser)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ViTCLI, "parse_arguments", keep)
        with pytest.raises(SystemExit):
            train.main([])
    return found[0].parse_args


@each_page
def test_its_commands_for_training_are_taken(page, parse, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in (*commands(page, "python train.py"), *commands(page, "torchrun"), *commands(page, "srun")):
        name, *words = command[command.index("train.py") + 1 :]
        if "--ckpt_path" in words and "auto" not in words:  # which gives what a config and --data give otherwise
            words[:0] = ["--config", "configs/digits.yaml"] if name == "fit" else ["--data", "ImageFolder"]
            words += ["--data.root", "folder"] if name in ("test", "validate") else []
        if not any(word.endswith("help") for word in words):
            parse([name, *words])
    for module in (folds, plan):
        parser = module.make_parser()
        for command in commands(page, parser.prog):
            _, of_fit = parser.parse_known_args(command[2:])
            parse(["fit", *find_configs(of_fit)])
    if options := " ".join(OPTIONS.findall(TEXT[page])):
        classifier = ["--data", "ImageFolder", "--data.root", "folder"]
        reader = ["--data", "DigitStrings", "--model", "SequenceReader"]
        parse(["fit", *(reader if page.name == "decoders.md" else classifier), *options.split()])


@each_page
def test_its_other_commands_name_scripts_options_and_targets_that_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for _, target, *variables in commands(page, "make"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
        assert all(f"$({variable.split('=')[0]})" in makefile for variable in variables)
    scripts = [command[1:] for command in commands(page, "python") if command[1].startswith("benchmarks/")]
    for _, name, *options in commands(page, "vit-attention"):
        if name not in ("folds", "plan"):  # which take the options of fit, too
            scripts.append([f"{COMMANDS[name].place.split(':')[0].replace('.', '/')}.py", *options])
    for script, *arguments in scripts:
        shared = ("benchmarks/records.py", "vit/commands/models.py", "vit/commands/parser.py")
        code = "".join((ROOT / place).read_text() for place in (script, *shared))
        assert all(f'"{word}"' in code for word in arguments if word.startswith("--") and word != "--help")


@each_page
def test_the_files_and_headings_it_links_to_exist(page):
    for file, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", TEXT[page]):
        target = page.parent / file if file else page
        assert target.exists(), file
        headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings]
    for name in re.findall(r"\b(?:configs|benchmarks|notebooks|tests|vit)/[\w/]+\.\w+", TEXT[page]):
        assert (ROOT / name).exists(), name


def test_the_tree_of_the_readme_is_that_of_the_package():
    (tree,) = [block for block in blocks(ROOT / "README.md", "") if block.startswith("train.py ")]
    found = re.findall(r"^( *)(\S+(?:, \S+)*)  ", tree, re.MULTILINE)
    top = [name for indent, names in found if not indent for name in names.split(", ")]
    package = [name for indent, names in found if indent for name in names.split(", ")]
    assert all((ROOT / name).exists() for name in top)
    files = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / "vit").glob("[!_]*")}
    assert set(package) == files - {"version.py", "py.typed"}


@each_page
def test_commands_have_one_spelling(page):
    """Training is ``python train.py``, in blocks at least, and all other commands are ``vit-attention NAME``."""
    assert "python -m vit" not in TEXT[page]
    named = [command[1] for command in commands(page, "vit-attention")]
    named += re.findall(r"`vit-attention ([a-z]+)[^`]*`", TEXT[page])
    assert set(named) <= COMMANDS.keys()
    assert not [name for _, name, *_ in commands(page, "vit-attention") if COMMANDS[name].place == TRAINING]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: path.name)
def test_a_page_begins_with_what_the_reader_does_on_it_and_ends_with_where_to_go_next(page):
    first, *_, last = re.split(r"\n\n+", TEXT[page].strip().split("\n", 1)[1].strip())
    assert first.startswith("On this page you ")
    assert last.startswith("**Next**: ")
    assert 1 <= len(re.findall(r"\]\(", last)) <= 2


def test_the_page_of_maps_has_a_row_for_each_method():
    page = TEXT[ROOT / "docs/explain.md"].split("\n## Which map to take")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` +\|", page, re.MULTILINE) == [name for name in METHODS if name not in CONTROLS]


def test_the_page_of_heads_has_a_row_for_each_kind():
    page = TEXT[ROOT / "docs/analysis.md"].split("\n## Kinds of heads")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\w+) +\|", page, re.MULTILINE)[1:] == list(get_args(Kind))


@each_page
def test_its_code_fits_a_page_of_800_pixels(page):
    code = "\n".join(re.findall(r"```\w*\n(.*?)```", TEXT[page], re.DOTALL))
    assert [line for line in code.splitlines() if len(line) > 96] == []


@each_page
def test_no_line_begins_with_a_percent_sign_which_the_site_takes_for_a_comment(page):
    text = re.sub(r"```\w*\n.*?```", "", TEXT[page], flags=re.DOTALL)
    assert re.findall(r"^%.*", text, re.MULTILINE) == []


def test_the_readme_is_one_page_with_one_table():
    assert len(re.findall(r"^\|[-:| ]+\|$", TEXT[ROOT / "README.md"], re.MULTILINE)) == 1
    assert len(TEXT[ROOT / "README.md"].split()) <= 1000


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_advice_on_mechanisms_follows_from_the_measurements():
    cost = {int(tokens): of for tokens, of in results("attention")["cost"].items()}
    cost = {n: {name: cell for name, cell in of.items() if cell is not None} for n, of in cost.items()}
    seconds = {n: {name: c["seconds"]["forward and backward"] for name, c in of.items()} for n, of in cost.items()}
    gain = {n: {name: seconds[n]["softmax"] / of - 1 for name, of in seconds[n].items()} for n in (64, 256)}
    assert max(gain[64].values()) < 0.06
    assert {name for name in gain[256] if gain[256][name] > 0.02} == {"simplified", "linformer"}
    assert (gain[256]["simplified"], gain[256]["linformer"]) == (
        pytest.approx(0.25, abs=0.05),
        pytest.approx(0.06, abs=0.01),
    )
    assert max(seconds[16384]["window"], seconds[16384]["linformer"]) < seconds[16384]["softmax"] / 50
    memory = {name: c["bytes"]["forward and backward"] for name, c in cost[16384].items()}
    assert max(memory["window"], memory["linformer"]) < 1.5 * memory["softmax"]
    accuracy = {name: run["test_accuracy"] for name, run in results("attention_images")["training"].items()}
    for control in ("uniform", "positional"):
        assert accuracy["softmax"] - accuracy[control] == pytest.approx(0.05, abs=0.005)


def test_the_advice_on_maps_follows_from_every_training():
    recommended = ("attnlrp", "token_drop", "occlusion", "relevance")
    cells = results("explanations").values()
    trained = [cell for cell in cells if cell["recipe"] == "cifar10_quick"]
    for cell in trained:
        photographs = {row["method"]: row for row in cell["photographs"]}
        for measure in ("drop", "fill", "SaCo"):
            best_control = max(photographs[control][measure][0] for control in CONTROLS)
            above = recommended[:3] if measure == "fill" else recommended
            assert min(photographs[method][measure][0] for method in above) > best_control
        assert photographs["rollout"]["drop"][0] < photographs["center"]["drop"][0]
        before, after = (
            {row["method"]: row["hits"][0] for row in cell[part]} for part in ("mosaics", "trained on mosaics")
        )
        assert max(before.values()) < 0.5
        knowing = set(after) - set(CLASS_AGNOSTIC)
        assert all(after[method] > before[method] for method in knowing)
        assert all(after[method] < 0.3 for method in set(after) - knowing)
    planted, crowded = (
        [cell for cell in cells if cell["recipe"] == f"{name}_digits"] for name in ("planted", "crowded")
    )
    for cell in (*planted, *crowded):
        hits = {row["method"]: row["hits"][0] for row in cell["planted"]}
        assert min(hits[method] for method in (*recommended, "rollout") if method in hits) > 0.5
        beaten = CONTROLS if cell in crowded else ("random", "uniform", "center")  # ink alone finds a digit in clutter
        assert max(hits[control] for control in beaten) < 0.1
    for cell in crowded:
        flow = {row["method"]: row["flow"][0] for row in cell["flow"]}
        assert min(flow["rollout"], flow["value_rollout"]) > 0.5
        assert max(flow[method] for method in ("attention", "value", *CONTROLS) if method in flow) < 0.3
    assert crowded
    assert len(trained) == len(planted) == 3
    (packaged,) = (cell for cell in cells if cell["recipe"] == "cifar10_showcase")
    of_mosaics = {row["method"]: row["hits"] for row in packaged["mosaics"]}
    assert of_mosaics["legrad"] == pytest.approx([0.6, 0.45, 0.74], abs=0.005)
    assert max(of_mosaics, key=lambda method: of_mosaics[method][0]) == "legrad"
    flips = [flips_of_layers(cell) for cell in trained]
    means = [100 * statistics.mean(of[layer] for of in flips) for layer in flips[0]]
    of_packaged = flips_of_layers(packaged)
    low, high = (choose(of_packaged, key=of_packaged.get) for choose in (min, max))
    text = " ".join(TEXT[ROOT / "docs/trust.md"].split())
    ends = " to ".join(f"{100 * of_packaged[layer]:.0f} % (layer {layer})" for layer in (low, high))
    assert (
        f"in one layer alone, {ends} of the packaged model's predictions change, and {min(means):.0f} to "
        f"{max(means):.0f} % in the smaller" in text
    )
    of_all, (of_all_packaged,) = ([flips_of_all_layers(cell) for cell in each] for each in (trained, [packaged]))
    count = packaged["images"]
    assert (
        f"in all layers at once, {100 * of_all_packaged:.0f} % of the packaged model's predictions change "
        f"({round(of_all_packaged * count)} of {count} images), and {100 * statistics.mean(of_all):.0f} % of those of"
        in text
    )


def flips_of_layers(cell):
    """The share of predictions that uniform attention in one layer changes, by layer."""
    return {
        row["layers"]: row["flips"] for row in cell["uniform"] if row["heads"] == "all" and row["layers"].isdecimal()
    }


def flips_of_all_layers(cell):
    """The share of predictions that uniform attention in all layers at once changes."""
    return next(row["flips"] for row in reversed(cell["uniform"]) if row["heads"] == "all" and "0 to" in row["layers"])


def test_the_sentences_on_models_with_other_heads_follow_from_the_measurements():
    found = {}
    for cell in results("heads").values():
        if "row" in cell:
            found.setdefault(cell["row"], []).append(100 * cell["test_accuracy"])
    means = {row: statistics.mean(accuracies) for row, accuracies in found.items()}
    text = " ".join(TEXT[ROOT / "docs/analysis.md"].split())
    assert f"the reference has 8 heads and reaches {means['8 heads']:.1f} %" in text
    below = {row: means["8 heads"] - means[row] for row in ("attention by positions alone", "uniform attention")}
    by_positions, uniform = below.values()
    assert f"attention by positions alone is {by_positions:.1f} points below 8 heads, and uniform" in text
    assert f"uniform attention {uniform:.1f}." in text


def test_the_sentences_on_the_recipe_follow_from_the_measurements():
    cells = [cell for cell in results("ablation").values() if "note" not in cell]
    assert {cell["budget"] for cell in cells} == {1400}
    accuracy = {(cell["part"], cell["seed"]): cell["val_accuracy"] for cell in cells}
    worth = {
        part: statistics.mean(100 * (accuracy["the recipe", seed] - accuracy[part, seed]) for seed in (0, 1))
        for part in dict.fromkeys(cell["part"] for cell in cells)
    }
    most, second, third, *_ = sorted(worth, key=worth.get, reverse=True)
    assert (most, second, third) == ("AdamW instead of Muon", "normal positions, Glorot start", "all patches")
    said = " ".join(TEXT[ROOT / "docs/results.md"].split())
    assert f"Muon is worth most: {worth[most]:.1f} points of accuracy" in said
    assert f"the mimetic start are worth {worth[second]:.1f} points, patch dropping {worth[third]:.1f}." in said
    whole = [cell["steps"] for cell in results("accuracy").values() if cell["recipe"] == "cifar10_quick"]
    assert round(sum(whole) / len(whole), -3) == 9000


def test_most_of_the_former_lead_in_speed_is_what_the_last_block_left_out():
    measured = [cell["rows"].get("ours, class token alone") for cell in results("throughput").values()]
    for ours in filter(None, measured):
        assert 1 / ours["computed"] - 1 > (ours["against_best_peer"][1] - 1) / 2


def test_the_lines_of_a_report_are_those_of_the_notebook():
    printed = " ".join(notebook_text(ROOT / "notebooks/attention_rollout.ipynb").split())
    block = re.search(r"Four lines of the report.*?```text\n(.*?)```", TEXT[ROOT / "docs/trust.md"], re.DOTALL)[1]
    lines = re.split(r"\n(?=green|amber|red)", block)
    assert len(lines) == 4
    for line in lines:
        assert " ".join(line.split()) in printed


def notebook_text(path):
    outputs = (output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", ()))
    return "\n".join("".join(output.get("data", {}).get("text/plain", ())) for output in outputs)
