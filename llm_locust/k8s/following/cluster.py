"""Objects of one run in a cluster: created, looked at, removed."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from llm_locust.k8s.following.state import RunState, read_state
from llm_locust.k8s.kubectl import Kubectl, KubectlError

#: Kinds of objects of a run, for a command that removes them by their label.
_KINDS = (
    "job,pod,service,configmap,serviceaccount,networkpolicy,poddisruptionbudget,deployment,role,rolebinding"
)

#: Longest wait for objects to be gone.
_GONE_S = 120


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run by its name.

    Attributes:
        objects: its manifests.
        workers: how many it has.
    """

    kubectl: Kubectl
    name: str
    namespace: str
    objects: Sequence[Mapping[str, Any]]
    workers: int

    def create(self) -> None:
        """Create all objects; the namespace only if it is not there (raises KubectlError).

        They are created, not applied: names are new, and the annotation of ``apply`` cannot hold the files of
        a large ConfigMap.
        """
        spaces = [document for document in self.objects if document["kind"] == "Namespace"]
        if spaces:
            with suppress(KubectlError):
                self.kubectl("get", "namespace", self.namespace, "-o", "name")
                spaces = []
        self.kubectl("create", "-f", "-", given=yaml.safe_dump_all([*spaces, *self._own]))

    @property
    def _own(self) -> list[Mapping[str, Any]]:
        return [document for document in self.objects if document["kind"] != "Namespace"]

    @property
    def _label(self) -> str:
        return f"app.kubernetes.io/instance={self.name}"

    def state(self) -> RunState:
        """Ask the API server (raises KubectlError)."""
        text = self.kubectl("get", "pods,jobs", "-l", self._label, "-o", "json")
        try:
            items = json.loads(text)["items"]
        except (ValueError, KeyError) as e:
            raise KubectlError(f"kubectl get: not a list of pods and jobs: {e}") from e
        return read_state(items, self.workers)

    def refusal(self) -> str | None:
        """Why the master's Job makes no pod, such as a quota; None if nothing is said against it."""
        job = f"{self.name}-llm-locust-master"
        field = f"--field-selector=involvedObject.name={job},type=Warning"
        try:
            items = json.loads(self.kubectl("get", "events", field, "-o", "json"))["items"]
        except (KubectlError, ValueError, KeyError):
            return None
        failed = [item for item in items if item.get("reason") == "FailedCreate"]
        return f"job {job} makes no pod: {failed[-1].get('message', '')}" if failed else None

    def delete(self) -> None:
        """Remove all objects but the namespace, which others may use (raises KubectlError)."""
        words = ("delete", "-f", "-", "--ignore-not-found", f"--timeout={_GONE_S}s")
        self.kubectl(*words, given=yaml.safe_dump_all(self._own), within_s=_GONE_S + 30)

    @property
    def removal(self) -> str:
        """The command that removes what is left."""
        return f"kubectl -n {self.namespace} delete {_KINDS} -l {self._label}"
