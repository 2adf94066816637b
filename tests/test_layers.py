"""The rooms of the house: imports point down only."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "llm_locust"

#: From the ground up. A module may import from its own room and from rooms of lower levels.
LEVELS: dict[str, int] = {
    "wire": 0,
    "record": 0,
    "arrow_stream": 0,
    "replacing": 0,
    "manifest": 0,
    "roofline": 0,
    "batch": 1,
    "metrics": 2,
    "client": 3,
    "workload": 3,
    "arrivals": 3,
    "deployment": 3,
    "store": 3,
    "live": 3,
    "report": 4,
    "sim": 4,
    "k8s": 4,
    "swarm": 5,
    "cli": 6,
    "__main__": 7,
    "": 7,  # the package's public namespace
}

#: Who may import what from outside, for the libraries that shape a process.
GUARDED = {"gevent": {"client", "swarm"}, "locust": {"swarm"}, "asyncio": {"sim"}, "aiohttp": {"sim"}}

#: Without the locustfiles among the Kubernetes manifests, which are data of the package.
MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "manifests" not in p.parts)


def room(module: str) -> str:
    """The room of a dotted module inside the package: ``llm_locust.wire.sse`` is in ``wire``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(path: Path) -> list[tuple[str, int]]:
    """Every absolute module that the file imports, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its room"
            module = node.module or ""
            if module == "llm_locust":
                found += [(f"llm_locust.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((module, node.lineno))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    own = room(".".join(p for p in parts if p != "__init__"))
    for module, line in imports(path):
        top = module.split(".")[0]
        if top == "llm_locust":
            target = room(module)
            assert own == target or LEVELS[target] < LEVELS[own], (
                f"{path}:{line}: {own or 'llm_locust'} imports {module}, which is not below it"
            )
        elif top in GUARDED:
            assert own in GUARDED[top], f"{path}:{line}: only {sorted(GUARDED[top])} may import {top}"


def test_every_room_has_a_level() -> None:
    rooms = {room("llm_locust." + p.relative_to(PACKAGE).with_suffix("").parts[0]) for p in MODULES}
    assert rooms - {"__init__", ""} <= set(LEVELS)
