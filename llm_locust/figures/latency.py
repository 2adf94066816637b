"""Latencies: the tables of all requests, and their intervals."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.live_check import remarks as live_check
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.text import (
    bounds,
    clean,
    count,
    duration_ms,
    estimate,
    is_cut,
    mark,
    meaning_in,
    number,
    percent,
    sentence,
)
from llm_locust.metrics.catalogue import LATENCY, View, shown_in
from llm_locust.metrics.structs import LatencyTable

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_Statistic = tuple[str, str, bool]

#: Keys of summary.json, their heads, and whether they need a wide table.
_STATISTICS: tuple[_Statistic, ...] = (
    ("mean", "mean", False),
    ("std", "std", True),
    ("min", "min", True),
    ("p50", "p50", False),
    ("p75", "p75", True),
    ("p90", "p90", False),
    ("p95", "p95", False),
    ("p99", "p99", False),
    ("p99_9", "p99.9", True),
    ("max", "max", True),
)


def compute(run: Run) -> dict[str, LatencyTable]:
    return run.whole.latency_ms


def adjusted(run: Run) -> dict[str, LatencyTable]:
    return run.whole.latency_ms_adjusted


def show(summary: "Summary") -> Section | None:
    """The latency table in milliseconds, of ``ok`` requests; a percentile of too few is marked. None where
    no request has a latency."""
    part = summary.latency_ms
    statistics = _statistics(summary)
    columns = (
        Column("Latency, ms", left=True),
        *(Column(head, wide=wide) for _, head, wide in statistics),
        Column("n"),
    )
    cut = is_cut(summary.requests.cut_share)
    rows = tuple(
        _statistics_row(label, part[key], statistics, cut=cut) for key, label in _latency_keys(summary)
    )
    if not rows:
        return None
    table = Table(columns, rows)
    notes = [
        *(() if summary.tokens.unread.is_common else unread(summary)),
        *_adjusted(summary),
        *_network(part["connect"], part["rtt"]),
        *_approximate(part["itl"]),
        *live_check(summary.live_check),
        *marks(table),
    ]
    return Section("Latency", table=table, notes=tuple(notes), key="latency")


def marks(table: Table) -> tuple[Line, ...]:
    """What the marks of a table's figures mean."""
    return tuple(meaning_in(table))


def intervals(summary: "Summary") -> Section | None:
    """The 95 % interval of each percentile of the latency table; None where there is none."""
    part = summary.latency_ms
    places = [s for s in _statistics(summary) if s[0].startswith("p")]
    rows = tuple(
        TableRow((label, *(bounds(part[key], place) for place, *_ in places)))
        for key, label in _latency_keys(summary)
        if any(part[key].intervals().values())
    )
    if not rows:
        return None
    columns = (Column("95 %, ms", left=True), *(Column(head, wide=wide) for _, head, wide in places))
    return Section("Intervals", table=Table(columns, rows).without_empty(UNDEFINED), key="intervals")


def _statistics(summary: "Summary") -> tuple[_Statistic, ...]:
    """The usual columns, or those of the percentiles that were asked for."""
    asked = summary.analysis.percentiles if summary.analysis else None
    if not asked:
        return _STATISTICS
    plain = [statistic for statistic in _STATISTICS if not statistic[0].startswith("p")]
    places = [(key, key.replace("_", "."), False) for key in asked]
    return (*plain[:-1], *places, plain[-1])


def _latency_keys(summary: "Summary") -> Iterator[tuple[str, str]]:
    part = summary.latency_ms
    known = {m.key: part[m.key].known.n + part[m.key].known.censored for m in shown_in(View.REPORT)}
    for metric in shown_in(View.REPORT):
        if metric.is_from_scheduled and not summary.is_open_loop:
            continue
        if not known[metric.key]:
            continue  # nothing to measure it by, as the first token of answers that are not streamed
        if not _says_nothing(metric.key, summary):
            yield metric.key, metric.label


#: A latency within this share of another, or lengths within this share of each other, are the same.
_ALIKE = 0.02


def _says_nothing(key: str, summary: "Summary") -> bool:
    """Whether a row would be another one once more."""
    part = summary.latency_ms
    if key == "ttfo":
        return part["ttfo"] == part["ttft"]
    if key == "ttft_started":
        return all(
            _are_alike(part[key].figure(place), part["ttft"].figure(place)) for place in ("p50", "p99")
        )
    if key == "prefill_ms_per_1k_input":  # of prompts of one length it is TTFT in another unit
        return _are_alike(summary.tokens.input.figure("p50"), summary.tokens.input.figure("p99"))
    return False


def _are_alike(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return abs(value - other) <= _ALIKE * max(value, other)


def _statistics_row(
    label: str, stats: LatencyTable, statistics: tuple[_Statistic, ...], *, cut: bool
) -> TableRow:
    cells = (estimate(stats, key, cut=cut) for key, *_ in statistics)
    return TableRow((label, *cells, count(stats.known.n)))


def _approximate(itl: LatencyTable) -> Iterator[Line]:
    """The stated error of ITL percentiles, where the gaps were too many to be kept."""
    error = itl.known.relative_error
    if error is not UNSET and error:
        yield Line(f"ITL percentiles within {percent(error)} (counted in buckets)", Tone.FAINT)


def buffered(summary: "Summary") -> Iterator[Line]:
    """That something on the way held the stream back, and what that means; nothing where it did not."""
    if summary.tokens.is_buffered:
        gap = number(summary.latency_ms["itl"].known.p50)
        yield Line(
            f"the stream was buffered on the way: TTFT, TPOT and ITL are not the server's (median gap {gap} "
            f"ms, {number(summary.tokens.tokens_per_event)} tokens per event); llm-locust doctor URL names "
            "the proxy's settings. A server that decodes several tokens a step, and sends an event for each, "
            "looks the same",
            Tone.WARN,
        )


def unread(summary: "Summary") -> Iterator[Line]:
    """That tokens came in a field that is not read."""
    part = summary.tokens.unread
    if part.field is not None:
        yield Line(
            f'events have text in "{clean(part.field)}", which is not read ({percent(part.share)} of the '
            "answers): TTFT begins after it, and its tokens are not in TPOT and ITL",
            Tone.WARN,
            verbatim=True,
        )


def _adjusted(summary: "Summary") -> Iterator[Line]:
    """The percentiles in which each failed request stands as +∞, where there are such requests."""
    if not summary.requests.failed:
        return
    part = summary.latency_ms_adjusted
    figures = [
        f"{LATENCY[key].label} p50 {_or_beyond(part[key], 'p50')}, p99 {_or_beyond(part[key], 'p99')}"
        for key in ("ttft", "e2el")
    ]
    yield Line(f"failures counted as infinite: {sentence(figures)}", Tone.FAINT)


def _or_beyond(stats: LatencyTable, key: str) -> str:
    return "> max" if key in stats.known.beyond else estimate(stats, key)


def _network(connect: LatencyTable, rtt: LatencyTable) -> Iterator[Line]:
    opened = count(connect.known.n)
    facts = [
        f"connect p50 {_short(connect)} ({opened} new connections)" if connect.known.n else "",
        f"network RTT p50 {_short(rtt)}" if rtt.known.n else "",
    ]
    if any(facts):
        yield Line(sentence(facts), Tone.FAINT)


def _short(stats: LatencyTable) -> str:
    return f"{mark(stats, 'p50')}{duration_ms(stats.figure('p50'))}"
