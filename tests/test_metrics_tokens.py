"""How long answers were and how their tokens came."""

import numpy as np
import pytest
from metrics_cases import columns, request

from llm_locust.metrics.tokens import delivery, tokens
from llm_locust.record import TokenSource


def test_counts_and_the_share_of_each_source() -> None:
    c = columns(
        request(input_tokens=100, output_tokens=6),
        request(input_tokens=None, output_tokens=3, token_source=TokenSource.TOKENIZER),
        request(output_tokens=None),
        request(arrivals=(), streamed=False, output_tokens=None),
    )
    result = tokens(c, np.arange(4))
    assert result["input"] == {"n": 3, "mean": 40, "p50": 10, "p99": pytest.approx(98.2), "max": 100}
    assert result["output"]["n"] == 3
    assert result["source"] == pytest.approx({"usage": 1 / 3, "tokenizer": 1 / 3, "events": 1 / 3})
    assert result["tokens_per_event"] == pytest.approx(12 / 9)


def test_the_speed_of_users_has_its_slow_end() -> None:
    c = columns(*(request(arrivals=(0.0, 1 / speed)) for speed in range(1, 102)))
    speed = tokens(c, np.arange(101))["user_tps"]
    assert (speed["p1"], speed["p10"], speed["p50"]) == pytest.approx((2, 11, 51))


def test_without_answers_nothing_is_known() -> None:
    result = tokens(columns(), np.empty(0, np.int64))
    assert result["input"] == {"n": 0, "mean": None, "p50": None, "p99": None, "max": None}
    assert result["tokens_per_event"] is None
    assert set(result["source"].values()) == {None}


@pytest.mark.parametrize(
    ("per_event", "itl_ms", "tpot_ms", "kind"),
    [
        (None, 20.0, 20.0, None),
        (1.0, 20.0, 20.0, "tokens"),
        (1.05, 20.0, 20.0, "tokens"),
        (1.5, 30.0, 20.0, "merged"),
        (2.1, 40.0, 20.0, "buffered"),
        (1.0, 0.01, 20.0, "buffered"),
        (1.0, 0.01, 0.01, "tokens"),
        (1.0, None, None, "tokens"),
    ],
)
def test_a_stream_that_was_held_up_on_the_way_is_told_from_one_that_was_not(
    per_event: float | None, itl_ms: float | None, tpot_ms: float | None, kind: str | None
) -> None:
    assert delivery(per_event, itl_ms, tpot_ms) == kind
