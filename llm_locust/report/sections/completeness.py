"""Is all of the run in the report, and if not: what is missing, and at which worker?"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.sections.measures import is_open_loop
from llm_locust.report.text import clean, count, plural, seconds, sentence, short

Part = Mapping[str, Any]

#: Workers, and torn files, that are named; summary.json has all.
MOST_NAMED = 10

_SEQS_LENGTH = 60


def completeness(summary: Part) -> Section:
    """Whether every worker was there to the end, and everything it had under way is in the run."""
    part = summary.get("completeness") or {}
    notable = Line(_notable(part, is_open_loop(summary)), Tone.FAINT)
    if part.get("complete"):
        text = (
            f"complete: all {count(part.get('records_received'))} records of "
            f"{plural(part.get('workers_seen'), 'worker')}"
        )
        short = list(_cut_short(summary, part))
        lines = (*short, Line(text, Tone.GOOD), *([notable] if notable.text else []))
        return Section("Records", lines, alarm=bool(short))
    facts = [
        *_records(summary, part),
        *_workers(part),
        notable,
        *_by_worker(part),
        *_faults(part),
        *_torn(part),
    ]
    headline = Line("INCOMPLETE: the numbers below are of a part of the run", Tone.BAD)
    return Section(
        "Records",
        (headline, *_cut_short(summary, part), *(fact for fact in facts if fact.text)),
        alarm=True,
    )


def _notable(part: Part, open_loop: bool) -> str:
    """What happened on the way and is no loss, in one line; empty where nothing did."""
    late, left, resent = (part.get(key) for key in ("workers_late", "workers_left", "batches_resent"))
    held, unsent, gone = part.get("held_back"), part.get("unsent"), left or part.get("workers_lost")
    dropped = part.get("messages_dropped")
    longest = seconds(part.get("held_back_s_max"))
    no_share = " (no part of the schedule)" if open_loop else ""
    return sentence(
        [
            f"{plural(late, 'worker')} joined late{no_share}" if late else "",
            f"{plural(left, 'worker')} left before the stop" if left else "",
            "what was scheduled for a worker that is gone was not sent" if gone and open_loop else "",
            f"{plural(held, 'request')} held back by --max-in-flight, {longest} at most" if held else "",
            f"{plural(unsent, 'request')} due and not sent by the end" if unsent else "",
            f"{plural(resent, 'batch', 'batches')} resent" if resent else "",
            f"{plural(dropped, 'message')} dropped, that did not fit or came from strangers"
            if dropped
            else "",
        ]
    )


def _cut_short(summary: Part, part: Part) -> Iterator[Line]:
    if part.get("cut_short"):
        reason = clean((summary.get("run") or {}).get("stop_reason") or "the reason is not known")
        yield Line(f"CUT SHORT: {reason}", Tone.BAD)


def _records(summary: Part, part: Part) -> Iterator[Line]:
    announced, received = part.get("records_announced"), part.get("records_received")
    yield Line(f"{count(received)} of {count(announced)} announced records came")
    stored = part.get("records_stored")
    if stored is not None and received is not None and stored < received:
        yield Line(f"the run has {count(stored)} of the {plural(received, 'record')} that came", Tone.BAD)
    if dropped := part.get("records_dropped"):
        yield Line(f"{plural(dropped, 'record')} dropped: neither disk nor memory could hold them")
    if lost := part.get("records_lost"):
        judged = (summary.get("goodput") or {}).get("slo")
        meaning = (
            "they count as not good, and in no other number" if judged else "they are in no number below"
        )
        yield Line(f"{plural(lost, 'request')} without a record (lost): {meaning}")


def _workers(part: Part) -> Iterator[Line]:
    expected, seen = part.get("workers_expected"), part.get("workers_seen")
    yield Line(f"{count(seen)} of {plural(expected, 'worker')} seen, {count(part.get('workers_lost'))} lost")


def _by_worker(part: Part) -> Iterator[Line]:
    """One line for each worker that lacks something, those that lack most first."""
    lacking = sorted(
        filter(_is_lacking, part.get("workers") or ()), key=lambda w: -(w.get("unrecorded") or 0)
    )
    for worker in lacking[:MOST_NAMED]:
        yield Line(f"worker {clean(worker.get('id'))}: {sentence(list(_lacks(worker)), ', ')}", verbatim=True)
    yield from _others(lacking, "worker")


def _is_lacking(worker: Part) -> bool:
    return worker.get("state") == "lost" or bool(worker.get("unrecorded") or worker.get("dropped"))


def _lacks(worker: Part) -> Iterator[str]:
    if worker.get("state") == "lost":
        yield "lost" + _when(worker.get("heard_s"))
    if in_flight := worker.get("in_flight"):
        yield f"{plural(in_flight, 'request')} in flight"
    if missing := worker.get("missing"):
        yield f"{plural(missing, 'record')} missing"
    if dropped := worker.get("dropped"):
        yield f"{plural(dropped, 'record')} dropped"
    if seqs := worker.get("batches_received"):
        yield f"batches {short(clean(seqs), _SEQS_LENGTH)} came"


def _when(heard_s: float | None) -> str:
    if heard_s is None:
        return ""
    return f" {seconds(abs(heard_s))} {'after' if heard_s >= 0 else 'before'} the start"


def _faults(part: Part) -> Iterator[Line]:
    """What makes a worker's count of records doubtful."""
    faults = [(name, text) for name, texts in (part.get("faults") or {}).items() for text in texts]
    for name, text in faults[:MOST_NAMED]:
        yield Line(f"worker {clean(name)}: {clean(text)}", Tone.BAD, verbatim=True)
    yield from _others(faults, "fault")


def _torn(part: Part) -> Iterator[Line]:
    torn = part.get("torn") or ()
    yield from (Line(f"torn: {clean(text)}", verbatim=True) for text in torn[:MOST_NAMED])
    yield from _others(torn, "torn file")


def _others(found: Sequence[object], noun: str) -> Iterator[Line]:
    more = len(found) - MOST_NAMED
    if more > 0:
        yield Line(f"and {plural(more, f'more {noun}')} (summary.json has all)", Tone.FAINT)
