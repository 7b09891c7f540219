"""What source files say, as a hash that comments, docstrings, annotations, imports and layout do not change."""

import ast
import hashlib
from pathlib import Path


def hash_of(tree: Path, pattern: str) -> str:
    """Return the hash of the files below a folder that match a pattern, such as "vit/model/*.py"; "" of none.

    "benchmarks/claims_heads.py:measure" is one function of a file. Python files are a set of statements: a class or a
    function that moves from one of them to another changes no hash. Nor does a name that is imported from another
    module, or the order of statements outside of functions: what these do to numbers is not seen.
    """
    pattern, _, function = pattern.partition(":")
    files = (path for path in tree.glob(pattern) if path.is_file())
    said = sorted(text for path in files for text in statements(path, function))
    return hashlib.blake2b(repr(said).encode(), digest_size=6).hexdigest() if said else ""


def statements(path: Path, function: str = "") -> list[str]:
    """Return the syntax trees of the statements of a Python file, or of one of its functions, as texts.

    Of another file it is the digest of its bytes.
    """
    if path.suffix != ".py":
        return [hashlib.blake2b(path.read_bytes()).hexdigest()]
    body = ast.parse(path.read_text()).body
    if function:
        body = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == function]
    plain = (_Plain().visit(node) for node in body)
    return [ast.dump(node) for node in plain if node is not None]


class _Plain(ast.NodeTransformer):
    """Takes out docstrings, strings that stand alone, annotations, imports and lists of public names."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        is_public_names = isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
        return None if is_public_names else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node
