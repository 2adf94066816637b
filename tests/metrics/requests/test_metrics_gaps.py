"""The gaps of a run, kept or counted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from metrics_cases import ORIGIN_NS, batch, columns, request

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics import columns as ragged
from llm_locust.metrics.columns import Part
from llm_locust.metrics.requests import gaps
from llm_locust.metrics.requests.gaps import GapCourse, PooledGaps, first_token_wide, joined, program_stamped
from llm_locust.metrics.requests.latency import itl
from llm_locust.metrics.stats.bootstrap import time_cells
from llm_locust.metrics.stats.censoring import percentile
from llm_locust.metrics.stats.sketch import RELATIVE_ERROR, Histogram
from llm_locust.metrics.window import Window

RECORDS = [
    request(arrivals=(0.1, 0.3, 0.6), name="chat", slo_class="fast"),
    request(arrivals=(0.1, 0.5), name="long", slo_class="fast"),
    request(arrivals=(0.1, 0.6), name="long"),
    request(arrivals=(0.1,), name="chat"),
    request(arrivals=(0.1, 0.9), streamed=False),
]


def pooled(records: list[RequestRecord], exact: int, parts: int = 1) -> PooledGaps:
    pool = PooledGaps(exact)
    for rows in np.array_split(np.arange(len(records)), parts):
        part = Part.from_batch(batch(*(records[i] for i in rows)), ORIGIN_NS)
        pool.add(part, np.arange(len(part)))
    return pool


def test_gaps_are_pooled_by_name_and_class_and_never_cross_from_one_request_to_the_next() -> None:
    pool = pooled(RECORDS, exact=100)
    assert pool.ascending() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert pool.ascending(name="long") == pytest.approx([0.4, 0.5])
    assert pool.ascending(slo_class="fast") == pytest.approx([0.2, 0.3, 0.4])
    assert pool.ascending(name="chat", slo_class="") == pytest.approx([])
    assert pool.relative_error == 0.0


def test_a_course_without_gaps_adds_nothing_to_another() -> None:
    none, some, nothing = GapCourse(2), GapCourse(2), np.empty(0, np.int64)
    none.add(nothing, nothing, nothing)
    some.add(np.array([2, 3]), np.array([1, 1]), np.array([0, 1]))
    whole = joined([some, none])
    assert whole is not None
    assert whole.counts.tolist() == some.counts.tolist() == [1, 1]
    assert whole.sums == pytest.approx([2e-9, 3e-9])
    assert none.table.size == 0
    twice = joined([some, none, some])
    assert twice is not None
    assert twice.counts.tolist() == [2, 2]
    assert twice.sums == pytest.approx([4e-9, 6e-9])
    assert joined([]) is None


def test_gaps_of_no_time_make_no_room_for_what_no_gap_can_be() -> None:
    """Bins begin at 1 ns, 256 to a power of two: the 23 of them up to 5 ms, and not the 127 below."""
    course = GapCourse(1)
    course.add(np.array([0, 0, 0, 5_000_000]), np.array([4]), np.array([0]))
    assert course.at_most(np.array([0.0, 1e-9, 0.004])).tolist() == [[3], [3], [3]]
    assert course.table.shape[1] < 23 * 256


@pytest.mark.parametrize(("within_bin", "at_most"), [(0.2, 5), (0.8, 15)])
def test_a_limit_within_a_bin_counts_its_gaps_where_that_is_nearer(within_bin: float, at_most: int) -> None:
    """Bins above 2^20 ns are 4096 ns wide; of 20 gaps 10 are in that of the limit, 5 below and 5 above it."""
    start_ns, wide_ns = 1 << 20, 4096
    gaps_ns = np.repeat([start_ns - 1000, start_ns + 5, start_ns + wide_ns], [5, 10, 5])
    course = GapCourse(1)
    course.add(gaps_ns, np.array([20]), np.array([0]))
    assert course.at_most(np.array([(start_ns + within_bin * wide_ns) / 1e9])).tolist() == [[at_most]]


def test_names_beyond_the_most_have_no_course_and_nor_has_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps, "MOST_COURSES", 1)
    part = Part.from_batch(batch(*RECORDS[1:]), ORIGIN_NS)  # first long and fast, then long
    pool = PooledGaps(100)
    pool.add(part, np.arange(len(part)), time_cells(Window(0, 10**9, "test"), part, part.scheduled_s))
    courses = [pool.course(slo_class=name) for name in ("", "fast")]
    assert sum(course is None for course in courses) == 1
    assert pool.course() is None
    assert len(pool.ascending()) == 2


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_more_gaps_than_are_kept_are_counted_whatever_the_parts(parts: int) -> None:
    pool, kept = pooled(RECORDS, exact=3, parts=parts), pooled(RECORDS, exact=4, parts=parts)
    assert (pool.relative_error, kept.relative_error) == (RELATIVE_ERROR, 0.0)
    for asked in ({}, {"name": "long"}, {"name": "chat"}, {"slo_class": "fast"}):
        counted, true = pool.ascending(**asked), kept.ascending(**asked)
        assert isinstance(counted, Histogram)
        assert isinstance(true, np.ndarray)
        assert len(counted) == len(true)
        for percent in (0, 50, 99, 100):
            assert percentile(counted, percent) == pytest.approx(
                percentile(true, percent), rel=RELATIVE_ERROR
            )


@pytest.mark.parametrize("exact", [3, 4])
def test_further_durations_are_ranked_among_the_gaps_kept_or_counted(exact: int) -> None:
    found = pooled(RECORDS, exact).ascending_with(np.array([0.25, 0.9]))
    assert isinstance(found, Histogram) == (exact == 3)
    assert [found[rank] for rank in range(len(found))] == pytest.approx(
        [0.2, 0.25, 0.3, 0.4, 0.5, 0.9], rel=RELATIVE_ERROR
    )


@pytest.mark.parametrize("exact", [100, 0])
def test_the_time_after_the_last_token_of_a_cut_answer_is_a_gap_that_was_cut(exact: int) -> None:
    made = [
        request(0.0, (0.1, 0.3), ended=1.0, outcome=Outcome.CANCELLED, name="chat"),
        request(1.0, (0.5,), ended=1.75, outcome=Outcome.CANCELLED, name="long", slo_class="fast"),
        request(2.0, (), ended=9.0, outcome=Outcome.CANCELLED),  # no token yet: no gap had begun
        request(3.0, (0.1,), ended=9.0, outcome=Outcome.CANCELLED, streamed=False),
        request(4.0, (0.1,), ended=9.0),  # not asked for
    ]
    pool = PooledGaps(exact)
    pool.add_silences(columns(*made), np.arange(4))
    found = pool.ascending()
    assert [found[rank] for rank in range(len(found))] == pytest.approx([0.25, 0.7], rel=RELATIVE_ERROR)
    assert len(pool.ascending(name="long")) == 1


def test_the_requests_that_are_not_asked_for_add_nothing() -> None:
    pool = PooledGaps()
    pool.add(columns(*RECORDS), np.array([1]))
    assert pool.ascending() == pytest.approx([0.4])


def test_gaps_that_fill_many_pieces_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "PIECE", 2)
    assert pooled(RECORDS, exact=100).ascending() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert len(pooled(RECORDS, exact=0).ascending()) == 4


@pytest.mark.parametrize(
    ("arrivals", "lag_ms", "is_wide"),
    [
        ((0.05, 0.05, 0.07), 1.0, True),
        ((0.05, 0.05, 0.07), 0.99, False),
        ((0.05, 0.05, 0.07), None, True),
        ((0.05, 0.06, 0.06), 9.0, False),
        ((2.0, 2.0, 2.001), 9.0, False),
        ((2.0, 2.0, 2.001), 21.0, True),
        ((2.0, 2.0, 2.03), 9.0, True),
        ((0.05,), 9.0, False),
        ((), 9.0, False),
    ],
)
def test_a_first_token_is_wide_where_a_read_that_may_have_been_late_brought_it_with_the_next(
    arrivals: tuple[float, ...], lag_ms: float | None, is_wide: bool
) -> None:
    made = request(arrivals=arrivals, client_lag_ns=None if lag_ms is None else round(lag_ms * 1e6))
    assert first_token_wide(columns(request(), made)).tolist() == [False, is_wide]


def test_only_an_answer_that_was_read_has_timestamps_of_the_program() -> None:
    own: dict[str, Any] = {"kernel_stamps": False}
    refused = request(arrivals=(), ended=0.1, outcome=Outcome.CONNECT_ERROR, **own)
    told = columns(request(), request(**own), refused, replace(refused, status=503))
    assert program_stamped(told).tolist() == [False, True, False, True]


def test_lists_of_gaps_are_those_of_their_requests() -> None:
    four = request(arrivals=(0.05, 0.07, 0.09, 0.11))
    gaps = itl(columns(request(arrivals=()), four, request(arrivals=(1.0,)), four))
    assert np.diff(gaps.offsets).tolist() == [0, 3, 0, 3]
    assert gaps.values_s == pytest.approx([0.02] * 6)
