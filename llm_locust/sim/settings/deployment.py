"""Configuration of a simulated deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llm_locust.sim.answers.jobs import ModelLimits
from llm_locust.sim.engine.engine import EngineProfile
from llm_locust.sim.engine.gpu_page import GpuKind
from llm_locust.sim.faults.faults import TRANSFER_FAULT, FaultPlan
from llm_locust.sim.faults.plan import PlanStep, check_plan
from llm_locust.sim.routing import PREFIX_IMBALANCE
from llm_locust.wire.session_header import SessionHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """The plan, and the parameters of its faults."""

    plan: FaultPlan = field(default_factory=FaultPlan)
    after_tokens: int = 3  # position of a fault within a stream; before the last token of a shorter answer
    stall_ns: int = 3_600_000_000_000
    slow_factor: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One gateway and its replicas.

    ``session_header`` names a session's replica in answers and in requests. The first ``prefill_replicas``
    compute prompts, whose KV cache takes ``kv_transfer_ns`` to the others, which decode; 0: each replica does
    both. ``replica_ports`` is the first of their own ports, None for none. ``speeds`` maps a replica's index
    to a factor on the duration of its steps. ``health_interval_ns`` is the interval of the gateway's health
    checks. ``profile`` says what the engine's figures were computed from, None if they were given.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 4
    prefill_replicas: int = 0
    kv_transfer_ns: int = 10_000_000
    replica_ports: int | None = None
    routing: str = "round_robin"
    session_header: SessionHeader | None = None
    prefix_imbalance: int = PREFIX_IMBALANCE
    speeds: Mapping[int, float] = field(default_factory=dict)
    plan: tuple[PlanStep, ...] = ()  # in order of time
    health_interval_ns: int = 2_000_000_000
    seed: int = 0
    engine: EngineProfile = field(default_factory=EngineProfile)
    limits: ModelLimits = field(default_factory=ModelLimits)
    gpu: GpuKind = field(default_factory=GpuKind)
    profile: str | None = None
    faults: FaultSettings = field(default_factory=FaultSettings)
    api_key: str | None = None
    truth: Path | None = None
    early_role: bool = False
    keep_alive_s: float = 3_600.0

    def role(self, index: int) -> str:
        """What the name of a replica begins with."""
        if not self.prefill_replicas:
            return "replica"
        return "prefill" if index < self.prefill_replicas else "decode"


class SettingsError(ValueError):
    """Settings that contradict each other; the text says which and what to do."""


def check(settings: SimSettings) -> None:
    """Check that a deployment with these settings can work (raises SettingsError or PlanError)."""
    engine, limits = settings.engine, settings.limits
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise SettingsError(
            f"--max-num-batched-tokens {engine.max_num_batched_tokens} is less than --max-num-seqs "
            f"{engine.max_num_seqs}: a step could not hold a token of each; raise it or lower the other"
        )
    if limits.max_model_len > engine.longest_sequence_tokens:
        raise SettingsError(
            f"--max-model-len {limits.max_model_len} is more than --kv-cache-tokens "
            f"{engine.kv_cache_tokens} holds in blocks of {engine.kv_block_tokens}: a longest sequence would "
            "never run; lower it or raise the other"
        )
    for model in limits.models:
        if not model or not model.isprintable():
            raise SettingsError(f"--model {model!r} is not a name: write at least one printable character")
    if settings.replica_ports and settings.replica_ports + settings.replicas - 1 > 65_535:
        raise SettingsError(
            f"--replica-ports {settings.replica_ports} leaves no room for {settings.replicas} ports "
            "below 65536; choose a lower one"
        )
    if settings.health_interval_ns <= 0:
        raise SettingsError("--health-interval 0 is not an interval; write such as 2s")
    for index in settings.speeds:
        if index >= settings.replicas:
            raise SettingsError(
                f"--replica-speed names replica {index}, but --replicas {settings.replicas} counts from 0"
            )
    check_plan(settings.plan, settings.replicas)
    _check_pools(settings)


def _check_pools(settings: SimSettings) -> None:
    if settings.prefill_replicas >= settings.replicas:
        raise SettingsError(
            f"--prefill-replicas {settings.prefill_replicas} of --replicas {settings.replicas} leaves none "
            "that decodes; raise --replicas, which counts both"
        )
    if not settings.prefill_replicas and TRANSFER_FAULT in dict(settings.faults.plan.rates):
        raise SettingsError(
            f"--faults {TRANSFER_FAULT}: nothing is transferred without --prefill-replicas; give it, or "
            "leave the fault out"
        )
