"""Files of a run in a cluster: its log as it grows, and its directory out of a pod or a volume."""

import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from llm_locust.k8s.hold import ENDED, FETCHED, FOLDER
from llm_locust.k8s.kubectl import ClusterRun, Kubectl, KubectlError

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
        FetchError: it did not arrive whole, three times.
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
    """Copy the run directory from the claim, as :func:`~llm_locust.k8s.files.fetch` does it.

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
