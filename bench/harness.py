"""What benches share: a server of known times and one client, figures with their marks, their printing."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

READER = "C reader"
SDK = "openai SDK"

#: Nothing is in the way; another process on each processor; the event loop held for most of the time.
CALM, HOGS, HELD = "calm", "hogs", "held"

#: Streams of a client that has little to do.
IDLE = 50

OURS = "llm-locust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Quantiles of latencies in milliseconds. ``None``: there is no data for it."""

    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the server did: its own times, and its lateness, of a client with a log for the same requests.

    ``write_us`` is the 99th percentile of the length of a write, within which its packet was stamped; None
    without a log.
    """

    times: Times
    tokens_per_s: float
    cpu_percent: float
    lateness_us: dict[str, float | None]
    write_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Differences of single requests between the client and the server's log: 99th percentiles, in ms."""

    requests: int
    ttft_p99: float
    itl_p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One client at one number of streams. ``None``: the client has no data for it.

    ``cpu_us_per_token`` is user and system time of the client's process over the tokens that it received in
    the same window; ``others_cpu_percent`` the CPU of processes outside the bench, in percent of one core:
    the noise. ``turn_p99_ms`` is the 99th percentile of the time from an answer's last packet to the same
    user's next request; ``whole_us_per_token`` the CPU of all processes of the client from start to end, the
    report included, over all tokens of its run.
    """

    client: str
    streams: int
    condition: str = CALM
    tokens_per_s: float | None
    cpu_us_per_token: float | None
    cpu_percent: float
    times: Times
    truth: Truth
    pairs: Pairs | None = None
    turn_p99_ms: float | None = None
    whole_us_per_token: float | None = None
    others_cpu_percent: float

    @property
    def name(self) -> str:
        return f"{self.client}, {self.streams:,} streams, {self.condition}"

    @property
    def rate_off_percent(self) -> float | None:
        if self.tokens_per_s is None or not self.truth.tokens_per_s:
            return None
        return 100 * abs(self.tokens_per_s / self.truth.tokens_per_s - 1)

    def off(self, quantile: str) -> float | None:
        """Difference in ms between a quantile and the server's, by its name in :class:`Times`."""
        seen, true = getattr(self.times, quantile), getattr(self.truth.times, quantile)
        return None if seen is None or true is None else abs(seen - true)


@dataclass(frozen=True, slots=True)
class Mark:
    """One acceptance mark: ``value`` must be at most ``limit``; an unknown value does not meet it."""

    text: str
    value: float | None
    limit: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value is not None and self.value <= self.limit


_WORDS = {
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "tpot_p50": "TPOT p50",
    "itl_p50": "ITL p50",
    "itl_p99": "ITL p99",
}
_EXACT = {"ttft_p50": 0.1, "ttft_p99": 1.0, "itl_p50": 0.1, "itl_p99": 1.0}

_LATE = _EXACT | {"ttft_p99": 5.0, "itl_p99": 5.0}

#: Largest differences in ms, by condition, at any number of streams.
_LIMITS_MS = {CALM: _EXACT, HOGS: _LATE, HELD: _LATE}

#: Most CPU per token, as a multiple of the C reader's.
_MOST_OF_READER = {(400, CALM): 2.0, (2000, CALM): 1.5}


def marks_of(figures: Figures, among: Sequence[Figures]) -> list[Mark]:
    """Marks of llm-locust; no other client has any."""
    if figures.client != OURS:
        return []
    key, at = (figures.streams, figures.condition), f"{figures.name}: "
    marks = [
        Mark(f"{at}{_WORDS[name]} off the truth", figures.off(name), most, "ms")
        for name, most in _LIMITS_MS[figures.condition].items()
    ]
    marks.append(Mark(at + "output tokens/s off the truth", figures.rate_off_percent, 1.0, "%"))
    if key == (IDLE, CALM):
        marks.append(
            Mark(at + "the end of an answer to the next request, p99", figures.turn_p99_ms, 3.0, "ms")
        )
    if key in _MOST_OF_READER:
        of_reader = ratio(figures, READER, among)
        marks.append(Mark(at + "CPU per token, of the C reader's", of_reader, _MOST_OF_READER[key], "×"))
    return marks


def ratio(figures: Figures, client: str, among: Sequence[Figures]) -> float | None:
    """CPU per token relative to another client's, at the nearest number of streams."""
    peers = [f for f in among if f.client == client and f.cpu_us_per_token]
    if not peers or not figures.cpu_us_per_token:
        return None
    peer = min(peers, key=lambda f: abs(f.streams - figures.streams))
    assert peer.cpu_us_per_token is not None
    return figures.cpu_us_per_token / peer.cpu_us_per_token


def mark_as_json(mark: Mark) -> dict[str, Any]:
    return {"text": mark.text, "value": mark.value, "limit": mark.limit, "unit": mark.unit, "met": mark.met}


# --- Cases: each starts a fresh server of known times and one client, and measures


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


def listens_at(server: "subprocess.Popen[str]") -> str:
    """URL of a simulated deployment, once it listens."""
    assert server.stdout is not None
    for line in server.stdout:
        if "listening on " in line:
            return line.split("listening on ")[1].split()[0].removesuffix("/v1")
    raise BenchError("the simulated deployment does not listen")


def ask_truth(port: int, method: str = "GET") -> dict[str, Any]:
    # Imported here: fake workers import Locust after this module, and it patches ssl before its first import.
    import urllib.request

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


# --- Printing of figures and marks


NOISE_PERCENT = 20.0  # of one core: more outside the bench distorts the figures


def _text(value: float | None, digits: int, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _cost(figures: Figures, among: Sequence[Figures]) -> list[str]:
    truth, calm = figures.truth, figures.condition == CALM
    return [
        figures.client,
        f"{figures.streams:,}",
        figures.condition,
        _text(figures.cpu_us_per_token, 2),
        _text(figures.whole_us_per_token, 2),
        _text(ratio(figures, READER, among) if calm else None, 2, "×"),
        _text(ratio(figures, SDK, among) if calm else None, 3, "×"),
        _text(figures.cpu_percent, 0, " %"),
        f"{_text(figures.tokens_per_s, 0)} ({_text(truth.tokens_per_s, 0)})",
        _text(figures.rate_off_percent, 2, " %"),
        " / ".join(_text(truth.lateness_us[q], 0) for q in ("p50", "p99", "max")),
        _text(truth.cpu_percent, 0, " %"),
        _text(figures.others_cpu_percent, 0, " %"),
    ]


def _times(figures: Figures) -> list[str]:
    seen, true, pairs = figures.times, figures.truth.times, figures.pairs
    return [
        figures.client,
        f"{figures.streams:,}",
        figures.condition,
        *(
            f"{_text(getattr(seen, name), 3)} ({_text(getattr(true, name), 3)})"
            for name in ("ttft_p50", "ttft_p99", "tpot_p50", "itl_p50", "itl_p99")
        ),
        " / ".join(_text(each, 3) for each in ((pairs.ttft_p99, pairs.itl_p99) if pairs else (None, None))),
        _text(figures.truth.write_us, 0),
        _text(figures.turn_p99_ms, 2),
    ]


def print_figures(console: Console, results: Sequence[Figures], marks: Sequence[Mark]) -> None:
    """Print the tables of all cases, and below them the marks."""
    print_table(
        console,
        "Cost, and throughput (in brackets: the server's own)",
        "client|streams|condition|CPU µs/token|whole run|to reader|to SDK|client CPU|tokens/s|off|"
        "server late µs p50/p99/max|server CPU|others' CPU",
        [_cost(f, results) for f in results],
    )
    print_table(
        console,
        "Times in ms (in brackets: the server's own)",
        "client|streams|condition|TTFT p50|TTFT p99|TPOT p50|ITL p50|ITL p99|"
        "off, each request: TTFT p99 / ITL p99|a write µs p99|end to next p99",
        [_times(f) for f in results],
    )
    print_marks(console, marks)
    noisy = [f.name for f in results if f.others_cpu_percent > NOISE_PERCENT]
    if noisy:
        console.print(
            f"[yellow]not to be trusted[/] (others used over {NOISE_PERCENT:.0f} % of a core): "
            + "; ".join(noisy)
        )


def print_marks(console: Console, marks: Sequence[Mark]) -> int:
    """Print which are met; return the exit code: 1 if one is not."""
    for mark in marks:
        verdict = "[green]met    [/]" if mark.met else "[red]not met[/]"
        unit = f" {mark.unit}".rstrip()
        console.print(
            f"{verdict} {mark.text}: {_text(mark.value, 3, unit)}, at most {mark.limit:g}{unit}",
            highlight=False,
            soft_wrap=True,
        )
    return 0 if all(mark.met for mark in marks) else 1


def print_table(console: Console, title: str, headings: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table; headings are separated by ``|``, and all but the first are of numbers."""
    table = Table(title=title, title_justify="left")
    for n, heading in enumerate(headings.split("|")):
        table.add_column(heading, justify="right" if n else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


# --- Counts of fake workers, printed for the bench at their end


@dataclass(slots=True)
class Tally:
    """Totals of the workers of one process. Times are seconds of the machine's monotonic clock."""

    began_s: float = 0.0  # when the last of them received the run
    stopped_s: float = 0.0  # when the first of them was told to stop
    settled_s: float = 0.0  # the last acknowledgement
    offered: int = 0  # batches
    offered_bytes: int = 0
    taken: int = 0  # batches acknowledged before the stop
    taken_bytes: int = 0
    unacknowledged: int = 0  # batches, at the end
    heartbeats_ms: list[float] = field(default_factory=list)  # until the master answered

    def acknowledged(self, size: int) -> None:
        self.settled_s = time.monotonic()
        if not self.stopped_s:
            self.taken += 1
            self.taken_bytes += size
