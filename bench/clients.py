"""Cases of the bench: each starts a fresh server of known times and one client, and measures."""

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from figures import Figures, Times, Truth

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
def serving(server: Sequence[str | Path], logs: Path, options: Sequence[str | Path] = ()) -> Iterator[int]:
    """Start a server of known times; yield its port."""
    log = logs / "server.log"
    with running([*server, *options, "--port", "0"], log, stdout=subprocess.PIPE) as process:
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
    first_late_us = end.truth["first_lateness_us"]
    truth = Truth(
        times=Times(
            ttft_p50=end.truth["ttft_ms"] + (first_late_us["p50"] or 0.0) * 1e-3,
            ttft_p99=end.truth["ttft_ms"] + (first_late_us["p99"] or 0.0) * 1e-3,
            tpot_p50=end.truth["gap_ms"],
        ),
        tokens_per_s=end.truth["tokens"] / seconds,
        cpu_percent=100 * (end.truth["cpu_s"] - start.truth["cpu_s"]) / seconds,
        lateness_us=end.truth["lateness_us"],
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
        times=Times(
            ttft_p50=seen["ttft_ms"]["p50"],
            ttft_p99=seen["ttft_ms"]["p99"],
            tpot_p50=seen["tpot_ms"]["p50"],
        ),
        truth=truth,
        others_cpu_percent=others,
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def last_words(log: Path) -> str:
    """Last line of a log, and where the rest is."""
    lines = log.read_text().split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"{said[-1] if said else 'it said nothing'} ({log})"
