"""Gates of a comparison that passed without knowing, and broke without a reason.

- A p99 ten times slower, of too few samples for an interval: "not broken: too few samples", exit code 0. Now
  it breaks, by a test of ranks, or is unknown, and neither passes.
- A true change of +4.5 % broke a limit of +5 % in 25 of 60 comparisons, because the difference was beyond
  zero. Now a gate breaks where the change is beyond its limit by more than noise: in at most one of twenty.
- A gate held on runs that could not have shown ten times the change that it forbids. Now it is unknown.
- A goodput rate that fell to nothing has no interval: the gate passed. Now it is unknown.
- A percentile that requests given up left open: "no samples" of a run that had thousands. Now it says why.
- A p90 within its limit held although a tenth of new's requests, cut just above it, left open how far noise
  reaches; so it did where a tenth failed. Now it is unknown.
- A gate held on a base that its own client had made slow. Now it is unknown.
- ``error_rate<=+20%`` held where base had no error and new's last 100 of 2,000 requests failed: of a base of
  0 any share is 0, and 20 pp of noise passed for small. Now it is unknown, as for any other limit.
- ``p99_ttft<800ms`` passed on a run of 20 requests. Now it fails and says that it needs 100 samples.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compare_cases import compared, lognormal, made_batch, made_run, write_made_run
from metrics_cases import batch, ns, request
from report_cases import write_run

from llm_locust.cli import compare as command
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.compare.relative_gates import (
    GateResult,
    State,
    evaluate_relative,
    parse_relative_gates,
)
from llm_locust.figures.compare.sides import Compared
from llm_locust.report.compare.outcome import gate_reason


def judged(text: str, base: Compared, new: Compared) -> GateResult:
    (result,) = evaluate_relative(parse_relative_gates(text), base, new)
    return result


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


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
