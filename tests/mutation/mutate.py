"""Whether the tests notice small changes: ``python tests/mutation/mutate.py --minutes 15``; ``make mutate``.

Mutants are drawn by seed. Each is put into a copy of the tree and run against the tests of its module, then
those of its folder and those that import it, then a few further files. What no test notices is printed
with its diff; it needs a test, or an entry in ``judged.toml`` with the reason why nothing can be seen.
"""

import argparse
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
JUDGED = Path(__file__).with_name("judged.toml")
#: What is mutated, and the files that may notice what the tests of the folder do not.
AREAS: dict[str, tuple[str, ...]] = {
    "wire/*": ("client/test_client_stream.py", "hostile/test_hostile_formats.py", "lies/test_tokens.py"),
    "client/*": (
        "client/test_client_stream.py",
        "hostile/test_hostile_servers.py",
        "lies/test_client_late.py",
    ),
    "core/batch.py": ("store/test_store.py", "hostile/test_hostile_batches.py"),
    "metrics/stats/*": ("test_golden.py", "metrics/test_metrics_summary.py"),
    "metrics/requests/*": ("test_golden.py", "metrics/test_metrics_summary.py"),
    "swarm/delivery/*": ("hostile/test_hostile_messages.py", "swarm/run/test_swarm_finishing.py"),
    "store/merge.py": ("cli/test_cli.py", "hostile/test_hostile_batches.py"),
    "workload/arrivals/*": ("lies/test_littles_law.py", "swarm/open_loop/test_swarm_open_loop.py"),
    "workload/lengths/*": ("workload/test_workload_plan.py",),
}
#: Imported once, before processes are forked: most of the time of a short test is their import.
HEAVY = ("numpy", "pandas", "pyarrow", "pyarrow.ipc", "pyarrow.parquet", "msgspec", "httptools")
UNNOTICED, NOTICED, STUCK = "survived", "killed", "timed out"


@dataclass(frozen=True, slots=True)
class Verdict:
    file: str
    line: int
    operator: str
    verdict: str
    original: str
    mutated: str
    seconds: float = 0.0
    diff: str = ""


def modules() -> dict[str, tuple[str, ...]]:
    """Path under the package → further test files."""
    package = ROOT / "llm_locust"
    names = [str(p.relative_to(package)) for p in sorted(package.rglob("*.py")) if p.name != "__init__.py"]
    return {n: files for n in names for area, files in AREAS.items() if fnmatch(n, area)}


@cache
def stages(module: str, further: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Test files, in the order in which they are asked: the module's own, those nearby, those far away."""
    tests, name = ROOT / "tests", Path(module).stem
    room, folder = tests / Path(module).parts[0], tests / Path(module).parent
    known = sorted(p for p in tests.rglob("test_*.py") if p.is_relative_to(room))
    own = {p for p in known if name in p.stem}
    dotted = "llm_locust." + module.removesuffix(".py").replace("/", ".")
    users = {p for p in tests.rglob("test_*.py") if dotted in p.read_text() and "_swarm_" not in p.stem}
    near = ({p for p in known if p.is_relative_to(folder)} | users) - own
    far = {tests / f for f in further if (tests / f).is_file()} - own - near
    return tuple(tuple(str(p.relative_to(ROOT)) for p in sorted(s)) for s in (own, near, far) if s)


class Tree:
    """A copy of the repository whose modules may be changed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in listed.decode().split("\0"):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / name)
        os.environ |= {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}

    def failed(self, files: tuple[str, ...], limit_s: float) -> bool | None:
        """Whether a test of ``files`` fails; None where they took longer than ``limit_s``."""
        pid = os.fork()
        if pid == 0:
            self._be_pytest(files)
        until = time.monotonic() + limit_s
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > until:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            time.sleep(0.05)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status not in (0, 5)

    def _be_pytest(self, files: tuple[str, ...]) -> None:
        os.setsid()
        os.chdir(self.place)
        with (self.place / "pytest.log").open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.path[:0] = [str(self.place)]
        pytest = importlib.import_module("pytest")
        os._exit(pytest.main(["-qx", "--tb=line", "-p", "no:cacheprovider", "-m", "not e2e", *files]))


def drawn(seed: int, patterns: list[str]) -> list[tuple[str, str, Mutant]]:
    chance, found = random.Random(seed), []
    for module in modules():
        if not patterns or any(fnmatch(module, pattern) for pattern in patterns):
            source = (ROOT / "llm_locust" / module).read_text()
            found += [(module, source, mutant) for mutant in mutants(source)]
    chance.shuffle(found)
    return found


def judge(
    tree: Tree, module: str, source: str, mutant: Mutant, limits: dict[tuple[str, ...], float]
) -> Verdict:
    """What the tests say of one mutant."""
    began, changed, path = time.monotonic(), mutant.applied(source), tree.place / "llm_locust" / module
    diff = list(difflib.unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0))[3:]
    before, after = (" ".join(d[1:].strip() for d in diff if d[0] == sign) for sign in "-+")
    found = Verdict(module, mutant.line, mutant.operator, UNNOTICED, before, after, diff="\n".join(diff))
    if (module, before, after) in judged():
        return replace(found, verdict="equivalent")
    for files in stages(module, modules()[module]):
        if files not in limits:
            start = time.monotonic()
            if tree.failed(files, 600) is not False and tree.failed(files, 600) is not False:
                sys.exit(f"without a change, {' '.join(files)}:\n{(tree.place / 'pytest.log').read_text()}")
            limits[files] = 20 + 5 * (time.monotonic() - start)
        path.write_text(changed)
        try:
            failed = tree.failed(files, limits[files])
        finally:
            path.write_text(source)
        if failed is not False:
            found = replace(found, verdict=NOTICED if failed else STUCK)
            break
    return replace(found, seconds=round(time.monotonic() - began, 1))


@cache
def judged() -> frozenset[tuple[str, str, str]]:
    """Changes of which nothing can be seen: file, line before, line after."""
    entries = tomllib.loads(JUDGED.read_text()).get("equivalent", [])
    return frozenset((e["file"], e["before"], e["after"]) for e in entries)


def verdicts(given: argparse.Namespace) -> Iterator[Verdict]:
    until, limits = time.monotonic() + 60 * given.minutes, dict[tuple[str, ...], float]()
    with tempfile.TemporaryDirectory() as folder, given.out.open("a") as out:
        tree = Tree(Path(folder))
        for module, source, mutant in drawn(given.seed, given.only)[given.skip :]:
            if time.monotonic() > until:
                return
            verdict = judge(tree, module, source, mutant, limits)
            out.write(json.dumps(asdict(verdict)) + "\n")
            out.flush()
            yield verdict


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="without the first N mutants")
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="modules, such as 'wire/*'"
    )
    parser.add_argument("--at-least", type=float, default=0.9, help="exit with 1 below this kill rate")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    given = parser.parse_args()
    for name in HEAVY:
        importlib.import_module(name)
    counts: dict[str, int] = {}
    for found in verdicts(given):
        counts[found.verdict] = counts.get(found.verdict, 0) + 1
        if found.verdict == UNNOTICED:
            print(f"llm_locust/{found.file}:{found.line}: {found.operator}\n{found.diff}", flush=True)
    killed = counts.get(NOTICED, 0) + counts.get(STUCK, 0)
    tried = killed + counts.get(UNNOTICED, 0)
    print(f"{counts}; kill rate {killed / tried:.1%}" if tried else "no mutant was tried")
    return int(killed < given.at_least * tried)


if __name__ == "__main__":
    sys.exit(main())
