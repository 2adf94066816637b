"""Kustomize overlay for one scenario, on top of one in the package, and the destinations that it opens."""

import ipaddress
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from llm_locust.core.texts import parse_time
from llm_locust.deployment.discovery import Endpoint
from llm_locust.deployment.targets import ArmError, chosen_arms
from llm_locust.k8s.plan import (
    CLOUD_IDENTITIES,
    NAMESPACE,
    WITH_TARGET,
    OverlayPlan,
    RenderError,
    check_size,
    files_of,
)
from llm_locust.metrics.server_roles import split_role
from llm_locust.options.table import OPTION
from llm_locust.scenario.document import Scenario
from llm_locust.wire.foreign_text import is_key_name, public_url, url_fault
from llm_locust.workload.arrivals import parse_rate

# --- Servers that pods connect to, and the network rules for them


_PORTS = {"http": 80, "https": 443}

#: Rules of a NetworkPolicy's egress, and what they let through, in words.
Rules = tuple[list[dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server.

    Attributes:
        url: as given.
        host: its name or address.
        port: port of the URL. A Service may forward it to another port of its pods.
    """

    url: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str, what: str = "target") -> "ServerTarget":
        """Parse a URL (raises RenderError unless it is an http(s) URL with a host).

        Args:
            what: names it in the error.
        """
        shown = public_url(url)
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError as e:
            raise RenderError(f"{what} {shown!r}: {url_fault(e)}") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise RenderError(f"{what} {shown!r} is not a URL such as http://vllm.models.svc:8000")
        return cls(shown, parts.hostname, port)

    def egress(self, cidrs: Sequence[str]) -> Rules:
        """Rules of a NetworkPolicy that let pods reach it, and what they open.

        A policy has addresses and pods, but no names: a Service of the cluster becomes the pods of its
        namespace, on any port, because the Service may forward to any; for another name the addresses must
        be given.

        Raises:
            RenderError: they are not.
        """
        address = _address(self.host)
        if address is not None:
            return self._blocks([f"{address}/{address.max_prefixlen}"])
        labels = self.host.removesuffix(".").split(".")
        if len(labels) == 1:
            return [{"to": [{"podSelector": {}}]}], "all pods of the run's namespace, any port"
        if len(labels) >= 3 and labels[2] == "svc":
            return [{"to": [in_namespace(labels[1])]}], f"all pods of namespace {labels[1]}, any port"
        if cidrs:
            return self._blocks([str(network(cidr)) for cidr in cidrs])
        raise RenderError(
            f"{self.host!r} is not a Service of the cluster (NAME or NAME.NAMESPACE.svc); a NetworkPolicy "
            "takes no names: give its addresses by --target-cidr, such as 203.0.113.7/32, or leave the "
            "policies out by --no-network-policies"
        )

    def _blocks(self, cidrs: Sequence[str]) -> Rules:
        peers = [{"ipBlock": {"cidr": cidr}} for cidr in cidrs]
        return [{"to": peers, "ports": [{"port": self.port}]}], f"{', '.join(cidrs)}, port {self.port}"


def in_namespace(name: str) -> dict[str, Any]:
    """All pods of a namespace."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Addresses of one CIDR (raises RenderError)."""
    try:
        return ipaddress.ip_network(cidr)
    except ValueError as e:
        raise RenderError(f"--target-cidr {cidr!r}: {e}") from e


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# --- Everything that a run connects to, as rules of network policies


_DNS = "dns+"

#: Stands for the URL of an overlay's own target, which its policies allow already.
_OWN = "own"

#: Variables of the environment with the address of an OpenTelemetry collector.
_COLLECTORS = tuple(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT" for signal in ("", "TRACES_", "METRICS_", "LOGS_"))


@dataclass(frozen=True, slots=True)
class Opening:
    """Destination that pods may connect to.

    Attributes:
        policy: the NetworkPolicy that has the rules: ``target`` (master and workers) or ``master``.
        what: the destination as the user knows it.
        meaning: addresses or pods that the rules let through.
    """

    policy: str
    what: str
    meaning: str
    rules: tuple[dict[str, Any], ...]

    def __str__(self) -> str:
        who = "master and workers" if self.policy == "target" else "master"
        return f"{who} may connect to {self.what}: {self.meaning}"


def openings(plan: OverlayPlan) -> list[Opening]:
    """Destinations of a run, in a fixed order, each policy and rule once.

    Raises:
        RenderError: a URL that is not one, or one whose addresses are unknown.
    """
    for cidr in plan.cidrs:
        network(cidr)
    found: dict[tuple[str, str], Opening] = {}
    for policy, url in _servers(plan):
        rules, meaning = ServerTarget.parse(url).egress(plan.cidrs)
        found.setdefault((policy, url), Opening(policy, public_url(url), meaning, tuple(rules)))
    opened = [*found.values(), *_metrics(plan), *_upload(plan)]
    if plan.cloud_identity is not None:
        opened.append(_identity(plan.cloud_identity))
    return opened


def _servers(plan: OverlayPlan) -> Iterator[tuple[str, str]]:
    """URLs with the policies of those who connect to them."""
    for url in _targets(plan):
        yield "target", url
    for name in _COLLECTORS:
        if name in plan.pods.env:
            text = plan.pods.env[name]
            yield "target", text if "://" in text else f"http://{text}"
    for url in plan.option("replica_url"):
        yield "master", split_role(url)[1].removeprefix(_DNS)


def _targets(plan: OverlayPlan) -> list[str]:
    """The servers that get the load."""
    host = plan.target or plan.scenario.options.get("host")
    found = [url.removeprefix(_DNS) for url in plan.option("targets")]
    own = plan.overlay in WITH_TARGET
    usual = str(host) if host else _OWN if own else None
    try:
        arms = chosen_arms(plan.option("arm"), plan.scenario.arms, usual)
    except ArmError as e:
        raise RenderError(f"arms: {e}") from e
    found += [arm.url for arm in arms if arm.url != _OWN]
    if host is not None:
        found.insert(0, str(host))
    elif not found and not own:
        raise RenderError("no target: give --target http://HOST:PORT, or set host in the scenario")
    return found


def _metrics(plan: OverlayPlan) -> Iterator[Opening]:
    for text in plan.option("metrics_url"):
        endpoint = Endpoint.parse(text)
        if endpoint.pods is None:
            address = ServerTarget(text, endpoint.host, endpoint.port)
            rules, meaning = address.egress(plan.cidrs)
            yield Opening("master", public_url(text), meaning, tuple(rules))
            continue
        if not plan.pod_discovery:
            raise RenderError(f"metrics_url {text!r} needs permission to list pods: add --pod-discovery")
        space = endpoint.pods.namespace
        peer = {"podSelector": {}} if space is None else in_namespace(space)
        where = "the run's namespace" if space is None else f"namespace {space}"
        yield Opening("master", text, f"all pods of {where}, any port", ({"to": [peer]},))


def _upload(plan: OverlayPlan) -> Iterator[Opening]:
    """An object store. Its addresses change, so that HTTPS is open to all of them."""
    to = plan.upload or plan.scenario.options.get("upload")
    if to is None or "://" not in str(to):
        return
    text = str(to)
    settings = parse_qs(urlsplit(text).query)
    store = plan.pods.env.get("AWS_ENDPOINT_URL") or next(iter(settings.get("endpoint_override", ())), None)
    shown = text.partition("?")[0]
    if store is None:
        yield Opening("master", shown, "any address, port 443", ({"ports": [{"port": 443}]},))
        return
    scheme = next(iter(settings.get("scheme", ())), "https")
    server = ServerTarget.parse(store if "://" in store else f"{scheme}://{store}", "the upload's store")
    rules, meaning = server.egress(plan.cidrs)
    yield Opening("master", shown, meaning, tuple(rules))


def _identity(cloud: str) -> Opening:
    places = CLOUD_IDENTITIES[cloud]
    rules = tuple(
        {"to": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": port, "protocol": "TCP"}]}
        for cidr, port in places
    )
    meaning = ", ".join(f"{cidr} port {port}" for cidr, port in places)
    return Opening("master", f"the metadata server of {cloud}", meaning, rules)


# --- Changes of master and workers, as strategic merge patches


KEY_VARIABLE = "API_KEY"

#: In addition to --drain and --flush-timeout: --stop-timeout of the base, 5 s, the time for a small report.
_MASTER_GRACE_S = 150
_WORKER_GRACE_S = 60

#: Requests of which a report is made in a second, on a slow core.
_REPORTED_PER_S = 10_000

#: Shortest time between two requests of a user that is expected.
_LEAST_TURN_S = 1.0

#: Time limit of a Job, in addition to its load: workers and target that come late, the end, the report.
_AROUND_S = 3 * 3600
_DAY_S = 86_400

#: What the base has in ``envFrom``. A patch replaces the list.
_SWARM_SECRET = {"secretRef": {"name": "llm-locust-swarm", "optional": True}}

Patch = dict[str, Any]


def pod_changes(plan: OverlayPlan, items: list[dict[str, str]]) -> dict[str, Patch]:
    """Patch of each role, by its name.

    Args:
        items: paths of the load's files by their ConfigMap keys, if they are not the same.
    """
    return {role: _role(plan, role, items) for role in ("master", "worker")}


def _role(plan: OverlayPlan, role: str, items: list[dict[str, str]]) -> Patch:
    pods = plan.pods
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": round(_grace_s(plan, role))}
    if pods.service_account is not None:
        spec["serviceAccountName"] = pods.service_account
    if pods.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in pods.pull_secrets]
    if pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    if pods.tolerations:
        spec["tolerations"] = [dict(one) for one in pods.tolerations]
    volumes, mounts = _volumes(plan, role)
    if items:
        volumes.insert(0, {"name": "load", "configMap": {"items": items}})
    if volumes:
        spec["volumes"] = volumes
    spec["containers"] = [_container(plan, role, mounts)]
    return {
        "apiVersion": "batch/v1" if plan.kind == "Job" else "apps/v1",
        "kind": plan.kind,
        "metadata": {"name": f"llm-locust-{role}"},
        "spec": {**_amounts(plan, role), "template": {"spec": spec}},
    }


def _amounts(plan: OverlayPlan, role: str) -> dict[str, int]:
    found = {}
    if plan.kind == "Job":  # which Kubernetes ends after a day, or later for a long run
        deadline_s = plan.deadline_s or max(_DAY_S, round((run_time_s(plan) or 0) + _AROUND_S))
        found["activeDeadlineSeconds"] = deadline_s
    if role == "worker":
        names = ("replicas",) if plan.kind == "Deployment" else ("completions", "parallelism")
        found |= dict.fromkeys(names, plan.workers)
    return found


def _container(plan: OverlayPlan, role: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": role}
    if role == "master" and plan.hold_s is not None:
        # Its arguments are those of the overlay.
        found["command"] = ["python", "-P", "-m", "llm_locust.k8s.hold", f"{plan.hold_s}", "locust"]
    if env := _variables(plan, role):
        found["env"] = env
    if sources := _sources(plan, role):
        found["envFrom"] = sources
    if role == "worker":
        amounts = {"cpu": plan.pods.cpu, "memory": plan.pods.memory}
        given = {name: amount for name, amount in amounts.items() if amount is not None}
        if given:
            found["resources"] = {"requests": given, "limits": given}
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _variables(plan: OverlayPlan, role: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if role == "worker" and plan.name is not None:
        found.append({"name": "LOCUST_MASTER_NODE_HOST", "value": plan.named("llm-locust-master")})
    if plan.api_key_secret is not None:
        secret, _, key = plan.api_key_secret.partition("/")
        source = {"secretKeyRef": {"name": secret, "key": key, "optional": False}}
        found.append({"name": key_variable(plan), "valueFrom": source})
    return found + [{"name": name, "value": value} for name, value in plan.pods.env.items()]


def _sources(plan: OverlayPlan, role: str) -> list[Mapping[str, Any]]:
    """``envFrom``, if something is added to it."""
    added = list(plan.pods.env_from)
    if role == "master" and plan.upload_secret is not None:
        added.append({"secretRef": {"name": plan.upload_secret}})
    options = [{"configMapRef": {"name": "llm-locust-options"}}] if role == "master" else []
    return [*options, _SWARM_SECRET, *added] if added else []


def key_variable(plan: OverlayPlan) -> str:
    """Variable that holds the API key."""
    return str(plan.scenario.options.get("api_key_env") or KEY_VARIABLE)


def _volumes(plan: OverlayPlan, role: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, (path, claim) in enumerate(plan.pods.volumes.items()):
        if path == "/runs":
            if role == "master":
                source = {"claimName": claim}
                volumes.append({"name": "runs", "emptyDir": None, "persistentVolumeClaim": source})
            continue
        name = f"volume-{number}"
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": name, "mountPath": path, "readOnly": True})
    return volumes, mounts


def _grace_s(plan: OverlayPlan, role: str) -> float:
    """Time for the last requests, records and, on the master, the report and the files' way out."""
    end_s = float(plan.option("drain") + plan.option("flush_timeout"))
    if role == "worker":
        return _WORKER_GRACE_S + end_s
    return _MASTER_GRACE_S + end_s + expected_requests(plan) / _REPORTED_PER_S


def expected_requests(plan: OverlayPlan) -> float:
    """Most requests that the run is expected to send; 0 if nothing limits them."""
    if (number := plan.option("num_requests")) is not None:
        return float(number)
    time_s = run_time_s(plan) or 0.0
    rate = plan.scenario.options.get("request_rate")
    if rate is None:
        return time_s * int(plan.scenario.options.get("users", 1)) / _LEAST_TURN_S
    return time_s * max(segment.rate + segment.amplitude for segment in parse_rate(str(rate)).segments)


def run_time_s(plan: OverlayPlan) -> float | None:
    """Time limit of the load in the scenario."""
    text = plan.scenario.options.get("run_time")
    if text is None:
        return None
    return parse_time(f"{text}s" if str(text).isdecimal() else str(text))


def ends_by_itself(plan: OverlayPlan) -> bool:
    """Whether the scenario, or perhaps a locustfile with a load shape, says when the load ends."""
    given = plan.scenario.options
    return (
        plan.locustfile is not None
        or any(name in given for name in ("run_time", "num_requests", "sweep", "find"))
        or str(given.get("arrival", "")).startswith("trace")
    )


def options_of(plan: OverlayPlan) -> dict[str, str]:
    """Environment of the master, which overrides the scenario."""
    found = {"LOCUST_EXPECT_WORKERS": str(plan.workers)}
    if plan.target is not None:
        found["LOCUST_HOST"] = plan.target
    elif plan.overlay == "demo" and plan.name is not None:
        found["LOCUST_HOST"] = f"http://{plan.named('llm-locust-sim')}:8000"
    if plan.out is not None:
        found[OPTION["out"].variable] = f"/runs/{plan.out}"
    if plan.api_key_secret is not None:
        found[OPTION["api_key_env"].variable] = key_variable(plan)
    elif plan.scenario.options.get("api_key_env"):
        raise RenderError(
            "the scenario has api_key_env: name the Secret with the key by --api-key-secret NAME/KEY"
        )
    if plan.upload is not None:
        found[OPTION["upload"].variable] = plan.upload
    return found


MANIFESTS = Path(__file__).parent / "manifests"

#: Overlays that make other objects of the finished Jobs, by a component of their name: kinds and names.
LAST: Mapping[str, tuple[tuple[str, str], ...]] = {
    "jobset": (("JobSet", "llm-locust"),),
    "nightly": (("CronJob", "llm-locust-master"), ("CronJob", "llm-locust-worker")),
}

_IMAGE = "llm-locust"

Document = dict[str, Any]


def write_overlay(plan: OverlayPlan, folder: Path) -> list[str]:
    """Write the overlay, and everything that it builds on, to ``folder``.

    The package's manifests are in a folder with the package's version in its name; the patches are files, to
    be read and changed.

    Returns:
        A line for each destination that network policies open.

    Raises:
        RenderError: the plan cannot be carried out.
        OSError: a file cannot be read or written.
    """
    _check(plan)
    scenario = Path(plan.scenario.path)
    files = files_of(plan.scenario.document, scenario.parent) | dict(plan.files)
    check_size(files)
    opened = openings(plan) if plan.network_policies else []
    base = f"llm-locust-{version('llm-locust')}"
    items = _items(plan, list(files))
    patches = pod_changes(plan, items)
    if plan.network_policies:
        patches |= _policies(plan)
    shutil.copytree(MANIFESTS, folder / base, ignore=shutil.ignore_patterns("__pycache__"))
    run = folder / "run" if LAST.get(plan.overlay) else folder
    (run / "load").mkdir(parents=True)
    shutil.copyfile(scenario, run / "load" / "scenario.yaml")
    if plan.locustfile is not None:
        shutil.copyfile(plan.locustfile, run / "load" / "locustfile.py")
    for name, path in files.items():
        shutil.copyfile(path, run / "load" / _key(name))
    for name, content in patches.items():
        _write(run / f"{name}.yaml", content)
    above = base if run == folder else f"../{base}"
    _write(run / "kustomization.yaml", kustomization(plan, list(files), list(patches), above))
    if run != folder:
        own = {} if plan.name is None else {"app.kubernetes.io/instance": plan.name}
        layer = outer(plan.overlay, base, plan.namespace or NAMESPACE, plan.name, {**plan.labels, **own})
        _write(folder / "kustomization.yaml", layer)
    return [str(opening) for opening in opened]


def _check(plan: OverlayPlan) -> None:
    """Check what only the whole plan shows (raises RenderError)."""
    _check_keys(plan.scenario)
    if plan.kind == "Job" and not ends_by_itself(plan):
        raise RenderError(
            "the scenario has no end, and its Job would run for ever: add run_time, such as run_time: 10m, "
            "or num_requests; or use --overlay soak"
        )
    if plan.pod_discovery and plan.pods.service_account is not None:
        raise RenderError(
            "--pod-discovery makes a service account of its own: leave out --service-account, or let "
            "that one list pods yourself"
        )


def _check_keys(scenario: Scenario) -> None:
    """Check that the scenario has no key, which a ConfigMap would expose (raises RenderError)."""
    given = scenario.options.get("header", ())
    written = [text.partition("=")[0] for text in ([given] if isinstance(given, str) else given)]
    headers = (*(found.headers for found in scenario.classes), *(arm.headers for arm in scenario.arms))
    names = [*written, *(name for each in headers for name in each)]
    if keys := [name for name in names if is_key_name(name.strip())]:
        raise RenderError(
            f"the header {keys[0]!r} would be in a ConfigMap, which others can read: take it out "
            "of the scenario and name the Secret with the key by --api-key-secret NAME/KEY"
        )


def kustomized(namespace: str, *resources: str) -> Document:
    """What every ``kustomization.yaml`` begins with."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": list(resources),
    }


def selecting_labels(pairs: Mapping[str, str]) -> Document:
    """Labels of all objects, in selectors too."""
    monitors = {"kind": "PodMonitor", "path": "spec/selector/matchLabels", "create": True}
    return {"pairs": dict(pairs), "includeSelectors": True, "fields": [monitors]}


def soak_fixes(base: str) -> Document:
    """Patch of the overlay soak: each merge of a ConfigMap has undone what that says."""
    return {
        "path": f"{base}/overlays/soak/fixed.yaml",
        "target": {"kind": "ConfigMap", "name": "llm-locust-(load|options)"},
    }


def kustomization(plan: OverlayPlan, files: list[str], patches: list[str], base: str) -> Document:
    """Make the overlay's ``kustomization.yaml``.

    Args:
        files: of the load, beside scenario and locustfile.
        patches: names of the files with patches.
        base: path of the package's manifests.
    """
    overlay = "headless" if plan.overlay in LAST else plan.overlay
    content = kustomized(plan.namespace or NAMESPACE, f"{base}/overlays/{overlay}")
    if plan.name is not None:
        content["namePrefix"] = f"{plan.name}-"
    parts = {
        "report-container": plan.overlay in LAST,  # the overlay would have it before the last change
        "pod-discovery": plan.pod_discovery,
        "monitoring": plan.monitoring,
    }
    if any(parts.values()):
        content["components"] = [f"{base}/components/{name}" for name, wanted in parts.items() if wanted]
    if plan.image is not None:
        content["images"] = [image_change(plan.image)]
    if labels := _labels(plan):
        content["labels"] = labels
    if (out := plan.scenario.options.get("out")) and plan.out is None:  # no other place can be written
        options = {"LLM_LOCUST_OUT": f"/runs/{Path(str(out)).name}"} | options_of(plan)
    else:
        options = options_of(plan)
    literals = [f"{name}={value}" for name, value in options.items()]
    load = ["load/scenario.yaml", *(["load/locustfile.py"] if plan.locustfile is not None else [])]
    load += [f"{_key(name)}=load/{_key(name)}" for name in files]
    content["configMapGenerator"] = [
        {"name": "llm-locust-load", "behavior": "merge", "files": load},
        {"name": "llm-locust-options", "behavior": "merge", "literals": literals},
    ]
    content["patches"] = [_patch(plan, name) for name in patches] + _removals(plan)
    if plan.overlay == "soak":
        content["patches"].append(soak_fixes(base))
    return content


def _patch(plan: OverlayPlan, name: str) -> Document:
    """Entry of a patch's file; objects whose kind the overlay has changed are found by their present one."""
    if name not in ("master", "worker"):
        return {"path": f"{name}.yaml"}
    return {"path": f"{name}.yaml", "target": {"kind": plan.kind, "name": f"llm-locust-{name}"}}


def outer(overlay: str, base: str, namespace: str, prefix: str | None, labels: Mapping[str, str]) -> Document:
    """Kustomization of an overlay whose objects are made of the finished Jobs, those of the folder ``run``.

    Args:
        prefix: of the names in ``run``, without the dash; its own objects get it too.
    """
    content = kustomized(namespace, "run")
    content["components"] = [f"{base}/components/{name}" for name in (overlay, "no-jobs")]
    if prefix is not None:
        content["patches"] = [_renaming(kind, name, f"{prefix}-{name}") for kind, name in LAST[overlay]]
    if labels:
        jobs = {"kind": "CronJob", "path": "spec/jobTemplate/metadata/labels", "create": True}
        content["labels"] = [{"pairs": dict(labels), "fields": [jobs]}]
    return content


def _renaming(kind: str, name: str, to: str) -> Document:
    change = [{"op": "replace", "path": "/metadata/name", "value": to}]
    target = {"kind": kind, "name": name}
    return {"target": target, "patch": yaml.safe_dump(change), "options": {"allowNameChange": True}}


def _labels(plan: OverlayPlan) -> list[Document]:
    """The run's name, in selectors too; and labels that select nothing."""
    found: list[Document] = []
    if plan.name is not None:
        found.append(selecting_labels({"app.kubernetes.io/instance": plan.name}))
    if plan.labels:
        found.append({"pairs": dict(plan.labels), "includeTemplates": True})
    return found


def _key(name: str) -> str:
    """ConfigMap key for a path, without slashes."""
    return "__".join(PurePosixPath(name).parts)


def _items(plan: OverlayPlan, files: list[str]) -> list[dict[str, str]]:
    """Files in folders: the path of each ConfigMap key in the pod. If one is given, all must be."""
    if not any(_key(name) != name for name in files):
        return []
    names = ["scenario.yaml", "locustfile.py", *files]
    return [{"key": _key(name), "path": name} for name in names]


def image_change(text: str) -> dict[str, str]:
    """Entry of ``images`` that makes it the image of all containers."""
    name, _, digest = text.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    image = {"name": _IMAGE, "newName": f"{folder}{slash}{last}"}
    return image | ({"digest": digest} if digest else {"newTag": tag} if tag else {})


def _policies(plan: OverlayPlan) -> dict[str, Document]:
    """Patches of the network policies, by the names of their files."""
    found: dict[str, Document] = {}
    for opening in openings(plan):
        name = f"network-{opening.policy}"
        metadata = {"name": f"llm-locust-{opening.policy}"}
        policy = found.setdefault(
            name,
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": metadata,
                "spec": {"egress": []},
            },
        )
        policy["spec"]["egress"] += [rule for rule in opening.rules if rule not in policy["spec"]["egress"]]
    return found


def _removals(plan: OverlayPlan) -> list[Document]:
    """Patches that take out objects of the underlying overlay."""
    removed = ["NetworkPolicy"] if not plan.network_policies else []
    if plan.namespace is not None:
        removed.append("Namespace")
    if plan.overlay == "soak" and "/runs" in plan.pods.volumes:
        removed.append("PersistentVolumeClaim")
    return [
        {
            "target": {"kind": kind},
            "patch": yaml.safe_dump({"$patch": "delete", "kind": kind, "metadata": {"name": "any"}}),
        }
        for kind in removed
    ]


def _write(path: Path, content: Document) -> None:
    path.write_text(yaml.dump(content, Dumper=_Plain, sort_keys=False, width=100), encoding="utf-8")


class _Plain(yaml.SafeDumper):
    """Writes equal parts twice, for they are to be read and changed."""

    def ignore_aliases(self, data: object) -> bool:
        return True
