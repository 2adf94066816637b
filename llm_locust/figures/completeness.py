"""Completeness of a run: whether every request that was sent is in it, and what is missing, by worker."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from llm_locust.core.manifest import Manifest, NodeHealth, WorkerFacts, worker_names
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    MOST_ROWS,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    is_defined,
    number,
    plural,
    rows_left_out,
    seconds,
    sentence,
    short,
)
from llm_locust.metrics.structs import SummaryPart, finite, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


#: Workers, and torn files, that are named; summary.json has all.
MOST_NAMED = 10


# --- The processes that made the load, where there is something to say of one of them


#: An event loop that was held for longer, once, is worth a row; so is a clock that is further off.
NOTABLE_HUB_LAG_MS = 50.0
NOTABLE_OFFSET_MS = 1.0


# --- What came of what the workers announced


_WHOLE = "the whole run"
_WORKER = "a worker, the whole run"


class MasterHealth(SummaryPart, frozen=True):
    """How the master was."""

    clock_steps: Annotated[int | None, key("how often its clock was set", "the process, the whole run")]
    hub_lag_ms_p99: Annotated[
        float | None, key("p99 of its event loop's delay, ms", "the process, the whole run")
    ]
    hub_lag_ms_max: Annotated[
        float | None, key("largest delay of its event loop, ms", "the process, the whole run")
    ]
    cpu_percent_max: Annotated[
        float | None, key("its CPU, % of a core: the largest mean of 3 s", "the process, the whole run")
    ]
    rss_mib_max: Annotated[
        float | None, key("its largest resident memory, MiB", "the process, the whole run")
    ]
    steal_percent: Annotated[float | None, key("as `client.steal_percent_max`", "the process, the whole run")]
    throttled_percent: Annotated[
        float | None, key("as `client.throttled_percent_max`", "the process, the whole run")
    ]
    run_queue_percent: Annotated[
        float | None, key("as `client.run_queue_percent_max`", "the process, the whole run")
    ]


class WorkerCompleteness(SummaryPart, frozen=True):
    """What one worker had, what came of it, and how it was."""

    id: Annotated[str, key("its id", _WORKER)]
    index: Annotated[int, key("its number", _WORKER)]
    state: Annotated[str, key("what became of it: `running`, `done`, `left` or `lost`", _WORKER)]
    late: Annotated[bool, key("it joined after the start", _WORKER)]
    joined_s: Annotated[float | None, key("when it joined, s after the start", _WORKER)]
    heard_s: Annotated[float | None, key("when it was last heard, s after the start", _WORKER)]
    announced: Annotated[
        int | None, key("records that it said it had made; null where it never said", _WORKER)
    ]
    received: Annotated[int, key("records of it that the master has", _WORKER)]
    missing: Annotated[int, key("announced − received", _WORKER)]
    in_flight: Annotated[int, key("requests that it had under way when it was last heard", _WORKER)]
    unrecorded: Annotated[int, key("requests of it without a record", _WORKER)]
    batches: Annotated[int, key("batches that it announced", _WORKER)]
    batches_received: Annotated[str | None, key("numbers of the batches that came", _WORKER)]
    resent: Annotated[int, key("batches of it that came more than once", _WORKER)]
    dropped: Annotated[int, key("records that neither its disk nor its memory could hold", _WORKER)]
    held_back: Annotated[int, key("requests of it that waited for `--max-in-flight`", _WORKER)]
    unsent: Annotated[int, key("requests of it that were due and were never sent", _WORKER)]
    clock_offset_ms: Annotated[float | None, key("clock offset, ms", _WORKER)]
    clock_error_ms: Annotated[float | None, key("clock error, ms", _WORKER)]
    clock_steps: Annotated[int | None, key("how often its clock was set", _WORKER)]
    hub_lag_ms_p99: Annotated[float | None, key("p99 of its event loop's delay, ms", _WORKER)]
    hub_lag_ms_max: Annotated[float | None, key("largest delay of its event loop, ms", _WORKER)]
    cpu_percent_max: Annotated[float | None, key("its CPU, % of a core: the largest mean of 3 s", _WORKER)]
    rss_mib_max: Annotated[float | None, key("its largest resident memory, MiB", _WORKER)]
    steal_percent: Annotated[float | None, key("as `client.steal_percent_max`", _WORKER)]
    throttled_percent: Annotated[float | None, key("as `client.throttled_percent_max`", _WORKER)]
    run_queue_percent: Annotated[float | None, key("as `client.run_queue_percent_max`", _WORKER)]


Node = WorkerCompleteness | MasterHealth


class Completeness(SummaryPart, frozen=True):
    """Whether all of the run is in the records."""

    complete: Annotated[
        bool,
        key("nothing is missing: see [completeness](definitions.md#validity-of-the-measurement)", _WHOLE),
    ]
    cut_short: Annotated[
        bool, key("a fault ended the run before its time, or the end of its load was never recorded", _WHOLE)
    ]
    workers_expected: Annotated[int, key("number of workers that were asked for", _WHOLE)]
    workers_seen: Annotated[int, key("number of workers that joined", _WHOLE)]
    workers_late: Annotated[int, key("number of workers that joined after the start", _WHOLE)]
    workers_left: Annotated[int, key("number of workers that left before the stop", _WHOLE)]
    workers_lost: Annotated[int, key("number of workers that were lost", _WHOLE)]
    records_announced: Annotated[int, key("number of records that workers said they had made", _WHOLE)]
    records_received: Annotated[int, key("number of records that the master received", _WHOLE)]
    records_stored: Annotated[int, key("number of records that the run has", _WHOLE)]
    records_lost: Annotated[int, key("number of requests without a record, as `requests.lost`", _WHOLE)]
    records_dropped: Annotated[int, key("number of records that neither disk nor memory could hold", _WHOLE)]
    batches_resent: Annotated[int, key("batches that came more than once", _WHOLE)]
    held_back: Annotated[int, key("requests that waited for `--max-in-flight`", _WHOLE)]
    held_back_s_max: Annotated[float, key("the longest wait for `--max-in-flight`, s", _WHOLE)]
    backoff_waits: Annotated[int, key("waits of users after a failed request (`--backoff`)", _WHOLE)]
    backoff_s: Annotated[float, key("sum of these waits: user time without a request, s", _WHOLE)]
    backoff_users_mean: Annotated[
        float | None,
        key("users that waited so at a time: `backoff_s` / duration of the load; null if unknown", _WHOLE),
    ]
    unsent: Annotated[int, key("requests that were due and were never sent", _WHOLE)]
    in_flight_lost: Annotated[int, key("requests that lost workers had under way", _WHOLE)]
    missing: Annotated[dict[str, int], key("records missing, by worker", _WHOLE)]
    lost: Annotated[list[str], key("lost workers", _WHOLE)]
    torn: Annotated[list[str], key("damaged files", _WHOLE)]
    faults: Annotated[
        dict[str, list[str]],
        key("what makes a worker's count of records doubtful, in words, by worker", _WHOLE),
    ]
    messages_dropped: Annotated[
        int, key("messages that did not fit, or came from nobody that the master knows", _WHOLE)
    ]
    messages_dropped_by: Annotated[
        dict[str, dict[str, int]], key("the same by sender and kind of message", _WHOLE)
    ]
    workers: list[WorkerCompleteness]
    master: MasterHealth

    @property
    def names(self) -> dict[str, str]:
        """Id of each worker -> what reports call it."""
        return worker_names(self.workers)


def compute(run: Run) -> Completeness:
    return completeness(run.manifest, run.rows)


def completeness(manifest: Manifest, rows: int) -> Completeness:
    """Announced and received records, over all workers and for each one, by index.

    ``missing`` has each worker that lacks records, ``lost`` each lost one. ``in_flight_lost`` are the
    requests that the lost workers had in flight; they are among ``records_lost``. ``held_back`` are those
    that ``--max-in-flight`` delayed, ``unsent`` those that were due and still waited when the load ended:
    these were never sent, and no record of them is missing. A run of fewer ``rows`` than the master received
    and has not dropped is not complete, nor one of which a worker has ``faults``: what makes its count of
    records doubtful.
    ``backoff_s`` is the time of users of a closed loop that waited after a failed request, and
    ``backoff_users_mean`` how many waited at a time, on average: so many fewer were loading the server.
    ``messages_dropped`` are invalid ones and those of unknown senders, ``messages_dropped_by`` by sender and
    kind.
    """
    workers = sorted(manifest.workers, key=lambda w: (w.index, w.id))
    waited_s = sum(w.backoff_ns for w in workers) * 1e-9
    load_s = math.nan if manifest.stopped_ns is None else (manifest.stopped_ns - manifest.started_ns) * 1e-9
    return Completeness(
        complete=manifest.complete and manifest.had_records(rows) >= manifest.records_received,
        cut_short=manifest.cut_short,
        workers_expected=manifest.workers_expected,
        workers_seen=len(workers),
        workers_late=sum(w.late for w in workers),
        workers_left=sum(w.left for w in workers),
        workers_lost=manifest.workers_lost,
        records_announced=manifest.records_announced,
        records_received=manifest.records_received,
        records_stored=rows,
        records_lost=manifest.requests_lost(rows),
        records_dropped=sum(w.dropped for w in workers),
        batches_resent=sum(w.resent for w in workers),
        held_back=sum(w.held_back for w in workers),
        held_back_s_max=max((w.longest_held_ns for w in workers), default=0) * 1e-9,
        backoff_waits=sum(w.backoff_waits for w in manifest.workers),
        backoff_s=waited_s,
        backoff_users_mean=waited_s / load_s if load_s > 0 else None,
        unsent=sum(w.unsent for w in workers),
        in_flight_lost=sum(w.in_flight for w in workers if w.lost),
        missing={w.id: w.missing for w in sorted(workers, key=lambda w: w.id) if w.missing},
        lost=sorted(w.id for w in workers if w.lost),
        torn=list(manifest.torn),
        faults={w.id: list(w.faults) for w in sorted(workers, key=lambda w: w.id) if w.faults},
        messages_dropped=sum(sum(kinds.values()) for kinds in manifest.messages_dropped.values()),
        messages_dropped_by={name: dict(kinds) for name, kinds in manifest.messages_dropped.items()},
        workers=[_worker(w, manifest) for w in workers],
        master=MasterHealth(clock_steps=manifest.clock_steps, **_health(manifest.master)),
    )


def _worker(worker: WorkerFacts, manifest: Manifest) -> WorkerCompleteness:
    clock = worker.clock
    return WorkerCompleteness(
        id=worker.id,
        index=worker.index,
        state=_state(worker, manifest),
        late=worker.late,
        joined_s=_after_start_s(worker.joined_ns, manifest),
        heard_s=_after_start_s(worker.heard_ns, manifest),
        announced=worker.announced,
        received=worker.received,
        missing=worker.missing,
        in_flight=worker.in_flight,
        unrecorded=worker.unrecorded,
        batches=worker.batches,
        batches_received=worker.received_seqs or None,
        resent=worker.resent,
        dropped=worker.dropped,
        held_back=worker.held_back,
        unsent=worker.unsent,
        clock_offset_ms=None if clock is None else clock.offset_ns * 1e-6,
        clock_error_ms=None if clock is None else clock.error_ns * 1e-6,
        clock_steps=None if clock is None else clock.steps,
        **_health(worker.health),
    )


def _state(worker: WorkerFacts, manifest: Manifest) -> str:
    """State of a worker; until the last record is in, one that is neither lost nor gone is running."""
    if worker.lost:
        return "lost"
    if worker.left:
        return "left"
    return "running" if manifest.ended_ns is None else "done"


def _after_start_s(at_ns: int | None, manifest: Manifest) -> float | None:
    """Seconds after the run's start; below 0 for a worker that was there before."""
    return None if at_ns is None else (at_ns - manifest.started_ns) * 1e-9


#: Keys that a worker and the master have of their process.
_HEALTH = tuple(name for name in MasterHealth.__struct_fields__ if name != "clock_steps")


def _health(health: NodeHealth) -> dict[str, float | None]:
    return {name: finite(getattr(health, name)) for name in _HEALTH}


_SEQS_LENGTH = 60


def show(summary: "Summary") -> Section:
    """Whether every worker was there to the end, and everything it had under way is in the run."""
    part = summary.completeness
    notable = Line(_notable(part, summary.is_open_loop), Tone.FAINT)
    if part.complete:
        every = "all " if part.records_received > 1 else ""
        records = f"{every}{plural(part.records_received, 'record')}"
        text = f"complete: {records} of {plural(part.workers_seen, 'worker')}"
        short = list(_cut_short(summary, part))
        lines = (*short, Line(text, Tone.GOOD), *([notable] if notable.text else []), *_backoff_remark(part))
        return Section("Records", lines, alarm=bool(short), key="records")
    facts = [
        *_records(summary, part),
        *_workers(part),
        notable,
        *_backoff_remark(part),
        *_by_worker(part),
        *_faults(part),
        *_torn(part),
    ]
    headline = Line("INCOMPLETE: the numbers below cover only part of the run", Tone.BAD)
    return Section(
        "Records",
        (headline, *_cut_short(summary, part), *(fact for fact in facts if fact.text)),
        alarm=True,
        key="records",
    )


def _notable(part: Completeness, open_loop: bool) -> str:
    """What happened on the way and is no loss, in one line; empty where nothing did."""
    late, left, resent = part.workers_late, part.workers_left, part.batches_resent
    held, unsent, gone = part.held_back, part.unsent, left or part.workers_lost
    dropped = part.messages_dropped
    longest = seconds(part.held_back_s_max)
    no_share = " (no part of the schedule)" if open_loop else ""
    return sentence(
        [
            f"{plural(late, 'worker')} joined late{no_share}" if late else "",
            f"{plural(left, 'worker')} left before the stop" if left else "",
            "requests scheduled for a worker that is gone were not sent" if gone and open_loop else "",
            f"{plural(held, 'request')} held back by --max-in-flight, {longest} at most" if held else "",
            f"{plural(unsent, 'request')} due and not sent by the end" if unsent else "",
            f"{plural(resent, 'batch', 'batches')} resent" if resent else "",
            f"{plural(dropped, 'message')} dropped (malformed, or from unknown senders)" if dropped else "",
        ]
    )


def _backoff_remark(part: Completeness) -> Iterator[Line]:
    """How much less load than the users asked for there was, because users waited after failed requests."""
    if not part.backoff_waits:
        return
    mean = part.backoff_users_mean
    idle = "" if mean is None else f"; {number(mean)} users at a time, on average, sent nothing"
    waits = plural(part.backoff_waits, "wait")
    yield Line(
        f"back-off: {waits} after failed requests, {seconds(part.backoff_s)} of user time{idle}", Tone.WARN
    )


def _cut_short(summary: "Summary", part: Completeness) -> Iterator[Line]:
    if part.cut_short:
        reason = clean(summary.run.stop_reason or "unknown reason")
        yield Line(f"CUT SHORT: {reason}", Tone.BAD)


def _records(summary: "Summary", part: Completeness) -> Iterator[Line]:
    announced, received = part.records_announced, part.records_received
    yield Line(f"{count(received)} of {count(announced)} announced records were received")
    stored = part.records_stored
    if stored < received:
        yield Line(
            f"the run has {count(stored)} of the {plural(received, 'record')} that were received", Tone.BAD
        )
    if dropped := part.records_dropped:
        yield Line(f"{plural(dropped, 'record')} dropped: neither disk nor memory could hold them")
    if lost := part.records_lost:
        judged = summary.goodput.slo
        meaning = (
            "they count as not good, and are in no other number" if judged else "they are in no number below"
        )
        yield Line(f"{plural(lost, 'request')} without a record (lost): {meaning}")


def _workers(part: Completeness) -> Iterator[Line]:
    expected, seen = part.workers_expected, part.workers_seen
    yield Line(f"{plural(seen, 'worker')}, {count(expected)} expected, {count(part.workers_lost)} lost")


def _by_worker(part: Completeness) -> Iterator[Line]:
    """One line for each worker that lacks something, those that lack most first."""
    lacking = sorted(filter(_is_lacking, part.workers), key=lambda w: -w.unrecorded)
    for worker in lacking[:MOST_NAMED]:
        yield Line(f"{part.names[worker.id]}: {sentence(list(_lacks(worker)), ', ')}", verbatim=True)
    yield from _others(lacking, "worker")


def first_loss(part: Completeness) -> str:
    """The worker that lacks most, and what; empty where none lacks anything."""
    lacking = sorted(filter(_is_lacking, part.workers), key=lambda w: -w.unrecorded)
    if not lacking:
        return ""
    more = f", and {plural(len(lacking) - 1, 'other worker')}" if len(lacking) > 1 else ""
    name = part.names[lacking[0].id]
    return f"{name}: {sentence(list(_lacks(lacking[0])), ', ')}{more}"


def _is_lacking(worker: WorkerCompleteness) -> bool:
    return worker.state == "lost" or bool(worker.unrecorded or worker.dropped)


def _lacks(worker: WorkerCompleteness) -> Iterator[str]:
    if worker.state == "lost":
        yield "lost" + _when(worker.heard_s)
    if in_flight := worker.in_flight:
        yield f"{plural(in_flight, 'request')} in flight"
    if missing := worker.missing:
        yield f"{plural(missing, 'record')} missing"
    if dropped := worker.dropped:
        yield f"{plural(dropped, 'record')} dropped"
    if seqs := worker.batches_received:
        yield f"batches {short(clean(seqs), _SEQS_LENGTH)} received"


def _when(heard_s: float | None) -> str:
    if heard_s is None:
        return ""
    return f" {seconds(abs(heard_s))} {'after' if heard_s >= 0 else 'before'} the start"


def _faults(part: Completeness) -> Iterator[Line]:
    """What makes a worker's count of records doubtful."""
    faults = [(name, text) for name, texts in part.faults.items() for text in texts]
    for name, text in faults[:MOST_NAMED]:
        yield Line(f"{part.names.get(name, clean(name))}: {clean(text)}", Tone.BAD, verbatim=True)
    yield from _others(faults, "fault")


def _torn(part: Completeness) -> Iterator[Line]:
    torn = part.torn
    yield from (Line(f"torn: {clean(text)}", verbatim=True) for text in torn[:MOST_NAMED])
    yield from _others(torn, "torn file")


def _others(found: Sequence[object], noun: str) -> Iterator[Line]:
    more = len(found) - MOST_NAMED
    if more > 0:
        yield Line(f"and {plural(more, f'more {noun}')} (summary.json has all)", Tone.FAINT)


_COLUMNS = (
    Column("Node", left=True),
    Column("records"),
    Column("offset ms", over="clock"),
    Column("set", over="clock"),
    Column("p99", over="hub lag ms"),
    Column("max", over="hub lag ms"),
    Column("%", over="CPU"),
    Column("MiB", over="RSS"),
    Column("dropped"),
)


def nodes(summary: "Summary") -> Section | None:
    """The nodes that were late, whose clock is off or was set, or that dropped records; None without any."""
    part = summary.completeness
    workers = part.workers
    found = [w for w in workers if _is_notable(w)]
    master = part.master
    rows = [_row(master, "master", "")] if _is_notable(master) else []
    rows += [_row(w, part.names[w.id], count(w.received)) for w in found]
    if not rows:
        return None
    notes = _notes(len(rows), len(workers) - len(found))
    table = Table(_COLUMNS, tuple(rows[:MOST_ROWS])).without_empty()
    return Section("Nodes", table=table, notes=tuple(notes), key="nodes")


def _is_notable(node: Node) -> bool:
    return bool(
        (node.hub_lag_ms_max or 0) > NOTABLE_HUB_LAG_MS
        or node.clock_steps
        or (isinstance(node, WorkerCompleteness) and (node.dropped or _is_off(node)))
    )


def _is_off(worker: WorkerCompleteness) -> bool:
    return abs(worker.clock_offset_ms or 0) > max(NOTABLE_OFFSET_MS, worker.clock_error_ms or 0)


def _row(node: Node, name: str, records: str) -> TableRow:
    return TableRow(
        (
            name,
            records,
            _offset(node),
            count(node.clock_steps) if node.clock_steps else "",
            number(node.hub_lag_ms_p99),
            number(node.hub_lag_ms_max),
            number(node.cpu_percent_max),
            number(node.rss_mib_max),
            count(node.dropped) if isinstance(node, WorkerCompleteness) and node.dropped else "",
        )
    )


def _offset(node: Node) -> str:
    if not isinstance(node, WorkerCompleteness) or node.clock_offset_ms is None:
        return ""
    error = number(node.clock_error_ms)
    decimals = len(error.partition(".")[2]) if is_defined(node.clock_error_ms) else 3
    offset = number(node.clock_offset_ms)
    if len(offset.partition(".")[2]) > decimals:
        offset = f"{node.clock_offset_ms:,.{decimals}f}"
    return f"{offset} ± {error}"


def _notes(rows: int, others: int) -> Iterator[Line]:
    yield from rows_left_out(rows)
    if others > 0:
        yield Line(
            f"{plural(others, 'other worker')}: loop never blocked for over {NOTABLE_HUB_LAG_MS:g} ms, "
            f"clock off by no more than its error or {NOTABLE_OFFSET_MS:g} ms",
            Tone.FAINT,
        )
