"""Is all of the run in the report, and if not: what is missing, and at which worker?"""

from collections.abc import Iterator, Sequence

from llm_locust.metrics.summary_types.completeness import Completeness, WorkerCompleteness
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, count, number, plural, seconds, sentence, short

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
