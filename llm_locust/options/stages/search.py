"""The search that the options of a run ask for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_locust.metrics.curves.objective import Limit, Objective
from llm_locust.metrics.curves.searched import KINDS, bounds_of
from llm_locust.metrics.curves.steps import Bounds
from llm_locust.metrics.stats.certified import fewest_samples
from llm_locust.options.option import Values
from llm_locust.workload.arrivals import Sweep
from llm_locust.workload.arrivals.parse import MAX_RATE
from llm_locust.workload.arrivals.sweep import MAX_USERS


@dataclass(frozen=True, slots=True)
class Search:
    """What a search looks for, and where it begins and ends."""

    objective: Objective
    bounds: Bounds


def search_of(given: Values) -> Search | None:
    """The search that options ask for; None without one (raises ValueError)."""
    objective: Objective | None = given["find"]
    if objective is None:
        return None
    most = MAX_RATE if objective.axis == "rate" else MAX_USERS
    words: Mapping[str, Any] = {name: given[name] for name in ("first_load", "precision", "max_stages")}
    bounds = bounds_of(objective, **words, most=most)
    if objective.axis == "rate":
        for limit in objective.limits:
            _check_certified(limit, bounds.start, given["stage_time"])
    return Search(objective, bounds)


def _check_certified(limit: Limit, rate: float, stage_s: float) -> None:
    """Refuse a first stage that is too short for a certificate."""
    fewest = fewest_samples(limit.percent) if limit.is_certified else 0
    if rate * stage_s < fewest:
        raise ValueError(
            f"--find: {limit.text} needs {fewest:,} requests a stage, and the first one, {rate:g}/s for "
            f"{stage_s:g} s, has about {rate * stage_s:,.0f}: write --stage-time {math.ceil(fewest / rate)}s "
            f"or --first-load {math.ceil(fewest / stage_s)}"
        )


def first_load(search: Search) -> Sweep:
    """The loads of a search that are known before it begins."""
    return Sweep(KINDS[search.objective.axis], (search.bounds.start,))
