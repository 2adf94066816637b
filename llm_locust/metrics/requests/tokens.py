"""How long prompts and answers were, and how the tokens came."""

from dataclasses import replace

import numpy as np

from llm_locust.core.record import Outcome, TokenSource
from llm_locust.metrics.columns import OUTCOMES, SOURCES, Columns, Floats, Mask, Rows

_BY_EVENTS = SOURCES.index(TokenSource.EVENTS)
_REJECTED = OUTCOMES.index(Outcome.REJECTED)

#: Key of ``source`` for the tokens of cut requests, see :func:`with_estimates`.
ESTIMATE = "estimate"

#: Gaps below this are two events of one write, not the pace of a model.
NO_GAP_MS = 0.1

#: Time for each event of an answer that came at once, from which something held its events back.
HELD_MS = 0.5

#: Answers of fewer events may come at once from the server itself.
LEAST_EVENTS = 4


def with_estimates(c: Columns, credited: Floats) -> tuple[Columns, Floats]:
    """The same with better counts of requests that were cut or failed before the server counted.

    Their token events are known. An event is taken to have as many tokens as those of the run's counted
    answers, which makes no difference where each has one.

    Args:
        credited: the tokens of each request that a window got, counted as in ``c``.
    """
    each, rows = _counted_per_event(c), np.flatnonzero(_uncounted(c))
    if each is None or not len(rows):
        return c, credited
    output, credited = c.output_tokens.copy(), credited.copy()
    output[rows] *= each
    credited[rows] *= each
    return replace(c, output_tokens=output), credited


def _counted_per_event(c: Columns) -> float | None:
    return tokens_per_event(c, np.flatnonzero(c.ok & (c.source != _BY_EVENTS)))


def _uncounted(c: Columns) -> Mask:
    """Answers that did not get to the server's count; a rejected one is complete."""
    broken_off: Mask = ~c.ok & (c.outcome != _REJECTED) & c.streamed & (c.events > 0)
    return broken_off & np.equal(c.source, _BY_EVENTS)


def tokens_per_event(c: Columns, ok: Rows) -> float | None:
    """Output tokens that events brought / token events, over the streamed answers whose count is known.

    A first event that is known to bring several counts as one with one: they say nothing of the others.
    """
    rows = ok[c.streamed[ok] & (c.events[ok] > 0) & ~np.isnan(c.output_tokens[ok])]
    events = int(c.events[rows].sum())
    return float((c.event_tokens - c.opening_tokens + 1)[rows].sum()) / events if events else None
