"""What is known of a run before its first request: gates that it cannot show, a ramp that fills it, options
without an effect, an upload that nobody takes."""

import math
from collections.abc import Iterable, Iterator

from llm_locust.metrics.gate_outcomes import fewest_for, fewest_for_certified, fewest_for_share
from llm_locust.metrics.gates import Gate, MetricKind, parse_gates
from llm_locust.metrics.stats.percentiles import PERCENTILES
from llm_locust.options.settings import Settings
from llm_locust.swarm.process.children import STDERR, STDOUT, LateError, run_elsewhere
from llm_locust.swarm.run.upkeep import CREDENTIALS

#: A ramp of this share of the measured time is most of what the figures are of.
MOST_RAMP = 0.5

#: Time limit of the question whether an object store answers.
REACH_WITHIN_S = 15.0


def foreseen(
    settings: Settings, hosts: Iterable[str], *, users: object, spawn_rate: object, run_time_s: object
) -> Iterator[str]:
    """What the person who starts the run should know now, a line each.

    Args:
        hosts: those of the load.
        users, spawn_rate, run_time_s: Locust's; None is its default.
    """
    seconds = float(run_time_s) if isinstance(run_time_s, int | float) and run_time_s > 0 else None
    yield from _too_few(settings, seconds)
    if seconds is not None:
        yield from _ramp(settings, seconds, users, spawn_rate)
    hosts = list(hosts)
    if hosts and not any(host.startswith("https://") for host in hosts):
        given = {"--ca-cert": settings.ca_cert, "--client-cert": settings.client_cert}
        for flag in (flag for flag, path in given.items() if path is not None):
            yield f"{flag} has no effect: {hosts[0]!r} is not https"


def fewest_of(gate: Gate) -> int:
    """Requests without which a gate cannot hold; 1 of those that any number shows."""
    if gate.metric in ("goodput", "error_rate"):
        return fewest_for_share(gate)
    if gate.kind is not MetricKind.LATENCY or gate.latency == "itl" or not gate.is_upper:
        return 1
    if gate.statistic not in PERCENTILES:
        return 1
    return fewest_for_certified(gate.statistic) if gate.is_certified else fewest_for(gate.statistic)


def _too_few(settings: Settings, seconds: float | None) -> Iterator[str]:
    """Gates that need more requests than a number of them, or a rate for its time, gives."""
    load = settings.load
    for gate in parse_gates(settings.gates):
        fewest = fewest_of(gate)
        what = f"--gate {gate.text} needs {fewest:,} requests"
        if load.num_requests is not None and load.num_requests < fewest:
            yield f"{what}, and --num-requests sends {load.num_requests:,}: it cannot hold"
        elif load.num_requests is None and load.profile is not None and load.sweep is None and seconds:
            before = float(load.profile.load(settings.warmup_s))
            given = float(load.profile.load(seconds)) - before
            if given + 3 * math.sqrt(given) < fewest:
                enough_s = float(load.profile.time(before + fewest))
                more = f"; run for {enough_s:.0f} s or more" if math.isfinite(enough_s) else ""
                yield f"{what}, and the schedule has about {given:.0f} in the measured time{more}"


def _ramp(settings: Settings, seconds: float, users: object, spawn_rate: object) -> Iterator[str]:
    """A load that is at its whole for less than half of the measured time."""
    measured_s = seconds - settings.warmup_s
    if settings.load.sweep is not None or measured_s <= 0:
        return
    how = "give a higher --spawn-rate (-r), a longer run, or --window steady"
    if settings.load.profile is None and settings.load.trace is None and isinstance(users, int):
        rate = float(spawn_rate) if isinstance(spawn_rate, int | float) and spawn_rate > 0 else 1.0
        whole_s = (users - 1) / rate
        what = f"all {users} users are there after {whole_s:.0f} s"
    elif settings.load.profile is not None and len(settings.load.profile.segments) == 2:
        first, _ = settings.load.profile.segments
        whole_s = settings.load.profile.segments[1].start_s if first.slope else 0.0
        what, how = f"the rate is at its end after {whole_s:.0f} s", "give a longer run, or --window steady"
    else:
        return
    if whole_s - settings.warmup_s > MOST_RAMP * measured_s:
        yield f"{what}, and the run is {seconds:g} s long: its rates are those of the ramp; {how}"


def reach_upload(to: str) -> str | None:
    """Why a destination in an object store does not answer, asked by a process of its own; None if it does.

    Call it in the main thread. A folder is looked at when it is opened.
    """
    if not to.startswith(("s3://", "gs://")):
        return None
    try:
        code, said = run_elsewhere(
            "llm_locust.store.upload.reach",
            ["--", to],
            heard=(STDOUT, STDERR),
            prefixes=CREDENTIALS,
            within_s=REACH_WITHIN_S,
        )
    except LateError:
        return f"no answer within {REACH_WITHIN_S:g} s"
    except OSError as e:
        return f"the process that asks cannot be started: {e.strerror or e}"
    told = " ".join(said.decode(errors="replace").split())[-500:]
    return (told or f"the process that asked ended with {code}") if code else None
