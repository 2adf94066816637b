"""What a kubelet does for a pod, and podman does not: probes, readiness, restarts.

Probes are sent from the machine to the pod's address, as a kubelet sends them. While a pod is not ready,
connections to the ports of its Services are refused, as kube-proxy refuses those of a Service without an
endpoint.
"""

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pods.manifests import Container, Pod, Probe
from pods.podman import podman

#: Time before a container is started again: none at first, then Kubernetes' back-off.
_BACK_OFF_S = (0.0, 10.0, 20.0, 40.0)

_REFUSING = """
table inet readiness {
  chain input {
    type filter hook input priority 0;
    iifname "lo" accept
    ip saddr != %s tcp dport { %s } tcp flags & (syn|ack) == syn reject with tcp reset
  }
}
"""


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A pod's address, the machine's on its network, and a process in its network namespace."""

    address: str
    gateway: str
    pid: int


class RunningPod:
    """A pod of podman's that has been made, and that is not started yet.

    Attributes:
        plan: what it is.
        restarts: how often containers were started again, by their names.
        ended: its main container has ended for good.
    """

    def __init__(self, plan: Pod, name: str, network: PodNetwork) -> None:
        self.plan = plan
        self.name = name
        self.restarts = dict.fromkeys((each.name for each in plan.containers), 0)
        self.ended = False
        self._code: int | None = None
        self._pids: dict[str, int] = {}
        self._probes = [
            _Probing(each, probe, kind)
            for each in plan.containers
            for kind, probe in (("started", each.started), ("ready", each.ready), ("alive", each.alive))
            if probe is not None
        ]
        self._started = {each.name for each in plan.containers if each.started is None}
        self._start_at_s: dict[str, float] = {}
        self._ready = False
        self._network = network
        self._refuse()

    def container(self, name: str | None = None) -> str:
        """Podman's name of a container, or of the main one."""
        return f"{self.name}-{name or self.plan.main.name}"

    def has_started(self, name: str, pid: int) -> None:
        self._pids[name] = pid

    def kill(self, name: str | None = None) -> int:
        """Kill a container as the kernel does; gives the time (ns of the system's clock)."""
        at_ns = time.time_ns()
        os.kill(self._pids[name or self.plan.main.name], signal.SIGKILL)
        return at_ns

    def exit_code(self) -> int:
        """Wait for the end of the main container."""
        if self._code is None:
            self._code = int(podman("wait", self.container()))
        return self._code

    def look(self, now_s: float) -> None:
        """Send the probes that are due, start again what has ended."""
        if self.ended or not self._pids:
            return
        main = self.plan.main
        if not main.restarts and not self._runs(main):
            self.ended = True
            if sidecars := [self.container(each.name) for each in self.plan.containers if each.is_sidecar]:
                podman("stop", "--time", "10", *sidecars)
            return
        for container in self.plan.containers:
            if not self._runs(container):
                self._start_again(container, now_s)
        for probing in self._probes:
            has_started = probing.container.name in self._started
            is_its_turn = has_started != (probing.kind == "started")
            if is_its_turn and probing.is_due(now_s) and self._runs(probing.container):
                self._judge(probing, probing.send(self._network.address))

    def _judge(self, probing: "_Probing", good: bool) -> None:
        if probing.kind == "started" and good:
            self._started.add(probing.container.name)
        elif probing.kind == "ready":
            if good or probing.failed >= probing.probe.failures:
                self._set_ready(good)
        elif probing.failed >= probing.probe.failures:
            probing.failed = 0
            podman("stop", "--time", "30", self.container(probing.container.name))

    def _set_ready(self, ready: bool) -> None:
        if ready == self._ready:
            return
        self._ready = ready
        if not ready:
            self._refuse()
            return
        if self.plan.hidden:
            self._nft("delete table inet readiness")

    def _start_again(self, container: Container, now_s: float) -> None:
        name = container.name
        wait_s = _BACK_OFF_S[min(self.restarts[name], len(_BACK_OFF_S) - 1)]
        if now_s < self._start_at_s.setdefault(name, now_s + wait_s):
            return
        if container.ready is not None:
            self._set_ready(False)
        if container.started is not None:
            self._started.discard(name)
        podman("wait", self.container(name))  # podman knows of its end
        start([self], name)
        self.restarts[name] += 1
        del self._start_at_s[name]

    def _runs(self, container: Container) -> bool:
        stat = self._stat(container)
        return bool(stat) and stat[0] != "Z"

    def _stat(self, container: Container) -> list[str]:
        """Its first process in ``/proc``, from the state on; empty if there is none."""
        with suppress(OSError):
            return Path(f"/proc/{self._pids[container.name]}/stat").read_text().rpartition(")")[2].split()
        return []

    def _refuse(self) -> None:
        if self.plan.hidden:
            self._nft(_REFUSING % (self._network.gateway, ", ".join(map(str, sorted(self.plan.hidden)))))

    def _nft(self, rules: str) -> None:
        command = ["nsenter", "--target", str(self._network.pid), "--net", "nft", "--file", "-"]
        done = subprocess.run(command, input=f"{rules}\n", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def start(pods: Iterable[RunningPod], name: str | None = None) -> None:
    """Start all containers of pods, or the one of this name."""
    chosen = [(pod, each.name) for pod in pods for each in pod.plan.containers if name in (None, each.name)]
    names = [pod.container(each) for pod, each in chosen]
    podman("start", *names)
    pids = podman("inspect", "--format", "{{.State.Pid}}", *names).split()
    for (pod, each), pid in zip(chosen, pids, strict=True):
        pod.has_started(each, int(pid))


class _Probing:
    """A probe of a container, and how often it failed in a row."""

    def __init__(self, container: Container, probe: Probe, kind: str) -> None:
        self.container = container
        self.probe = probe
        self.kind = kind
        self.failed = 0
        self._due_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def send(self, address: str) -> bool:
        self._due_s = time.monotonic() + self.probe.period_s
        good = _answers(address, self.probe)
        self.failed = 0 if good else self.failed + 1
        return good


def _answers(address: str, probe: Probe) -> bool:
    connection = http.client.HTTPConnection(address, probe.port, timeout=probe.timeout_s)
    try:
        connection.connect()
        if probe.path is not None:
            connection.request("GET", probe.path)
            return 200 <= connection.getresponse().status < 400
        return True
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
