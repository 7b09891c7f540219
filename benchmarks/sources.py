"""What source files say, as a hash that comments, docstrings, annotations and layout do not change."""

import ast
import hashlib
from pathlib import Path


def hash_of(tree: Path, pattern: str) -> str:
    """Return the hash of the files below a folder that match a pattern, such as "vit/model/*.py"; "" of none.

    "benchmarks/claims_heads.py:measure" is one function of a file.
    """
    pattern, _, function = pattern.partition(":")
    files = sorted(path for path in tree.glob(pattern) if path.is_file())
    said = [(path.relative_to(tree).as_posix(), meaning(path, function)) for path in files]
    said = [(name, text) for name, text in said if text]
    return hashlib.blake2b(repr(said).encode(), digest_size=6).hexdigest() if said else ""


def meaning(path: Path, function: str = "") -> str:
    """Return the syntax tree of a Python file, or of one of its functions, as text; of another file the digest.

    It is "" if the file has no such function.
    """
    if path.suffix != ".py":
        return hashlib.blake2b(path.read_bytes()).hexdigest()
    parsed = ast.parse(path.read_text())
    if function:
        found = [node for node in parsed.body if isinstance(node, ast.FunctionDef) and node.name == function]
        return "".join(ast.dump(_Plain().visit(node)) for node in found)
    return ast.dump(_Plain().visit(parsed))


class _Plain(ast.NodeTransformer):
    """Takes out docstrings, strings that stand alone, and annotations."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node
