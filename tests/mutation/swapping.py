"""Change a function of a module that is imported already, and of all that uses it."""

import ast
import gc
from collections.abc import Iterator
from types import CodeType, FunctionType

_OPTIMIZED = 1  # a function's code, not that of a module or of a class body


def functions(folder: str) -> list[FunctionType]:
    """Every function of the modules under ``folder`` that have been imported."""
    gc.unfreeze()  # what is frozen is not listed, and pytest's collection ends with that
    found = (each for each in gc.get_objects() if isinstance(each, FunctionType))
    return [each for each in found if each.__code__.co_filename.startswith(folder)]


def changes(
    known: list[FunctionType], path: str, before: str, after: str, span: tuple[int, int]
) -> list[tuple[FunctionType, CodeType]]:
    """Each function with ``before[span]`` (in bytes) in its body, and its code of ``after``.

    Empty where no function's body has it, or it cannot be given to the function: the module is to be
    imported again.
    """
    if not any(low <= span[0] and span[1] <= high for low, high in bodies(before)):
        return []
    old, new = _functions(path, before), _functions(path, after)
    if len(old) != len(new):
        return []
    changed = {_key(code): there for code, there in zip(old, new, strict=True) if code != there}
    found = [(each, changed[_key(each.__code__)]) for each in known if _key(each.__code__) in changed]
    fits = all(len(code.co_freevars) == len(each.__code__.co_freevars) for each, code in found)
    return found if fits else []


def bodies(source: str) -> Iterator[tuple[int, int]]:
    """Where the bodies of the outermost functions are, in bytes."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _outermost(ast.parse(source)):
        first, last = node.body[0], node.body[-1]
        yield (
            starts[first.lineno - 1] + first.col_offset,
            starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0),
        )


def _outermost(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _outermost(child)


def _functions(path: str, source: str) -> list[CodeType]:
    def within(code: CodeType) -> Iterator[CodeType]:
        for each in code.co_consts:
            if isinstance(each, CodeType):
                if each.co_flags & _OPTIMIZED:
                    yield each
                else:
                    yield from within(each)

    return list(within(compile(source, path, "exec", dont_inherit=True)))


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno
