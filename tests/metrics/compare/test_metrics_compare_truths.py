"""Gates of a comparison on runs with a known truth: what is plain is decided, and noise is not."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
from compare_cases import compared, lognormal, made_batch
from metrics_cases import batch, request
from numpy.typing import NDArray

from llm_locust.figures.compare.comparison import apart_p
from llm_locust.figures.compare.relative_gates import (
    GateResult,
    State,
    evaluate_relative,
    judge_change,
    parse_relative_gates,
)
from llm_locust.figures.compare.sides import Compared, figures_of
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.estimates import Average, Estimate, Extremes, Share, alike
from llm_locust.metrics.stats.intervals import in_order

Floats = NDArray[np.float64]
PERCENTS = {"mean": None, "p5": 5.0, "p50": 50.0, "p95": 95.0, "p99": 99.0}


def of(statistic: str, values: Floats, rounds: float | None = None) -> Estimate | None:
    """A figure of latencies, by default those of one user in turn."""
    found = replace(Durations.of(values), course=in_order(values))
    return figures_of(found, [PERCENTS[statistic]], rounds or len(values))[0]


def judged(
    text: str, base: Floats, new: Floats, *, gates: int = 1, rounds: float | None = None
) -> GateResult:
    (gate,) = parse_relative_gates(text)
    statistic = text.partition("_")[0]
    return judge_change(gate, of(statistic, base, rounds), of(statistic, new, rounds), gates)


def noisy(n: int, spread: float, seed: int) -> Floats:
    values: Floats = np.exp(spread * np.random.default_rng(seed).normal(size=n))
    return values


@dataclass(frozen=True, slots=True)
class Truth:
    """New is ``slower`` times a base of ``n`` requests that vary by ``spread``."""

    n: int
    spread: float
    slower: float
    gate: str
    finding: str


TRUTHS = (
    # Fixed lengths: 30 requests are enough for all but a tail.
    *(Truth(30, 0.01, 1.0, f"{s}_e2el<=+5%", "held") for s in ("mean", "p50", "p95", "p99")),
    *(Truth(30, 0.01, 1.02, f"{s}_e2el<=+5%", "held") for s in ("mean", "p50")),
    *(Truth(30, 0.01, 1.1, f"{s}_e2el<=+5%", "broken") for s in ("mean", "p50", "p95", "p99")),
    *(Truth(30, 0.01, 2.0, f"{s}_e2el<=+5%", "broken") for s in ("mean", "p50", "p95", "p99")),
    *(Truth(30, 0.01, 0.5, f"{s}_e2el<=+5%", "held") for s in ("mean", "p50", "p95", "p99")),
    *(Truth(30, 0.01, 1.0, f"{s}_e2el>=-5%", "held") for s in ("mean", "p50")),
    *(Truth(30, 0.01, 0.5, f"{s}_e2el>=-5%", "broken") for s in ("mean", "p50", "p95")),
    # A clean fifth at 80 requests.
    *(Truth(80, 0.05, 1.2, f"{s}_ttft<=+5%", "broken") for s in ("mean", "p50", "p95")),
    *(Truth(80, 0.05, 1.0, f"{s}_ttft<=+5%", "held") for s in ("mean", "p50")),
    # Ten requests, and five.
    *(Truth(10, 0.01, 2.0, f"{s}_ttft<=+5%", "broken") for s in ("mean", "p50", "p99")),
    *(Truth(5, 0.01, 2.0, f"{s}_ttft<=+5%", "broken") for s in ("mean", "p50", "p99")),
    # Too few to know anything.
    *(Truth(2, 0.01, 2.0, f"{s}_ttft<=+5%", "unknown") for s in ("mean", "p50", "p99")),
    *(Truth(30, 0.5, 1.0, f"{s}_ttft<=+1%", "unknown") for s in ("mean", "p50", "p99")),
    Truth(100, 0.5, 1.0, "p99_ttft<=+10%", "unknown"),
    # Wide noise, plain changes.
    *(Truth(30, 0.5, 4.0, f"{s}_ttft<=+5%", "broken") for s in ("mean", "p50", "p95", "p99")),
    *(Truth(500, 0.5, 2.0, f"{s}_ttft<=+5%", "broken") for s in ("mean", "p50", "p95", "p99")),
    *(Truth(2_000, 0.5, 1.0, f"{s}_ttft<=+5%", "held") for s in ("mean", "p50")),
    *(Truth(2_000, 0.5, 1.2, f"{s}_ttft<=+5%", "broken") for s in ("mean", "p50")),
    *(Truth(2_000, 0.5, 1.0, f"{s}_ttft<=+50%", "held") for s in ("p95", "p99")),
)


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda t: f"{t.n} x {t.slower:g} +-{t.spread:g} {t.gate}")
def test_what_is_plain_is_decided_and_what_noise_hides_is_not(truth: Truth) -> None:
    result = judged(
        truth.gate, noisy(truth.n, truth.spread, 1), truth.slower * noisy(truth.n, truth.spread, 2)
    )
    assert result.state.finding == truth.finding, (result.state, result.interval)


# --- many pairs --------------------------------------------------------------------------------------


def findings(text: str, sample: Callable[[int], Floats], slower: float, pairs: int) -> dict[str, float]:
    found = dict.fromkeys(("held", "unknown", "broken"), 0.0)
    for i in range(pairs):
        found[judged(text, sample(2 * i), slower * sample(2 * i + 1)).state.finding] += 1 / pairs
    return found


def beyond(share: float, pairs: int) -> float:
    """So large a share is seen of one that is rarer in one of 700 tests, were it exactly that."""
    return share + 3 * math.sqrt(share * (1 - share) / pairs)


PAIRS = 60


@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_of_500_independent_requests_four_pairs_of_five_are_decided_and_none_breaks(statistic: str) -> None:
    found = findings(f"{statistic}_ttft<=+5%", lambda seed: noisy(500, 0.5, seed), 1.0, PAIRS)
    assert found["broken"] <= beyond(0.05, PAIRS)
    assert found["unknown"] <= beyond(0.20, PAIRS)


@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_of_30_independent_requests_twice_as_slow_ones_break(statistic: str) -> None:
    found = findings(f"{statistic}_ttft<=+5%", lambda seed: noisy(30, 0.5, seed), 2.0, PAIRS)
    assert found["broken"] >= 1 - beyond(0.05, PAIRS)
    assert not found["held"]


@pytest.mark.parametrize("n", [80, 500, 2_000])
@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_twice_the_limit_seldom_holds(statistic: str, n: int) -> None:
    found = findings(f"{statistic}_ttft<=+5%", lambda seed: noisy(n, 0.5, seed), 1.1, PAIRS)
    assert found["held"] <= beyond(0.10, PAIRS)


def memory(n: int, seed: int) -> Floats:
    """Each logarithm has half of the one before."""
    steps = np.random.default_rng(seed).normal(size=n) * math.sqrt(0.75)
    walk = accumulate(steps.tolist(), lambda before, step: before / 2 + step)
    values: Floats = np.exp(0.5 * np.fromiter(walk, float, n))
    return values


def queue(n: int, seed: int) -> Floats:
    """Times in system with four servers at 70 %."""
    rng = np.random.default_rng(seed)
    service, between = np.exp(0.5 * rng.normal(size=n + 500) - 0.125), rng.exponential(1 / 2.8, n + 500)
    free, at, taken = [0.0] * 4, 0.0, []
    for work, gap in zip(service.tolist(), between.tolist(), strict=True):
        at += gap
        begun = max(at, heapq.heappop(free))
        heapq.heappush(free, begun + work)
        taken.append(begun + work - at)
    return np.array(taken[500:])


def phases(n: int, seed: int) -> Floats:
    """Each 40 requests in a row have half of their variance in common."""
    rng = np.random.default_rng(seed)
    level = np.repeat(rng.normal(size=n // 40 + 2), 40)[int(rng.integers(40)) :][:n]
    values: Floats = np.exp(0.35 * level + 0.35 * rng.normal(size=n))
    return values


@pytest.mark.parametrize(
    ("sample", "n"), [(memory, 100), (memory, 500), (queue, 100), (queue, 500), (phases, 500)]
)
@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_requests_that_depend_on_each_other_break_no_more_often(
    statistic: str, sample: Callable[[int, int], Floats], n: int
) -> None:
    found = findings(f"{statistic}_ttft<=+5%", lambda seed: sample(n, seed), 1.0, PAIRS)
    assert found["broken"] <= beyond(0.05, PAIRS)
    at_limit = findings(f"{statistic}_ttft<=+5%", lambda seed: sample(n, seed), 1.05, PAIRS)
    assert at_limit["broken"] <= beyond(0.06, PAIRS)


# --- several gates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.02, 0.2, 0.5])
@pytest.mark.parametrize("slower", [1.06, 1.08, 1.1, 1.2])
def test_a_further_gate_never_turns_a_broken_one_into_a_held_one(spread: float, slower: float) -> None:
    for seed in range(10):
        base, new = noisy(200, spread, 2 * seed), slower * noisy(200, spread, 2 * seed + 1)
        alone = judged("mean_ttft<=+5%", base, new).state
        for gates in (2, 5, 40):
            among = judged("mean_ttft<=+5%", base, new, gates=gates).state
            if alone.finding == "broken":
                assert among is State.AMONG_GATES or among.finding == "broken"
            else:
                assert among is alone


def test_gates_that_hold_do_not_save_the_one_that_breaks() -> None:
    base, new = (in_step(8, 27, pace) for pace in (0.010, 0.012))
    loose = "output_cps>=-50% input_tps>=-50% error_rate<=+20pp mean_tpot<=+80%"
    (alone,) = evaluate_relative(parse_relative_gates("output_tps>=-5%"), base, new)
    among, *others = evaluate_relative(parse_relative_gates(f"output_tps>=-5% {loose}"), base, new)
    assert alone.state.finding == among.state.finding == "broken"
    assert {each.state.finding for each in others} == {"held"}


def test_over_the_limit_holds_only_with_the_limit_in_the_middle_of_the_interval() -> None:
    states = set()
    for seed in range(60):
        result = judged("mean_ttft<=+5%", noisy(1_000, 0.5, 2 * seed), 1.05 * noisy(1_000, 0.5, 2 * seed + 1))
        assert result.change is not None
        assert result.interval is not None
        states.add(result.state)
        if result.state is State.WITHIN_NOISE:
            # One-sided ends of 95 %: the middle half reaches 0.41 of the way to them.
            assert result.change - 0.45 * (result.change - result.interval.low) <= 0.05
    assert {State.HELD, State.WITHIN_NOISE} <= states


# --- shares ------------------------------------------------------------------------------------------


def failing(n: int, failed: Callable[[NDArray[np.int64]], NDArray[np.bool_]], seed: int = 1) -> Compared:
    rng = np.random.default_rng(seed)
    return compared(made_batch(rng, lognormal(rng, n), failed=failed(np.arange(n))))


def none(of: NDArray[np.int64]) -> NDArray[np.bool_]:
    return of < 0


@pytest.mark.parametrize(
    ("n", "gate", "finding"),
    [
        (620, "error_rate<=+0.5pp", "held"),
        (250, "error_rate<=+0.5pp", "held"),
        (100, "error_rate<=+0.5pp", "unknown"),
        (100, "error_rate<=+2pp", "held"),
        (30, "error_rate<=+20pp", "held"),
        (30, "error_rate<=+1pp", "unknown"),
        (1_300, "error_rate<=+20%", "held"),
        (100, "error_rate<=+20%", "unknown"),
    ],
)
def test_none_of_n_is_none_of_n(n: int, gate: str, finding: str) -> None:
    (result,) = evaluate_relative(parse_relative_gates(gate), failing(n, none), failing(n, none, 2))
    assert result.state.finding == finding
    if finding == "unknown":
        assert result.times is not None
        assert 1 < result.times < 10


@pytest.mark.parametrize(
    ("failed", "finding"),
    [
        (lambda of: of % 20 == 0, "broken"),  # apart: 50 events against none
        (lambda of: of % 125 == 0, "unknown"),  # eight
        (lambda of: (of >= 500) & (of < 550), "unknown"),  # one outage against none
        (lambda of: of % 2 == 0, "broken"),
    ],
)
def test_failures_count_by_how_many_come_together(
    failed: Callable[[NDArray[np.int64]], NDArray[np.bool_]], finding: str
) -> None:
    gates = parse_relative_gates("error_rate<=+0.5pp")
    (result,) = evaluate_relative(gates, failing(1_000, none), failing(1_000, failed, 2))
    assert result.state.finding == finding, result.interval


def test_a_run_without_failures_is_worth_as_many_events_as_the_other_one() -> None:
    clean, outage = Share(0.0, 1_000, None), Share(0.05, 1_000, None)
    assert alike(clean, outage) == (clean, outage)  # nothing is known of how they come
    result = failing(1_000, lambda of: of < 50)
    (gate,) = parse_relative_gates("error_rate<=+1pp")
    figure = result.estimate(gate.metric)
    assert isinstance(figure, Share)
    apart, _ = alike(clean, figure)
    assert clean.ends(0.9)[1] == pytest.approx(1 - 0.05 ** (1 / 1_000))
    assert apart.ends(0.9)[1] > 0.05


@pytest.mark.parametrize("n", [3, 10, 40, 216])
def test_no_interval_is_wider_than_what_is_possible(n: int) -> None:
    base, new = failing(n, none), failing(n, lambda of: of == 0, 2)
    gates = parse_relative_gates(
        "error_rate<=+1pp goodput>=-1% goodput>=-1pp rps>=-5% output_tps>=-5% goodput_rps>=-5% mean_ttft<=+5%"
    )
    for pair in ((base, new), (new, base), (base, base)):
        for result in evaluate_relative(gates, *pair):
            if result.interval is not None:
                ends = [end for end in (result.interval.low, result.interval.high) if math.isfinite(end)]
                most = 1.0 if result.gate.in_points else math.inf
                assert all(-1 <= end <= most for end in ends), (result.gate.text, result.interval)


# --- closed loops ------------------------------------------------------------------------------------


def in_step(users: int, rounds: int, pace_s: float, seed: int = 1, tokens: int = 64) -> Compared:
    """Users who move in step through answers of a fixed length, each round of which varies by 1 %."""
    rng, at_s, records = np.random.default_rng(seed), 0.0, []
    for _ in range(rounds):
        paces = pace_s * np.exp(0.01 * rng.normal()) * np.exp(0.002 * rng.normal(size=users))
        arrivals = [tuple((0.05 + pace * np.arange(tokens)).tolist()) for pace in paces]
        records += [
            request(at_s + 0.001 * user, each, output_tokens=tokens, output_chars=4 * tokens)
            for user, each in enumerate(arrivals)
        ]
        at_s += max(each[-1] for each in arrivals) + 0.01
    known = {"stopped_ns": records[-1].ended_ns, "options": {"num_users": users}, "slo": "ttft=200ms"}
    return compared(batch(*records), **known)


@pytest.mark.parametrize(
    ("users", "rounds", "slower", "gate", "finding"),
    [
        (8, 27, 1.0, "rps>=-5%", "held"),
        (8, 27, 1.0, "output_tps>=-5%", "held"),
        (8, 27, 1.0, "goodput_rps>=-5%", "held"),
        (8, 27, 1.0, "mean_e2el<=+5%", "held"),
        (8, 27, 1.0, "p50_e2el<=+5%", "held"),
        (8, 27, 1.0, "goodput>=-1%", "held"),
        (8, 27, 2.0, "rps>=-5%", "broken"),
        (8, 27, 2.0, "output_tps>=-5%", "broken"),
        (8, 27, 2.0, "mean_e2el<=+5%", "broken"),
        (8, 27, 2.0, "p95_e2el<=+5%", "broken"),
        (8, 27, 1.2, "rps>=-5%", "broken"),
        (8, 27, 1.2, "output_tps>=-5%", "broken"),
        (6, 8, 1.0, "rps>=-10%", "held"),
        (6, 8, 2.0, "rps>=-5%", "broken"),
        (8, 4, 2.0, "mean_e2el<=+5%", "broken"),
        (8, 4, 2.0, "p50_e2el<=+5%", "broken"),
        (8, 4, 2.0, "p99_e2el<=+5%", "broken"),
        (8, 4, 1.0, "p50_e2el<=+20%", "held"),
        (1, 30, 2.0, "p50_e2el<=+5%", "broken"),
        (1, 30, 1.0, "rps>=-5%", "held"),
        (30, 1, 2.0, "mean_e2el<=+5%", "unknown"),  # one round each: nothing shows how rounds differ
        (30, 1, 2.0, "rps>=-5%", "unknown"),
    ],
)
def test_closed_loops_are_judged_by_their_rounds(
    users: int, rounds: int, slower: float, gate: str, finding: str
) -> None:
    base, new = in_step(users, rounds, 0.01), in_step(users, rounds, 0.01 * slower, seed=2)
    (result,) = evaluate_relative(parse_relative_gates(gate), base, new)
    assert result.state.finding == finding, (result.state, result.change, result.interval)


# --- what it says ------------------------------------------------------------------------------------


def test_so_many_times_the_requests_decide_it() -> None:
    """The figures stay what they are: the longer runs are the same requests again."""
    decided, told = 0, 0
    for seed in range(20):
        base, new = noisy(150, 0.5, 2 * seed), noisy(150, 0.5, 2 * seed + 1)
        result = judged("mean_ttft<=+5%", base, new)
        if result.times is None or result.times > 40:
            continue
        told += 1
        more = math.ceil(1.2 * result.times)
        longer = [np.random.default_rng(seed).permutation(np.tile(each, more)) for each in (base, new)]
        decided += judged("mean_ttft<=+5%", *longer).state.finding != "unknown"
    assert told > 5
    assert decided >= 0.9 * told


def test_runs_that_do_not_overlap_have_the_chance_of_their_rounds() -> None:
    low, high = (Average(1.0, None, None, Extremes(*ends, 4)) for ends in ((1.0, 2.0), (2.1, 3.0)))
    assert apart_p(low, high, 1.0) == pytest.approx(1 / 70)
    assert apart_p(low, high, 1.06) == 1.0  # over 1.06 times the other they are not all
    assert apart_p(high, low, 1.0) == 1.0
    few = replace(high, span=Extremes(2.1, 3.0, 2.9))
    assert apart_p(low, few, 1.0) == pytest.approx(1 / 15)
    assert apart_p(low, replace(high, span=None), 1.0) == 1.0


def test_requests_that_never_ended_are_apart_from_nothing_below_them() -> None:
    ended = noisy(50, 0.01, 1)
    cut = Durations.of(2 * noisy(45, 0.01, 2), np.full(5, 0.1))
    open_ = figures_of(replace(cut, course=in_order(2 * noisy(45, 0.01, 2))), [50.0], 50)[0]
    (gate,) = parse_relative_gates("p50_ttft<=+5%")
    assert open_ is not None
    assert judge_change(gate, of("p50", ended), open_).state is not State.BROKEN_APART
