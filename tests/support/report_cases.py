"""A run as a whole, small and made by rule: what the tests of reports and uploads stand on."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from metrics_cases import ORIGIN_NS, batch, failed, request
from summaries import summarise, typed

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import ClockFacts, Manifest, NodeHealth, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.summary import Summary
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    FrameHeader,
    FrameLog,
    create_run_dir,
    encode_frame,
    write_manifest,
    write_requests,
)
from llm_locust.store.files import read_manifest

SECONDS = 10


def records(ok: int = 95, bad: int = 5, **fields: Any) -> list[RequestRecord]:
    """``ok`` answers of 5 tokens, 20 ms apart, whose TTFT grows from 50 ms on; then ``bad`` failures."""
    every = SECONDS / (ok + bad)
    answers = [
        request(
            i * every,
            tuple(0.05 + 0.001 * i + 0.02 * k for k in range(5)),
            name="chat" if i % 2 else "search",
            replica=f"replica-{i % 3}",
            rtt_ns=40_000,
            **fields,
        )
        for i in range(ok)
    ]
    return answers + [failed((ok + i) * every, replica="replica-0") for i in range(bad)]


def held_back(made: list[RequestRecord]) -> list[RequestRecord]:
    """The same, with all events of an answer at the time of its last."""
    return [replace(r, arrivals_ns=np.full_like(r.arrivals_ns, r.arrivals_ns[-1:])) for r in made]


def manifest(rows: int, **facts: Any) -> Manifest:
    worker = WorkerFacts(
        id="w1", index=0, announced=rows, received=rows, health=NodeHealth(cpu_percent_max=40.0)
    )
    known = Manifest(
        id="20261121-first",
        name="first",
        started_ns=ORIGIN_NS,
        stopped_ns=ORIGIN_NS + SECONDS * 1_000_000_000,
        host="http://127.0.0.1:8000",
        model="tiny",
        slo="ttft=100ms tpot=50ms",
        workers=[worker],
    )
    return replace(known, **facts)


def summary(made: list[RequestRecord] | None = None, **facts: Any) -> dict[str, Any]:
    """The summary of ``made`` (:func:`records` without it), by a manifest with these facts."""
    if made is None and not facts:
        return deepcopy(_usual())
    rows = batch(*(records() if made is None else made))
    return summarise(rows, manifest(len(rows), **facts))


@cache
def _usual() -> dict[str, Any]:
    return summary(records())


def told(**sections: Any) -> Summary:
    """The summary of :func:`records`, with these sections instead of its own."""
    return typed({**summary(), **sections})


def write_run(path: Path, made: list[RequestRecord] | None = None, **facts: Any) -> Path:
    """A run directory as a swarm leaves it, before its report."""
    rows = batch(*(records() if made is None else made))
    create_run_dir(path)
    write_manifest(path, manifest(len(rows), **facts))
    write_requests(path / REQUESTS_FILE, [rows])
    return path


def lost_records(rows: int, missing: int) -> list[WorkerFacts]:
    """A worker that went away and took records with it."""
    return [WorkerFacts(id="w1", index=0, announced=rows + missing, received=rows, lost=True)]


def seen_worker(index: int = 0, rows: int = 100, *, hub_lag_ms: float = 4.0, **facts: Any) -> WorkerFacts:
    """A worker of which all is known, its loop held for ``hub_lag_ms`` once, and that lacks nothing."""
    known: dict[str, Any] = {
        "announced": rows,
        "received": rows,
        "clock": clock(),
        "health": NodeHealth(
            hub_lag_ms_p99=0.5, hub_lag_ms_max=hub_lag_ms, cpu_percent_max=40.0, rss_mib_max=120.0
        ),
    }
    return WorkerFacts(id=f"w{index + 1}", index=index, **{**known, **facts})


def clock(offset_ms: float = 0.1, error_ms: float = 0.2, steps: int = 0) -> ClockFacts:
    offset_ns = round(offset_ms * 1e6)
    return ClockFacts(
        offset_ns=offset_ns,
        error_ns=round(error_ms * 1e6),
        least_offset_ns=offset_ns,
        most_offset_ns=offset_ns,
        exchanges=8,
        steps=steps,
    )


def write_frames(run: Path, made: list[RequestRecord] | None = None, times: int = 1, **facts: Any) -> Path:
    """A run of ``made`` (:func:`report_cases.records` without it) in four batches, sent ``times`` over."""
    rows = records() if made is None else made
    size = -(-len(rows) // 4)
    batches = [RecordBatch.from_records(rows[i : i + size], "w1") for i in range(0, len(rows), size)]
    payloads = [(len(batch), batch.to_bytes()) for batch in batches]
    run.mkdir(parents=True, exist_ok=True)
    log = FrameLog(run / FRAMES_FILE)
    for seq, (n, payload) in enumerate(payloads * times):
        log.append(encode_frame(FrameHeader("20261121-first", "w1", seq, n), payload))
    log.close()
    write_manifest(run, manifest(len(rows) * times, **facts))
    return run


@dataclass(slots=True)
class Pauses:
    """How long was waited between attempts; at the n-th pause the n-th deed is done."""

    deeds: list[Callable[[], None]] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)

    def __call__(self, pause_s: float) -> None:
        self.taken_s.append(pause_s)
        if len(self.taken_s) <= len(self.deeds):
            self.deeds[len(self.taken_s) - 1]()


def finished_run(path: Path) -> Path:
    """A run that has ended, with a spool that was left behind, a file half written and a link."""
    made = write_run(path)
    (made / "report.md").write_text("# Report\n")
    (made / "spool" / "w1").mkdir(parents=True)
    (made / "spool" / "w1" / "000001.frame").write_bytes(b"frame")
    (made / "report.md.part").write_text("half")
    (made / "link").symlink_to(made / "manifest.json")
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def whole(run: Path) -> dict[str, bytes]:
    """What a finished run amounts to elsewhere."""
    return {name: c for name, c in contents(run).items() if not name.endswith(".part") and name != "link"}


def copy(kept: Path, run: Path) -> Path:
    return kept / read_manifest(run).id
