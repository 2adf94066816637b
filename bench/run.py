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
from dataclasses import asdict
from functools import partial
from pathlib import Path

from clients import HERE, BenchError, Timing, measure_itself, measure_llm_locust
from figures import READER, SDK, Figures, mark_as_json, marks_of, print_figures
from rich.console import Console

BUILD = HERE / "build"
FILES_NEEDED = 4096

Command = Sequence[str | Path]
Case = Callable[[Path], Figures]


def compile_c(console: Console) -> dict[str, Path]:
    """Compile both C programs; return none, and print why, if they cannot be built."""
    compiler = shutil.which("cc")
    if compiler is None:
        console.print("No C compiler (cc) here: the Python server is used, and there is no C reader.")
        return {}
    built = {}
    for name in ("server", "reader"):
        built[name] = BUILD / name
        command = [compiler, "-O2", "-o", str(built[name]), str(HERE / f"{name}.c")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            console.print(
                f"cc cannot build bench/{name}.c, so the Python server is used:\n{done.stderr.strip()}"
            )
            return {}
    return built


def all_cases(programs: dict[str, Path], quick: bool) -> dict[str, Case]:
    """Every case by its ``--only`` name, in the order in which they run."""
    python = Path(sys.executable)
    server: Command = [programs["server"]] if programs else [python, HERE / "server.py"]
    alone = Timing(4, 4) if quick else Timing(5, 10)
    slow_start = Timing(8, 4) if quick else Timing(10, 10)
    swarm = Timing(6, 5) if quick else Timing(8, 12)
    sdk: Command = [python, HERE / "sdk_gevent.py"]
    cases: dict[str, Case] = {}
    if programs:
        for streams in (400, 2000):
            cases[f"reader-{streams}"] = partial(
                measure_itself, READER, [programs["reader"]], server, streams, alone
            )
    cases["sdk-100"] = partial(measure_itself, SDK, sdk, server, 100, alone)
    cases["sdk-400"] = partial(measure_itself, SDK, sdk, server, 400, slow_start)
    for streams in (400, 2000):
        cases[f"llm-locust-{streams}"] = partial(measure_llm_locust, server, streams, swarm, "read")
        cases[f"llm-locust-packets-{streams}"] = partial(measure_llm_locust, server, streams, swarm, "packet")
    return cases


def raise_file_limit() -> None:
    """2,000 streams are 2,000 descriptors in each process; the children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES_NEEDED:
        wanted = FILES_NEEDED if hard == resource.RLIM_INFINITY else min(hard, FILES_NEEDED)
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
        except (BenchError, OSError, KeyError, ValueError) as e:
            failures[name] = f"{type(e).__name__}: {e}"
            console.print(
                f"[red]{name} was not measured:[/] {failures[name]}", highlight=False, soft_wrap=True
            )
    return results, failures


def write_results(path: Path, results: Sequence[Figures], failures: dict[str, str]) -> None:
    document = {
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "figures": [asdict(f) for f in results],
        "marks": [mark_as_json(m) for f in results for m in marks_of(f)],
        "failures": failures,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    """Return 0 if all was measured and every mark met, 1 if not, 2 for a usage error."""
    parser = argparse.ArgumentParser(description="CPU per token and truth of times, against known times.")
    parser.add_argument("--quick", action="store_true", help="shorter windows: noisier figures")
    parser.add_argument("--only", action="append", metavar="NAME", help="this case alone (repeatable)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    BUILD.mkdir(exist_ok=True)
    raise_file_limit()
    cases = all_cases(compile_c(console), options.quick)
    unknown = sorted(set(options.only or []) - set(cases))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    chosen = {name: case for name, case in cases.items() if not options.only or name in options.only}
    results, failures = run_cases(console, chosen)
    if results:
        print_figures(console, results)
    write_results(BUILD / "results.json", results, failures)
    console.print(f"Written: {BUILD / 'results.json'}", highlight=False, soft_wrap=True)
    return 1 if failures or any(not m.met for f in results for m in marks_of(f)) else 0


if __name__ == "__main__":
    sys.exit(main())
