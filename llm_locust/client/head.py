"""Header lines of requests: the shared ones made once as bytes, templates filled for each request."""

from collections.abc import Mapping
from dataclasses import dataclass

from llm_locust.client.recording import Call
from llm_locust.wire.headers import HeaderTemplate, header_lines, header_templates


@dataclass(frozen=True, slots=True)
class Head:
    """Header lines without those of the single request: its id and its body's length."""

    fixed: bytes
    templates: tuple[HeaderTemplate, ...] = ()


def make_head(authority: str, headers: Mapping[str, str]) -> Head:
    """Make the lines of requests to a host. The user's headers override the defaults of the same name.

    Raises:
        HeaderError: a header cannot be sent.
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
    """Values for the templates of one request.

    A request without a session uses its user's id, so that all requests of one user share a ``{session}``, as
    a server that routes by sessions expects.

    Args:
        worker: name of this process.
        seq: number of the request in this process.
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
    """Value of a request's first header with this lower-case name; None without one."""
    head = request[: request.index(b"\r\n\r\n") + 2]
    at = head.lower().find(b"\r\n%b:" % name)
    if at < 0:
        return None
    begin = at + len(name) + 3
    return head[begin : head.index(b"\r\n", begin)].decode("latin-1").strip()


def with_lines(request: bytes, lines: bytes) -> bytes:
    """Insert further header lines at the start of a request's header."""
    first, rest = request.split(b"\r\n", 1)
    return b"%b\r\n%b%b" % (first, lines, rest)
