"""Durations of requests that were given up, or never sent."""

import numpy as np

from llm_locust.metrics.requests.cut import with_unsent
from llm_locust.metrics.stats.censoring import Durations


def test_what_was_never_sent_leaves_open_what_counts_from_scheduled_and_nothing_else() -> None:
    found = Durations.of(np.array([1.0, 2.0]))
    left_open = with_unsent(found, "ttft_scheduled", 3)
    assert left_open.censored.tolist() == [0.0, 0.0, 0.0]
    assert left_open.observed is found.observed
    assert left_open.trend  # later ones may be longer
    assert with_unsent(found, "ttft", 3) is found
    assert with_unsent(found, "ttft_scheduled", 0) is found
