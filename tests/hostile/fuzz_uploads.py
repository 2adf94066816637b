"""Fuzzer of uploads: a run directory that may be forged, to a store or a folder of a stranger.

Object stores are read in C++, which no audit hook hears. So what leaves this process is judged by what the
store was sent, and what it prints by what its own standard error holds.
"""

import atexit
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from forged_tables import Choices, forged_bytes
from fuzz_run_dirs import FORGED, GOOD, OUT, OUTSIDE, called, forge, mutate
from fuzz_target import Target
from object_store import ENVIRONMENT, SECRET, Answer, Asked, object_store

from llm_locust.cli.main import main
from llm_locust.store import MANIFEST_FILE
from llm_locust.store.upload import INDEX_FILE

#: No answer of the store is late, so an upload is not either.
_MOST_S = 10.0

os.environ.update(ENVIRONMENT)
_opened = ExitStack()
_store = _opened.enter_context(object_store())
atexit.register(_opened.close)

_ESCAPES = b"\x1b[31mred\x07\r\nline\xff\x00"
_BOMB = b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + b"".join(
    b'<!ENTITY %c "%b">' % (c, b"&%c;" % (c - 1) * 10) for c in range(ord("b"), ord("j"))
)

_BODIES = (
    b"",
    b"x",
    b"\x00" * 100,
    b"<",
    b"<R/>",
    b"<Error>" * 2_000,
    b"<R>" + b"<Contents><Key>x</Key></Contents>" * 20_000 + b"</R>",
    b"<Error><Code>" + _ESCAPES + b"</Code><Message>" + _ESCAPES + b"</Message></Error>",
    b"<Error><Code>X</Code><Message>&#27;[31m&#10;second&#8238;</Message></Error>",
    b"<Error><Code>X</Code><Message>" + b"m" * 200_000 + b"</Message></Error>",
    b"<Error><Code>" + b"SlowDown" * 5_000 + b"</Code></Error>",
    b"<Error><Code>AccessDenied</Code><Message>" + SECRET.encode() + b"</Message></Error>",
    b"<Error><Code>InternalError</Code></Error>",
    b"<InitiateMultipartUploadResult><UploadId>../../x?a=b&amp;\n</UploadId></InitiateMultipartUploadResult>",
    b"<InitiateMultipartUploadResult/>",
    b"<CompleteMultipartUploadResult/>",
    b"<?xml version='1.0'?>" + _BOMB + b"]><Error><Code>&i;</Code></Error>",
    b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x SYSTEM 'file://%b'>]><Error><Code>&x;</Code></Error>"
    % str(OUTSIDE).encode(),
    b'{"files": {}}',
    b'{"files": {"../../../outside.yaml": {"size": 16, "sha256": ""}}}',
    b"[" * 100_000,
)
_STATUSES = (200, 200, 204, 206, 301, 302, 307, 308, 400, 403, 404, 409, 412, 416, 429, 500, 503, 999)
_LARGE = "9" * 30
_HEADERS = (
    ("ETag", '"0"'),
    ("ETag", "\x1b[31m"),
    ("Location", f"file://{OUTSIDE}"),
    ("Location", "http://127.0.0.1:9/x"),
    ("Location", "/b/x"),
    ("Location", "gopher://127.0.0.1:9/x"),
    ("Content-Type", "application/x-directory"),
    ("Content-Encoding", "gzip"),
    ("Content-Range", "bytes 5-1/0"),
    ("Content-Range", f"bytes 0-{_LARGE}/{_LARGE}"),
    ("Last-Modified", "Fri, 99 Foo 99999 99:99:99 GMT"),
    ("x-amz-bucket-region", "../../evil"),
    ("x-amz-checksum-crc32", "AAAA"),
    ("x-amz-error-message", "a" * 50_000),
    ("Retry-After", "86400"),
    ("Set-Cookie", "a=b" * 1_000),
)
_SIZES = (0, 1, 5, 1 << 26, (1 << 26) + 1, 1 << 40, (1 << 63) - 1, 1 << 63, 10**30, -1)


def _forged_answer(usual: Answer, choices: Choices) -> Answer:
    status, body, headers, size, cut = usual.status, usual.body, usual.headers, usual.size, usual.cut
    for _ in range(choices.one((1, 1, 2, 3))):
        match choices.below(6):
            case 0:
                status = choices.one(_STATUSES)
            case 1 | 2:
                body, size = choices.one(_BODIES), None
            case 3:
                headers = (*headers, choices.one(_HEADERS))
            case 4:
                size = choices.one(_SIZES)
            case _:
                cut = choices.below(max(len(body), 1))
    return Answer(status, body, headers, size, cut)


def _listed() -> dict[str, bytes]:
    """What an upload of the good run leaves."""
    with _opened_store():
        assert main(["upload", str(GOOD), _store.address]) == 0
        return dict(_store.objects)


@contextmanager
def _opened_store() -> Iterator[None]:
    _store.objects.clear()
    _store.asked.clear()
    _store.instead = lambda asked, usual: usual
    yield
    _store.instead = lambda asked, usual: usual


_good_objects = _listed()


def _objects(choices: Choices) -> dict[str, bytes]:
    """What is at the destination: nothing, or an earlier upload of this run whose lists are forged."""
    if not choices.below(3):
        return {}
    run_id = json.loads((GOOD / MANIFEST_FILE).read_bytes())["id"]
    forged_id = _id_of(FORGED) or run_id
    objects = {name.replace(run_id, forged_id): content for name, content in _good_objects.items()}
    for name in (INDEX_FILE, MANIFEST_FILE):
        at = next((key for key in objects if key.endswith(name)), "")
        if at and choices.below(2):
            document: Any = json.loads(objects[at])
            mutate(document, choices)
            if name == INDEX_FILE and choices.below(2) and isinstance(document.get("files"), dict):
                entry = {"size": choices.one(_SIZES), "sha256": "0" * 64}
                way = choices.one(("../../outside.yaml", "/outside.yaml", "a/../../b", "\0", "x.expired", ""))
                document["files"][way] = entry
            with suppress(RecursionError):
                objects[at] = json.dumps(document).encode()
        elif at and not choices.below(4):
            path = OUT.with_name("bytes")
            path.write_bytes(objects[at])
            forged_bytes(path, choices)
            objects[at] = path.read_bytes()
    return objects


def _id_of(run: Path) -> str:
    try:
        return str(json.loads((run / MANIFEST_FILE).read_bytes())["id"])
    except (ValueError, KeyError, TypeError):
        return ""


def _content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _uploads(case: bytes) -> None:
    choices = Choices(case)
    if choices.below(2) or not forge(choices):
        shutil.rmtree(FORGED, ignore_errors=True)
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.copytree(GOOD, FORGED)
    before, outside = _content(FORGED), OUTSIDE.read_bytes()
    with _opened_store():
        _store.objects.update(_objects(choices))
        if choices.below(4):
            to = _store.address
            first, count = choices.below(50), choices.one((1, 1, 2, 100))
            _store.instead = _hostile(first, count, choices)
        else:
            to = str(OUT)
            for name, content in _store.objects.items():
                path = OUT / name.removeprefix("x/")
                if path.resolve().is_relative_to(OUT) and "\0" not in name and len(name) < 200:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        began_s = time.monotonic()
        with _no_words_in_stderr():
            called(("upload", str(FORGED), to, "--attempts", "1"))
        took_s = time.monotonic() - began_s
    assert took_s < _MOST_S, f"{took_s:.1f} s"
    assert _content(FORGED) == before, "the run directory was changed"
    assert OUTSIDE.read_bytes() == outside
    for asked in _store.asked:
        assert asked.name.startswith("x/") or asked.name in ("", "x"), asked.name
        assert outside not in asked.body
        assert SECRET.encode() not in asked.body


def _hostile(first: int, count: int, choices: Choices) -> Any:
    number = 0

    def instead(_: Asked, usual: Answer) -> Answer:
        nonlocal number
        number += 1
        return _forged_answer(usual, choices) if first < number <= first + count else usual

    return instead


@contextmanager
def _no_words_in_stderr() -> Iterator[None]:
    """No library writes to the descriptor itself: it would not make the words fit for a terminal."""
    with tempfile.TemporaryFile(dir=OUT.parent) as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        said = file.read()
    assert not said, said[:2_000]


UPLOADS = Target(
    "uploads",
    _uploads,
    (*(bytes([0, n]) for n in range(0, 256, 5)), b"\x01\x02", b"\x7f\xff", bytes(2)),
    tuple(bytes((n * k * 41 + k * k * 13) % 256 for k in range(1, 40)) for n in range(1, 60)),
    most_bytes=96,
)
