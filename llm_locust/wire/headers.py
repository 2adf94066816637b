"""Header lines of requests: what a user may set, and templates that are filled for each request.

``{session}`` in a value, or another of :data:`HEADER_FIELDS`, is filled in; ``{{`` stands for a brace
itself. Braces around anything that is not a word are as they stand, so that JSON needs no care. No
error text shows a value: it may be a secret.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

#: What may stand in braces in a header's value.
HEADER_FIELDS = ("class", "name", "request_id", "seq", "session", "turn", "user", "worker")

#: Names that are each request's own, in lower case, and why.
RESERVED = {
    "connection": "say by --connection-reuse how long connections are kept",
    "content-length": "it is each body's own",
    "transfer-encoding": "a body is sent whole, with its length",
    "x-request-id": "it is each request's own; put {request_id} into a header of another name",
}

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WORD = r"[A-Za-z_][\w-]*"
_BRACES = re.compile(rf"\{{\{{(?:({_WORD})\}}\}})?|\{{({_WORD})\}}", re.ASCII)
_NOT_SENDABLE = re.compile(r"[^ -~]")


class HeaderError(ValueError):
    """A header that cannot be sent; the text names it, and never shows its value."""


@dataclass(frozen=True, slots=True)
class HeaderTemplate:
    """A header's name, and its value in pieces: text and a field's name by turns, text at both ends."""

    name: str
    pieces: tuple[str, ...]

    @property
    def fixed(self) -> bool:
        """The value is the same in every request."""
        return len(self.pieces) == 1

    @property
    def texts(self) -> tuple[str, ...]:
        """What of the value is the same in every request."""
        return self.pieces[::2]

    def value(self, fields: Mapping[str, str]) -> str:
        """The value for one request. What no header can hold of a field becomes ``?``."""
        pieces = list(self.pieces)
        pieces[1::2] = [_NOT_SENDABLE.sub("?", fields[name]) for name in self.pieces[1::2]]
        return "".join(pieces)


def shown_name(text: str) -> str:
    """A header's name for an error text: only what is before a colon or blank, as what is behind may be its
    value."""
    name = _NAME.match(text.strip())
    if name is None or name[0] == text:
        return "what is there" if name is None else repr(name[0][:40])
    return f"what begins with {name[0][:40]!r}"


def header_template(name: str, value: str) -> HeaderTemplate:
    """A header as its user writes it.

    Raises:
        HeaderError: a name or a value that no header can have, a reserved name, an unknown field.
    """
    if not _NAME.fullmatch(name):
        raise HeaderError(f"{shown_name(name)} is no header name: write NAME=VALUE, such as X-Team=inference")
    if why := RESERVED.get(name.lower()):
        raise HeaderError(f"the header {name!r} cannot be set: {why}")
    if not all((" " <= c <= "\xff" and c != "\x7f") or c == "\t" for c in value):
        raise HeaderError(f"the value of {name!r} holds a line break or a character that no header can hold")
    pieces, text, end = [], "", 0
    for found in _BRACES.finditer(value):
        text += value[end : found.start()]
        end = found.end()
        field = found[2]
        if field is None:
            text += f"{{{found[1]}}}" if found[1] else "{"
        elif field in HEADER_FIELDS:
            pieces += [text, field]
            text = ""
        else:
            raise HeaderError(
                f"the value of {name!r} has in braces, at character {found.start() + 1}, a word that is no "
                f"field; there are {', '.join(f'{{{f}}}' for f in HEADER_FIELDS)}; "
                "write {{ for a brace itself"
            )
    return HeaderTemplate(name, (*pieces, text + value[end:]))


def header_templates(headers: Mapping[str, str]) -> dict[str, HeaderTemplate]:
    """By name in lower case; of two that differ only in case the later one counts (raises HeaderError)."""
    return {name.lower(): header_template(name, value) for name, value in headers.items()}


def secret_texts(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Texts of the values that must not stand in any file, log or page.

    Of ``Authorization: Bearer TOKEN`` the token alone too; of a template what stands around its fields.
    A text of under four characters would blank out half of every message.
    """
    texts = [(name, text) for name, t in header_templates(headers).items() for text in t.texts]
    tokens = [text.split()[-1] for name, text in texts if name.endswith("authorization") and text.strip()]
    return tuple(text for text in (*(text for _, text in texts), *tokens) if len(text) >= 4)


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Names and values as the lines of a head."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def as_last(request: bytes) -> bytes:
    """The same request, marked as the last one of its connection (RFC 9112, 9.6)."""
    return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


# --- Response header that a session's next request gives back, so that a gateway keeps it at one replica
#
# ``x-session-token`` is sent back under its own name, as the session affinity of the Gateway API Inference
# Extension had it. ``cookie:NAME`` is the cookie of that name: ``Set-Cookie`` in, ``Cookie`` out, as by
# llm-d's ``session-affinity-scorer`` (``llm-d-session``) and most balancers.
#
# A value comes from a server and goes into the head of a request: it is checked, bounded, and never logged.


#: Longest value that is given back: browsers keep cookies of this length.
MOST_CHARS = 4096

#: Most memory for the values of one server, with some 300 bytes for each session that has one.
MOST_BYTES, _OF_ENTRY_BYTES = 32 << 20, 300

#: What a follow-up turn had: the value, none because none was given, or none because it cannot be sent.
Fate = Literal["echoed", "missing", "refused"]

_SENDABLE = re.compile(rb"[!-~]+(?: +[!-~]+)*")
_COOKIE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")

#: Headers that every request has by itself, or that are no session's.
_NOT_OURS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "content-type",
        "cookie",
        "host",
        "set-cookie",
        "user-agent",
    }
)

#: Values in an error text are blanked from this length on: a shorter one may be any word.
_LEAST_HIDDEN = 8


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """Where a server's value is found, and where it goes: a header, or one cookie.

    Attributes:
        takes: response header, in lower case.
        sends: request header, in lower case.
        cookie: name of the cookie in both.
    """

    takes: bytes
    sends: bytes
    cookie: bytes | None = None

    @classmethod
    def parse(cls, text: str) -> "SessionHeader":
        """Parse ``NAME`` or ``cookie:NAME`` (raises HeaderError)."""
        kind, colon, cookie = text.strip().partition(":")
        if colon:
            if kind.lower() != "cookie" or not _COOKIE.fullmatch(cookie):
                raise HeaderError(f"{text[:60]!r}: write a header such as x-session-token, or cookie:NAME")
            return cls(b"set-cookie", b"cookie", cookie.encode())
        header_template(kind, "")
        name = kind.lower()
        if name in _NOT_OURS:
            instead = "write cookie:NAME for one cookie" if "cookie" in name else "every request has its own"
            raise HeaderError(f"the header {kind!r} cannot be given back: {instead}")
        return cls(name.encode(), name.encode())

    def given(self, headers: Mapping[bytes, bytes]) -> bytes | None:
        """The value in a response's headers, as it stands there; None without one."""
        found = headers.get(self.takes)
        if found is None or self.cookie is None:
            return found
        of_cookie = None
        for line in found.split(b"\n"):
            name, equals, value = line.partition(b";")[0].partition(b"=")
            if equals and name.strip() == self.cookie:
                of_cookie = value.strip()  # of two the later one counts
        return of_cookie

    def line(self, value: bytes) -> bytes:
        """The line of a request's head."""
        return b"%b: %b\r\n" % (self.sends, value if self.cookie is None else b"%b=%b" % (self.cookie, value))


class SessionTokens:
    """What one server has given to each session; those that were not used for longest are forgotten."""

    __slots__ = ("_bytes", "_given", "header")

    def __init__(self, header: SessionHeader) -> None:
        self.header = header
        self._given: OrderedDict[str, bytes | None] = OrderedDict()  # None: one that cannot be sent
        self._bytes = 0

    def line(self, session: str | None) -> bytes:
        """The line for a session's next request; empty without a value."""
        if session is None or (value := self._given.get(session)) is None:
            return b""
        return self.header.line(value)

    def fate(self, session: str | None, turn: int | None, request: bytes) -> Fate | None:
        """What a request had of it; None of a first turn, and of a request of no session.

        To be asked before :meth:`take` has the request's own answer.
        """
        if session is None:
            return None
        head = request[: request.index(b"\r\n\r\n")]
        if b"\r\n%b: " % self.header.sends in head:
            return "echoed"
        if not turn:
            return None
        return "refused" if self._given.get(session, b"") is None else "missing"

    def take(self, session: str | None, headers: Mapping[bytes, bytes]) -> tuple[str, ...]:
        """Keep what an answer gives to its session; return the texts that must not stand in its record.

        An answer without the header changes nothing; an empty value takes the earlier one back.
        """
        if session is None:
            return ()
        before, given = self._given.get(session), self.header.given(headers)
        if given is not None:
            self._keep(session, given)
        values = {value for value in (before, given) if value is not None and len(value) >= _LEAST_HIDDEN}
        return tuple(value[:MOST_CHARS].decode("latin-1") for value in values)

    def _keep(self, session: str, given: bytes) -> None:
        if session in self._given:
            self._bytes -= _size(self._given.pop(session))
        if not given:
            return
        sendable = len(given) <= MOST_CHARS and _SENDABLE.fullmatch(given) is not None
        self._given[session] = value = given if sendable else None
        self._bytes += _size(value)
        while self._bytes > MOST_BYTES:
            self._bytes -= _size(self._given.popitem(last=False)[1])


def _size(value: bytes | None) -> int:
    return _OF_ENTRY_BYTES + (0 if value is None else len(value))
