"""``llm-locust k8s chart``: the chart's templates, from the overlays as kustomize renders them."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from llm_locust.k8s.kubectl import render
from llm_locust.k8s.overlay import LAST, MANIFESTS, kustomized, outer, selecting_labels, soak_fixes
from llm_locust.k8s.plan import RenderError
from llm_locust.wire.foreign_text import KEY_NAME

# --- Templates of Helm from objects: parts of them are replaced by what Helm fills in


#: Only the lines of a hole: as a mapping's entry, or an item of a list.
_LINE = re.compile(r"^( *)(?:- )?(hole\d+x)(?:: null)?$")
_HOLE = re.compile(r"hole\d+x")


@dataclass(slots=True)
class Holes:
    """Texts of a template by the words that stand for them in objects."""

    texts: dict[str, str] = field(default_factory=dict)

    def __call__(self, text: str) -> str:
        """Word that stands for the text: as a scalar, as a key whose value is None, or as an item.

        As a key or an item it stands for whole lines, which are indented; ``{n}`` in them is the indentation.
        """
        word = f"hole{len(self.texts)}x"
        self.texts[word] = text
        return word

    def given(self, path: str, key: str, otherwise: Any = None) -> dict[str, Any]:
        """Entry whose value is that of the values at ``path``, or ``otherwise`` where that is empty."""
        start = f"{{{{- with .Values.{path} }}}}\n{key}:\n  {{{{- toYaml . | nindent {{n}} }}}}"
        if otherwise is None:
            return {self(start + "\n{{- end }}"): None}
        return {self(start + "\n{{- else }}"): None, key: otherwise, self("{{- end }}"): None}

    def added(self, path: str) -> str:
        """What the values add to a list or a mapping."""
        return self(f"{{{{- with .Values.{path} }}}}\n{{{{- toYaml . | nindent {{n}} }}}}\n{{{{- end }}}}")

    def only_if(self, condition: str, entries: dict[str, Any]) -> dict[str, Any]:
        """Entries that are there on a condition."""
        return {self(f"{{{{- if {condition} }}}}"): None, **entries, self("{{- end }}"): None}

    def dump(self, content: Any) -> str:
        """Text of the template."""
        text = yaml.safe_dump(content, sort_keys=False, width=1_000_000)
        return "".join(self._line(line) for line in text.replace("{{", '{{ "{{" }}').splitlines())

    def _line(self, line: str) -> str:
        found = _LINE.match(line)
        if found and not self.texts[found[2]].startswith("{{ "):  # that is a scalar
            indent = found[1]
            lines = self.texts[found[2]].splitlines()
            nested = len(indent) + (2 if any(re.match(r"\w+:$", part) for part in lines) else 0)
            return "".join(f"{indent}{part.replace('{n}', str(nested))}\n" for part in lines)
        return _HOLE.sub(lambda word: self.texts[word[0]], line) + "\n"


def merged(base: Any, changed: Any, condition: str, holes: Holes) -> Any:
    """Both forms of an object as one: what is only in ``changed``, or differs there, is on the condition."""
    if isinstance(base, dict) and isinstance(changed, dict):
        made: dict[str, Any] = {}
        for key, value in base.items():
            made[key] = merged(value, changed[key], condition, holes)
        more = {key: value for key, value in changed.items() if key not in base}
        return made | (holes.only_if(condition, more) if more else {})
    if isinstance(base, list) and isinstance(changed, list) and base != changed:
        if len(base) == len(changed):
            return [merged(*both, condition, holes) for both in zip(base, changed, strict=True)]
        if [item for item in changed if item in base] == base:
            opened, ended = holes(f"{{{{- if {condition} }}}}"), holes("{{- end }}")
            return [part for item in changed for part in ((item,) if item in base else (opened, item, ended))]
    if base != changed:
        raise ValueError(f"a component changes {base!r} to {changed!r}, which the chart cannot express")
    return base


# --- Where the chart's values go in an object


Object = dict[str, Any]

_IMAGE = '{{ include "llm-locust.image" . | quote }}'
_ACCOUNT = '{{ include "llm-locust.serviceAccountName" . }}'
_NAME_OF_NAMESPACE = "kubernetes.io/metadata.name"
_LABELS = '{{- include "llm-locust.labels" . | nindent {n} }}'
_WORKERS = "{{ int .Values.workers }}"


def edited(content: Object, name: str, holes: Holes) -> Object:
    """Object of the short name with the values' places in it."""
    content["metadata"]["labels"][holes(_LABELS)] = None
    match content["kind"], name:
        case "ConfigMap", ("options" | "load"):
            content["data"] = None
            text = f'data:\n  {{{{- include "llm-locust.{name}" . | nindent 2 }}}}'
            content = {(holes(text) if key == "data" else key): value for key, value in content.items()}
        case "ServiceAccount", _:
            content["metadata"]["name"] = holes(_ACCOUNT)
            content["metadata"] |= holes.given("serviceAccount.annotations", "annotations")
        case (("Job" | "Deployment"), _):
            _load(content["spec"], name, holes)
        case "JobSet", _:
            for job in content["spec"]["replicatedJobs"]:
                _load(job["template"]["spec"], job["name"], holes)
        case "CronJob", _:
            content["spec"]["schedule"] = holes("{{ .Values.nightly.schedule | quote }}")
            content["spec"]["timeZone"] = holes("{{ .Values.nightly.timeZone | quote }}")
            job = content["spec"]["jobTemplate"]
            job["metadata"]["labels"][holes(_LABELS)] = None
            _load(job["spec"], name, holes)
        case "NetworkPolicy", "target":
            rule = content["spec"].pop("egress")
            content["spec"] |= holes.given("networkPolicies.target", "egress", _of_targets(rule))
        case "NetworkPolicy", "master":
            content["spec"] |= holes.given("networkPolicies.master", "egress")
        case "PersistentVolumeClaim", _:
            content["spec"]["resources"]["requests"]["storage"] = holes("{{ .Values.persistence.size }}")
            storage = (
                "{{- with .Values.persistence.storageClassName }}\nstorageClassName: {{ . }}\n{{- end }}"
            )
            content["spec"][holes(storage)] = None
            content["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        case "NetworkPolicy", ("metrics" | "web"):
            _let_in(content["spec"]["ingress"], holes)
        case "Ingress", _:
            _ingress(content, holes)
        case "HTTPRoute", _:
            gateways = content["spec"].pop("parentRefs")
            content["spec"] |= holes.given("gateway.parentRefs", "parentRefs", gateways)
            content["spec"]["hostnames"] = [holes("{{ .Values.gateway.host | quote }}")]
        case (("PodMonitor" | "PrometheusRule"), _):
            content["metadata"]["labels"][holes.added("monitoring.labels")] = None
    return content


def _of_targets(rules: list[Any]) -> list[Any]:
    """The rules without labels of the run: a server under test has none of them."""
    for rule in rules:
        for peer in rule["to"]:
            labels = peer["podSelector"]["matchLabels"]
            peer["podSelector"]["matchLabels"] = {
                key: value for key, value in labels.items() if key == "llm-locust/target"
            }
    return rules


def _let_in(rules: list[Any], holes: Holes) -> None:
    """Namespaces of those who watch, by their places among the values."""
    for rule in rules:
        for peer in rule["from"]:
            labels = peer["namespaceSelector"]["matchLabels"]
            name = "metricsFrom" if labels[_NAME_OF_NAMESPACE] == "monitoring" else "webFrom"
            labels[_NAME_OF_NAMESPACE] = holes(f"{{{{ .Values.networkPolicies.{name} }}}}")


def _ingress(content: Object, holes: Holes) -> None:
    host = holes("{{ .Values.ingress.host | quote }}")
    content["metadata"] |= holes.given("ingress.annotations", "annotations")
    spec = content["spec"]
    spec["ingressClassName"] = holes("{{ .Values.ingress.className }}")
    spec["rules"][0]["host"] = host
    spec["tls"] = [{"hosts": [host], "secretName": holes("{{ .Values.ingress.tlsSecret }}")}]


def _load(spec: Object, role: str, holes: Holes) -> None:
    """Spec of a Job or Deployment of master or workers."""
    if "activeDeadlineSeconds" in spec:
        spec["activeDeadlineSeconds"] = holes("{{ int64 .Values.deadlineSeconds }}")
    if role == "worker":
        for name in ("replicas", "completions", "parallelism"):
            if name in spec:
                spec[name] = holes(_WORKERS)
    template = spec["template"]
    template["metadata"]["annotations"][holes.added("podAnnotations")] = None
    template["metadata"]["labels"][holes.added("podLabels")] = None
    pod = template["spec"]
    pod["serviceAccountName"] = holes(_ACCOUNT)
    for name in ("imagePullSecrets", "nodeSelector", "tolerations"):
        pod |= holes.given(name, name)
    for container in pod.get("initContainers", ()):
        _image(container, holes)
    (container,) = pod["containers"]
    _image(container, holes)
    _container(container, role, holes)
    for volume in pod["volumes"]:
        if volume["name"] == "load":
            volume["configMap"][holes('{{- include "llm-locust.items" . | nindent {n} }}')] = None
        if volume["name"] == "runs" and role == "master":
            _results(volume, holes)
    pod["volumes"].append(holes.added("extraVolumes"))


def _image(container: Object, holes: Holes) -> None:
    container["image"] = holes(_IMAGE)
    container["imagePullPolicy"] = holes("{{ .Values.image.pullPolicy }}")


def _container(container: Object, role: str, holes: Holes) -> None:
    resources = container.pop("resources")
    for entry in container["env"]:
        source = entry.get("valueFrom", {}).get("secretKeyRef", {})
        if source.get("name") == "llm-locust-api-key":
            source |= {
                "name": holes('{{ .Values.apiKey.existingSecret | default "llm-locust-api-key" }}'),
                "key": holes("{{ .Values.apiKey.key }}"),
                "optional": holes("{{ empty .Values.apiKey.existingSecret }}"),
            }
        elif source.get("name") == "llm-locust-web":
            source["name"] = holes("{{ .Values.login.existingSecret }}")
    for source in container["envFrom"]:
        if source.get("secretRef", {}).get("name") == "llm-locust-swarm":
            source["secretRef"] = {
                "name": holes('{{ .Values.swarmSecret.existingSecret | default "llm-locust-swarm" }}'),
                "optional": holes("{{ empty .Values.swarmSecret.existingSecret }}"),
            }
    if role == "master":
        secret = "{{- with .Values.upload.existingSecret }}\n- secretRef:\n    name: {{ . }}\n{{- end }}"
        container["envFrom"].append(holes(secret))
    container["env"].append(holes.added("extraEnv"))
    container["envFrom"].append(holes.added("extraEnvFrom"))
    container["volumeMounts"].append(holes.added("extraVolumeMounts"))
    container |= holes.given(f"{role}.resources", "resources", resources)


def _results(volume: Object, holes: Holes) -> None:
    own = {key: volume.pop(key) for key in list(volume) if key != "name"}
    source = "persistentVolumeClaim: {claimName: {{ . }}}"
    claim = f"{{{{- with .Values.persistence.existingClaim }}}}\n{source}\n{{{{- else }}}}"
    volume |= {holes(claim): None, **own, holes("{{- end }}"): None}


#: Kinds of a run that the chart has: overlays.
MODES = ("headless", "jobset", "nightly", "soak")

_STATIC = Path(__file__).parent / "helm"
_RUN = "chart-run"
_NAMESPACE = "chart-namespace"
_MONITORING = ".Values.monitoring.enabled"

#: Components whose own objects a mode has too, on a condition.
_MORE: Mapping[str, str] = {"soak": "gateway-api"}

#: When an object is there, by its kind, or by its short name.
_CONDITIONS: Mapping[str, str] = {
    "NetworkPolicy": ".Values.networkPolicies.enabled",
    "Ingress": ".Values.ingress.enabled",
    "PersistentVolumeClaim": "not .Values.persistence.existingClaim",
    "ServiceAccount": ".Values.serviceAccount.create",
    "HTTPRoute": ".Values.gateway.enabled",
    "PodMonitor": ".Values.monitoring.podMonitor",
    "PrometheusRule": ".Values.monitoring.rules",
    "dashboard": ".Values.monitoring.dashboard",
}


def write_chart(folder: Path) -> None:
    """Write the chart to a folder that is empty or not there.

    Raises:
        RenderError: the folder is not empty, or the overlays cannot be rendered.
        OSError: a file cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RenderError(f"{str(folder)!r} exists already: remove it, or name another folder")
    shutil.copytree(_STATIC, folder, dirs_exist_ok=True)
    about = {
        "apiVersion": "v2",
        "name": "llm-locust",
        "description": "Load tests of LLM inference, distributed over workers",
        "type": "application",
        "version": version("llm-locust"),
        "appVersion": version("llm-locust"),
        "kubeVersion": ">=1.29.0-0",
    }
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about, sort_keys=False), encoding="utf-8")
    scenario = (MANIFESTS / "base" / "scenario.yaml").read_text(encoding="utf-8")
    values = (folder / "values.yaml").read_text(encoding="utf-8")
    indented = "".join(f"  {line}\n" for line in scenario.splitlines())
    (folder / "values.yaml").write_text(values.replace("  @scenario@\n", indented), encoding="utf-8")
    keys = f'{{{{- define "llm-locust.keyName" -}}}}(?i){KEY_NAME.pattern}{{{{- end }}}}\n'
    (folder / "templates" / "_keys.tpl").write_text(keys, encoding="utf-8")
    for mode in MODES:
        _write_mode(mode, folder)


def _write_mode(mode: str, folder: Path) -> None:
    base, watched = _objects(mode, []), _objects(mode, ["monitoring"])
    more = _objects(mode, [_MORE[mode]]) if mode in _MORE else {}
    more = {key: found for key, found in more.items() if key not in base}
    (folder / "templates" / mode).mkdir()
    (folder / "files" / mode).mkdir(parents=True)
    options: dict[str, Any] = {}
    for key, last in (watched | more).items():
        kind, name = key
        holes = Holes()
        if name == "load":
            text = last["data"]["locustfile.py"]
            (folder / "files" / mode / "locustfile.py").write_text(text, encoding="utf-8")
        first = base.get(key)
        content = last if first is None else merged(first, last, _MONITORING, holes)
        is_watching = first is None and key not in more
        if name == "options":
            options = content["data"]
            part = f'{{{{- define "llm-locust.options.{mode}" }}}}\n{holes.dump(options)}{{{{- end }}}}\n'
            (folder / "templates" / f"_{mode}.tpl").write_text(part, encoding="utf-8")
        conditions = [f'eq .Values.mode "{mode}"', *([_MONITORING] if is_watching else [])]
        conditions += [_CONDITIONS[each] for each in key if each in _CONDITIONS]
        test = conditions[0] if len(conditions) == 1 else "and " + " ".join(f"({c})" for c in conditions)
        text = _named(holes.dump(edited(content, name, holes)))
        path = folder / "templates" / mode / f"{kind.lower()}-{name}.yaml"
        path.write_text(f"{{{{- if {test} }}}}\n{text}{{{{- end }}}}\n", encoding="utf-8")


def _objects(mode: str, components: list[str]) -> dict[tuple[str, str], Object]:
    """Objects of an overlay by kind and short name, with words for what a release has of its own."""
    pairs = {"app.kubernetes.io/instance": "chart-instance", "llm-locust/run": _RUN}
    is_made_of_jobs = mode in LAST
    manifests = "../manifests" if is_made_of_jobs else "manifests"
    overlay, own = ("headless", ["report-container"]) if is_made_of_jobs else (mode, [])
    content = kustomized(_NAMESPACE, f"{manifests}/overlays/{overlay}") | {
        "namePrefix": f"{_RUN}-",
        "components": [f"{manifests}/components/{name}" for name in (*own, *components)],
        "labels": [selecting_labels(pairs)],
    }
    if mode == "soak":
        content["patches"] = [soak_fixes(manifests)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(MANIFESTS, folder / "manifests", ignore=shutil.ignore_patterns("__pycache__"))
        layers = {folder: content}
        if is_made_of_jobs:
            (folder / "run").mkdir()
            layers = {folder / "run": content, folder: outer(mode, "manifests", _NAMESPACE, _RUN, pairs)}
        for layer, made in layers.items():
            (layer / "kustomization.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
        text = re.sub(rf"\b({_RUN}-llm-locust-(?:options|load))-[a-z0-9]{{10}}\b", r"\1", render(folder))
    kept = [each for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"]  # Helm makes that
    return {(found["kind"], _short(found["metadata"]["name"])): found for found in kept}


def _short(name: str) -> str:
    """Name without the run's."""
    return name.removeprefix(f"{_RUN}-").removeprefix("llm-locust").removeprefix("-") or "run"


def _named(text: str) -> str:
    run = '{{ include "llm-locust.run" . }}'
    text = text.replace(f"{_RUN}-llm-locust", run).replace(_RUN, run)
    text = re.sub(r"value: llm-locust-master\b", f"value: {run}-master", text)
    text = text.replace(_NAMESPACE, "{{ .Release.Namespace | quote }}")
    return text.replace("chart-instance", "{{ .Release.Name | quote }}")
