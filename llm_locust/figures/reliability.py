"""Reliability: whether somebody was served all the time, which tries it took, and what failed and why."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from llm_locust.core.batch import Labels, Requests
from llm_locust.core.error_kinds import PLACEHOLDERS, fold
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    MOST_ROWS,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    after,
    clean,
    count,
    percent,
    plural,
    rows_left_out,
    seconds,
    sentence,
    short,
)
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Mask, Rows
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.standstill import Silences, Standstills, StandstillSpan
from llm_locust.metrics.stats.censoring import at_most
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Population, Window, iso

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


#: A time without an answer is worth a line from here on, where answers came so often that chance does not
#: make it: in a Poisson process one gap of 22,000 is over ten mean ones.
NOTABLE_SPAN_S = 5.0
NOTABLE_GAPS = 10.0


_WINDOW = "the window"
_POPULATION = "the population"


class WithoutAnswers(SummaryPart, frozen=True):
    """A span in which no answer ended."""

    seconds: Annotated[float, key("longest span without an end of an ok, or a good, answer, s", "the window")]
    start_s: Annotated[float, key("where it begins, s after the window's start", "the window")]


class Retries(SummaryPart, frozen=True):
    """Requests that were sent again."""

    requests: Annotated[int, key("requests that were sent again", _POPULATION)]
    total: Annotated[int, key("how often in all", _POPULATION)]
    max: Annotated[int | None, key("most often of one request", _POPULATION)]


class Reliability(SummaryPart, frozen=True):
    """Whether somebody was served all the time."""

    seconds: Annotated[int, key("whole seconds with a request under way", _WINDOW)]
    ok_share: Annotated[float | None, key("share of them in which an answer ended that was ok", _WINDOW)]
    good_share: Annotated[float | None, key("share of them in which an answer ended that was good", _WINDOW)]
    longest_without_ok: WithoutAnswers | None
    longest_without_good: WithoutAnswers | None
    standstill: Standstills | None
    hung: Annotated[
        int,
        key(
            "number of requests that were cancelled after they had got nothing for longer than "
            "[is usual](definitions.md#standstill)",
            "scheduled in the window",
        ),
    ]
    retries: Retries


_ITS = "its requests"


class OutageSpan(SummaryPart, frozen=True):
    """A time in which a replica gave no token while others did."""

    from_s: Annotated[
        float | None,
        key(
            "a span without a token while others went on: its begin, s after the window's start; null where "
            "the replica had not served before",
            _ITS,
        ),
    ]
    to_s: Annotated[float | None, key("its end; null where the replica did not come back", _ITS)]
    seconds: Annotated[float, key("how long, s", _ITS)]
    others: Annotated[
        int, key("how often another replica began or ended an answer meanwhile", "the others' requests")
    ]


def compute(run: Run) -> Reliability:
    m = run.m
    return reliability(run.requests, m.c, run.population, m.judgement, m.window, run.silences)


def reliability(
    requests: Requests,
    c: Columns,
    population: Population,
    judgement: Judgement | None,
    window: Window,
    silences: Silences,
) -> Reliability:
    """The ``reliability`` of a summary.

    ``seconds`` counts the whole seconds of the window, from its start on, in which a request was under way:
    nobody is served where nobody asks. ``ok_share`` and ``good_share`` are shares of these in which at least
    one answer ended that was ok, or good. ``longest_without_ok`` and
    ``longest_without_good`` are the longest spans in which none ended, the window's edges counting as
    ends: of a run that is not warm its beginning is such a span. An answer counts where it ended,
    whenever it was scheduled. ``standstill`` is of :class:`~llm_locust.metrics.standstill.Silences`.

    ``retries`` are calls of the population that were sent again on a new connection because a pooled one
    was stale; the client makes no others.

    Returns:
        None for shares and spans where nothing was scheduled or under way, or the window is under a second;
        those of good answers are None without an SLO too.
    """
    asked = len(population.all) > 0 and window.seconds >= 1
    ok = c.ended_s[c.ok]
    good = None if judgement is None else c.ended_s[judgement.good]
    busy = _busy(c, window)
    return Reliability(
        seconds=sum(seconds.seconds for seconds in busy),
        ok_share=_share(ok, busy, c, window) if asked else None,
        good_share=_share(good, busy, c, window) if asked and good is not None else None,
        longest_without_ok=_longest_without(ok, c, window) if asked else None,
        longest_without_good=_longest_without(good, c, window) if asked and good is not None else None,
        standstill=silences.standstills() if asked else None,
        hung=len(silences.hung()),
        retries=_retries(requests, population.judged),
    )


@dataclass(frozen=True, slots=True)
class _Busy:
    """Whole seconds of a span in which a request was under way: from each of ``first`` up to its ``last``.

    As spans, not as a mask: a window may be as long as its clocks say.
    """

    first: Rows
    last: Rows

    @property
    def seconds(self) -> int:
        return int((self.last - self.first).sum())

    def contained(self, seconds: Rows) -> int:
        """How many of these seconds are among them."""
        at = np.searchsorted(self.first, seconds, side="right") - 1
        return int(((at >= 0) & (seconds < self.last[at])).sum()) if len(self.first) else 0


def _busy(c: Columns, window: Window) -> list[_Busy]:
    """For each span of the window the seconds in which a request was under way."""
    found = []
    for span in window.spans:
        whole = int(span.seconds)
        begin, end = c.started_s - span.start_s(c), c.ended_s - span.start_s(c)
        inside = np.flatnonzero((end > begin) & (end > 0) & (begin < whole))
        inside = inside[np.argsort(begin[inside], kind="stable")]
        first = np.clip(np.floor(begin[inside]), 0, whole).astype(np.int64)
        # Up to the second in which it ended.
        last = np.maximum.accumulate(np.clip(np.floor(end[inside]) + 1, 0, whole).astype(np.int64))
        apart = np.flatnonzero(first[1:] > last[:-1])
        begins = np.concatenate([first[:1], first[apart + 1]])
        found.append(_Busy(begins, np.concatenate([last[apart], last[-1:]])))
    return found


def _share(ends_s: Floats, busy: Sequence[_Busy], c: Columns, window: Window) -> float | None:
    """Of the busy_s in which a request was under way, each counted from the beginning of its span."""
    served = 0
    for span, busy_s in zip(window.spans, busy, strict=True):
        after = ends_s - span.start_s(c)
        at = np.floor(after[(after >= 0) & (after < int(span.seconds))]).astype(np.int64)
        served += busy_s.contained(np.unique(at))
    asked = sum(busy_s.seconds for busy_s in busy)
    return served / asked if asked else None


def _longest_without(ends_s: Floats, c: Columns, window: Window) -> WithoutAnswers:
    """The longest time between two ends, edges being such too; ``start_s`` is after the window's start."""
    longest, begins = 0.0, 0.0
    for span in window.spans:
        start_s, end_s = span.start_s(c), span.end_s(c)
        inside = np.sort(ends_s[(ends_s >= start_s) & (ends_s < end_s)])
        edges = np.concatenate([[start_s], inside, [end_s]])
        waits = np.diff(edges)
        at = int(np.argmax(waits))
        if waits[at] > longest:
            longest, begins = float(waits[at]), float(edges[at]) - window.start_s(c)
    return WithoutAnswers(seconds=longest, start_s=begins)


def _retries(requests: Requests, judged: Rows) -> Retries:
    """``requests`` that were tried again, the ``total`` of tries beyond the first, and the most of one."""
    counts = np.concatenate([batch.ints("retries") for batch in requests.parts(["retries"])])[judged]
    return Retries(
        requests=int((counts > 0).sum()),
        total=int(counts.sum()),
        max=int(counts.max()) if len(counts) else None,
    )


# --- When a replica served, and when it did not while others did


#: A time without an answer is told from here on, where answers came so often that chance does not make it:
#: in a Poisson process one gap of 160,000 is over twelve mean ones.
LEAST_S = 5.0
MEAN_GAPS = 12.0

#: Fewest answers of a replica for which its own rate is known, and fewest of others in a gap.
LEAST_ANSWERS = 10


def signs(c: Columns, rows: Rows) -> Floats:
    """When answers to ``rows`` began and ended, ascending."""
    return np.sort(np.concatenate(_served(c, rows)))


def outages(c: Columns, rows: Rows, every: Callable[[], Floats], window: Window) -> list[OutageSpan]:
    """The outages of the replica that served ``rows``, ascending; ``every`` gives all replicas'
    :func:`signs`, and is asked only where this one was silent for long.

    A request is served from its first token to its last, and one that is not streamed from sent to its end.
    A gap between served times, or between one and an edge of the window, is an outage where it is longer than
    :data:`LEAST_S` and than :data:`MEAN_GAPS` times the mean time between two requests of this replica
    outside of it, and where the other replicas served at least a fifth of what they do elsewhere.
    """
    start_s, found = window.start_s(c), []
    begun, own = _served(c, rows)[0], None
    for span in window.spans:
        edges = (span.start_s(c), span.end_s(c))
        begins, ends = _merged(*_served(c, rows), edges)
        for gap in _gaps(begins, ends, edges):
            answers = int(((begun >= edges[0]) & (begun < edges[1])).sum())
            if not _is_notable(gap, answers, edges):
                continue
            own = signs(c, rows) if own is None else own
            others = [_within(every(), part) - _within(own, part) for part in (gap, edges)]
            if _others_serve(gap, others[0], others[1], edges):
                left, came = gap[0] > edges[0], gap[1] < edges[1]
                found.append(
                    OutageSpan(
                        from_s=gap[0] - start_s if left else None,
                        to_s=gap[1] - start_s if came else None,
                        seconds=gap[1] - gap[0],
                        others=others[0],
                    )
                )
    return found


def in_flight(c: Columns, rows: Rows, window: Window, parts: int) -> Floats:
    """Time-weighted mean number of ``rows`` between sent and ended in equal parts of the window, (parts,)."""
    edges = np.linspace(window.start_s(c), window.end_s(c), parts + 1)
    # Differences of large sums: below 0 by a rounding where nothing was under way.
    return np.maximum(0.0, Spans.of(c, rows).means(edges))


def _served(c: Columns, rows: Rows) -> tuple[Floats, Floats]:
    """When each request began and ended to be served; those that were not are left out."""
    streamed = c.events[rows] > 0
    whole = ~streamed & c.ok[rows]
    begins = np.where(streamed, c.sent_s[rows] + c.first_event_s[rows], c.sent_s[rows])
    ends = np.where(streamed, c.sent_s[rows] + c.last_event_s[rows], c.ended_s[rows])
    known = (streamed | whole) & ~np.isnan(begins) & ~c.stepped[rows]
    return begins[known], ends[known]


def _merged(begins: Floats, ends: Floats, edges: tuple[float, float]) -> tuple[Floats, Floats]:
    """The union of the spans that touch the window, as spans apart."""
    touch = (ends >= edges[0]) & (begins < edges[1])
    order = np.argsort(begins[touch])
    begins, ends = begins[touch][order], np.maximum.accumulate(ends[touch][order])
    apart = np.flatnonzero(begins[1:] > ends[:-1])
    firsts = np.concatenate([[0], apart + 1]) if len(begins) else np.empty(0, np.int64)
    lasts = np.concatenate([apart, [len(ends) - 1]]) if len(ends) else np.empty(0, np.int64)
    return begins[firsts.astype(np.int64)], ends[lasts.astype(np.int64)]


def _gaps(begins: Floats, ends: Floats, edges: tuple[float, float]) -> Sequence[tuple[float, float]]:
    starts = np.concatenate([[edges[0]], np.minimum(ends, edges[1])])
    stops = np.concatenate([np.maximum(begins, edges[0]), [edges[1]]])
    longer = stops - starts > LEAST_S
    return list(zip(starts[longer].tolist(), stops[longer].tolist(), strict=True))


def _is_notable(gap: tuple[float, float], answers: int, edges: tuple[float, float]) -> bool:
    seconds = gap[1] - gap[0]
    mean_s = (edges[1] - edges[0] - seconds) / max(1, answers)
    return answers >= LEAST_ANSWERS and seconds > max(LEAST_S, MEAN_GAPS * mean_s)


def _within(signs: Floats, edges: tuple[float, float]) -> int:
    first, last = np.searchsorted(signs, edges)
    return int(last - first)


def _others_serve(gap: tuple[float, float], meanwhile: int, all_: int, edges: tuple[float, float]) -> bool:
    elsewhere_s = edges[1] - edges[0] - (gap[1] - gap[0])
    usual = (all_ - meanwhile) / elsewhere_s * (gap[1] - gap[0]) if elsewhere_s > 0 else 0.0
    return meanwhile >= LEAST_ANSWERS and meanwhile >= usual / 5


# --- When the share of good requests is back where it was before a change of the load


#: Successive requests that the shortest rolling share is of, and how many times as many the next one is.
ROLLING, LONGER = 50, 4

#: Probability that chance alone makes any of the rolling shares of one call a fall.
_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Recovery:
    """How long it took. ``seconds`` is 0 where the share never fell.

    ``at_least_s`` is a lower bound instead, where it was not back by the last request. Where both are None,
    ``why`` says why nothing is known.
    """

    seconds: float | None = None
    at_least_s: float | None = None
    why: str | None = None


def recovery(at_s: Floats, good: Mask, before: Proportion, since_s: float) -> Recovery:
    """Time from ``since_s`` until the rolling share of good requests is back at the share ``before``.

    The rolling share at a request is that of it and the next w − 1, for each width w of :data:`ROLLING`,
    4 times as many, 16 times and so on. A fall is a rolling share that is too low for chance: with p, the
    lower end of the 95 % interval of the share before, so few good requests have a binomial probability of
    less than 5 % / widths / number of rolling shares of this width (Bonferroni). The narrowest width sees
    when a deep fall ends, wider ones see a shallow fall. The share is back at the first request after its
    last fall from which on the rolling share of the width that saw this fall is p or more.

    Args:
        at_s: when each judged request was due, on the axis of ``since_s``; earlier ones are left out.
        good: which of them were good.
    """
    bounds = before.interval()
    later = np.flatnonzero(at_s >= since_s)
    if bounds is None or before.n < ROLLING:
        return Recovery(why=f"{before.n} requests before it are too few: {ROLLING} are needed")
    if not before.hits:
        return Recovery(why="no request before it was good")
    if len(later) < ROLLING:
        return Recovery(why=f"{len(later)} requests after it are too few: {ROLLING} are needed")
    later = later[np.argsort(at_s[later], kind="stable")]
    sums = np.concatenate([[0], np.cumsum(good[later])])
    widths = list(_widths(len(later), bounds[0]))
    if not widths:  # a server that ended altogether would not have fallen
        return Recovery(why="too few were good before it for a fall to show")
    ends = [(_last_fall(_hits(sums, width), most), width, most) for width, most in widths]
    fallen, width, _ = max(ends, key=lambda end: (end[0], -end[1]))
    if fallen < 0:
        return Recovery(seconds=0.0)
    back = np.flatnonzero(_hits(sums, width) >= bounds[0] * width)
    back = back[back > fallen]
    if len(back):
        return Recovery(seconds=float(at_s[later[back[0]]] - since_s))
    return Recovery(at_least_s=float(at_s[later[len(later) - width]] - since_s))


def _widths(n: int, share: float) -> Iterator[tuple[int, int]]:
    """Each width of rolling shares of ``n`` requests, and the most good ones that are a fall in it."""
    widths = [ROLLING]
    while widths[-1] * LONGER <= n:
        widths.append(widths[-1] * LONGER)
    for width in widths:
        level = _LEVEL / len(widths) / (n - width + 1)
        most, enough = -1, width
        while enough - most > 1:
            middle = (most + enough) // 2
            most, enough = (middle, enough) if at_most(middle, width, share) < level else (most, middle)
        if most >= 0:
            yield width, most


def _hits(sums: Rows, width: int) -> Rows:
    return sums[width:] - sums[:-width]


def _last_fall(hits: Rows, most: int) -> int:
    """Index of the last rolling share that is a fall; -1: none is."""
    fallen = np.flatnonzero(hits <= most)
    return int(fallen[-1]) if len(fallen) else -1


def show(summary: "Summary") -> Section | None:
    """How often somebody was served; None where nothing failed, was tried again, or was long in coming."""
    part = summary.reliability
    requests = summary.requests
    retries = part.retries
    if not (requests.failed or retries.total or _was_interrupted(summary, part)):
        return None
    lines = [*_shares(part), *_span_remarks(part), *_slow_remark(part.standstill), *_retry_remark(retries)]
    return Section("Reliability", tuple(lines)) if lines else None


def standstill(summary: "Summary") -> Section | None:
    """When nothing came though requests were under way; None where that was not so."""
    part = summary.reliability.standstill
    if part is None or not part.spans:
        return None
    spans = part.spans
    longest = max(spans, key=lambda span: span.seconds)
    headline = Line(f"STOOD STILL: {stood(longest)}", Tone.BAD)
    others = [span for span in spans if span is not longest]
    total = f"{plural(part.n, 'time')}, {seconds(part.seconds)} in all"
    more = Line(f"{total}; also {sentence([stood(span) for span in others[:_MOST_STOOD]], '; ')}")
    meaning = "nothing came for anybody, for longer than requests that ended well usually wait"
    return Section(
        "Standstill", (headline, *([more] if others else []), Line(meaning, Tone.FAINT)), alarm=True
    )


def stuck(summary: "Summary") -> Section | None:
    """Requests from before the window that hung in it; None without any."""
    n = summary.requests.stuck
    if not n:
        return None
    were = "was" if n == 1 else "were"
    text = f"STUCK: {plural(n, 'request')} from before the window hung in it and {were} given up"
    counted = "they are not counted as scheduled; they are bad in goodput and lower bounds in latencies"
    return Section("Stuck", (Line(text, Tone.BAD), Line(counted, Tone.FAINT)), alarm=True)


def stood(span: StandstillSpan) -> str:
    """What a standstill was, without its subject."""
    under_way = plural(span.in_flight, "request")
    since = f"{seconds(span.seconds)} from {seconds(span.start_s)} on"
    return f"nothing came for {since}, with {under_way} in flight"


def _shares(part: Reliability) -> Iterator[Line]:
    if part.ok_share is not None:
        good = f", {percent(part.good_share)} a good one" if part.good_share is not None else ""
        asked = plural(part.seconds, "second")
        yield Line(f"{percent(part.ok_share)} of {asked} had an ok answer{good}")


def _was_interrupted(summary: "Summary", part: Reliability) -> bool:
    if part.longest_without_ok is None:
        return False
    longest = part.longest_without_ok.seconds
    rate = summary.throughput.requests_per_s or 0.0
    return longest >= NOTABLE_SPAN_S and longest * rate >= (NOTABLE_GAPS if rate else 0.0)


def _span_remarks(part: Reliability) -> Iterator[Line]:
    ok, good = part.longest_without_ok, part.longest_without_good
    spans = [
        f"longest without {what} {seconds(span.seconds)}, from {seconds(span.start_s)} on"
        for what, span in (("an ok answer", ok), ("a good one", good if good != ok else None))
        if span
    ]
    if spans:
        yield Line(sentence(spans))


def _slow_remark(part: Standstills | None) -> Iterator[Line]:
    """Silences that are no standstill: a slow server is slow."""
    if part is not None and part.slow_longest_s is not None:
        longest, total = seconds(part.slow_longest_s), seconds(part.slow_seconds)
        each = f"up to {longest} at a time, {total} in all"
        yield Line(f"slow: nothing came for {each}, as is usual for such requests", Tone.FAINT)


def _retry_remark(retries: Retries) -> Iterator[Line]:
    if retries.total:
        yield Line(
            f"{plural(retries.requests, 'request')} sent again, "
            f"{plural(retries.total, 'time')} in all: a pooled connection was stale",
            Tone.WARN,
        )


#: Standstills that are told beside the longest one.
_MOST_STOOD = 3


# --- Errors: failed requests by cause


_FAILED = "failed, of the population"


class ErrorKind(SummaryPart, frozen=True):
    """A kind of failure."""

    outcome: Annotated[str, key("outcome of a kind of failure", _FAILED)]
    status: Annotated[int | None, key("HTTP status", _FAILED)]
    message: Annotated[str | None, key("text without what differs from case to case", _FAILED)]
    example: Annotated[str | None, key("the first such text", _FAILED)]
    count: Annotated[int, key("how many", _FAILED)]
    first: Annotated[str, key("when the first of them ended, ISO 8601, UTC", _FAILED)]
    last: Annotated[str, key("when the last of them ended, ISO 8601, UTC", _FAILED)]


#: Kinds of failure that are listed one by one.
MOST_KINDS = 50

#: ``outcome`` of the last entry, which counts the kinds that are not listed.
OTHER = "other"


def compute_errors(run: Run) -> list[ErrorKind]:
    return failures(run.m.c, run.population.failed)


def failures(c: Columns, failed: Rows) -> list[ErrorKind]:
    """The requests ``failed`` by (outcome, status, message), most frequent first.

    ``message`` is the error text without details that differ between cases
    (:func:`~llm_locust.core.error_kinds.fold`), ``example`` the unchanged text of the first such
    request; of several at one time, the one that sorts first. ``first`` and ``last`` are when such requests
    ended. Beyond :data:`MOST_KINDS` kinds one entry with the outcome ``other`` counts the rest, so that the
    counts add up to all failures.
    """
    kinds = _kinds(c, failed)
    order = sorted(range(len(kinds.names)), key=lambda k: (-kinds.counts[k], *_sortable(kinds.names[k])))
    examples = _examples(c, failed, kinds, set(order[:MOST_KINDS]))
    listed = [
        ErrorKind(
            outcome=kinds.names[k][0],
            status=kinds.names[k][1],
            message=kinds.names[k][2],
            example=examples.get(k),
            count=int(kinds.counts[k]),
            first=_at(c, kinds.first_s[k]),
            last=_at(c, kinds.last_s[k]),
        )
        for k in order[:MOST_KINDS]
    ]
    return listed + _rest(c, kinds, np.array(order[MOST_KINDS:], dtype=np.int64))


_Name = tuple[str, int | None, str | None]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """``names[k]`` is (outcome, status, message) of kind k; ``of[i]`` is the kind of failed request i."""

    names: list[_Name]
    of: Rows
    counts: Rows
    first_s: Floats
    last_s: Floats


def _kinds(c: Columns, failed: Rows) -> _Kinds:
    message, messages = _messages(c.error, failed)
    # One integer instead of three columns: numpy sorts those a hundred times faster than rows.
    keys = (c.outcome[failed].astype(np.int64) << 48) + (c.status[failed].astype(np.int64) + 1 << 32)
    keys, of, counts = np.unique(keys + message + 1, return_inverse=True, return_counts=True)
    first_s, last_s = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
    np.minimum.at(first_s, of, c.ended_s[failed])
    np.maximum.at(last_s, of, c.ended_s[failed])
    triples = zip(keys >> 48, (keys >> 32 & 0xFFFF) - 1, (keys & 0xFFFF_FFFF) - 1, strict=True)
    names = [
        (OUTCOMES[outcome].value, int(status) if status >= 0 else None, messages[text] if text >= 0 else None)
        for outcome, status, text in triples
    ]
    return _Kinds(names, of, counts, first_s, last_s)


def _messages(error: Labels, failed: Rows) -> tuple[Rows, list[str]]:
    """Folded texts, each once, and for each failed request the index of its text; -1 without one."""
    codes = error.codes[failed]
    messages: dict[str, int] = {}
    folded = np.full(len(error.names) + 1, -1, dtype=np.int64)  # the last one is that of code -1
    for code in np.unique(codes[codes >= 0]).tolist():
        folded[code] = messages.setdefault(fold(error.names[code]), len(messages))
    return folded[codes], list(messages)


def _examples(c: Columns, failed: Rows, kinds: _Kinds, wanted: set[int]) -> dict[int, str]:
    """For each kind with texts, the least text among those of its first time."""
    at_first = np.flatnonzero(c.ended_s[failed] == kinds.first_s[kinds.of])
    examples: dict[int, str] = {}
    for kind, code in zip(kinds.of[at_first].tolist(), c.error.codes[failed[at_first]].tolist(), strict=True):
        if kind in wanted and code >= 0:
            text = c.error.names[code]
            examples[kind] = min(text, examples.get(kind, text))
    return examples


def _sortable(name: _Name) -> tuple[str, int, str]:
    outcome, status, message = name
    return outcome, status or 0, message or ""


def _rest(c: Columns, kinds: _Kinds, rest: Rows) -> list[ErrorKind]:
    if not len(rest):
        return []
    return [
        ErrorKind(
            outcome=OTHER,
            status=None,
            message=f"{len(rest)} more kinds of failure",
            example=None,
            count=int(kinds.counts[rest].sum()),
            first=_at(c, kinds.first_s[rest].min()),
            last=_at(c, kinds.last_s[rest].max()),
        )
    ]


def _at(c: Columns, ended_s: float) -> str:
    return iso(c.origin_ns + round(float(ended_s) * 1e9))


_MESSAGE_LENGTH, _EXAMPLE_LENGTH = 160, 2_000


def show_errors(summary: "Summary", *, examples: bool = False) -> Section | None:
    """The kinds of failure, most frequent first; None without any.

    Args:
        examples: all kinds, each with its text at length.
    """
    kinds, started = summary.errors, summary.run.started
    if not kinds:
        return None
    columns = [
        Column("Outcome" if examples else "Errors", left=True),
        Column("Status"),
        Column("Count"),
        Column("First"),
        Column("Last"),
        Column("Message", left=True, verbatim=True, wraps=True),
    ]
    if not examples:
        rows = tuple(TableRow(_error_cells(kind, started, _MESSAGE_LENGTH)) for kind in kinds[:MOST_ROWS])
        return Section("Errors", table=Table(tuple(columns), rows), notes=rows_left_out(len(kinds)))
    rows = tuple(TableRow(_error_cells(kind, started, _EXAMPLE_LENGTH)) for kind in kinds)
    return Section("Errors", table=Table(tuple(columns), rows).without_empty())


def _error_cells(kind: ErrorKind, started: str, most: int) -> tuple[str, ...]:
    return (
        clean(kind.outcome),
        UNDEFINED if kind.status is None else str(kind.status),
        count(kind.count),
        after(kind.first, started),
        after(kind.last, started),
        _text(error_words(kind), most),
    )


def error_words(kind: ErrorKind) -> str | None:
    """What a person reads of a kind: its text, or the first one where that has had details taken out."""
    message = kind.message
    is_pattern = message is not None and any(each in message for each in PLACEHOLDERS)
    return kind.example if is_pattern else message


def _text(value: str | None, most: int) -> str:
    return UNDEFINED if value is None else short(clean(value), most)
