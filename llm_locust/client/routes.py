"""Routes of requests to their servers: one through a balancer, or one to each of several replicas."""

from collections.abc import Callable, Sequence
from typing import Protocol

from llm_locust.client.head import Head
from llm_locust.client.http.connection import Connection
from llm_locust.client.http.pool import Pool
from llm_locust.client.recording import Call, Link

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
    """

    __slots__ = ("_direct", "_names", "arm", "base", "place", "pool", "query")

    def __init__(self, pool: Pool, place: int = 0, *, direct: bool = False, arm: str | None = None) -> None:
        self.pool = pool
        self.place = place
        self.arm = arm
        self.base = pool.target.base.encode()
        self.query = pool.target.query
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
        )

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
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        chooser: Chooser | None = None,
        session_of: Callable[[Call], str | None] = lambda call: call.session,
        arms: Sequence[str] = (),
    ) -> None:
        direct = chooser is not None and not arms
        self._routes = tuple(
            Route(pool, i, direct=direct, arm=arms[i] if arms else None) for i, pool in enumerate(pools)
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
