"""A store's numbers over time, as columns for charts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from llm_locust.core.record import Outcome
from llm_locust.live.figures import LIVE_PLACES, Figures, figures, rounded
from llm_locust.live.state import Gauges, LoadMark, ServerGauges
from llm_locust.live.store import Cell, LiveStore, TimeCells
from llm_locust.metrics.server_roles import label_of_server, role_of_label
from llm_locust.metrics.server_series import FIGURES, spread

#: The last 5 minutes, the last hour, the whole run.
Span = Literal["5m", "1h", "run"]
SPANS: tuple[Span, ...] = ("5m", "1h", "run")

_OUTCOME_RATES = frozenset(f"{outcome}_per_s" for outcome in Outcome)

_OF_FIGURES = (
    *("requests_per_s", "failures_per_s", "input_tokens_per_s", "output_tokens_per_s"),
    *("good_output_tokens_per_s", "inputs_per_s", "images_per_s", "goodput"),
)
#: ``<jobs>_per_min`` of a run with agents, beside ``output_tokens_per_s_p25``.
_JOBS = ("jobs", "jobs_failed")

#: Most servers with a line of their own in a chart.
MOST_LINES = 8

Point = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class LiveSeries:
    """Columns of equal length, with a value for each cell of ``width_s``; None if undefined.

    ``at_s`` are the starts of the cells, in seconds since the Unix epoch. Cells without an event are left
    out, as are those whose reports may still arrive. Each live latency has ``<latency>_p50_ms``, ``_p95_ms``
    and ``_p99_ms``. There is ``attainment_<limit>`` for each limit of the SLO, and ``<outcome>_per_s`` for
    each outcome that occurs in the span. A run with agents has ``jobs_per_min``, ``jobs_failed_per_min`` and
    ``output_tokens_per_s_p25``. ``server:<figure>:<name>`` is a figure that a server reports; with
    more than :data:`MOST_LINES` servers the name is ``highest``, ``median`` or ``lowest``, of each role.
    """

    span: Span
    width_s: float
    at_s: list[float]
    columns: dict[str, list[float | None]]
    marks: list[LoadMark]


class Charts:
    """Series of one store, or of copies of it. A cell's figures are computed once and cached."""

    def __init__(self) -> None:
        self._cached: dict[Span, dict[float, tuple[Cell, tuple[float, bool], Point]]] = {}

    def series(self, store: LiveStore, span: Span) -> LiveSeries:
        content = store.content
        cells: TimeCells[Cell] = {"5m": content.recent, "1h": content.hour, "run": content.run}[span]
        end_s = store.settled_s
        if content.stopped_s is not None:
            end_s += cells.width_s  # no more will arrive: the last cell is complete
        points, before = {}, self._cached.get(span, {})
        look = cells.width_s, len(content.servers) <= MOST_LINES
        for at_s, cell in cells.between(float("-inf"), end_s):
            cached = before.get(at_s)
            # A cell that was changed is another object.
            if cached is None or cached[0] is not cell or cached[1] != look:
                cached = cell, look, _point(store, cell, at_s, *look)
            points[at_s] = cached
        self._cached[span] = points
        at = list(points)
        # The first of them, of a start or a reset, are older than the first cell.
        since_s = max(content.started_s, cells.since_s)
        marks = [m for m in store.marks if at and m.at_s >= since_s]
        return LiveSeries(
            span, cells.width_s, at, _columns([point for _, _, point in points.values()]), marks
        )


def _point(store: LiveStore, cell: Cell, at_s: float, width_s: float, few_servers: bool) -> Point:
    content = store.content
    end_s = at_s + width_s if content.stopped_s is None else min(at_s + width_s, content.stopped_s)
    seconds = max(0.0, end_s - max(at_s, content.started_s))
    of_cell = figures(cell.counts, seconds, store.run.limits)
    values = *_series_figures(of_cell, cell.gauges, seconds), *_servers(cell.servers, few_servers)
    return {name: rounded(value) for name, value in values}


def _series_figures(of_cell: Figures, gauges: Gauges, seconds: float) -> Iterator[tuple[str, float | None]]:
    for name, latency in of_cell.latencies.items():
        yield from ((f"{name}_{place}_ms", latency.at_ms(place)) for place in LIVE_PLACES)
    yield from ((name, getattr(of_cell, name)) for name in _OF_FIGURES)
    if of_cell.agents is not None:
        yield "output_tokens_per_s_p25", of_cell.agents.output_tokens_per_s_p25
        yield from (
            (f"{name}_per_min", getattr(of_cell.agents, name) / seconds * 60) for name in _JOBS if seconds
        )
    for limit, share in of_cell.attainment.items():
        yield f"attainment_{limit}", share
    for outcome, count in of_cell.outcomes.items():
        if count and seconds:
            yield f"{outcome}_per_s", count / seconds
    yield "users", gauges.users_mean
    yield "workers", gauges.workers_mean
    yield "concurrency", gauges.in_flight_mean
    yield "concurrency_max", gauges.in_flight_max
    yield "cpu_percent_max", gauges.cpu_percent_max
    yield "hub_lag_ms_max", gauges.hub_lag_ms_max


def _servers(servers: Mapping[str, ServerGauges], few: bool) -> Iterator[tuple[str, float | None]]:
    means = {name: gauges.means for name, gauges in sorted(servers.items())}
    for figure in FIGURES:
        values = {name: figures[figure] for name, figures in means.items()}
        for name, value in (values if few else _spread_by_role(values)).items():
            if value is not None:
                yield f"server:{figure}:{name}", value


def _spread_by_role(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Extremes and median of the servers of each role: those of two kinds are not compared."""
    roles = dict.fromkeys(role_of_label(name) for name in values)
    spreads: dict[str, float | None] = {}
    for role in roles:
        of_role = spread(value for label, value in values.items() if role_of_label(label) == role)
        spreads |= {label_of_server(name, role): value for name, value in of_role.items()}
    return spreads


def _columns(points: list[Point]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for point in points for name in point)
    # An outcome that did not occur has a true rate of 0; everything else that a point lacks is unknown.
    return {
        name: [point.get(name, 0.0 if name in _OUTCOME_RATES else None) for point in points] for name in names
    }
