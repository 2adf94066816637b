"""Files of a run, out of its pod or its volume."""

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from llm_locust.k8s.hold import ENDED, FETCHED, FOLDER
from llm_locust.k8s.kubectl import Kubectl, KubectlError

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
            for block in _blocks(content):
                file.write(block)


def _blocks(content: Any) -> Iterator[bytes]:
    while block := content.read(1 << 20):
        yield block
