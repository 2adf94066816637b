"""The header lines of requests: what all share as bytes made once, templates filled for each."""

from collections.abc import Mapping
from dataclasses import dataclass

from llm_locust.client.recording import Call
from llm_locust.wire.headers import HeaderTemplate, header_lines, header_templates


@dataclass(frozen=True, slots=True)
class Head:
    """Header lines but for those of the single request: its id and its body's length."""

    fixed: bytes
    templates: tuple[HeaderTemplate, ...] = ()


def make_head(authority: str, headers: Mapping[str, str]) -> Head:
    """The lines of requests to a host. The user's own headers replace ours of the same name.

    Raises:
        HeaderError: one that cannot be sent.
    """
    ours = {
        "Host": authority,
        "User-Agent": "llm-locust",
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    lines = {name.lower(): HeaderTemplate(name, (value,)) for name, value in ours.items()}
    lines |= header_templates(headers)
    fixed = header_lines((h.name, h.texts[0]) for h in lines.values() if h.fixed)
    return Head(fixed, tuple(h for h in lines.values() if not h.fixed))


def call_fields(call: Call, *, worker: str, seq: int) -> dict[str, str]:
    """What the templates of one request are filled with.

    A request that belongs to no session counts as its user's: all requests of one user then share a
    ``{session}``, as a server that routes by sessions expects of one person.

    Args:
        worker: this process's name.
        seq: the request's number in this process.
    """
    user = "" if call.user is None else str(call.user)
    return {
        "class": call.slo_class,
        "name": call.name,
        "request_id": call.request_id,
        "seq": str(seq),
        "session": f"{worker}-{user}" if call.session is None else call.session,
        "turn": str(call.turn or 0),
        "user": user,
        "worker": worker,
    }


def header_value(request: bytes, name: bytes) -> str | None:
    """The value of a request's first header of this name, which is in lower case; None without one."""
    head = request[: request.index(b"\r\n\r\n") + 2]
    at = head.lower().find(b"\r\n%b:" % name)
    if at < 0:
        return None
    begin = at + len(name) + 3
    return head[begin : head.index(b"\r\n", begin)].decode("latin-1").strip()


def with_lines(request: bytes, lines: bytes) -> bytes:
    """A request with further header lines, before its others."""
    first, rest = request.split(b"\r\n", 1)
    return b"%b\r\n%b%b" % (first, lines, rest)
