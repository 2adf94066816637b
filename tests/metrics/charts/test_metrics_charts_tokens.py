"""One pass over the arrivals: tokens and gaps in each span, and details of chosen requests."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, failed, ns, request, requests

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome
from llm_locust.figures.charts.course import TimeAxis
from llm_locust.figures.charts.distributions import GAP_BINS, TokenFacts, gap_edges_s, read_tokens

AXIS = TimeAxis(start_s=0.0, width_s=1.0, bins=20)
NONE = np.empty(0, np.int64)


def read(rows: RecordBatch) -> TokenFacts:
    return read_tokens(rows, ORIGIN_NS, AXIS, NONE)


def test_tokens_are_credited_where_their_events_arrived() -> None:
    facts = read(batch(request(0.0, (0.5, 1.5, 1.6), output_tokens=6), request(2.0, (0.1,))))
    assert facts.output_tokens[:3].tolist() == pytest.approx([2, 4, 1])
    assert facts.output_tokens.sum() == 7


def test_an_answer_without_events_counts_as_a_whole_at_its_end() -> None:
    facts = read(batch(request(0.0, (), ended=3.5, streamed=False, output_tokens=40)))
    assert facts.output_tokens[3] == 40


def test_each_gap_is_in_the_bin_of_its_size_and_the_span_in_which_it_ended() -> None:
    facts = read(batch(request(0.9, (0.05, 0.07, 0.17))))
    edges = gap_edges_s()
    places = np.argwhere(facts.gaps)
    assert [int(span) for _, span in places] == [0, 1]
    for (size, _), gap_s in zip(places, (0.02, 0.1), strict=True):
        assert edges[size] <= gap_s * 1.000001
        assert gap_s < edges[size + 1] * 1.000001


def test_gaps_beyond_the_scale_are_in_its_first_and_last_bin() -> None:
    facts = read(batch(request(0.0, (0.1, 0.1)), request(0.0, (0.1, 0.10001))))
    assert facts.gaps[0, 0] == 2
    long = TimeAxis(0.0, 100.0, 20)
    found = read_tokens(batch(request(0.0, (0.1, 1000.0))), ORIGIN_NS, long, NONE)
    assert found.gaps[GAP_BINS - 1].sum() == 1


def test_only_ok_streams_have_gaps() -> None:
    rows = batch(
        request(0.0, outcome=Outcome.TRUNCATED),
        request(0.0, (0.1,)),
        request(0.0, streamed=False),
        failed(0.0),
    )
    assert read(rows).gaps.sum() == 0


@given(st.lists(requests(), max_size=12))
def test_every_gap_is_counted_once_whatever_the_parts(made: list) -> None:  # type: ignore[type-arg]
    rows = batch(*made)
    facts = read(rows)
    ok = [r for r in made if r.outcome is Outcome.OK and r.streamed]
    assert facts.gaps.sum() == sum(max(0, len(r.arrivals_ns) - 1) for r in ok)


def test_chosen_requests_are_told_with_their_longest_gap_and_worker() -> None:
    rows = RecordBatch.concat(
        [
            batch(request(0.0), worker="w1"),
            batch(request(0.0, (0.1, 0.3, 0.31), request_id="slow", headers_ns=ns(0.05)), worker="w2"),
        ]
    )
    facts = read_tokens(rows, ORIGIN_NS, AXIS, np.array([1]))
    details = facts.details[1]
    assert details.request_id == "slow"
    assert details.headers_s == pytest.approx(0.05)
    assert details.longest_gap_s == pytest.approx(0.2)
    assert [facts.worker.names[code] for code in facts.worker.codes] == ["w1", "w2"]
