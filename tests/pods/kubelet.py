"""What a kubelet does for a pod, and podman does not: probes, readiness, restarts.

Probes are sent from the machine to the pod's address, as a kubelet sends them. While a pod is not ready,
connections to the ports of its Services are refused, as kube-proxy refuses those of a Service without an
endpoint.
"""

import http.client
import json
import os
import signal
import subprocess
import time
from contextlib import suppress
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


class RunningPod:
    """A pod of podman's that has been made, and that is not started yet.

    Attributes:
        plan: what it is.
        restarts: how often containers were started again, by their names.
        became_ready_s: monotonic time at which it was first ready.
        ended: its main container has ended for good.
    """

    def __init__(self, plan: Pod, name: str) -> None:
        self.plan = plan
        self.restarts = dict.fromkeys((each.name for each in plan.containers), 0)
        self.became_ready_s: float | None = None
        self.ended = False
        self._name = name
        self._pids: dict[str, int] = {}
        self._probes = [
            _Probing(each, probe, kind)
            for each in plan.containers
            for kind, probe in (("ready", each.ready), ("alive", each.alive))
            if probe is not None
        ]
        self._start_at_s: dict[str, float] = {}
        self._ready = False
        self._address, self._gateway, self._infra = self._make_network()
        self._refuse()

    def container(self, name: str | None = None) -> str:
        """Podman's name of a container, or of the main one."""
        return f"{self._name}-{name or self.plan.main.name}"

    def start(self) -> None:
        """Start the containers."""
        podman("start", *(self.container(each.name) for each in self.plan.containers))
        self._pids = {each.name: self._pid(each.name) for each in self.plan.containers}

    def kill(self, name: str | None = None) -> int:
        """Kill a container as the kernel does; gives the time (ns of the system's clock)."""
        at_ns = time.time_ns()
        os.kill(self._pids[name or self.plan.main.name], signal.SIGKILL)
        return at_ns

    def cpu_s(self) -> float:
        """CPU time of the containers' first processes since their start."""
        times = [self._stat(each) for each in self.plan.containers]
        return sum(int(each[11]) + int(each[12]) for each in times if each) / os.sysconf("SC_CLK_TCK")

    def exit_code(self) -> int:
        """Wait for the end of the main container."""
        return int(podman("wait", self.container()))

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
            if probing.is_due(now_s) and self._runs(probing.container):
                self._judge(probing, probing.send(self._address))

    def _judge(self, probing: "_Probing", good: bool) -> None:
        if probing.kind == "ready":
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
        self.became_ready_s = self.became_ready_s or time.monotonic()
        if self.plan.hidden:
            self._nft("delete table inet readiness")

    def _start_again(self, container: Container, now_s: float) -> None:
        name = container.name
        wait_s = _BACK_OFF_S[min(self.restarts[name], len(_BACK_OFF_S) - 1)]
        if now_s < self._start_at_s.setdefault(name, now_s + wait_s):
            return
        if container.ready is not None:
            self._set_ready(False)
        podman("wait", self.container(name))  # podman knows of its end
        podman("start", self.container(name))
        self._pids[name] = self._pid(name)
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

    def _pid(self, name: str) -> int:
        return int(podman("inspect", "--format", "{{.State.Pid}}", self.container(name)))

    def _make_network(self) -> tuple[str, str, int]:
        """The pod's address, the machine's on its network, and a process in its network namespace."""
        infra = podman("pod", "inspect", "--format", "{{.InfraContainerID}}", self._name).strip()
        podman("start", infra)
        (found,) = json.loads(podman("inspect", infra))
        (network,) = found["NetworkSettings"]["Networks"].values()
        return network["IPAddress"], network["Gateway"], found["State"]["Pid"]

    def _refuse(self) -> None:
        if self.plan.hidden:
            self._nft(_REFUSING % (self._gateway, ", ".join(map(str, sorted(self.plan.hidden)))))

    def _nft(self, rules: str) -> None:
        command = ["nsenter", "--target", str(self._infra), "--net", "nft", "--file", "-"]
        done = subprocess.run(command, input=f"{rules}\n", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


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
