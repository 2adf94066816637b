"""Where the time of a run goes: bottlenecks made on purpose are named, and the parts add up."""

import json
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, ns, request, series
from summaries import summarise, typed

from llm_locust.core.manifest import Manifest, NodeHealth, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.bottleneck import show as section
from llm_locust.metrics.server_roles import ROLE_SAMPLE
from llm_locust.sim.engine import Engine, EngineProfile, EngineSequence

REQUESTS = 400
PROFILE = EngineProfile(noise=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a run is made against. Each of ``slow_factors`` is a replica; requests go to them in turn."""

    profile: EngineProfile = PROFILE
    rate_per_s: float = 4.0
    slow_factors: tuple[float, ...] = (1.0,)
    rtt_s: float = 0.002
    is_connection_kept: bool = True
    client_lag_s: float = 0.0
    output_tokens: int = 50
    input_tokens: tuple[int, int] = (50, 1_000)


def run_of(deployment: Deployment, seed: int) -> tuple[list[RequestRecord], Manifest]:
    """Records of Poisson arrivals, each prompt of another length, and the manifest of the run."""
    random = np.random.default_rng(seed)
    at_ns = np.cumsum(random.exponential(1e9 / deployment.rate_per_s, REQUESTS)).astype(np.int64)
    inputs = random.integers(*deployment.input_tokens, REQUESTS)
    outputs = random.integers(deployment.output_tokens // 2, deployment.output_tokens * 3 // 2, REQUESTS)
    connecting_ns = 0 if deployment.is_connection_kept else round(deployment.rtt_s * 1e9)
    half_ns = round(deployment.rtt_s * 0.5e9)
    sequences = [
        EngineSequence(int(p), int(n), int(at) + connecting_ns + half_ns + deployment.profile.ttft_base_ns)
        for at, p, n in zip(at_ns, inputs, outputs, strict=True)
    ]
    tokens_ns: dict[EngineSequence, list[int]] = {sequence: [] for sequence in sequences}
    count = len(deployment.slow_factors)
    for index, slow_factor in enumerate(deployment.slow_factors):
        _serve(Engine(deployment.profile, seed + index), slow_factor, sequences[index::count], tokens_ns)
    records = []
    for index, (at, sequence) in enumerate(zip(at_ns.tolist(), sequences, strict=True)):
        came_ns = [t + half_ns + round(deployment.client_lag_s * 1e9) for t in tokens_ns[sequence]]
        record = _record(deployment, index, at * 1e-9, connecting_ns * 1e-9, [t * 1e-9 for t in came_ns])
        records.append(replace(record, input_tokens=sequence.prompt_tokens))
    stopped_s = float(at_ns[-1]) * 1e-9
    lag_ms = deployment.client_lag_s * 1e3
    health = NodeHealth(
        cpu_percent_max=100.0 if lag_ms else 10.0, hub_lag_ms_p99=lag_ms, hub_lag_ms_max=lag_ms
    )
    worker = WorkerFacts(id="w1", index=0, announced=REQUESTS, received=REQUESTS, health=health)
    return records, replace(manifest(stopped_s, open_loop=True), workers=[worker])


def _serve(
    engine: Engine,
    slow_factor: float,
    sequences: Ordered[EngineSequence],
    tokens_ns: dict[EngineSequence, list[int]],
) -> None:
    engine.slow_factor = slow_factor
    for sequence in sequences:
        engine.submit(sequence)
    while (end_ns := engine.start_step()) is not None:
        for sequence in engine.finish_step():
            tokens_ns[sequence].append(end_ns)


def _record(
    deployment: Deployment, index: int, at_s: float, connecting_s: float, tokens_s: list[float]
) -> RequestRecord:
    sent_s = at_s + connecting_s
    fields: dict[str, Any] = {
        "request_id": f"r{index}",
        "connected_ns": ns(sent_s),
        "sent_ns": ns(sent_s),
        "reused": deployment.is_connection_kept,
        "rtt_ns": round(deployment.rtt_s * 1e9),
        "client_lag_ns": round(deployment.client_lag_s * 1e9),
        "kernel_stamps": not deployment.client_lag_s,
        "replica": f"replica-{index % len(deployment.slow_factors)}"
        if len(deployment.slow_factors) > 1
        else None,
    }
    arrivals = tuple(t - sent_s for t in tokens_s)
    return request(at_s, arrivals, ended=tokens_s[-1], **fields)


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
