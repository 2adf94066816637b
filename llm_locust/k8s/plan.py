"""Requested overlay: the arguments of ``llm-locust k8s render`` and ``run``, and the plan made of them."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from llm_locust.core.texts import argument, parse_time, positive
from llm_locust.options.table import GRAMMAR, OPTION, OPTIONS
from llm_locust.scenario.document import Scenario, load_scenario
from llm_locust.store.upload import check_address
from llm_locust.wire.foreign_text import is_key_name, public_url

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

#: Metadata servers that give credentials to pods: addresses and ports.
CLOUD_IDENTITIES: Mapping[str, tuple[tuple[str, int], ...]] = {
    # The instance's, and the agent of EKS Pod Identity.
    "aws": (("169.254.169.254/32", 80), ("169.254.170.23/32", 80)),
    "azure": (("169.254.169.254/32", 80),),
    # The instance's, and those of GKE's workload identity.
    "gcp": (("169.254.169.254/32", 80), ("169.254.169.254/32", 988), ("169.254.169.252/32", 988)),
}

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
        return OPTION[name].value(argparse.Namespace(**self.scenario.options))

    @property
    def kind(self) -> str:
        """Kind of master and workers in the underlying overlay."""
        return OVERLAYS[self.overlay]

    def named(self, base: str) -> str:
        """Name of an object of the base, or of an overlay, in the result."""
        return base if self.name is None else f"{self.name}-{base}"


# --- Arguments of ``llm-locust k8s render`` and ``run``, and the plan made of them


T = TypeVar("T")

Group = argparse._ArgumentGroup


def add_load(group: Group, overlays: Sequence[str]) -> None:
    """Add what is sent, and to whom."""
    group.add_argument(
        "--scenario", type=Path, required=True, metavar="FILE", help="documentation: scenario.md"
    )
    group.add_argument(
        *("--workers", "-w"), type=positive, required=True, metavar="N", help="worker pods, of one CPU each"
    )
    group.add_argument("--overlay", choices=overlays, default="headless", help="(%(default)s)")
    group.add_argument(
        "--target", metavar="URL", help="server under test (default: the scenario's host; demo: its own)"
    )
    _add_list(group, "--target-cidr", "CIDR", "addresses of servers outside of the cluster; repeatable")
    group.add_argument("--locustfile", "-f", type=Path, metavar="FILE", help="users of your own")
    _add_list(group, "--file", "FILE[=PATH]", "a further file, beside the locustfile or at PATH; repeatable")


def add_place(group: Group) -> None:
    """Add where it runs, and what it may reach."""
    group.add_argument(
        "--name",
        metavar="NAME",
        type=argument(run_name),
        help="of the run: several runs fit into a namespace",
    )
    group.add_argument(
        *("--namespace", "-n"),
        metavar="NAME",
        type=argument(namespace_name),
        help="an existing one (default: llm-locust, which is created)",
    )
    group.add_argument(
        "--image",
        metavar="IMAGE",
        type=argument(image_name),
        help=f"name with tag or digest (default: llm-locust:{version('llm-locust')})",
    )
    _add_list(
        group, "--label", "KEY=VALUE", "label of every object and pod, such as Kueue's queue; repeatable"
    )
    group.add_argument("--api-key-secret", metavar="SECRET/KEY", help="Secret with the target's API key")
    group.add_argument(
        "--pod-discovery",
        action="store_true",
        help="let the master list pods, for --metrics-url k8s:app=vllm:8000",
    )
    group.add_argument(
        "--monitoring",
        action="store_true",
        help="PodMonitor, alerts and Grafana's dashboard, for the Prometheus operator",
    )
    group.add_argument(
        "--upload", metavar="TO", help="destination of the run: s3://bucket/prefix, gs://bucket"
    )
    group.add_argument(
        "--upload-secret", metavar="SECRET", help="credentials for it, as environment variables"
    )
    group.add_argument(
        "--cloud-identity",
        choices=sorted(CLOUD_IDENTITIES),
        help="let the master ask this cloud's metadata server for credentials",
    )
    group.add_argument(
        "--no-network-policies",
        action="store_true",
        help="leave out the network policies, for a cluster's own",
    )


def add_pods(group: Group) -> None:
    """Add what the pods have."""
    group.add_argument(
        "--cpu", metavar="N", type=argument(whole_cpus), help="CPUs of a worker, whole (default 1)"
    )
    group.add_argument(
        "--memory", metavar="AMOUNT", type=argument(memory), help="memory of a worker (default 1Gi)"
    )
    group.add_argument(
        "--deadline",
        metavar="TIME",
        type=argument(whole_seconds),
        help="Kubernetes ends the run after this time (default: a day, or the run's time and three hours)",
    )
    group.add_argument("--service-account", metavar="NAME", type=argument(object_name), help="of the pods")
    _add_list(group, "--env", "NAME=VALUE", "variable of master and workers, no secret; repeatable")
    _add_list(group, "--env-from", "secret/NAME", "variables from a Secret, or configmap/NAME; repeatable")
    _add_list(
        group, "--volume", "CLAIM[:/PATH]", "claim for the results, or with a path for data; repeatable"
    )
    _add_list(group, "--image-pull-secret", "NAME", "for the image's registry; repeatable")
    _add_list(group, "--node-selector", "KEY=VALUE", "label of the nodes; repeatable")
    _add_list(group, "--toleration", "KEY[=VALUE][:EFFECT]", "taint that pods tolerate; repeatable")


def plan_of(args: argparse.Namespace) -> OverlayPlan:
    """Check the arguments, read the scenario (raises ValueError or OSError).

    The scenario's folder, and the locustfile's, become part of Python's search path, as in a run: the
    scenario may name functions there.
    """
    folders = {path.parent for path in (args.scenario, args.locustfile) if path is not None}
    sys.path[:0] = [str(folder.resolve()) for folder in sorted(folders)]
    scenario = load_scenario(args.scenario, GRAMMAR)
    if args.upload is None and (said := scenario.options.get("upload")) is not None:
        _one("upload", str(said), destination)
    if args.overlay in WITH_TARGET and args.target is not None:
        raise RenderError(f"--target with --overlay {args.overlay}, which has a target of its own")
    return OverlayPlan(
        scenario=scenario,
        workers=args.workers,
        overlay=args.overlay,
        name=args.name,
        namespace=args.namespace,
        image=args.image,
        target=args.target,
        cidrs=tuple(args.target_cidr),
        locustfile=args.locustfile,
        files=_files(args.file),
        api_key_secret=_one("--api-key-secret", args.api_key_secret, key_of_secret),
        pod_discovery=args.pod_discovery,
        monitoring=args.monitoring,
        upload=_one("--upload", args.upload, destination),
        upload_secret=_one("--upload-secret", args.upload_secret, object_name),
        cloud_identity=args.cloud_identity,
        network_policies=not args.no_network_policies,
        deadline_s=args.deadline,
        labels=_pairs("--label", args.label, label),
        pods=_pods(args),
    )


def _pods(args: argparse.Namespace) -> PodPlan:
    volumes = _each("--volume", args.volume, volume)
    if path := twice(path for _, path in volumes):
        raise RenderError(f"--volume: two claims for {path}")
    return PodPlan(
        env=_pairs("--env", args.env, variable),
        env_from=tuple(_each("--env-from", args.env_from, variables_of)),
        service_account=args.service_account,
        pull_secrets=tuple(_each("--image-pull-secret", args.image_pull_secret, object_name)),
        node_selector=_pairs("--node-selector", args.node_selector, label),
        tolerations=tuple(_each("--toleration", args.toleration, toleration)),
        volumes={path: claim for claim, path in volumes},
        cpu=args.cpu,
        memory=args.memory,
    )


def _files(texts: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in texts:
        source, _, place = text.partition("=")
        path, name = Path(source), place or Path(source).name
        if not path.is_file():
            raise RenderError(f"--file {source!r}: there is no such file")
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise RenderError(
                f"--file: {name!r} must be a path beside the locustfile, such as data/{path.name}"
            )
        if name in found or name in ("scenario.yaml", "locustfile.py"):
            raise RenderError(f"--file: {name!r} is taken")
        found[name] = path
    return found


def _one(flag: str, text: str | None, check: Callable[[str], str]) -> str | None:
    return None if text is None else _each(flag, [text], check)[0]


def _each(flag: str, texts: Sequence[str], check: Callable[[str], T]) -> list[T]:
    found = []
    for text in texts:
        try:
            found.append(check(text))
        except ValueError as e:
            raise RenderError(f"{flag}: {e}") from e
    return found


def _pairs(flag: str, texts: Sequence[str], check: Callable[[str], tuple[str, str]]) -> Mapping[str, str]:
    pairs = _each(flag, texts, check)
    if name := twice(name for name, _ in pairs):
        raise RenderError(f"{flag}: {name} is given twice")
    return dict(pairs)


def _add_list(group: Group, flag: str, metavar: str, text: str) -> None:
    group.add_argument(flag, action="append", default=[], metavar=metavar, help=text)


# --- Syntax of what a manifest names: objects, labels, images, amounts, variables


_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(_LABEL)
_DOTTED = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?/)?"  # the registry
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_LABEL_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"(?:{_DOTTED.pattern}/)?{_LABEL_NAME}")
_LABEL_VALUE = re.compile(rf"(?:{_LABEL_NAME})?")
_MEMORY = re.compile(r"[1-9][0-9]*(?:[KMGT]i|[kMGT])")
_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_HEADER = OPTION["header"].variable
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Longest name of a run: the names of its objects and pods begin with it, and have 63 characters at most.
LONGEST_NAME = 30


def run_name(text: str) -> str:
    """Name of a run, which the names of its Services begin with.

    Raises:
        ValueError: not one, as for the other functions here.
    """
    if not _NAME.fullmatch(text) or not text[0].isalpha() or len(text) > LONGEST_NAME:
        raise ValueError(
            f"{text!r} is not a name: a small letter, then small letters, digits and dashes, "
            f"{LONGEST_NAME} at most"
        )
    return text


def object_name(text: str) -> str:
    """Name of a Secret, a claim, a service account."""
    if not _DOTTED.fullmatch(text) or len(text) > 253:
        raise ValueError(f"{text!r} is not the name of an object: small letters, digits, dashes and dots")
    return text


def namespace_name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 63:
        raise ValueError(f"{text!r} is not a namespace: small letters, digits and dashes, 63 at most")
    return text


def image_name(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"{text!r} is not an image: write NAME:TAG or NAME@sha256:DIGEST")
    return text


def label(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, given, value = text.partition("=")
    if not given or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
        raise ValueError(f"{text!r} is not a label: write KEY=VALUE, such as team=inference")
    return key, value


def toleration(text: str) -> dict[str, str]:
    """``KEY[=VALUE][:EFFECT]``."""
    term, _, effect = text.partition(":")
    key, given, value = term.partition("=")
    if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value) or effect not in ("", *_EFFECTS):
        raise ValueError(
            f"{text!r} is not a toleration: write KEY[=VALUE][:EFFECT], such as dedicated=load:NoSchedule"
        )
    found = {"key": key, "operator": "Equal" if given else "Exists"}
    return found | ({"value": value} if given else {}) | ({"effect": effect} if effect else {})


def whole_cpus(text: str) -> str:
    """A whole number: the kubelet gives a core of its own to nothing else."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of CPUs, which a worker needs: write 1 or more")
    return str(int(text))


def memory(text: str) -> str:
    if not _MEMORY.fullmatch(text):
        raise ValueError(f"{text!r} is not an amount of memory: write one such as 2Gi")
    return text


def variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` of an environment, which is not a secret."""
    name, given, value = text.partition("=")
    if not given or not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable: write NAME=VALUE")
    if is_key_name(name) or name.endswith("_HEADERS") or (name == _HEADER and _names_a_key(value)):
        raise ValueError(
            f"{name} would be in the manifests, which others can read: put it into a Secret and name that by "
            "--env-from secret/NAME"
        )
    return name, value


def _names_a_key(headers: str) -> bool:
    """Whether ``NAME=VALUE``, or one in a list of such, is a header with a key."""
    texts = headers.strip("[] ").split(",") if headers.startswith("[") else [headers]
    return any(is_key_name(text.partition("=")[0].strip(" '\"")) for text in texts)


def variables_of(text: str) -> dict[str, dict[str, str]]:
    """``secret/NAME`` or ``configmap/NAME``: the source of an environment."""
    kind, _, name = text.partition("/")
    kinds = {"secret": "secretRef", "configmap": "configMapRef"}
    if kind not in kinds or not _DOTTED.fullmatch(name):
        raise ValueError(f"{text!r} is not a source of variables: write secret/NAME or configmap/NAME")
    return {kinds[kind]: {"name": name}}


def whole_seconds(text: str) -> int:
    seconds = parse_time(text)
    if seconds < 1 or not seconds.is_integer():
        raise ValueError(f"{text!r}: write whole seconds from 1s, such as 90s or 1h30m")
    return int(seconds)


def volume(text: str) -> tuple[str, str]:
    """``CLAIM[:/PATH]``; without a path the claim is for the results, ``/runs``."""
    claim, given, path = text.partition(":")
    parts = path.split("/")
    is_path = path.startswith("/") and path != "/" and ".." not in parts and path.isprintable()
    if not _DOTTED.fullmatch(claim) or (given and not is_path):
        raise ValueError(f"{text!r} is not a volume: write CLAIM for the results, or CLAIM:/PATH")
    path = path.rstrip("/") or "/runs"
    if path in ("/load", "/tmp") or path.startswith(("/load/", "/tmp/")):
        raise ValueError(f"{text!r}: {path} is taken; choose another path, such as /data")
    return claim, path


def key_of_secret(text: str) -> str:
    """``SECRET/KEY``: a key of a Secret of the run's namespace."""
    name, _, key = text.partition("/")
    if not _DOTTED.fullmatch(name) or not _SECRET_KEY.fullmatch(key):
        raise ValueError(f"{text!r} is not SECRET/KEY, the name of a Secret and one of its keys")
    return text


def destination(text: str) -> str:
    """Where a pod can copy its run to: an object store, or a folder of a volume."""
    if not text.startswith(("s3://", "gs://", "file:///", "/")):
        raise ValueError(f"{public_url(text)!r} is no destination: write s3://bucket/prefix or gs://bucket")
    check_address(text)
    return text


def twice(texts: Iterable[str]) -> str | None:
    """The first text that is there a second time."""
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None
