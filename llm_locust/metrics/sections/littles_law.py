"""Little's law on a run: L = λ W, requests in flight against the sending rate times the time each took.

It is checked twice. Over the window, from the records alone: the area under the number in flight against the
sum of the times, corrected for requests that cross the window's edges. Records with contradicting times break
it. And over the whole run, from the workers: each integrates its number of calls in flight, by its own
counter and clock, without using a record. Missing, duplicate or misplaced records break that one.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.figures import quantity
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.sections.thresholds import LITTLES_LAW
from llm_locust.metrics.window import Window

#: A call is over for its worker a little after its last byte: so long for each, beside its measured lags.
ENDING_S = 0.001

_COLUMNS = ("worker", "started_ns", "ended_ns", "end_lag_ns")


def littles_law(
    c: Columns, window: Window, requests: Requests, manifest: Manifest, *, of_selection: bool
) -> dict[str, Any]:
    """The ``littles_law`` of a summary; None if a side is unknown.

    Args:
        of_selection: ``requests`` are some of the run's: the workers counted them all.
    """
    over_window = _over_window(c, window)
    counted = None if of_selection else _by_workers(requests, manifest)
    beyond = [] if over_window["difference"] is None else [over_window["difference"]]
    if counted is not None:
        beyond.append(counted.pop("beyond"))
    return {
        "holds": not any(LITTLES_LAW.severity(abs(each)) for each in beyond) if beyond else None,
        **over_window,
        **(counted or dict.fromkeys(("workers_in_flight_s", "records_in_flight_s", "workers_difference"))),
    }


def _over_window(c: Columns, window: Window) -> dict[str, Any]:
    """L from the area, λ and W from the requests sent, and the contribution of the edges."""
    start_s, end_s = window.start_s(c), window.end_s(c)
    sent = ~np.isnan(c.sent_s)
    if window.gaps or window.seconds <= 0 or not sent.any():
        keys = ("in_flight_mean", "sent_per_s", "time_s", "edges", "difference")
        return dict.fromkeys(keys)
    sent_s, ended_s = c.sent_s[sent], c.ended_s[sent]
    inside = (sent_s >= start_s) & (sent_s < end_s)
    before = (sent_s < start_s) & (ended_s > start_s)
    times_s = np.sort(ended_s[inside] - sent_s[inside])  # the order of workers is no input to a sum
    came_in = float(np.sort(np.minimum(ended_s[before], end_s) - start_s).sum())
    went_out = float(np.sort(np.maximum(ended_s[inside] - end_s, 0.0)).sum())
    edges = (came_in - went_out) / window.seconds
    mean = float(Spans.of(c).means(np.array([start_s, end_s]))[0])
    rate, time_s = int(inside.sum()) / window.seconds, float(times_s.mean()) if inside.any() else 0.0
    return {
        "in_flight_mean": mean,
        "sent_per_s": rate,
        "time_s": time_s,
        "edges": edges,
        "difference": (rate * time_s + edges - mean) / mean if mean else None,
    }


def _by_workers(requests: Requests, manifest: Manifest) -> dict[str, Any] | None:
    """Seconds in flight by the workers' counters and by the records of the same workers.

    The last report of a lost worker is older than its last record; what it lost is counted already.
    """
    told_s = {
        w.id: w.in_flight_ns * 1e-9 for w in manifest.workers if w.in_flight_ns is not None and not w.lost
    }
    total_s = sum(told_s.values())
    if total_s <= 0:
        return None
    records_s = allowed_s = 0.0
    for durations_s, lags_s in _of_workers(requests, told_s.keys()):
        records_s += float(durations_s.sum())
        allowed_s += float(lags_s.sum()) + ENDING_S * len(lags_s)
    missing_s = total_s - records_s
    excess_s = missing_s - min(max(missing_s, 0.0), allowed_s)
    return {
        "workers_in_flight_s": total_s,
        "records_in_flight_s": records_s,
        "workers_difference": -missing_s / total_s,
        "beyond": -excess_s / total_s,
    }


def _of_workers(requests: Requests, ids: Container[str]) -> Iterator[tuple[Floats, Floats]]:
    """Duration of each record of these workers, and how late its client noticed its end."""
    for batch in requests.parts(_COLUMNS):
        labels = batch.labels("worker")
        theirs = np.array([*(name in ids for name in labels.names), False])[labels.codes]
        durations_s = (batch.ints("ended_ns") - batch.ints("started_ns"))[theirs] * 1e-9
        yield durations_s, np.nan_to_num(batch.floats("end_lag_ns")[theirs]) * 1e-9


def law_text(law: Mapping[str, Any]) -> str:
    """Both sides as a phrase."""
    if law["workers_in_flight_s"] is None:
        rate, time_s = quantity(law["sent_per_s"]), quantity(law["time_s"])
        return f"{quantity(law['in_flight_mean'])} in flight, {rate}/s × {time_s} s"
    return (
        f"the workers counted {quantity(law['workers_in_flight_s'])} s of requests in flight, "
        f"the records have {quantity(law['records_in_flight_s'])} s"
    )
