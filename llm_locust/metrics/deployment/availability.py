"""Was somebody served all the time, and did it take more than one try?"""

from collections.abc import Sequence
from dataclasses import dataclass

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

    ``seconds`` counts the whole seconds of the window, from its start on, in which a request was under way:
    nobody is served where nobody asks. ``ok_share`` and ``good_share`` are shares of these in which at least
    one answer ended that was ok, or good. ``longest_without_ok`` and
    ``longest_without_good`` are the longest spans in which none ended, the window's edges counting as
    ends: of a run that is not warm its beginning is such a span. An answer counts where it ended,
    whenever it was scheduled. ``standstill`` is of :class:`~llm_locust.metrics.sections.standstill.Silences`.

    ``retries`` are calls of the population that were sent again on a new connection because a pooled one
    was stale; the client makes no others.

    Returns:
        None for shares and spans where nothing was scheduled or under way, or the window is under a second;
        those of good answers are None without an SLO too.
    """
    asked = len(population.all) > 0 and window.seconds >= 1
    ok = c.ended_s[c.ok]
    good = None if judgement is None else c.ended_s[judgement.good]
    busy = _busy(c, window)
    return Reliability(
        seconds=sum(seconds.seconds for seconds in busy),
        ok_share=_share(ok, busy, c, window) if asked else None,
        good_share=_share(good, busy, c, window) if asked and good is not None else None,
        longest_without_ok=_longest_without(ok, c, window) if asked else None,
        longest_without_good=_longest_without(good, c, window) if asked and good is not None else None,
        standstill=silences.standstills() if asked else None,
        retries=_retries(requests, population.judged),
    )


@dataclass(frozen=True, slots=True)
class _Busy:
    """Whole seconds of a span in which a request was under way: from each of ``first`` up to its ``last``.

    As spans, not as a mask: a window may be as long as its clocks say.
    """

    first: Rows
    last: Rows

    @property
    def seconds(self) -> int:
        return int((self.last - self.first).sum())

    def contained(self, seconds: Rows) -> int:
        """How many of these seconds are among them."""
        at = np.searchsorted(self.first, seconds, side="right") - 1
        return int(((at >= 0) & (seconds < self.last[at])).sum()) if len(self.first) else 0


def _busy(c: Columns, window: Window) -> list[_Busy]:
    """For each span of the window the seconds in which a request was under way."""
    found = []
    for span in window.spans:
        whole = int(span.seconds)
        begin, end = c.started_s - span.start_s(c), c.ended_s - span.start_s(c)
        inside = np.flatnonzero((end > begin) & (end > 0) & (begin < whole))
        inside = inside[np.argsort(begin[inside], kind="stable")]
        first = np.clip(np.floor(begin[inside]), 0, whole).astype(np.int64)
        # Up to the second in which it ended.
        last = np.maximum.accumulate(np.clip(np.floor(end[inside]) + 1, 0, whole).astype(np.int64))
        apart = np.flatnonzero(first[1:] > last[:-1])
        begins = np.concatenate([first[:1], first[apart + 1]])
        found.append(_Busy(begins, np.concatenate([last[apart], last[-1:]])))
    return found


def _share(ends_s: Floats, busy: Sequence[_Busy], c: Columns, window: Window) -> float | None:
    """Of the seconds in which a request was under way, each counted from the beginning of its span."""
    served = 0
    for span, seconds in zip(window.spans, busy, strict=True):
        after = ends_s - span.start_s(c)
        at = np.floor(after[(after >= 0) & (after < int(span.seconds))]).astype(np.int64)
        served += seconds.contained(np.unique(at))
    asked = sum(seconds.seconds for seconds in busy)
    return served / asked if asked else None


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
