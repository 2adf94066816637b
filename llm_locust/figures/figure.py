"""A figure of a run: how it is computed from the run, and how a report shows it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.figures.text import Section
from llm_locust.metrics.answers import Answers
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Missing
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.standstill import Silences
from llm_locust.metrics.window import Population

if TYPE_CHECKING:
    from llm_locust.figures.latency import LiveEnd
    from llm_locust.figures.parts import PartFigures
    from llm_locust.figures.summary import Summary

T = TypeVar("T")

#: What a report shows of a figure; None where it has nothing to say.
Made = Section | Iterable[Section] | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, or a selection of its requests, measured: what figures are computed from.

    Attributes:
        requests: what ``m`` was measured of, in the same order; without first tries.
        rows: number of requests that the run has, whatever was selected of them.
        of_selection: they are some of the run's requests only.
        server: what was scraped of the servers, in the same window; None of a selection.
        live: the run's last live figures; None where they are of other requests.
        answers: what the answers were worth.
        missing: requests without a record that belong to these.
        whole: the counts, latencies, rates and goodput of all requests.
    """

    requests: Requests
    m: Measured
    manifest: Manifest
    question: Question
    rows: int
    of_selection: bool = False
    server: ServerSeries | None = None
    live: "LiveEnd | None" = None
    answers: Answers
    missing: Missing
    whole: "PartFigures"
    _computed: dict[Any, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def warmup_s(self) -> float:
        return self.question.warmup_of(self.manifest)

    @cached_property
    def population(self) -> Population:
        return self.m.population(np.arange(len(self.m.c)))

    @cached_property
    def silences(self) -> Silences:
        """The times in which nothing came though requests were under way."""
        return Silences.of(self.m.c, self.m.holes, self.m.window, self.m.judgement)

    def figure(self, compute: "Callable[[Run], T]") -> T:
        """Another figure of this run; each is computed once."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        found: T = self._computed[compute]
        return found


class Figure:
    """How a key of ``summary.json`` is computed, and what a report shows of it.

    ``compute`` returns None where a run has nothing of the kind, or a text that says why; without it the
    figure is known later, or by a report only. ``shows`` take their figures from the summary. A section has
    the key of its figure, if it names no other.
    """

    def __init__(self, compute: Callable[[Run], Any] | None, *shows: "Callable[[Summary], Made]") -> None:
        self.compute = compute
        self._shows = shows

    def sections(self, summary: "Summary") -> Iterator[Section]:
        for show in self._shows:
            made = show(summary)
            yield from (made,) if isinstance(made, Section) else made or ()
