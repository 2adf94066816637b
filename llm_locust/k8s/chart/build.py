"""``llm-locust k8s chart``: the chart's templates, from the overlays as kustomize renders them."""

import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from llm_locust.k8s.chart.edits import edited
from llm_locust.k8s.chart.holes import Holes, merged
from llm_locust.k8s.kubectl import render
from llm_locust.k8s.overlay import CONFIG_MAPS, LAST, MANIFESTS, outer
from llm_locust.k8s.scenario_files import RenderError
from llm_locust.wire.secrecy import KEY_NAME

#: Kinds of a run that the chart has: overlays.
MODES = ("headless", "jobset", "nightly", "soak")

_STATIC = Path(__file__).parent / "static"
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

Object = dict[str, Any]


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
            _write_options(mode, holes.dump(options), folder)
        conditions = [f'eq .Values.mode "{mode}"', *([_MONITORING] if is_watching else [])]
        conditions += [_CONDITIONS[each] for each in key if each in _CONDITIONS]
        test = conditions[0] if len(conditions) == 1 else "and " + " ".join(f"({c})" for c in conditions)
        text = _named(holes.dump(edited(content, name, holes)))
        path = folder / "templates" / mode / f"{kind.lower()}-{name}.yaml"
        path.write_text(f"{{{{- if {test} }}}}\n{text}{{{{- end }}}}\n", encoding="utf-8")


def _write_options(mode: str, text: str, folder: Path) -> None:
    body = f'{{{{- define "llm-locust.options.{mode}" }}}}\n{text}{{{{- end }}}}\n'
    (folder / "templates" / f"_{mode}.tpl").write_text(body, encoding="utf-8")


def _objects(mode: str, components: list[str]) -> dict[tuple[str, str], Object]:
    """Objects of an overlay by kind and short name, with words for what a release has of its own."""
    pairs = {"app.kubernetes.io/instance": "chart-instance", "llm-locust/run": _RUN}
    monitors = {"kind": "PodMonitor", "path": "spec/selector/matchLabels", "create": True}
    is_made_of_jobs = mode in LAST
    manifests = "../manifests" if is_made_of_jobs else "manifests"
    overlay, own = ("headless", ["report-container"]) if is_made_of_jobs else (mode, [])
    content: Object = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": _NAMESPACE,
        "namePrefix": f"{_RUN}-",
        "resources": [f"{manifests}/overlays/{overlay}"],
        "components": [f"{manifests}/components/{name}" for name in (*own, *components)],
        "labels": [{"pairs": pairs, "includeSelectors": True, "fields": [monitors]}],
    }
    if mode == "soak":  # each merge of a ConfigMap has undone what the overlay says
        content["patches"] = [{"path": "manifests/overlays/soak/fixed.yaml", "target": CONFIG_MAPS}]
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
