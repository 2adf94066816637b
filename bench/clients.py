"""Cases of the bench: each starts a fresh server of known times and one client, and measures."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
from figures import OURS, Figures, Truth

HERE = Path(__file__).parent
LOCUSTFILE = HERE.parent / "locustfiles" / "chat.py"


class BenchError(RuntimeError):
    """A case that could not be measured; the text says why, and where its log is."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the load before the window, of the window, and of the wait for the last answers."""

    warmup_s: float
    window_s: float
    tail_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Edge:
    """Clocks and counters at one end of a window."""

    truth: dict[str, Any]
    machine_cpu_s: float
    bench_cpu_s: float


@contextmanager
def running(command: Sequence[str | Path], log: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block at the latest; its output is at ``log`` unless it is piped."""
    with log.open("w") as out:
        streams: dict[str, Any] = {"stdout": out, "stderr": out, **more}
        process = subprocess.Popen([str(c) for c in command], text=True, cwd=HERE.parent, **streams)
        try:
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_line(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """Next line of JSON from a piped process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchError(f"{process.args!r} ended with {process.wait()}: {last_words(log)}")
    return dict(json.loads(line))


@contextmanager
def serving(server: Sequence[str | Path], logs: Path) -> Iterator[int]:
    """Start a server of known times; yield its port."""
    log = logs / "server.log"
    with running([*server, "--port", "0"], log, stdout=subprocess.PIPE) as process:
        yield int(read_line(process, log)["port"])


def ask_truth(port: int, method: str = "GET") -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/truth", method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return dict(json.load(answer))


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def edge(port: int, pids: Sequence[int], method: str) -> Edge:
    machine = psutil.cpu_times()
    truth = ask_truth(port, method)
    busy_s = float(sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice)
    return Edge(truth, busy_s, truth["cpu_s"] + sum(map(cpu_s, pids)))


def between(start: Edge, end: Edge) -> tuple[Truth, float]:
    """The server's truth over a window, and the CPU percent of all processes outside the bench."""
    seconds = (end.truth["now_ns"] - start.truth["now_ns"]) * 1e-9
    truth = Truth(
        ttft_ms=end.truth["ttft_ms"],
        gap_ms=end.truth["gap_ms"],
        tokens_per_s=end.truth["tokens"] / seconds,
        cpu_percent=100 * (end.truth["cpu_s"] - start.truth["cpu_s"]) / seconds,
        lateness_us=end.truth["lateness_us"],
        first_lateness_us=end.truth["first_lateness_us"],
    )
    others_s = (end.machine_cpu_s - start.machine_cpu_s) - (end.bench_cpu_s - start.bench_cpu_s)
    return truth, max(0.0, 100 * others_s / seconds)


def measure_itself(
    name: str,
    client: Sequence[str | Path],
    server: Sequence[str | Path],
    streams: int,
    timing: Timing,
    logs: Path,
) -> Figures:
    """Measure a client that reports when its window opens, and its own figures at its end."""
    log = logs / "client.log"
    with serving(server, logs) as port:
        options = f"--port {port} --streams {streams} --warmup {timing.warmup_s} --seconds {timing.window_s}"
        with running([*client, *options.split()], log, stdout=subprocess.PIPE) as process:
            read_line(process, log)
            start = edge(port, [process.pid, os.getpid()], "DELETE")
            time.sleep(timing.window_s - 0.05)  # its process must be there to be read at the end
            end = edge(port, [process.pid, os.getpid()], "GET")
            seen = read_line(process, log)
    truth, others = between(start, end)
    return Figures(
        client=name,
        streams=streams,
        tokens_per_s=seen["tokens_per_s"],
        cpu_us_per_token=seen["cpu_us_per_token"],
        cpu_percent=seen["cpu_percent"],
        ttft_p50_ms=seen["ttft_ms"]["p50"],
        ttft_p99_ms=seen["ttft_ms"]["p99"],
        tpot_p50_ms=seen["tpot_ms"]["p50"],
        truth=truth,
        others_cpu_percent=others,
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def locust_commands(
    port: int, streams: int, timing: Timing, stamps: str, out: Path
) -> tuple[list[str], list[str]]:
    """Commands of master and worker, as a user starts them; users start over four seconds."""
    rendezvous = str(free_port())
    locust = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)]
    total_s = timing.warmup_s + timing.window_s + timing.tail_s
    load = f"--headless -u {streams} -r {streams // 4} -t {total_s:.0f}s -H http://127.0.0.1:{port}"
    load += " --canary off"  # the server's log is compared
    asked = f"--model known --input-tokens 64 --output-tokens 100 --warmup {timing.warmup_s:g}s --out {out}"
    asked += f" --stamps {stamps}"
    master = f"--master --master-bind-host 127.0.0.1 --master-bind-port {rendezvous} --expect-workers 1"
    worker = f"--worker --master-host 127.0.0.1 --master-port {rendezvous}"
    return [*locust, *master.split(), *load.split(), *asked.split()], [*locust, *worker.split()]


def last_words(log: Path) -> str:
    """Last line of a log, and where the rest is."""
    lines = log.read_text().split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1] if said else 'it said nothing'} ({log})"


def wait_for_load(port: int, processes: dict[str, subprocess.Popen[str]], logs: Path) -> None:
    deadline_s = time.monotonic() + 60
    while not ask_truth(port)["streams"]:
        for name, process in processes.items():
            if process.poll() is not None:
                words = last_words(logs / f"{name}.log")
                raise BenchError(f"locust's {name} ended with {process.returncode} before any load: {words}")
        if time.monotonic() > deadline_s:
            raise BenchError(f"locust sent nothing within 60 s; see {logs}")
        time.sleep(0.05)


def tokens_between(requests: Path, start_ns: int, end_ns: int) -> int:
    """Token events that arrived in [start, end) of the wall clock, from ``requests.parquet``."""
    table = pq.read_table(requests, columns=["sent_ns", "arrivals_ns"])
    arrivals = table.column("arrivals_ns").combine_chunks()
    sent_ns = table.column("sent_ns").fill_null(0).to_numpy()
    at_ns = np.repeat(sent_ns, np.diff(arrivals.offsets.to_numpy())) + arrivals.flatten().to_numpy()
    return int(((at_ns >= start_ns) & (at_ns < end_ns)).sum())


def measure_llm_locust(
    server: Sequence[str | Path], streams: int, timing: Timing, stamps: str, logs: Path
) -> Figures:
    """Measure a real headless run, one master and one worker; the worker's whole process is counted."""
    if not LOCUSTFILE.exists():
        raise BenchError(f"{LOCUSTFILE} is missing")
    out = logs / "run"
    with serving(server, logs) as port:
        master_command, worker_command = locust_commands(port, streams, timing, stamps, out)
        with (
            running(master_command, logs / "master.log") as master,
            running(worker_command, logs / "worker.log") as worker,
        ):
            wait_for_load(port, {"master": master, "worker": worker}, logs)
            time.sleep(timing.warmup_s)
            worker_s = cpu_s(worker.pid)
            start = edge(port, [worker.pid, master.pid, os.getpid()], "DELETE")
            time.sleep(timing.window_s)
            worker_s = cpu_s(worker.pid) - worker_s
            end = edge(port, [worker.pid, master.pid, os.getpid()], "GET")
            wait_for_end(master, timing, logs)
    return locust_figures(OURS[stamps], streams, out, start, end, worker_s)


def wait_for_end(master: subprocess.Popen[str], timing: Timing, logs: Path) -> None:
    try:
        code = master.wait(timeout=timing.tail_s + 60)
    except subprocess.TimeoutExpired:
        raise BenchError(f"locust did not end within 60 s after its run; see {logs}") from None
    if code:
        raise BenchError(f"locust's master ended with {code}: {last_words(logs / 'master.log')}")


def locust_figures(name: str, streams: int, out: Path, start: Edge, end: Edge, worker_s: float) -> Figures:
    """Figures of the run's own summary, with the truth and the worker's CPU."""
    summary = json.loads((out / "summary.json").read_text())
    latency = summary["latency_ms"]
    start_ns, end_ns = start.truth["now_ns"], end.truth["now_ns"]
    tokens = tokens_between(out / "requests.parquet", start_ns, end_ns)
    truth, others = between(start, end)
    return Figures(
        client=name,
        streams=streams,
        tokens_per_s=summary["throughput"]["output_tokens_per_s"],
        cpu_us_per_token=worker_s * 1e6 / tokens if tokens else None,
        cpu_percent=worker_s * 1e11 / (end_ns - start_ns),
        ttft_p50_ms=latency["ttft"]["p50"],
        ttft_p99_ms=latency["ttft"]["p99"],
        tpot_p50_ms=latency["tpot"]["p50"],
        truth=truth,
        others_cpu_percent=others,
    )
