"""Size of the package and its tests: `make house`; with ``--rooms`` also of each room.

What asks for a second look: a module of 50 lines or fewer, a private helper of at most 4 lines that is used
once, a function that returns a dictionary whose keys no type knows.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL_MODULE, SMALL_HELPER = 50, 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    room: str  # the folder of the package, or of the tests
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def kinds(self) -> Counter[str]:
        """Number of lines of each kind. A line with code and a comment is code."""
        kinds = ["blank"] * self.lines
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in (
                tokenize.NL,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENDMARKER,
            ):
                for line in range(token.start[0] - 1, token.end[0]):
                    if token.type != tokenize.COMMENT:
                        kinds[line] = "code"
                    elif kinds[line] == "blank":
                        kinds[line] = "comments"
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                kind = "imports"
            elif (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                kind = "docstrings"
            else:
                continue
            kinds[node.lineno - 1 : node.end_lineno] = [kind] * _lines(node)
        return Counter(kinds)

    def untyped(self) -> int:
        """Functions that return ``dict[str, Any]`` or ``dict[str, object]``, or None."""
        wanted = ("dict[str, Any]", "dict[str, object]")
        returned = (
            ast.unparse(f.returns).removesuffix(" | None") for f in self.functions if f.returns is not None
        )
        return sum(text in wanted for text in returned)

    def small_helpers(self) -> int:
        """Private functions of at most 4 lines that one place of their module uses."""
        used = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        private = (f for f in self.functions if f.name.startswith("_") and not f.name.endswith("__"))
        return sum(used[f.name] == 1 and _lines(f) <= SMALL_HELPER for f in private)


def _lines(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def modules(folder: str) -> list[Module]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path.relative_to(ROOT / folder).parts[0], text, ast.parse(text)))
    return found


def table(both: Sequence[Sequence[Module]]) -> list[tuple[str, int, int]]:
    """Rows: what is counted, in the package, in the tests."""
    kinds = [sum((m.kinds() for m in each), Counter[str]()) for each in both]
    columns = [
        {
            "modules": len(each),
            "lines": sum(m.lines for m in each),
            **{f"  {kind}": counted[kind] for kind in ("code", "blank", "docstrings", "imports", "comments")},
            f"modules of {SMALL_MODULE} lines or fewer": sum(m.lines <= SMALL_MODULE for m in each),
            "functions that return an untyped dict": sum(m.untyped() for m in each),
            f"private helpers of {SMALL_HELPER} lines or fewer, used once": sum(
                m.small_helpers() for m in each
            ),
        }
        for each, counted in zip(both, kinds, strict=True)
    ]
    return [(name, columns[0][name], columns[1][name]) for name in columns[0]]


def rooms(modules: Sequence[Module]) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Rows: a folder, its modules, lines, lines of code, untyped dicts and small helpers."""
    for name in dict.fromkeys(m.room for m in modules):
        each = [m for m in modules if m.room == name]
        code = sum(m.kinds()["code"] for m in each)
        untyped, helpers = sum(m.untyped() for m in each), sum(m.small_helpers() for m in each)
        yield name, len(each), sum(m.lines for m in each), code, untyped, helpers


if __name__ == "__main__":
    both = modules("llm_locust"), modules("tests")
    print(f"{'':46}{'package':>10}{'tests':>10}")
    for name, *counts in table(both):
        print(f"{name:46}" + "".join(f"{count:>10,}" for count in counts))
    if "--rooms" in sys.argv[1:]:
        print(
            f"\n{'':16}"
            + "".join(f"{head:>10}" for head in ("modules", "lines", "code", "untyped", "helpers"))
        )
        for name, *counts in rooms(both[0]):
            print(f"{name:16}" + "".join(f"{count:>10,}" for count in counts))
