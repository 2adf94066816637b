"""The durations that a figure of all requests is computed from."""

import numpy as np

from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.cut import Samples, with_stuck, with_unsent
from llm_locust.metrics.requests.latency import adjusted_gaps
from llm_locust.metrics.stats.cells import order_cells, time_cells
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.percentiles import Ascending
from llm_locust.metrics.window import Population


def durations_of(
    m: Measured,
    population: Population,
    latency: str,
    *,
    adjusted: bool,
    unsent: int,
    gaps: Floats | Ascending | None = None,
) -> Durations:
    """One latency of all requests, as :func:`~llm_locust.metrics.requests.latency.latency_tables` has it.

    Args:
        population: that of all requests of ``m``.
        adjusted: failed requests count as without end.
        unsent: requests that were due and never sent.
        gaps: those of ``m``, ascending, where they are there.
    """
    if latency not in FORMULAS:
        found = Durations(m.gaps.ascending() if gaps is None else gaps, course=m.gaps.course())
        failed_over_time = time_cells(m.window, m.c, m.c.scheduled_s[population.failed]).sums()
        return adjusted_gaps(found, population, failed_over_time) if adjusted else found
    samples, order = Samples.of(m.c, m.values, latency), order_cells(m.c, population.all)
    found = samples.durations(population, order)
    if adjusted:
        found = samples.adjusted(population, found, order)
    found = with_stuck(found, m.stuck.bounds_s(np.arange(len(m.c)), latency))
    return with_unsent(found, latency, unsent)
