"""``make soak``: whether memory stays flat, and every record arrives, in a long run.

A master and two workers against ``llm-locust sim``. The resident memory of each process is sampled, and its
slope after a warm-up computed by least squares. With ``--report-interval`` below Locust's 3 s a short run has
the reports and batches of a longer one; slopes are then per hour of that faster clock: per 1,200 reports,
which take an hour at 3 s.

The sizes of the run directory, and of the directory for temporary files, are looked at all the time, against
what :func:`~llm_locust.store.files.growth_of`, by which a run announces its growth, says of as many
requests, tokens and batches.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import psutil
from growth import MOST_MB_PER_H, STEPS_MB, Sample, Sizes, check_sizes, print_memory, write_samples
from harness import HERE, BenchError, cpu_s, free_port, last_words, listens_at, running
from rich.console import Console

from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome
from llm_locust.store import iter_requests, read_manifest

BUILD = HERE / "build"
WORKERS = 2
SAMPLE_S = 5.0
USUAL_INTERVAL_S = 3.0
IGNORE_EOS = '{"ignore_eos": true}'

LOCUSTFILE = """
import locust.runners
from locust import constant_pacing, task

from llm_locust import ChatUser
from llm_locust.swarm.roles import load_generator

locust.runners.WORKER_REPORT_INTERVAL = load_generator.BATCH_INTERVAL_S = {interval_s}


class Chat(ChatUser):
    wait_time = constant_pacing({turn_s})

    @task
    def ask_one(self):
        self.chat()
"""


def commands(port: int, url: str, options: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """Commands of the swarm's processes, by name."""
    locustfile = folder / "soak_chat.py"
    turn_s = options.streams / options.rate
    locustfile.write_text(LOCUSTFILE.format(interval_s=options.report_interval, turn_s=turn_s))
    locust = [sys.executable, "-m", "locust", "-f", str(locustfile)]
    master = f"--master --master-bind-host 127.0.0.1 --master-bind-port {port} --expect-workers {WORKERS}"
    load = (
        f"--headless -u {options.streams} -r 50 -t {options.seconds}s --stop-timeout 30 --canary off -H {url}"
    )
    asked = (
        f"--input-tokens 64 --output-tokens {options.output_tokens} --slo e2el=30s "
        f"--rolling-summary {options.rolling_summary}s --out {folder / 'run'}"
    )
    worker = f"--worker --master-host 127.0.0.1 --master-port {port}"
    return {"master": [*locust, *master.split(), *load.split(), *asked.split(), "--body", IGNORE_EOS]} | {
        f"worker {i}": [*locust, *worker.split()] for i in range(WORKERS)
    }


def soak(
    options: argparse.Namespace, folder: Path, console: Console, sizes: Sizes
) -> dict[str, list[Sample]]:
    """Do the run; return the samples of each process.

    Raises:
        BenchError: it does not start, or does not end well.
    """
    truth = folder / "truth.jsonl"
    sim = [sys.executable, "-m", "llm_locust.sim", "--port", "0", "--truth", str(truth), "--seed", "1"]
    with ExitStack() as stack:
        server = stack.enter_context(running(sim, folder / "sim.log", stdout=subprocess.PIPE))
        started = {
            name: stack.enter_context(
                running(command, folder / f"{name}.log", env=os.environ | {"TMPDIR": str(folder / "tmp")})
            )
            for name, command in commands(free_port(), listens_at(server), options, folder).items()
        }
        _wait_for_load(truth, started, folder)
        samples = _sample(started, options.seconds - SAMPLE_S, console)
        sizes.load_ended(time.monotonic())
        for name, process in started.items():
            if code := process.wait(timeout=300):
                raise BenchError(f"{name} ended with {code}: {last_words(folder / f'{name}.log')}")
    return samples


def _wait_for_load(truth: Path, started: Mapping[str, "subprocess.Popen[str]"], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not truth.stat().st_size:
        for name, process in started.items():
            if process.poll() is not None:
                raise BenchError(f"{name} has ended: {last_words(folder / f'{name}.log')}")
        if time.monotonic() > deadline:
            raise BenchError(f"no request within 60 s; see {folder}")
        time.sleep(0.1)


def _sample(
    started: Mapping[str, "subprocess.Popen[str]"], seconds: float, console: Console
) -> dict[str, list[Sample]]:
    """Sample each process every :data:`SAMPLE_S`, on a schedule that does not drift."""
    samples: dict[str, list[Sample]] = {name: [] for name in started}
    began = time.monotonic()
    for due_s in np.arange(0, seconds, SAMPLE_S):
        time.sleep(max(0.0, began + due_s - time.monotonic()))
        for name, process in started.items():
            try:
                rss = psutil.Process(process.pid).memory_info().rss
                used = Sample(time.monotonic() - began, rss / 1e6, cpu_s(process.pid))
            except psutil.Error as e:
                raise BenchError(f"{name} has ended after {due_s:.0f} s") from e
            samples[name].append(used)
        if due_s % 60 == 0:
            said = " · ".join(f"{name} {each[-1].rss_mb:.1f}" for name, each in samples.items())
            console.print(f"{due_s:5.0f} s   MB: {said}", highlight=False)
    return samples


class _Seen(msgspec.Struct):
    request_id: str


def unlike(run: Path, truth: Path) -> tuple[int, int, int]:
    """Numbers of requests at the server, of those without a record, and of records unknown to it.

    A request that was cancelled while it was sent may not have reached the server.
    """
    decode = msgspec.json.Decoder(_Seen).decode
    with truth.open("rb") as file:
        seen = {decode(line).request_id for line in file}
    recorded: set[str | None] = set()
    unseen = 0
    for batch in iter_requests(run):
        ids, outcomes = batch.texts("request_id"), batch.texts("outcome")
        recorded.update(ids)
        unseen += sum(i not in seen and o != Outcome.CANCELLED for i, o in zip(ids, outcomes, strict=True))
    return len(seen), len(seen - recorded), unseen


def print_health(console: Console, manifest: Manifest) -> None:
    healths = {"master": manifest.master} | {f"worker {w.index}": w.health for w in manifest.workers}
    for name, health in healths.items():
        console.print(
            f"{name}: hub lag p99 {_ms(health.hub_lag_ms_p99)}, longest {_ms(health.hub_lag_ms_max)}",
            highlight=False,
        )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def check_records(console: Console, folder: Path, options: argparse.Namespace) -> bool:
    """Print the comparison of records and truth; return whether they match, in enough batches."""
    manifest = read_manifest(folder / "run")
    print_health(console, manifest)
    seen, missing, unseen = unlike(folder / "run", folder / "truth.jsonl")
    batches = min(w.batches for w in manifest.workers)
    meant = options.seconds / options.report_interval
    console.print(
        f"{seen:,} requests at the server: {missing} without a record, {unseen} records of none; "
        f"{batches} batches from each worker at least; complete: {json.dumps(manifest.complete)}",
        highlight=False,
    )
    if batches < meant * 0.8:
        console.print(f"{meant:.0f} batches were meant: this machine was too busy for the clock of reports")
    return manifest.complete and not missing and not unseen and batches >= meant * 0.4


def main() -> int:
    """Return 0 if flat, complete and within the sizes, 1 if not, or not measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1800, help="of load (%(default)s)")
    parser.add_argument("--streams", type=int, default=200, help="(%(default)s)")
    parser.add_argument(
        "--rate",
        type=float,
        default=float("inf"),
        metavar="N",
        help="at most as many requests/s; default: as many as the streams can",
    )
    parser.add_argument(
        "--output-tokens", default="uniform:50,150", metavar="LENGTHS", help="of an answer (%(default)s)"
    )
    parser.add_argument(
        "--rolling-summary", type=int, default=60, metavar="S", help="seconds between two (%(default)s)"
    )
    parser.add_argument(
        "--report-interval",
        type=float,
        default=USUAL_INTERVAL_S,
        metavar="S",
        help="seconds between two reports and batches of a worker (%(default)s)",
    )
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    BUILD.mkdir(exist_ok=True)
    clock = USUAL_INTERVAL_S / options.report_interval
    with tempfile.TemporaryDirectory(prefix="llm-locust-soak-") as name:
        folder = Path(name)
        try:
            with Sizes(folder) as sizes:
                samples = soak(options, folder, console, sizes)
            write_samples(BUILD / "soak.csv", samples)
            flat = print_memory(console, samples, clock)
            whole = check_records(console, folder, options)
            fits = check_sizes(console, folder, sizes, options.seconds, options.rolling_summary)
        except (BenchError, OSError, ValueError, subprocess.TimeoutExpired) as e:
            console.print(f"[red]not measured:[/] {e}", highlight=False, soft_wrap=True)
            return 1
    console.print(
        f"mark: no process grew by more than {STEPS_MB:g} MB at more than {MOST_MB_PER_H:g} MB/h: "
        f"{'met' if flat else 'NOT MET'}"
    )
    console.print(f"mark: records are what the server saw: {'met' if whole else 'NOT MET'}")
    console.print(f"mark: sizes stay within what was announced: {'met' if fits else 'NOT MET'}")
    console.print(f"Samples: {BUILD / 'soak.csv'}", highlight=False, soft_wrap=True)
    return 0 if flat and whole and fits else 1


if __name__ == "__main__":
    sys.exit(main())
