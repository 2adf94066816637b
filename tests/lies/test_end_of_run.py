"""The end of a run is not a hiding place: what was under way or due when it came is in the numbers.

- A server answered nothing for the last 12.8 of 18 s: goodput 100 %, every gate passed. Now 8 of 88 are bad,
  p99 is above 12.8 s, both gates break, and the standstill stands at the head of the report.
- An open loop at 1.5 times the capacity, for 60 s: goodput 0.74 and p99 TTFT 19 s, of a true 0.50 and 28 s.
  Now the goodput has what was cut over its limit, and p99 is open: "> 19 s".
- Answers of 2 to 38 s in runs of 60 s: a mean of 17.8 s, of a true 20 s. Now 20 s.
- Users left a server that was too slow for them: goodput 100 %. Now they are bad.
- Requests were due and never sent, because nobody's turn came: goodput 100 %. Now they are bad.
- Latencies of a run of which 9 % were cut had a mark, but not in a table of ``--by``. Now there too.
- Goodput in requests/s was low by E2EL / window. Now good requests count where they end.
"""

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, request

from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.parts import breakdown
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
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
    assert (figures["requests"]["cut"], figures["requests"]["cut_share"]) == (8, pytest.approx(8 / 88))
    by = {"replica": {"groups": part.groups, "left_out": part.left_out}}
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
