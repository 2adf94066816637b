"""What may have made replicas uneven, by the evidence."""

from typing import Any

import pytest

from llm_locust.metrics.causes import Cause, Evidence, causes
from llm_locust.metrics.chance import Significance
from llm_locust.metrics.routing import Affinity

NOTHING = Affinity(1000, 0.25, 0.25)
EVEN, UNEVEN = Significance(1.0, 0.8), Significance(99.0, 1e-9)


def entry(name: str, **facts: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"share": 0.25, "tpot_p50_ms": 20.0, "ttft_p50_ms": 100.0, "outages": []}
    known |= facts
    known.setdefault("ci95", {"tpot_p50_ms": [19, 21], "ttft_p50_ms": [90, 110]})
    return {"name": name, **known}


def found(
    *entries: dict[str, Any],
    requests: Significance | None = EVEN,
    dispersion: float | None = 1.0,
    cv: dict[str, float | None] | None = None,
    **affinities: Affinity,
) -> list[Cause]:
    spread = dict.fromkeys(("requests", "output_tokens", "in_flight", "ttft"), 0.01) | (cv or {})
    known = {"connection": NOTHING, "session": NOTHING, "prompt": NOTHING} | affinities
    four = [*entries, *(entry(f"r{i}") for i in range(4 - len(entries)))]
    return causes(Evidence(four, requests, dispersion, spread, known))


def kinds(causes_: list[Cause]) -> list[str]:
    return [cause.kind for cause in causes_]


def test_where_nothing_is_uneven_there_is_no_cause() -> None:
    assert found() == []
    assert found(requests=None, dispersion=None) == []
    assert causes(Evidence([entry("a")], None, None, {}, {})) == []


@pytest.mark.parametrize(
    ("from_s", "to_s", "text"),
    [
        (None, None, "a gave no token at all"),
        (None, 30.0, "a gave its first token at 30.0 s of the window"),
        (62.14, None, "a stopped serving at 62.1 s of the window and did not come back"),
        (10.0, 25.0, "a gave no token from 10.0 s to 25.0 s of the window"),
    ],
)
def test_an_outage_is_told_as_what_it_was(from_s: float | None, to_s: float | None, text: str) -> None:
    outage = {"from_s": from_s, "to_s": to_s, "seconds": 15.0, "others": 99}
    (cause,) = found(entry("a", outages=[outage]))
    assert (cause.kind, cause.replica) == ("out", "a")
    assert cause.text == f"{text}, while others began or ended 99 answers"


def test_slow_is_by_its_pace_first_and_by_its_first_token_where_only_that_is_slow() -> None:
    (pace,) = found(entry("a", tpot_p50_ms=60.0, ttft_p50_ms=900.0))
    assert "3.0 times slower than the others: TPOT p50 60 ms against 20 ms" in pace.text
    (first,) = found(entry("a", ttft_p50_ms=200.0))
    assert "2.0 times slower than the others: TTFT p50 200 ms against 100 ms" in first.text
    assert found(entry("a", tpot_p50_ms=29.0)) == []
    assert found(entry("a", tpot_p50_ms=None, ttft_p50_ms=None)) == []


def test_a_percentile_of_a_few_requests_calls_nobody_slow() -> None:
    assert found(entry("a", tpot_p50_ms=60.0, ci95={"tpot_p50_ms": None, "ttft_p50_ms": None})) == []


def test_connections_are_to_blame_only_where_something_is_uneven() -> None:
    sticky = Affinity(1000, 0.99, 0.25)
    assert found(connection=sticky) == []
    assert kinds(found(connection=sticky, cv={"in_flight": 0.4})) == ["sticky"]
    assert kinds(found(connection=sticky, requests=UNEVEN)) == ["sticky"]


def test_sessions_on_their_own_connections_are_not_told_a_second_time() -> None:
    connection, session = Affinity(1000, 0.99, 0.25), Affinity(900, 0.98, 0.25)
    assert kinds(found(requests=UNEVEN, connection=connection, session=session)) == ["sticky"]
    assert kinds(found(requests=UNEVEN, session=session)) == ["affine"]


@pytest.mark.parametrize(
    ("pairs", "observed", "expected", "decides"),
    [(29, 1.0, 0.25, False), (30, 1.0, 0.25, True), (1000, 0.5, 0.25, False), (1000, 0.9, 1.0, False)],
)
def test_a_key_decides_where_it_explains_half_of_what_chance_does_not(
    pairs: int, observed: float, expected: float, decides: bool
) -> None:
    assert Affinity(pairs, observed, expected).decides is decides


def test_requests_in_turn_are_to_blame_only_for_what_is_uneven() -> None:
    assert found(dispersion=0.02) == []
    (cause,) = found(dispersion=0.02, cv={"output_tokens": 0.3})
    assert cause.kind == "round_robin"
    assert "output tokens (variation 30 %)" in cause.text
    assert found(dispersion=0.9, cv={"output_tokens": 0.3}) == []


def test_an_imbalance_that_nothing_explains_says_so() -> None:
    assert kinds(found(requests=UNEVEN, cv={"requests": 0.3})) == ["unknown"]
    assert found(requests=UNEVEN, cv={"requests": 0.02}) == []  # of many requests, and of no size
    assert found(requests=EVEN, cv={"requests": 0.3}) == []
