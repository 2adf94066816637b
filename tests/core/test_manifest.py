"""A run's manifest: its job, caches and headers of replicas; requests without a record."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, strategies as st
from metrics_cases import manifest

from llm_locust.core.manifest import (
    MOST_HEADER_VALUES,
    MOST_REPLICA_HEADERS,
    ClockFacts,
    HeaderFacts,
    HealthCell,
    PipelineFacts,
    ReplicaCache,
    ServerCall,
    WorkerFacts,
    better_header,
    is_page,
    pipeline_of,
    together,
    worker_names,
)
from llm_locust.core.record import (
    MOST_OTHER_REQUESTS,
    OtherRequests,
    OtherTable,
    together as together_of_other_requests,
)

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


SHA = "0123456789abcdef0123456789abcdef01234567"
PAGE = "https://ci.example/job/7"

GITHUB = {
    "GITHUB_SHA": SHA,
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "a/b",
    "GITHUB_RUN_ID": "42",
}


@pytest.mark.parametrize(
    ("environ", "commit", "url"),
    [
        (GITHUB, SHA, "https://github.com/a/b/actions/runs/42"),
        ({"CI_COMMIT_SHA": SHA, "CI_JOB_URL": PAGE}, SHA, PAGE),
        ({"BUILDKITE_COMMIT": SHA, "BUILDKITE_BUILD_URL": PAGE}, SHA, PAGE),
        ({"CIRCLE_SHA1": SHA, "CIRCLE_BUILD_URL": PAGE}, SHA, PAGE),
        ({"BUILD_SOURCEVERSION": SHA}, SHA, ""),
        ({"GIT_COMMIT": SHA, "BUILD_URL": PAGE}, SHA, PAGE),
        ({}, "", ""),
        ({"BUILDKITE_COMMIT": "HEAD", "GIT_COMMIT": SHA}, SHA, ""),  # before it is checked out
        ({"GIT_COMMIT": "0123456"}, "0123456", ""),
        ({"GIT_COMMIT": "012345"}, "", ""),
        ({"GIT_COMMIT": "0" * 64}, "0" * 64, ""),
        ({"GIT_COMMIT": "0" * 65}, "", ""),
        ({name: value for name, value in GITHUB.items() if name != "GITHUB_RUN_ID"}, SHA, ""),
        ({name: value for name, value in GITHUB.items() if name != "GITHUB_REPOSITORY"}, SHA, ""),
        ({**GITHUB, "GITHUB_SERVER_URL": "", "CI_JOB_URL": PAGE}, SHA, PAGE),
    ],
)
def test_a_run_belongs_to_what_the_service_says(environ: dict[str, str], commit: str, url: str) -> None:
    assert pipeline_of(environ) == PipelineFacts(commit=commit, url=url)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (PAGE, True),
        ("http://ci.example:8080/job?of=7#top", True),
        ("https://x/" + "a" * 490, True),
        ("https://x/" + "a" * 491, False),
        ("", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("https:///job/7", False),
        ("https://user:word@ci.example/job/7", False),
        ("https://ci.example/job 7", False),
        ('https://ci.example/"><script>', False),
        ("https://ci.example/\n", False),
        ("https://[::1/", False),
    ],
)
def test_a_page_is_an_address_of_http_that_a_report_may_link_to(text: str, is_one: bool) -> None:
    assert is_page(text) is is_one


@pytest.mark.parametrize(
    ("after", "again", "shows"),
    [
        (0, 512, True),
        (None, 512, True),
        (512, 512, False),
        (0, 0, False),
        (0, None, False),
        (None, None, False),
    ],
)
def test_a_flush_is_shown_by_a_prompt_that_is_found_only_when_it_is_sent_again(
    after: int | None, again: int | None, shows: bool
) -> None:
    assert ReplicaCache(target="http://a", after=after, again=again).shows_flush == shows


def facts(name: str, answers: int, *values: int, more: bool = False) -> HeaderFacts:
    return HeaderFacts(name=name, answers=answers, value=f"{name}-0", values=list(values), more=more)


SAME, THREE = facts("x-served-by", 60, 7), facts("x-upstream", 60, 1, 2, 3)


def test_workers_that_saw_other_replicas_are_counted_together() -> None:
    found = together([facts("x-upstream", 5, 1, 2), SAME, facts("x-upstream", 6, 2, 3)])
    assert found == [facts("x-upstream", 11, 1, 2, 3), SAME]
    assert together([]) == []


def test_counts_of_many_workers_stay_within_the_bounds_of_one() -> None:
    many = [facts("x-upstream", 1, *range(at, at + 40)) for at in (0, 40)]
    (whole,) = together(many)
    assert (len(whole.values), whole.more) == (MOST_HEADER_VALUES, True)
    assert together([facts("x", 1, 1, more=True), facts("x", 1, 1)])[0].more
    assert len(together(facts(f"x-{n}", 1, n) for n in range(100))) == MOST_REPLICA_HEADERS


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([SAME, THREE], "x-upstream"),
        ([facts("x-mine", 0), SAME, THREE], "x-upstream"),
        ([SAME, facts("x-pod", 60, 1, 2), THREE], "x-upstream"),
        ([SAME, facts("x-upstream", 30, 1, 2)], "x-upstream"),
        ([SAME, facts("x-upstream", 29, 1, 2)], None),  # most answers do not have it
        ([SAME, facts("x-upstream", 60, 9)], None),  # it has one value too
        ([SAME, facts("x-upstream", 60, *range(31))], None),  # new in each answer, as an id of the request
        ([SAME, facts("x-upstream", 9999, *range(64), more=True)], None),
        ([THREE, SAME], None),  # the one in use tells replicas apart
        ([facts("x-served-by", 60, 7, more=True), THREE], None),
        ([SAME], None),
        ([facts("x-mine", 0)], None),
        ([], None),
    ],
)
def test_a_better_header_has_several_values_where_that_in_use_has_one(
    found: list[HeaderFacts], name: str | None
) -> None:
    better = better_header(found)
    assert (better and better.name) == name


def rows(*times_ms: object) -> list[OtherRequests]:
    table = OtherTable()
    for time_ms in times_ms:
        table.add("GET", "/", time_ms, failed=False)
    return table.rows()


def checked(found: list[OtherRequests]) -> list[OtherRequests]:
    """The rows as a master reads them: refused if one is beyond its bounds."""
    return msgspec.json.decode(msgspec.json.encode(found), type=list[OtherRequests])


@given(st.lists(st.floats(0.001, 1e7), min_size=1, max_size=60), st.sampled_from([50, 95, 100]))
def test_a_percentile_is_that_request_of_the_sorted_ones_to_one_percent(
    times_ms: list[float], percent: float
) -> None:
    (row,) = checked(rows(*times_ms))
    true_ms = sorted(times_ms)[math.ceil(percent / 100 * len(times_ms)) - 1]
    assert row.percentile_ms(percent) == pytest.approx(true_ms, rel=0.011)


@pytest.mark.parametrize("time_ms", [None, "12", math.nan, math.inf, -math.inf, 10**400, [1]])
def test_a_request_without_a_time_is_counted_and_has_none(time_ms: object) -> None:
    (row,) = checked(rows(time_ms))
    assert (row.requests, row.times, row.percentile_ms(50)) == (1, [], None)


@pytest.mark.parametrize("time_ms", [-1, 0, 5e-324, 1e299, True])
def test_times_that_no_request_has_are_counted_at_the_ends(time_ms: object) -> None:
    (row,) = checked(rows(time_ms))
    assert sum(count for _, count in row.times) == 1


@pytest.mark.parametrize("name", ["x" * 10_000, "\ud800", None, 7, "\0\x1b[31m"])
def test_any_name_can_be_sent_and_written(name: object) -> None:
    table = OtherTable()
    table.add(name, name, 1.0, failed=True)
    (row,) = checked(table.rows())
    assert (row.requests, row.failures) == (1, 1)


def test_names_beyond_the_bound_are_counted_together_and_none_is_lost() -> None:
    table = OtherTable()
    for number in range(1000):
        table.add("GET", f"/{number}", 5.0, failed=number % 2 == 0)
    found = checked(table.rows())
    assert len(found) == MOST_OTHER_REQUESTS
    assert (found[-1].method, found[-1].name) == ("", "other names")
    assert sum(each.requests for each in found) == 1000
    assert sum(each.failures for each in found) == 500


def test_workers_are_added_up_by_method_and_name_within_the_same_bound() -> None:
    first, second = OtherTable(), OtherTable()
    for number in range(19):
        first.add("GET", f"/{number}", 1.0, failed=False)
        second.add("GET", f"/{number + 18}", 100.0, failed=True)
    found = together_of_other_requests([*first.rows(), *second.rows()])
    assert len(found) == MOST_OTHER_REQUESTS
    assert sum(each.requests for each in found) == 38
    assert sum(each.failures for each in found) == 19
    both = next(
        each for each in together_of_other_requests([*first.rows(), *first.rows()]) if each.name == "/15"
    )
    assert (both.requests, [count for _, count in both.times]) == (2, [2])
