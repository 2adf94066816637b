"""The ways of requests to their servers: one through a balancer, or one to each of several replicas."""

from collections.abc import Callable, Sequence
from typing import Protocol

from llm_locust.client.head import Head
from llm_locust.client.http.pool import Pool
from llm_locust.client.recording import Call

#: The header lines of requests as each route has them, by its place.
Heads = tuple[Head, ...]


class Chooser(Protocol):
    """Gives each request a target, from 0 on; is told when it begins and when it is over."""

    def choose(self, session: str | None) -> int:
        """The target of a request of ``session``; None where it belongs to none."""
        ...

    def began(self, target: int) -> None: ...

    def ended(self, target: int) -> None: ...


class Route:
    """The way to one target.

    Args:
        place: its number among a client's routes.
        direct: the target is a replica itself: what no response header attributes is the target's,
            refused connections among it.
    """

    __slots__ = ("_direct", "_names", "base", "place", "pool")

    def __init__(self, pool: Pool, place: int = 0, *, direct: bool = False) -> None:
        self.pool = pool
        self.place = place
        self.base = pool.target.base.encode()
        self._direct = direct
        self._names: set[str] = set()  # that its answers had: two are enough to see that it is no replica

    def replica(self, named: str | None) -> str | None:
        """The replica of a request whose answer, if any, ``named`` one.

        A direct target goes by the one name that its answers had so far, lest the failures of a replica
        stand apart from its successes; before the first of them, and where they had several, by its
        authority.
        """
        if not self._direct:
            return named
        if named is None:
            return next(iter(self._names)) if len(self._names) == 1 else self.pool.target.authority
        if len(self._names) < 2:
            self._names.add(named)
        return named

    def moved(self, path: bytes, first: "Route") -> bytes:
        """A path below the API of the ``first`` route's target, below that of this one's."""
        return self.base + path.removeprefix(first.base) if path.startswith(first.base) else path


class Routes:
    """The targets that a client's requests go to, each request to one of them.

    A request goes where its turn is, whether or not that target answers: none is left out, and none
    is tried in the place of another.

    Args:
        pools: the connections to each target.
        chooser: chooses among them, which are replicas themselves then; None: there is one target, and
            a balancer may be in front of replicas.
        session_of: what a request belongs to, for choosers that keep such requests together.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        chooser: Chooser | None = None,
        session_of: Callable[[Call], str | None] = lambda call: call.session,
    ) -> None:
        self._routes = tuple(Route(p, i, direct=chooser is not None) for i, p in enumerate(pools))
        self._chooser = chooser
        self._session_of = session_of
        self.first = self._routes[0]

    @property
    def authorities(self) -> tuple[str, ...]:
        """Host and port of each target."""
        return tuple(route.pool.target.authority for route in self._routes)

    @property
    def dialling(self) -> int:
        """Connections that are being made now."""
        return sum([route.pool.dialling for route in self._routes])

    def choose(self, call: Call) -> Route:
        """Where a request goes that is about to be sent."""
        if self._chooser is None:
            return self.first
        return self._routes[self._chooser.choose(self._session_of(call))]

    def began(self, route: Route) -> None:
        """A request is under way there, from before its connection is made."""
        if self._chooser is not None:
            self._chooser.began(route.place)

    def ended(self, route: Route) -> None:
        """That request is over."""
        if self._chooser is not None:
            self._chooser.ended(route.place)

    def close(self) -> None:
        """Close every pool."""
        for route in self._routes:
            route.pool.close()
