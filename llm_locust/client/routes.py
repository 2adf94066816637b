"""Routes of requests to their servers: one through a balancer, or one to each of several replicas."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from llm_locust.client.http.connection import Connection
from llm_locust.client.http.pool import Pool
from llm_locust.client.recording import Call, Link
from llm_locust.core.record import SessionHeaderEcho
from llm_locust.wire.headers import (
    HeaderTemplate,
    SessionHeader,
    SessionTokens,
    header_lines,
    header_templates,
)

# --- Header lines of requests: the shared ones made once as bytes, templates filled for each request


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


#: Header lines of requests for each route, by its index.
Heads = tuple[Head, ...]


class Chooser(Protocol):
    """Chooses the target of each request, an index from 0; notified when the request starts and ends."""

    def choose(self, session: str | None) -> int:
        """Target of a request of ``session``; None if it belongs to none."""
        ...

    def began(self, target: int) -> None: ...

    def ended(self, target: int) -> None: ...


class Route:
    """Route to one target.

    Args:
        place: its index among a client's routes.
        direct: the target is a replica itself: everything that no response header attributes to another one
            is attributed to the target, including refused connections.
        arm: name of the target in an interleaved comparison.
        session_header: what the target gives to a session, and to no other target.
    """

    __slots__ = ("_direct", "_names", "arm", "base", "place", "pool", "query", "tokens")

    def __init__(
        self,
        pool: Pool,
        place: int = 0,
        *,
        direct: bool = False,
        arm: str | None = None,
        session_header: SessionHeader | None = None,
    ) -> None:
        self.pool = pool
        self.place = place
        self.arm = arm
        self.base = pool.target.base.encode()
        self.query = pool.target.query
        self.tokens = None if session_header is None else SessionTokens(session_header)
        self._direct = direct
        self._names: set[str] = set()  # named by its answers: two are enough to show that it is not a replica

    def replica(self, named: str | None) -> str | None:
        """Replica of a request whose answer, if any, ``named`` one.

        A direct target uses the one name in its answers so far, so that failures of a replica are listed with
        its successes. Before the first name, and if there were several, it uses its authority.
        """
        if not self._direct:
            return named
        if named is None:
            return next(iter(self._names)) if len(self._names) == 1 else self.pool.target.authority
        if len(self._names) < 2:
            self._names.add(named)
        return named

    def link(
        self,
        named: str | None,
        connection: Connection | None,
        *,
        reused: bool,
        retries: int = 0,
        rtt_ns: int | None = None,
        echo: SessionHeaderEcho | None = None,
    ) -> Link:
        """What is recorded of a request's connection, if any; its answer, if any, ``named`` a replica."""
        return Link(
            peer=None if connection is None else connection.peer,
            local_port=None if connection is None else connection.local_port,
            reused=reused,
            retries=retries,
            rtt_ns=rtt_ns,
            replica=self.replica(named),
            arm=self.arm,
            session_header=echo,
        )

    def post(self, path: str, body: bytes, lines: bytes, call: Call) -> bytes:
        """Bytes of a POST with these header lines to a path below the base of the target's API."""
        if self.tokens is not None:
            lines += self.tokens.line(call.session)
        where = self.pool.target.path(path).encode() if self.query else self.base + path.encode()
        return b"POST %b HTTP/1.1\r\n%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            where,
            lines,
            call.request_id.encode(),
            len(body),
            body,
        )

    def echo(self, call: Call, request: bytes) -> SessionHeaderEcho | None:
        """What a request of this route had of its session's header."""
        fate = None if self.tokens is None else self.tokens.fate(call.session, call.turn, request)
        return None if fate is None else SessionHeaderEcho(fate)

    def take(
        self, call: Call, request: bytes, headers: Mapping[bytes, bytes]
    ) -> tuple[SessionHeaderEcho | None, tuple[str, ...]]:
        """Keep what the answer gives to its session.

        Returns:
            What its request had, and the texts that its record must not have.
        """
        if self.tokens is None:
            return None, ()
        echo = self.echo(call, request)
        return echo, self.tokens.take(call.session, headers)

    def moved(self, path: bytes, first: "Route") -> bytes:
        """Translate a path below the API of the ``first`` route's target to one below this target's API."""
        return self.base + path.removeprefix(first.base) if path.startswith(first.base) else path


class Routes:
    """Targets of a client, of which each request goes to one.

    The chooser decides, whether or not the chosen target answers: none is left out, and no other is tried in
    its place.

    Args:
        pools: connections to each target.
        chooser: chooses among the targets, which are replicas then; None: there is one target, which may be a
            balancer in front of replicas.
        session_of: key of a request, for choosers that keep requests of one key together.
        arms: names of the targets in an interleaved comparison, in which each may be a balancer.
        session_header: as in :class:`Route`, of every target.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        chooser: Chooser | None = None,
        session_of: Callable[[Call], str | None] = lambda call: call.session,
        arms: Sequence[str] = (),
        session_header: SessionHeader | None = None,
    ) -> None:
        direct = chooser is not None and not arms
        self._routes = tuple(
            Route(pool, i, direct=direct, arm=arms[i] if arms else None, session_header=session_header)
            for i, pool in enumerate(pools)
        )
        self._chooser = chooser
        self._session_of = session_of
        self.first = self._routes[0]

    @property
    def authorities(self) -> tuple[str, ...]:
        """Host and port of each target."""
        return tuple(route.pool.target.authority for route in self._routes)

    @property
    def dialling(self) -> int:
        """Number of connections being opened."""
        return sum([route.pool.dialling for route in self._routes])

    def draw(self, session: str | None) -> int | None:
        """Draw the arm of a request whose prompt is about to be made, by its index; None without arms."""
        return None if self.first.arm is None or self._chooser is None else self._chooser.choose(session)

    def choose(self, call: Call) -> Route:
        """Choose the route of a request that is about to be sent."""
        if call.target is not None:
            return self._routes[call.target]
        if self._chooser is None:
            return self.first
        return self._routes[self._chooser.choose(self._session_of(call))]

    def began(self, route: Route) -> None:
        """Note the start of a request, before its connection is opened."""
        if self._chooser is not None:
            self._chooser.began(route.place)

    def ended(self, route: Route) -> None:
        """Note the end of a request."""
        if self._chooser is not None:
            self._chooser.ended(route.place)

    def close(self) -> None:
        """Close every pool."""
        for route in self._routes:
            route.pool.close()
