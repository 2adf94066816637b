"""Is all of the run in the report, and if not: what is missing, and at which worker?"""

from collections.abc import Iterator, Sequence

from llm_locust.core.manifest import CalibrationFacts
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    clean,
    count,
    is_defined,
    number,
    percent,
    plural,
    seconds,
    sentence,
    short,
)
from llm_locust.metrics.summary_types.course import CallToServers, FailedCall, Interventions, LiveCheck
from llm_locust.metrics.summary_types.run import (
    ClientCalibration,
    Completeness,
    MasterHealth,
    WorkerCompleteness,
)

# --------------------
# The client's error against a server of known times, in words.
# --------------------


#: Fewest values of which a p99 is said; of fewer the largest is.
FEWEST = 100


def calibration_text(found: CalibrationFacts | ClientCalibration) -> str:
    """One line: how far the times may be off, at which load; or why that is not known."""
    if not found.answers and found.why:
        return f"not calibrated: {short(clean(found.why), 160)}"
    if found.astray or not found.answers:
        astray = f"{count(found.astray)} of {plural(found.answers, 'answer')} not as the server wrote them"
        return f"{astray}; the first: {short(clean(found.why), 160)}" if found.why else astray
    which = "p99" if found.ttft_n >= FEWEST else f"largest of {found.ttft_n}"
    fewer = f" of {count(found.asked)} asked for" if found.streams < found.asked else ""
    load = f"{plural(found.streams, 'stream')}{fewer}, {count(found.tokens_per_s)} tokens/s"
    of = "" if found.workers == 1 else f" (one of {count(found.workers)} workers, on the master's machine)"
    return f"{_within('TTFT', found.ttft_ms)} ({which}) at {load}; {_within('ITL', found.itl_ms)}{of}"


def _within(name: str, error_ms: float | None) -> str:
    return f"{name} not known" if error_ms is None else f"{name} within {max(error_ms, 0.001):.2g} ms"


#: Workers, and torn files, that are named; summary.json has all.
MOST_NAMED = 10

_SEQS_LENGTH = 60


def completeness(summary: Summary) -> Section:
    """Whether every worker was there to the end, and everything it had under way is in the run."""
    part = summary.completeness
    notable = Line(_notable(part, summary.is_open_loop), Tone.FAINT)
    if part.complete:
        text = (
            f"complete: all {count(part.records_received)} records of {plural(part.workers_seen, 'worker')}"
        )
        short = list(_cut_short(summary, part))
        lines = (*short, Line(text, Tone.GOOD), *([notable] if notable.text else []), *_backoff(part))
        return Section("Records", lines, alarm=bool(short))
    facts = [
        *_records(summary, part),
        *_workers(part),
        notable,
        *_backoff(part),
        *_by_worker(part),
        *_faults(part),
        *_torn(part),
    ]
    headline = Line("INCOMPLETE: the numbers below cover only part of the run", Tone.BAD)
    return Section(
        "Records",
        (headline, *_cut_short(summary, part), *(fact for fact in facts if fact.text)),
        alarm=True,
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


def _backoff(part: Completeness) -> Iterator[Line]:
    """How much less load than the users asked for there was, because users waited after failed requests."""
    if not part.backoff_waits:
        return
    mean = part.backoff_users_mean
    idle = "" if mean is None else f"; {number(mean)} users at a time, on average, sent nothing"
    waits = plural(part.backoff_waits, "wait")
    yield Line(
        f"back-off: {waits} after failed requests, {seconds(part.backoff_s)} of user time{idle}", Tone.WARN
    )


def _cut_short(summary: Summary, part: Completeness) -> Iterator[Line]:
    if part.cut_short:
        reason = clean(summary.run.stop_reason or "unknown reason")
        yield Line(f"CUT SHORT: {reason}", Tone.BAD)


def _records(summary: Summary, part: Completeness) -> Iterator[Line]:
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


# --------------------
# What was asked of the servers beside the load, as a section.
# --------------------


TITLE = "Server calls"

#: Replicas that one line names.
MOST_INTERVENTIONS = 5

_WHAT = {
    "/start_profile": "profiler started",
    "/stop_profile": "profiler stopped",
    "/reset_prefix_cache": "prefix cache emptied",
    "/flush_cache": "prefix cache emptied",
}


def interventions(summary: Summary) -> Section | None:
    """None where the run asked nothing of its servers but answers."""
    part = summary.interventions
    lines = tuple(_lines(part))
    return Section(TITLE, lines) if lines else None


def _lines(part: Interventions) -> Iterator[Line]:
    if targets := part.targets:
        yield Line(f"directly to {plural(len(targets), 'target')}, without a balancer")
    if (waited_s := part.ready_s) is not None:
        ready = part.replicas_ready
        yield Line(
            f"{plural(len(ready), 'replica')} waited for, ready within {seconds(waited_s)}", Tone.FAINT
        )
    for call in part.calls:
        yield from _call(call)
    if profiled_s := part.profiled_s:
        yield Line(
            f"a profiler ran in {seconds(profiled_s)} of the window: its cost is part of the latencies",
            Tone.WARN,
        )


def _call(call: CallToServers) -> Iterator[Line]:
    path = clean(call.path)
    what, at = _WHAT.get(path, path), seconds(call.at_s)
    asked, failed = call.asked, call.failed
    yield Line(f"{what} at {at} on {count(call.done)} of {plural(asked, 'replica')}")
    if failed:
        named = ", ".join(map(_named, failed[:MOST_INTERVENTIONS]))
        others = f" and {len(failed) - MOST_INTERVENTIONS} more" if len(failed) > MOST_INTERVENTIONS else ""
        yield Line(f"{path} not done by {named}{others}", Tone.WARN, verbatim=True)


def _named(failed: FailedCall) -> str:
    return f"{clean(failed.target)} ({clean(failed.error or failed.status)})"


# --------------------
# The live view held against the records, in words.
# --------------------


def live_check(part: LiveCheck | None) -> Iterator[Line]:
    """How near the live view's percentiles were, where there was one."""
    if part is None:
        return
    largest = part.largest
    if part.reason:
        yield Line(f"live percentiles not compared: {part.reason}", Tone.FAINT)
    elif part.unequal:
        unequal = ", ".join(part.unequal)
        yield Line(f"the live view and the records have different numbers of samples: {unequal}", Tone.WARN)
    elif largest and part.within is False:
        live, exact = number(largest.live_ms), number(largest.exact_ms)
        yield Line(
            f"live percentiles differ from the records by {percent(largest.difference)} "
            f"({largest.place} {largest.metric.upper()}: live {live}, records {exact} ms)",
            Tone.WARN,
        )
    elif largest:
        yield Line(
            f"live percentiles matched the records to within {percent(largest.difference)}", Tone.FAINT
        )


# --------------------
# The processes that made the load, where there is something to say of one of them.
# --------------------


Node = WorkerCompleteness | MasterHealth

#: An event loop that was held for longer, once, is worth a row; so is a clock that is further off.
NOTABLE_HUB_LAG_MS = 50.0
NOTABLE_OFFSET_MS = 1.0

MOST_ROWS = 20

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


def nodes(summary: Summary) -> Section | None:
    """The nodes that were late, whose clock is off or was set, or that dropped records; None without any."""
    part = summary.completeness
    workers = part.workers
    found = [w for w in workers if _is_notable(w)]
    master = part.master
    rows = [_row(master, "master", "")] if _is_notable(master) else []
    rows += [_row(w, part.names[w.id], count(w.received)) for w in found]
    if not rows:
        return None
    notes = _notes(len(rows) - MOST_ROWS, len(workers) - len(found))
    return Section(
        "Nodes", table=Table(_COLUMNS, tuple(rows[:MOST_ROWS])).without_empty(), notes=tuple(notes)
    )


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


def _notes(more: int, others: int) -> Iterator[Line]:
    if more > 0:
        yield Line(f"{count(more)} more in summary.json", Tone.FAINT)
    if others > 0:
        yield Line(
            f"{plural(others, 'other worker')}: loop never blocked for over {NOTABLE_HUB_LAG_MS:g} ms, "
            f"clock off by no more than its error or {NOTABLE_OFFSET_MS:g} ms",
            Tone.FAINT,
        )
