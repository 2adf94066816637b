"""The end of a run is not a hiding place, nor are requests that were never sent or lost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, ns, plain, request, stage
from report_cases import lost_records, seen_worker, summary, write_run
from summaries import summarise, typed

from llm_locust.cli.main import main
from llm_locust.core.manifest import ArmFacts, Manifest, StageFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.arms import show as arms_sections
from llm_locust.figures.goodput import show as goodput_section
from llm_locust.figures.parts import breakdown
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import PLAIN
from llm_locust.report.console import print_report
from llm_locust.report.markdown import markdown

ANSWER = (0.1, 0.2, 0.3, 0.4, 0.5)


def cut(at: float, end: float, arrivals: tuple[float, ...] = (), **fields: Any) -> RequestRecord:
    """A request that was under way at ``end``, with the tokens that had come until then."""
    came = tuple(a for a in arrivals if at + a <= end)
    return request(at, came, ended=end, outcome=Outcome.CANCELLED, error="given up before its end", **fields)


def told(records: list[RequestRecord], run: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(summarise(batch(*records), run), allow_nan=False))
    return found


def printed(found: dict[str, Any]) -> str:
    out = StringIO()
    print_report(typed(found), None, out, width=100)
    return out.getvalue()


def hung_run() -> tuple[list[RequestRecord], Manifest]:
    """Eight users, answers of 0.5 s, and a server that hangs at 5.2 s with all eight under way."""
    done = [request(k * 0.5, ANSWER, user=u) for k in range(10) for u in range(8)]
    waiting = [cut(5.0, 18.0, (0.1, 0.2)) for _ in range(8)]
    slo, gates = "ttft=500ms e2el=2s", "goodput>=99% p99_e2el<2s"
    return [*done, *waiting], manifest(stopped=18.0, slo=slo, gates=gates)


@cache
def hung() -> dict[str, Any]:
    return told(*hung_run())


def test_a_server_that_hangs_at_the_end_is_not_good() -> None:
    found = hung()
    assert found["goodput"]["ratio"] == pytest.approx(80 / 88)  # printed 1.0
    assert found["goodput"]["first_failed"]["e2el"] == 8
    assert (found["requests"]["cut"], found["requests"]["cut_broken"]) == (8, 8)
    e2el = found["latency_ms"]["e2el"]
    assert (e2el["p50"], e2el["p99"]) == (pytest.approx(500), None)  # printed 500
    assert e2el["at_least"]["p99"] == pytest.approx(13_000)
    assert found["latency_ms"]["ttft"]["n"] == 88
    assert [gate["passed"] for gate in found["gates"]] == [False, False]  # both passed


def test_a_server_that_hangs_is_said_to_at_the_head_of_every_report() -> None:
    found = hung()
    (span,) = found["reliability"]["standstill"]["spans"]
    assert span == {"start_s": pytest.approx(5.2), "seconds": pytest.approx(12.8), "in_flight": 8}
    head = printed(found).split("Goodput")[0]
    assert "STOOD STILL: nothing came for 12.8 s from 5.20 s on, with 8 requests in flight" in head
    assert "cut: 8 (9.1 %), of them 8 had broken a limit" in head
    assert "STOOD STILL" in markdown(typed(found)).split("**Goodput**")[0]


def test_latencies_of_a_run_that_was_cut_carry_a_mark_and_say_what_it_means() -> None:
    text = printed(hung())
    assert "> 13,000†" in text
    assert "† the end of the run cut more than 1 % of the requests" in text


def test_so_do_those_of_each_part_of_it() -> None:
    records, run = hung_run()
    requests = batch(*records)
    part = breakdown(measure(requests, run, PLAIN), requests, "replica")
    (figures,) = part.groups.values()
    assert figures.requests.cut == 8
    assert figures.requests.cut_share == pytest.approx(8 / 88)
    by = {"replica": plain(part)}
    text = printed(told(records, run) | {"by": by}).split("\nReplica ")[1]
    assert "   100†  ~100†" in text
    assert "† the end of the run cut more than 1 % of the requests" in text


def test_a_server_that_answers_nobody_at_all_stood_still() -> None:
    found = told([cut(0.1 * i, 10.0) for i in range(5)], manifest(slo="ttft=1s", gates="p50_ttft<1s"))
    assert found["goodput"]["ratio"] == 0.0  # printed –
    (span,) = found["reliability"]["standstill"]["spans"]
    assert (span["seconds"], span["in_flight"]) == (pytest.approx(10.0), 5)
    (gate,) = found["gates"]
    assert gate["reason"] == "at least 9,800 ms is not < 1,000 ms: 5 requests were given up before they ended"


def queue(seconds: float, rate: float, served_s: float) -> tuple[Any, Any]:
    """Poisson arrivals, and when a server that serves one at a time, in turn, begins with each."""
    random = np.random.default_rng(3)
    at = np.cumsum(random.exponential(1 / rate, int(3 * rate * seconds)))
    at, free, began = at[at < seconds], 0.0, []
    for arrival in at:
        began.append(max(free, arrival))
        free = began[-1] + served_s
    return at, np.array(began)


@cache
def overloaded(end: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """An open loop of 15 requests/s for 60 s at a server for 10 requests/s: cut at ``end``, and uncut."""
    at, began = queue(60.0, 15.0, 0.1)
    waits = began - at + 0.05
    runs = []
    for until in (end, 1e6):
        records = [
            request(a, (w, w + 0.05)) if a + w + 0.05 <= until else cut(a, until, (w, w + 0.05))
            for a, w in zip(at.tolist(), waits.tolist(), strict=True)
        ]
        runs.append(told(records, manifest(stopped=60.0, slo="ttft=10s", open_loop=True)))
    return runs[0], runs[1]


def test_an_overloaded_open_loop_is_no_better_for_being_cut() -> None:
    found, truth = overloaded(60.0)
    assert truth["goodput"]["ratio"] == pytest.approx(0.5, abs=0.1)
    ok = found["requests"]["ok"]
    held = round(found["goodput"]["ratio"] * found["goodput"]["judged"])
    without = held / ok  # what was printed: of those that ended
    assert without - truth["goodput"]["ratio"] > 0.2
    assert found["goodput"]["ratio"] - truth["goodput"]["ratio"] < 0.15
    assert truth["goodput"]["ratio"] <= found["goodput"]["ratio"] <= held / ok


@pytest.mark.parametrize("place", ["p90", "p95", "p99", "mean"])
def test_the_latencies_of_an_overloaded_open_loop_that_was_cut_are_open(place: str) -> None:
    found, truth = overloaded(60.0)
    ttft = found["latency_ms"]["ttft"]
    assert ttft[place] is None  # printed 19,000 ms for p99
    assert ttft["at_least"][place] < truth["latency_ms"]["ttft"][place]


def test_waiting_for_what_is_under_way_gives_the_truth_of_an_overloaded_open_loop() -> None:
    drained, truth = overloaded(200.0)
    assert drained["goodput"] == truth["goodput"]
    assert drained["latency_ms"] == truth["latency_ms"]
    assert drained["requests"]["cut"] == 0


def test_long_answers_in_a_short_run_keep_their_mean() -> None:
    random, records = np.random.default_rng(7), []
    for _ in range(300):
        at = float(random.uniform(0, 5))
        while at < 60:
            lasts = float(random.uniform(2, 38))
            steps = tuple(np.linspace(0.5, lasts, 5).tolist())
            records.append(request(at, steps) if at + lasts < 60 else cut(at, 60.0, steps))
            at += lasts
    e2el = told(records, manifest(stopped=60.0))["latency_ms"]["e2el"]
    ended = [r.arrivals_ns[-1] * 1e-6 for r in records if r.outcome is Outcome.OK]
    assert np.mean(ended) < 18_200  # printed
    assert e2el["mean"] == pytest.approx(20_000, rel=0.03)
    assert e2el["p90"] == pytest.approx(34_400, rel=0.03)


def test_users_who_leave_a_slow_server_are_not_good() -> None:
    stayed = [request(0.7 * i, (0.4, 0.5)) for i in range(13)]
    left = [replace(cut(float(i), i + 3.0), abandoned=True) for i in range(5)]
    hasty = [replace(cut(float(i), i + 0.2), abandoned=True) for i in range(3)]
    found = told([*stayed, *left, *hasty], manifest(slo="ttft=1s", gates="goodput>=90% p90_ttft<1s"))
    assert found["goodput"]["ratio"] == pytest.approx(13 / 21)  # printed 1.0
    assert found["goodput"]["first_failed"]["abandoned"] == 8
    assert (found["requests"]["abandoned"], found["requests"]["cut"]) == (8, 0)
    assert found["latency_ms"]["ttft"]["p90"] is None  # printed 400 ms
    assert [gate["passed"] for gate in found["gates"]] == [False, False]
    assert "all 8 requests that were not good are of users who left" in printed(found)


def test_requests_that_were_due_and_never_sent_are_not_good() -> None:
    run = manifest(slo="ttft=1s", gates="goodput>=90%", open_loop=True)
    run = replace(run, workers=[replace(worker, unsent=30) for worker in run.workers])
    found = told([request(float(i), (0.1, 0.2)) for i in range(10)], run)
    assert found["goodput"]["ratio"] == 0.25  # printed 1.0
    assert found["goodput"]["first_failed"]["unsent"] == found["requests"]["unsent"] == 30
    assert found["by_name"]["chat"]["requests"]["unsent"] is None
    assert [gate["passed"] for gate in found["gates"]] == [False]
    assert "30 of them never sent" in printed(found)


def test_a_steady_run_of_good_answers_has_the_rate_at_which_they_end() -> None:
    """Four answers a second, of 2 s each, all good: the rate of the good is that of the answers."""
    records = [request(i / 4, (1.0, 2.0)) for i in range(160)]
    window = manifest(stopped=40.0, slo="ttft=2s", warmup_s=20.0)
    found = told(records, window)
    assert found["goodput"]["requests_per_s"] == found["throughput"]["requests_per_s"]  # was 10 % lower
    assert found["goodput"]["output_tokens_per_s"] == found["throughput"]["output_tokens_per_s"]
    assert found["goodput"]["requests_per_s"] == pytest.approx(4.0)


ARMS = [ArmFacts(name=name, url="http://x", share=1.0) for name in "ab"]
OF_ARMS = [request(i * 0.04, arm="ab"[i % 2], name="chat") for i in range(200)]
ENDING = "and it is not known to which arm they belong"


def of_arms(gates: str, *, unsent: int = 0, lost: int = 0) -> dict[str, Any]:
    workers = lost_records(200, lost) if lost else [seen_worker(0, 200)]
    workers = [replace(worker, unsent=unsent) for worker in workers]
    return summary(OF_ARMS, arms=ARMS, open_loop=True, slo="ttft=100ms", gates=gates, workers=workers)


def test_a_gate_of_an_arm_cannot_tell_if_it_holds_only_without_the_requests_never_sent() -> None:
    gates = (
        "goodput>=95% p99_ttft_scheduled<200ms max_e2el_scheduled<200ms mean_ttft_scheduled<200ms "
        "p50_schedule_delay<200ms certified p50_ttft_scheduled<200ms"
    )
    assert [each["passed"] for each in of_arms(gates)["gates"]] == [True] * 12
    found = of_arms(gates, unsent=2000)
    why = f"cannot tell: 2,000 requests were never sent, {ENDING}"
    assert [(each["passed"], each["reason"]) for each in found["gates"]] == [(False, why)] * 12
    assert found["requests"]["unsent"] == 2000
    assert found["arms"][0]["figures"]["requests"]["unsent"] is None


def test_a_gate_that_requests_never_sent_cannot_change_holds_for_each_arm() -> None:
    found = of_arms("error_rate<1% certified p50_ttft<200ms rps>1 goodput_rps>1", unsent=2000, lost=1000)
    assert all(each["passed"] for each in found["gates"])


def test_a_gate_holds_for_each_arm_that_would_have_held_it_with_all_requests_without_a_record() -> None:
    found = of_arms("goodput>=95% p50_ttft_scheduled<200ms", unsent=2, lost=3)  # 100 of 105 are 95.2 %
    assert [each["passed"] for each in found["gates"]] == [True] * 4
    (first, *_) = of_arms("goodput>=96%", unsent=1, lost=4)["gates"]
    assert first["reason"] == f"cannot tell: 1 request was never sent and 4 requests were lost, {ENDING}"


def test_a_gate_that_an_arm_breaks_by_its_own_requests_says_so() -> None:
    (first, *_) = of_arms("p99_ttft_scheduled<10ms", unsent=2000)["gates"]
    assert first["reason"] == "50 ms is not < 10 ms"


def test_the_section_of_arms_says_how_many_requests_no_arm_has() -> None:
    (section, *_) = arms_sections(typed(of_arms("", unsent=2000, lost=3)))
    said = "2,000 requests of the run never sent, 3 requests of the run lost: it is not known to which arm"
    assert any(note.text.startswith(said) for note in section.notes)
    (section, *_) = arms_sections(typed(of_arms("")))
    assert not any("not known" in note.text for note in section.notes)


def reported(run: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a report, and its summary."""
    code = main(["report", str(run), "--out", str(run / "again"), *options])
    return code, json.loads((run / "again" / "summary.json").read_text())


def outcomes(found: dict[str, Any]) -> list[tuple[bool, str | None]]:
    return [(each["passed"], each["reason"]) for each in found["gates"]]


def test_no_arm_holds_a_goodput_without_the_requests_that_were_lost(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", OF_ARMS, arms=ARMS, workers=lost_records(200, 1000), slo="ttft=100ms")
    code, found = reported(run, "--gate", "goodput>=95%", "--allow-incomplete")
    assert code == 1
    assert outcomes(found) == [(False, f"cannot tell: 1,000 requests were lost, {ENDING}")] * 2
    assert found["goodput"]["ratio"] == pytest.approx(200 / 1200)


GATES = "goodput>=95% p99_ttft_scheduled<200ms certified p50_ttft_scheduled<200ms p99_ttft<200ms"


def sweep(path: Path, *, in_stage: int = 400, in_all: int = 400, lost: int = 0) -> Path:
    """A sweep of 100 requests, then of 200 beside ``in_stage`` that were never sent."""
    made = [request(i * 0.1, stage=0) for i in range(100)]
    made += [request(20 + i * 0.05, stage=1) for i in range(200)]
    stages: Sequence[StageFacts] = [
        stage(0, 0.0, 10.0, kind="rate", asked=10.0, begun_ns=ns(0.0)),
        stage(1, 20.0, 30.0, kind="rate", asked=60.0, begun_ns=ns(20.0), unsent=in_stage),
    ]
    (worker,) = lost_records(300, lost) if lost else [seen_worker(0, 300)]
    return write_run(
        path,
        made,
        open_loop=True,
        stages=stages,
        workers=[replace(worker, unsent=in_all)],
        stopped_ns=ns(30.0),
        slo="ttft=100ms",
        options={"sweep": "rate=10,60"},
    )


def test_a_gate_on_one_stage_of_a_sweep_counts_the_requests_that_it_never_sent(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    _, whole = reported(run)
    code, found = reported(run, "--where", "stage==1", "--gate", GATES)
    assert code == 1
    assert [each["passed"] for each in found["gates"]] == [False, False, False, True]
    assert found["requests"]["unsent"] == 400
    assert found["goodput"]["ratio"] == whole["stages"][1]["figures"]["goodput"]["ratio"] == 200 / 600


def test_a_gate_on_a_stage_that_sent_all_holds_whatever_other_stages_did_not_send(tmp_path: Path) -> None:
    code, found = reported(sweep(tmp_path / "run"), "--where", "stage == 0", "--gate", GATES)
    assert (code, outcomes(found)) == (0, [(True, None)] * 4)
    assert found["requests"]["unsent"] == 0


@pytest.mark.parametrize("where", ["stage in (0)", "stage==0 and output_tokens>0", "stage<1"])
def test_a_gate_on_another_selection_cannot_tell_if_it_holds_only_without_them(
    tmp_path: Path, where: str
) -> None:
    code, found = reported(sweep(tmp_path / "run"), "--where", where, "--gate", GATES)
    why = (
        "cannot tell: 400 requests were never sent, and it is not known whether they are among the selected "
        "requests"
    )
    assert (code, outcomes(found)) == (1, [(False, why)] * 3 + [(True, None)])
    (note,) = [each for each in goodput_section(typed(found)).notes if "not counted" in each.text]
    assert note.text.startswith(
        "400 requests of the run never sent: it is not known whether they belong here"
    )
    assert note.text in markdown(typed(found))


def test_a_request_never_sent_that_no_stage_counts_may_be_of_any_stage(tmp_path: Path) -> None:
    """The run ended during a stage, which then does not count its own."""
    _, found = reported(sweep(tmp_path / "run", in_stage=0), "--where", "stage==1", "--gate", "goodput>=95%")
    ((passed, reason),) = outcomes(found)
    assert not passed
    assert reason is not None
    assert reason.startswith("cannot tell: 400 requests were never sent")


def test_a_lost_request_may_be_of_any_stage(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", in_stage=0, in_all=0, lost=50)
    asked = ("--allow-incomplete", "--where", "stage==0", "--gate")
    code, found = reported(run, *asked, "goodput>=95% p99_ttft_scheduled<200ms")
    assert [each["passed"] for each in found["gates"]] == [False, True]
    assert "50 requests were lost" in found["gates"][0]["reason"]
    assert code == 1
    assert reported(run, *asked, "goodput>=60%")[0] == 0  # 100 of at most 150


def test_a_gate_on_a_selection_of_a_run_that_lacks_no_request_holds(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", in_stage=0, in_all=0)
    code, found = reported(run, "--where", "stage==1 and output_tokens>0", "--gate", GATES)
    assert (code, outcomes(found)) == (0, [(True, None)] * 4)
