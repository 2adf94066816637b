"""llm-locust as a case of the bench: a real headless run, one master and one worker."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness import (
    CALM,
    HELD,
    HERE,
    HOGS,
    LOCUSTFILE,
    OURS,
    BenchError,
    Edge,
    Figures,
    Pairs,
    Times,
    Timing,
    ask_truth,
    between,
    cpu_s,
    edge,
    free_port,
    last_words,
    running,
    serving,
)
from numpy.typing import NDArray

# --- Log of the C server: when a request had arrived, and when each of its tokens was written


_ENTRY = np.dtype([("at_ns", "i8"), ("took_ns", "u4"), ("port", "u2"), ("token", "u2")])
_ARRIVED = 0xFFFF

#: Most that a record may be earlier on the run's clock than its request on the server's.
_SAME_NS = 5_000_000
_PORTS_APART = 1 << 44  # nanoseconds: more than any bench lasts


class LogError(ValueError):
    """A log that does not fit the run's records; the text says how."""


@dataclass(frozen=True, slots=True)
class ServerLog:
    """Requests in order of client port and time; tokens as rows of their request.

    ``written_ns`` has a row for each whole answer, ``arrived_ns`` and ``port`` an element.
    ``all_written_ns`` are the times of all writes, also of answers that were not whole. Times are realtime.
    """

    port: NDArray[np.int64]
    arrived_ns: NDArray[np.int64]
    written_ns: NDArray[np.int64]
    all_written_ns: NDArray[np.int64]
    took_ns: NDArray[np.int64]

    @property
    def ttft_ns(self) -> NDArray[np.int64]:
        return np.asarray(self.written_ns[:, 0] - self.arrived_ns, dtype=np.int64)

    def rows_of(self, port: NDArray[np.integer[Any]], sent_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each request that a client sent from this port at this time.

        Raises:
            LogError: one has none, or two have the same.
        """
        if not len(port):
            return np.empty(0, np.int64)
        first_ns = min(int(self.arrived_ns.min()), int(sent_ns.min())) - _SAME_NS
        keys = self.port * _PORTS_APART + (self.arrived_ns - first_ns)
        wanted = port.astype(np.int64) * _PORTS_APART + (sent_ns - _SAME_NS - first_ns)
        rows = np.searchsorted(keys, wanted)
        known = rows < len(keys)
        known[known] = self.port[rows[known]] == port[known]
        if not known.all():
            raise LogError(f"{int((~known).sum())} of {len(port)} requests are not in the server's log")
        if len(np.unique(rows)) < len(rows):
            raise LogError("two of the client's requests have the same request of the server's log")
        return np.asarray(rows, dtype=np.int64)


def read_log(path: Path, tokens: int) -> ServerLog:
    """Read the log of a server whose whole answers have so many tokens.

    Raises:
        LogError: it has no whole answer.
    """
    raw = path.read_bytes()
    to_realtime_ns = int(np.frombuffer(raw, np.int64, 1)[0])
    entries = np.frombuffer(raw, _ENTRY, offset=8)
    written = entries["token"] != _ARRIVED
    entries_of_port = entries[np.argsort(entries["port"], kind="stable")]
    starts = np.flatnonzero(entries_of_port["token"] == _ARRIVED)
    whole = np.diff(np.append(starts, len(entries_of_port))) == tokens + 1
    starts = starts[whole]
    if not len(starts):
        raise LogError(f"the server's log {path} has no whole answer")
    at_ns = entries_of_port["at_ns"] + to_realtime_ns
    return ServerLog(
        port=entries_of_port["port"][starts].astype(np.int64),
        arrived_ns=at_ns[starts],
        written_ns=at_ns[starts[:, None] + np.arange(1, tokens + 1)],
        all_written_ns=entries["at_ns"][written] + to_realtime_ns,
        took_ns=entries["took_ns"][written].astype(np.int64),
    )


# --- The run


TOKENS = 100
LOCUSTFILES = {CALM: LOCUSTFILE, HOGS: LOCUSTFILE, HELD: HERE / "held_loop.py"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for: streams, condition, and further options."""

    streams: int
    condition: str = CALM
    more: str = ""


def commands(port: int, asked: Asked, timing: Timing, out: Path) -> dict[str, list[str]]:
    """Commands of master and worker, as a user starts them; users start over four seconds."""
    rendezvous = str(free_port())
    locust = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILES[asked.condition])]
    total_s = timing.warmup_s + timing.window_s + timing.tail_s
    load = (
        f"--headless -u {asked.streams} -r {asked.streams // 4} -t {total_s:.0f}s -H http://127.0.0.1:{port}"
    )
    load += " --canary off"  # the server's log is compared
    options = f"--model known --input-tokens 64 --output-tokens {TOKENS} --warmup {timing.warmup_s:g}s"
    options += f" --out {out} {asked.more}"
    master = f"--master --master-bind-host 127.0.0.1 --master-bind-port {rendezvous} --expect-workers 1"
    worker = f"--worker --master-host 127.0.0.1 --master-port {rendezvous}"
    return {
        "master": [*locust, *master.split(), *load.split(), *options.split()],
        "worker": [*locust, *worker.split()],
    }


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


def wait_for_end(master: subprocess.Popen[str], timing: Timing, logs: Path) -> None:
    try:
        code = master.wait(timeout=timing.tail_s + 120)
    except subprocess.TimeoutExpired:
        raise BenchError(f"locust did not end within two minutes after its run; see {logs}") from None
    if code:
        raise BenchError(f"locust's master ended with {code}: {last_words(logs / 'master.log')}")


def give_up_priority(pids: Iterable[int]) -> None:
    """Give all threads of these processes the usual scheduling, whatever the bench itself was given."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


def hogs(stack: ExitStack, logs: Path, seconds: float) -> list[int]:
    """Start one on each processor; return their process ids."""
    return [
        stack.enter_context(
            running([sys.executable, HERE / "hog.py", str(cpu), f"{seconds:g}"], logs / f"hog-{cpu}.log")
        ).pid
        for cpu in sorted(os.sched_getaffinity(0))
    ]


def measure_llm_locust(server: Sequence[str | Path], asked: Asked, timing: Timing, logs: Path) -> Figures:
    """Measure a real headless run; the worker's whole process is counted."""
    out, log = logs / "run", logs / "server.bin"
    with ExitStack() as stack:
        port = stack.enter_context(serving(server, logs, ["--log", log]))
        started = {
            name: stack.enter_context(running(command, logs / f"{name}.log"))
            for name, command in commands(port, asked, timing, out).items()
        }
        worker, pids = started["worker"].pid, [os.getpid(), *(p.pid for p in started.values())]
        wait_for_load(port, started, logs)
        if asked.condition == HOGS:  # which then compete with it as equals
            give_up_priority(p.pid for p in started.values())
            pids += hogs(stack, logs, timing.warmup_s + timing.window_s + timing.tail_s + 60)
        time.sleep(timing.warmup_s)
        worker_s = cpu_s(worker)
        start = edge(port, pids, "DELETE")
        time.sleep(timing.window_s)
        worker_s = cpu_s(worker) - worker_s
        end = edge(port, pids, "GET")
        before_s = resource.getrusage(resource.RUSAGE_CHILDREN)
        wait_for_end(started["master"], timing, logs)
        started["worker"].wait(60)
        after_s = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole_s = sum(after_s[:2]) - sum(before_s[:2])
    figures = _figures(asked, out, start, end, worker_s, whole_s)
    return _with_log(figures, out, read_log(log, TOKENS))


def _figures(asked: Asked, out: Path, start: Edge, end: Edge, worker_s: float, whole_s: float) -> Figures:
    """Figures of the run's own summary, with the CPU of the worker and of all processes."""
    summary = json.loads((out / "summary.json").read_text())
    ttft, tpot, itl = (summary["latency_ms"][name] for name in ("ttft", "tpot", "itl"))
    start_ns, end_ns = start.truth["now_ns"], end.truth["now_ns"]
    tokens = _tokens_between(out / "requests.parquet", start_ns, end_ns)
    truth, others = between(start, end)
    return Figures(
        client=OURS,
        streams=asked.streams,
        condition=asked.condition,
        tokens_per_s=summary["throughput"]["output_tokens_per_s"],
        cpu_us_per_token=worker_s * 1e6 / tokens if tokens else None,
        cpu_percent=worker_s * 1e11 / (end_ns - start_ns),
        times=Times(
            ttft_p50=ttft["p50"],
            ttft_p99=ttft["p99"],
            tpot_p50=tpot["p50"],
            itl_p50=itl["p50"],
            itl_p99=itl["p99"],
        ),
        truth=truth,
        whole_us_per_token=whole_s * 1e6 / max(1, _tokens_between(out / "requests.parquet", 0, 1 << 62)),
        turn_p99_ms=_turn_p99_ms(out / "requests.parquet", start_ns, end_ns),
        others_cpu_percent=others,
    )


def _turn_p99_ms(requests: Path, start_ns: int, end_ns: int) -> float | None:
    """Time from an answer's last packet, in [start, end), to the same user's next request."""
    table = pq.read_table(requests, columns=["user", "sent_ns", "ended_ns", "outcome"])
    ok = np.array(table.column("outcome").to_pylist()) == "ok"
    user, sent_ns, ended_ns = (table.column(name).to_numpy()[ok] for name in ("user", "sent_ns", "ended_ns"))
    order = np.lexsort((sent_ns, user))
    user, sent_ns, ended_ns = user[order], sent_ns[order], ended_ns[order]
    is_next = (user[1:] == user[:-1]) & (ended_ns[:-1] >= start_ns) & (ended_ns[:-1] < end_ns)
    turns_ns = (sent_ns[1:] - ended_ns[:-1])[is_next]
    return _ms(turns_ns, 99) if len(turns_ns) else None


def _tokens_between(requests: Path, start_ns: int, end_ns: int) -> int:
    """Token events that arrived in [start, end) of the wall clock, from ``requests.parquet``."""
    table = pq.read_table(requests, columns=["sent_ns", "arrivals_ns"])
    arrivals = table.column("arrivals_ns").combine_chunks()
    sent_ns = table.column("sent_ns").fill_null(0).to_numpy()
    at_ns = np.repeat(sent_ns, np.diff(arrivals.offsets.to_numpy())) + arrivals.flatten().to_numpy()
    return int(((at_ns >= start_ns) & (at_ns < end_ns)).sum())


def _with_log(figures: Figures, out: Path, log: ServerLog) -> Figures:
    """The same figures against the server's times of the very requests that the summary is about.

    Raises:
        LogError: they are not the same requests.
    """
    summary = json.loads((out / "summary.json").read_text())
    start_ns, end_ns = (_wall_ns(summary["window"][name]) for name in ("start", "end"))
    columns = ["scheduled_ns", "sent_ns", "outcome", "local_port", "arrivals_ns"]
    table = pq.read_table(out / "requests.parquet", columns=columns)
    scheduled_ns = table.column("scheduled_ns").to_numpy()
    ok = np.array(table.column("outcome").to_pylist()) == "ok"
    table = table.filter(ok & (scheduled_ns >= start_ns) & (scheduled_ns < end_ns))
    if len(table) != summary["latency_ms"]["ttft"]["n"]:
        raise LogError(
            f"the summary is about {summary['latency_ms']['ttft']['n']} requests, not {len(table)}"
        )
    rows = log.rows_of(table.column("local_port").to_numpy(), table.column("sent_ns").to_numpy())
    arrivals = table.column("arrivals_ns").combine_chunks().flatten().to_numpy().reshape(len(table), TOKENS)
    true_ttft, true_gaps = log.ttft_ns[rows], np.diff(log.written_ns[rows], axis=1)
    in_window = (log.all_written_ns >= start_ns) & (log.all_written_ns < end_ns)
    truth = replace(
        figures.truth,
        times=true_times(log.arrived_ns[rows], log.written_ns[rows]),
        tokens_per_s=float(in_window.sum()) / ((end_ns - start_ns) * 1e-9),
        write_us=_ms(log.took_ns, 99) * 1e3,
    )
    pairs = Pairs(
        requests=len(rows),
        ttft_p99=_ms(np.abs(arrivals[:, 0] - true_ttft), 99),
        itl_p99=_ms(np.abs(np.diff(arrivals, axis=1) - true_gaps), 99),
    )
    return replace(figures, truth=truth, pairs=pairs)


def true_times(arrived_ns: NDArray[np.int64], written_ns: NDArray[np.int64]) -> Times:
    """The server's own times of these requests."""
    ttft_ns, gaps_ns = written_ns[:, 0] - arrived_ns, np.diff(written_ns, axis=1)
    return Times(
        ttft_p50=_ms(ttft_ns, 50),
        ttft_p99=_ms(ttft_ns, 99),
        tpot_p50=_ms(gaps_ns.mean(axis=1), 50),
        itl_p50=_ms(gaps_ns, 50),
        itl_p99=_ms(gaps_ns, 99),
    )


def _wall_ns(iso: str) -> int:
    """Nanoseconds of a time with microseconds."""
    at = datetime.fromisoformat(iso)
    return int(at.replace(microsecond=0).timestamp()) * 10**9 + at.microsecond * 1000


def _ms(ns: NDArray[Any], percent: float) -> float:
    return float(np.percentile(ns, percent)) * 1e-6
