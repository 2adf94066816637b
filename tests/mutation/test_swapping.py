"""A function of an imported module is given its changed code, and nothing else is taken for one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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

#: In a process of its own: all objects are looked through, of which the tests' own process has millions.
PROGRAM = """
import gc, json, sys
from pathlib import Path
from swapping import changes, functions

sys.path.insert(0, sys.argv[1])
import changed as module

path = module.__file__
before = Path(path).read_text()

def change(old, new):
    at = before.index(old)
    after = before.replace(old, new, 1)
    found = changes(functions(sys.argv[1]), path, before, after, (at, at + len(old)))
    for function, code in found:
        function.__code__ = code
    return len(found)

above, shape = module.above, module.Shape()
gc.freeze()  # as after pytest's collection
print(json.dumps([[change(*each) for each in json.load(sys.stdin)], above(1), shape.area(6)]))
"""


def swapped(folder: Path, changes: list[tuple[str, str]]) -> Any:
    """How many functions had other code after each change, and what ``above(1)`` and ``area(6)`` are then."""
    (folder / "changed.py").write_text(BEFORE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        input=json.dumps(changes),
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_what_holds_a_function_already_has_it_changed(tmp_path: Path) -> None:
    # The second one is of a function in a method.
    found = swapped(tmp_path, [("value > least", "value >= least"), ("n * width", "n / width")])
    assert found == [[1, 1], True, 0.5]


def test_what_was_read_at_the_import_is_in_no_function(tmp_path: Path) -> None:
    changes = [(old, old[:-1] + "0") for old in ("LEAST = 1", "sides = 4", "least=LEAST")]
    assert swapped(tmp_path, changes) == [[0, 0, 0], False, 18]
