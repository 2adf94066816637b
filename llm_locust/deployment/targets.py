"""Choice of the target of each request among several direct targets, and reuse of connections.

Pure values: the client's routes are identified by index, in the client's terms
(:class:`~llm_locust.client.routes.Chooser`). A run with ``--targets``, compared with one through the
balancer's URL, shows the effect of the balancer on the same load.
"""

import random
from dataclasses import dataclass
from zlib import crc32

POLICIES = ("round_robin", "random", "least_inflight", "sticky")


class TargetsError(ValueError):
    """An invalid policy or limit; one line that says what to write."""


class RoundRobin:
    """Each in its turn. ``first`` differs between workers, so that not all start with the same one."""

    def __init__(self, targets: int, first: int = 0) -> None:
        self._targets, self._next = targets, first % targets

    def choose(self, session: str | None) -> int:
        chosen, self._next = self._next, (self._next + 1) % self._targets
        return chosen

    def began(self, target: int) -> None:
        pass

    def ended(self, target: int) -> None:
        pass


class Random:
    """A random one, uniformly, from its own generator."""

    def __init__(self, targets: int, seed: int | str) -> None:
        self._targets, self._random = targets, random.Random(seed)

    def choose(self, session: str | None) -> int:
        return self._random.randrange(self._targets)

    def began(self, target: int) -> None:
        pass

    def ended(self, target: int) -> None:
        pass


class LeastInflight:
    """The one with the fewest requests of this worker in flight; of equals the one chosen longest ago."""

    def __init__(self, targets: int, first: int = 0) -> None:
        self._in_flight = [0] * targets
        self._chosen = [(i - first) % targets - targets for i in range(targets)]
        self._choices = 0

    def choose(self, session: str | None) -> int:
        chosen = min(range(len(self._chosen)), key=lambda i: (self._in_flight[i], self._chosen[i]))
        self._chosen[chosen], self._choices = self._choices, self._choices + 1
        return chosen

    def began(self, target: int) -> None:
        self._in_flight[target] += 1

    def ended(self, target: int) -> None:
        self._in_flight[target] -= 1


class Sticky:
    """All requests of a session to one target, the same at every worker and in every run; others in turn."""

    def __init__(self, targets: int, first: int = 0) -> None:
        self._targets, self._turns = targets, RoundRobin(targets, first)

    def choose(self, session: str | None) -> int:
        if session is None:
            return self._turns.choose(None)
        return crc32(session.encode("utf-8", "surrogatepass")) % self._targets

    def began(self, target: int) -> None:
        pass

    def ended(self, target: int) -> None:
        pass


Chooser = RoundRobin | Random | LeastInflight | Sticky


def make_chooser(policy: str, targets: int, *, worker: int = 0, seed: int | str = 0) -> Chooser:
    """Create the chooser of one worker.

    Args:
        worker: its index, by which turns start with another target and random draws differ.

    Raises:
        TargetsError: no such policy, or no target.
    """
    if targets < 1:
        raise TargetsError("--targets names no URL: write at least one")
    if policy == "round_robin":
        return RoundRobin(targets, worker)
    if policy == "random":
        return Random(targets, f"{seed}/targets/{worker}")
    if policy == "least_inflight":
        return LeastInflight(targets, worker)
    if policy == "sticky":
        return Sticky(targets, worker)
    raise TargetsError(f'target policy "{policy}": write one of {", ".join(POLICIES)}')


@dataclass(frozen=True, slots=True)
class Reuse:
    """Number of requests per connection; None if unlimited."""

    most: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Reuse":
        """Parse ``off`` for a new connection per request, a number, or ``on``.

        Raises:
            TargetsError: something else.
        """
        word = text.strip().lower()
        if word == "on":
            return cls(None)
        if word == "off":
            return cls(1)
        if word.isascii() and word.isdecimal() and 1 <= int(word) <= 1_000_000_000:
            return cls(int(word))
        raise TargetsError(
            f'connection reuse "{text}": write on, off, or the number of requests that a connection carries'
        )
