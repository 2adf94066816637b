"""Checks of this machine: clocks and stamps, CPU, open files, ports and memory; and its way to Kubernetes."""

import os
import ssl
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_locust.client import probing
from llm_locust.client.http.reader import why_python
from llm_locust.client.probing import StampTrial
from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.deployment.discovery import (
    ApiServer,
    DiscoveryError,
    FetchError,
    ScrapeTarget,
    authority,
    fetch,
)
from llm_locust.doctor.finding import Finding, OutOfTimeError, TimeLeft, fail, ok, skipped, warn, why
from llm_locust.figures.client_rules import LAG_FLOOR_MS, STEAL_CAUSE, THROTTLED_CAUSE, Threshold
from llm_locust.figures.text import clean, count, number, plural, short
from llm_locust.host import (
    MARGIN,
    ClockSource,
    CpuTaken,
    FileLimits,
    Ports,
    clock_source,
    cpu_limit_cores,
    descriptors_for,
    ephemeral_ports,
    file_limits,
    memory_available_bytes,
)
from llm_locust.wire.foreign_text import clean_name, public_url

# --- Timestamps and clocks: of the kernel, of this machine


#: Clock sources that are read from a device or counted by interrupts.
SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"})

#: A reading that takes longer is a system call.
SLOW_READING_NS = 500.0


def judge_stamps(trial: StampTrial | None) -> Finding:
    """Receive timestamps of the kernel, tried on loopback."""
    change = (
        "use Linux without a sandboxed network (gVisor): else a busy client is late in every latency; "
        "keep its CPU below 70 %"
    )
    if trial is None:
        return warn("not tried: loopback cannot be used", change)
    figure = f"{trial.stamped} of {trial.received} reads on loopback have one"
    if trial.stamped < trial.received:
        return warn(figure, change)
    if trial.wrong:
        return warn(f"{figure}, {trial.wrong} of them are wrong by over a second, or in the future", change)
    lag = "" if trial.lag_ns is None else f", {number(trial.lag_ns / 1e3)} µs before the read"
    return ok(figure + lag)


def judge_reader(why_python: str | None) -> Finding:
    """What reads the sockets.

    Args:
        why_python: why it is not the thread in C; None if it is.
    """
    if why_python is None:
        return ok("a thread in C: no time depends on how busy Python is")
    return warn(f"Python: {why_python}", "build it, or keep the CPU of each worker below 50 %")


def judge_clock_source(source: ClockSource) -> Finding:
    """Clock source, and the cost of a reading: each read of a stream reads the clock."""
    figure = f"{source.name or 'unknown'}, {number(source.reading_ns)} ns a reading"
    if source.name in SLOW_SOURCES or source.reading_ns > SLOW_READING_NS:
        return warn(figure, "use tsc or kvm-clock: see `cat /sys/devices/system/clocksource/*/available_*`")
    return ok(figure)


# --- CPU: limit of the container, throttling, steal, and pauses of the event loop


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
        THROTTLED_CAUSE,
        f"{number(cpu.throttled_percent)} % of the CPU limit's periods in {number(cpu.measured_s)} s",
        "raise the container's CPU limit, or use more workers with less load each",
    )


def judge_steal(cpu: Cpu) -> Finding:
    """Share of the CPU time wanted that the hypervisor gave to other machines."""
    return _judge_taken(
        cpu.steal_percent,
        STEAL_CAUSE,
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
    if lag.p99_ms > LAG_FLOOR_MS:
        return warn(
            figure, "stop other programs on this machine, or use a larger one: requests are sent late"
        )
    return ok(figure)


# --- Open files, local ports and memory against the users of one process


#: Hard limit below which few loads fit: the soft limit of most systems.
FEW_FILES = 1_024

_MIB = 1 << 20

#: Resident memory of a process, and of each of its users, in MiB: 148 were measured with
#: 10 users, 205 with 1,000.
PROCESS_MIB, USER_MIB = 150, 0.1


def judge_files(limits: FileLimits, users: int) -> Finding:
    """Hard limit of open files: a run raises the soft one by itself."""
    needed = descriptors_for(users, targets=1)
    if limits.hard is None:
        return ok("unlimited")
    figure = f"{count(limits.hard)} at most, {count(needed)} needed for {plural(users, 'user')}"
    if limits.hard < needed:
        return fail(
            figure,
            f"raise the limit with `ulimit -n {needed}` (a container: in its runtime), or use more processes",
        )
    if limits.hard < FEW_FILES:
        return warn(
            figure,
            f"raise the limit with `ulimit -n 65536` (a container: in its runtime): over "
            f"{count(limits.hard - MARGIN)} requests at once fail, also in an open loop",
        )
    return ok(figure)


def judge_ports(ports: Ports | None, users: int) -> Finding:
    """Ephemeral ports: each connection to the same address and port holds one of its own."""
    if ports is None:
        return skipped("this system does not report its local ports")
    waiting = "" if ports.time_wait is None else f", {count(ports.time_wait)} in TIME_WAIT"
    figure = f"{count(ports.count)} ({ports.first}-{ports.last}){waiting}"
    change = 'widen the range: `sysctl -w net.ipv4.ip_local_port_range="1024 65535"`, or use more machines'
    if ports.count < users:
        return fail(f"{figure}, {count(users)} needed", change)
    if ports.count < 2 * users:
        return warn(f"{figure}, {count(users)} needed", change)
    if ports.time_wait is not None and 2 * ports.time_wait > ports.count:
        return warn(
            figure, "wait a minute after other load, or widen the range: closed connections hold ports"
        )
    return ok(figure)


def judge_memory(available_bytes: int | None, users: int) -> Finding:
    """Memory left on the machine and in the container, against what one process with these users takes."""
    if available_bytes is None:
        return skipped("this system does not report its memory")
    needed_mib, available_mib = PROCESS_MIB + USER_MIB * users, available_bytes / _MIB
    figure = (
        f"{count(available_mib)} MiB left, about {count(needed_mib)} MiB needed for {plural(users, 'user')}"
    )
    change = "raise the container's memory limit, or use a machine with more memory"
    if available_mib < needed_mib:
        return fail(figure, change)
    return warn(figure, change) if available_mib < 2 * needed_mib else ok(figure)


# --- A look at this machine


#: How long the event loop is watched, and how long one core is kept busy then.
LOOP_S, BUSY_S = 1.0, 0.5

_STAMPED_READS = 32


@dataclass(frozen=True, slots=True)
class HostSeen:
    """This machine."""

    files: FileLimits
    ports: Ports | None
    cpu: Cpu
    loop: LoopLag
    memory_bytes: int | None
    stamps: StampTrial | None
    why_python_reads: str | None
    clock: ClockSource


def look_at_host() -> HostSeen:
    """Look at this machine; takes about 2 s."""
    taken = CpuTaken()
    before, began_s = taken.read(), time.monotonic()
    lags_ms = sorted(ns / 1e6 for ns in probing.loop_lags_ns(LOOP_S))
    _keep_busy(BUSY_S)
    after = taken.read()
    cpu = Cpu(
        cores=_cores(),
        limit_cores=cpu_limit_cores(),
        steal_percent=after.steal_percent(before),
        throttled_percent=after.throttled_percent(before),
        measured_s=time.monotonic() - began_s,
    )
    loop = LoopLag(lags_ms[int(0.99 * (len(lags_ms) - 1))], lags_ms[-1], LOOP_S)
    return HostSeen(
        files=file_limits(),
        ports=ephemeral_ports(),
        cpu=cpu,
        loop=loop,
        memory_bytes=memory_available_bytes(),
        stamps=_stamps(),
        why_python_reads=why_python(),
        clock=clock_source(),
    )


def _keep_busy(seconds: float) -> None:
    """Use one core: without work nothing is throttled or stolen."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


def _cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stamps() -> StampTrial | None:
    try:
        return probing.try_stamps(_STAMPED_READS)
    except OSError:
        return None


# --- Access to Kubernetes: the service account of this pod, else the cluster of a kubeconfig


#: Answers that refuse access show that the server is there.
_REFUSED = ("it answered 401", "it answered 403")

_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Access:
    """Result of one request to an API server; ``error`` is why it failed."""

    server: str
    in_cluster: bool
    seconds: float | None = None
    error: str | None = None


def look_at_kubernetes(environ: Mapping[str, str], timeout_s: float) -> Access | None:
    """Ask the API server of this pod for one of its pods, or that of a kubeconfig for its version.

    None without either. No credentials of a kubeconfig are sent: an answer that refuses access is an answer.
    """
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return _in_cluster(environ, timeout_s)
    path = _kubeconfig(environ)
    return None if path is None else _by_kubeconfig(path, timeout_s)


def judge_kubernetes(access: Access | None) -> Finding:
    """Whether the cluster can be reached, and from a pod whether pods may be listed."""
    if access is None:
        return skipped("no pod's service account and no kubeconfig")
    server = short(clean(access.server), 80)
    if access.error is not None:
        change = (
            "needed only for `k8s:` addresses: apply the component pod-discovery"
            if access.in_cluster
            else "needed only for `llm-locust k8s` and kubectl: check the kubeconfig's current context"
        )
        return warn(f"{server}: {short(clean(access.error), 160)}", change)
    how = "lists pods" if access.in_cluster else "answers"
    return ok(f"{server} {how}, {number((access.seconds or 0.0) * 1e3)} ms")


def _in_cluster(environ: Mapping[str, str], timeout_s: float) -> Access:
    name, began_s = environ["KUBERNETES_SERVICE_HOST"], time.monotonic()
    try:
        server = ApiServer.of_this_pod(environ)
        name = authority(server.host, server.port)
        server.get(f"/api/v1/namespaces/{server.namespace()}/pods?limit=1", timeout_s)
    except DiscoveryError as e:
        return Access(name, True, error=str(e))
    return Access(name, True, seconds=time.monotonic() - began_s)


def _kubeconfig(environ: Mapping[str, str]) -> Path | None:
    """The first file of ``KUBECONFIG`` that exists, else ``~/.kube/config``."""
    named = [Path(path) for path in environ.get("KUBECONFIG", "").split(":") if path]
    home = environ.get("HOME")
    paths = named or ([Path(home) / ".kube" / "config"] if home else [])
    return next((path for path in paths if path.is_file()), None)


def _by_kubeconfig(path: Path, timeout_s: float) -> Access:
    name, began_s = str(path), time.monotonic()
    try:
        cluster = _current_cluster(read_small_yaml(path))
        server = str(cluster["server"])
        target, name = _target(server), public_url(server)
        fetch(target, timeout_s, tls=_context(cluster, path.parent) if target.scheme == "https" else None)
    except FetchError as e:
        if str(e) not in _REFUSED:
            return Access(name, False, error=str(e))
    except SmallYamlError as e:
        return Access(name, False, error=str(e))
    except (LookupError, TypeError, ValueError, OSError) as e:
        return Access(name, False, error=f"the current context cannot be used: {e}")
    return Access(name, False, seconds=time.monotonic() - began_s)


def _current_cluster(config: Any) -> dict[str, Any]:
    """The ``cluster`` of the current context (raises LookupError or TypeError)."""
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster: dict[str, Any] = _named(config["clusters"], context["cluster"])["cluster"]
    return cluster


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise LookupError(f"it names {clean_name(str(name))!r}, which the file does not have")


def _target(server: str) -> ScrapeTarget:
    parts = urlsplit(server)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{public_url(server)!r} is not a URL")
    port = parts.port or _PORTS[parts.scheme]
    path = parts.path.rstrip("/") + "/version"
    name = authority(parts.hostname, port)
    return ScrapeTarget(name, parts.scheme, parts.hostname, parts.hostname, port, path)


def _context(cluster: dict[str, Any], folder: Path) -> ssl.SSLContext:
    """TLS as the kubeconfig says: its authority, or none that is verified."""
    data, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    text = b64decode(str(data)).decode("ascii") if data else None
    path = None if text or not file else str(folder / str(file))
    context = ssl.create_default_context(cafile=path, cadata=text)
    if cluster.get("insecure-skip-tls-verify") is True:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


#: Time limit of the look at Kubernetes.
KUBERNETES_S = 3.0


def look_around(environ: dict[str, str], time_left: TimeLeft) -> Access | None:
    """Look at Kubernetes in a thread: it blocks, and its name may not be resolved soon."""
    try:
        limit_s = time_left.at_most(KUBERNETES_S)
        return probing.in_thread(limit_s + 0.5, lambda: look_at_kubernetes(environ, limit_s))
    except (TimeoutError, OutOfTimeError) as e:
        return Access("the API server", False, error=why(e))
