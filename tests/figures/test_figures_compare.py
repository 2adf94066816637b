"""Runs set against each other: what is plain is decided, and noise is no difference."""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import golden_run
import numpy as np
import pytest
from compare_cases import SECONDS, TOKENS, compared, facts, lognormal, made_batch, made_run
from metrics_cases import batch, failed, manifest, ns, request
from numpy.typing import NDArray

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import NodeHealth, WorkerFacts
from llm_locust.figures.comparison import (
    Comparison,
    ScalingError,
    Verdict,
    compare_figures,
    compare_in_turn,
    doubts,
    figures_over_time,
    joint_confidence,
    scaling,
    unlike,
)
from llm_locust.figures.relative_gates import (
    GateResult,
    State,
    apart_p,
    evaluate_relative,
    judge_change,
    parse_relative_gates,
)
from llm_locust.figures.sides import METRICS, NOT_COMPARED, Compared, figures_of, measure_for_comparison
from llm_locust.metrics.limits import GateError, parse_gates
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.rates import amounts_over_time
from llm_locust.metrics.stats.censoring import Durations
from llm_locust.metrics.stats.estimates import Average, Estimate, Extremes, Share, alike, difference
from llm_locust.metrics.stats.intervals import in_order

PAIRS = 40
ROWS_OF_A_TABLE = 25


def compare(base: Compared, new: Compared) -> Comparison:
    return compare_in_turn([base, new])[0]


def row(comparison: Comparison, name: str) -> Any:
    return next(row for row in comparison.rows if row.metric.name == name)


def alarms(comparison: Comparison) -> list[str]:
    return [r.metric.name for v in (Verdict.BETTER, Verdict.WORSE) for r in comparison.having(v)]


@cache
def of_pairs() -> tuple[list[list[str]], dict[str, int]]:
    """Alarms of pairs of one server, and how often one slower by a tenth is found at a table's confidence."""
    found = dict.fromkeys(("mean_ttft", "p50_ttft"), 0)
    confidence = joint_confidence(ROWS_OF_A_TABLE)
    runs = [made_run(i, correlated=0.3) for i in range(PAIRS + 1)]
    for i, base in enumerate(runs[:-1]):
        slower = made_run(i + 1, 1.1, correlated=0.3)
        for name in found:
            before, after = (run.estimate(METRICS[name]) for run in (base, slower))
            verdict = compare_figures(METRICS[name], before, after, confidence).verdict
            found[name] += verdict is Verdict.WORSE
    return [alarms(compare(*pair)) for pair in pairwise(runs)], found


def test_runs_of_one_server_differ_in_no_figure_of_the_table_in_95_of_100_pairs() -> None:
    """The whole table, so that one false alarm among 25 figures spoils a pair."""
    false, _ = of_pairs()
    assert sum(not names for names in false) >= 0.95 * PAIRS, false


def test_a_ttft_slower_by_a_tenth_is_found_in_95_of_100_pairs() -> None:
    _, found = of_pairs()
    assert min(found.values()) >= 0.95 * PAIRS, found


def test_requests_drawn_one_by_one_would_take_noise_for_a_difference() -> None:
    """What the blocks are for: neighbours that resemble each other, in many pairs of one server."""
    too_narrow, confidence = 0, joint_confidence(ROWS_OF_A_TABLE)
    for i in range(20):
        values = [lognormal(np.random.default_rng(2 * i + k), correlated=0.6, memory=0.95) for k in range(2)]
        means = [v.mean() for v in values]
        error = math.hypot(*(v.std() / math.sqrt(len(v)) for v in values))
        too_narrow += abs(means[0] - means[1]) > 1.96 * error
        runs = (compared(made_batch(np.random.default_rng(i), v)) for v in values)
        before, after = (run.estimate(METRICS["mean_ttft"]) for run in runs)
        verdict = compare_figures(METRICS["mean_ttft"], before, after, confidence).verdict
        assert verdict in (Verdict.NO_DIFFERENCE, Verdict.TOO_FEW)
    assert too_narrow > 5


def test_the_verdict_knows_which_direction_is_better() -> None:
    rng = np.random.default_rng(1)
    ttft_s = lognormal(rng)
    fast, slow = (compared(made_batch(rng, k * ttft_s)) for k in (1.0, 2.0))
    worse = compare(fast, slow)
    better = compare(slow, fast)
    for name in ("p50_ttft", "mean_e2el", "goodput", "attainment_ttft"):
        assert row(worse, name).verdict is Verdict.WORSE
        assert row(better, name).verdict is Verdict.BETTER
    assert row(worse, "p50_tpot").verdict is Verdict.NO_DIFFERENCE


def test_fewer_requests_per_second_are_a_worse_rate() -> None:
    rng = np.random.default_rng(2)
    base, new = (compared(made_batch(rng, lognormal(rng, n))) for n in (3_000, 2_000))
    comparison = compare(base, new)
    for name in ("rps", "output_tps", "output_cps", "goodput_rps"):
        assert row(comparison, name).verdict is Verdict.WORSE
        assert row(comparison, name).change.value == pytest.approx(-1 / 3, abs=0.03)


def test_failures_that_come_together_are_one_event_and_those_that_come_apart_are_many() -> None:
    rng = np.random.default_rng(3)
    ttft_s = lognormal(rng)
    n, share = len(ttft_s), 0.04
    apart = rng.random(n) < share
    together = (np.arange(n) > 900) & (np.arange(n) < 900 + share * n)
    base, spread, burst = (
        compared(made_batch(rng, ttft_s, failed=f)) for f in (np.zeros(n, bool), apart, together)
    )
    assert row(compare(base, spread), "error_rate").verdict is Verdict.WORSE
    one_event = row(compare(base, burst), "error_rate")
    assert one_event.verdict is Verdict.TOO_FEW
    assert one_event.difference.low < 0 < 0.05 < one_event.difference.high <= 1


def test_a_run_does_not_differ_from_itself_and_a_constant_difference_is_one() -> None:
    run = made_run(1)
    assert alarms(compare(run, run)) == []
    steady, slower = (
        compared(batch(*(request(i * 0.1, (ttft, ttft + 0.02)) for i in range(500))))
        for ttft in (0.05, 0.051)
    )
    assert row(compare(steady, slower), "p50_ttft").verdict is Verdict.WORSE
    assert alarms(compare(steady, steady)) == []


def test_percentiles_of_too_few_samples_are_said_to_be() -> None:
    comparison = compare(made_run(1, n=150), made_run(2, n=150))
    assert row(comparison, "p99_ttft").verdict is Verdict.TOO_FEW
    assert row(comparison, "p50_ttft").verdict is Verdict.NO_DIFFERENCE
    assert math.isinf(row(comparison, "p99_ttft").difference.high)


def test_a_figure_that_one_run_does_not_have_is_in_the_table_without_a_difference() -> None:
    rng = np.random.default_rng(1)
    everything_failed = compared(made_batch(rng, lognormal(rng, 300), failed=np.ones(300, bool)))
    found = row(compare(made_run(1), everything_failed), "p50_ttft")
    assert (found.new, found.difference, found.verdict) == (None, None, Verdict.TOO_FEW)
    assert found.base is not None


def test_runs_of_a_request_or_none_are_compared_without_a_word_too_much() -> None:
    one, none = compared(batch(request(1.0))), compared(batch())
    assert alarms(compare(one, one)) == []
    assert {r.verdict for r in compare(made_run(1), one).rows if r.metric.statistic} == {Verdict.TOO_FEW}
    assert alarms(compare(none, made_run(1))) == []


@dataclass(frozen=True, slots=True)
class InPieces:
    """The rows of a batch in parts of a given size."""

    batch: RecordBatch
    rows: int

    def __len__(self) -> int:
        return len(self.batch)

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        table = self.batch.table.select(list(columns))
        for start in range(0, len(self.batch), self.rows):
            yield RecordBatch(table.slice(start, self.rows))


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_a_run_read_in_any_parts_gives_the_same_comparison(rows: int) -> None:
    rng = np.random.default_rng(1)
    made = made_batch(rng, lognormal(rng, 200), failed=rng.random(200) < 0.1)
    base, known = made_run(2, n=300), facts(200)
    whole = measure_for_comparison(made, known, Question(warmup_s=0.0))
    cut = measure_for_comparison(InPieces(made, rows), known, Question(warmup_s=0.0))
    for a, b in zip(compare(base, whole).rows, compare(base, cut).rows, strict=True):
        assert a.new == b.new
        assert a.verdict == b.verdict
        if a.difference is not None and b.difference is not None:
            assert a.difference.low == pytest.approx(b.difference.low, rel=1e-9)


def of_summary(summary: dict[str, Any], name: str) -> float | None:
    """The same figure of ``summary.json``, in seconds where it is a latency."""
    metric = METRICS[name]
    if metric.statistic:
        value = summary["latency_ms"][metric.latency][metric.statistic]
        return None if value is None else value / 1e3
    rates = {"rps": "requests", "output_tps": "output_tokens", "output_cps": "output_chars"}
    rates |= {"input_tps": "input_tokens", "total_tps": "total_tokens", "inputs_per_s": "inputs"}
    if name in rates:
        return summary["throughput"][f"{rates[name]}_per_s"]  # type: ignore[no-any-return]
    if metric.limit:
        return summary["goodput"]["attainment"].get(metric.limit)  # type: ignore[no-any-return]
    paths = {"goodput": "ratio", "on_time": "on_time_ratio", "goodput_rps": "requests_per_s"}
    part = summary["requests"] if name == "error_rate" else summary["goodput"]
    return part[paths.get(name, name)]  # type: ignore[no-any-return]


def test_every_figure_is_the_one_of_the_summary_where_requests_were_cut_lost_and_never_sent() -> None:
    rows, known = golden_run.whole()
    run = measure_for_comparison(rows, known, Question(warmup_s=20.0))
    figures = {name: of_summary(golden_run.summary(), name) for name in METRICS}
    assert figures["p99_ttft"] is None
    for name, expected in figures.items():
        estimate = run.estimate(METRICS[name])
        assert (estimate is None) == (expected is None), name
        assert estimate is None or estimate.value == pytest.approx(expected, rel=1e-9), name


def test_the_cells_of_a_rate_add_up_to_it() -> None:
    """Tokens of the part of a run in the window alone, spread evenly from first event to last."""
    made = batch(
        request(1.0, (0.5, 1.5, 2.5, 3.5), output_tokens=8, output_chars=40),
        request(2.0, (), ended=4.0, streamed=False, output_tokens=5, output_chars=20),
        failed(3.0),
    )
    known = manifest(3.5)
    run = measure_for_comparison(made, known, Question(slo="", warmup_s=0.0))
    given = amounts_over_time(run.c, run.measured.credits, np.arange(len(run.c)))
    # From 1.5 s on to 4.5 s come eight tokens, two thirds of them before the end at 3.5 s.
    assert given["output_tokens_per_s"].sum() == pytest.approx(16 / 3)
    assert given["output_chars_per_s"].sum() == pytest.approx(80 / 3)


def test_names_are_those_of_gates_but_for_what_has_no_interval() -> None:
    for name, metric in METRICS.items():
        if metric.limit or name in ("on_time", "output_cps"):
            continue
        limit = "1ms" if metric.statistic else "0.5"
        assert parse_gates(f"{name}<={limit}")[0].metric == name
    for name in NOT_COMPARED:
        assert parse_gates(f"{name}<={'1ms' if name.startswith('max') else 1}")


def test_a_share_of_none_or_all_still_has_an_interval() -> None:
    run = made_run(1)
    errors = run.estimate(METRICS["error_rate"])
    assert errors is not None
    low, high = errors.ends(0.95)
    assert low == 0
    assert 0.0015 < high < 0.0025  # for 0 of 2,000


def test_a_difference_keeps_the_longer_side_of_a_skewed_figure() -> None:
    base, new = made_run(1), made_run(2)
    figures = [run.estimate(METRICS["p99_ttft"]) for run in (base, new)]
    assert figures[0] is not None
    assert figures[1] is not None
    there, back = difference(figures[0], figures[1], 0.95), difference(figures[1], figures[0], 0.95)
    assert back.value == -there.value
    assert back.low == pytest.approx(-there.high)
    assert back.high == pytest.approx(-there.low)


def test_several_runs_are_each_compared_with_the_one_before_at_a_confidence_for_all() -> None:
    runs = [made_run(1), made_run(2), made_run(3, 1.5)]
    first, second = compare_in_turn(runs)
    assert (first.base, first.new, second.base, second.new) == (runs[0], runs[1], runs[1], runs[2])
    assert (
        first.confidence
        == joint_confidence(len(first.rows) + len(second.rows))
        > compare(runs[0], runs[1]).confidence
    )
    assert alarms(first) == []
    assert row(second, "p50_ttft").verdict is Verdict.WORSE


def test_figures_over_time_have_an_interval_of_their_own() -> None:
    found = figures_over_time([made_run(1), made_run(2), compared(batch())], [METRICS["p50_ttft"]])[
        "p50_ttft"
    ]
    assert found.values[2] is found.lows[2] is found.highs[2] is None
    for value, low, high in zip(found.values[:2], found.lows, found.highs, strict=False):
        assert value is not None
        assert low is not None
        assert high is not None
        assert low < value < high


def state(text: str, base: Compared, new: Compared) -> State:
    (result,) = evaluate_relative(parse_relative_gates(text), base, new)
    assert result.passed() == (result.state in (State.HELD, State.WITHIN_NOISE))
    assert result.passed("pass") == (result.state.finding != "broken")
    return result.state


def test_a_gate_breaks_where_the_change_is_over_the_limit_and_beyond_noise() -> None:
    base, slow = made_run(1), made_run(2, 1.3)
    assert state("p50_ttft<=+5%", base, slow) is State.BROKEN
    assert state("p50_ttft<=+50%", base, slow) is State.HELD
    assert state("p50_ttft<=+5%", slow, base) is State.HELD
    assert state("goodput>=-0.1%", base, slow) is State.BROKEN


def test_a_change_over_the_limit_that_noise_explains_breaks_nothing() -> None:
    base, new = made_run(1), made_run(2, 1.05)
    change = row(compare(base, new), "mean_ttft").change.value
    assert state(f"mean_ttft<=+{100 * change - 0.1:.4f}%", base, new) is State.WITHIN_NOISE
    assert state("p99_ttft<=+1%", made_run(1, n=80), made_run(2, 1.02, n=80)) is State.TOO_FEW
    assert state("p99_ttft<=+1%", made_run(1, n=80), made_run(2, 1.5, n=80)) is State.BROKEN_BY_RANKS


def test_a_gate_is_unknown_where_noise_could_hide_twice_its_limit() -> None:
    base, new = made_run(1), made_run(2)
    if row(compare(base, new), "mean_ttft").change.value < 0:
        base, new = new, base
    assert state("mean_ttft<=+0.01%", base, new) is State.TOO_NOISY
    assert state("mean_ttft<=+0%", base, base) is State.TOO_NOISY


def test_a_gate_without_samples_fails() -> None:
    without_slo = compared(
        made_batch(np.random.default_rng(1), lognormal(np.random.default_rng(1), 50)), slo=""
    )
    assert state("goodput>=-1%", without_slo, without_slo) is State.NO_SAMPLES


def test_a_gate_on_errors_counts_from_none() -> None:
    rng = np.random.default_rng(1)
    base, new = (compared(made_batch(rng, lognormal(rng), failed=rng.random(2_000) < p)) for p in (0.0, 0.05))
    assert state("error_rate<=+10%", base, new) is State.BROKEN
    assert state("error_rate<=+1pp", base, new) is State.BROKEN
    assert state("error_rate<=+10pp", base, new) is State.HELD
    assert state("error_rate<=+0%", base, base) is State.HELD
    assert state("error_rate<=+0%", new, base) is State.HELD
    assert state("error_rate<=+4pp", new, new) is State.HELD, "in points too it is the change that counts"


def test_a_limit_holds_where_the_change_is_the_limit() -> None:
    one, five = (
        compared(batch(*(request(i * 0.1, (ttft, ttft + 0.02)) for i in range(500)))) for ttft in (0.1, 0.105)
    )
    assert state("p50_ttft<=+5%", one, five) is State.HELD
    assert state("p50_ttft<+5%", one, five) is State.BROKEN


def test_gates_are_corrected_for_their_own_number_and_not_for_the_table() -> None:
    base, new = made_run(1), made_run(2)
    (alone,) = evaluate_relative(parse_relative_gates("p50_ttft<=+5%"), base, new)
    among, *_ = evaluate_relative(parse_relative_gates("p50_ttft<=+5%, rps>=-5% goodput >= -1%"), base, new)
    in_table = row(compare(base, new), "p50_ttft")
    assert alone.row.difference is not None
    assert among.row.difference is not None
    assert in_table.difference.low < among.row.difference.low < alone.row.difference.low


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p9_ttft<=+5%", 'at character 1, "p9_ttft": unknown metric; did you mean "p99_ttft"?'),
        ("goodput>=-1% gootput>=-1%", 'at character 14, "gootput": unknown metric; did you mean "goodput"?'),
        ("goodput>=95%", 'at character 10, "95%": no change at all would break it: write goodput>=-1%'),
        ("p99_ttft<=-5%", 'at character 11, "-5%": no change at all would break it: write p99_ttft<=+5%'),
        ("p99_ttft<=800ms", 'at character 11, "800ms": write a change from base to new'),
        ("p99_ttft<=+5", 'at character 11, "+5": write a change from base to new'),
        ("p99_ttft<=+5pp", "pp are for shares, p99_ttft is none"),
        ("max_ttft<=+5%", "the largest of many has no interval"),
        ("requests>=-1%", "is what was asked for, not a result"),
        ("p99_ttft", "after p99_ttft write one of >=, >, <=, <"),
        ("p99_ttft=+5%", 'at character 9, "=": after p99_ttft write one of'),
        ("p99_ttft<=", "no limit after p99_ttft<="),
        ("<=+5%", "no metric before it"),
    ],
)
def test_a_text_that_is_no_relative_gate_is_pointed_at(text: str, said: str) -> None:
    with pytest.raises(GateError) as e:
        parse_relative_gates(text)
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_an_empty_text_has_no_gates() -> None:
    assert parse_relative_gates(" ") == ()


def like(**known: Any) -> Compared:
    rng = np.random.default_rng(1)
    return compared(made_batch(rng, lognormal(rng, 50)), **known)


def test_runs_that_are_alike_have_nothing_against_them() -> None:
    assert unlike(like(), like(host="http://elsewhere", id="other")) == []
    assert doubts(like()) == []


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"model": "large"},
            "different models: tiny and large. Tokens of different tokenizers are not comparable",
        ),
        ({"seed": 7}, "different seeds: 0 and 7"),
        ({"open_loop": True}, "different load: closed loop and open loop"),
        ({"scenario": "chat.yaml"}, "different scenarios: none and chat.yaml"),
        ({"warmup_s": 2.0}, "different warm-up: 0 s and 2 s"),
        ({"slo": "ttft=1s"}, "different SLOs: ttft=100ms tpot=30ms and ttft=1s"),
        ({"options": {"input_tokens": "512"}}, "different --input-tokens: none and 512"),
        ({"options": {"num_users": 40}}, "different --num-users: none and 40"),
        ({"options": {"gpus": 8}}, "different --gpus: none and 8"),
        ({"stopped_ns": ns(SECONDS / 2)}, "different window lengths"),
    ],
)
def test_what_makes_a_difference_beside_the_server_is_said(known: dict[str, Any], said: str) -> None:
    assert any(text.startswith(said) for text in unlike(like(), like(**known)))


def test_another_window_rule_is_said() -> None:
    rng = np.random.default_rng(1)
    made = made_batch(rng, lognormal(rng))
    known = facts(len(made), open_loop=True)
    runs = [
        measure_for_comparison(made, known, Question(slo="", window=window, warmup_s=0.0))
        for window in ("run", "steady")
    ]
    assert any(text.startswith("different windows: ") for text in unlike(runs[0], runs[1]))


def test_answers_of_other_lengths_counts_and_replicas_are_said() -> None:
    one = batch(*(request(i * 0.1, replica="a") for i in range(20)))
    longer = (0.05, 0.07, 0.09, 0.11)
    other = batch(
        *(
            request(i * 0.1, longer, replica="ab"[i % 2], output_tokens=None, token_source="events")
            for i in range(20)
        )
    )
    text = " ".join(unlike(compared(one), compared(other)))
    assert "different answer lengths: 3 and 4 output tokens" in text
    assert "counted differently: usage and events" in text
    assert "different numbers of replicas: 1 and 2" in text


def test_a_run_with_a_bad_client_or_missing_records_is_doubted() -> None:
    stolen = replace(facts(50).workers[0], health=NodeHealth(steal_percent=20.0))
    assert any("its client is suspect: a worker's machine" in text for text in doubts(like(workers=[stolen])))
    lost = [WorkerFacts(id="w1", index=0, announced=60, received=50, lost=True)]
    assert any(
        "10 requests have no record, 1 workers were lost" in text for text in doubts(like(workers=lost))
    )


def test_figures_of_tokens_are_known_as_such() -> None:
    of_tokens = {name for name, metric in METRICS.items() if metric.of_tokens}
    assert {"p50_tpot", "mean_itl", "output_tps", "attainment_tpot"} <= of_tokens
    assert of_tokens.isdisjoint({"p50_ttft", "mean_e2el", "output_cps", "rps", "error_rate"})
    assert TOKENS > 1


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


def findings(text: str, sample: Callable[[int], Floats], slower: float, pairs: int) -> dict[str, float]:
    found = dict.fromkeys(("held", "unknown", "broken"), 0.0)
    for i in range(pairs):
        found[judged(text, sample(2 * i), slower * sample(2 * i + 1)).state.finding] += 1 / pairs
    return found


def beyond(share: float, pairs: int) -> float:
    """So large a share is seen of one that is rarer in one of 700 tests, were it exactly that."""
    return share + 3 * math.sqrt(share * (1 - share) / pairs)


PAIRS_of_compare_truths = 60


@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_of_500_independent_requests_four_pairs_of_five_are_decided_and_none_breaks(statistic: str) -> None:
    found = findings(
        f"{statistic}_ttft<=+5%", lambda seed: noisy(500, 0.5, seed), 1.0, PAIRS_of_compare_truths
    )
    assert found["broken"] <= beyond(0.05, PAIRS_of_compare_truths)
    assert found["unknown"] <= beyond(0.20, PAIRS_of_compare_truths)


@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_of_30_independent_requests_twice_as_slow_ones_break(statistic: str) -> None:
    found = findings(
        f"{statistic}_ttft<=+5%", lambda seed: noisy(30, 0.5, seed), 2.0, PAIRS_of_compare_truths
    )
    assert found["broken"] >= 1 - beyond(0.05, PAIRS_of_compare_truths)
    assert not found["held"]


@pytest.mark.parametrize("n", [80, 500, 2_000])
@pytest.mark.parametrize("statistic", ["mean", "p50"])
def test_twice_the_limit_seldom_holds(statistic: str, n: int) -> None:
    found = findings(f"{statistic}_ttft<=+5%", lambda seed: noisy(n, 0.5, seed), 1.1, PAIRS_of_compare_truths)
    assert found["held"] <= beyond(0.10, PAIRS_of_compare_truths)


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
    found = findings(f"{statistic}_ttft<=+5%", lambda seed: sample(n, seed), 1.0, PAIRS_of_compare_truths)
    assert found["broken"] <= beyond(0.05, PAIRS_of_compare_truths)
    at_limit = findings(f"{statistic}_ttft<=+5%", lambda seed: sample(n, seed), 1.05, PAIRS_of_compare_truths)
    assert at_limit["broken"] <= beyond(0.06, PAIRS_of_compare_truths)


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


def test_perfect_scaling_has_an_efficiency_of_one_and_nothing_serial() -> None:
    found = scaling([(8, 800.0), (1, 100.0), (4, 400.0), (2, 200.0)])
    assert [s.gpus for s in found] == [1, 2, 4, 8]
    assert [s.speedup for s in found] == [1, 2, 4, 8]
    assert [s.efficiency for s in found] == [1, 1, 1, 1]
    assert [s.per_gpu for s in found] == [100] * 4
    assert found[0].serial is None
    assert [s.serial for s in found[1:]] == pytest.approx([0, 0, 0])


def test_a_part_that_is_done_once_shows_as_the_same_share_at_every_size() -> None:
    amdahl = [(g, 100 / (0.1 + 0.9 / g)) for g in (1, 2, 4, 8)]
    found = scaling(amdahl)
    assert [s.serial for s in found[1:]] == pytest.approx([0.1] * 3)
    assert found[-1].efficiency == pytest.approx(1 / (0.8 + 0.9))


def test_the_base_is_the_smallest_whatever_its_size() -> None:
    _, eight = scaling([(4, 400.0), (8, 600.0)])
    assert (eight.speedup, eight.efficiency, eight.per_gpu) == (1.5, 0.75, 75)


def test_of_several_runs_of_a_size_the_median_counts() -> None:
    assert [s.rate for s in scaling([(1, 100.0), (1, 90.0), (1, 500.0), (2, 150.0), (2, 250.0)])] == [
        100,
        200,
    ]


@pytest.mark.parametrize(
    ("runs", "why"),
    [([], "at least two"), ([(1, 5.0), (1, 6.0)], "at least two"), ([(1, 5.0), (2, 0.0)], "above 0"),
     ([(0, 5.0), (2, 1.0)], "above 0"), ([(1, float("nan")), (2, 1.0)], "above 0")],
)  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(runs: list[tuple[float, float]], why: str) -> None:
    with pytest.raises(ScalingError, match=why):
        scaling(runs)
