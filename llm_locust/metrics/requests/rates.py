"""What came out of the server per second of a window, each token where it arrived."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from llm_locust.core.record import Outcome, TokenSource
from llm_locust.metrics.columns import OUTCOMES, SOURCES, Columns, Floats, Mask, Part, Rows, Times, pieces
from llm_locust.metrics.stats.bootstrap import spread_evenly, time_cells
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.intervals import as_json, rate_ends
from llm_locust.metrics.structs import Interval, SummaryPart, key
from llm_locust.metrics.window import Window

# --- Number of requests between sent and ended, and the rates that it gives by Little's law


_SLICE = 1 << 20


@dataclass(frozen=True, slots=True)
class Spans:
    """Times [sent, ended) of requests, each sorted separately: all that counting needs."""

    starts_s: Floats
    ends_s: Floats

    @classmethod
    def of(cls, c: Times, rows: Rows | None = None) -> "Spans":
        """Spans of the ``rows`` (default: all) that were sent, whatever their outcome."""
        sent_s = c.sent_s if rows is None else c.sent_s[rows]
        ended_s = c.ended_s if rows is None else c.ended_s[rows]
        lasts = ended_s > sent_s  # not so without sent, nor where the clock was set back
        return cls(np.sort(sent_s[lasts]), np.sort(ended_s[lasts]))

    def means(self, edges_s: Floats) -> Floats:
        """Time-weighted mean concurrency between each edge and the next, shape (edges - 1,)."""
        time = _elapsed(self.starts_s, edges_s) - _elapsed(self.ends_s, edges_s)
        return np.diff(time) / np.diff(edges_s)

    def peak(self, start_s: float, end_s: float) -> int:
        """Maximum in [start, end). A request that ends does not overlap one sent at the same time."""
        most = 0
        for first in range(0, int(np.searchsorted(self.starts_s, end_s)), _SLICE):
            inside = self.starts_s[first : first + _SLICE]
            inside = inside[inside < end_s]
            begun = first + np.arange(1, len(inside) + 1)
            over = np.searchsorted(self.ends_s, np.maximum(inside, start_s), side="right")
            most = max(most, int((begun - over).max()))
        return most


@dataclass(frozen=True, slots=True)
class LawRate:
    """A rate per second by Little's law: in flight / mean time × mean amount of a request.

    ``error`` is its standard error by the spread of times and amounts; ``answers`` is the length of the
    window in mean times. ``rate`` is NaN where cut requests leave the mean time open.
    """

    rate: float
    error: float
    answers: float


def law_rate(c: Columns, window: Window, amounts: Floats) -> LawRate | None:
    """The rate of ``amounts``, shape (rows,), of the load in a window; None of a window with gaps, or in
    which nothing was sent.

    Unlike a count of what ended, it does not depend on where the window begins and ends: requests that are
    in flight at either edge are in the mean time of those sent inside, which end later. Times of cancelled
    requests are cut, and count by the product limit. NaN is no amount.
    """
    if window.gaps:
        return None
    start_s, end_s = window.start_s(c), window.end_s(c)
    sent = np.flatnonzero((c.sent_s >= start_s) & (c.sent_s < end_s))
    if not len(sent):
        return None
    times_s, cut = c.ended_s[sent] - c.sent_s[sent], c.cancelled[sent]
    usual_s = max(float(times_s.mean()), 1e-9)
    mean_s, spread_s = Durations.of(times_s[~cut], times_s[cut]).moments()
    given = np.nan_to_num(amounts[sent][~cut])
    if math.isnan(mean_s) or mean_s <= 0 or 2 * cut.sum() > len(sent):
        return LawRate(math.nan, math.nan, window.seconds / usual_s)
    amount = float(np.sort(given).mean())
    rate = float(Spans.of(c).means(np.array([start_s, end_s]))[0]) / mean_s * amount
    spread = math.hypot(spread_s / mean_s, float(given.std()) / amount if amount else 0.0)
    return LawRate(rate, rate * spread / math.sqrt(len(given)), window.seconds / mean_s)


def _elapsed(times_s: Floats, edges_s: Floats) -> Floats:
    """Sum of edge − time over all times before each edge."""
    before = np.searchsorted(times_s, edges_s)
    total = np.zeros(len(times_s) + 1)
    np.cumsum(times_s, out=total[1:])
    area: Floats = before * edges_s - total[before]
    return area


@dataclass(frozen=True, slots=True)
class Credits:
    """What each request, whenever it was scheduled, gives to a window; shape (rows,).

    Amounts are NaN where the request's whole amount is not known. ``finished`` marks those that
    ended ok inside.
    """

    window: Window
    finished: Mask
    input_tokens: Floats
    output_tokens: Floats
    output_chars: Floats
    inputs: Floats
    images: Floats

    @classmethod
    def of(cls, c: Part, window: Window) -> "Credits":
        share = np.sum([arrived_share(c, span) for span in window.spans], axis=0)
        prefilled = window.inside(c, prefilled_s(c))
        return cls(
            window=window,
            finished=c.ok & window.ended(c),
            input_tokens=c.input_tokens * prefilled,
            output_tokens=c.output_tokens * share,
            output_chars=c.output_chars * share,
            inputs=c.inputs * prefilled,
            images=c.images * prefilled,
        )


def prefilled_s(c: Columns) -> Floats:
    """When the prompt of each request had been read, and its input is credited: at the first token event.

    That of an answer without events is at its end. NaN of what was neither begun nor answered.
    """
    return np.where(c.events > 0, c.sent_s + c.first_event_s, np.where(c.ok, c.ended_s, np.nan))


def arrived_share(c: Part, window: Window) -> Floats:
    """The share of each request's token events that arrived in a window without gaps, shape (rows,).

    All events of a request weigh the same: its n tokens are spread over them evenly. An answer
    without events counts as a whole at its end.
    """
    share = window.ended(c).astype(np.float64)
    rows = np.flatnonzero((c.events > 0) & ~np.isnan(c.sent_s))
    low_ns = np.rint((window.start_s(c) - c.sent_s[rows]) * 1e9)
    high_ns = np.rint((window.end_s(c) - c.sent_s[rows]) * 1e9)
    # Arrivals never decrease within a request, so its ends tell whether an edge cuts it.
    first = c.arrivals.values[c.arrivals.offsets[rows]]
    last = c.arrivals.values[c.arrivals.offsets[rows + 1] - 1]
    share[rows] = (first >= low_ns) & (last < high_ns)
    cut = (first < high_ns) & (last >= low_ns) & ((first < low_ns) | (last >= high_ns))
    low, high = np.zeros(len(c)), np.zeros(len(c))
    low[rows], high[rows] = low_ns, high_ns
    for part, lists in pieces(c.arrivals, rows[cut]):
        counts = np.diff(lists.offsets)
        inside = lists.values >= np.repeat(low[part], counts)
        inside &= lists.values < np.repeat(high[part], counts)
        share[part] = np.add.reduceat(inside, lists.offsets[:-1], dtype=np.int64) / counts
    return share


def rate_per_s(amounts: Floats, finished: Mask, seconds: float) -> float | None:
    """The sum of the known amounts per second.

    Returns:
        None for an empty window, and where answers finished but no amount is known: that is no
        0. Without any answer the rate is a true 0.
    """
    known = amounts[~np.isnan(amounts)]
    if seconds <= 0 or (not known.size and finished.any()):
        return None
    return float(np.sort(known).sum()) / seconds  # sorted: the order of workers is no input


#: Denominator of rates.
OF_ALL = "all requests, whenever scheduled"


_TOKENS_PER_S = key(
    "tokens / second: input at the first token event, output at the arrival of its event; their sum",
    "all requests, whatever became of them",
)


class Throughput(SummaryPart, frozen=True):
    """Rates over the window."""

    requests_per_s: Annotated[float | None, key("requests that ended `ok` in the window / seconds", OF_ALL)]
    input_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    output_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    total_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    output_chars_per_s: Annotated[
        float | None, key("characters / second, credited as output tokens are", "all requests")
    ]
    inputs_per_s: Annotated[
        float | None,
        key(
            "inputs of embeddings and rerank requests / second, when their answer has come; null where no "
            "request has inputs",
            "all requests",
        ),
    ]
    concurrency_mean: Annotated[
        float | None, key("requests between sent and ended: time-weighted mean", "all requests")
    ]
    concurrency_peak: Annotated[int | None, key("requests between sent and ended: peak", "all requests")]
    ci95: Annotated[
        dict[str, Interval],
        key("95 % interval of each of these rates; null where the data cannot tell", "as the rate"),
    ]


def throughput(c: Columns, credits: Credits, rows: Rows) -> Throughput:
    """Rates per second of the window over ``rows``, and their concurrency.

    ``rows`` are all requests, not the population: what was scheduled before the window and
    arrives inside is credited here, and what arrives after it is not.
    """
    window, finished = credits.window, credits.finished[rows]
    seconds = window.seconds
    inputs = rate_per_s(credits.input_tokens[rows], finished, seconds)
    outputs = rate_per_s(credits.output_tokens[rows], finished, seconds)
    spans = Spans.of(c, rows)
    concurrent = _concurrency(spans, c, window)
    rates = {
        "requests_per_s": float(finished.sum()) / seconds if seconds > 0 else None,
        "input_tokens_per_s": inputs,
        "output_tokens_per_s": outputs,
        "total_tokens_per_s": None if inputs is None or outputs is None else inputs + outputs,
        "output_chars_per_s": rate_per_s(credits.output_chars[rows], finished, seconds),
        "inputs_per_s": inputs_per_s(credits, rows),
    }
    given = amounts_over_time(c, credits, rows)
    ends = {name: rate_ends(value, given[name], window, c) for name, value in rates.items()}
    return Throughput(
        **rates, concurrency_mean=concurrent[0], concurrency_peak=concurrent[1], ci95=as_json(ends)
    )


def inputs_per_s(credits: Credits, rows: Rows) -> float | None:
    """Inputs per second of those ``rows`` that have inputs; None without such a row."""
    return rate_of_having(credits, credits.inputs, rows)


def rate_of_having(credits: Credits, amounts: Floats, rows: Rows) -> float | None:
    """Rate over those ``rows`` whose amount is defined; None without such a row."""
    having = rows[~np.isnan(amounts[rows])]
    if not len(having):
        return None
    return rate_per_s(amounts[having], credits.finished[having], credits.window.seconds)


def amounts_over_time(c: Columns, credits: Credits, rows: Rows) -> dict[str, Floats]:
    """What ``rows`` give to each rate of :func:`throughput` in each cell of the window.

    Output is spread evenly over the time from a request's first event to its last.
    """
    window, ended_s, sent_s = credits.window, c.ended_s[rows], c.sent_s[rows]
    came = c.events[rows] > 0
    begun_s = np.where(came, sent_s + c.first_event_s[rows], ended_s)
    over_s = np.where(came, sent_s + c.last_event_s[rows], ended_s)
    begun = time_cells(window, c, begun_s)
    inputs = begun.sums(credits.input_tokens[rows])
    outputs, chars = spread_evenly(window, c, begun_s, over_s, (c.output_tokens[rows], c.output_chars[rows]))
    return {
        "requests_per_s": time_cells(window, c, ended_s[credits.finished[rows]]).sums(),
        "input_tokens_per_s": inputs,
        "output_tokens_per_s": outputs,
        "total_tokens_per_s": inputs + outputs,
        "output_chars_per_s": chars,
        "inputs_per_s": begun.sums(credits.inputs[rows]),
    }


def _concurrency(spans: Spans, c: Columns, window: Window) -> tuple[float | None, int | None]:
    """Time-weighted mean and peak; None for an empty window."""
    edges = [np.array([span.start_s(c), span.end_s(c)]) for span in window.spans if span.seconds > 0]
    if not edges:
        return None, None
    mean = np.average([spans.means(e)[0] for e in edges], weights=[e[1] - e[0] for e in edges])
    # Differences of large sums: below 0 by a rounding where nothing was under way.
    return max(0.0, float(mean)), max(spans.peak(*e.tolist()) for e in edges)


# --- How long prompts and answers were, and how the tokens came.


_BY_EVENTS = SOURCES.index(TokenSource.EVENTS)
_REJECTED = OUTCOMES.index(Outcome.REJECTED)

#: Key of ``source`` for the tokens of cut requests, see :func:`with_estimates`.
ESTIMATE = "estimate"

#: Gaps below this are two events of one write, not the pace of a model.
NO_GAP_MS = 0.1

#: Time for each event of an answer that came at once, from which something held its events back.
HELD_MS = 0.5

#: Answers of fewer events may come at once from the server itself.
LEAST_EVENTS = 4


def with_estimates(c: Columns, credited: Floats) -> tuple[Columns, Floats]:
    """The same with better counts of requests that were cut or failed before the server counted.

    Their token events are known. An event is taken to have as many tokens as those of the run's counted
    answers, which makes no difference where each has one.

    Args:
        credited: the tokens of each request that a window got, counted as in ``c``.
    """
    each, rows = counted_per_event(c), np.flatnonzero(uncounted(c))
    if each is None or not len(rows):
        return c, credited
    output, credited = c.output_tokens.copy(), credited.copy()
    output[rows] *= each
    credited[rows] *= each
    return replace(c, output_tokens=output), credited


def counted_per_event(c: Columns) -> float | None:
    """:func:`tokens_per_event` of the answers that the server counted."""
    return tokens_per_event(c, np.flatnonzero(c.ok & (c.source != _BY_EVENTS)))


def uncounted(c: Columns) -> Mask:
    """Answers that did not get to the server's count; a rejected one is complete."""
    broken_off: Mask = ~c.ok & (c.outcome != _REJECTED) & c.streamed & (c.events > 0)
    return broken_off & np.equal(c.source, _BY_EVENTS)


def tokens_per_event(c: Columns, ok: Rows) -> float | None:
    """Output tokens that events brought / token events, over the streamed answers whose count is known.

    A first event that is known to bring several counts as one with one: they say nothing of the others.
    Answers whose pace begins after their first event are left out: the events of a summary bring no token.
    """
    rows = ok[c.streamed[ok] & (c.events[ok] > 0) & ~np.isnan(c.output_tokens[ok])]
    rows = rows[~(c.paced_from_s[rows] > c.first_event_s[rows])]
    events = int(c.events[rows].sum())
    return float((c.event_tokens - c.opening_tokens + 1)[rows].sum()) / events if events else None
