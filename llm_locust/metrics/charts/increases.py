"""What servers' counters grew by, in the spans of a chart."""

import numpy as np

from llm_locust.metrics.columns import Floats
from llm_locust.metrics.deployment.server_series import ServerSeries, Targets

#: So much of a part may lack at its edge for its increase to be that of the part.
_EDGE = 0.05


def increases(series: ServerSeries, name: str, of: Targets = None) -> Floats:
    """Of a counter in each part, added up; NaN where it was not watched all of the part."""
    total = np.zeros(len(series.edges_s) - 1)
    watched = np.zeros(len(total), np.bool_)
    slack_s = _EDGE * float(series.edges_s[-1]) / len(total)
    for each in series.named(name, of).values():
        total += each.amounts
        for first_s, last_s in each.watched_s:
            begun = first_s <= series.edges_s[:-1] + slack_s
            watched |= begun & (last_s >= series.edges_s[1:] - slack_s)
    return np.where(watched, total, np.nan)


def over(amounts: Floats, by: Floats) -> Floats:
    """A ratio in each span; NaN where ``by`` is 0 or unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(by > 0, amounts / by, np.nan)
