"""Two arms of one run: a difference is found through a drift of both, and none where there is none."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, request
from roofline_cases import MODELS
from summaries import summarise, typed

from llm_locust.core.manifest import ArmFacts
from llm_locust.core.record import RequestRecord
from llm_locust.figures.arms import ArmSamples, Influence, independence, paired_difference
from llm_locust.metrics.question import Question
from llm_locust.report.markdown import markdown
from llm_locust.roofline import read_model
from llm_locust.wire.usage import CountFault

NO_SESSIONS = np.empty(0, dtype=np.int64)

ARMS = [
    ArmFacts(name="straight", url="http://a/v1", share=0.5),
    ArmFacts(name="gateway", url="http://b/v1", share=0.5),
]


def drawn(seed: int, n: int, slower: float) -> list[RequestRecord]:
    """Requests over 10 s whose TTFT doubles at 5 s, at the second arm ``slower`` by so many seconds."""
    rng = np.random.default_rng(seed)
    found = []
    for at in np.sort(rng.uniform(0, 9.9, n)):
        arm = ARMS[int(rng.random() < 0.5)].name
        ttft = (0.02 if at < 5 else 0.04) * rng.lognormal(0, 0.2) + (slower if arm == "gateway" else 0)
        found.append(request(float(at), (ttft, ttft + 0.002 + 0.0001 * np.sin(1000 * at)), arm=arm))
    return found


def told(records: list[RequestRecord], **asked: Any) -> dict[str, Any]:
    found = summarise(batch(*records), manifest(arms=ARMS), Question(**asked))
    typed(found)
    return found


def rows_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in found["arms"][1]["against"]["rows"]}


@pytest.mark.parametrize("figure", [ArmSamples.mean, ArmSamples.share, lambda s: s.percentile(90)])
def test_what_requests_contribute_to_a_figure_adds_up_to_nothing(
    figure: Callable[[ArmSamples], Influence | None],
) -> None:
    drawn = np.random.default_rng(3).random(500)
    values = np.round(drawn) if figure is ArmSamples.share else drawn
    found = figure(ArmSamples(values, np.arange(500.0), NO_SESSIONS))
    assert found is not None
    assert abs(found.of.sum()) < 1e-9
    assert np.abs(found.of).max() > 1e-4


def test_a_difference_is_found_though_the_level_of_both_arms_doubles() -> None:
    found = told(drawn(1, 3000, 0.003))
    rows = rows_of(found)
    low, high = rows["mean_ttft"]["difference_interval"]
    assert low < 3 < high
    assert high - low < 3  # the drift itself is 20 ms
    assert rows["mean_ttft"]["verdict"] == rows["mean_e2el"]["verdict"] == "worse"
    assert rows["mean_tpot"]["verdict"] == "no difference beyond noise"
    first, second = found["arms"]
    assert first["against"] is None
    assert first["figures"]["requests"]["scheduled"] + second["figures"]["requests"]["scheduled"] == 3000
    assert first["share"] + second["share"] == pytest.approx(1)


def test_figures_of_an_arm_are_those_of_a_report_of_its_requests_alone() -> None:
    records = drawn(2, 800, 0.003)
    second = told(records)["arms"][1]["figures"]
    alone = summarise(batch(*[r for r in records if r.arm == "gateway"]), manifest(), Question())
    assert second["latency_ms"]["ttft"] == alone["latency_ms"]["ttft"]
    assert second["requests"] == alone["requests"]


def test_equal_arms_that_drift_differ_in_at_most_one_of_twenty_runs() -> None:
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        at = np.sort(rng.random(2000))
        values = np.where(at > 0.5, 2.0, 1.0) * rng.lognormal(0, 0.4, 2000)
        arm = rng.random(2000) < 0.5
        base, new = (ArmSamples(values[mask], at[mask], NO_SESSIONS) for mask in (~arm, arm))
        figures = [(base.mean(), new.mean()), *((base.percentile(p), new.percentile(p)) for p in (50, 95))]
        medians = figures[1]
        worth = independence(*medians)  # type: ignore[arg-type]
        found = [paired_difference(a, b, 1 - 0.05 / 3, worth) for a, b in figures if a and b]
        wrong += any(each.low > 0 or each.high < 0 for each in found)
        assert found[0].is_known or found[1].is_known
    assert wrong <= 6  # 5 % of 60 are 3; more than 6 come in 3 % of such tests


def test_sessions_that_differ_as_a_whole_are_no_difference_between_arms() -> None:
    rng = np.random.default_rng(5)
    levels = np.repeat(rng.normal(1, 0.3, 12), 200)  # 12 sessions, 200 requests each
    sessions = np.repeat(np.arange(12), 200)
    order = rng.permutation(2400)
    at = np.empty(2400)
    at[order] = np.linspace(0, 1, 2400)
    first = sessions < 6

    def arm(mask: Any, named: bool) -> ArmSamples:
        by_time = np.argsort(at[mask])
        return ArmSamples(
            levels[mask][by_time], at[mask][by_time], sessions[mask][by_time] if named else NO_SESSIONS
        )

    def width(named: bool) -> float:
        base, new = arm(first, named).mean(), arm(~first, named).mean()
        assert base
        assert new
        found = paired_difference(base, new, 0.95)
        return found.high - found.low

    assert width(False) < 0.1
    # 6 sessions an arm are not worth the 100 independent samples that a mean needs.
    assert width(True) == np.inf


def test_each_gate_is_judged_for_every_arm_and_one_without_answers_holds_none() -> None:
    records = [each for each in drawn(3, 600, 0.0) if each.arm == "straight"]
    records += [failed(at=float(at), arm="gateway") for at in np.linspace(0, 9, 50)]
    found = told(records, gates="p95_ttft<500ms error_rate<1%")
    assert [(f"{gate['arm']}: {gate['text']}", gate["passed"]) for gate in found["gates"]] == [
        ("straight: p95_ttft<500ms", True),
        ("straight: error_rate<1%", True),
        ("gateway: p95_ttft<500ms", False),
        ("gateway: error_rate<1%", False),
    ]
    rows = rows_of(found)
    assert rows["p95_ttft"]["verdict"] == "too few samples"
    assert rows["error_rate"]["verdict"] == "worse"


def test_a_gate_on_tokens_is_judged_by_how_each_arm_counted_them() -> None:
    odd = {"gateway": CountFault.FEWER}
    records = [replace(each, count_fault=odd.get(each.arm or "")) for each in drawn(5, 400, 0.0)]
    gates = "p50_tpot<50ms goodput>=50% output_tps>1"
    found = told(records, slo="tpot=100ms", gates=gates)
    notes = {(gate["arm"], gate["note"] is not None) for gate in found["gates"]}
    assert notes == {("straight", False), ("gateway", True)}


def test_an_arm_that_got_no_request_is_there_and_holds_no_gate() -> None:
    found = told([r for r in drawn(4, 300, 0.0) if r.arm == "straight"], gates="p50_ttft<500ms rps>0")
    assert [gate["passed"] for gate in found["gates"]] == [True, True, False, False]
    assert found["arms"][1]["figures"]["requests"]["scheduled"] == 0


def test_a_run_without_arms_has_no_such_key() -> None:
    assert "arms" not in summarise(batch(request()), manifest(), Question())


def test_values_that_are_all_equal_have_no_interval_and_the_row_says_why() -> None:
    """An interval of width 0 would make any difference one beyond noise."""
    at = np.linspace(0.1, 9.8, 400)
    records = [
        request(float(t), (0.05 + 0.01 * (i % 2), 0.2), arm=ARMS[i % 2].name) for i, t in enumerate(at)
    ]
    found = told(records)
    rows = rows_of(found)
    for metric in ("mean_ttft", "p50_ttft"):
        assert rows[metric]["difference"] == pytest.approx(10)
        assert rows[metric]["difference_interval"] is None
        assert rows[metric]["verdict"] == "undetermined"
        assert "how they vary is not known" in rows[metric]["reason"]
    assert rows["error_rate"]["difference_interval"] is not None, "of a share the number of requests tells"
    assert "undetermined: all values of each arm are equal" in markdown(typed(found))


@pytest.mark.parametrize(
    ("models", "is_known"), [(("8b", "8b"), True), (("", ""), True), (("8b", "70b"), False)]
)
def test_arms_of_several_models_have_no_roofline_of_one(models: tuple[str, ...], is_known: bool) -> None:
    arms = [replace(arm, model=model) for arm, model in zip(ARMS, models, strict=True)]
    options = {"gpu_type": "h100", "model_shape": asdict(read_model(MODELS / "llama-3-8b.yaml")), "gpus": 1}
    of_run = manifest(arms=arms, options=options)
    records = [request(at / 10, (0.02, 0.03), arm=ARMS[at % 2].name) for at in range(90)]
    roof = typed(summarise(batch(*records), of_run, Question())).roofline
    assert (isinstance(roof, str) and "several models" in roof) is not is_known
