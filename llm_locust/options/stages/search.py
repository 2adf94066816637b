"""The search that the options of a run ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_locust.metrics.curves.objective import Objective
from llm_locust.metrics.curves.searched import KINDS, bounds_of
from llm_locust.metrics.curves.steps import Bounds
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
    return Search(objective, bounds_of(objective, **words, most=most))


def first_load(search: Search) -> Sweep:
    """The loads of a search that are known before it begins."""
    return Sweep(KINDS[search.objective.axis], (search.bounds.start,))
