"""Response header that a session's next request gives back, so that a gateway keeps it at one replica.

``x-session-token`` is sent back under its own name, as the session affinity of the Gateway API Inference
Extension had it. ``cookie:NAME`` is the cookie of that name: ``Set-Cookie`` in, ``Cookie`` out, as by llm-d's
``session-affinity-scorer`` (``llm-d-session``) and most balancers.

A value comes from a server and goes into the head of a request: it is checked, bounded, and never logged.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_locust.wire.headers import HeaderError, header_template

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
