"""Each stage has the figures that a run of its own would have; sweeps over lengths and prefixes."""

import csv
import io
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, ns, plain, request, stage
from msgspec import structs
from summaries import faked, summarise, typed

from llm_locust.core import EXIT_INVALID
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, PrefixShare, ReplicaCache, StageFacts
from llm_locust.core.record import LengthPair, Outcome, RequestRecord
from llm_locust.core.stages import of_lengths, with_stages
from llm_locust.figures.charts import load_points
from llm_locust.figures.objective import parse_objective, probes
from llm_locust.figures.prefix_cache import worth as worth_of
from llm_locust.figures.stages import Stage, over, repeats
from llm_locust.figures.summary import Summary, as_json
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.metrics.question import Question
from llm_locust.metrics.window import Window
from llm_locust.report.analysis import Analysis, analyse
from llm_locust.report.csv_tables import stages_csv
from llm_locust.report.html.page import html_report
from llm_locust.report.inputs import Source, StoredRun
from llm_locust.report.markdown import markdown
from llm_locust.report.pareto import pareto_of
from llm_locust.store import REQUESTS_FILE, write_manifest, write_requests

#: Users 1 and 2, each of one load: 50 ms, then 100 ms to the first token.
STAGES = [
    stage(0, 1.0, 11.0, asked=1.0),
    stage(1, 13.0, 23.0, asked=2.0),
    stage(2, 25.0, 35.0, asked=4.0, fault="2 workers did not confirm its drain"),
]


def records() -> list[RequestRecord]:
    """A request in each tenth of a second that its user sends at once, in the loads and not in the drains."""

    def load(first: int, last: int, users: int, ttft: float) -> list[RequestRecord]:
        return [
            request(i / 10 + user / 1000, (ttft, ttft + 0.03), user=user)
            for i in range(first, last)
            for user in range(users)
        ]

    return [*load(5, 110, 1, 0.05), *load(125, 230, 2, 0.06), *load(245, 350, 4, 0.065)]


def facts(**fields: Any) -> Manifest:
    known: dict[str, Any] = {"stages": STAGES, "options": {"sweep": "users=1,2,4"}, "slo": "ttft=62ms"}
    return manifest(36.0, **{**known, **fields})


def requests() -> RecordBatch:
    return with_stages(batch(*records()), STAGES, open_loop=False)


def asked(**fields: Any) -> Analysis:
    run = StoredRun(facts(), requests())
    source = Source((run,), run.manifest, run.requests, merged=False, unreadable=())
    return analyse(source, Question(**fields))


@pytest.fixture(scope="module")
def sweep() -> Summary:
    return asked().summary


def test_a_stage_has_the_figures_of_its_measured_part(sweep: Summary) -> None:
    assert sweep.stages is not None
    assert [s.figures and s.figures.requests.ok for s in sweep.stages] == [100, 200, 400]
    medians = [s.figures and s.figures.latency_ms["ttft"]["p50"] for s in sweep.stages]
    assert medians == pytest.approx([50, 60, 65])
    rates = [s.figures and s.figures.throughput.requests_per_s for s in sweep.stages]
    assert rates == pytest.approx([10, 20, 40])
    assert [s.figures and s.figures.goodput.ratio for s in sweep.stages] == [1.0, 1.0, 0.0]
    assert [s.window and s.window.seconds for s in sweep.stages] == pytest.approx([10, 10, 10])


def test_the_figures_are_those_of_a_report_on_that_window(sweep: Summary) -> None:
    assert sweep.stages is not None
    window = Window(ns(13.0), ns(23.0), "")
    alone = summarise(requests(), manifest(36.0, slo="ttft=62ms"), Question(window=window))
    found = as_json(sweep)["stages"][1]["figures"]
    assert found.pop("agents") is None, "the summary of a run without agents has no such key"
    expected = {key: as_json(typed(alone))[key] for key in found}
    means = [each["throughput"].pop("concurrency_mean") for each in (found, expected)]
    assert means[0] == pytest.approx(means[1]), "a sum of other floats"
    assert found == expected


def test_the_offered_rate_of_an_open_loop_is_what_was_due() -> None:
    steps = [stage(0, 1.0, 11.0, kind="rate"), stage(1, 11.0, 23.0, kind="rate", asked=20.0)]
    found = summarise(batch(*records()), facts(stages=steps, options={}, open_loop=True))["stages"]
    assert [s["offered"] for s in found] == pytest.approx([10.0, 210 / 12])


def test_a_stage_with_a_fault_is_not_a_result_and_says_why(sweep: Summary) -> None:
    assert sweep.stages is not None
    assert [s.is_result for s in sweep.stages] == [True, True, False]
    text = markdown(sweep)
    assert "stage 2 (4 users) is not a result: 2 workers did not confirm its drain" in text


def test_a_stage_that_had_no_measured_part_has_no_figures_instead_of_zeros() -> None:
    unfinished = [*STAGES[:1], stage(1, 50.0, 60.0), stage(2, 50.0, 60.0, measured_ns=None, ended_ns=None)]
    found = summarise(requests(), facts(stages=unfinished))["stages"]
    assert [s["figures"] is None for s in found] == [False, True, True]
    assert not found[1]["is_result"]
    assert "no measured part" in found[1]["reasons"][0]
    assert "–" in markdown(typed(summarise(requests(), facts(stages=unfinished))))


def test_requests_that_were_due_and_not_sent_are_bad_in_their_stage() -> None:
    unsent = [stage(0, 1.0, 11.0, unsent=100)]
    (found,) = summarise(requests(), facts(stages=unsent))["stages"]
    assert found["figures"]["goodput"]["ratio"] == 0.5


def test_a_sweep_is_reported_by_its_loads_and_steps_as_one_run_too(sweep: Summary) -> None:
    assert sweep.is_sweep
    assert sweep.window.seconds == pytest.approx(30.0), "the measured parts alone"
    assert "| Latency, ms" not in markdown(sweep)
    assert "**Throughput**" not in markdown(sweep)
    assert "goodput: ttft ≤ 62 ms" in markdown(sweep).replace("\\", "")
    steps = typed(summarise(requests(), facts(options={})))
    assert not steps.is_sweep
    assert "| Latency, ms" in markdown(steps)
    assert "| Stage |" in markdown(steps)


def test_one_stage_alone_is_a_report_on_one_load() -> None:
    found = asked(where="stage==1", gates="p50_ttft<61ms").summary
    assert not found.is_sweep
    assert found.stages is None
    assert found.window.seconds == pytest.approx(10.0)
    assert found.requests.ok == 200
    assert found.throughput.requests_per_s == pytest.approx(20.0)
    assert found.gates[0].passed


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"gates": "p50_ttft<1s"}, "a sweep has several loads; choose one by --where"),
        ({"gates": "p50_ttft<1s", "where": "stage>0"}, "a sweep has several loads; choose one by --where"),
        ({"window": "steady"}, "a sweep has several loads"),
    ],
)
def test_what_asks_for_one_figure_over_several_loads_is_refused(question: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        asked(**question)


def test_a_condition_on_stages_of_a_run_without_stages_is_refused() -> None:
    run = StoredRun(manifest(36.0), requests())
    source = Source((run,), run.manifest, run.requests, merged=False, unreadable=())
    with pytest.raises(ValueError, match="has no stages"):
        analyse(source, Question(where="stage==1"))


def hung() -> list[RequestRecord]:
    """Eight users, of which seven wait from the fourth second of the first load to its tenth."""

    def load(first_s: float, last_s: float, user: int, *, hangs: bool) -> list[RequestRecord]:
        found, at_s = [], first_s + user / 100
        while at_s < last_s:
            took_s = 10.0 - at_s if hangs and user < 7 and 4.0 < at_s < 10.0 else 0.05
            found.append(request(at_s, (took_s - 0.01, took_s), user=user))
            at_s += took_s + 0.01
        return found

    return [
        *(each for user in range(8) for each in load(0.5, 11.0, user, hangs=True)),
        *(each for user in range(8) for each in load(12.5, 23.0, user, hangs=False)),
    ]


def test_a_stage_in_which_most_users_hung_is_no_result_anywhere() -> None:
    records = with_stages(batch(*hung()), STAGES[:2], open_loop=False)
    facts_ = facts(stages=[stage(0, 1.0, 11.0, asked=8.0), stage(1, 13.0, 23.0, asked=8.0)])
    run = StoredRun(facts_, records)
    found = analyse(Source((run,), facts_, records, merged=False, unreadable=()), Question())
    first, second = found.summary.stages or []
    assert (first.is_result, first.steady, first.saturated) == (False, False, None)
    assert (second.is_result, second.steady, second.client) == (True, True, "ok")
    why = "stage 0 (8 users) is not a result: not steady: from 2.92 s to 9.17 s answers were made at 17 %"
    assert why in markdown(found.summary)
    assert b"NO: not steady" in html_report(found.requests, found.manifest, found.summary, found.measured)
    rows = list(csv.DictReader(io.StringIO(stages_csv(found.summary.stages) or "")))
    assert [row["steady"] for row in rows] == ["False", "True"]
    assert rows[0]["reasons"].startswith("not steady")


def test_failures_in_ramps_warm_ups_and_drains_are_counted_outside_the_stages() -> None:
    bad = [failed(11.5), failed(12.6), failed(15.0)]
    stages_ = [stage(0, 1.0, 11.0), stage(1, 13.0, 23.0)]
    found = typed(summarise(batch(*records(), *bad), facts(stages=stages_)))
    assert found.outside_stages is not None
    assert found.outside_stages.failed == 2
    assert found.outside_stages.requests == len(records()) + 3 - found.requests.scheduled
    assert "outside the stages (ramp, warm-up, drain) 2 of" in markdown(found)
    assert typed(summarise(requests(), facts(options={}))).outside_stages is None


def sweep_of(*stages_: StageFacts, **fields: Any) -> RunVerdict | None:
    known = facts(stages=list(stages_), slo="", **fields)
    return verdict(typed(summarise(requests(), known)), known)


def test_a_sweep_without_a_result_is_invalid_and_one_bad_stage_is_if_that_was_asked() -> None:
    good, bad = stage(0, 1.0, 11.0), stage(1, 13.0, 23.0, fault="no worker was connected")
    assert sweep_of(good, bad) is None or sweep_of(good, bad) == RunVerdict(0)
    none = sweep_of(bad)
    assert none is not None
    assert (none.code, none.reason) == (
        EXIT_INVALID,
        "none of the 1 stages is a result: stage 1: no worker was connected",
    )
    strict = sweep_of(good, bad, require_valid=True)
    assert strict is not None
    assert strict.code == EXIT_INVALID


LIMITED = "client-limited: it was late"


TWO_STAGES = facts(stages=[stage(0, 1.0, 11.0), stage(1, 13.0, 23.0)], slo="")


@cache
def of_two_stages() -> Summary:
    return typed(summarise(requests(), TWO_STAGES))


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        ((), None),
        ((LIMITED,), None),
        (("not steady: x", LIMITED), EXIT_INVALID),
        (("saturated: y", LIMITED), EXIT_INVALID),
        (("a worker was lost", LIMITED), EXIT_INVALID),
        (("not steady: x",), EXIT_INVALID),
    ],
)
@pytest.mark.parametrize("require_valid", [False, True])
def test_an_invalid_client_excuses_no_other_fault_of_a_stage_and_itself_only_unless_validity_is_required(
    reasons: tuple[str, ...], code: int | None, require_valid: bool
) -> None:
    known = replace(TWO_STAGES, require_valid=require_valid)
    whole = of_two_stages()
    client: Literal["ok", "invalid"] = "invalid" if LIMITED in reasons else "ok"
    faults: dict[str, Any] = {"client": client, "is_result": not reasons, "reasons": list(reasons)}
    summary = structs.replace(whole, stages=[structs.replace(each, **faults) for each in whole.stages or []])
    found = verdict(summary, known)
    expected = EXIT_INVALID if reasons and require_valid else code
    assert (None if found is None else found.code) == expected


def test_a_saturated_stage_alone_does_not_make_a_sweep_invalid() -> None:
    # A request every tenth of a second, each longer than the one before: one in two ends in its stage.
    slow = [request(13 + i / 20, (i / 20, i / 10), user=1) for i in range(200)]
    records_ = batch(*records()[:110], *slow)
    stages_ = [stage(0, 1.0, 11.0, kind="rate", asked=10.0), stage(1, 13.0, 23.0, kind="rate", asked=20.0)]
    known = facts(stages=stages_, open_loop=True, options={"sweep": "rate=10,20"}, require_valid=True, slo="")
    summary = typed(summarise(records_, known))
    assert summary.stages is not None
    assert [(s.is_result, s.saturated) for s in summary.stages] == [(True, False), (False, True)]
    assert verdict(summary, known) is None or verdict(summary, known) == RunVerdict(0)
    assert "NO: saturated" in markdown(summary)


def test_a_stage_in_which_every_request_failed_is_no_result_and_its_goodput_of_0_is_shown() -> None:
    loads = [stage(0, 1.0, 11.0, asked=1.0), stage(1, 13.0, 23.0, asked=4.0)]
    good = [request(i / 10, (0.05, 0.08), user=1) for i in range(5, 110)]
    bad = [failed(at=i / 10, user=1) for i in range(125, 230)]
    made = with_stages(batch(*good, *bad), loads, open_loop=False)
    summary = typed(summarise(made, facts(stages=loads)))
    assert summary.stages is not None
    fine, broken = summary.stages
    assert (fine.all_failed, broken.all_failed, broken.is_result, broken.steady) == (False, True, False, None)
    assert broken.reasons == ["none of its 100 requests succeeded"]
    assert broken.figures is not None
    assert (broken.figures.requests.failed, broken.figures.goodput.ratio) == (100, 0.0)
    assert summary.curve is not None
    assert (summary.curve.loads, summary.curve.left_out) == (1, 1)
    assert summary.curve.overload is not None
    assert (summary.curve.overload.kept, summary.curve.overload.collapses) == (0.0, True)
    assert "| NO: all failed |" in markdown(summary)
    assert [point.goodput[0] for point in load_points(summary.stages, None)] == [1.0, 0.0]
    rows = list(csv.DictReader(io.StringIO(stages_csv(summary.stages) or "")))
    assert [row["all_failed"] for row in rows] == ["False", "True"]


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [(Outcome.CANCELLED, ""), (Outcome.HTTP_ERROR, "the run ended before this stage did")],
)
def test_a_stage_that_was_cut_is_no_collapse(outcome: Outcome, fault: str) -> None:
    """As by Ctrl-C in the last stage, or by a drain that is shorter than the answers."""
    loads = [stage(0, 1.0, 11.0, asked=1.0), stage(1, 13.0, 23.0, asked=4.0, fault=fault)]
    good = [request(i / 10, (0.05, 0.08), user=1) for i in range(5, 110)]
    cut = [request(i / 10, outcome=outcome, user=1) for i in range(125, 230)]
    made = with_stages(batch(*good, *cut), loads, open_loop=False)
    summary = typed(summarise(made, facts(stages=loads)))
    assert summary.stages is not None
    last = summary.stages[1]
    assert (last.all_failed, last.is_result, last.steady) == (False, False, None)
    assert "none of its 100 requests succeeded" in last.reasons
    assert summary.curve is not None
    assert summary.curve.overload is None


def test_a_stage_in_which_every_request_failed_breaks_every_limit_of_a_search() -> None:
    loads = [stage(0, 1.0, 11.0)]
    records = [failed(at=i / 10, user=1, kernel_stamps=True, client_lag_ns=10_000) for i in range(5, 110)]
    made = with_stages(batch(*records), loads, open_loop=False)
    objective = parse_objective("max concurrency under goodput>=95% p99_ttft<5s error_rate<1%")
    (probe,) = probes(made, facts(stages=loads), Question(), objective)
    assert probe.counts, (probe.no_result, probe.client)
    assert [reading.hits for reading in probe.readings] == [0, 0, 0]
    assert probe.breaks((0.01,) * 3)


@pytest.mark.parametrize(("late", "counts"), [(0, False), (11, True)])
def test_a_stage_with_too_few_requests_for_a_certificate_is_no_pass_and_says_how_many_it_needs(
    late: int, counts: bool
) -> None:
    loads = [stage(0, 1.0, 11.0)]
    records = [
        request(i / 10, (3.0,) if i < 5 + late else (0.05,), user=1, kernel_stamps=True, client_lag_ns=10_000)
        for i in range(5, 110)
    ]
    made = with_stages(batch(*records), loads, open_loop=False)
    (probe,) = probes(
        made,
        facts(stages=loads),
        Question(),
        parse_objective("max concurrency under certified p99_ttft<1s"),
    )
    assert probe.counts == counts, (probe.no_result, probe.client)
    if counts:
        assert probe.breaks((0.99,))
    else:
        assert (
            "certified p99_ttft<1s needs 662 requests, there are 100: make stages longer" in probe.no_result
        )


#: TTFT in ms of three repeats of two loads, in turn.
TTFT = {0: 50.0, 1: 80.0, 2: 56.0, 3: 84.0, 4: 53.0, 5: 82.0}


def found() -> dict[str, object]:
    records = [
        request(10 * number + 1 + i / 10, (ms / 1e3, ms / 1e3 + 0.01), user=1)
        for number, ms in TTFT.items()
        for i in range(50)
    ]
    stages = [
        stage(n, 10 * n + 0.9, 10 * n + 6.0, asked=1.0 + n % 2, repeat=n // 2, fault="lost" if n == 5 else "")
        for n in TTFT
    ]
    known = manifest(60.0, options={"sweep": "users=1,2", "repeat": "3"}, stages=stages)
    return summarise(batch(*records), known)


def test_each_load_has_mean_and_interval_over_its_results() -> None:
    summary = typed(found())
    one, two = summary.repeats or []
    assert (one.asked, one.stages, one.results) == (1.0, [0, 2, 4], 3)
    assert (two.asked, two.stages, two.results) == (2.0, [1, 3, 5], 2)
    ttft = one.figures["ttft_p50_ms"]
    assert ttft.mean == pytest.approx(53.0)
    reach = 4.302653 * 3.0 / math.sqrt(3)  # Student's t of 2 degrees of freedom
    assert ttft.ci95 == pytest.approx((53.0 - reach, 53.0 + reach), rel=1e-6)
    reach = 12.706205 * math.sqrt(8) / math.sqrt(2)
    assert two.figures["ttft_p50_ms"].ci95 == pytest.approx((82.0 - reach, 82.0 + reach), rel=1e-6)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_the_interval_holds_the_mean_in_95_of_100(n: int) -> None:
    drawn = np.random.default_rng(n).normal(10.0, 1.0, (2000, n))
    held = [low <= 10.0 <= high for low, high in (plain(over(row.tolist()))["ci95"] for row in drawn)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_a_repeat_in_which_all_failed_counts_for_the_rates_and_not_as_a_result() -> None:
    figures = {
        "latency_ms": {metric: {"p50": None, "p99": None} for metric in ("ttft", "tpot", "e2el")},
        "throughput": {"requests_per_s": 0.0, "output_tokens_per_s": 0.0, "inputs_per_s": None},
        "requests": {"error_rate": 1.0},
        "goodput": {"ratio": 0.0},
    }
    held = {**figures, "goodput": {"ratio": 1.0}, "requests": {"error_rate": 0.0}}
    common = {"kind": "users", "asked": 2.0, "prefix": None, "lengths": None}
    (found,) = repeats(
        [
            faked({**common, "number": 0, "is_result": True, "all_failed": False, "figures": held}),
            faked({**common, "number": 1, "is_result": False, "all_failed": True, "figures": figures}),
        ]
    )
    assert found.results == 1
    assert (found.figures["goodput"].n, found.figures["goodput"].mean) == (2, 0.5)
    assert found.figures["error_rate"].mean == 0.5


#: An answer of three tokens, as `request` has it.
SHORT, LONG = LengthPair(100, 3), LengthPair(1000, 3)
RIGHT: dict[str, Any] = {"input_tokens": 100, "asked_input_tokens": 100, "asked_output_tokens": 3}
OF_LONG: dict[str, Any] = {"input_tokens": 1000, "asked_input_tokens": 1000, "asked_output_tokens": 3}
UNCOUNTED: dict[str, Any] = {**RIGHT, "input_tokens": None, "output_tokens": None}


def load(
    at_s: int, n: int = 100, gap: float = 0.02, every: float = 0.1, **fields: Any
) -> list[RequestRecord]:
    """A request in each tenth of a second of ten."""
    return [request(at_s + i * every, (0.03, 0.03 + gap, 0.03 + 2 * gap), **fields) for i in range(n)]


def swept(*loads: tuple[LengthPair, list[RequestRecord]]) -> tuple[RecordBatch, Manifest]:
    """A stage for each, the first measured from 1 s on and each 12 s after the one before."""
    stages = [stage(i, 1 + 12 * i, 11 + 12 * i, lengths=pair) for i, (pair, _) in enumerate(loads)]
    made = [replace(r, request_id=f"{i}") for i, r in enumerate(r for _, of in loads for r in of)]
    facts = manifest(12.0 * len(loads), stages=stages, options={"sweep": "lengths=100:3,1000:3", "gpus": 1})
    workers = [replace(facts.workers[0], announced=len(made), received=len(made))]
    return with_stages(batch(*made), stages, open_loop=False), replace(facts, workers=workers)


def judged(records: list[RequestRecord]) -> Stage:
    found = typed(summarise(*swept((SHORT, records)), Question())).stages
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("records", "is_other", "is_result", "says"),
    [
        (load(1, **RIGHT), False, True, ""),
        (load(1, **{**RIGHT, "input_tokens": 108}), False, True, ""),
        (load(1, **{**RIGHT, "input_tokens": 109}), True, False, "give --tokenizer"),
        (load(1, **{**RIGHT, "output_tokens": 1}), True, False, "100 answers were shorter"),
        (load(1, **OF_LONG), True, False, "other lengths than 100:3: 100 of 100 ok requests"),
        (load(1, **{**RIGHT, "asked_input_tokens": 1000}), True, False, "other lengths than 100:3"),
        ([*load(1, 94, **RIGHT), *load(10, 6, **OF_LONG)], True, False, "6 of 100 ok requests"),
        ([*load(1, 95, **RIGHT), *load(10, 5, **OF_LONG)], False, True, ""),
        (load(1, **UNCOUNTED), None, True, "of 100 of 100 ok requests the server did not count"),
        ([*load(1, 95, **UNCOUNTED), *load(10, 5, **OF_LONG)], None, True, "is not known"),
        ([failed(1 + i / 10) for i in range(100)], None, False, "none of its 100 requests succeeded"),
    ],
)
def test_a_stage_of_other_lengths_is_not_a_result_and_what_is_not_counted_is_not_known(
    records: list[RequestRecord], is_other: bool | None, is_result: bool, says: str
) -> None:
    found = judged(records)
    assert found.lengths is not None
    assert found.lengths.is_other is is_other
    assert found.is_result is is_result
    assert says in "; ".join((*found.reasons, *found.notes))


def test_a_search_looks_at_the_stages_of_one_pair_and_asks_which() -> None:
    run = swept((SHORT, load(1, **RIGHT)), (LONG, load(13, **OF_LONG)), (LONG, load(25, **RIGHT)))
    objective = parse_objective("max concurrency under p50_ttft<1s")
    with pytest.raises(ValueError, match="100:3, 1000:3"):
        probes(*run, Question(), objective)
    with pytest.raises(ValueError, match="100:3, 1000:3"):
        probes(*run, Question(), objective, "7:3")
    assert [probe.no_result for probe in probes(*run, Question(), objective, "100:3")] == [""]
    right, other = probes(*run, Question(), objective, "1000:3")
    assert not right.no_result
    assert "other lengths than 1000:3" in other.no_result


def test_each_pair_has_a_pareto_front_of_its_own(tmp_path: Path) -> None:
    slow = load(13, 50, 0.05, 0.2, **OF_LONG)  # less of both rates than every stage of short prompts
    requests, facts = swept(
        (SHORT, load(1, **RIGHT)), (LONG, slow), (SHORT, load(25, 66, 0.03, 0.15, **RIGHT))
    )
    write_manifest(tmp_path, facts)
    write_requests(tmp_path / REQUESTS_FILE, [requests])
    found = pareto_of([tmp_path])
    assert [(point.stage, point.lengths, point.is_best) for point in found.points] == [
        (0, "100:3", True),
        (1, "1000:3", True),
        (2, "100:3", False),
    ]


N = 512
PRIMED = ReplicaCache(target="http://r", before=0, after=0, again=496, primed=10)
OFF = replace(PRIMED, again=0)
SILENT = replace(PRIMED, before=None, after=None, again=None)


def load_of_stage_prefix(
    at_s: float, cached: int | None, n: int = 100, ttft: float = 0.05, **fields: Any
) -> list[RequestRecord]:
    known = {"input_tokens": N, "asked_input_tokens": N, "cached_tokens": cached, **fields}
    return [request(at_s + i / 10, (ttft, ttft + 0.02, ttft + 0.04), **known) for i in range(n)]


def swept_of_stage_prefix(*stages_of: tuple[float, list[RequestRecord], list[ReplicaCache]]) -> Summary:
    """Stages of the asked shares, each measured for ten seconds."""
    stages = [
        stage(i, 1 + 12 * i, 11 + 12 * i, prefix=PrefixShare.of(asked, N, 10), caches=caches)
        for i, (asked, _, caches) in enumerate(stages_of)
    ]
    made = [replace(r, request_id=f"{i}") for i, r in enumerate(r for _, of, _ in stages_of for r in of)]
    facts = manifest(12.0 * len(stages), stages=stages, options={"sweep": "users=1 prefix-share=0%,50%"})
    workers = [replace(facts.workers[0], announced=len(made), received=len(made))]
    records = with_stages(batch(*made), stages, open_loop=False)
    return typed(summarise(records, replace(facts, workers=workers), Question()))


def judged_of_stage_prefix(asked: float, records: list[RequestRecord], *caches: ReplicaCache) -> Stage:
    found = swept_of_stage_prefix((asked, records, list(caches) or [PRIMED])).stages
    assert found is not None
    return found[0]


def test_hits_are_the_share_of_the_prompts_tokens_that_usage_says_were_cached() -> None:
    found = judged_of_stage_prefix(
        0.9, [*load_of_stage_prefix(1, 464, 50), *load_of_stage_prefix(6, 448, 50)]
    )
    assert found.prefix is not None
    assert found.prefix.tokens == 464
    assert found.prefix.possible == pytest.approx(464 / N)
    assert found.prefix.achieved == pytest.approx(456 / N)
    assert (found.prefix.source, found.is_result, found.prefix.is_other) == ("usage", True, False)


@pytest.mark.parametrize(
    ("records", "caches", "achieved", "says"),
    [
        (load_of_stage_prefix(1, 0), [OFF], 0.0, "90.6% was possible: the prefix cache is off"),
        (
            load_of_stage_prefix(1, 0),
            [PRIMED],
            0.0,
            "prefixes were evicted, or requests went to servers that were not prepared",
        ),
        (load_of_stage_prefix(1, None), [PRIMED], 0.0, "prefixes were evicted"),
        (
            [*load_of_stage_prefix(1, 464, 50), *load_of_stage_prefix(6, None, 50)],
            [PRIMED],
            232 / N,
            "prefixes were evicted",
        ),
        (
            [*load_of_stage_prefix(1, 464, 99), *load_of_stage_prefix(10.9, None, 1)],
            [SILENT],
            None,
            "is not known: it is off, or start vLLM",
        ),
        (load_of_stage_prefix(1, None), [SILENT], None, "is not known"),
        (load_of_stage_prefix(1, 464), [PRIMED, OFF], 464 / N, ""),
        (load_of_stage_prefix(1, 511), [PRIMED], 511 / N, "the cache had more than the shared prefixes"),
        (
            load_of_stage_prefix(1, 464, input_tokens=700),
            [PRIMED],
            464 / 700,
            "100 of 100 prompts were off by more than 5%",
        ),
        (
            [*load_of_stage_prefix(1, 464, 50, replica="a"), *load_of_stage_prefix(6, 464, 50, replica="b")],
            [PRIMED],
            464 / N,
            "2 replicas answered, and the prefix caches of 1 were prepared",
        ),
        (
            [*load_of_stage_prefix(1, 464, 50, replica="a"), *load_of_stage_prefix(6, 464, 50, replica="b")],
            [PRIMED, PRIMED],
            464 / N,
            "",
        ),
        (
            load_of_stage_prefix(1, None),
            [replace(SILENT, hits=464.0 * 110, queries=512.0 * 110)],
            464 / N,
            "",
        ),
        (
            load_of_stage_prefix(1, None),
            [replace(SILENT, hits=0.0, queries=512.0 * 110)],
            0.0,
            "90.6% was possible",
        ),
        (load_of_stage_prefix(1, None), [replace(SILENT, hits=0.0, queries=0.0)], None, "is not known"),
        (
            load_of_stage_prefix(1, None),
            [replace(SILENT, hits=464.0, queries=512.0), SILENT],
            None,
            "is not known",
        ),
        (
            load_of_stage_prefix(1, None),
            [
                replace(SILENT, hits=464.0, queries=512.0),
                replace(SILENT, uncounted="http://r: it fell"),
            ],
            None,
            "is not known: answers do not say it, nor do counters: http://r: it fell; start",
        ),
    ],
)
def test_a_stage_without_the_hits_that_were_possible_is_not_a_result(
    records: list[RequestRecord], caches: list[ReplicaCache], achieved: float | None, says: str
) -> None:
    found = judged_of_stage_prefix(0.9, records, *caches)
    assert found.prefix is not None
    assert found.prefix.achieved == (None if achieved is None else pytest.approx(achieved))
    assert (found.is_result, found.prefix.is_other) == (not says, bool(says)), found.reasons
    assert says in "; ".join(found.reasons)


def test_what_only_the_servers_counted_is_noted() -> None:
    found = judged_of_stage_prefix(
        0.5, load_of_stage_prefix(1, None), replace(SILENT, hits=256.0, queries=512.0)
    )
    assert found.is_result
    assert "hits are those of the servers' counters" in "; ".join(found.notes)


@pytest.mark.parametrize(
    ("caches", "unproven"),
    [
        ([SILENT], "1 of 1"),
        ([PRIMED, SILENT], "1 of 2"),
        ([OFF, OFF], "2 of 2"),
        ([replace(PRIMED, before=32, after=32, again=32)], "1 of 1"),
        ([PRIMED, replace(PRIMED, before=32, after=32)], None),
        ([replace(PRIMED, before=None, after=None)], None),
    ],
    ids=["silent", "one is silent", "never a hit", "only the template", "proven", "no number for 0"],
)
def test_a_flush_that_the_answers_of_any_replica_do_not_show_is_said_to_be_unproven(
    caches: list[ReplicaCache], unproven: str | None
) -> None:
    said = "; ".join(judged_of_stage_prefix(0.9, load_of_stage_prefix(1, 464), *caches).notes)
    assert ("flush is unproven" in said) == (unproven is not None)
    assert unproven is None or f"the flush is unproven at {unproven} replicas" in said


def test_a_flush_of_several_engines_behind_one_url_is_said_to_be_unproven() -> None:
    found = judged_of_stage_prefix(0.9, load_of_stage_prefix(1, 464), PRIMED, replace(PRIMED, engines=2))
    assert found.is_result
    assert "1 of 2 URLs have several engines" in "; ".join(found.notes)
    assert "the flush is unproven" in "; ".join(found.notes)
    assert "unproven" not in "; ".join(judged_of_stage_prefix(0.9, load_of_stage_prefix(1, 464)).notes)


def test_a_fault_before_the_load_is_the_reason_of_a_stage_without_figures() -> None:
    fault = "http://r: its prefix cache was not emptied: /flush_cache: 404"
    facts = stage(0, 1, 1, measured_ns=None, prefix=PrefixShare.of(0.5, N, 10), caches=[PRIMED], fault=fault)
    made = load_of_stage_prefix(1, 0)
    run = replace(manifest(12.0), stages=[facts], options={"sweep": "users=1 prefix-share=50%"})
    found = typed(summarise(with_stages(batch(*made), [facts], open_loop=False), run, Question()))
    assert found.stages is not None
    assert found.stages[0].reasons == [fault]
    assert found.prefix_cache is not None
    assert (found.prefix_cache.stages, found.prefix_cache.left_out) == (0, 1)


def worth(stages: list[dict[str, Any]]) -> Any:
    return plain(worth_of([faked(stage) for stage in stages]))


def told(hits: float, ttft_ms: float, reach_ms: float = 1.96, *, is_result: bool = True) -> dict[str, Any]:
    ends = [ttft_ms - reach_ms, ttft_ms + reach_ms]
    return {
        "is_result": is_result,
        "prefix": {"asked": hits, "achieved": hits, "input_tokens": N},
        "figures": {"latency_ms": {"ttft": {"p50": ttft_ms, "ci95": {"p50": ends}}}},
    }


def test_the_slope_is_that_of_the_prefill_in_closed_form() -> None:
    """TTFT = base + f · N · (1 - hits), with f = 0.2 ms."""
    f_ms, base_ms = 0.2, 30.0
    found = worth([told(hits, base_ms + f_ms * N * (1 - hits)) for hits in (0.0, 0.5, 0.9)])
    assert found is not None
    assert found["ttft_ms_per_10_points"] == pytest.approx(-f_ms * N / 10)
    assert found["ttft_ms_per_1k_tokens"] == pytest.approx(f_ms * 1000)
    assert found["is_line"] is True
    assert found["missing"] is None


def test_its_interval_is_that_of_weighted_least_squares() -> None:
    rng = np.random.default_rng(3)
    x, sigma = np.array([0.0, 0.3, 0.6, 0.9]), np.array([1.0, 2.0, 0.5, 1.5])
    y = 100 - 80 * x + rng.normal(0, sigma)
    found = worth([told(a, b, 1.96 * s) for a, b, s in zip(x, y, sigma, strict=True)])
    assert found is not None
    design = np.stack([np.ones(4), x], axis=1) / sigma[:, None]
    covariance = np.linalg.inv(design.T @ design)
    slope = (covariance @ design.T @ (y / sigma))[1]
    reach = 1.96 * np.sqrt(covariance[1, 1])
    assert found["ttft_ms_per_10_points"] == pytest.approx(slope / 10)
    assert found["ci95"] == pytest.approx([(slope - reach) / 10, (slope + reach) / 10])


def test_medians_that_no_line_goes_through_are_said_to_be_on_none() -> None:
    found = worth([told(0.0, 100.0), told(0.5, 20.0), told(0.9, 90.0)])
    assert found is not None
    assert found["is_line"] is False


@pytest.mark.parametrize(
    "stages",
    [
        [told(0.0, 100.0)],
        [told(0.0, 100.0), told(0.9, 50.0, is_result=False)],
        [told(0.5, 100.0), told(0.52, 99.0)],
        [told(0.0, 100.0), told(0.9, 50.0, reach_ms=0.0)],
    ],
)
def test_without_two_results_of_different_hits_there_is_no_slope(stages: list[dict[str, Any]]) -> None:
    found = worth(stages)
    assert found is not None
    assert found["ttft_ms_per_10_points"] is None
    assert "two stages" in found["missing"]


def test_there_is_no_edge_of_an_experiment_and_its_repeats_are_by_share() -> None:
    both = [
        (share, load_of_stage_prefix(at, cached), [PRIMED])
        for share, at, cached in ((0.0, 1, 0), (0.5, 13, 256), (0.0, 25, 0), (0.5, 37, 256))
    ]
    found = swept_of_stage_prefix(*both)
    assert found.curve is None
    assert [(each.prefix, each.stages, each.pair) for each in found.repeats or ()] == [
        (0.0, [0, 2], "0% shared"),
        (0.5, [1, 3], "50% shared"),
    ]
    with pytest.raises(ValueError, match="over shares of a shared prefix"):
        of_lengths([stage(0, 1, 2, prefix=PrefixShare.of(0.5, N, 1))], None)
