"""A batch as numpy arrays."""

import numpy as np
from metrics_cases import ORIGIN_NS, batch, columns, failed, request

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, TokenSource
from llm_locust.metrics.columns import OUTCOMES, SOURCES, Part, groups


def test_times_are_seconds_after_the_origin_and_unknown_ones_nan() -> None:
    c = columns(request(1.5, (0.25,), late=0.5), request(2.0, (), sent=False, outcome=Outcome.CONNECT_ERROR))
    assert c.scheduled_s.tolist() == [1.5, 2.0]
    assert c.sent_s[0] == 2.0
    assert np.isnan(c.sent_s[1])
    assert np.isnan(c.connected_s[1])
    assert c.first_event_s[0] == 0.25
    assert np.isnan(c.first_event_s[1])


def test_an_empty_batch_gives_empty_columns() -> None:
    c = Part.from_batch(RecordBatch.empty(), ORIGIN_NS)
    assert len(c) == 0
    assert c.events.tolist() == []
    assert c.last_event_s.tolist() == []
    assert list(groups(c.name)) == []


def test_every_outcome_has_its_code() -> None:
    c = columns(*(request(outcome=o) for o in Outcome))
    assert [OUTCOMES[code] for code in c.outcome] == list(Outcome)
    assert c.ok.tolist() == [o is Outcome.OK for o in Outcome]
    assert c.cancelled.tolist() == [o is Outcome.CANCELLED for o in Outcome]


def test_an_unknown_output_count_is_the_number_of_events_only_where_the_answer_was_streamed() -> None:
    c = columns(
        request(output_tokens=None),
        request(output_tokens=None, streamed=False, arrivals=(0.1,)),
        failed(),
        request(output_tokens=7),
    )
    np.testing.assert_array_equal(c.output_tokens, [3, np.nan, np.nan, 7])
    assert SOURCES[c.source[0]] is TokenSource.EVENTS
    assert SOURCES[c.source[3]] is TokenSource.USAGE


def test_a_step_of_the_clock_marks_its_request_in_both_directions() -> None:
    c = columns(*(request(clock_step_ns=step) for step in (None, 1_100_000, -5_000_000)))
    assert c.stepped.tolist() == [False, True, True]


def test_groups_are_sorted_and_leave_out_rows_without_a_text() -> None:
    c = columns(*(request(replica=r) for r in ("b", None, "a", "b")))
    assert [(name, rows.tolist()) for name, rows in groups(c.replica)] == [("a", [2]), ("b", [0, 3])]


def test_arrivals_are_lists_by_row() -> None:
    c = Part.from_batch(batch(request(arrivals=(0.1, 0.2)), failed(), request(arrivals=(0.3,))), ORIGIN_NS)
    assert c.events.tolist() == [2, 0, 1]
    assert c.arrivals.offsets.tolist() == [0, 2, 2, 3]
    assert c.arrivals.values.tolist() == [100_000_000, 200_000_000, 300_000_000]
