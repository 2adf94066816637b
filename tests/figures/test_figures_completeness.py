"""What of a run is missing, and where."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from metrics_cases import manifest, ns, plain

from llm_locust.core.manifest import WorkerFacts
from llm_locust.figures.completeness import Completeness, completeness as completeness_of
from llm_locust.metrics.structs import finite, largest


def completeness(*given: Any, **more: Any) -> Any:
    found: Any = plain(completeness_of(*given, **more))
    return found


def worker(index: int = 0, announced: int | None = 5, received: int = 5, **facts: Any) -> WorkerFacts:
    return WorkerFacts(id=f"w{index}", index=index, announced=announced, received=received, **facts)


def of(*workers: WorkerFacts, rows: int | None = None, **facts: Any) -> Any:
    made = manifest(
        workers=list(workers), **{"workers_expected": len(workers), "ended_ns": ns(11.0), **facts}
    )
    return completeness(made, made.records_received if rows is None else rows)


def test_a_worker_that_was_killed_before_it_said_anything_fits_the_summary() -> None:
    part = of(worker(announced=None, received=0, lost=True))
    typed = msgspec.convert(part, Completeness)
    assert typed.workers[0].announced is None


def test_workers_stand_by_their_index_and_are_counted_by_what_became_of_them() -> None:
    part = of(
        worker(2, late=True, resent=3),
        worker(0, lost=True, in_flight=2, resent=1),
        worker(1, left=True, dropped=4),
        worker(10, lost=True, left=True, in_flight=1),
        workers_expected=5,
    )
    assert [w["index"] for w in part["workers"]] == [0, 1, 2, 10]
    assert [w["state"] for w in part["workers"]] == ["lost", "left", "done", "lost"]
    assert (part["workers_expected"], part["workers_seen"]) == (5, 4)
    assert (part["workers_late"], part["workers_left"], part["workers_lost"]) == (1, 2, 2)
    assert (part["batches_resent"], part["records_dropped"], part["in_flight_lost"]) == (4, 4, 3)
    assert part["lost"] == ["w0", "w10"]


def test_a_worker_is_running_until_the_last_record_is_in() -> None:
    assert of(worker(), ended_ns=None)["workers"][0]["state"] == "running"


def test_a_worker_that_was_there_before_the_start_joined_at_a_time_below_0() -> None:
    assert of(worker(joined_ns=ns(-3.0)))["workers"][0]["joined_s"] == pytest.approx(-3.0)


@pytest.mark.parametrize(
    "facts",
    [
        {"workers_expected": 2},
        {"rows": 4},
        {"torn": ["batches.frames: at byte 12"]},
    ],
)
def test_a_run_is_complete_only_if_nothing_at_all_is_missing(facts: dict[str, Any]) -> None:
    assert of(worker())["complete"] is True
    assert of(worker(), **facts)["complete"] is False


@pytest.mark.parametrize(
    "facts", [{"lost": True}, {"in_flight": 1}, {"announced": 6}, {"faults": ["a batch"]}]
)
def test_a_worker_that_lacks_anything_makes_the_run_incomplete(facts: dict[str, Any]) -> None:
    assert of(worker(**facts))["complete"] is False


def test_messages_that_were_dropped_are_counted_and_a_strangers_lack_no_record() -> None:
    part = of(
        worker(), messages_dropped={"w0": {"llm_ping": 2}, "stranger": {"llm_batch": 3, "unreadable": 1}}
    )
    assert part["messages_dropped"] == 6
    assert part["messages_dropped_by"]["stranger"] == {"llm_batch": 3, "unreadable": 1}
    assert part["complete"] is True


def test_records_that_came_and_are_not_in_the_run_are_lost_too() -> None:
    part = of(worker(0, 9, 8), rows=5)
    assert (part["records_received"], part["records_stored"], part["records_lost"]) == (8, 5, 1 + 3)


counts = st.integers(0, 20)

any_worker = st.builds(
    worker, counts, st.none() | counts, counts, in_flight=counts, lost=st.booleans(), left=st.booleans()
)


@given(st.lists(any_worker, max_size=5), counts)
def test_a_run_is_complete_only_if_no_request_is_lost(workers: list[WorkerFacts], rows: int) -> None:
    made = manifest(workers=workers, workers_expected=len(workers))
    part = completeness(made, rows)
    lost_records = sum(w["unrecorded"] for w in part["workers"])
    assert part["records_lost"] == made.requests_lost(rows) >= lost_records >= sum(part["missing"].values())
    assert part["complete"] == (part["records_lost"] == 0 and not part["lost"])


def test_the_largest_of_what_is_known_skips_what_is_not() -> None:
    assert largest([None, float("nan"), 2.0, 1.0]) == 2.0
    assert largest([None, float("nan")]) is largest([]) is None
    assert finite(float("inf")) is finite(float("nan")) is finite(None) is None
    assert finite(0.0) == 0.0
