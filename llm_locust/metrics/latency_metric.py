"""What the catalogue of latencies says of each of them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from llm_locust.metrics.columns import Columns, Floats

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
