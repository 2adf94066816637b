"""The gaps of a run, kept or counted."""

import numpy as np
import pytest
from metrics_cases import ORIGIN_NS, batch, columns, request

from llm_locust.metrics import ragged
from llm_locust.metrics.columns import Part
from llm_locust.metrics.gaps import PooledGaps
from llm_locust.metrics.histogram import RELATIVE_ERROR, Histogram
from llm_locust.metrics.percentiles import percentile
from llm_locust.record import RequestRecord

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


def test_the_requests_that_are_not_asked_for_add_nothing() -> None:
    pool = PooledGaps()
    pool.add(columns(*RECORDS), np.array([1]))
    assert pool.ascending() == pytest.approx([0.4])


def test_gaps_that_fill_many_pieces_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "PIECE", 2)
    assert pooled(RECORDS, exact=100).ascending() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert len(pooled(RECORDS, exact=0).ascending()) == 4
