"""Records that were missing, and nothing that said so.

- A tenth of a run's records was gone, and the worker's count of what it had finished with it: the report was
  complete, and throughput a tenth too low. Now each worker adds up the time that its calls are under way by a
  counter that looks at no record; where the records' times do not make up that sum, the client is
  ``suspect``.
- So it is where a record came twice under another id, and where times are wrong.
"""

from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, columns, manifest, ns, plain, request
from report_cases import summary as report_summary
from summaries import summarise

from llm_locust.client.call import Occupancy
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.littles_law import littles_law as littles_law_of
from llm_locust.metrics.window import Window


def littles_law(*given: Any, **more: Any) -> Any:
    found: Any = plain(littles_law_of(*given, **more))
    return found


SECONDS = 10.0


def queue(n: int = 500, seed: int = 5) -> list[RequestRecord]:
    """Requests that come by chance, and take as long as chance will."""
    draw = np.random.default_rng(seed)
    at, last = np.sort(draw.uniform(0, SECONDS, n)), draw.exponential(0.8, n) + 0.1
    return [request(float(a), (0.05, float(b))) for a, b in zip(at, last, strict=True)]


def in_flight_ns(records: list[RequestRecord]) -> int:
    """What a worker that had these calls under way has counted: a sweep over their beginnings and ends."""
    edges = [(r.started_ns, 1) for r in records] + [(r.ended_ns, -1) for r in records]
    clock = [0]
    counted = Occupancy(lambda: clock[0])
    for clock[0], by in sorted(edges):
        counted.change(by)
    return counted.total_ns


def judged(kept: list[RequestRecord], made: list[RequestRecord], **facts: Any) -> dict[str, Any]:
    """The summary of records ``kept`` of those that a worker ``made``; it announced the kept ones only."""
    told = WorkerFacts(
        id="w1", index=0, announced=len(kept), received=len(kept), in_flight_ns=in_flight_ns(made), **facts
    )
    return summarise(batch(*kept), manifest(SECONDS, workers=[told]))


def test_whole_records_make_up_what_the_worker_counted() -> None:
    made = queue()
    found = judged(made, made)
    law = found["littles_law"]
    assert law["holds"] is True
    assert law["workers_difference"] == pytest.approx(0.0, abs=1e-6)
    assert law["records_in_flight_s"] == pytest.approx(sum(r.ended_ns - r.started_ns for r in made) / 1e9)
    assert found["client"]["verdict"] == "ok"


def test_records_that_are_missing_without_a_word_are_noticed() -> None:
    made = queue()
    found = judged([r for i, r in enumerate(made) if i % 10], made)
    assert found["completeness"]["complete"], "the worker's own count lacks them too"
    assert found["littles_law"]["holds"] is False
    assert found["littles_law"]["workers_difference"] == pytest.approx(-0.1, abs=0.03)
    assert found["client"]["verdict"] == "suspect"
    assert "Little's law does not hold" in found["client"]["reasons"][0]


def test_records_that_came_twice_are_noticed() -> None:
    made = queue()
    assert judged([*made, *made[:50]], made)["littles_law"]["holds"] is False


def test_times_that_are_wrong_are_noticed() -> None:
    made = queue()
    longer = [request((r.scheduled_ns - ns(0)) / 1e9, (0.05, 1.5)) for r in made]
    assert judged(longer, made)["littles_law"]["holds"] is False


def test_a_client_that_is_late_to_notice_an_end_has_lost_nothing() -> None:
    made = queue()
    late = [request((r.scheduled_ns - ns(0)) / 1e9, (0.05, 0.5), end_lag_ns=150_000_000) for r in made]
    noticed = [request((r.scheduled_ns - ns(0)) / 1e9, (0.05, 0.5), ended=None) for r in made]
    counted = sum(r.ended_ns - r.started_ns for r in noticed) + 140_000_000 * len(made)
    told = WorkerFacts(id="w1", index=0, announced=len(made), received=len(made), in_flight_ns=counted)
    law = summarise(batch(*late), manifest(SECONDS, workers=[told]))["littles_law"]
    assert law["workers_difference"] < -0.1
    assert law["holds"] is True


def test_a_lost_workers_last_word_is_held_against_nobody() -> None:
    made = queue()
    law = judged(made[:100], made, lost=True)["littles_law"]
    assert law["workers_in_flight_s"] is None
    assert law["holds"] is True


def test_the_workers_are_told_apart() -> None:
    one, two = queue(seed=1), queue(seed=2)
    rows = RecordBatch.concat([batch(*one, worker="w1"), batch(*two, worker="w2")])
    told = WorkerFacts(id="w1", index=0, announced=500, received=500, in_flight_ns=in_flight_ns(one))
    other = WorkerFacts(id="w2", index=1, announced=500, received=500)
    law = summarise(rows, manifest(SECONDS, workers=[told, other]))["littles_law"]
    assert law["workers_difference"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("from_s", "to_s"), [(0.0, 10.0), (2.0, 3.0), (4.9, 5.0), (9.0, 12.0)])
def test_the_window_may_cut_requests_at_both_its_edges(from_s: float, to_s: float) -> None:
    made = [*queue(), request(1.0, (0.1, 20.0)), request(3.0, sent=False, arrivals=())]
    window = Window(ns(from_s), ns(to_s), "")
    law = littles_law(columns(*made), window, batch(*made), manifest(), of_selection=False)
    assert law["difference"] == pytest.approx(0.0, abs=1e-9)
    inside = [r for r in made if r.sent_ns is not None and ns(from_s) <= r.sent_ns < ns(to_s)]
    assert law["sent_per_s"] == pytest.approx(len(inside) / (to_s - from_s))
    assert law["in_flight_mean"] == pytest.approx(law["sent_per_s"] * law["time_s"] + law["edges"], rel=1e-9)


def test_a_record_that_ended_before_it_was_sent_breaks_the_law() -> None:
    made = [*queue(100), *(request(5.0, (0.1, 0.4), ended=3.0) for _ in range(20))]
    law = littles_law(
        columns(*made), Window(ns(0), ns(SECONDS), ""), batch(*made), manifest(), of_selection=False
    )
    assert law["holds"] is False


def test_a_run_without_requests_and_without_such_workers_has_no_law() -> None:
    law = report_summary([])["littles_law"]
    assert set(law.values()) == {None}
