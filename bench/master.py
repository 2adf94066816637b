"""``make bench-master``: whether one master keeps up with the data of hundreds of workers under load.

A real ``locust --master --headless`` with the package loaded, and fake workers in two processes
(``fake_workers.py``), which send prepared batches instead of requests. Everything uses loopback. The sizes of
the run directory and of temporary files are held against what a run announces, as in ``soak.py``: with
``--rolling-summary`` it is a soak at any rate of records.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil
from growth import Sizes, check_sizes
from harness import HERE, LOCUSTFILE, BenchError, Tally, cpu_s, free_port, last_words, listens_at, running
from rich.console import Console

from llm_locust.core.manifest import Manifest
from llm_locust.store import SUMMARY_FILE, open_requests, read_manifest
from llm_locust.swarm.channel.shipping import BATCH_ROWS

PROCESSES = 2
SAMPLE_S = 0.1
REPORT_PATIENCE_S = 600.0
BYTES_A_RECORD = 2_500  # on disk at most: spooled, in the master's file, in the Parquet file

MOST_RSS_GIB = 1.0
MOST_CPU_PERCENT = 100.0
LEAST_TAKEN = 0.99
MOST_OTHERS_PERCENT = 20.0

#: Locust's messages about a worker that missed three heartbeats.
MISSED = re.compile(r"failed to send heartbeat|self-healed with heartbeat")


@dataclass(frozen=True, slots=True)
class Sample:
    """Clocks and counters at a time of the machine's monotonic clock; CPU in seconds so far."""

    at_s: float
    rss_gib: float
    master_cpu_s: float
    bench_cpu_s: float
    machine_cpu_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, over the span from the last worker's start to the stop."""

    seconds: float
    offered_per_s: float  # records
    taken_per_s: float  # records that were acknowledged
    mb_per_s: float
    cpu_percent: float
    others_cpu_percent: float
    rss_gib_max: float
    last_ack_s: float  # after the stop
    heartbeat_ms_p99: float
    heartbeat_ms_max: float
    missed: int
    report_s: float
    records: int  # offered
    stored: int
    manifest: Manifest

    @property
    def whole(self) -> bool:
        """Whether everything offered was announced, received and stored."""
        m = self.manifest
        return m.complete and m.records_announced == m.records_received == self.stored == self.records


def commands(
    options: argparse.Namespace, port: int, url: str, folder: Path
) -> tuple[list[str], list[list[str]]]:
    """Commands of the master, and of the processes of fake workers."""
    load = f"--headless -u {options.workers} -r {options.workers} -t {options.seconds}s -H {url}"
    master = f"--master --master-bind-host 127.0.0.1 --master-bind-port {port}"
    waits = f"--expect-workers {options.workers} --expect-workers-max-wait 120 --flush-timeout 60s"
    words = f"{master} {load} {waits} --input-tokens 64 --output-tokens 100 --out {folder / 'run'}"
    fakes = []
    for part in np.array_split(np.arange(options.workers), PROCESSES):
        share = options.rate * len(part) / options.workers
        mine = f"--port {port} --first {part[0]} --workers {len(part)} --rate {share}"
        fakes.append([sys.executable, str(HERE / "fake_workers.py"), *mine.split(), "--spools", str(folder)])
    if options.rolling_summary is not None:
        words += f" --rolling-summary {options.rolling_summary}s"
    return [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *words.split()], fakes


def run(options: argparse.Namespace, folder: Path, sizes: Sizes) -> Measured:
    """Do the run, including the report.

    Raises:
        BenchError: it does not start, does not end, or fails.
    """
    sim = [sys.executable, "-m", "llm_locust.sim", "--port", "0", "--replicas", "1"]
    with ExitStack() as stack:
        server = stack.enter_context(running(sim, folder / "sim.log", stdout=subprocess.PIPE))
        master_command, fake_commands = commands(options, free_port(), listens_at(server), folder)
        own = os.environ | {"TMPDIR": str(folder / "tmp")}
        master = stack.enter_context(running(master_command, folder / "master.log", env=own))
        logs = [folder / f"fake-{i}.log" for i in range(len(fake_commands))]
        fakes = [
            stack.enter_context(running(command, log, stdout=subprocess.PIPE))
            for command, log in zip(fake_commands, logs, strict=True)
        ]
        samples = sample_until_end(master, fakes, options.seconds, folder)
        told = [tally_of(fake, log) for fake, log in zip(fakes, logs, strict=True)]
    sizes.load_ended(min(t.stopped_s for t in told))
    return measured(samples, told, folder)


def sample_until_end(
    master: "subprocess.Popen[str]", fakes: Sequence["subprocess.Popen[str]"], seconds: float, folder: Path
) -> list[Sample]:
    """Take samples until the master has ended, including its report."""
    process = psutil.Process(master.pid)
    deadline_s = time.monotonic() + seconds + REPORT_PATIENCE_S
    fakes_cpu_s = [0.0] * len(fakes)
    samples: list[Sample] = []
    while master.poll() is None:
        if time.monotonic() > deadline_s:
            raise BenchError(f"the master does not end: {last_words(folder / 'master.log')}")
        for i, fake in enumerate(fakes):
            if fake.poll() is None:
                fakes_cpu_s[i] = cpu_s(fake.pid)
            elif fake.returncode:
                raise BenchError(f"fake workers ended: {last_words(folder / f'fake-{i}.log')}")
        machine = psutil.cpu_times()
        busy_s = sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice
        try:
            rss, own_s = process.memory_info().rss, cpu_s(master.pid)
        except psutil.NoSuchProcess:
            break
        samples.append(Sample(time.monotonic(), rss / 2**30, own_s, own_s + sum(fakes_cpu_s), busy_s))
        time.sleep(SAMPLE_S)
    if master.wait():
        raise BenchError(f"the master ended with {master.returncode}: {last_words(folder / 'master.log')}")
    return samples


def tally_of(fake: "subprocess.Popen[str]", log: Path) -> Tally:
    said, _ = fake.communicate(timeout=60)
    if not said:
        raise BenchError(f"fake workers ended with {fake.returncode}: {last_words(log)}")
    return msgspec.json.decode(said, type=Tally)


def measured(samples: Sequence[Sample], told: Sequence[Tally], folder: Path) -> Measured:
    began_s, stopped_s = max(t.began_s for t in told), min(t.stopped_s for t in told)
    settled_s = max(t.settled_s for t in told)
    seconds = stopped_s - began_s
    start, end = (min(samples, key=lambda s: abs(s.at_s - at)) for at in (began_s, stopped_s))
    window_s = end.at_s - start.at_s
    others_s = (end.machine_cpu_s - start.machine_cpu_s) - (end.bench_cpu_s - start.bench_cpu_s)
    heartbeats_ms = [ms for tally in told for ms in tally.heartbeats_ms]
    manifest = read_manifest(folder / "run")
    written_ns = (folder / "run" / SUMMARY_FILE).stat().st_mtime_ns
    return Measured(
        seconds=seconds,
        offered_per_s=sum(t.offered for t in told) * BATCH_ROWS / seconds,
        taken_per_s=sum(t.taken for t in told) * BATCH_ROWS / seconds,
        mb_per_s=sum(t.taken_bytes for t in told) / 1e6 / seconds,
        cpu_percent=100 * (end.master_cpu_s - start.master_cpu_s) / window_s,
        others_cpu_percent=max(0.0, 100 * others_s / window_s),
        rss_gib_max=max(s.rss_gib for s in samples),
        last_ack_s=max(0.0, settled_s - stopped_s),
        heartbeat_ms_p99=float(np.percentile(heartbeats_ms, 99)),
        heartbeat_ms_max=max(heartbeats_ms),
        missed=len(MISSED.findall((folder / "master.log").read_text())),
        report_s=(written_ns - (manifest.ended_ns or written_ns)) * 1e-9,
        records=sum(t.offered for t in told) * BATCH_ROWS,
        stored=len(open_requests(folder / "run")),
        manifest=manifest,
    )


def print_measured(m: Measured, console: Console) -> bool:
    """Print the figures and the marks; return whether all are met."""
    master = m.manifest.master
    resent = sum(worker.resent for worker in m.manifest.workers)
    lines = [
        f"{len(m.manifest.workers)} workers, {m.seconds:.1f} s: offered {m.offered_per_s:,.0f} records/s, "
        f"taken {m.taken_per_s:,.0f} records/s, {m.mb_per_s:.1f} MB/s",
        f"master: {m.cpu_percent:.0f} % of one core, {m.rss_gib_max:.2f} GiB RSS at most; "
        f"hub lag p99 {_ms(master.hub_lag_ms_p99)}, longest {_ms(master.hub_lag_ms_max)}",
        f"heartbeats: {m.missed} missed; answered within {_ms(m.heartbeat_ms_p99)} (p99), "
        f"{_ms(m.heartbeat_ms_max)} (longest)",
        f"{resent} batches sent again; the last one acknowledged {m.last_ack_s:.2f} s after the stop",
        f"{m.records:,} records offered, {m.manifest.records_announced:,} announced, "
        f"{m.manifest.records_received:,} received, {m.stored:,} stored; their report: {m.report_s:.1f} s",
    ]
    for line in lines:
        console.print(line)
    if m.others_cpu_percent > MOST_OTHERS_PERCENT:
        console.print(
            f"Others took {m.others_cpu_percent:.0f} % of a core meanwhile: do not trust these figures."
        )
    marks = {
        f"at least {LEAST_TAKEN:.0%} taken as it is offered": m.taken_per_s >= LEAST_TAKEN * m.offered_per_s,
        f"CPU at most {MOST_CPU_PERCENT:.0f} % of one core": m.cpu_percent <= MOST_CPU_PERCENT,
        f"RSS under {MOST_RSS_GIB:g} GiB": m.rss_gib_max < MOST_RSS_GIB,
        "no heartbeat missed": m.missed == 0,
        "every record offered is in the run": m.whole,
    }
    for text, met in marks.items():
        console.print(f"mark: {text}: {'met' if met else 'NOT MET'}")
    return all(marks.values())


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def main() -> int:
    """Return 0 if all marks are met, 1 if not, or not measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="of load (%(default)s)")
    parser.add_argument("--workers", type=int, default=500, help="(%(default)s)")
    parser.add_argument(
        "--rate", type=int, default=50_000, help="requests of 100 tokens per second, of all (%(default)s)"
    )
    parser.add_argument("--rolling-summary", type=int, metavar="S", help="seconds between two (none)")
    parser.add_argument("--dir", type=Path, help="where the run is made, and removed at the end")
    options = parser.parse_args()
    if min(options.seconds, options.rate) < 1 or options.workers < PROCESSES:
        parser.error(f"--seconds and --rate must be at least 1, --workers at least {PROCESSES}")
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    with tempfile.TemporaryDirectory(prefix="llm-locust-master-", dir=options.dir) as name:
        needed = options.seconds * options.rate * BYTES_A_RECORD
        if (free := shutil.disk_usage(name).free) < needed:
            parser.error(f"{needed / 1e9:.1f} GB of disk are needed, {name} has {free / 1e9:.1f}: use --dir")
        try:
            with Sizes(Path(name)) as sizes:
                result = run(options, Path(name), sizes)
            fits = check_sizes(console, Path(name), sizes, options.seconds, options.rolling_summary)
        except (BenchError, OSError, ValueError, subprocess.TimeoutExpired) as e:
            console.print(f"[red]not measured:[/] {e}", soft_wrap=True)
            return 1
    console.print(f"mark: sizes stay within what was announced: {'met' if fits else 'NOT MET'}")
    return 0 if print_measured(result, console) and fits else 1


if __name__ == "__main__":
    sys.exit(main())
