"""Two runs set against each other: noise is no difference, and a difference is none of noise's."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import golden_run
import numpy as np
import pytest
from compare_cases import SECONDS, TOKENS, compared, facts, lognormal, made_batch, made_run
from metrics_cases import batch, failed, manifest, ns, request

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import NodeHealth, WorkerFacts
from llm_locust.figures.compare.comparison import (
    Comparison,
    Verdict,
    compare_figures,
    compare_in_turn,
    doubts,
    figures_over_time,
    joint_confidence,
    unlike,
)
from llm_locust.figures.compare.relative_gates import State, evaluate_relative, parse_relative_gates
from llm_locust.figures.compare.sides import METRICS, NOT_COMPARED, Compared, measure_for_comparison
from llm_locust.figures.summarise import summarise
from llm_locust.metrics.gates import GateError, parse_gates
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.throughput import amounts_over_time
from llm_locust.metrics.stats.estimates import difference

PAIRS = 40
ROWS_OF_A_TABLE = 25


def compare(base: Compared, new: Compared) -> Comparison:
    return compare_in_turn([base, new])[0]


def row(comparison: Comparison, name: str) -> Any:
    return next(row for row in comparison.rows if row.metric.name == name)


def alarms(comparison: Comparison) -> list[str]:
    return [r.metric.name for v in (Verdict.BETTER, Verdict.WORSE) for r in comparison.having(v)]


# --- noise and differences --------------------------------------------------------------------------


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


# --- figures ----------------------------------------------------------------------------------------


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


def test_every_figure_is_the_one_of_the_summary() -> None:
    rng = np.random.default_rng(1)
    made = made_batch(rng, lognormal(rng, 700), failed=rng.random(700) < 0.1)
    lost = [WorkerFacts(id="w1", index=0, announced=730, received=700, lost=True)]
    known = facts(
        700, slo="ttft=60ms tpot=30ms e2el_scheduled=1s", warmup_s=5.0, open_loop=True, workers=lost
    )
    run, summary = measure_for_comparison(made, known, PLAIN), summarise(made, known)
    for name in METRICS:
        estimate, expected = run.estimate(METRICS[name]), of_summary(summary, name)
        assert (estimate is None) == (expected is None), name
        if estimate is not None and expected is not None:
            assert estimate.value == pytest.approx(expected, rel=1e-12), name
            low, high = estimate.ends(0.95)
            assert low <= estimate.value <= high, name


def test_every_figure_is_the_one_of_the_summary_where_requests_were_cut_lost_and_never_sent() -> None:
    made = golden_run.records()
    rows, known = golden_run.batch(made), golden_run.manifest(made)
    run, found = (
        measure_for_comparison(rows, known, Question(warmup_s=20.0)),
        summarise(rows, known),
    )
    figures = {name: of_summary(found, name) for name in METRICS}
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


# --- intervals --------------------------------------------------------------------------------------


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


# --- gates ------------------------------------------------------------------------------------------


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
        ("p99_ttft", "after p99_ttft write one of <=, <, >=, >"),
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


# --- comparability ----------------------------------------------------------------------------------


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
