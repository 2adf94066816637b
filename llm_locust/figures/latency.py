"""Latencies: the tables of all requests, their intervals, and what the live page had made of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import UNSET, Meta

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Count, Measure
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
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
from llm_locust.metrics.catalogue import FORMULAS, LATENCY, LIVE, Begin, End, LatencyMetric, View, shown_in
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Part
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.gaps import PooledGaps
from llm_locust.metrics.stats.censoring import Ascending, ordered, percentile
from llm_locust.metrics.structs import LatencyTable, SummaryPart, key

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
        *remarks(summary.live_check),
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
        if not _repeats(metric, summary):
            yield metric.key, metric.label


#: A latency within this share of another, or lengths within this share of each other, are the same.
_ALIKE = 0.02


def _repeats(metric: LatencyMetric, summary: "Summary") -> bool:
    """Whether its row would be that of TTFT once more."""
    row, ttft = summary.latency_ms[metric.key], summary.latency_ms["ttft"]
    if metric.end is End.FIRST_ANSWER_TOKEN:
        return row == ttft
    if metric.begin is Begin.STARTED:
        return all(_are_alike(row.figure(place), ttft.figure(place)) for place in ("p50", "p99"))
    if metric.per is not None:  # of prompts of one length it is the same in another unit
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


# --- The live percentiles at the end of a run beside those of its records


_ALL = "all requests of the run"


class RequestsOfBoth(SummaryPart, frozen=True):
    """Numbers of requests."""

    live: Annotated[int, key("number of requests in the live figures", _ALL)]
    records: Annotated[int, key("number of requests in the records", _ALL)]


class FurthestOff(SummaryPart, frozen=True):
    """The percentile that is furthest off."""

    metric: Annotated[str, key("the latency whose percentile is furthest off", _ALL)]
    place: Annotated[str, key("which percentile", _ALL)]
    live_ms: Annotated[float, key("live, ms", _ALL)]
    exact_ms: Annotated[float, key("by the records, ms", _ALL)]
    difference: Annotated[float, key("abs(live − exact) / exact", _ALL)]


_PAIR = key("[live, exact] ms", _ALL)


class LivePercentiles(SummaryPart, frozen=True):
    """Live and exact percentiles of a latency."""

    n: Annotated[int, key("number of values in both", _ALL)]
    p50: Annotated[tuple[float, float] | None, _PAIR]
    p95: Annotated[tuple[float, float] | None, _PAIR]
    p99: Annotated[tuple[float, float] | None, _PAIR]


class LiveCheck(SummaryPart, frozen=True):
    """Whether the live percentiles match the records."""

    within: Annotated[
        bool | None,
        key(
            "the live percentiles match the records, and `unequal` names none; null where that cannot be "
            "told",
            _ALL,
        ),
    ]
    reason: Annotated[str | None, key("why that cannot be told", _ALL)]
    unequal: Annotated[list[str], key("latencies with unequal numbers", _ALL)]
    relative_error: Annotated[float, key("stated relative error of a live percentile", _ALL)]
    requests: RequestsOfBoth
    largest: FurthestOff | None
    latency_ms: dict[str, LivePercentiles]


#: What is compared, and where.
METRICS = tuple(metric.key for metric in LIVE if metric.is_gated)
PLACES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}

#: A sketch tells what is shorter than a nanosecond as 0, and times are whole nanoseconds.
_NANOSECOND_MS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLatency:
    """Percentiles of the ``n`` samples of one latency, in milliseconds; None where there are no samples.

    Raises:
        ValueError: samples without percentiles, or percentiles without samples.
    """

    n: Count
    p50: Measure | None = None
    p95: Measure | None = None
    p99: Measure | None = None

    def __post_init__(self) -> None:
        if any((value is None) is not (self.n == 0) for value in (self.p50, self.p95, self.p99)):
            raise ValueError(f"of {self.n} samples it has not the percentiles that it must have")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEnd:
    """Last live figures of a run: of all requests that ended, including its warm-up and its drain.

    ``resets`` is the number of resets, ``missed`` the number of requests in no figure because their report
    was lost. ``latency_ms`` has those of the ok requests for each of :data:`METRICS`. ``relative_error`` is
    the stated one. ``agents`` are the sums of turns and jobs, in a run over trajectories.
    """

    run: str
    resets: Count
    missed: Count
    ok: Count
    failed: Count
    cancelled: Count
    relative_error: Annotated[float, Meta(ge=0, le=1)]
    latency_ms: dict[str, LastLatency]
    agents: dict[str, Count] | None = None

    @property
    def ended(self) -> int:
        return self.ok + self.failed + self.cancelled


def compute_live_check(run: Run) -> LiveCheck | None:
    """None of a run whose live figures are of other requests than its records."""
    is_whole = not (run.of_selection or run.manifest.is_sweep or run.manifest.dropped is not None)
    return live_check(run.live, run.m, run.requests) if is_whole and run.live is not None else None


def live_check(live: LiveEnd, m: Measured, requests: Requests) -> LiveCheck:
    """Live figures beside **all** records of the run: live figures know no window.

    A metric is compared where it has as many samples live as in the records: then both are of the same
    requests. ``difference`` is |live − exact| / exact.

    Returns:
        - ``within``: whether no percentile is further off than ``relative_error``; None where that cannot
          be told, and ``reason`` says why.
        - ``requests``: how many requests of any outcome are in the ``live`` figures and in the ``records``.
        - ``unequal``: metrics that have other numbers of samples, and so were not compared.
        - ``largest``: ``{metric, place, live_ms, exact_ms, difference}`` of the one that is furthest off.
        - ``latency_ms``: for each metric that was compared ``n``, and ``[live, exact]`` of each percentile.
    """
    compared = {} if live.resets else dict(_compared(live, m, requests))
    largest = max(_differences(compared), key=lambda found: found.difference, default=None)
    of_records = len(m.c)
    reason = _reason(live, of_records)
    allowed = live.relative_error + m.gaps.relative_error
    unequal = [] if live.resets else [metric for metric in METRICS if metric not in compared]
    is_near = largest is None or largest.difference <= allowed
    return LiveCheck(
        within=is_near and not unequal if reason is None else None,
        reason=reason,
        unequal=unequal,
        relative_error=live.relative_error,
        requests=RequestsOfBoth(live=live.ended, records=of_records),
        largest=largest,
        latency_ms=compared,
    )


def _reason(live: LiveEnd, of_records: int) -> str | None:
    if live.resets:
        return "the live figures were reset during the run, so they cover only part of it"
    if live.ended != of_records:
        missing = of_records - live.ended
        return f"the live figures cover {abs(missing)} {'fewer' if missing > 0 else 'more'} requests"
    return None


def _compared(live: LiveEnd, m: Measured, requests: Requests) -> Iterator[tuple[str, LivePercentiles]]:
    for metric in METRICS:
        of_live = live.latency_ms.get(metric)
        exact = _exact(metric, m, requests)
        if of_live is not None and of_live.n == len(exact):
            pairs = {
                place: (getattr(of_live, place), percentile(exact, percent) * 1e3) if len(exact) else None
                for place, percent in PLACES.items()
            }
            yield metric, LivePercentiles(n=len(exact), **pairs)


def _exact(metric: str, m: Measured, requests: Requests) -> Floats | Ascending:
    """Samples of all ok requests; negative values become 0, because an early client is not late."""
    return (
        _gaps(m, requests) if metric not in FORMULAS else ordered(np.maximum(m.values[metric][m.c.ok], 0.0))
    )


def _gaps(m: Measured, requests: Requests) -> Floats | Ascending:
    """Inter-token latencies of all ok requests; those of the window are there already."""
    if m.window.scheduled(m.c)[m.c.ok].all():
        return m.gaps.ascending()
    gaps = PooledGaps()
    for batch in requests.parts(PART_COLUMNS):
        part = Part.from_batch(batch, m.c.origin_ns)
        gaps.add(part, np.flatnonzero(part.ok))
    return gaps.ascending()


def _differences(compared: Mapping[str, LivePercentiles]) -> Iterator[FurthestOff]:
    for metric, of_live in compared.items():
        for place in PLACES:
            pair = getattr(of_live, place)
            if pair is None:
                continue
            live_ms, exact_ms = pair
            off_ms = abs(live_ms - exact_ms)
            # Less than a nanosecond is no time at all.
            difference = off_ms / max(exact_ms, _NANOSECOND_MS) if off_ms > _NANOSECOND_MS else 0.0
            yield FurthestOff(
                metric=metric,
                place=place,
                live_ms=live_ms,
                exact_ms=exact_ms,
                difference=difference,
            )


def remarks(part: LiveCheck | None) -> Iterator[Line]:
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
