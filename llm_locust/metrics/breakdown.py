"""The figures of a run by any label of its requests: by worker, by turn, by replica."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.terms import listed, nearest
from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.columns import Rows, groups
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.goodput import Missing, good_rates, goodput
from llm_locust.metrics.requests.goodput_intervals import goodput_intervals
from llm_locust.metrics.requests.latency import latency_figures
from llm_locust.metrics.requests.throughput import throughput
from llm_locust.metrics.stats.percentiles import PERCENTILES
from llm_locust.metrics.whole import read_whole
from llm_locust.metrics.window import Population

#: What requests can be told apart by: columns of their records.
DIMENSIONS = (
    *("name", "class", "replica", "worker", "model", "session", "turn", "arm"),
    *("endpoint", "peer", "outcome", "status", "finish_reason", "token_source", "prompt_id", "user"),
    *("session_header", "answered_model", "doubt"),
)

#: Groups that are told, those of most requests: a run may have a million sessions.
MOST_GROUPS = 200

_SHOWN = tuple(metric.key for metric in shown_in(View.GROUPS))


@dataclass(frozen=True, slots=True)
class Breakdown:
    """``groups`` has each label's figures, by label; ``left_out`` counts the smallest groups beyond 200.

    Requests without a label are those of the label "".
    """

    groups: dict[str, dict[str, Any]]
    left_out: int


def parse_dimensions(text: str) -> tuple[str, ...]:
    """The dimensions of ``replica,turn``.

    Raises:
        ValueError: one is unknown, or there is none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in DIMENSIONS:
            raise ValueError(f'"{word}": {nearest(word, DIMENSIONS)}write one of {listed(DIMENSIONS)}')
    if not words:
        raise ValueError(f"nothing to tell requests apart by: write one of {listed(DIMENSIONS)}")
    return tuple(dict.fromkeys(words))


def breakdown(
    m: Measured, requests: Requests, dimension: str, places: Mapping[str, float] = PERCENTILES
) -> Breakdown:
    """requests, latency_ms (of the latencies that groups have), throughput and goodput of each label.

    Of requests without a record no label is known: shares are of the recorded ones.

    Args:
        requests: what ``m`` was measured of, in the same order.
        dimension: one of :data:`DIMENSIONS`.
    """
    found = sorted(groups(_labels(requests, dimension)), key=lambda group: -len(group[1]))
    told = sorted(found[:MOST_GROUPS], key=lambda group: _order(group[0]))
    populations = [m.population(rows) for _, rows in told]
    stuck_s = [partial(m.stuck.bounds_s, rows) for _, rows in told]
    latencies = latency_figures(m.c, populations, _SHOWN, places, stuck_s)
    figures = {
        label: _figures(m, rows, population, latency_ms)
        for (label, rows), population, latency_ms in zip(told, populations, latencies, strict=True)
    }
    return Breakdown(figures, len(found) - len(told))


@dataclass(frozen=True, slots=True)
class _Labelled:
    labels: Labels


def _labels(requests: Requests, column: str) -> Labels:
    def labelled(batch: RecordBatch) -> _Labelled:
        texts = batch.table.column(0).cast(pa.string()).fill_null("").dictionary_encode()
        return _Labelled(RecordBatch(batch.table.set_column(0, column, texts)).labels(column))

    return read_whole(_Labelled, requests, [column], labelled).labels


def _order(label: str) -> tuple[bool, int, str]:
    """Numbers by their value, before texts."""
    return (False, int(label), "") if label.isdecimal() else (True, 0, label)


def _figures(m: Measured, rows: Rows, population: Population, latency_ms: dict[str, Any]) -> dict[str, Any]:
    judged, stuck = population.judged, len(m.stuck.among(rows))
    cut = len(population.cut(m.c))
    return {
        "requests": {
            "scheduled": len(population.all),
            "ok": len(population.ok),
            "failed": len(population.failed),
            "cancelled": len(population.cancelled),
            "cut": cut,
            "cut_share": cut / (len(judged) + cut) if len(judged) + cut else None,
            "population": len(judged),
            "error_rate": len(population.failed) / len(judged) if len(judged) else None,
        },
        "latency_ms": latency_ms,
        "throughput": throughput(m.c, m.credits, rows),
        "goodput": goodput(m.judgement, m.c, population.all, Missing(None, None, stuck))
        | good_rates(m.judgement, m.credits, rows)
        | goodput_intervals(m, population.all, rows, stuck),
    }
