"""Was somebody served all the time, and did it take more than one try?"""

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.goodput import Judgement
from llm_locust.metrics.sections.standstill import Silences
from llm_locust.metrics.summary_types.course import Reliability, Retries, WithoutAnswers
from llm_locust.metrics.window import Population, Window


def reliability(
    requests: Requests,
    c: Columns,
    population: Population,
    judgement: Judgement | None,
    window: Window,
    silences: Silences,
) -> Reliability:
    """The ``reliability`` of a summary.

    ``ok_share`` and ``good_share`` are shares of the ``seconds``, whole ones from the window's start on, in
    which at least one answer ended that was ok, or good. ``longest_without_ok`` and
    ``longest_without_good`` are the longest spans in which none ended, the window's edges counting as
    ends: of a run that is not warm its beginning is such a span. An answer counts where it ended,
    whenever it was scheduled. ``standstill`` is of :class:`~llm_locust.metrics.sections.standstill.Silences`.

    ``retries`` are calls of the population that were sent again on a new connection because a pooled one
    was stale; the client makes no others.

    Returns:
        None for shares and spans where nothing was scheduled or the window is under a second; those of good
        answers are None without an SLO too.
    """
    asked = len(population.all) > 0 and window.seconds >= 1
    ok = c.ended_s[c.ok]
    good = None if judgement is None else c.ended_s[judgement.good]
    return Reliability(
        seconds=sum(int(span.seconds) for span in window.spans),
        ok_share=_share(ok, c, window) if asked else None,
        good_share=_share(good, c, window) if asked and good is not None else None,
        longest_without_ok=_longest_without(ok, c, window) if asked else None,
        longest_without_good=_longest_without(good, c, window) if asked and good is not None else None,
        standstill=silences.standstills() if asked else None,
        retries=_retries(requests, population.judged),
    )


def _share(ends_s: Floats, c: Columns, window: Window) -> float | None:
    """Of the whole seconds, each counted from the beginning of its span of the window."""
    served = seconds = 0
    for span in window.spans:
        whole = int(span.seconds)
        after = ends_s - span.start_s(c)
        served += len(np.unique(np.floor(after[(after >= 0) & (after < whole)])))
        seconds += whole
    return served / seconds if seconds else None


def _longest_without(ends_s: Floats, c: Columns, window: Window) -> WithoutAnswers:
    """The longest time between two ends, edges being such too; ``start_s`` is after the window's start."""
    longest, begins = 0.0, 0.0
    for span in window.spans:
        start_s, end_s = span.start_s(c), span.end_s(c)
        inside = np.sort(ends_s[(ends_s >= start_s) & (ends_s < end_s)])
        edges = np.concatenate([[start_s], inside, [end_s]])
        waits = np.diff(edges)
        at = int(np.argmax(waits))
        if waits[at] > longest:
            longest, begins = float(waits[at]), float(edges[at]) - window.start_s(c)
    return WithoutAnswers(seconds=longest, start_s=begins)


def _retries(requests: Requests, judged: Rows) -> Retries:
    """``requests`` that were tried again, the ``total`` of tries beyond the first, and the most of one."""
    counts = np.concatenate([batch.ints("retries") for batch in requests.parts(["retries"])])[judged]
    return Retries(
        requests=int((counts > 0).sum()),
        total=int(counts.sum()),
        max=int(counts.max()) if len(counts) else None,
    )
