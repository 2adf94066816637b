"""Runs of deployments with one bottleneck made on purpose, in virtual time: engines, a network, a client."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from metrics_cases import manifest, ns, request

from llm_locust.core.manifest import Manifest, NodeHealth, WorkerFacts
from llm_locust.core.record import RequestRecord
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
