"""Sizes that ask for a second look. Today's exceptions are listed; none is added, and none may grow."""

import ast
import functools
from collections.abc import Iterator

from package_source import MODULES, PACKAGE, inside, parsed, statements

MODULE_LINES, FUNCTION_LINES, PARAMETERS = 600, 50, 7

#: What is larger, with its size. A size that falls is written down here; at the limit the entry goes.
LARGE_MODULES: dict[str, int] = {}
LARGE_FUNCTIONS: dict[str, int] = {}
MANY_PARAMETERS: dict[str, int] = {
    "client/stream.py.LlmClient.__init__": 11,
    "deployment/scraper.py.words": 8,
}


@functools.cache
def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in inside(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield inner, child
                yield from walk(child, inner)
            else:
                yield from walk(child, name)

    return [found for path in MODULES for found in walk(parsed(path), str(path.relative_to(PACKAGE)))]


def lines(f: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code: without the docstring."""
    first = f.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (f.end_lineno or 0) - f.lineno + 1 - docstring


def parameters(f: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = f.args
    given = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    return len(given) - (bool(given) and given[0].arg in ("self", "cls"))


def above(sizes: dict[str, int], limit: int) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size > limit}


def test_no_module_grows_past_600_lines() -> None:
    sizes = {str(p.relative_to(PACKAGE)): len(p.read_text().splitlines()) for p in MODULES}
    assert above(sizes, MODULE_LINES) == LARGE_MODULES


def test_no_function_grows_past_50_lines() -> None:
    assert above({name: lines(f) for name, f in functions()}, FUNCTION_LINES) == LARGE_FUNCTIONS


def test_no_function_takes_more_than_7_parameters() -> None:
    assert above({name: parameters(f) for name, f in functions()}, PARAMETERS) == MANY_PARAMETERS


def test_a_public_class_name_exists_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        if not path.is_relative_to(PACKAGE / "locustfiles"):
            for node in statements(parsed(path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
