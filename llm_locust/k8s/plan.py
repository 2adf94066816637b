"""Requested overlay: its scenario's files, its target, and what is put on one of the package's."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from llm_locust.options.table import OPTION, OPTIONS
from llm_locust.scenario.document import Scenario

# --- Files of a scenario for a ConfigMap


#: Most bytes in a ConfigMap, less the space for keys and metadata.
MOST_BYTES = 1_000_000

#: Keys whose value is a path, and those whose value has a path after a prefix.
_PATHS = {"file", *(row.name for row in OPTIONS if row.kind == "path" and row.scope is not None)}
_PREFIXES = {"input_tokens": "file:", "output_tokens": "file:", "arrival": "trace:"}


class RenderError(ValueError):
    """Manifests that cannot be made; the text says in one line why, and what to do."""


def files_of(document: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Files that a scenario's document names, by their paths relative to its folder: data, and the modules
    of validators' functions.

    A path that starts with ``/`` is in the image, and is ignored, as is a module that is not in the folder.

    Raises:
        RenderError: a file cannot be included.
    """
    found: dict[str, Path] = {}
    for key, text in _named(document):
        if key == "function":
            found |= _module_files(text, folder)
        elif not text.startswith("/"):
            found[text] = _included(key, text, folder)
    check_size(found)
    return found


def check_size(files: Mapping[str, Path]) -> None:
    """Check that a ConfigMap holds the files (raises RenderError)."""
    size = sum(path.stat().st_size for path in files.values())
    if size > MOST_BYTES:
        raise RenderError(
            f"the files of the load have {size} bytes together, a ConfigMap holds {MOST_BYTES}: "
            f"put them into the image, or on a volume, and name them by /path: {', '.join(files)}"
        )


def _included(key: str, text: str, folder: Path) -> Path:
    path = folder / text
    if key == "client_cert":
        raise RenderError(f"client_cert {text!r} holds a key: mount it from a Secret and name it by /path")
    if ".." in PurePosixPath(text).parts:
        raise RenderError(
            f"{key} {text!r} lies outside of the scenario's folder: put it there, or into the image"
        )
    if path.is_dir():
        raise RenderError(f"{key} {text!r} is a folder: put it into the image and name it by /path")
    if not path.is_file():
        raise RenderError(f"{key} {text!r}: there is no file {str(path)!r}")
    return path


def _module_files(function: str, folder: Path) -> dict[str, Path]:
    """A module of the scenario's folder, and of packages on the way to it what makes them such."""
    module = PurePosixPath(*function.partition(":")[0].split("."))
    parents = [parent / "__init__.py" for parent in module.parents if parent.name]
    wanted = [module.with_suffix(".py"), module / "__init__.py", *parents]
    return {str(name): folder / name for name in wanted if (folder / name).is_file()}


def _named(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """What names files: paths under the keys of options, and ``function`` with its module."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named(item, str(name).replace("-", "_"))
    elif isinstance(value, list):
        for item in value:
            yield from _named(item, key)
    elif isinstance(value, str):
        prefix = _PREFIXES.get(key)
        if key in _PATHS or (key == "function" and ":" in value):
            yield key, value
        elif prefix is not None and value.startswith(prefix):
            yield key, value.removeprefix(prefix).strip()


# --- Requested overlay: what is put on one of the package's overlays


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

    def option(self, name: str) -> Any:
        """What the scenario says of an option, or the option's default."""
        return OPTION[name].value(Namespace(**self.scenario.options))

    @property
    def kind(self) -> str:
        """Kind of master and workers in the underlying overlay."""
        return OVERLAYS[self.overlay]

    def named(self, base: str) -> str:
        """Name of an object of the base, or of an overlay, in the result."""
        return base if self.name is None else f"{self.name}-{base}"
