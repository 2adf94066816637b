"""The table of checks, and an examination by it."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llm_locust.client.http.clock import hold_stamping
from llm_locust.doctor import (
    calibration,
    certificate,
    clocks,
    cpu,
    kubernetes,
    limits,
    network,
    streams,
    target,
)
from llm_locust.doctor.asked import Examination, TimeLeft
from llm_locust.doctor.calibration import Calibrated, calibrate, judge_calibration
from llm_locust.doctor.finding import Finding
from llm_locust.doctor.kubernetes import Access
from llm_locust.doctor.looks import (
    WHOLE_S,
    HostSeen,
    ServerSeen,
    look_around,
    look_at_host,
    look_at_server,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """All that was looked at; ``server`` is None without a URL, ``calibration`` if it was not asked for."""

    asked: Examination
    host: HostSeen
    kubernetes: Access | None
    server: ServerSeen | None = None
    calibration: Calibrated | str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A row: its key in JSON, its label, and the function that judges what was seen."""

    key: str
    label: str
    judge: Callable[[Seen], Finding]


@dataclass(frozen=True, slots=True)
class Result:
    """A check with what it found."""

    check: Check
    finding: Finding


HOST_CHECKS = (
    Check("open_files", "Open files", lambda s: limits.judge_files(s.host.files, s.asked.users)),
    Check("ports", "Local ports", lambda s: limits.judge_ports(s.host.ports, s.asked.users)),
    Check("memory", "Memory", lambda s: limits.judge_memory(s.host.memory_bytes, s.asked.users)),
    Check("cpu_limit", "CPU", lambda s: cpu.judge_quota(s.host.cpu)),
    Check("cpu_throttling", "CPU throttling", lambda s: cpu.judge_throttling(s.host.cpu)),
    Check("cpu_steal", "CPU steal", lambda s: cpu.judge_steal(s.host.cpu)),
    Check("event_loop", "Event loop", lambda s: cpu.judge_loop(s.host.loop)),
    Check("kernel_stamps", "Kernel stamps", lambda s: clocks.judge_stamps(s.host.stamps)),
    Check("reader", "Reader", lambda s: clocks.judge_reader(s.host.why_python_reads)),
    Check("clock_source", "Clock source", lambda s: clocks.judge_clock_source(s.host.clock)),
    Check("kubernetes", "Kubernetes", lambda s: kubernetes.judge_kubernetes(s.kubernetes)),
)

#: Made if it is asked for only.
CALIBRATION = Check("calibration", "Calibration", lambda s: judge_calibration(s.calibration))


def _of_server(judge: Callable[[Examination, ServerSeen], Finding]) -> Callable[[Seen], Finding]:
    def check(seen: Seen) -> Finding:
        assert seen.server is not None  # such checks are made with a URL only
        return judge(seen.asked, seen.server)

    return check


def _is_https(asked: Examination) -> bool:
    return asked.target is not None and asked.target.scheme == "https"


#: Made with a URL only.
SERVER_CHECKS = (
    Check("dns", "DNS", _of_server(lambda _, s: network.judge_dns(s.resolved))),
    Check("tcp", "TCP", _of_server(lambda _, s: network.judge_tcp(s.attempts))),
    Check("tls", "TLS", _of_server(lambda a, s: certificate.judge_tls(s.tls, is_https=_is_https(a)))),
    Check("models", "Models", _of_server(lambda a, s: target.judge_models(s.listing, a))),
    Check(
        "api_key", "API key", _of_server(lambda a, s: target.judge_key(s.listing, s.first, has_key=a.has_key))
    ),
    Check("first_token", "First token", _of_server(lambda _, s: streams.judge_first_token(s.first))),
    Check("other_models", "Other models", _of_server(lambda _, s: streams.judge_others(s.others))),
    Check("stream", "Stream", _of_server(lambda _, s: streams.judge_streaming(s.stream, s.first))),
    Check("usage", "Usage", _of_server(lambda _, s: streams.judge_usage(s.stream))),
    Check("end", "End of stream", _of_server(lambda a, s: streams.judge_end(s.stream, a.endpoint))),
    Check("keep_alive", "Keep-alive", _of_server(lambda _, s: streams.judge_keep_alive(s.stream))),
    Check("server_clock", "Server's clock", _of_server(lambda _, s: clocks.judge_server_clock(s.clock))),
)


def judged(seen: Seen) -> Iterator[Result]:
    """Every check of what was seen."""
    own = (*HOST_CHECKS, CALIBRATION) if seen.asked.calibrate else HOST_CHECKS
    for check in (*own, *(SERVER_CHECKS if seen.server is not None else ())):
        yield Result(check, check.judge(seen))


def examine(asked: Examination, time_left: TimeLeft | None = None) -> list[Result]:
    """Look at this machine and at the target, if there is one, and judge what was seen.

    Takes under 30 s, with a calibration under 50.

    Args:
        time_left: of all looks; default: :data:`WHOLE_S` from now on, and that of a calibration.

    Raises:
        TargetError: a certificate of this machine's cannot be used.
    """
    stamping = hold_stamping()
    if time_left is None:
        time_left = TimeLeft(WHOLE_S + (calibration.WHOLE_S if asked.calibrate else 0.0))
    try:
        access = look_around(dict(os.environ), time_left)
        host = look_at_host()
        calibrated = calibrate(asked.users, time_left) if asked.calibrate else None
        server = None if asked.target is None else look_at_server(asked, asked.target, time_left)
    finally:
        if stamping is not None:
            stamping.close()
    return list(judged(Seen(asked, host, access, server, calibrated)))
