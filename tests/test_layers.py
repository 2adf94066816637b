"""The layers of the package: imports point down only, between rooms and between the folders of a room."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_source import MODULES, PACKAGE, parsed, statements

import llm_locust

#: Rooms from the ground up. A module may import from its own room and from rooms of lower levels.
LEVELS: dict[str, int] = {
    "core": 0,
    "host": 0,
    "wire": 0,
    "roofline": 1,
    "metrics": 2,
    "client": 2,
    "store": 2,
    "sim": 2,
    "figures": 3,
    "live": 4,
    "deployment": 4,
    "workload": 4,
    "scenario": 5,
    "report": 5,
    "options": 6,
    "doctor": 7,
    "k8s": 8,
    "swarm": 8,
    "cli": 9,
    "__main__": 10,
    "": 10,  # the package's public namespace
    "locustfiles": 11,  # as a user's own: of the public namespace
}

#: Folders of a room from the ground up. A module in one may import from its own folder, from lower ones and
#: from modules that lie in the room itself.
FOLDERS: dict[str, tuple[str, ...]] = {
    "wire": ("dialects",),
    "client": ("http",),
    "metrics": ("stats", "requests"),
    "report": ("html",),
    "swarm": (
        "process",
        "channel",
        "users",
        "run",
        "web",
        "roles",
    ),
}

#: Rooms that may import a library that shapes a process.
GUARDED = {
    "gevent": {"client", "swarm"},
    "locust": {"locustfiles", "options", "swarm"},
    "asyncio": {"sim"},
    "aiohttp": {"sim"},
}


def room(module: str) -> str:
    """The room of a dotted module inside the package: ``llm_locust.wire.sse`` is in ``wire``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def folder(module: str) -> str:
    """The folder of a module inside its room; empty where it lies in the room itself."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in FOLDERS.get(parts[1], ()) else ""


def imports(path: Path) -> list[tuple[str, int]]:
    """Every absolute module that the file imports, with the line."""
    found = []
    for node in statements(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides its room"
            module = node.module or ""
            if module.split(".")[0] == "llm_locust":
                found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((module, node.lineno))
    return found


def is_below(module: str, own: str) -> bool:
    """Whether a module of the package may be imported by another."""
    if room(own) != room(module):
        # A name of the public namespace has the package's level.
        return LEVELS.get(room(module), LEVELS[""]) < LEVELS[room(own)]
    order = FOLDERS.get(room(own), ())
    return not (folder(own) and folder(module)) or order.index(folder(module)) <= order.index(folder(own))


def upward(path: Path) -> Iterator[str]:
    """What the file may not import, with its place."""
    own = ".".join(p for p in path.relative_to(PACKAGE.parent).with_suffix("").parts if p != "__init__")
    for module, line in imports(path):
        top = module.split(".")[0]
        if top == "llm_locust" and not is_below(module, own):
            yield f"{path}:{line}: {own} imports {module}, which is not below it"
        if top in GUARDED and room(own) not in GUARDED[top]:
            yield f"{path}:{line}: only {sorted(GUARDED[top])} may import {top}"


def test_imports_point_down() -> None:
    assert [found for path in MODULES for found in upward(path)] == []


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("llm_locust.report.analysis", "llm_locust.figures.summarise"),
        ("llm_locust.swarm.run.finishing", "llm_locust.swarm.process.children"),
    ],
    ids=["room", "folder"],
)
def test_an_import_that_points_up_is_seen(module: str, own: str) -> None:
    assert not is_below(module, own)
    assert is_below(own, module)


def test_every_room_has_a_level_and_every_folder_a_place() -> None:
    rooms = {room("llm_locust." + p.relative_to(PACKAGE).with_suffix("").parts[0]) for p in MODULES}
    assert rooms - {"__init__", ""} <= set(LEVELS)
    for name, order in FOLDERS.items():
        inside = {p.parent.name for p in PACKAGE.joinpath(name).glob("*/__init__.py")}
        assert inside == set(order), name


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/run-states.md", "CONTRIBUTING.md"])
def test_every_file_that_the_map_names_exists(page: str) -> None:
    top = PACKAGE.parent
    files = {
        f"/{path.relative_to(top)}"
        for room in (PACKAGE, top / "tests", top / "bench")
        for path in room.rglob("*.py")
    }
    named = re.findall(r"`([\w/]+\.py)`", (top / page).read_text())
    assert named
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_the_names_that_a_locustfile_imports_are_where_the_package_looks_for_them() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    checked = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module or "").startswith("llm_locust.")
    }
    assert vars(llm_locust)["_HOMES"] == checked
    assert llm_locust.__all__ == sorted(checked)


def test_a_quantile_outside_of_metrics_stats_is_of_draws() -> None:
    """``metrics/stats`` has the percentiles of requests. One of draws is a draw: its method is named."""
    quantile = re.compile(r"np\.(nan)?(quantile|percentile)")
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in MODULES
        if "stats" not in path.parts and quantile.search(path.read_text())
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and quantile.fullmatch(ast.unparse(node.func))
        if not any(word.arg == "method" for word in node.keywords)
    ]
    assert found == []
