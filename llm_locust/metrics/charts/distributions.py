"""Whole distributions as percentiles at fixed levels, dense where the tail is."""

from collections.abc import Mapping

import numpy as np

from llm_locust.metrics.catalogue import shown_in
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.latency_metric import View
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.percentiles import Ascending, ordered, percentile

_BODY = np.arange(0.0, 99.0, 0.5)
#: Shares above a level from 1 % down to 0.001 %, ten levels a decade.
_TAIL = 100 - 10.0 ** (-np.arange(0, 31) / 10)

#: Percent, ascending, from the least sample to the greatest.
LEVELS: Floats = np.concatenate([_BODY, _TAIL, [100.0]])


def distributions(m: Measured, ok: Rows, open_loop: bool) -> dict[str, Floats]:
    """The :data:`LEVELS` of each latency that is drawn, of the requests ``ok``, in seconds.

    Of an open loop those from scheduled too. A metric without a sample is left out.
    """
    values: Mapping[str, Floats] = m.values
    found = {
        metric.key: levels_of(
            m.gaps.ascending() if metric.formula is None else ordered(values[metric.key][ok])
        )
        for metric in shown_in(View.DISTRIBUTIONS)
        if open_loop or not metric.is_from_scheduled
    }
    return {metric: levels for metric, levels in found.items() if not np.isnan(levels).all()}


def levels_of(ascending: Floats | Ascending) -> Floats:
    """Percentiles at :data:`LEVELS`; NaN at levels that no single sample stands for, but for the last."""
    n = len(ascending)
    # Half a sample of room: 100 − 99.9 is a little below 0.1.
    held = [n > 0 and (level == 100 or n * (100 - level) > 99.5) for level in LEVELS]
    return np.array(
        [percentile(ascending, float(level)) if h else np.nan for level, h in zip(LEVELS, held, strict=True)]
    )
