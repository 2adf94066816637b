"""Small changes to a module's source, each of which a test should notice."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMED = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "rint", "ceil": "floor"} | {
    "round": "int",
    "minimum": "maximum",
    "maximum": "minimum",
}
_WORDS = {"left": "right", "right": "left"}
#: Types, messages and what is imported: a change there is mypy's to find, or nobody's.
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}
_SKIPPED_NODES = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: ``source[start:end]``, in bytes, becomes ``text``."""

    operator: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def mutants(source: str) -> Iterator[Mutant]:
    """Every change of a module that the operators know, in the order of the source."""
    starts = [0, *accumulate(len(line) for line in source.encode().splitlines(keepends=True))]
    for node in _walked(ast.parse(source)):
        for operator, at, text in _changes(node):
            end_line, end = at.end_lineno or at.lineno, at.end_col_offset or 0
            start = starts[at.lineno - 1] + at.col_offset
            yield Mutant(operator, at.lineno, start, starts[end_line - 1] + end, text)


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _SKIPPED_NODES):
                yield from _walked(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in _COMPARED:
            yield "comparison", node, _with(node, ops=[_COMPARED[type(op)](), *node.ops[1:]])
        case ast.BinOp(op=op) if type(op) in _COMPUTED and not _is_text(node):
            yield "arithmetic", node, _with(node, op=_COMPUTED[type(op)]())
        case ast.BoolOp(op=op):
            yield "boolean", node, _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", node, ast.unparse(operand)
        case ast.Constant(value=bool() as value):
            yield "constant", node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", node, repr(value + 1)
            yield "constant", node, f"({value - 1!r})"
        case ast.Constant(value=str() as value) if value in _WORDS:
            yield "constant", node, repr(_WORDS[value])
        case ast.Call(func=ast.Name(id=name) as called) if name in _NAMED:
            yield "function", called, _NAMED[name]
        case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="np")) as called) if name in _NAMED:
            yield "function", called, f"np.{_NAMED[name]}"
        case ast.If() | ast.While() | ast.IfExp():
            yield "condition", node.test, f"not ({ast.unparse(node.test)})"
        case ast.comprehension():
            yield from (("condition", test, f"not ({ast.unparse(test)})") for test in node.ifs)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "return", node, "return None"
        case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Yield()):
            yield "statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "statement", node, "pass"


def _with(node: ast.expr, **fields: object) -> str:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return ast.unparse(changed)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def statements(source: str) -> dict[int, range]:
    """The lines of the innermost statement at each line; of one that holds others, those of its head."""
    found: dict[int, range] = {}
    for node in ast.walk(ast.parse(source)):  # outer ones first
        if isinstance(node, ast.stmt):
            end = node.end_lineno or node.lineno
            inner = [each.lineno for each in getattr(node, "body", []) if isinstance(each, ast.stmt)]
            head = range(node.lineno, max(node.lineno, min(inner, default=end + 1) - 1) + 1)
            found |= dict.fromkeys(range(node.lineno, end + 1), head)
    return found
