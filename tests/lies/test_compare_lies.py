"""Comparisons that passed without knowing, broke without a reason, or took fast refusals for speed."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_cases import compared, lognormal, made_batch, made_run, write_made_run
from metrics_cases import batch, failed, manifest, ns, request
from report_cases import write_run
from scripted_loads import FOR_EVER, Asked, Course, Load, Server

from llm_locust.cli.main import main
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.comparison import Verdict, compare_in_turn
from llm_locust.figures.relative_gates import GateResult, State, evaluate_relative, parse_relative_gates
from llm_locust.figures.sides import Compared, measure_for_comparison
from llm_locust.metrics.question import PLAIN
from llm_locust.report.comparison import compare_runs, gate_reason, row_verdict
from llm_locust.report.comparison_page import sections
from llm_locust.report.console import print_sections


def judged(text: str, base: Compared, new: Compared) -> GateResult:
    (result,) = evaluate_relative(parse_relative_gates(text), base, new)
    return result


def run(*words: object) -> int:
    return main(["compare", *map(str, words)])


@pytest.mark.parametrize("n", [5, 20, 50, 100, 300])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_p99_ten_times_slower_never_passes(n: int, seed: int) -> None:
    result = judged("p99_ttft<=+5%", made_run(10 * seed, n=n), made_run(10 * seed + 1, 10.0, n=n))
    assert not result.passed()
    assert result.state.finding in ("broken", "unknown")


def test_ranks_break_a_p99_that_has_no_interval() -> None:
    states = [
        judged("p99_ttft<=+5%", made_run(2 * i, n=100), made_run(2 * i + 1, 2.5, n=100)).state
        for i in range(20)
    ]
    assert states.count(State.BROKEN_BY_RANKS) >= 15, states


def test_a_run_whose_fastest_request_is_slower_than_the_slowest_of_the_other_breaks_every_percentile() -> (
    None
):
    for n in (20, 100):
        result = judged("p99_ttft<=+5%", made_run(1, n=n), made_run(2, 10.0, n=n))
        assert result.state is State.BROKEN_APART


def test_ranks_seldom_break_a_p99_that_is_as_slow_as_its_limit_allows() -> None:
    states = [
        judged("p99_ttft<=+5%", made_run(2 * i, n=100), made_run(2 * i + 1, 1.05, n=100)).state
        for i in range(20)
    ]
    assert sum(state.finding == "broken" for state in states) <= 3, states
    assert not sum(state.finding == "held" for state in states)


@pytest.mark.parametrize("correlated", [0.0, 0.3])
def test_a_change_within_the_limit_breaks_seldom_and_one_of_four_limits_always(correlated: float) -> None:
    broken = dict.fromkeys((1.045, 1.2), 0)
    for i in range(20):
        base = made_run(2 * i, correlated=correlated)
        for slower in broken:
            new = made_run(2 * i + 1, slower, correlated=correlated)
            broken[slower] += judged("p50_ttft<=+5%", base, new).state.finding == "broken"
    assert broken[1.045] <= 3
    assert broken[1.2] == 20


def test_a_gate_does_not_hold_where_ten_times_its_limit_could_hide() -> None:
    result = judged("mean_ttft<=+0.1%", made_run(2), made_run(1))
    assert result.state is State.TOO_NOISY
    assert result.interval is not None
    assert result.interval.high > 10 * 0.001


def test_a_rate_of_nothing_is_unknown_and_not_passed() -> None:
    rng = np.random.default_rng(1)
    dead = compared(made_batch(rng, lognormal(rng), failed=np.ones(2_000, dtype=np.bool_)))
    assert not judged("goodput_rps>=-5%", made_run(1), dead).passed()
    assert not judged("goodput>=-5%", made_run(1), dead).passed()


def test_an_unknown_gate_fails_with_its_reason_unless_it_is_to_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_made_run(tmp_path / "base", 1, n=60)
    new = write_made_run(tmp_path / "new", 2, n=60, started_ns=ns(3600))
    asked = (base, new, "--gate", "p99_ttft<=+5%")
    assert run(*asked) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "p99_ttft<=+5% UNKNOWN: too few independent samples to know the noise" in said
    assert "an unknown gate does not pass" in said
    assert said.endswith("exit 3")
    assert run(*asked, "--json") == 3
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert (gate["passed"], gate["finding"], gate["state"]) == (False, "unknown", "too few samples")
    assert gate["reason"] == "too few independent samples to know the noise"
    assert run(*asked, "--gate-unknown", "pass") == 0
    assert "exit 0, as --gate-unknown pass asks" in " ".join(capsys.readouterr().out.split())
    assert run(*asked, "--gate-unknown", "pass", "--json") == 0
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert (gate["passed"], gate["finding"]) == (True, "unknown")
    assert run(*asked, "--format", "md") == 3
    assert "UNKNOWN" in capsys.readouterr().out


def test_a_broken_gate_stays_broken_where_unknown_ones_pass(tmp_path: Path) -> None:
    base = write_made_run(tmp_path / "base", 1)
    new = write_made_run(tmp_path / "new", 2, 2.0, started_ns=ns(3600))
    assert run(base, new, "--gate", "p50_ttft<=+5%", "--gate-unknown", "pass") == 1


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.HTTP_ERROR])
def test_a_percentile_just_below_requests_that_never_ended_is_unknown(
    outcome: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    first, order = rng.uniform(0.1, 0.12, 2_000).tolist(), rng.permutation(2_000).tolist()

    def records(lacking: int) -> list[RequestRecord]:
        return [
            request(i * 0.01, (first_s,))
            if lacks % 21 >= lacking
            else request(i * 0.01, (), ended=i * 0.01 + 0.5, outcome=outcome)
            for i, (first_s, lacks) in enumerate(zip(first, order, strict=True))
        ]

    result = judged("p90_ttft<=+50%", compared(batch(*records(0))), compared(batch(*records(2))))
    assert (result.state, result.state.finding) == (State.OPEN, "unknown")
    assert result.change == pytest.approx(0.0, abs=0.05)
    base = write_run(tmp_path / "base", records(0), id="base")
    new = write_run(tmp_path / "new", records(2))
    asked = (base, new, "--gate", "p90_ttft<=+50%")
    reason = "requests that were given up or failed leave no upper bound of the change"
    assert run(*asked) == 3
    assert f"p90_ttft<=+50% UNKNOWN: {reason}" in " ".join(capsys.readouterr().out.split())
    assert run(*asked, "--json") == 3
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert (gate["passed"], gate["state"], gate["reason"]) == (False, "open end", reason)
    assert gate["change_interval"][1] is None
    assert run(*asked, "--format", "md", "--gate-unknown", "pass") == 0
    assert f"UNKNOWN: {reason}" in capsys.readouterr().out


@pytest.mark.parametrize("lacking", ["base", "new"])
@pytest.mark.parametrize("lack", ["records", "the rest of its time", "a worker"])
def test_no_gate_holds_for_a_part_of_a_run(lack: str, lacking: str) -> None:
    whole = made_run(1)
    of_manifest = {
        "records": whole.manifest,
        "the rest of its time": replace(whole.manifest, cut_short=True),
        "a worker": replace(whole.manifest, workers_expected=len(whole.manifest.workers) + 1),
    }
    part = replace(whole, manifest=of_manifest[lack], lost=600 if lack == "records" else 0)
    base, new = (part, whole) if lacking == "base" else (whole, part)
    for gate in ("p50_ttft<=+5%", "mean_ttft<=+5%", "error_rate<=+1pp"):
        assert judged(gate, whole, whole).state is State.HELD
        result = judged(gate, base, new)
        assert (result.state, result.passed()) == (State.OF_A_PART, False)


@pytest.mark.parametrize("late", ["base", "new"])
def test_no_gate_holds_by_the_figures_of_a_client_that_was_too_slow(late: str) -> None:
    whole, slow = made_run(1), made_run(1, late_ns=90_000_000)
    assert slow.client().verdict == "invalid"
    base, new = (slow, whole) if late == "base" else (whole, slow)
    result = judged("p50_ttft<=+5%", base, new)
    assert (result.state, result.passed(), result.passed("pass")) == (State.CLIENT_INVALID, False, True)
    worse = made_run(2, 10.0, late_ns=0 if late == "base" else 90_000_000)
    assert judged("p50_ttft<=+5%", base, worse).state is State.BROKEN
    for undecided in ("p50_ttft<=+0.1%", "p99_ttft<=+1%"):
        assert judged(undecided, whole, made_run(3)).state.finding == "unknown"
        found = judged(undecided, base, new)
        assert (found.state, found.times) == (State.CLIENT_INVALID, None), "more requests would not tell"


def test_a_percentile_that_cut_requests_leave_open_is_not_without_samples() -> None:
    answers = [request(i * 0.01, (0.1, 0.2)) for i in range(400)]
    hung = [request(4 + i * 0.01, (), ended=9.9, outcome=Outcome.CANCELLED) for i in range(100)]
    base, new = compared(batch(*answers)), compared(batch(*answers, *hung))
    result = judged("p99_ttft<=+5%", base, new)
    assert not result.passed()
    assert gate_reason(result) == "undetermined in new: 100 requests were given up before they ended"
    assert judged("p99_connect<=+5%", base, new).row.why_open is None


@pytest.mark.parametrize("limit", ["+20%", "+100%", "+0.5pp"])
def test_an_outage_is_not_within_the_noise_of_a_base_without_errors(limit: str) -> None:
    rng = np.random.default_rng(2)
    down = np.arange(2_000) >= 1_900
    new = compared(made_batch(rng, lognormal(rng, 2_000), failed=down))
    assert not judged(f"error_rate<={limit}", made_run(1), new).passed()
    assert judged(f"error_rate<={limit}", made_run(1), made_run(3)).passed()


def records(ok: int, refused: int = 0, slower: float = 1.0) -> list[RequestRecord]:
    """Answers with a TTFT from 90 to 100 ms, in no order, and failures spread evenly between them."""
    n, made_ = ok + refused, []
    for i in range(n):
        first_s = 0.09 + 0.01 * (i * 617 % n) / n
        times = tuple(slower * (first_s + 0.02 * k) for k in range(3))
        refuses = (i + 1) * refused // n > i * refused // n
        made_.append(failed(i * 0.01) if refuses else request(i * 0.01, times))
    return made_


@cache
def made(ok: int, refused: int = 0, slower: float = 1.0) -> Compared:
    return compared(batch(*records(ok, refused, slower)))


def found(gate: str, base: Compared, new: Compared) -> tuple[State, str | None]:
    result = judged(gate, base, new)
    return result.state, gate_reason(result)


@pytest.mark.parametrize("latency", ["ttft", "ttfo", "tpot", "itl", "e2el", "ttft_started", "e2el_scheduled"])
@pytest.mark.parametrize("statistic", ["p50", "p99", "p99_9"])
def test_a_percentile_breaks_where_it_falls_on_a_failed_request_of_new_alone(
    latency: str, statistic: str
) -> None:
    gate = f"{statistic}_{latency}<=+5%"
    state, reason = found(gate, made(100), made(40, 60))
    assert state is State.BROKEN_BY_FAILURES
    assert reason == (
        f"0 % failed in base, 60.0 % in new: the {statistic.replace('_', '.')} of all requests falls on "
        "a failed one in new"
    )
    result = judged(gate, made(100), made(40, 60))
    assert not result.passed("pass")
    assert (result.row.new, result.change) == (math.inf, None)
    assert result.row.verdict is Verdict.WORSE


def test_where_both_runs_refuse_no_change_can_be_limited() -> None:
    state, reason = found("p99_ttft<=+5%", made(40, 60), made(40, 60))
    assert state is State.FAILED_IN_BASE
    assert state.finding == "unknown"
    assert reason == (
        "cannot tell: 60.0 % failed in base, 60.0 % in new: the p99 of all requests falls on a failed "
        "one in base and new"
    )


def test_a_run_that_stopped_to_refuse_is_held_against_the_answers_of_the_one_that_did() -> None:
    """Base's percentile of all requests is no less than that of its answers."""
    refusing = made(900, 100)
    assert judged("p50_ttft<=+5%", refusing, made(1_000)).state is State.HELD
    assert judged("p95_ttft<=+5%", refusing, made(1_000)).state is State.HELD
    state, reason = found("p95_ttft<=+5%", refusing, made(1_000, slower=5.0))
    assert state is State.FAILED_IN_BASE
    assert reason is not None
    assert reason.endswith("the p95 of all requests falls on a failed one in base")


def test_all_of_new_failed() -> None:
    assert judged("p99_ttft<=+5%", made(100), made(0, 100)).state.finding == "broken"


def test_failures_below_a_percentile_are_samples_above_it() -> None:
    base, new = made(1_000), made(980, 20)
    assert judged("p95_ttft<=+5%", base, new).state is State.HELD
    assert judged("p95_ttft<=+5%", base, new).failed == (0.0, 0.02)


def test_a_percentile_of_all_is_numpys_with_infinity_for_each_failed_one() -> None:
    answers = [0.1 + 0.001 * i for i in range(970)]
    rows = [request(i * 0.01, (ttft_s,)) for i, ttft_s in enumerate(answers)]
    new = compared(batch(*rows, *(failed(9.7 + i * 0.01) for i in range(30))))
    expected = np.percentile([*answers, *[math.inf] * 30], 95)
    assert judged("p95_ttft<=+5%", new, new).row.new == pytest.approx(expected)


def test_lower_limits_and_times_that_a_failed_request_has_are_of_what_they_were() -> None:
    for gate in ("p50_ttft>=-5%", "p50_schedule_delay<=+5%"):
        assert judged(gate, made(1_000), made(400, 600)).state is not State.BROKEN_BY_FAILURES


@pytest.mark.parametrize(
    ("base", "new", "state"),
    [
        ((1_000, 0), (980, 20), State.BROKEN_BY_FAILURES),
        ((980, 20), (980, 20), State.FAILED_IN_BASE),
        ((980, 20), (995, 5), State.HELD),
        ((1_000, 0), (990, 10), State.HELD),
    ],
)
def test_a_mean_has_no_place_for_more_than_one_failure_of_a_hundred(
    base: tuple[int, int], new: tuple[int, int], state: State
) -> None:
    came, reason = found("mean_ttft<=+5%", made(*base), made(*new))
    assert came is state
    if state is not State.HELD:
        assert reason is not None
        assert reason.endswith("and a mean cannot include them; limit a percentile")


def test_answers_in_time_do_not_hold_for_the_requests_that_were_refused() -> None:
    state, reason = found("on_time>=-1%", made(1_000), made(400, 600))
    assert state is State.BROKEN_BY_FAILURES
    assert reason == "0 % failed in base, 60.0 % in new, and on_time is of answers alone; limit goodput"
    assert judged("on_time>=-1%", made(1_000), made(1_000)).state is State.HELD


def test_a_slower_mean_stays_broken_where_both_refuse() -> None:
    assert judged("mean_ttft<=+5%", made(980, 20), made(980, 20, slower=3.0)).state.finding == "broken"


def test_the_command_fails_and_says_how_many_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "base", records(100), id="base")
    new = write_run(tmp_path / "new", records(40, 60))
    asked = (base, new, "--gate", "p99_ttft<=+5%")
    assert run(*asked, "--gate-unknown", "pass") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "p99_ttft<=+5% BROKEN: 0 % failed in base, 60.0 % in new: the p99 of all requests falls on a "
        "failed one in new (99.8 → ∞)"
    ) in said
    assert run(*asked, "--json") == 1
    (gate,) = json.loads(capsys.readouterr().out)["gates"]
    assert (gate["finding"], gate["state"]) == ("broken", "broken by failures")
    assert gate["row"]["base"] == pytest.approx(99.8, abs=0.1)
    assert (gate["change"], gate["row"]["new"]) == (None, None)
    assert gate["note"] == "of all requests: 0 % failed in base, 60.0 % in new"
    assert run(*asked, "--format", "md") == 1
    assert "BROKEN: 0 % failed in base, 60.0 % in new" in capsys.readouterr().out


def test_a_held_gate_says_how_many_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = write_run(tmp_path / "base", records(1_000), id="base")
    new = write_run(tmp_path / "new", records(995, 5))
    assert run(base, new, "--gate", "p50_ttft<=+5% mean_ttft<=+5%") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of all requests: 0 % failed in base, 0.5 % in new" in said
    assert "of requests with an answer: 0 % failed in base, 0.5 % in new" in said


def test_the_table_says_why_a_percentile_is_open_in_the_gates_words(tmp_path: Path) -> None:
    answers = [request(i * 0.01, (0.1, 0.2)) for i in range(400)]
    hung = [request(4 + i * 0.01, (), ended=9.9, outcome=Outcome.CANCELLED) for i in range(100)]
    base, new = compared(batch(*answers)), compared(batch(*answers, *hung))
    result: GateResult = judged("p99_ttft<=+5%", base, new)
    row = next(row for row in compare_in_turn([base, new])[0].rows if row.metric.name == "p99_ttft")
    assert row_verdict(row) == gate_reason(result)
    assert row_verdict(row) == "undetermined in new: 100 requests were given up before they ended"
    paths = [write_run(tmp_path / "base", answers, id="base"), write_run(tmp_path / "new", answers + hung)]
    for width in (80, 140):
        file = io.StringIO()
        print_sections(sections(compare_runs(paths)), file, width)
        assert "undetermined" in file.getvalue()
        assert max(map(len, file.getvalue().splitlines())) <= width


def served(server: Server, seed: int = 1, **load: Any) -> Compared:
    """Ten users for a minute."""
    return in_memory(Load(seed=seed, **load).closed(10, server))


def in_memory(records: list[RequestRecord], **facts: Any) -> Compared:
    return measure_for_comparison(batch(*records), manifest(stopped=60.0, **facts), PLAIN)


def steady(asked: Asked) -> Course:
    return Course(ttft=asked.rng.uniform(0.1, 0.14))


def failing(share: float) -> Server:
    return lambda asked: replace(steady(asked), status=500 if asked.rng.random() < share else 200)


def hanging(asked: Asked) -> Course:
    return replace(steady(asked), ttft=FOR_EVER) if asked.at_s > 8 and asked.user % 2 else steady(asked)


def hanging_in_an_open_loop() -> Compared:
    due_s = np.arange(0, 60, 0.1).tolist()
    records = Load(drain=5).open(due_s, lambda asked: hanging(replace(asked, user=asked.i % 7 // 3)))
    return in_memory(records, open_loop=True)


@pytest.mark.parametrize(
    ("new", "gates", "says"),
    [
        (
            lambda: served(steady, freezes=[(20, 40)]),
            "p99_ttft<=+20%",
            "in new the server stood still for 20",
        ),
        (lambda: served(hanging), "p50_ttft<=+5% error_rate<=+5pp", "in new 5 of 10 users hung from 8"),
        (lambda: served(hanging, timeout=10.0), "p50_ttft<=+5%", "in new 5 of 10 users hung from 8"),
        (hanging_in_an_open_loop, "p50_tpot<=+5%", " of 600 requests hung"),
        (lambda: served(failing(0.03)), "p50_ttft<=+5%", " requests of new failed, 0 of "),
    ],
)
def test_a_run_that_fails_by_itself_passes_no_comparison_whose_gates_do_not_see_it(
    new: Callable[[], Compared], gates: str, says: str
) -> None:
    base, failed = served(steady, seed=2), new()
    found = evaluate_relative(parse_relative_gates(gates), base, failed)
    assert "broken" in {each.state.finding for each in found}
    assert says in " ".join(gate_reason(each) or "" for each in found)
    alike = evaluate_relative(parse_relative_gates(gates), failed, failed)
    assert "broken" not in {each.state.finding for each in alike}


@pytest.mark.parametrize("base", [steady, lambda asked: Course()])  # of the second every latency is the same
def test_failures_that_a_gate_allows_or_chance_makes_break_none(base: Server) -> None:
    def failed(share: float) -> Compared:
        return served(lambda asked: replace(base(asked), status=500 if asked.rng.random() < share else 200))

    allowed = evaluate_relative(
        parse_relative_gates("p50_ttft<=+5% error_rate<=+5pp"), served(base, seed=2), failed(0.03)
    )
    assert {each.state.finding for each in allowed} == {"held"}
    rare = evaluate_relative(parse_relative_gates("p50_ttft<=+5%"), served(base, seed=2), failed(0.005))
    assert {each.state.finding for each in rare} == {"held"}
