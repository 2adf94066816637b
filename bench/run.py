"""``make bench``: cost of a token, and accuracy of the times, against a server of known times.

Cases: a C program that only reads (the floor), the openai SDK in gevent (the usual way), and llm-locust
itself as a real headless run of one master and one worker.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import psutil
from harness import (
    CALM,
    HELD,
    HERE,
    HOGS,
    IDLE,
    READER,
    SDK,
    BenchError,
    Figures,
    Mark,
    Timing,
    mark_as_json,
    marks_of,
    measure_itself,
    print_figures,
)
from rich.console import Console
from swarm import Asked, measure_llm_locust
from tools import TOOLS, measure_tool

BUILD = HERE / "build"
FILES_NEEDED = 4096
SERVER_PRIORITY = 50

Command = Sequence[str | Path]
Case = Callable[[Path], Figures]


@dataclass(frozen=True, slots=True)
class Timings:
    """By kind of client: one alone, one that starts slowly, and a run of llm-locust."""

    alone: Timing
    slow_start: Timing
    swarm: Timing


#: Users start over four seconds.
USUAL = Timings(Timing(5, 10), Timing(10, 10), Timing(9, 12))
QUICK = Timings(Timing(4, 4), Timing(8, 4), Timing(9, 5, 1))


def compiled(name: str) -> Path:
    """Compile a program in C (raises BenchError if it cannot be built)."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BenchError("there is no C compiler (cc, gcc): install one, as `make system-packages` does")
    BUILD.mkdir(exist_ok=True)
    command = [compiler, "-O2", "-o", str(BUILD / name), str(HERE / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"cc cannot build bench/{name}.c:\n{done.stderr.strip()}")
    return BUILD / name


def server_of(console: Console, more: Sequence[str] = ()) -> Command:
    """The server of known times, ahead of all other processes if that is permitted.

    Args:
        more: further options of the server.

    Raises:
        BenchError: it cannot be built.
    """
    server, before = compiled("server"), (os.sched_getscheduler(0), os.sched_getparam(0))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(SERVER_PRIORITY))
    except PermissionError:
        console.print("The server cannot have a real-time priority here: its own times are less certain.")
        return [server, *more]
    os.sched_setscheduler(0, *before)
    return [server, "--fifo", str(SERVER_PRIORITY), *more]


def all_cases(reader: Path, server: Command, timings: Timings, numbers: Sequence[int]) -> dict[str, Case]:
    """Every case by its ``--only`` name, in the order in which they run."""
    sdk: Command = [Path(sys.executable), HERE / "sdk_gevent.py"]
    cases: dict[str, Case] = {}
    for streams in numbers:
        cases[f"reader-{streams}"] = partial(measure_itself, READER, [reader], server, streams, timings.alone)
    cases["sdk-100"] = partial(measure_itself, SDK, sdk, server, 100, timings.alone)
    cases["sdk-400"] = partial(measure_itself, SDK, sdk, server, 400, timings.slow_start)
    cases[f"llm-locust-{IDLE}"] = partial(measure_llm_locust, server, Asked(IDLE), timings.swarm)
    for condition, streams in product((CALM, HOGS, HELD), numbers):
        asked = Asked(streams, condition)
        name = f"llm-locust-{streams}" + ("" if condition == CALM else f"-{condition}")
        cases[name] = partial(measure_llm_locust, server, asked, timings.swarm)
    return cases


def raise_file_limit(needed: int = FILES_NEEDED) -> None:
    """2,000 streams are 2,000 descriptors in each process; the children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_cases(console: Console, cases: dict[str, Case]) -> tuple[list[Figures], dict[str, str]]:
    """Figures of the cases that were measured, and why the others were not."""
    results, failures = [], {}
    for name, case in cases.items():
        logs = BUILD / "logs" / name
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        console.print(f"{name} ...")
        try:
            results.append(case(logs))
        except (BenchError, OSError, KeyError, ValueError, psutil.Error) as e:
            failures[name] = f"{type(e).__name__}: {e}"
            console.print(
                f"[red]{name} was not measured:[/] {failures[name]}", highlight=False, soft_wrap=True
            )
    return results, failures


def write_results(
    path: Path, results: Sequence[Figures], marks: Sequence[Mark], failures: dict[str, str]
) -> None:
    document = {
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "figures": [asdict(f) for f in results],
        "marks": [mark_as_json(m) for m in marks],
        "failures": failures,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def tool_of(text: str) -> tuple[str, Path]:
    """Read NAME=PYTHON (raises argparse.ArgumentTypeError)."""
    name, _, python = text.partition("=")
    if name not in TOOLS:
        raise argparse.ArgumentTypeError(f"no tool {name!r}; there are {', '.join(TOOLS)}")
    if not os.access(python, os.X_OK):
        raise argparse.ArgumentTypeError(f"no interpreter at {python!r}")
    return name, Path(python).absolute()


def main() -> int:
    """Return 0 if all was measured and every mark met, 1 if not, 2 for a usage error."""
    parser = argparse.ArgumentParser(description="CPU per token and truth of times, against known times.")
    parser.add_argument("--quick", action="store_true", help="shorter windows: noisier figures")
    parser.add_argument("--truth", action="store_true", help="all but the SDK, in short windows")
    parser.add_argument(
        "--tool",
        action="append",
        default=[],
        type=tool_of,
        metavar="NAME=PYTHON",
        help=f"one of {', '.join(TOOLS)}, and the interpreter of its environment (repeatable)",
    )
    parser.add_argument(
        "--streams", type=int, action="append", metavar="N", help="not 400 and 2000 streams (repeatable)"
    )
    parser.add_argument(
        "--gap-ms",
        default="20",
        metavar="MS",
        help="time between two tokens; at 20, 2,000 streams are more than two cores can send and read",
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="the server on a processor of its own: on two that are full no client's thread waits behind it",
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="this case alone (repeatable)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    numbers = options.streams or [400, 2000]
    raise_file_limit(max(FILES_NEEDED, *(2 * n for n in numbers)))
    timings = QUICK if options.quick or options.truth else USUAL
    try:
        reader, server = compiled("reader"), server_of(console, ["--gap-ms", options.gap_ms])
    except BenchError as e:
        parser.error(str(e))
    if options.apart:
        first, *others = sorted(os.sched_getaffinity(0))
        if not others:
            parser.error("--apart: there is one processor; it takes two")
        server = ["taskset", "--cpu-list", str(first), *server]
        os.sched_setaffinity(0, others)  # of all that is started from here on
    cases = all_cases(reader, server, timings, numbers)
    cases |= {f"{name}-400": partial(measure_tool, name, python, server) for name, python in options.tool}
    unknown = sorted(set(options.only or []) - set(cases))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    chosen = {
        name: case
        for name, case in cases.items()
        if (not options.only or name in options.only) and not (options.truth and name.startswith("sdk"))
    }
    results, failures = run_cases(console, chosen)
    marks = [mark for figures in results for mark in marks_of(figures, results)]
    if results:
        print_figures(console, results, marks)
    write_results(BUILD / "results.json", results, marks, failures)
    console.print(f"Written: {BUILD / 'results.json'}", highlight=False, soft_wrap=True)
    return 1 if failures or any(not m.met for m in marks) else 0


if __name__ == "__main__":
    sys.exit(main())
