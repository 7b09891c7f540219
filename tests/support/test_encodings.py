"""Every text file is read and written as UTF-8, whatever the machine: in code that tests run, and in all other."""

import ast
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import vit

METHODS = {"read_text", "write_text", "open", "fdopen", "NamedTemporaryFile", "TextIOWrapper"}
OTHERS = {"Image", "os", "webbrowser", "tarfile", "zipfile"}  # whose open() is none of text files


def unsaid(code: str) -> list[int]:
    """Return the lines of calls that open text without saying its encoding."""
    return [node.lineno for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and _is_unsaid(node)]


def _is_unsaid(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    owner = getattr(getattr(call.func, "value", None), "id", None)
    said = any(keyword.arg in ("encoding", None) for keyword in call.keywords)  # None: by ** of a dictionary
    words = [each.value for each in (*call.args, *(k.value for k in call.keywords)) if isinstance(each, ast.Constant)]
    is_binary = any(isinstance(word, str) and "b" in word and len(word) <= 3 for word in words)
    is_text_process = any(keyword.arg in ("text", "universal_newlines") for keyword in call.keywords)
    return ((name in METHODS and owner not in OTHERS and not is_binary) or is_text_process) and not said


def test_calls_without_an_encoding_are_found():
    for code in ("open(p)", "p.read_text()", "p.write_text(x)", "p.open('w')", "subprocess.run(c, text=True)"):
        assert unsaid(code) == [1], code
    for code in ("open(p, 'rb')", "p.read_text(encoding='utf-8')", "Image.open(p)", "p.open('wb')", "p.open(**UTF8)"):
        assert unsaid(code) == [], code


@pytest.mark.skipif(not sys.flags.warn_default_encoding, reason="make test sets PYTHONWARNDEFAULTENCODING")
def test_a_call_without_an_encoding_is_an_error_in_this_package_and_not_in_others(tmp_path):
    reading = compile("Path(place).write_text('x')", "a file", "exec")
    for module, is_ours in (("vit", True), ("vit.data.loader", True), ("vit_pytorch", False), ("PIL", False)):
        names = {"__name__": module, "Path": Path, "place": tmp_path / "text"}
        with pytest.raises(EncodingWarning) if is_ours else nullcontext():
            exec(reading, names)


def test_every_call_of_the_package_says_its_encoding():
    files = [*Path(vit.__file__).parent.rglob("*.py")]
    found = {str(path): lines for path in files if (lines := unsaid(path.read_text(encoding="utf-8")))}
    assert len(files) > 200
    assert found == {}
