"""Changes of master and workers, as strategic merge patches."""

from collections.abc import Mapping
from typing import Any

from llm_locust.core.durations import parse_time
from llm_locust.k8s.plan import OverlayPlan
from llm_locust.k8s.scenario_files import RenderError
from llm_locust.options.table import OPTION
from llm_locust.workload.arrivals import parse_rate

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
    found = {} if plan.kind == "Deployment" else {"activeDeadlineSeconds": _deadline_s(plan)}
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
    end_s = float(plan.options["drain"] + plan.options["flush_timeout"])
    if role == "worker":
        return _WORKER_GRACE_S + end_s
    return _MASTER_GRACE_S + end_s + expected_requests(plan) / _REPORTED_PER_S


def expected_requests(plan: OverlayPlan) -> float:
    """Most requests that the run is expected to send; 0 if nothing limits them."""
    if (number := plan.options["num_requests"]) is not None:
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


def _deadline_s(plan: OverlayPlan) -> int:
    """When Kubernetes ends a Job that has not ended: a day, or longer for a long run."""
    return plan.deadline_s or max(_DAY_S, round((run_time_s(plan) or 0) + _AROUND_S))


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
