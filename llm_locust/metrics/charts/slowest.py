"""The requests that took longest, each with what its time went to."""

from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.charts.tokens import RequestDetails
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows

MOST_SHOWN = 20

#: What a request's time goes to, in order; each ends where the next one begins.
PHASES = ("queue", "connect", "first byte", "first token", "tokens", "end")


@dataclass(frozen=True, slots=True)
class SlowRequest:
    """One request; times are in seconds. ``phases`` has :data:`PHASES`, which add up to ``total_s``."""

    request_id: str
    name: str
    slo_class: str
    replica: str
    worker: str
    outcome: str
    scheduled_s: float  # on the axis of the columns
    total_s: float
    phases: dict[str, float]
    longest_gap_s: float
    input_tokens: float
    output_tokens: float


def slowest(c: Columns, judged: Rows) -> Rows:
    """Those of ``judged`` with the longest time from scheduled to ended, longest first."""
    total_s = c.ended_s[judged] - c.scheduled_s[judged]
    return judged[np.argsort(-total_s, kind="stable")[:MOST_SHOWN]]


def slow_request(c: Columns, row: int, details: RequestDetails, worker: str) -> SlowRequest:
    return SlowRequest(
        request_id=details.request_id,
        name=_text(c.name.names, c.name.codes[row]),
        slo_class=_text(c.slo_class.names, c.slo_class.codes[row]),
        replica=_text(c.replica.names, c.replica.codes[row]),
        worker=worker,
        outcome=OUTCOMES[c.outcome[row]].value,
        scheduled_s=float(c.scheduled_s[row]),
        total_s=float(c.ended_s[row] - c.scheduled_s[row]),
        phases=dict(zip(PHASES, _phases(c, row, details).tolist(), strict=True)),
        longest_gap_s=details.longest_gap_s,
        input_tokens=float(c.input_tokens[row]),
        output_tokens=float(c.output_tokens[row]),
    )


def _phases(c: Columns, row: int, details: RequestDetails) -> Floats:
    """What was waited for in vain has all the time to the end; what is not known, that to the next moment."""
    sent_s = c.sent_s[row]
    moments = [
        c.scheduled_s[row],
        c.started_s[row],
        sent_s,
        details.headers_s,
        sent_s + c.first_event_s[row],
        sent_s + c.last_event_s[row],
    ]
    # From the end backwards: none is later than the one after it.
    reached = np.fmin.accumulate(np.append(moments, c.ended_s[row])[::-1])[::-1]
    phases: Floats = np.diff(reached.astype(np.float64))
    return np.round(phases, 9)  # whole nanoseconds, without what floats add


def _text(names: tuple[str, ...], code: int) -> str:
    return names[code] if code >= 0 else ""
