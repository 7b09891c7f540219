"""Exports a model as a program that runs without this package, and compares the two."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vit.inference.class_token_only import without_unread
from vit.inference.engines import as_openvino_model, check_compiler, compile_program
from vit.model.vision_transformer import VisionTransformer
from vit.support.extras import import_extra
from vit.support.files import replacing

TOLERANCE = 1e-4
FORMATS = {
    ".pt2": "torch.export.load",
    ".onnx": "ONNX Runtime and others",
    ".xml": "OpenVINO, with a .bin beside it",
    ".aoti": "torch._inductor.aoti_load_package on CPUs of this kind",
}
FEWEST_PATCHES = 2  # on each side: sizes of 0 and 1 mean something else to torch.export
LARGEST_ONNX = 1536 * 2**20  # bytes of weights, above which torch writes them to a second file


def export(model: VisionTransformer, path: str | Path) -> float:
    """Write a program that computes the logits of images of any number and size; return how far it is from the model.

    The program takes normalised images (B, C, H, W) in float32 as ``images``, and returns ``logits``. Sides must be
    whole patches, at least two. The program is compared with the model on images of several sizes, that of the training
    included. For OpenVINO it takes only images of the model's ``image_size``, because OpenVINO reads no programs for
    images of any size; only there, the model may pad images.

    >>> from tempfile import mkdtemp
    >>> model = VisionTransformer(image_size=8, patch_size=4, embed_dim=12, depth=1, num_heads=3).eval()
    >>> export(model, Path(mkdtemp()) / "model.pt2") < 1e-5
    True

    Args:
        model: The model, in evaluation mode.
        path: File to write: .pt2 for ``torch.export.load``, .onnx (needs ``pip install 'vit-attention[export]'``), .xml
            for OpenVINO, with the weights in a .bin beside it (needs ``pip install 'vit-attention[openvino]'``), or
            .aoti for ``torch._inductor.aoti_load_package(open(path, "rb"))``: compiled for this kind of CPU, it starts
            in a second (needs a C++ compiler). It checks its images only if the environment has
            ``AOTI_RUNTIME_CHECK_INPUTS=1``; otherwise images of another type, with other channels or with parts of
            patches get wrong logits.

    Returns:
        The largest difference between logits of the program and of the model.

    Raises:
        ValueError: If the path has another suffix, the model is in training mode or cannot be exported, autocast is on,
            the model pads images of its ``image_size`` (but not for OpenVINO) or is too large for one file of ONNX, or
            the program computes other logits; no file is left then.
    """
    path = Path(path)
    _check_model(model, path)
    _check_format(model, path)
    try:
        with torch.no_grad():
            program = as_openvino_model(model) if path.suffix == ".xml" else export_program(model)
    except Exception as error:  # torch.export raises many kinds
        raise ValueError(_of_one_size(model, error)) from error
    if path.suffix == ".xml":
        return _write_openvino(program, model, path)
    writers = {".pt2": _write_program, ".onnx": _write_onnx, ".aoti": _write_compiled}
    with replacing(path) as unfinished:
        run = writers[path.suffix](program, unfinished)
        return _check_logits(model, run, _sizes(model))


def _check_model(model: VisionTransformer, path: Path) -> None:
    """Check that a model can be exported to any file."""
    if path.suffix not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"{path} ends in {path.suffix!r}: programs are written to files that end in one of {known}")
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"a {type(model).__name__} is given: vit.export takes a vit.VisionTransformer")
    if model.training:
        raise ValueError("the model is in training mode: call model.eval() first, or the program would drop patches")
    if model.pos_embed.dtype != torch.float32:
        raise ValueError(f"the model computes in {model.pos_embed.dtype}: export model.float()")
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise ValueError("autocast is on, and the program would keep its types: call vit.export outside of it")


def _check_format(model: VisionTransformer, path: Path) -> None:
    """Check that the format of a file can hold a model, and that what writes it is installed."""
    embed = model.patch_embed
    (rows, columns), (p, q), (down, across) = embed.image_size, embed.patch_stride, embed.grid_size
    if path.suffix != ".xml" and (rows, columns) != (down * p, across * q):
        raise ValueError(
            f"the model pads images of {rows} x {columns} pixels to whole patches of {p} x {q}, and a {path.suffix} "
            f"program takes whole patches alone: export vit.load(model, image_size=({down * p}, {across * q})), and "
            "pad images by zeros at the right and at the bottom, or write .xml"
        )
    if path.suffix == ".onnx":
        for module in ("onnxscript", "onnxruntime"):  # torch.onnx needs the first
            import_extra(module, "export")
        if (size := sum(weights.nbytes for weights in model.state_dict().values())) > LARGEST_ONNX:
            raise ValueError(
                f"the model has {size / 1e9:.2f} GB of weights, and torch writes at most {LARGEST_ONNX / 1e9:.2f} GB "
                "into one file, as a single .onnx file holds at most 2 GB: write .pt2 or .xml"
            )
    if path.suffix in (".xml", ".aoti") and model.pos_embed.device.type != "cpu":
        raise ValueError(f"the model is on {model.pos_embed.device}, and {path} is for CPUs: export model.cpu()")
    if path.suffix == ".xml":
        import_extra("openvino", "openvino")
    if path.suffix == ".aoti":
        check_compiler()


def exported_files(path: Path) -> list[Path]:
    """Return the files that ``export`` writes.

    >>> [file.name for file in exported_files(Path("model.xml"))]
    ['model.xml', 'model.bin']
    """
    return [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]


def export_program(model: VisionTransformer) -> torch.export.ExportedProgram:
    """Return the model as a program for any number of images, whose sides are any whole number of patches."""
    embed = model.patch_embed
    p, q = embed.patch_stride
    rows, columns = _sizes(model)[0]
    images = torch.zeros(2, embed.in_channels, rows, columns, device=model.pos_embed.device)
    sides = [torch.export.Dim(name, min=FEWEST_PATCHES) for name in ("rows", "columns")]
    shapes = {0: torch.export.Dim("batch", min=1), 2: p * sides[0], 3: q * sides[1]}
    return torch.export.export(without_unread(model), (images,), dynamic_shapes=(shapes,))


def _of_one_size(model: VisionTransformer, error: Exception) -> str:
    """Return why a program of a model does not take images of any size."""
    reason = " ".join(str(error).split())[:200]
    return f"the model (attention {model.config['attention']!r}) cannot be exported for images of any size: {reason}"


def _write_program(program: torch.export.ExportedProgram, path: Path) -> Any:
    file = io.BytesIO()  # torch would end the process on a full disk
    torch.export.save(program, file)
    path.write_bytes(file.getbuffer())
    file.seek(0)
    return torch.export.load(file).module()


def _write_onnx(program: torch.export.ExportedProgram, path: Path) -> Any:
    import onnxruntime

    names = {"input_names": ["images"], "output_names": ["logits"]}
    torch.onnx.export(program, **names, dynamo=True, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(["logits"], {"images": images.cpu().numpy()})[0])


def _write_compiled(program: torch.export.ExportedProgram, path: Path) -> Any:
    package = compile_program(program)
    path.write_bytes(package.getbuffer())
    return torch._inductor.aoti_load_package(package)


def _write_openvino(program: Any, model: VisionTransformer, path: Path) -> float:
    import openvino

    graph, weights = exported_files(path)
    with replacing(weights) as unfinished_weights, replacing(graph) as unfinished, TemporaryDirectory() as folder:
        written = Path(folder) / "model.xml"  # OpenVINO takes no other ending
        openvino.serialize(program, written)
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(written), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        difference = _check_logits(
            model, lambda images: torch.from_numpy(compiled(images.numpy())[0]), [model.patch_embed.image_size]
        )
        unfinished.write_bytes(written.read_bytes())
        unfinished_weights.write_bytes(written.with_suffix(".bin").read_bytes())
    return difference


def _sizes(model: VisionTransformer) -> list[tuple[int, int]]:
    """Return the size of the training, and smaller, larger and less square ones."""
    p, q = model.patch_embed.patch_stride
    rows, columns = model.patch_embed.grid_size
    grids = [(rows, columns), (rows + 1, columns), (rows, columns + 3), (2 * rows, 2 * columns + 1), (2, 3)]
    return [(max(r, FEWEST_PATCHES) * p, max(c, FEWEST_PATCHES) * q) for r, c in grids]


def _check_logits(model: VisionTransformer, run: Any, sizes: list[tuple[int, int]]) -> float:
    differences = [_compare(model, run, size) for size in sizes]
    if not all(each <= TOLERANCE for each in differences):  # NaN, too
        raise ValueError(f"the program's logits differ from the model's by {max(differences):.2g}: nothing was written")
    return max(differences)


@torch.no_grad()
def _compare(model: VisionTransformer, run: Any, size: tuple[int, int]) -> float:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, model.patch_embed.in_channels, *size, generator=generator).to(model.pos_embed.device)
    try:
        found = run(images)
    except Exception as error:  # of many kinds, if the computation depends on the size
        raise ValueError(_of_one_size(model, error)) from error
    return (found.cpu() - model(images).cpu()).abs().max().item()
