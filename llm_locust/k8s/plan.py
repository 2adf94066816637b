"""Requested overlay: what is put on one of the package's overlays."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_locust.options.option import Values
from llm_locust.options.table import OPTIONS
from llm_locust.scenario import Scenario

#: Overlays that a scenario can be put on, with the kind of their master and workers.
OVERLAYS: Mapping[str, str] = {
    "headless": "Job",
    "jobset": "Job",
    "nightly": "Job",
    "demo": "Job",
    "soak": "Deployment",
}

#: Overlays with a simulated deployment of their own.
WITH_TARGET = ("demo",)

#: Namespace that the base creates.
NAMESPACE = "llm-locust"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """Requested changes of master and workers. Empty and ``None`` keep what the overlay has.

    Attributes:
        env: variables of both.
        env_from: sources of variables of both, as in a pod's ``envFrom``.
        volumes: claims by their paths; the one of ``/runs`` is the master's, all others are read by both.
        cpu: CPUs of a worker, whole.
        memory: memory of a worker.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    env_from: tuple[Mapping[str, Any], ...] = ()
    service_account: str | None = None
    pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    volumes: Mapping[str, str] = field(default_factory=dict)
    cpu: str | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPlan:
    """Requested overlay. ``None`` keeps the value of the underlying overlay.

    Attributes:
        scenario: read and checked; paths in it are relative to its file's folder.
        overlay: one of :data:`OVERLAYS`.
        name: of the run: names of all objects begin with it, selectors have it as a label.
        namespace: an existing one.
        image: name, with a tag or digest.
        target: URL of the server; default: the scenario's ``host``.
        cidrs: addresses of servers outside of the cluster.
        locustfile: users of one's own.
        files: further files, by their paths beside the locustfile.
        api_key_secret: ``SECRET/KEY`` with the API key.
        pod_discovery: allow the master to list pods, for ``k8s:`` among its metrics URLs.
        monitoring: have the run scraped by the Prometheus operator.
        upload: destination of the run; ``upload_secret`` has its credentials, as environment variables.
        cloud_identity: the cloud whose metadata server the master may ask for credentials.
        network_policies: keep the network policies.
        deadline_s: when Kubernetes ends the Jobs.
        labels: of every object and pod.
        hold_s: how long the master stays for its files to be fetched.
        out: name of the run directory.
    """

    scenario: Scenario
    workers: int
    overlay: str = "headless"
    name: str | None = None
    namespace: str | None = None
    image: str | None = None
    target: str | None = None
    cidrs: tuple[str, ...] = ()
    locustfile: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    api_key_secret: str | None = None
    pod_discovery: bool = False
    monitoring: bool = False
    upload: str | None = None
    upload_secret: str | None = None
    cloud_identity: str | None = None
    network_policies: bool = True
    deadline_s: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    hold_s: int | None = None
    out: str | None = None
    pods: PodPlan = field(default_factory=PodPlan)

    @property
    def options(self) -> Values:
        """The scenario's options, with the defaults of those that it does not give."""
        return Values(OPTIONS, Namespace(**self.scenario.options))

    @property
    def kind(self) -> str:
        """Kind of master and workers in the underlying overlay."""
        return OVERLAYS[self.overlay]

    def named(self, base: str) -> str:
        """Name of an object of the base, or of an overlay, in the result."""
        return base if self.name is None else f"{self.name}-{base}"
