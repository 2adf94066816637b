"""The source of the package, parsed once for all tests that judge it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "llm_locust"

#: Without the locustfiles among the Kubernetes manifests, which are data of the package.
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "manifests" not in p.parts)

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that lie directly in a node: expressions, which are nine tenths of a tree, have none."""
    for block in _BLOCKS:
        yield from getattr(node, block, ())


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements of a tree."""
    for child in inside(node):
        yield child
        yield from statements(child)
