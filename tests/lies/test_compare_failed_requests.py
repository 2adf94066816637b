"""A new version that refuses most of what it is asked, fast, compared with the old one.

- It answered 40 of 100 requests as fast as before and the others with 503 in 2 ms. ``compare --gate
  'p99_ttft<=+5%'`` held, on the 40. Now a percentile is of all requests, failed ones being above any limit:
  the gate breaks and says how many failed.
- A gate on a mean held likewise. It breaks where more than 1 % of new's requests failed, and not of base's.
- Where both versions refuse, the gate is unknown: base's percentile has no value whose change could be
  limited.
- A percentile that requests given up left open was "too few samples" in the table of figures, though the gate
  on it said why. Now both say why.
"""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from compare_cases import compared
from metrics_cases import batch, failed, request
from report_cases import write_run
from test_compare_gates import judged, run

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.compare.comparison import Verdict, compare_in_turn
from llm_locust.figures.compare.relative_gates import GateResult, State
from llm_locust.figures.compare.sides import Compared
from llm_locust.report.compare.outcome import compare_runs, gate_reason, verdict
from llm_locust.report.compare.tables import sections
from llm_locust.report.console import print_sections


def records(ok: int, refused: int = 0, slower: float = 1.0) -> list[RequestRecord]:
    """Answers with a TTFT from 90 to 100 ms, in no order, and failures spread evenly between them."""
    n, made_ = ok + refused, []
    for i in range(n):
        first_s = 0.09 + 0.01 * (i * 617 % n) / n
        times = tuple(slower * (first_s + 0.02 * k) for k in range(3))
        refuses = (i + 1) * refused // n > i * refused // n
        made_.append(failed(i * 0.01) if refuses else request(i * 0.01, times))
    return made_


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
    assert verdict(row) == gate_reason(result)
    assert verdict(row) == "undetermined in new: 100 requests were given up before they ended"
    paths = [write_run(tmp_path / "base", answers, id="base"), write_run(tmp_path / "new", answers + hung)]
    for width in (80, 140):
        file = io.StringIO()
        print_sections(sections(compare_runs(paths)), file, width)
        assert "undetermined" in file.getvalue()
        assert max(map(len, file.getvalue().splitlines())) <= width
