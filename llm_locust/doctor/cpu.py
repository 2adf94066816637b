"""CPU: limit of the container, throttling, steal, and pauses of the event loop."""

from dataclasses import dataclass

from llm_locust.doctor.finding import Finding, ok, skipped, warn
from llm_locust.metrics.sections import thresholds
from llm_locust.metrics.sections.thresholds import Threshold
from llm_locust.report.text import number, plural

#: A process with users runs on one core.
CORES_PER_PROCESS = 1.0


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU of this process while it was measured.

    Attributes:
        cores: CPUs that this process may run on.
        limit_cores: CPU limit of its container; None without one.
        steal_percent, throttled_percent: as in a run's manifest; None if unknown.
        measured_s: how long the two were measured, part of it with one busy core.
    """

    cores: int
    limit_cores: float | None
    steal_percent: float | None
    throttled_percent: float | None
    measured_s: float


@dataclass(frozen=True, slots=True)
class LoopLag:
    """Lateness of the event loop's timer over ``seconds``, in milliseconds."""

    p99_ms: float
    max_ms: float
    seconds: float


def judge_quota(cpu: Cpu) -> Finding:
    """Cores that the machine and the container's limit leave."""
    cores = plural(cpu.cores, "core")
    if cpu.limit_cores is None or cpu.limit_cores >= cpu.cores:
        return ok(f"{cores}, no limit below that")
    figure = f"{number(cpu.limit_cores)} of {cores}, by the container's CPU limit"
    if cpu.limit_cores < CORES_PER_PROCESS:
        return warn(
            figure, "raise the container's CPU limit to 1 core for each process with users, or remove it"
        )
    return ok(figure, f"start at most {plural(int(cpu.limit_cores), 'worker')} here")


def judge_throttling(cpu: Cpu) -> Finding:
    """Share of the periods of the CPU limit in which the container was stopped."""
    return _judge_taken(
        cpu.throttled_percent,
        thresholds.THROTTLED_CAUSE,
        f"{number(cpu.throttled_percent)} % of the CPU limit's periods in {number(cpu.measured_s)} s",
        "raise the container's CPU limit, or use more workers with less load each",
    )


def judge_steal(cpu: Cpu) -> Finding:
    """Share of the CPU time wanted that the hypervisor gave to other machines."""
    return _judge_taken(
        cpu.steal_percent,
        thresholds.STEAL_CAUSE,
        f"{number(cpu.steal_percent)} % of the CPU time wanted in {number(cpu.measured_s)} s",
        "use a machine with dedicated CPUs",
    )


def _judge_taken(percent: float | None, threshold: Threshold, figure: str, change: str) -> Finding:
    """A share against the threshold from which a report takes it for the cause of a late client."""
    if percent is None:
        return skipped("this system does not report it")
    return warn(figure, change) if threshold.severity(percent) else ok(figure)


def judge_loop(lag: LoopLag) -> Finding:
    """Pauses of an event loop without work: other programs, or the machine itself, cause them."""
    figure = (
        f"{number(lag.p99_ms)} ms late (p99), {number(lag.max_ms)} ms at most, in {number(lag.seconds)} s"
    )
    if lag.p99_ms > thresholds.LAG_FLOOR_MS:
        return warn(
            figure, "stop other programs on this machine, or use a larger one: requests are sent late"
        )
    return ok(figure)
