"""Each stage has the figures that a run of its own would have."""

import csv
import io
from typing import Any, Literal

import pytest
from metrics_cases import batch, failed, manifest, ns, request, stage
from msgspec import structs

from llm_locust.core.batch import RecordBatch
from llm_locust.core.exit_codes import EXIT_INVALID
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.core.stages import with_stages
from llm_locust.figures.objective import parse_objective, probes
from llm_locust.figures.over_load import load_points
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, as_json, typed
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.metrics.question import Question
from llm_locust.metrics.window import Window
from llm_locust.report.csv_tables import stages_csv
from llm_locust.report.html import html_report
from llm_locust.report.inputs import Run, Source
from llm_locust.report.markdown import markdown
from llm_locust.report.run.analysis import Analysis, analyse

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
    run = Run(facts(), requests())
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


def test_the_offered_load_is_the_mean_number_of_users(sweep: Summary) -> None:
    assert sweep.stages is not None
    assert [s.offered for s in sweep.stages] == pytest.approx([1, 2, 4], rel=0.01)


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


def test_the_page_of_a_sweep_has_its_stages_and_no_figures_over_all_loads() -> None:
    found = asked()
    page = html_report(found.requests, found.manifest, found.summary, found.measured).decode()
    assert 'id="stages"' in page
    assert "2 of 3" in page
    assert 'id="latency"' not in page
    assert "key-latency" not in page.split("</style>")[1]


def test_one_stage_alone_is_a_report_on_one_load() -> None:
    found = asked(where="stage==1", gates="p50_ttft<61ms").summary
    assert not found.is_sweep
    assert found.stages is None
    assert found.window.seconds == pytest.approx(10.0)
    assert found.requests.ok == 200
    assert found.throughput.requests_per_s == pytest.approx(20.0)
    assert found.gates[0].passed


def test_several_stages_are_a_sweep_of_those() -> None:
    found = asked(where="stage>=1 and stage!=none").summary
    assert found.is_sweep
    assert found.window.seconds == pytest.approx(20.0)


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
    run = Run(manifest(36.0), requests())
    source = Source((run,), run.manifest, run.requests, merged=False, unreadable=())
    with pytest.raises(ValueError, match="has no stages"):
        analyse(source, Question(where="stage==1"))


def test_the_file_of_stages_has_each_figure_with_its_interval(sweep: Summary) -> None:
    text = stages_csv(sweep.stages)
    assert text is not None
    first, second, third = csv.DictReader(io.StringIO(text))
    assert [float(row["ttft_p50_ms"]) for row in (first, second, third)] == pytest.approx([50, 60, 65])
    assert float(first["ttft_p50_ms_low"]) <= 50 <= float(first["ttft_p50_ms_high"])
    assert (first["is_result"], third["is_result"]) == ("True", "False")
    assert stages_csv(typed(summarise(requests(), manifest(36.0))).stages) is None


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
    run = Run(facts_, records)
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


def test_few_requests_are_noted_and_a_few_stages_have_one_line() -> None:
    few = [stage(0, 1.0, 3.0), stage(1, 3.0, 5.0), stage(2, 13.0, 23.0)]
    found = typed(summarise(requests(), facts(stages=few)))
    assert found.stages is not None
    assert [s.steady for s in found.stages] == [None, None, True]
    assert "stages 0, 1: fewer than 100 requests: intervals are wide" in markdown(found)


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
    known = facts(stages=[stage(0, 1.0, 11.0), stage(1, 13.0, 23.0)], slo="", require_valid=require_valid)
    whole = typed(summarise(requests(), known))
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
