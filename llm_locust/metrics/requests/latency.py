"""Latencies of requests, and their figures. The catalogue has the formulas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.catalogue import FORMULAS, LATENCY, tpot, ttft
from llm_locust.metrics.columns import Columns, Floats, Part, Rows
from llm_locust.metrics.ragged import offsets_of
from llm_locust.metrics.requests.cut import Samples, with_stuck, with_unsent
from llm_locust.metrics.requests.gaps import gaps_of
from llm_locust.metrics.stats.cells import Order, order_cells
from llm_locust.metrics.stats.censoring import Durations, summarise, with_infinite
from llm_locust.metrics.stats.percentiles import PERCENTILES
from llm_locust.metrics.window import Population


@dataclass(frozen=True, slots=True)
class Gaps:
    """Inter-token latencies of requests: request i has ``values_s[offsets[i]:offsets[i + 1]]``."""

    offsets: NDArray[np.int64]
    values_s: Floats


def user_tps(c: Columns) -> Floats:
    """1 / tpot: the tokens/s for one user."""
    return np.reciprocal(tpot(c))


def chars_per_s(c: Columns) -> Floats:
    """Characters of the answer × (1 − 1/events) / (e2el − ttft): the pace without a tokenizer.

    Each event counts as the same number of characters, and those of the first have no gap before them.
    Undefined for fewer than two events, and if all arrived at once.
    """
    spent = c.last_event_s - ttft(c)
    with np.errstate(divide="ignore"):
        carried = c.output_chars * (1 - 1 / c.events)
    return carried / np.where(spent > 0, spent, np.nan)


def itl(c: Part, rows: Rows | None = None) -> Gaps:
    """Gaps between successive token events of ``rows`` (all without it), a list for each.

    Returns:
        One list a row; ``values_s`` is the pooled population. Beside it some MiB are used.
    """
    rows = np.arange(len(c)) if rows is None else rows
    counts = np.where(c.streamed[rows], np.maximum(c.events[rows] - 1, 0), 0).astype(np.int64)
    values = np.empty(int(counts.sum()))
    filled = 0
    for _, gaps_ns, _ in gaps_of(c, rows[counts > 0]):
        np.multiply(gaps_ns, 1e-9, out=values[filled : filled + len(gaps_ns)])
        filled += len(gaps_ns)
    return Gaps(offsets_of(counts), values)


@dataclass(frozen=True, slots=True)
class PerRequest(Mapping[str, Floats]):
    """Every latency of the catalogue that is one number a request (all but ``itl``).

    Each is computed on every access: all of them would take more memory than the columns.
    """

    columns: Columns

    def __getitem__(self, metric: str) -> Floats:
        return FORMULAS[metric](self.columns)

    def __iter__(self) -> Iterator[str]:
        return iter(FORMULAS)

    def __len__(self) -> int:
        return len(FORMULAS)


def per_request(c: Columns) -> Mapping[str, Floats]:
    return PerRequest(c)


@dataclass(frozen=True, slots=True)
class Measurable:
    """A population of a table, and its gaps.

    ``order`` is that of all of the population. ``failed_over_time`` counts the failures in each cell of the
    gaps' course. ``unsent`` further requests were due and never sent. ``stuck_s`` returns the lower bounds of
    a metric for requests from before the window that hung in it.
    """

    population: Population
    gaps: Callable[[], Durations]  # called once, when it is their turn
    order: Order
    failed_over_time: Floats
    unsent: int = 0
    stuck_s: Callable[[str], Floats] = lambda _: np.empty(0)


Tables = tuple[dict[str, Any], dict[str, Any]]


def latency_tables(
    c: Columns, populations: Sequence[Measurable], places: Mapping[str, float] = PERCENTILES
) -> list[Tables]:
    """Plain and adjusted figures of every metric, for each population.

    The plain ones are of the requests that ended ok; of ttft, ttfo and e2el, from wherever, those that were
    cancelled or timed out are censored samples, and observed ones where that token had come. The adjusted
    ones have +∞ for each failed request in place of its times: once, and in ``itl`` as often as an ok request
    has gaps on average. In both, requests that were never sent leave open what is counted from scheduled, and
    requests from before the window that hung in it their latencies, as far as they could move them.
    ``places`` are the percentiles that a table has, key to percent.
    """
    tables: list[Tables] = [({}, {}) for _ in populations]
    for metric in LATENCY:
        # Metric by metric, so that the values of one at a time are there.
        samples = Samples.of(c, per_request(c), metric) if metric in FORMULAS else None
        for (plain, adjusted), each in zip(tables, populations, strict=True):
            if samples is None:
                found = each.gaps()
                beyond = adjusted_gaps(found, each.population, each.failed_over_time)
            else:
                found = samples.durations(each.population, each.order)
                beyond = samples.adjusted(each.population, found, each.order)
            stuck_s = each.stuck_s(metric)
            for table, durations in ((plain, found), (adjusted, beyond)):
                durations = with_stuck(durations, stuck_s)
                table[metric] = summarise(with_unsent(durations, metric, each.unsent), 1e3, places)
    return tables


def adjusted_gaps(found: Durations, population: Population, failed_over_time: Floats) -> Durations:
    """The gaps of a population with +∞ for as many as each failed request would have had: those of the
    average ok one.

    Args:
        failed_over_time: number of failures in each cell of the gaps' course.
    """
    failed, gaps = len(population.failed), len(found.observed)
    infinite = round(failed * gaps / len(population.ok)) if gaps else failed
    return with_infinite(found, infinite, failed_over_time / max(1, failed) * infinite)


def latency_figures(
    c: Columns,
    populations: Sequence[Population],
    metrics: Sequence[str],
    places: Mapping[str, float],
    stuck_s: Sequence[Callable[[str], Floats]] | None = None,
) -> list[dict[str, dict[str, Any]]]:
    """Plain figures of some metrics other than itl, for each population.

    Args:
        stuck_s: of each population, as in :class:`Measurable`; default: none.
    """
    bounds_s = stuck_s or [lambda _: np.empty(0)] * len(populations)
    found: list[dict[str, dict[str, Any]]] = [{} for _ in populations]
    orders = [order_cells(c, population.all) for population in populations]
    for metric in metrics:
        samples = Samples.of(c, per_request(c), metric)
        for figures, population, order, bound_s in zip(found, populations, orders, bounds_s, strict=True):
            durations = with_stuck(samples.durations(population, order=order), bound_s(metric))
            figures[metric] = summarise(durations, 1e3, places)
    return found
