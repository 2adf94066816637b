"""An object store on loopback that speaks as much of S3 as uploads use, or answers as it is told to."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

#: What a client of S3 needs to begin; the secret must never be seen.
SECRET = "store-secret-7f3a9c"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "access-key-1b2d",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; ``size`` is the length that it says, ``cut`` where the connection ends."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: ``name`` is the object's, ``about`` the names in its query."""

    method: str
    name: str
    about: frozenset[str]
    body: bytes


@dataclass(slots=True)
class ObjectStore:
    """Objects of one bucket; ``instead`` may answer a request, given the usual answer."""

    port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    instead: Callable[[Asked, Answer], Answer] = lambda asked, usual: usual

    @property
    def address(self) -> str:
        return f"s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:{self.port}"

    def answer(self, asked: Asked, query: dict[str, list[str]], range_: str | None) -> Answer:
        self.asked.append(asked)
        return self.instead(asked, self._usual(asked, query, range_))

    def _usual(self, asked: Asked, query: dict[str, list[str]], range_: str | None) -> Answer:
        name, content = asked.name, self.objects.get(asked.name)
        match asked.method:
            case "GET" if "list-type" in asked.about:
                return Answer(200, _xml("ListBucketResult", b"<IsTruncated>false</IsTruncated>"))
            case "GET" | "HEAD" if content is None:
                return Answer(404, _xml("Error", b"<Code>NoSuchKey</Code>") if asked.method == "GET" else b"")
            case "HEAD":
                assert content is not None
                return Answer(200, headers=(_etag(content),), size=len(content))
            case "GET":
                assert content is not None
                return _ranged(content, range_)
            case "POST" if "uploads" in asked.about:
                self.parts = {}
                return Answer(200, _xml("InitiateMultipartUploadResult", b"<UploadId>u</UploadId>"))
            case "PUT" if "partNumber" in asked.about:
                self.parts[query["partNumber"][0].zfill(9)] = asked.body
                return Answer(200, headers=(_etag(asked.body),))
            case "POST" if "uploadId" in asked.about:
                self.objects[name] = b"".join(self.parts[n] for n in sorted(self.parts))
                return Answer(200, _xml("CompleteMultipartUploadResult", b"<ETag>e</ETag>"))
            case "PUT":
                self.objects[name] = asked.body
                return Answer(200, headers=(_etag(asked.body),))
            case "DELETE":
                self.objects.pop(name, None)
                return Answer(204)
        return Answer(501)


def _xml(name: str, inside: bytes) -> bytes:
    root = name.encode()
    return b'<?xml version="1.0" encoding="UTF-8"?><%b>%b</%b>' % (root, inside, root)


def _etag(content: bytes) -> tuple[str, str]:
    return "ETag", f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _ranged(content: bytes, range_: str | None) -> Answer:
    if range_ is None:
        return Answer(200, content, (_etag(content),))
    first, _, last = range_.removeprefix("bytes=").partition("-")
    end = min(int(last or len(content)), len(content) - 1)
    part = content[int(first) : end + 1]
    return Answer(206, part, (_etag(content), ("Content-Range", f"bytes {first}-{end}/{len(content)}")))


def _chunks(file: IO[bytes] | BufferedIOBase) -> Iterator[bytes]:
    """The chunks of a body, and its trailers read."""
    while size := int(file.readline().split(b";")[0], 16):
        yield file.read(size)
        file.readline()
    while file.readline().strip():
        pass


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query, keep_blank_values=True)
            body = self._body()
            name = unquote(url.path).removeprefix("/bucket/")
            asked = Asked(self.command, name, frozenset(query), body)
            with suppress(OSError, ValueError):
                self._send(store.answer(asked, query, self.headers.get("Range")))

        def handle_expect_100(self) -> bool:
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.wfile.flush()
            return True

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            else:
                body = b"".join(_chunks(self.rfile))
            signed = "aws-chunked" in self.headers.get("Content-Encoding", "")
            return b"".join(_chunks(BytesIO(body))) if signed else body

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for header in answer.headers:
                self.send_header(*header)
            size = len(answer.body) if answer.size is None else answer.size
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body if answer.cut is None else answer.body[: answer.cut])
            if answer.cut is not None or (self.command != "HEAD" and size != len(answer.body)):
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
