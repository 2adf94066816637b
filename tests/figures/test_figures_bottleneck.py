"""Where the time of a run goes: bottlenecks made on purpose are named, and the parts add up."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from bottleneck_cases import PROFILE, Deployment, run_of
from metrics_cases import batch, failed, manifest, request, series
from summaries import summarise, typed

from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.bottleneck import show as section
from llm_locust.figures.servers import ROLE_SAMPLE

MADE = {
    "connection": Deployment(rtt_s=0.8, is_connection_kept=False, output_tokens=20),
    "fixed": Deployment(profile=replace(PROFILE, ttft_base_ns=2_000_000_000)),
    "queue": Deployment(profile=replace(PROFILE, max_num_seqs=3), rate_per_s=4.5),
    "prefill": Deployment(profile=replace(PROFILE, prefill_per_token_ns=500_000), rate_per_s=2.8),
    "decode": Deployment(profile=replace(PROFILE, step_base_ns=100_000_000)),
    "balancer": Deployment(slow_factors=(1.0, 1.0, 4.0), rate_per_s=6.0),
    "client": Deployment(client_lag_s=0.3),
}


def told(records: list[RequestRecord], facts: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = summarise(batch(*records), facts)["bottleneck"]
    return found


@cache
def summary_of(made: str, seed: int) -> dict[str, Any]:
    records, facts = run_of(MADE[made], seed)
    return summarise(batch(*records), facts)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("made", MADE)
def test_a_bottleneck_made_on_purpose_is_named(made: str, seed: int) -> None:
    found = summary_of(made, seed)["bottleneck"]
    assert found["verdict"] == made
    assert sum(found["parts_ms"].values()) == pytest.approx(found["mean_ms"])
    assert sum(found["shares"].values()) == pytest.approx(1.0)


def test_the_parts_are_those_that_the_engine_was_given() -> None:
    """20 ms before the scheduler and 30 µs a prompt token; a step of 15 ms and 0.1 ms a sequence."""
    found = told(*run_of(Deployment(rate_per_s=1.0), 4))
    slope = found["prefill_us_per_token"]
    assert slope["ci95"][0] <= 30.0 <= slope["ci95"][1]
    # Who comes amid a step waits for its end, half of one in the mean, and then for its own.
    assert found["parts_ms"]["fixed"] == pytest.approx(20 + 15 + 0.1, abs=8.0)
    assert found["parts_ms"]["connection"] == pytest.approx(2.0)
    assert found["parts_ms"]["queue"] < 0.01 * found["mean_ms"]


def test_prompts_of_one_length_have_no_slope_and_their_prefill_is_in_the_fixed_part() -> None:
    found = told(*run_of(Deployment(input_tokens=(500, 501)), 1))
    assert found["prefill_us_per_token"] is None
    assert found["prefill_busy"] is None
    assert found["parts_ms"]["prefill"] == 0
    assert found["parts_ms"]["fixed"] > 500 * 0.030 + 20


def test_many_engines_behind_one_address_that_are_seldom_busy_are_not_called_busy_with_prompts() -> None:
    """Eight engines spend a tenth of their time on prompts each: as one they would be four fifths busy."""
    records, facts = run_of(Deployment(slow_factors=(1.0,) * 8, rate_per_s=52.0), 1)
    unnamed = [replace(record, replica=None) for record in records]
    found = told(unnamed, facts)
    assert found["prefill_busy"] > 0.5
    assert found["verdict"] == "decode"


def test_a_connection_that_is_slow_is_not_held_against_the_client_but_a_late_client_is() -> None:
    records, facts = run_of(MADE["connection"], 1)
    late = [replace(record, kernel_stamps=False, client_lag_ns=900_000_000) for record in records]
    assert told(late, facts)["verdict"] == "client"


def test_a_run_whose_requests_hung_has_no_verdict() -> None:
    answered = [request(0.01 * i) for i in range(60)]
    hung = [request(0.01 * i, (), ended=10.0, outcome=Outcome.CANCELLED) for i in range(61)]
    assert "only 60 of 121 requests" in told([*answered, *hung], manifest())["missing"]


def test_a_few_answers_and_none_have_no_verdict() -> None:
    assert "49 streamed answers" in told([request(0.01 * i) for i in range(49)], manifest())["missing"]
    assert "0 streamed answers" in told([failed(0.1)], manifest())["missing"]
    assert "0 streamed answers" in told([], manifest())["missing"]


@pytest.mark.parametrize("made", MADE)
def test_the_report_says_where_the_time_goes_and_what_shortens_it(made: str) -> None:
    found = section(typed(summary_of(made, 1)))
    assert found is not None
    first, second = (line.text for line in found.lines)
    by_client = made == "client"
    assert first.startswith("not known: the client is invalid" if by_client else f"mostly {made}: ")
    assert second.startswith("what to do: more workers" if by_client else "to shorten it: ")


def test_prompts_that_other_servers_compute_delay_no_decoding_and_need_no_advice_to_separate_them() -> None:
    records, facts = run_of(MADE["prefill"], 1)
    roles = [("p1", "prefill"), ("p2", "prefill"), ("d", "decode")]
    labels = [(name, json.dumps({"role": role, "source": "the options"})) for name, role in roles]
    samples = [(0.1 * i, name, ROLE_SAMPLE, text, 1.0) for name, text in labels for i in range(100)]
    summary = summarise(batch(*records), facts, server=series(samples))
    together = summary_of("prefill", 1)["bottleneck"]
    assert summary["bottleneck"]["prefill_busy"] == pytest.approx(together["prefill_busy"] / 2)
    assert summary["bottleneck"]["verdict"] == max(
        summary["bottleneck"]["shares"], key=summary["bottleneck"]["shares"].__getitem__
    )
    shown = section(typed(summary))
    assert shown is not None
    assert not any("separate replicas" in line.text or "delays others" in line.text for line in shown.lines)


def test_a_run_without_a_verdict_has_no_such_section() -> None:
    assert section(typed(summarise(batch(request()), manifest()))) is None
