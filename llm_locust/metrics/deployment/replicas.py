"""The deployment's replicas side by side."""

from functools import cache, partial
from typing import Any

import numpy as np

from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.columns import Columns, Rows, groups
from llm_locust.metrics.deployment.outages import in_flight, outages, signs
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.requests.goodput import Judgement
from llm_locust.metrics.requests.latency import latency_figures
from llm_locust.metrics.requests.throughput import Credits, rate_per_s
from llm_locust.metrics.sections.stuck import Stuck
from llm_locust.metrics.summary_types.deployment.replicas import ReplicaFigures
from llm_locust.metrics.window import Population, Window

#: The equal parts of the window that ``in_flight`` is told of.
COURSE_PARTS = 60

_PLACES = {"p50": 50.0, "p99": 99.0}
_LATENCIES = tuple(metric.key for metric in shown_in(View.GROUPS))

#: Key of an entry -> latency and figure.
_PERCENTILES = {f"{metric}_{place}_ms": (metric, place) for metric in _LATENCIES for place in _PLACES}


def replicas(c: Columns, credits: Credits, judgement: Judgement | None, stuck: Stuck) -> list[ReplicaFigures]:
    """One entry a replica that answered, by name.

    ``requests`` counts its ok and failed ones scheduled in the window; ``share`` is of all those
    whose replica is known. ``ci95`` has the interval of each percentile, ``at_least`` the lower bound of one
    that cut requests leave open. ``output_tokens_per_s`` and
    ``concurrency_mean`` are of all its requests, whenever they were scheduled. What it did over time is
    :func:`course`'s.
    """
    window = credits.window
    scheduled = window.scheduled(c)
    found = [(name, rows, Population.of(c, scheduled, rows)) for name, rows in groups(c.replica)]
    known = sum(len(population.judged) for _, _, population in found)
    stuck_s = [partial(stuck.bounds_s, rows) for _, rows, _ in found]
    latencies = latency_figures(c, [population for *_, population in found], _LATENCIES, _PLACES, stuck_s)
    entries = []
    for (name, rows, population), stats in zip(found, latencies, strict=True):
        judged, cut = population.judged, int((~c.abandoned[population.cancelled]).sum())
        tokens, finished = credits.output_tokens[rows], credits.finished[rows]
        entries.append(
            ReplicaFigures(
                name=name,
                requests=len(judged),
                share=len(judged) / known if known else None,
                cut_share=cut / (len(judged) + cut) if len(judged) + cut else None,
                **{key: stats[name][place] for key, (name, place) in _PERCENTILES.items()},
                ci95={key: stats[name]["ci95"][place] for key, (name, place) in _PERCENTILES.items()},
                at_least={
                    key: stats[name]["at_least"][place]
                    for key, (name, place) in _PERCENTILES.items()
                    if place in stats[name]["at_least"]
                },
                output_tokens_per_s=rate_per_s(tokens, finished, window.seconds),
                concurrency_mean=_concurrency(c, rows, window),
                error_rate=len(population.failed) / len(judged) if len(judged) else None,
                goodput_ratio=_goodput_ratio(judgement, population, len(stuck.among(rows))),
                in_flight=[],
                outages=[],
            )
        )
    return entries


def course(c: Columns, window: Window) -> dict[str, dict[str, Any]]:
    """What each replica did over time, by name.

    ``in_flight`` is its mean concurrency in each of :data:`COURSE_PARTS` equal parts of the window,
    ``outages`` are the times in which it gave no token while others did.
    """
    found = list(groups(c.replica))
    every = cache(lambda: signs(c, np.flatnonzero(c.replica.codes >= 0)))
    return {
        name: {
            "in_flight": in_flight(c, rows, window, COURSE_PARTS).tolist() if window.seconds > 0 else [],
            "outages": outages(c, rows, every, window),
        }
        for name, rows in found
    }


def _goodput_ratio(judgement: Judgement | None, population: Population, stuck: int) -> float | None:
    if judgement is None:
        return None
    judged = population.all[judgement.judged[population.all]]
    n = len(judged) + stuck
    return int(judgement.good[judged].sum()) / n if n else None


def _concurrency(c: Columns, rows: Rows, window: Window) -> float | None:
    """Time-weighted mean number of requests between sent and ended; None for an empty window."""
    spans = [span for span in window.spans if span.seconds > 0]
    if not spans:
        return None
    lasting = Spans.of(c, rows)
    means = [lasting.means(np.array([span.start_s(c), span.end_s(c)]))[0] for span in spans]
    return max(0.0, float(np.average(means, weights=[span.seconds for span in spans])))
