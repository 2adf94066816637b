"""Little's law on a run: L = λ W, requests in flight against the sending rate times the time each took.

It is checked twice. Over the window, from the records alone: the area under the number in flight against
the sum of the times, corrected for requests that cross the window's edges. Records with contradicting
times break it. And over the whole run, from the workers: each integrates its number of calls in flight,
by its own counter and clock, without using a record. Missing, duplicate or misplaced records break that
one.
"""

from collections.abc import Container, Iterator
from typing import Annotated

import numpy as np
from msgspec import structs

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import quantity
from llm_locust.figures.client_rules import LITTLES_LAW
from llm_locust.figures.figure import Run
from llm_locust.figures.text import Line, Tone, number, percent, sentence
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window


class LittlesLaw(SummaryPart, frozen=True):
    """Little's law: requests in flight by their number, and by their rate and time."""

    holds: Annotated[
        bool | None,
        key(
            "`difference`, and what of `workers_difference` client lag and 1 ms a record do not explain, are "
            "within 2 %; null where neither is known"
        ),
    ]
    in_flight_mean: Annotated[
        float | None,
        key(
            "mean number of requests between sent and ended: the area under their number / seconds",
            "the window, every request that was sent",
        ),
    ]
    sent_per_s: Annotated[
        float | None, key("requests sent / seconds", "sent in the window, whatever became of them")
    ]
    time_s: Annotated[
        float | None, key("mean time from sent to ended, s", "sent in the window, whatever became of them")
    ]
    edges: Annotated[
        float | None,
        key(
            "(time in the window of requests sent before it − time after it of those sent in it) / seconds",
            "the window",
        ),
    ]
    difference: Annotated[
        float | None,
        key(
            "(`sent_per_s` × `time_s` + `edges` − `in_flight_mean`) / `in_flight_mean`; null for a window "
            "with gaps",
            "the window",
        ),
    ]
    workers_in_flight_s: Annotated[
        float | None,
        key(
            "the time that calls were under way, added up by the workers' own counters, s; null where none "
            "told it, and for a selection",
            "workers that were not lost, the whole run",
        ),
    ]
    records_in_flight_s: Annotated[
        float | None, key("Σ (ended − started), s", "all records of these workers")
    ]
    workers_difference: Annotated[
        float | None, key("`records_in_flight_s` / `workers_in_flight_s` − 1", "all records of these workers")
    ]

    @property
    def edges_share(self) -> float | None:
        """Share of the requests in flight that the window's edges make up; None where that is unknown."""
        if self.edges is None or not self.in_flight_mean:
            return None
        return abs(self.edges) / self.in_flight_mean


#: A call is over for its worker a little after its last byte: so long for each, beside its measured lags.
ENDING_S = 0.001

_COLUMNS = ("worker", "started_ns", "ended_ns", "end_lag_ns")


def compute(run: Run) -> LittlesLaw:
    of_some = run.of_selection or run.manifest.dropped is not None
    return littles_law(run.m.c, run.m.window, run.requests, run.manifest, of_selection=of_some)


def littles_law(
    c: Columns, window: Window, requests: Requests, manifest: Manifest, *, of_selection: bool
) -> LittlesLaw:
    """Little's law of a window; None if a side is unknown.

    Args:
        of_selection: ``requests`` are some of the run's: the workers counted them all.
    """
    law = _over_window(c, window)
    beyond = [] if law.difference is None else [law.difference]
    if not of_selection and (found := _by_workers(requests, manifest)) is not None:
        by_workers_s, by_records_s, excess_s = found
        beyond.append(-excess_s / by_workers_s)
        law = structs.replace(
            law,
            workers_in_flight_s=by_workers_s,
            records_in_flight_s=by_records_s,
            workers_difference=-(by_workers_s - by_records_s) / by_workers_s,
        )
    holds = not any(LITTLES_LAW.severity(abs(each)) for each in beyond) if beyond else None
    return structs.replace(law, holds=holds)


_UNKNOWN_LAW = LittlesLaw(**dict.fromkeys(LittlesLaw.__struct_fields__))


def _over_window(c: Columns, window: Window) -> LittlesLaw:
    """L from the area, λ and W from the requests sent, and the contribution of the edges."""
    start_s, end_s = window.start_s(c), window.end_s(c)
    sent = ~np.isnan(c.sent_s)
    if window.gaps or window.seconds <= 0 or not sent.any():
        return _UNKNOWN_LAW
    sent_s, ended_s = c.sent_s[sent], c.ended_s[sent]
    inside = (sent_s >= start_s) & (sent_s < end_s)
    before = (sent_s < start_s) & (ended_s > start_s)
    times_s = np.sort(ended_s[inside] - sent_s[inside])  # the order of workers is no input to a sum
    came_in = float(np.sort(np.minimum(ended_s[before], end_s) - start_s).sum())
    went_out = float(np.sort(np.maximum(ended_s[inside] - end_s, 0.0)).sum())
    edges = (came_in - went_out) / window.seconds
    mean = float(Spans.of(c).means(np.array([start_s, end_s]))[0])
    rate, time_s = int(inside.sum()) / window.seconds, float(times_s.mean()) if inside.any() else 0.0
    return structs.replace(
        _UNKNOWN_LAW,
        in_flight_mean=mean,
        sent_per_s=rate,
        time_s=time_s,
        edges=edges,
        difference=(rate * time_s + edges - mean) / mean if mean else None,
    )


def _by_workers(requests: Requests, manifest: Manifest) -> tuple[float, float, float] | None:
    """Seconds in flight by the workers' counters and by the records of the same workers, and how many of the
    difference client lag does not explain.

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
    return total_s, records_s, missing_s - min(max(missing_s, 0.0), allowed_s)


def _of_workers(requests: Requests, ids: Container[str]) -> Iterator[tuple[Floats, Floats]]:
    """Duration of each record of these workers, and how late its client noticed its end."""
    for batch in requests.parts(_COLUMNS):
        labels = batch.labels("worker")
        theirs = np.array([*(name in ids for name in labels.names), False])[labels.codes]
        durations_s = (batch.ints("ended_ns") - batch.ints("started_ns"))[theirs] * 1e-9
        yield durations_s, np.nan_to_num(batch.floats("end_lag_ns")[theirs]) * 1e-9


def law_text(law: LittlesLaw) -> str:
    """Both sides as a phrase."""
    if law.workers_in_flight_s is None:
        rate, time_s = quantity(law.sent_per_s), quantity(law.time_s)
        return f"{quantity(law.in_flight_mean)} in flight, {rate}/s × {time_s} s"
    return (
        f"the workers counted {quantity(law.workers_in_flight_s)} s of requests in flight, "
        f"the records have {quantity(law.records_in_flight_s)} s"
    )


#: Share of the requests in flight from which Little's law without the window's edges looks broken.
_EDGES_SHOWN = 0.02


def remark(law: LittlesLaw) -> Iterator[Line]:
    """Requests in flight, by their number and by their rate and time; and how near the workers' count is."""
    rate, time_s = law.sent_per_s, law.time_s
    if rate is None or time_s is None:
        return
    crossing = law.edges or 0.0
    edges = f" {'+' if crossing > 0 else '−'} {number(abs(crossing))} at the window's edges"
    sides = (
        f"Little's law {'holds' if law.holds else 'FAILS'}: "
        f"{number(law.in_flight_mean)} in flight, "
        f"{number(rate)}/s × {number(time_s)} s = {number(rate * time_s)}"
        f"{edges if (law.edges_share or 0.0) > _EDGES_SHOWN else ''}"
    )
    off = law.workers_difference
    counted = "" if off is None else f"the records have {percent(1 + off)} of what the workers counted"
    if law.holds and off is not None and off < -_EDGES_SHOWN:
        counted += ", who count a request until they notice its end"
    yield Line(sentence([sides, counted]), Tone.FAINT if law.holds else Tone.WARN)
