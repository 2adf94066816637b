"""A function of an imported module is given its changed code, and nothing else is taken for one."""

import gc
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from swapping import changes, functions

BEFORE = """
LEAST = 1

def above(value, least=LEAST):
    return value > least

class Shape:
    sides = 4

    def area(self, width):
        def times(n):
            return n * width
        return times(3)
"""


def loaded(folder: Path) -> tuple[str, ModuleType]:
    path = folder / "changed.py"
    path.write_text(BEFORE)
    spec = importlib.util.spec_from_file_location("changed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(path), module


def changed(path: str, folder: Path, old: str, new: str) -> int:
    """How many functions have other code now."""
    at = BEFORE.index(old)
    after = BEFORE.replace(old, new, 1)
    found = changes(functions(str(folder)), path, BEFORE, after, (at, at + len(old)))
    for function, code in found:
        function.__code__ = code
    return len(found)


def test_what_holds_a_function_already_has_it_changed(tmp_path: Path) -> None:
    path, module = loaded(tmp_path)
    above, shape = module.above, module.Shape()
    gc.freeze()  # as after pytest's collection
    assert changed(path, tmp_path, "value > least", "value >= least")
    assert changed(path, tmp_path, "n * width", "n / width")  # of a function in a method
    assert above(1)
    assert shape.area(6) == 0.5


@pytest.mark.parametrize("old", ["LEAST = 1", "sides = 4", "least=LEAST"])
def test_what_was_read_at_the_import_is_in_no_function(tmp_path: Path, old: str) -> None:
    path, _ = loaded(tmp_path)
    assert changed(path, tmp_path, old, old[:-1] + "0") == 0
