"""The one list of latencies: a row each, with its formula, its words and the tables that it is in.

Whatever shows, gates, compares, limits or counts latencies goes through :data:`LATENCIES`, in this order.
A new latency is a row here (CONTRIBUTING.md has the steps). Formulas give seconds, shape (rows,), NaN where
the metric is not defined. An answer that was not streamed is one event: it has ``e2el`` and no ``ttft``,
``ttfo``, ``tpot``, ``itl``. A request during which the wall clock was set keeps its durations: they are of
the monotonic clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from llm_locust.metrics.columns import Columns, Floats

# --- What the catalogue of latencies says of each of them


Formula = Callable[[Columns], Floats]


class Begin(StrEnum):
    """The moment that a latency counts from."""

    SENT = "sent"
    STARTED = "started"
    SCHEDULED = "scheduled"


class End(StrEnum):
    """The event that a latency waits for. A request that was given up before it is a censored sample."""

    FIRST_TOKEN = "first token event"
    FIRST_ANSWER_TOKEN = "first token event that is not reasoning"
    LAST_TOKEN = "last token event"


class View(StrEnum):
    """A place that shows some latencies. ``latency_ms`` of the summary has them all."""

    REPORT = "the latency table of console, Markdown and HTML"
    SHORT = "the latency table of the short report"
    OVERVIEW = "the first screen of the HTML report"
    GROUPS = "the tables of --by, of replicas and of workers"
    OVER_TIME = "percentiles over time: charts and timeseries.csv"
    DISTRIBUTIONS = "cumulative distributions and tails"
    CURVES = "goodput at any limit"
    COMPARISON = "rows and distributions of a comparison"
    SPANS = "attributes of OpenTelemetry spans"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """How a latency that is counted live is shown.

    Attributes:
        places: its percentiles in the tables of Locust's page.
        chart: whether it has a chart of its own on the live page.
        tile: whether its p50 and p99 are among the tiles above the charts.
        buckets_s: upper limits of its Prometheus histogram, in seconds; none without one.
    """

    places: tuple[str, ...] = ()
    chart: bool = False
    tile: bool = False
    buckets_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMetric:
    """One latency.

    Attributes:
        key: its name in summary.json, gates, expressions and files.
        label: its name in tables and charts.
        short: its name where there is little room.
        definition, undefined: what it is and where it has no value, as docs/definitions.md has it.
        formula: one value a request; None for ``itl``, which has many.
        end: what it waits for; None where requests that were given up are no samples.
        begin: where it counts from.
        per: what its seconds are multiplied by, where it is a duration per something.
        unit: of its figures in tables and in the summary.
        views: where it is shown.
        is_limited: whether an SLO may have a limit on it. It then waits for an ``end``, or is the pace.
        is_gated: whether gates and comparisons may name it.
        is_of_answer: whether a request that failed has none.
        is_of_tokens: whether it is per token: with another tokenizer it has another unit.
        live: how it is shown live; None where it is not counted live.
    """

    key: str
    label: str
    short: str
    definition: str
    undefined: str = ""
    formula: Formula | None
    end: End | None = None
    begin: Begin = Begin.SENT
    per: Formula | None = None
    unit: str = "ms"
    views: frozenset[View] = frozenset()
    is_limited: bool = False
    is_gated: bool = True
    is_of_answer: bool = True
    is_of_tokens: bool = False
    live: LiveView | None = None

    @property
    def is_from_scheduled(self) -> bool:
        """Whether it counts from when the request was due: only an open loop shows it."""
        return self.begin is Begin.SCHEDULED

    @property
    def begins_as_told(self) -> bool:
        """Whether an SLO's limit on it counts from sent or from scheduled, as the run was told."""
        return self.end is not None and self.begin is Begin.SENT

    @property
    def column(self) -> tuple[str, float]:
        """Its column in a table of requests, and what seconds are multiplied by there."""
        return (f"{self.key}_s", 1.0) if self.per is None else (self.key, 1e3)


def ttft(c: Columns) -> Floats:
    """First token event − sent."""
    return np.where(c.streamed, c.first_event_s, np.nan)


def ttfo(c: Columns) -> Floats:
    """First token event that is not reasoning − sent."""
    return np.where(c.streamed, c.first_answer_s, np.nan)


def e2el(c: Columns) -> Floats:
    """Last token event − sent; the end of the answer where it was not streamed."""
    whole = ~c.streamed & c.ok & (c.events == 0)
    return np.where(whole, c.ended_s - c.sent_s, c.last_event_s)


def tpot(c: Columns) -> Floats:
    """(last token − first event) / (n − k): n tokens could arrive, k of them with the first event.

    k is 1 where the server does not count in each event. Hidden reasoning is neither counted nor waited for.
    A last token that is the answer's end came with the finish reason. Not defined where no token followed
    the first event, nor where all came at one time: then there is no pace to see.
    """
    spent = c.last_token_s - c.paced_from_s
    gaps = c.gap_tokens
    pace: Floats = np.where((gaps >= 1) & (spent > 0), spent, np.nan)
    pace /= np.where(gaps >= 1, gaps, 1)
    return pace


def end_lag(c: Columns) -> Floats:
    """NaN of a failed request too: its user waits anyway."""
    return np.where(c.ok, c.end_lag_s, np.nan)


def schedule_delay(c: Columns) -> Floats:
    """sent − scheduled."""
    return c.sent_s - c.scheduled_s


def connect(c: Columns) -> Floats:
    """connected − started; not defined on a reused connection."""
    return np.where(c.reused, np.nan, c.connected_s - c.started_s)


def per_1k_input(c: Columns) -> Floats:
    """1,000 / input tokens; not defined where their number is not known, or 0."""
    return 1e3 / np.where(c.input_tokens > 0, c.input_tokens, np.nan)


#: Upper limits of Prometheus histograms. Neighbours are at most a factor of 1.7 apart where answers of models
#: lie, so that a quantile read from them is that near. To the first token:
TO_FIRST_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0),
)
#: From token to token, as a mean of an answer or one by one:
PACE_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06),
    *(0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0),
)
#: To the last token:
TO_LAST_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0),
    *(20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0),
)

_FROM_SCHEDULED = frozenset({View.REPORT, View.SHORT, View.OVERVIEW, View.DISTRIBUTIONS})

LATENCIES: Final = (
    LatencyMetric(
        key="ttft",
        label="TTFT",
        short="TTFT",
        definition="first token event − sent",
        undefined="no token event",
        formula=ttft,
        end=End.FIRST_TOKEN,
        views=frozenset(View),
        is_limited=True,
        live=LiveView(places=("p50", "p95", "p99"), chart=True, tile=True, buckets_s=TO_FIRST_TOKEN_S),
    ),
    LatencyMetric(
        key="ttft_started",
        label="TTFT with connecting",
        short="TTFT conn.",
        definition="first token event − started: TTFT with the time that getting a connection took",
        undefined="as ttft",
        formula=lambda c: ttft(c) + (c.sent_s - c.started_s),
        end=End.FIRST_TOKEN,
        begin=Begin.STARTED,
        views=frozenset({View.REPORT}),
        is_limited=True,
    ),
    LatencyMetric(
        key="ttfo",
        label="TTFO",
        short="TTFO",
        definition="first token event that is not reasoning − sent (first token of the answer)",
        undefined="none such",
        formula=ttfo,
        end=End.FIRST_ANSWER_TOKEN,
        views=frozenset({View.REPORT, View.SHORT}),
        is_limited=True,
    ),
    LatencyMetric(
        key="tpot",
        label="TPOT",
        short="TPOT",
        definition="(last token − first) / (n − k), n = output tokens that could arrive: without hidden "
        "reasoning; k = those that came with the first event: 1 unless the server counts in each event. The "
        "last token came with the last token event, or was an end without text",
        undefined="n ≤ k, or all tokens came at one time (an answer in one event)",
        formula=tpot,
        views=frozenset(View),
        is_limited=True,
        is_of_tokens=True,
        live=LiveView(places=("p50", "p95", "p99"), chart=True, tile=True, buckets_s=PACE_S),
    ),
    LatencyMetric(
        key="itl",
        label="ITL",
        short="ITL",
        definition="gaps between successive token events (a list)",
        undefined="fewer than 2 events",
        formula=None,
        views=frozenset({View.REPORT, View.SHORT, View.DISTRIBUTIONS, View.COMPARISON}),
        is_of_tokens=True,
        live=LiveView(places=("p99",), chart=True, buckets_s=PACE_S),
    ),
    LatencyMetric(
        key="e2el",
        label="E2EL",
        short="E2EL",
        definition="last token event − sent",
        undefined="no token event",
        formula=e2el,
        end=End.LAST_TOKEN,
        views=frozenset(View),
        is_limited=True,
        live=LiveView(places=("p95",), chart=True, buckets_s=TO_LAST_TOKEN_S),
    ),
    LatencyMetric(
        key="ttft_scheduled",
        label="TTFT from scheduled",
        short="TTFT sched.",
        definition="first token event − scheduled: with the time that the client was late",
        undefined="as ttft",
        formula=lambda c: ttft(c) + schedule_delay(c),
        end=End.FIRST_TOKEN,
        begin=Begin.SCHEDULED,
        views=_FROM_SCHEDULED | {View.COMPARISON},
        is_limited=True,
        live=LiveView(),
    ),
    LatencyMetric(
        key="e2el_scheduled",
        label="E2EL from scheduled",
        short="E2EL sched.",
        definition="last token event − scheduled",
        undefined="as e2el",
        formula=lambda c: e2el(c) + schedule_delay(c),
        end=End.LAST_TOKEN,
        begin=Begin.SCHEDULED,
        views=_FROM_SCHEDULED,
        is_limited=True,
    ),
    LatencyMetric(
        key="prefill_ms_per_1k_input",
        label="TTFT per 1k input",
        short="TTFT/1k in",
        definition="ttft × 1,000 / input tokens: the TTFT of each 1,000 tokens of the prompt",
        undefined="as ttft, or the number of input tokens is not known, or 0",
        formula=lambda c: ttft(c) * per_1k_input(c),
        end=End.FIRST_TOKEN,
        per=per_1k_input,
        unit="ms per 1,000 input tokens",
        views=frozenset({View.REPORT}),
        is_of_tokens=True,
    ),
    LatencyMetric(
        key="schedule_delay",
        label="Schedule delay",
        short="Delay",
        definition="sent − scheduled",
        undefined="the request was never sent",
        formula=schedule_delay,
        begin=Begin.SCHEDULED,
        views=frozenset({View.REPORT, View.SPANS}),
        is_of_answer=False,
        live=LiveView(),
    ),
    LatencyMetric(
        key="connect",
        label="Connect",
        short="Connect",
        definition="connected − started",
        undefined="reused connection",
        formula=connect,
        is_of_answer=False,
    ),
    LatencyMetric(
        key="rtt",
        label="RTT",
        short="RTT",
        definition="the least round-trip time of the connection so far, by the kernel (TCP_INFO), read once "
        "a request; `ttft − rtt` is what the server and gateway took",
        undefined="not a TCP socket that tells it",
        formula=lambda c: c.rtt_s,
        is_gated=False,
        is_of_answer=False,
    ),
    LatencyMetric(
        key="client_lag",
        label="Client lag",
        short="Lag",
        definition="largest (time the program got the read − kernel's receive time) over its reads",
        undefined="no kernel stamps",
        formula=lambda c: c.client_lag_s,
        is_gated=False,
        is_of_answer=False,
        live=LiveView(),
    ),
    LatencyMetric(
        key="end_lag",
        label="End lag",
        short="End lag",
        definition="from the end of a whole answer until the client's event loop took it up; in a closed "
        "loop the user's next request waits for it",
        undefined="the answer did not come whole, or the request failed: its user waits anyway (`--backoff`)",
        formula=end_lag,
        is_gated=False,
        is_of_answer=False,
        live=LiveView(),
    ),
)

#: Every latency by its key.
LATENCY: Final = {metric.key: metric for metric in LATENCIES}

#: Those with one value a request, and their formulas.
FORMULAS: Final[dict[str, Formula]] = {
    metric.key: metric.formula for metric in LATENCIES if metric.formula is not None
}

#: Those that are counted live. Their order is that of the sums and sketches in live messages.
LIVE: Final = tuple(metric for metric in LATENCIES if metric.live is not None)


def shown_in(view: View) -> tuple[LatencyMetric, ...]:
    """The latencies that a view has, in its order."""
    return tuple(metric for metric in LATENCIES if view in metric.views)


def from_scheduled(metric: LatencyMetric) -> LatencyMetric | None:
    """The same latency counted from scheduled; None where there is none."""
    if not metric.begins_as_told:
        return None
    same = (m for m in LATENCIES if (m.end, m.per) == (metric.end, metric.per))
    return next((m for m in same if m.is_from_scheduled), None)
