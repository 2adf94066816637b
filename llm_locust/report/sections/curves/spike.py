"""Spikes of the load: what they cost, and how long it took until all was as before."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.search import Spike, SpikeFacts, SpikePart, SpikeRecovery
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent, plural, seconds

#: Spikes that are shown; summary.json has all.
MOST = 10

_NAMES = {"ttft": "TTFT", "e2el": "E2EL"}


def spikes(summary: Summary) -> Iterator[Section]:
    """A table of the parts of each spike, with the time to recover; nothing in a run without one."""
    found = summary.spike
    if found is None:
        return
    for i, each in enumerate(found.spikes[:MOST]):
        yield _section(found, each, key=f"spike{i}" if i else "")


def _section(found: SpikeFacts, each: Spike, key: str) -> Section:
    name = _NAMES.get(found.latency, clean(found.latency))
    over = f"{name} ms"
    columns = (
        *(Column("Spike", left=True), Column("requests"), Column("missed"), Column("good")),
        *(Column("p50", over=over), Column("p99", over=over)),
    )
    rows = (
        _row(f"before, {number(each.base)} requests/s", each.before),
        _row(f"peak, {number(each.peak)} for {seconds(each.seconds)}", each.during),
        _row("until all was back", each.recovering),
        _row("after that", each.after),
    )
    return Section(
        f"Spike at {seconds(each.at_s)}",
        tuple(_lines(found, each, name)),
        Table(columns, rows),
        tuple(_notes(found, each)),
        stacked=True,
        key=key,
    )


def _row(name: str, part: SpikePart) -> TableRow:
    shown = (number(part.p50_ms), number(part.p99_ms))
    return TableRow((name, count(part.requests), count(part.missed), percent(part.good), *shown))


def _lines(found: SpikeFacts, each: Spike, name: str) -> Iterator[Line]:
    if each.good.why is not None and each.good.why == each.latency.why:
        yield Line(f"no time to recover: {clean(each.good.why)}", Tone.WARN)
        return
    what = "the share of good requests" if found.judged_by == "slo" else "the share of requests that succeed"
    yield _line(what, each.good)
    limit = "" if each.latency_limit_ms is None else f" ({number(each.latency_limit_ms)} ms, its p95 before)"
    yield _line(f"{name} from scheduled{limit}", each.latency)


def _line(what: str, found: SpikeRecovery) -> Line:
    if found.recovered_s == 0:
        return Line(f"{what} never fell after the peak", Tone.GOOD)
    if found.recovered_s is not None:
        return Line(f"{what} was back {seconds(found.recovered_s)} after the peak")
    if found.at_least_s is not None:
        return Line(
            f"{what} was NOT back by the end of the load: it takes at least {seconds(found.at_least_s)}, a "
            "lower bound",
            Tone.BAD,
        )
    return Line(f"{what}: no time to recover: {clean(found.why or UNDEFINED)}", Tone.WARN)


def _notes(found: SpikeFacts, each: Spike) -> Iterator[Line]:
    both = each.during.requests + each.recovering.requests
    yield Line(
        f"{count(each.missed)} of {count(both)} requests missed from the peak's begin until all was back"
    )
    if found.judged_by == "outcome":
        yield Line("no SLO: good requests are all that did not fail", Tone.FAINT)
    if found.unrecorded:
        missing = plural(found.unrecorded, "request")
        yield Line(f"{missing} without a record: missed is a lower bound, and so is the time", Tone.WARN)
    if (more := len(found.spikes) - MOST) > 0 and each is found.spikes[MOST - 1]:
        yield Line(f"{plural(more, 'spike')} more in summary.json", Tone.FAINT)
