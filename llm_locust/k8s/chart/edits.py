"""Where the chart's values go in an object."""

from typing import Any

from llm_locust.k8s.chart.holes import Holes

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
