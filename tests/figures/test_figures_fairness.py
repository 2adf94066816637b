"""How evenly replicas were used: the indices, the tests, the causes, and their words."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import NAMES, at_random, batch, in_turn, manifest, request, served
from msgspec import to_builtins
from report_cases import summary, told as report_told

from llm_locust.core.record import RequestRecord
from llm_locust.figures.fairness import (
    AMOUNTS,
    MOST_CAUSES,
    Evidence,
    LikelyCause,
    causes as causes_of_fairness,
    deployment,
    gini,
    jain,
    show as fairness,
    variation,
)
from llm_locust.figures.reliability import OutageSpan
from llm_locust.figures.routing import Affinity, ReplicaFigures
from llm_locust.figures.text import Section, Tone
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.stats.proportions import Significance
from llm_locust.report.contents import brief, sections
from llm_locust.report.headline import findings, headline_of

AMOUNT_LISTS = st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any)


def told(records: list[RequestRecord], seconds: float | None = None) -> dict[str, Any]:
    rows = batch(*records)
    facts = manifest(seconds or max(r.ended_ns - r.scheduled_ns for r in records) * 1e-9 + len(records) * 0.1)
    found: dict[str, Any] = to_builtins(
        deployment(rows, measure(rows, facts, Question(slo="", warmup_s=0.0)), facts, None)
    )
    return found


def causes(found: dict[str, Any]) -> dict[str, str]:
    return {cause["kind"]: cause["text"] for cause in found["fairness"]["causes"]}


def test_no_index_is_defined_for_one_for_unknown_ones_and_for_nothing() -> None:
    for index in (jain, gini, variation):
        assert index([5.0]) is index([]) is index([1.0, None]) is index([0.0, 0.0]) is None
        assert index([1.0, math.nan]) is None


@given(AMOUNT_LISTS)
def test_jains_index_is_between_one_replica_has_all_and_all_have_the_same(amounts: list[int]) -> None:
    index = jain(list(map(float, amounts)))
    assert index is not None
    assert 1 / len(amounts) - 1e-12 <= index <= 1 + 1e-12
    assert jain([1.0] * len(amounts)) == pytest.approx(1.0)
    assert jain([1.0, *[0.0] * (len(amounts) - 1)]) == pytest.approx(1 / len(amounts))
    assert (index > 1 - 1e-9) == (len(set(amounts)) == 1)


@given(AMOUNT_LISTS, st.floats(1e-3, 1e6))
def test_gini_is_the_mean_difference_of_pairs_whatever_the_unit(amounts: list[int], unit: float) -> None:
    k = len(amounts)
    pairs = sum(abs(x - y) for x in amounts for y in amounts)
    expected = pairs / (2 * k * sum(amounts))
    assert gini([unit * x for x in amounts]) == pytest.approx(expected, abs=1e-9)
    assert gini([1.0, *[0.0] * (k - 1)]) == pytest.approx(1 - 1 / k)


@given(AMOUNT_LISTS)
def test_jains_index_is_the_variation_in_other_words(amounts: list[int]) -> None:
    cv, index = variation(list(map(float, amounts))), jain(list(map(float, amounts)))
    assert cv is not None
    assert index == pytest.approx(1 / (1 + cv**2))


def test_random_routing_of_like_requests_is_by_chance_and_has_no_cause() -> None:
    found = told(served(at_random(), n=1600))
    fairness = found["fairness"]
    assert fairness["chance"]["requests"]["p"] > 0.01
    assert fairness["causes"] == []
    assert 0.98 < fairness["requests"] < 1
    assert (fairness["named_by"], fairness["unnamed"]) == ("header", 0)
    assert all(0 <= fairness["gini"][name] < 0.1 for name in AMOUNTS)


def test_round_robin_of_unequal_lengths_is_named() -> None:
    # Every fourth request is long, so that one replica gets all of the long ones.
    def sized(i: int) -> tuple[float, ...]:
        return tuple(0.05 + 0.02 * k for k in range(100 if i % 4 == 0 else 10))

    found = told([request(i * 0.1, sized(i), replica=NAMES[i % 4], reused=False) for i in range(1200)])
    assert found["fairness"]["requests"] == pytest.approx(1.0, abs=1e-5)
    assert found["fairness"]["output_tokens"] < 0.6
    text = causes(found)["round_robin"]
    assert "dealt out in turn" in text
    assert "output tokens" in text
    assert "in flight" in text


def test_sticky_connections_are_named_with_the_share() -> None:
    # Connections that live for 50 requests, on replicas by lot: two of the four got most of them.
    source = random.Random(4)
    homes = [source.choices(NAMES, [5, 3, 1, 1])[0] for _ in range(20)]
    records = [
        replace(record, reused=i % 50 > 0)
        for i, record in enumerate(served(lambda i: homes[i // 50], n=1000))
    ]
    found = told(records)
    text = causes(found)["sticky"]
    assert "--connection-reuse off" in text
    assert "100 % of 980 requests" in text
    assert "unknown" not in causes(found)


def test_prefix_aware_routing_is_named() -> None:
    homes = {f"p{k}": NAMES[k % 4] for k in range(12)}
    source = random.Random(2)
    records = []
    for i in range(1200):
        prompt = source.choices(list(homes), [10, *[1] * 11])[0]  # one prefix is popular
        records.append(request(i * 0.1, replica=homes[prompt], prompt_id=prompt, reused=False))
    found = causes(told(records))
    assert "prefix or the session" in found["affine"]
    assert "100 % of" in found["affine"]


def test_a_slow_replica_is_named_with_its_factor_and_share() -> None:
    slow = tuple(0.15 + 0.06 * k for k in range(10))
    fast = tuple(0.05 + 0.02 * k for k in range(10))
    found = told([request(i * 0.1, slow if i % 4 == 2 else fast, replica=NAMES[i % 4]) for i in range(400)])
    (slow_one,) = [cause for cause in found["fairness"]["causes"] if cause["kind"] == "slow"]
    assert slow_one["replica"] == "c"
    assert "3.0 times slower" in slow_one["text"]
    assert "25 % of the requests" in slow_one["text"]
    assert found["fairness"]["chance"]["ttft"]["p"] < 1e-6
    assert found["fairness"]["in_flight"] < 0.9


def test_a_replica_that_is_slow_because_it_has_most_requests_is_not_called_slow() -> None:
    slow = tuple(0.15 + 0.06 * k for k in range(10))
    fast = tuple(0.05 + 0.02 * k for k in range(10))
    found = told(
        [
            request(i * 0.1, slow if i % 2 else fast, replica="a" if i % 2 else NAMES[1 + i % 3])
            for i in range(400)
        ]
    )
    assert "slow" not in causes(found)
    assert "unknown" in causes(found)


def test_a_dead_replica_is_named_with_its_time() -> None:
    live = in_turn(NAMES[:3])
    found = told(served(lambda i: NAMES[i % 4] if i < 400 else live(i), n=800))
    assert "d stopped serving at 40.0 s" in causes(found)["out"]
    (entry,) = [entry for entry in found["replicas"] if entry["name"] == "d"]
    assert entry["outages"][0]["to_s"] is None
    assert entry["in_flight"][0] > 0 == entry["in_flight"][-1]


def test_a_replica_that_served_only_in_a_cold_start_is_not_called_slow() -> None:
    cold, warm = ((first, first + 0.02, first + 0.04) for first in (1.0, 0.1))
    live = in_turn(NAMES[:2])
    records = [request(i * 0.1, cold, replica=NAMES[i % 3]) for i in range(120)]
    records += [request(i * 0.1, warm, replica=live(i)) for i in range(120, 800)]
    found = told(records)
    assert found["replicas"][2]["ttft_p50_ms"] == pytest.approx(1000)
    assert found["replicas"][0]["ttft_p50_ms"] == pytest.approx(100)
    assert set(causes(found)) == {"out"}


def test_addresses_stand_in_for_names_that_no_response_gives() -> None:
    records = [request(i * 0.1, peer=f"10.0.0.{i % 2}:80") for i in range(100)]
    found = told(records)
    assert [entry["name"] for entry in found["replicas"]] == ["10.0.0.0:80", "10.0.0.1:80"]
    assert found["fairness"]["named_by"] == "peer"


def test_a_run_without_replicas_has_every_key_and_nothing_in_it() -> None:
    found = told([request()], seconds=1.0)
    assert found["replicas"] == []
    full = told(served(at_random(), n=40))["fairness"]
    assert found["fairness"].keys() == full.keys()
    assert found["fairness"]["requests"] is found["fairness"]["named_by"] is None
    assert found["fairness"]["causes"] == []
    assert found["fairness"]["unnamed"] == 1


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
    return causes_of_fairness(Evidence(four, together or four, requests, dispersion, spread, known))


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
    assert causes_of_fairness(Evidence([entry("a")], [entry("a")], None, None, {}, {})) == []


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
    said = causes_of_fairness(replace(evidence(entries), came=frozenset({"new"})))
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
    cause = next(cause for cause in causes_of_fairness(evidence([dead, slow, alive])) if cause.kind == "slow")
    assert cause.replica == "slow"
    assert "3.0 times slower than alive: TPOT p50 30 ms against 10 ms, with 45 % of the" in cause.text


def test_a_replica_that_died_is_compared_with_the_others_while_it_lived() -> None:
    # It had its requests in a cold start, in which all of them were slow.
    whole = [entry("dead", share=0.1, ttft_p50_ms=400.0, outages=[OUT]), entry("a"), entry("b")]
    cold = [entry(name, share=0.33, ttft_p50_ms=400.0) for name in ("dead", "a", "b")]
    assert kinds(causes_of_fairness(evidence(whole, cold))) == ["out"]
    limping = [entry("dead", share=0.33, ttft_p50_ms=900.0), *cold[1:]]
    cause = causes_of_fairness(evidence(whole, limping))[1]
    assert (cause.kind, cause.replica) == ("slow", "dead")
    assert cause.text.endswith("TTFT p50 900 ms against 400 ms, with 33 % of the requests, while all served")


def test_of_two_replicas_of_which_one_died_the_other_may_have_been_the_slow_one() -> None:
    two = [entry("dead", share=0.3, outages=[OUT]), entry("a", share=0.7, tpot_p50_ms=60.0)]
    then = [entry("dead", share=0.5), entry("a", share=0.5, tpot_p50_ms=60.0)]
    cause = causes_of_fairness(evidence(two, then))[1]
    assert (cause.kind, cause.replica) == ("slow", "a")
    assert "slower than dead" in cause.text


def test_what_a_run_shared_out_itself_is_no_balancers_doing() -> None:
    slow = [entry("a", tpot_p50_ms=60.0), entry("b"), entry("c")]
    sticky = replace(
        evidence(slow), affinities={**evidence(slow).affinities, "connection": Affinity(1000, 0.99, 0.25)}
    )
    uneven = replace(sticky, cv={**sticky.cv, "in_flight": 0.5})
    assert kinds(causes_of_fairness(uneven)) == ["slow", "sticky"]
    assert kinds(causes_of_fairness(replace(uneven, direct=True))) == ["slow"]


@pytest.mark.parametrize(("tpot_ms", "is_slow"), [(58.0, False), (62.0, True)])
def test_twice_the_requests_excuse_twice_the_pace(tpot_ms: float, is_slow: bool) -> None:
    busy = [entry("a", share=0.5, tpot_p50_ms=tpot_ms), entry("b", share=0.25), entry("c", share=0.25)]
    assert kinds(causes_of_fairness(evidence(busy))) == ["slow"] * is_slow


def test_a_queue_of_more_requests_excuses_any_first_token() -> None:
    for share, slow in ((0.26, ["slow"]), (0.4, [])):
        rest = [entry(name, share=(1 - share) / 3) for name in "bcd"]
        assert (
            kinds(causes_of_fairness(evidence([entry("a", share=share, ttft_p50_ms=900.0), *rest]))) == slow
        )


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


UNEVEN_of_fairness = {"requests": {"statistic": 99.0, "p": 1e-21}, "ttft": None}


def section(**changes: Any) -> Section:
    found = fairness(report_told(fairness={**summary()["fairness"], "chance": UNEVEN_of_fairness, **changes}))
    assert found is not None
    return found


def test_causes_are_warnings_and_their_names_are_cleaned() -> None:
    causes = [{"kind": "sticky", "text": "a\x1b[31m is had\nvery often", "replica": "a"}]
    (note,) = section(causes=causes).notes
    assert (note.text, note.tone, note.verbatim) == ("a is had very often", Tone.WARN, True)


def test_a_slow_replica_and_one_that_was_out_have_a_box_of_their_own_what_was_out_first() -> None:
    causes = [{"kind": kind, "text": f"{kind} it is", "replica": "a"} for kind in ("slow", "sticky", "out")]
    found = report_told(fairness={**summary()["fairness"], "chance": UNEVEN_of_fairness, "causes": causes})
    (box,) = [each.box for each in findings(found) if each.key == "replicas"]
    assert box is not None
    assert [line.text for line in box.lines][:2] == ["out it is", "slow it is"]
    assert [line.text for line in section(causes=causes).notes] == ["sticky it is"]


def test_replicas_that_were_alike_have_no_indices() -> None:
    even = {"chance": {"requests": {"statistic": 0.1, "p": 0.9}, "ttft": None}, "causes": []}
    even["cv"] = dict.fromkeys(("requests", "output_tokens", "in_flight", "ttft"), 0.02)
    assert fairness(report_told(fairness={**summary()["fairness"], **even})) is None


def test_only_so_many_causes_are_told() -> None:
    notes = section(
        causes=[
            {"kind": "affine", "text": f"r{i} is affine", "replica": None} for i in range(MOST_CAUSES + 3)
        ],
        unnamed=0,
    ).notes
    assert len(notes) == MOST_CAUSES + 1
    assert notes[-1].text == "3 more causes in summary.json"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"named_by": "peer"}, "distinguished by connection address"),
        ({"unnamed": 7}, "7 requests have no replica"),
        ({"unnamed": 1}, "1 request has no replica"),
    ],
)
def test_it_is_said_how_replicas_were_told_apart(changes: dict[str, Any], text: str) -> None:
    found = report_told(fairness={**summary()["fairness"], **changes})
    (replicas,) = [section for section in sections(found) if section.key == "replicas"]
    assert any(text in note.text for note in replicas.notes)


def test_a_header_that_names_one_replica_is_told_with_that_which_names_several() -> None:
    headers = [
        {"name": name, "answers": 60, "values": values, "more": False, "value": value}
        for name, values, value in (("x-served-by", 1, "lb-1"), ("x-upstream", 3, "10.0.0.1:80"))
    ]
    part = {**summary()["fairness"], "headers": headers, "better_header": "x-upstream"}
    found = report_told(fairness=part, replicas=summary()["replicas"][:1])
    (replicas,) = [section for section in sections(found) if section.key == "replicas"]
    (note,) = [note for note in replicas.notes if note.tone is Tone.WARN]
    assert note.text == (
        "every answer has x-served-by: lb-1, but x-upstream names 3 replicas: use --replica-header x-upstream"
    )
    remarks = [line.text for section in brief(found, headline_of(found)) for line in section.lines]
    assert any(note.text in text for text in remarks)


def test_a_report_of_one_replica_or_none_has_no_such_section() -> None:
    assert fairness(report_told(replicas=summary()["replicas"][:1])) is None
    uneven = report_told(fairness={**summary()["fairness"], "chance": UNEVEN_of_fairness})
    titles = [section.title for section in sections(uneven)]
    assert titles.index("Fairness") == titles.index("Replicas") + 1
