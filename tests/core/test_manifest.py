"""What a manifest says of its run."""

from dataclasses import replace

import pytest
from metrics_cases import manifest

from llm_locust.core.manifest import ClockFacts, HealthCell, ServerCall, WorkerFacts, worker_names

WORKER = WorkerFacts(id="w", index=0, announced=10, received=10)


@pytest.mark.parametrize(
    ("status", "done"), [(None, False), (199, False), (200, True), (204, True), (299, True), (300, False)]
)
def test_a_call_to_a_server_is_done_if_its_answer_says_so(status: int | None, done: bool) -> None:
    assert ServerCall(at_ns=1, path="/p", target="t", status=status).done is done


@pytest.mark.parametrize(
    ("worker", "missing", "unrecorded", "complete"),
    [
        (WORKER, 0, 0, True),
        (replace(WORKER, received=9), 1, 1, False),
        (replace(WORKER, received=12), 0, 0, True),
        (replace(WORKER, in_flight=2), 0, 2, False),
        (replace(WORKER, announced=None), 0, 0, True),
        (replace(WORKER, lost=True), 0, 0, False),
        (replace(WORKER, faults=["odd"]), 0, 0, False),
    ],
)
def test_a_run_is_complete_if_each_worker_stayed_and_all_of_its_records_came(
    worker: WorkerFacts, missing: int, unrecorded: int, complete: bool
) -> None:
    run = manifest(workers=[worker], workers_expected=1)
    assert (worker.missing, worker.unrecorded, run.complete) == (missing, unrecorded, complete)
    assert run.records_lost == unrecorded
    assert not replace(run, workers_expected=2).complete
    assert not replace(run, torn=["a file"]).complete


@pytest.mark.parametrize(
    ("numbers", "names"),
    [
        ([1, 0], ["worker-2", "worker-1"]),
        ([4, 2], ["worker-5", "worker-3"]),  # by its own number, whoever left
        ([0, 0], ["worker-1", "worker-2"]),  # of two runs put together
        ([-1, 5], ["worker-1", "worker-2"]),  # of a worker that has none
        ([], []),
    ],
)
def test_workers_are_called_by_their_numbers_or_in_order_where_these_name_none(
    numbers: list[int], names: list[str]
) -> None:
    workers = [replace(WORKER, id=f"w{i}", index=number) for i, number in enumerate(numbers)]
    assert [worker_names(workers)[worker.id] for worker in workers] == names


def test_two_cells_are_one_of_their_time_by_its_worst_and_its_means() -> None:
    first = HealthCell(
        at_s=9.0,
        seconds=9.0,
        cpu_percent=80.0,
        hub_lag_ms_p99=4.0,
        hub_lag_ms_max=90.0,
        steal_percent=3.0,
        paused_ms_max=0.0,
    )
    after = HealthCell(
        at_s=12.0,
        seconds=3.0,
        cpu_percent=20.0,
        hub_lag_ms_p99=None,
        hub_lag_ms_max=100.0,
        steal_percent=7.0,
        paused_ms_max=80.0,
    )
    assert first.joined(after) == HealthCell(
        at_s=12.0,
        seconds=12.0,
        cpu_percent=80.0,
        hub_lag_ms_p99=4.0,
        hub_lag_ms_max=100.0,
        steal_percent=4.0,
        paused_ms_max=80.0,
    )
    new = replace(after, seconds=0.0, run_queue_percent=5.0)
    assert first.joined(new).run_queue_percent == 5.0, "the first did not know its own"
    assert replace(new, steal_percent=1.0).joined(replace(new, steal_percent=2.0)).steal_percent == 2.0


@pytest.mark.parametrize(
    ("offset_ns", "error_ns", "placing_ns"),
    [(0, 250, 250), (200, 250, 450), (-200, 250, 450), (250, 250, 500), (251, 250, 250)],
)
def test_an_offset_within_its_error_is_added_to_no_time_and_so_it_is_error_too(
    offset_ns: int, error_ns: int, placing_ns: int
) -> None:
    clock = ClockFacts(
        offset_ns=offset_ns, error_ns=error_ns, least_offset_ns=0, most_offset_ns=0, exchanges=1
    )
    assert clock.placing_error_ns == placing_ns
