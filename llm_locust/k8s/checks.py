"""Syntax of what a manifest names: objects, labels, images, amounts, variables."""

import re
from collections.abc import Iterable

from llm_locust.core.texts import parse_time
from llm_locust.options.table import OPTION
from llm_locust.store.destination import check_address
from llm_locust.wire.foreign_text import is_key_name, public_url

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(_LABEL)
_DOTTED = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?/)?"  # the registry
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_LABEL_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"(?:{_DOTTED.pattern}/)?{_LABEL_NAME}")
_LABEL_VALUE = re.compile(rf"(?:{_LABEL_NAME})?")
_MEMORY = re.compile(r"[1-9][0-9]*(?:[KMGT]i|[kMGT])")
_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_HEADER = OPTION["header"].variable
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Longest name of a run: the names of its objects and pods begin with it, and have 63 characters at most.
LONGEST_NAME = 30


def run_name(text: str) -> str:
    """Name of a run, which the names of its Services begin with.

    Raises:
        ValueError: not one, as for the other functions here.
    """
    if not _NAME.fullmatch(text) or not text[0].isalpha() or len(text) > LONGEST_NAME:
        raise ValueError(
            f"{text!r} is not a name: a small letter, then small letters, digits and dashes, "
            f"{LONGEST_NAME} at most"
        )
    return text


def object_name(text: str) -> str:
    """Name of a Secret, a claim, a service account."""
    if not _DOTTED.fullmatch(text) or len(text) > 253:
        raise ValueError(f"{text!r} is not the name of an object: small letters, digits, dashes and dots")
    return text


def namespace_name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > 63:
        raise ValueError(f"{text!r} is not a namespace: small letters, digits and dashes, 63 at most")
    return text


def image_name(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"{text!r} is not an image: write NAME:TAG or NAME@sha256:DIGEST")
    return text


def label(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, given, value = text.partition("=")
    if not given or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
        raise ValueError(f"{text!r} is not a label: write KEY=VALUE, such as team=inference")
    return key, value


def toleration(text: str) -> dict[str, str]:
    """``KEY[=VALUE][:EFFECT]``."""
    term, _, effect = text.partition(":")
    key, given, value = term.partition("=")
    if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value) or effect not in ("", *_EFFECTS):
        raise ValueError(
            f"{text!r} is not a toleration: write KEY[=VALUE][:EFFECT], such as dedicated=load:NoSchedule"
        )
    found = {"key": key, "operator": "Equal" if given else "Exists"}
    return found | ({"value": value} if given else {}) | ({"effect": effect} if effect else {})


def whole_cpus(text: str) -> str:
    """A whole number: the kubelet gives a core of its own to nothing else."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of CPUs, which a worker needs: write 1 or more")
    return str(int(text))


def memory(text: str) -> str:
    if not _MEMORY.fullmatch(text):
        raise ValueError(f"{text!r} is not an amount of memory: write one such as 2Gi")
    return text


def variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` of an environment, which is not a secret."""
    name, given, value = text.partition("=")
    if not given or not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable: write NAME=VALUE")
    if is_key_name(name) or name.endswith("_HEADERS") or (name == _HEADER and _names_a_key(value)):
        raise ValueError(
            f"{name} would be in the manifests, which others can read: put it into a Secret and name that by "
            "--env-from secret/NAME"
        )
    return name, value


def _names_a_key(headers: str) -> bool:
    """Whether ``NAME=VALUE``, or one in a list of such, is a header with a key."""
    texts = headers.strip("[] ").split(",") if headers.startswith("[") else [headers]
    return any(is_key_name(text.partition("=")[0].strip(" '\"")) for text in texts)


def variables_of(text: str) -> dict[str, dict[str, str]]:
    """``secret/NAME`` or ``configmap/NAME``: the source of an environment."""
    kind, _, name = text.partition("/")
    kinds = {"secret": "secretRef", "configmap": "configMapRef"}
    if kind not in kinds or not _DOTTED.fullmatch(name):
        raise ValueError(f"{text!r} is not a source of variables: write secret/NAME or configmap/NAME")
    return {kinds[kind]: {"name": name}}


def whole_seconds(text: str) -> int:
    seconds = parse_time(text)
    if seconds < 1 or not seconds.is_integer():
        raise ValueError(f"{text!r}: write whole seconds from 1s, such as 90s or 1h30m")
    return int(seconds)


def volume(text: str) -> tuple[str, str]:
    """``CLAIM[:/PATH]``; without a path the claim is for the results, ``/runs``."""
    claim, given, path = text.partition(":")
    parts = path.split("/")
    is_path = path.startswith("/") and path != "/" and ".." not in parts and path.isprintable()
    if not _DOTTED.fullmatch(claim) or (given and not is_path):
        raise ValueError(f"{text!r} is not a volume: write CLAIM for the results, or CLAIM:/PATH")
    path = path.rstrip("/") or "/runs"
    if path in ("/load", "/tmp") or path.startswith(("/load/", "/tmp/")):
        raise ValueError(f"{text!r}: {path} is taken; choose another path, such as /data")
    return claim, path


def key_of_secret(text: str) -> str:
    """``SECRET/KEY``: a key of a Secret of the run's namespace."""
    name, _, key = text.partition("/")
    if not _DOTTED.fullmatch(name) or not _SECRET_KEY.fullmatch(key):
        raise ValueError(f"{text!r} is not SECRET/KEY, the name of a Secret and one of its keys")
    return text


def destination(text: str) -> str:
    """Where a pod can copy its run to: an object store, or a folder of a volume."""
    if not text.startswith(("s3://", "gs://", "file:///", "/")):
        raise ValueError(f"{public_url(text)!r} is no destination: write s3://bucket/prefix or gs://bucket")
    check_address(text)
    return text


def twice(texts: Iterable[str]) -> str | None:
    """The first text that is there a second time."""
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            return text
        seen.add(text)
    return None
