"""What a test tells its server, and what that tells of it: scripts, options, certificates, the truth."""

import base64
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import msgspec

#: The request header that carries a script, base64url of its JSON. A JSON body's key "script" does too.
SCRIPT_HEADER = "X-Script"


class Step(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing to do, ``at_ms`` after the request was read completely (``None``: with the step before).

    A step has one of:
        send, send_b64: raw bytes for the wire, as text or as bytes (base64 in JSON).
        repeat: with either of them, so many times the bytes, in one write.
        close: close the connection (FIN; under TLS after close_notify unless ``close_notify`` is false).
        reset: abort it (RST).
        stall: do nothing more, for ever.
        close_next, reset_next: read the connection's next request, then close or abort without a byte.
    """

    at_ms: float | None = None
    send: str | None = None
    send_b64: bytes | None = None
    repeat: int = 1
    close: bool = False
    close_notify: bool = True
    reset: bool = False
    stall: bool = False
    close_next: bool = False
    reset_next: bool = False

    def __post_init__(self) -> None:
        said = [self.send is not None, self.send_b64 is not None, self.close, self.reset, self.stall]
        if sum((*said, self.close_next, self.reset_next)) != 1:
            raise ValueError(f"a step does exactly one thing, this one does not: {self!r}")

    @property
    def data(self) -> bytes | None:
        """The bytes to write, ``None`` where the step is no write."""
        once = self.send.encode() if self.send is not None else self.send_b64
        return None if once is None else once * self.repeat


Script = Sequence[Step]


def write(at_ms: float | None, data: bytes | str) -> Step:
    """A step that writes these bytes in one write."""
    return Step(at_ms=at_ms, send_b64=data.encode() if isinstance(data, str) else data)


def script_header(script: Script) -> dict[str, str]:
    """The request header that carries the script."""
    return {SCRIPT_HEADER: base64.urlsafe_b64encode(msgspec.json.encode(list(script))).decode()}


def decode_script(header: str) -> list[Step]:
    """The inverse of :func:`script_header`, from the header's value; missing padding is forgiven.

    Raises:
        ValueError: not base64url, not JSON, or not steps; the text says which.
    """
    padded = header + "=" * (-len(header) % 4)
    return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=list[Step])


def response_head(
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    chunked: bool = True,
    content_length: int | None = None,
    content_type: str = "text/event-stream",
) -> bytes:
    """Status line and headers, blank line included. A ``content_length`` takes the place of chunked."""
    fields = {"Content-Type": content_type, **(headers or {})}
    if content_length is not None:
        fields["Content-Length"] = str(content_length)
    elif chunked:
        fields["Transfer-Encoding"] = "chunked"
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    if not data:
        raise ValueError("an empty chunk ends the body: write last_chunk() for that")
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk() -> bytes:
    """The end of a chunked body."""
    return b"0\r\n\r\n"


def sse(data: bytes | str | Mapping[str, Any]) -> bytes:
    """One server-sent event; a mapping becomes JSON."""
    if isinstance(data, str):
        data = data.encode()
    return b"data: %b\n\n" % (data if isinstance(data, bytes) else msgspec.json.encode(data))


def usage_counts(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """An OpenAI ``usage`` object; ``details`` are further keys of it."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return counts | details


def chat_chunk(
    content: str | None = None,
    *,
    role: str | None = None,
    finish_reason: str | None = None,
    reasoning: str | None = None,
    usage: Mapping[str, Any] | None = None,
    model: str = "scripted",
) -> dict[str, Any]:
    """One ``chat.completion.chunk``. With nothing but usage its ``choices`` is the empty list."""
    said = {"role": role, "content": content, "reasoning_content": reasoning}
    delta = {key: value for key, value in said.items() if value is not None}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    only_usage = usage is not None and not delta and finish_reason is None
    event: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
    event |= {"model": model, "choices": [] if only_usage else [choice]}
    return event if usage is None else event | {"usage": dict(usage)}


def json_response(obj: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole response with a JSON body and its length."""
    body = msgspec.json.encode(obj)
    head = response_head(status, headers, content_length=len(body), content_type="application/json")
    return head + body


def stream_script(
    *,
    ttft_ms: float = 50,
    gap_ms: float = 20,
    tokens: int = 10,
    reasoning: int = 0,
    head_ms: float = 0,
    tail_ms: float = 2,
    done: bool = True,
    usage: bool = True,
    split: int | None = None,
    split_ms: float = 1,
    headers: Mapping[str, str] | None = None,
) -> list[Step]:
    """A whole streamed chat completion, one write per token event, token k at ttft_ms + k·gap_ms.

    Head and role delta go at ``head_ms``; finish reason, usage, ``[DONE]`` and the last chunk in one
    write ``tail_ms`` after the last token. The first ``reasoning`` tokens are reasoning. With ``split``
    each token's bytes are cut there into two writes, the first ``split_ms`` before the token's time.
    """
    steps = [write(head_ms, response_head(headers=headers) + chunk(sse(chat_chunk("", role="assistant"))))]
    for k in range(tokens):
        at_ms, text = ttft_ms + k * gap_ms, f"t{k} "
        event = chat_chunk(reasoning=text) if k < reasoning else chat_chunk(text)
        data = chunk(sse(event))
        if split is not None:
            steps.append(write(at_ms - split_ms, data[:split]))
        steps.append(write(at_ms, data[split:] if split is not None else data))
    tail = chunk(sse(chat_chunk(finish_reason="stop")))
    if usage:
        tail += chunk(sse(chat_chunk(usage=usage_counts(7, tokens))))
    if done:
        tail += chunk(sse("[DONE]"))
    last_token_ms = ttft_ms + (tokens - 1) * gap_ms if tokens else ttft_ms
    return [*steps, write(last_token_ms + tail_ms, tail + last_chunk())]


_DAYS = "30"
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_LEAF = "basicConstraints=critical,CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
_SERVER = (
    _LEAF + "extendedKeyUsage=serverAuth\nsubjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:::1\n"
)
_CLIENT = _LEAF + "extendedKeyUsage=clientAuth\n"


class TlsFiles(msgspec.Struct, frozen=True):
    """Paths of PEM files. The server's certificate is for localhost, 127.0.0.1, 127.0.0.2 and ::1."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str  # common name "scripted-client"
    client_key: str

    def client_context(self, *, mutual: bool = False) -> ssl.SSLContext:
        """A client's context that trusts the authority, with the client's certificate if ``mutual``."""
        context = ssl.create_default_context(cafile=self.ca)
        context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # which Python before 3.11.4 sets
        if mutual:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context

    def server_context(self, *, mutual: bool = False) -> ssl.SSLContext:
        """The server's context; with ``mutual`` it asks for a certificate of the authority's."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.ca)
        context.load_cert_chain(self.server_cert, self.server_key)
        context.verify_mode = ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE
        return context


def make_tls_files(folder: Path) -> TlsFiles:
    """Make the authority and both certificates in ``folder`` with the ``openssl`` program.

    Raises:
        FileNotFoundError: there is no such program.
        subprocess.CalledProcessError: it failed; its words are in ``stderr``.
    """
    _openssl(
        folder,
        *("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", _DAYS),
        *("-subj", "/CN=scripted test authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    _issue(folder, "server", "localhost", _SERVER)
    _issue(folder, "client", "scripted-client", _CLIENT)
    names = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    return TlsFiles(*(str(folder / name) for name in names))


def _issue(folder: Path, stem: str, common_name: str, extensions: str) -> None:
    """A key and a certificate ``stem.{key,pem}``, signed by the authority in the same folder."""
    (folder / f"{stem}.ext").write_text(extensions)
    request = ("-keyout", f"{stem}.key", "-out", f"{stem}.csr", "-subj", f"/CN={common_name}")
    _openssl(folder, "req", "-new", *_KEY, *request)
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{stem}.ext")
    _openssl(folder, "x509", "-req", "-in", f"{stem}.csr", "-out", f"{stem}.pem", "-days", _DAYS, *signing)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


RefuseBy = Literal["reset", "close", "stall"]


class SlowRead(msgspec.Struct, frozen=True):
    """Requests are read slowly: at most ``read_bytes`` each ``every_ms``, behind a small kernel buffer."""

    buffer_bytes: int = 4096
    read_bytes: int = 65536
    every_ms: float = 5


class Options(msgspec.Struct, frozen=True):
    """How one server listens; the arguments of ``scripted_server``."""

    host: str
    port: int
    tls: TlsFiles | None
    mutual: bool
    routes: dict[str, list[Step]]
    refuse: int
    refuse_by: RefuseBy
    slow_read: SlowRead | None
    nodelay: bool = True


class Command(msgspec.Struct, frozen=True):
    """One line on the server's standard input; each is answered by one line of JSON.

    ``log`` is answered at once; ``wait`` when so many requests have ended and connections are closed,
    or after ``timeout_s``; both with the log. ``forget`` closes all connections and empties the log.
    """

    do: Literal["log", "wait", "forget"]
    ended: int = 0
    closed: int = 0
    timeout_s: float = 5


ClosedBy = Literal["client", "server"]


class Write(msgspec.Struct):
    """One write of a script: begun at ``write_ns``, its last byte taken by the kernel at ``done_ns``."""

    step: int  # index into the script
    write_ns: int
    size: int  # bytes of the script, before any TLS
    done_ns: int | None = None


class ServedRequest(msgspec.Struct):
    """One request that was read completely, and how it was answered.

    ``received_ns`` is when the read of its last byte returned. ``ended_ns`` is when its script had
    ended or its connection was closed, whichever came first; ``None`` while neither has.
    """

    connection: int
    number: int  # on its connection, from 1
    method: str
    path: str
    headers: list[tuple[str, str]]  # as sent, in order, without X-Script
    body: bytes
    received_ns: int
    writes: list[Write] = []
    ended_ns: int | None = None
    ended_by: Literal["script"] | ClosedBy | None = None

    @property
    def write_ns(self) -> list[int]:
        """When each write was begun, in order."""
        return [w.write_ns for w in self.writes]

    def header(self, name: str) -> str | None:
        """The first header of that name, whatever its case."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class ServedConnection(msgspec.Struct):
    """One accepted connection. ``error`` is why the server gave it up (TLS failed, not HTTP)."""

    id: int  # from 1, in order of acceptance
    accepted_ns: int
    client_name: str | None = None  # common name of the client's certificate
    closed_ns: int | None = None
    closed_by: ClosedBy | None = None
    error: str | None = None


class Log(msgspec.Struct):
    """Requests in the order of their completion, connections in the order of acceptance."""

    requests: list[ServedRequest] = []
    connections: list[ServedConnection] = []

    @property
    def ended(self) -> int:
        return sum(r.ended_ns is not None for r in self.requests)

    @property
    def closed(self) -> int:
        return sum(c.closed_ns is not None for c in self.connections)
