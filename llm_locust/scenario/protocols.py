"""Loads of public protocols as scenario files, which the package ships: ``preset: chat`` is of this project,
a protocol is somebody else's, with its source.

A protocol's name stands wherever the path of a scenario does. A run with it rehearses the protocol; only what
the protocol's own authors accept is a result of it.
"""

import os
from pathlib import Path

#: Where the files are; ``examples/protocols`` is the same folder.
FOLDER = Path(__file__).parents[1] / "protocols"


def protocol_names() -> tuple[str, ...]:
    """The names of all protocols, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def scenario_path(text: str) -> str:
    """The path of the scenario that ``text`` names: a protocol's, unless there is a file of this name."""
    if text in protocol_names() and not os.path.exists(text):
        return str(FOLDER / f"{text}.yaml")
    return text
