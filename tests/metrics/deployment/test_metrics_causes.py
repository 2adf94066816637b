"""What may have made replicas uneven, by the evidence."""

from dataclasses import replace
from typing import Any

import pytest

from llm_locust.figures.fairness import Evidence, LikelyCause, causes
from llm_locust.figures.reliability import OutageSpan
from llm_locust.figures.routing import Affinity, ReplicaFigures
from llm_locust.metrics.stats.proportions import Significance

NOTHING = Affinity(1000, 0.25, 0.25)
OUT = OutageSpan(from_s=5.0, to_s=None, seconds=15.0, others=99)
#: Which no cause is told by.
OTHERS: dict[str, Any] = {
    **dict.fromkeys(("requests", "cut_share", "output_tokens_per_s", "concurrency_mean"), 1),
    **dict.fromkeys(("ttft_p99_ms", "tpot_p99_ms", "e2el_p50_ms", "e2el_p99_ms"), 0.0),
    **dict.fromkeys(("error_rate", "goodput_ratio"), 0.0),
}
EVEN, UNEVEN = Significance(1.0, 0.8), Significance(99.0, 1e-9)


def entry(name: str, **facts: Any) -> ReplicaFigures:
    known: dict[str, Any] = {"share": 0.25, "tpot_p50_ms": 20.0, "ttft_p50_ms": 100.0, "outages": []}
    known |= facts
    known.setdefault("ci95", {key: near(known[key]) for key in ("tpot_p50_ms", "ttft_p50_ms")})
    return ReplicaFigures(name=name, at_least={}, in_flight=[], **OTHERS, **known)


def near(ms: float | None) -> list[float] | None:
    """An interval of a median of many requests."""
    return None if ms is None else [0.95 * ms, 1.05 * ms]


def found(
    *entries: ReplicaFigures,
    together: list[ReplicaFigures] | None = None,
    requests: Significance | None = EVEN,
    dispersion: float | None = 1.0,
    cv: dict[str, float | None] | None = None,
    **affinities: Affinity,
) -> list[LikelyCause]:
    spread = dict.fromkeys(("requests", "output_tokens", "in_flight", "ttft"), 0.01) | (cv or {})
    known = {"connection": NOTHING, "session": NOTHING, "prompt": NOTHING} | affinities
    four = [*entries, *(entry(f"r{i}") for i in range(4 - len(entries)))]
    return causes(Evidence(four, together or four, requests, dispersion, spread, known))


def evidence(entries: list[ReplicaFigures], together: list[ReplicaFigures] | None = None) -> Evidence:
    """Of replicas whose requests follow nothing but chance."""
    amounts = dict.fromkeys(("requests", "output_tokens", "in_flight", "ttft"), 0.01)
    affinities = dict.fromkeys(("connection", "session", "prompt"), NOTHING)
    return Evidence(entries, together or entries, None, None, amounts, affinities)


def kinds(causes_: list[LikelyCause]) -> list[str]:
    return [cause.kind for cause in causes_]


def test_where_nothing_is_uneven_there_is_no_cause() -> None:
    assert found() == []
    assert found(requests=None, dispersion=None) == []
    assert causes(Evidence([entry("a")], [entry("a")], None, None, {}, {})) == []


@pytest.mark.parametrize(
    ("from_s", "to_s", "text"),
    [
        (None, None, "a produced no token at all"),
        (None, 30.0, "a produced its first token at 30.0 s of the window"),
        (62.14, None, "a stopped serving at 62.1 s of the window and did not come back"),
        (10.0, 25.0, "a produced no token from 10.0 s to 25.0 s of the window"),
    ],
)
def test_an_outage_is_told_as_what_it_was(from_s: float | None, to_s: float | None, text: str) -> None:
    outage = OutageSpan(from_s=from_s, to_s=to_s, seconds=15.0, others=99)
    (cause,) = found(entry("a", outages=[outage]))
    assert (cause.kind, cause.replica) == ("out", "a")
    assert cause.text == f"{text}, while others started or ended 99 answers"


def test_a_replica_that_was_added_is_no_fault() -> None:
    late = [OutageSpan(from_s=None, to_s=30.0, seconds=30.0, others=99)]
    died = [OutageSpan(from_s=40.0, to_s=None, seconds=15.0, others=99)]
    entries = [entry("new", outages=[*late, *died]), entry("old"), entry("late", outages=late)]
    said = causes(replace(evidence(entries), came=frozenset({"new"})))
    assert [(cause.kind, cause.replica) for cause in said] == [
        ("added", "new"),
        ("out", "new"),
        ("out", "late"),
    ]
    assert said[0].text == "new was added at 30.0 s of the window: the others served before"


def test_slow_is_by_its_pace_first_and_by_its_first_token_where_only_that_is_slow() -> None:
    (pace,) = found(entry("a", tpot_p50_ms=60.0, ttft_p50_ms=900.0))
    assert "3.0 times slower than the others: TPOT p50 60 ms against 20 ms" in pace.text
    (first,) = found(entry("a", ttft_p50_ms=200.0))
    assert "2.0 times slower than the others: TTFT p50 200 ms against 100 ms" in first.text
    assert found(entry("a", tpot_p50_ms=29.0)) == []
    assert found(entry("a", tpot_p50_ms=None, ttft_p50_ms=None)) == []


def test_a_death_that_left_more_requests_to_a_slow_replica_does_not_excuse_it() -> None:
    dead = entry("dead", share=0.1, outages=[OUT])
    slow = entry("slow", share=0.45, tpot_p50_ms=30.0)
    alive = entry("alive", share=0.45, tpot_p50_ms=10.0)
    cause = next(cause for cause in causes(evidence([dead, slow, alive])) if cause.kind == "slow")
    assert cause.replica == "slow"
    assert "3.0 times slower than alive: TPOT p50 30 ms against 10 ms, with 45 % of the" in cause.text


def test_a_replica_that_died_is_compared_with_the_others_while_it_lived() -> None:
    # It had its requests in a cold start, in which all of them were slow.
    whole = [entry("dead", share=0.1, ttft_p50_ms=400.0, outages=[OUT]), entry("a"), entry("b")]
    cold = [entry(name, share=0.33, ttft_p50_ms=400.0) for name in ("dead", "a", "b")]
    assert kinds(causes(evidence(whole, cold))) == ["out"]
    limping = [entry("dead", share=0.33, ttft_p50_ms=900.0), *cold[1:]]
    cause = causes(evidence(whole, limping))[1]
    assert (cause.kind, cause.replica) == ("slow", "dead")
    assert cause.text.endswith("TTFT p50 900 ms against 400 ms, with 33 % of the requests, while all served")


def test_of_two_replicas_of_which_one_died_the_other_may_have_been_the_slow_one() -> None:
    two = [entry("dead", share=0.3, outages=[OUT]), entry("a", share=0.7, tpot_p50_ms=60.0)]
    then = [entry("dead", share=0.5), entry("a", share=0.5, tpot_p50_ms=60.0)]
    cause = causes(evidence(two, then))[1]
    assert (cause.kind, cause.replica) == ("slow", "a")
    assert "slower than dead" in cause.text


def test_what_a_run_shared_out_itself_is_no_balancers_doing() -> None:
    slow = [entry("a", tpot_p50_ms=60.0), entry("b"), entry("c")]
    sticky = replace(
        evidence(slow), affinities={**evidence(slow).affinities, "connection": Affinity(1000, 0.99, 0.25)}
    )
    uneven = replace(sticky, cv={**sticky.cv, "in_flight": 0.5})
    assert kinds(causes(uneven)) == ["slow", "sticky"]
    assert kinds(causes(replace(uneven, direct=True))) == ["slow"]


@pytest.mark.parametrize(("tpot_ms", "is_slow"), [(58.0, False), (62.0, True)])
def test_twice_the_requests_excuse_twice_the_pace(tpot_ms: float, is_slow: bool) -> None:
    busy = [entry("a", share=0.5, tpot_p50_ms=tpot_ms), entry("b", share=0.25), entry("c", share=0.25)]
    assert kinds(causes(evidence(busy))) == ["slow"] * is_slow


def test_a_queue_of_more_requests_excuses_any_first_token() -> None:
    for share, slow in ((0.26, ["slow"]), (0.4, [])):
        rest = [entry(name, share=(1 - share) / 3) for name in "bcd"]
        assert kinds(causes(evidence([entry("a", share=share, ttft_p50_ms=900.0), *rest]))) == slow


def test_medians_whose_intervals_overlap_call_nobody_slow() -> None:
    wide = {"tpot_p50_ms": near(20.0), "ttft_p50_ms": [95.0, 900.0]}
    assert found(entry("a", ttft_p50_ms=180.0, ci95=wide)) == []
    assert kinds(found(entry("a", ttft_p50_ms=180.0))) == ["slow"]


def test_a_percentile_of_a_few_requests_calls_nobody_slow() -> None:
    assert found(entry("a", tpot_p50_ms=60.0, ci95={"tpot_p50_ms": None, "ttft_p50_ms": None})) == []


def test_connections_are_to_blame_only_where_something_is_uneven() -> None:
    sticky = Affinity(1000, 0.99, 0.25)
    assert found(connection=sticky) == []
    assert kinds(found(connection=sticky, cv={"in_flight": 0.4})) == ["sticky"]
    assert kinds(found(connection=sticky, requests=UNEVEN)) == ["sticky"]


def test_the_least_busy_replica_is_no_sticky_connection() -> None:
    followed = Affinity(1000, 0.85, 0.29)
    (cause,) = found(requests=UNEVEN, connection=followed, cv={"requests": 0.38, "in_flight": 0.12})
    assert cause.kind == "least_busy"
    assert "(variation 38 %)" in cause.text
    assert kinds(found(requests=UNEVEN, connection=followed, cv={"requests": 0.3, "in_flight": 0.3})) == [
        "unknown"
    ]


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


@pytest.mark.parametrize(("observed", "binds"), [(1.0, True), (0.97, True), (0.95, False), (0.85, False)])
def test_a_connection_binds_where_next_to_none_of_its_requests_leaves(observed: float, binds: bool) -> None:
    assert Affinity(1000, observed, 0.25).binds is binds


def test_requests_in_turn_are_to_blame_only_for_what_is_uneven() -> None:
    assert found(dispersion=0.02) == []
    (cause,) = found(dispersion=0.02, cv={"output_tokens": 0.3})
    assert cause.kind == "round_robin"
    assert "output tokens (variation 30 %)" in cause.text
    assert found(dispersion=0.9, cv={"output_tokens": 0.3}) == []


def test_an_imbalance_that_nothing_explains_says_so() -> None:
    assert kinds(found(requests=UNEVEN, cv={"requests": 0.3, "in_flight": 0.3})) == ["unknown"]
    assert found(requests=UNEVEN, cv={"requests": 0.02}) == []  # of many requests, and of no size
    assert found(requests=EVEN, cv={"requests": 0.3}) == []
