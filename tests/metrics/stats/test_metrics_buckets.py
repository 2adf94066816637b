"""One mapping of values to buckets, for the report's histograms and for live sketches."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from llm_locust.metrics.stats import sketch
from llm_locust.metrics.stats.sketch import Buckets, Sketch, count_durations

values = st.floats(0, 2.0**40, width=32) | st.integers(0, 2**40).map(float)
shapes = st.builds(Buckets, st.integers(0, 12), st.integers(-30, 0), st.integers(1, 50), below=st.booleans())


@given(shapes, st.lists(values, min_size=1, max_size=40))
def test_a_value_is_in_the_bucket_that_begins_at_or_before_it(buckets: Buckets, found: list[float]) -> None:
    edges, some = buckets.edges(0, len(buckets)), np.array(found)
    assert len(edges) == len(buckets) + 1
    assert (np.diff(edges) > 0).all()
    expected = np.clip(np.searchsorted(edges, some.astype(np.float32), side="right") - 1, 0, len(buckets) - 1)
    assert buckets.of(some).tolist() == expected.tolist()


@given(st.integers(0, 12), st.integers(-30, 0), st.integers(1, 50))
def test_an_octave_has_buckets_of_one_width(kept_bits: int, first: int, end: int) -> None:
    buckets = Buckets(kept_bits, first, end)
    each = 1 << kept_bits
    edges = buckets.edges(0, len(buckets))
    assert (edges[0], edges[-1]) == (2.0**first, 2.0**end)
    last_octave = np.linspace(2.0 ** (end - 1), 2.0**end, each + 1)
    assert edges[-each - 1 :].tolist() == pytest.approx(last_octave.tolist(), rel=1e-12)


@given(st.lists(st.integers(2, 10**15), min_size=1, max_size=60))
def test_histogram_and_sketch_tell_the_same_of_each_sample(durations_ns: list[int]) -> None:
    told = count_durations(np.array(durations_ns, np.int64))
    live = Sketch.of(np.array(durations_ns) * 1e-9)
    together = (1 + sketch.RELATIVE_ERROR) * (1 + sketch.SKETCH_ERROR) - 1
    assert len(told) == len(live)
    for rank in range(len(told)):
        assert live[rank] == pytest.approx(told[rank], rel=together, abs=0)
    assert live.total_ns == told.total_ns
