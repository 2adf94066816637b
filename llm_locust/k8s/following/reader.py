"""A pod that reads a run's files from its volume, after the master has ended."""

import json
from pathlib import Path

from llm_locust.k8s.following.cluster import ClusterRun
from llm_locust.k8s.following.fetch import CopyError, fetch

_READY_S = 180


def fetch_from_volume(cluster: ClusterRun, claim: str, to: Path) -> bool:
    """Copy the run directory from the claim, as :func:`~llm_locust.k8s.following.fetch.fetch` does it.

    Raises:
        KubectlError: the pod cannot be created.
        FetchError: it does not run, or the files did not arrive.
    """
    pod = f"{cluster.name}-files"
    cluster.kubectl("create", "-f", "-", given=json.dumps(_pod(cluster, pod, claim)))
    try:
        try:
            words = (f"pod/{pod}", "--for=condition=Ready", f"--timeout={_READY_S}s")
            cluster.kubectl("wait", *words, within_s=_READY_S + 10)
        except ValueError as e:
            raise CopyError(f"pod {pod}, which reads the volume, does not run: {e}") from e
        return fetch(cluster.kubectl, pod, "files", cluster.name, to)
    finally:
        cluster.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")


def _pod(cluster: ClusterRun, name: str, claim: str) -> dict[str, object]:
    """The master's pod, as restricted as that, with another command."""
    (master,) = (
        document
        for document in cluster.objects
        if document["kind"] == "Job" and document["metadata"]["name"].endswith("llm-locust-master")
    )
    spec = master["spec"]["template"]["spec"]
    (first,) = (container for container in spec["containers"] if container["name"] == "master")
    keys = ("image", "imagePullPolicy", "securityContext")
    kept = ("nodeSelector", "tolerations", "imagePullSecrets", "securityContext", "serviceAccountName")
    mounts = [{"name": "runs", "mountPath": "/runs"}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": claim}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
    ]
    container = {
        "name": "files",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": mounts,
        **{key: first[key] for key in keys},
    }
    labels = {"app.kubernetes.io/instance": cluster.name, "app.kubernetes.io/component": "files"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            "volumes": volumes,
            **{key: spec[key] for key in kept if key in spec},
        },
    }
