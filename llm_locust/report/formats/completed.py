"""The completed requests of a run as other tools take them: those that ended ok, of the window."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from llm_locust.core.manifest import StageFacts
from llm_locust.figures.compat import benchmark_seconds
from llm_locust.metrics.columns import Floats, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.censoring import Ascending, ordered, summarise_ascending
from llm_locust.metrics.window import Population
from llm_locust.report.analysis import Analysis

# --- What was asked of a run, as the files of other tools say it


def asked_options(analysis: Analysis) -> dict[str, Any]:
    """The options of the run, with the load of the only stage of its requests, and the report's GPUs."""
    options, stage = dict(analysis.manifest.options), asked_stage(analysis)
    if stage is not None:
        name, asked = (
            ("num_users", int(stage.asked)) if stage.kind == "users" else ("request_rate", stage.asked)
        )
        options[name] = asked
    cost = analysis.summary.cost
    if cost is not None and cost.prices.gpus is not None:
        options["gpus"] = cost.prices.gpus
    return options


def asked_stage(analysis: Analysis) -> StageFacts | None:
    """The stage that all requests are of; None if they are of several, or of a run without stages."""
    manifest = analysis.manifest
    if not manifest.stages:
        return None
    numbers = {
        int(number)
        for part in analysis.requests.parts(["stage"])
        for number in np.unique(part.floats("stage"))
        if not np.isnan(number)
    }
    found = [stage for stage in manifest.stages if stage.number in numbers]
    return found[0] if len(found) == 1 else None


def asked_number(value: object) -> float | None:
    """The value of an option that is a number; None of a distribution or a profile."""
    try:
        return float(str(value))
    except ValueError:
        return None


@dataclass(frozen=True)
class Completed:
    """Figures of completed requests. Requests that were given up are in none of them, unlike in a report."""

    m: Measured

    @cached_property
    def population(self) -> Population:
        return self.m.population(np.arange(len(self.m.c)))

    @property
    def ok(self) -> Rows:
        return self.population.ok

    @cached_property
    def seconds(self) -> float | None:
        """From the first request sent to the last one's end; None without requests."""
        return benchmark_seconds(self.m.c, self.population.judged)

    def latency_s(self, metric: str) -> Floats | Ascending:
        """A latency of the catalogue in seconds, ascending."""
        return self.m.gaps.ascending() if metric == "itl" else ordered(self.m.values[metric][self.ok])

    def tokens(self, side: str) -> Floats:
        """Numbers of input or output tokens that are known, ascending."""
        counts = self.m.c.input_tokens if side == "input" else self.m.c.output_tokens
        return ordered(counts[self.ok])

    def per_second(self, amount: float) -> float | None:
        return amount / self.seconds if self.seconds else None

    @cached_property
    def rates(self) -> dict[str, float | None]:
        """Per second of :attr:`seconds`: requests, and input, output and all tokens. None if unknown."""
        inputs, outputs = (self.tokens(side) for side in ("input", "output"))
        n, amounts = len(self.ok), (float(np.sum(inputs)), float(np.sum(outputs)))
        known = [len(tokens) == n for tokens in (inputs, outputs)]
        return {
            "requests": self.per_second(n),
            "input": self.per_second(amounts[0]) if known[0] else None,
            "output": self.per_second(amounts[1]) if known[1] else None,
            "total": self.per_second(sum(amounts)) if all(known) else None,
        }


def figures(
    ascending: Floats | Ascending, places: Mapping[str, float], scale: float = 1.0
) -> dict[str, Any] | None:
    """``n``, ``mean``, ``std``, ``min``, ``max`` and the percentiles ``places``; None without samples."""
    if not len(ascending):
        return None
    found = summarise_ascending(ascending, scale=scale, places=places)
    return {key: found[key] for key in ("n", "mean", "std", "min", *places, "max")}
