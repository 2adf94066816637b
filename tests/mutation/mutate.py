"""Whether the tests notice small changes: ``python tests/mutation/mutate.py --minutes 15``; ``make mutate``.

Mutants are drawn by seed, from each area alike. What no test notices is printed with its diff; it needs a
test, or an entry in ``judged.toml`` with the reason why nothing can be seen.
"""

import argparse
import difflib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from judging import NOTICED, STUCK, UNNOTICED, Judging, Place
from operators import mutants, statements

ROOT = Path(__file__).parents[2]
JUDGED = Path(__file__).with_name("judged.toml")
EQUIVALENT = "equivalent"
#: What is mutated, and the tests that are to notice it: of its folder, and of those that stand on it.
AREAS: dict[str, tuple[str, ...]] = {
    "wire/*": (
        "wire",
        "client/test_client_ends.py",
        "client/test_client_outcome.py",
        "client/test_client_runs.py",
        "client/test_client_stream.py",
        "hostile/test_hostile_servers.py",
        "hostile/test_hostile_results.py",
        "hostile/test_secrecy.py",
        "lies/test_tokens.py",
        "test_pieces.py",
        "workload/test_workload_body.py",
    ),
    "client/*": (
        "client",
        "hostile/test_hostile_arrivals.py",
        "hostile/test_hostile_servers.py",
        "hostile/test_secrecy.py",
        "lies/test_client_late.py",
        "lies/test_littles_law.py",
        "lies/test_tokens.py",
        "swarm/tracing/test_swarm_spans.py",
        "swarm/users/test_swarm_backoff.py",
        "wire/test_headers.py",
    ),
    "core/batch.py": ("core/test_batch.py", "core/test_arrow.py"),
    "metrics/stats/*": ("metrics/stats", "metrics/test_metrics_summary.py", "test_golden.py"),
    "metrics/requests/*": (
        "metrics/requests",
        "metrics/test_metrics_measured.py",
        "metrics/test_metrics_summary.py",
        "lies/test_windows.py",
        "lies/test_tokens.py",
        "test_golden.py",
    ),
    "figures/*": ("figures", "metrics", "report", "frozen", "test_golden.py"),
    "swarm/channel/shipping.py": ("swarm/delivery", "hostile/test_hostile_messages.py"),
    "swarm/channel/collector.py": ("swarm/delivery", "hostile/test_hostile_messages.py"),
    "store/merge.py": (
        "store/test_store_merge.py",
        "store/test_store.py",
        "report/test_report_parts.py",
        "hostile/test_hostile_run_dirs.py",
    ),
    "workload/arrival*": ("workload/test_arrivals_rates.py", "workload/test_arrivals_schedules.py"),
    "workload/draws.py": ("workload/test_workload_lengths.py",),
    "options/load.py": ("options", "workload/test_arrivals_rates.py", "swarm/run/test_swarm_load_checks.py"),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    area: str
    file: str
    line: int
    operator: str
    verdict: str
    original: str
    mutated: str
    noticed_by: str = ""
    seconds: float = 0.0
    diff: str = ""


def modules(area: str) -> list[str]:
    """Paths under the package."""
    package = ROOT / "llm_locust"
    names = [str(p.relative_to(package)) for p in sorted(package.rglob("*.py")) if p.name != "__init__.py"]
    return [name for name in names if fnmatch(name, area)]


def copied(place: Path) -> None:
    """The repository, to be changed."""
    names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(names, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def drawn(area: str, seed: int, only: list[str]) -> list[Place]:
    """The mutants of an area, in the order of the sample."""
    found = list[Place]()
    for module in modules(area):
        if not only or any(fnmatch(module, pattern) for pattern in only):
            source = (ROOT / "llm_locust" / module).read_text()
            at = statements(source)
            found += [Place(module, source, mutant, at[mutant.line]) for mutant in mutants(source)]
    random.Random(f"{seed} {area}").shuffle(found)
    return found


@cache
def judged() -> frozenset[tuple[str, str, str]]:
    """Changes of which nothing can be seen: file, line before, line after."""
    entries = tomllib.loads(JUDGED.read_text()).get(EQUIVALENT, [])
    return frozenset((e["file"], e["before"], e["after"]) for e in entries)


def judge(area: str, place: Place, ask: Callable[[Place], tuple[str, str]]) -> Verdict:
    began, mutant = time.monotonic(), place.mutant
    lines = place.source.splitlines(), place.changed.splitlines()
    diff = list(difflib.unified_diff(*lines, lineterm="", n=0))[3:]
    before, after = (" ".join(d[1:].strip() for d in diff if d[0] == sign) for sign in "-+")
    known = (place.module, before, after) in judged()
    verdict, by = (EQUIVALENT, "") if known else ask(place)
    took_s = round(time.monotonic() - began, 2)
    where = (area, place.module, mutant.line, mutant.operator)
    return Verdict(*where, verdict, before, after, by, took_s, "\n".join(diff))


def judge_area(area: str, given: argparse.Namespace, seconds: float) -> None:
    """Add verdicts of so many seconds to ``given.out``; the process has the area's tests imported then."""
    places = drawn(area, given.seed, given.only)[given.skip :][: given.each]

    def work(ask: Callable[[Place], tuple[str, str]]) -> None:
        until = time.monotonic() + seconds  # what the tests run was learnt before
        with out.open("a") as file:
            for place in places:
                if time.monotonic() > until:
                    break
                file.write(json.dumps(asdict(judge(area, place, ask))) + "\n")
                file.flush()

    out, files = given.out.resolve(), [f"tests/{name}" for name in AREAS[area]]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copied(tree)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = folder
        sys.path.insert(0, folder)
        with (tree / "pytest.log").open("wb") as log:
            os.dup2(log.fileno(), 1)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--basetemp", str(tree / "tmp")]
        plugin = Judging(tree, {place.module for place in places}, work)
        status = pytest.main([*options, "-m", "not e2e and not run", *files], plugins=[plugin])
        if status:
            sys.exit(f"{area}: {(tree / 'pytest.log').read_text()}")


def interval(killed: int, tried: int) -> tuple[float, float]:
    """Of a share, by Wilson, at 95 %."""
    z, p = 1.96, killed / tried
    middle, half = p + z * z / 2 / tried, z * math.sqrt(p * (1 - p) / tried + z * z / 4 / tried / tried)
    return (middle - half) / (1 + z * z / tried), (middle + half) / (1 + z * z / tried)


def table(found: Iterable[tuple[str, str]]) -> list[str]:
    """Counts and kill rate of each area and of all, from areas and verdicts."""
    counts: dict[str, Counter[str]] = {}
    for area, verdict in found:
        counts.setdefault(area, Counter())[verdict] += 1
    counts["all"] = sum(counts.values(), Counter())
    rows = [f"{'':22}{'mutants':>8}{NOTICED:>8}{STUCK:>10}{EQUIVALENT:>11}{UNNOTICED:>9}  kill rate (95 %)"]
    for area, each in counts.items():
        killed, tried = each[NOTICED] + each[STUCK], each.total() - each[EQUIVALENT]
        numbers = f"{each.total():8}{each[NOTICED]:8}{each[STUCK]:10}{each[EQUIVALENT]:11}{each[UNNOTICED]:9}"
        if tried:
            low, high = interval(killed, tried)
            rows.append(f"{area:22}{numbers}  {killed / tried:.1%} ({low:.1%} to {high:.1%})")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="of judging, for all areas together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--each", type=int, default=1_000_000, metavar="N", help="so many mutants of each area"
    )
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="without the first N of each area")
    parser.add_argument("--area", action="append", choices=AREAS, help="one of the areas; may be repeated")
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="modules, such as 'wire/s*'"
    )
    parser.add_argument("--at-least", type=float, default=0.9, help="exit with 1 below this kill rate")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    given = parser.parse_args()
    given.out.write_text("")
    areas = given.area or list(AREAS)
    for area in areas:
        pid = os.fork()
        if pid == 0:
            judge_area(area, given, 60 * given.minutes / len(areas))
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            return 2
    found = [Verdict(**json.loads(line)) for line in given.out.read_text().splitlines()]
    for each in found:
        if each.verdict == UNNOTICED:
            print(f"llm_locust/{each.file}:{each.line}: {each.operator} {each.noticed_by}\n{each.diff}")
    tried = [each for each in found if each.verdict != EQUIVALENT]
    print("\n".join(table((each.area, each.verdict) for each in found)))
    killed = sum(each.verdict != UNNOTICED for each in tried)
    return int(killed < given.at_least * len(tried))


if __name__ == "__main__":
    sys.exit(main())
