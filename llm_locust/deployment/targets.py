"""Choice of the target of each request among several direct targets, and reuse of connections.

Pure values: the client's routes are identified by index, in the client's terms
(:class:`~llm_locust.client.routes.Chooser`). A run with ``--targets``, compared with one through the
balancer's URL, shows the effect of the balancer on the same load.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, get_args
from zlib import crc32

from llm_locust.client.http.target import Target
from llm_locust.core.manifest import ArmFacts
from llm_locust.core.texts import listed, nearest
from llm_locust.wire.foreign_text import public_url, shown_text

POLICIES = ("round_robin", "random", "least_inflight", "sticky")


class TargetsError(ValueError):
    """An invalid policy or limit; one line that says what to write."""


class _Uncounted:
    """A policy that does not look at what is in flight."""

    def began(self, target: int) -> None:
        pass

    def ended(self, target: int) -> None:
        pass


class RoundRobin(_Uncounted):
    """Each in its turn. ``first`` differs between workers, so that not all start with the same one."""

    def __init__(self, targets: int, first: int = 0) -> None:
        self._targets, self._next = targets, first % targets

    def choose(self, session: str | None) -> int:
        chosen, self._next = self._next, (self._next + 1) % self._targets
        return chosen


class Random(_Uncounted):
    """A random one, uniformly, from its own generator."""

    def __init__(self, targets: int, seed: int | str) -> None:
        self._targets, self._random = targets, random.Random(seed)

    def choose(self, session: str | None) -> int:
        return self._random.randrange(self._targets)


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


class Sticky(_Uncounted):
    """All requests of a session to one target, the same at every worker and in every run; others in turn."""

    def __init__(self, targets: int, first: int = 0) -> None:
        self._targets, self._turns = targets, RoundRobin(targets, first)

    def choose(self, session: str | None) -> int:
        if session is None:
            return self._turns.choose(None)
        return crc32(session.encode("utf-8", "surrogatepass")) % self._targets


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


# --------------------
# Arms of an interleaved comparison: targets, or ways to ask one, in one run, each request assigned to one
# of them at random.
#
# What drifts during a run, such as a neighbour's load, hits all arms alike. So it is in no difference
# between them, as it would be in one between two runs that were made one after the other.
# --------------------


#: Most arms of a run: each is compared with the first, and widens all intervals.
MOST_ARMS = 8

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)

#: The part of a word before its URL; a URL alone has ``:`` before any ``=``.
_NAMED = re.compile(r"(?P<name>[^=:/]*)=(?P<url>\S+)(?:\s+share=(?P<share>\S*))?")

_EXAMPLE = "gateway=http://HOST:8000"


#: What the prompts of an arm begin with: words that no other request has, or words common to all of them.
Prefix = Literal["cold", "warm"]

PREFIXES: tuple[str, ...] = get_args(Prefix)


class ArmError(ValueError):
    """A text that is not an arm; one line that says what to write."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One target of an interleaved comparison, and in what its requests differ from those of the run.

    Attributes:
        url: empty: the run's host.
        share: of the requests, in proportion to the other arms' shares; None: not given, 1.
        path: below the base of the API, in place of the endpoint's own.
        headers: over those of the same name; values are templates and may be secrets.
        header_env: header -> environment variable that holds its value.
        body: merged over the body, field by field.
    """

    name: str
    url: str = ""
    share: float | None = None
    model: str | None = None
    path: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    header_env: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    prefix: Prefix | None = None

    @property
    def weight(self) -> float:
        return 1.0 if self.share is None else self.share

    @property
    def differs_in(self) -> Iterator[str]:
        """In what its requests differ, in words. Values of headers and of the body are not among them."""
        named = ("model", self.model), ("path", self.path), ("prefix", self.prefix)
        yield from (f"{name} {value}" for name, value in named if value is not None)
        yield from (f"header {name}" for name in dict.fromkeys((*self.headers, *self.header_env)))
        yield from (f"body field {name}" for name in self.body)

    @classmethod
    def parse(cls, text: str) -> "Arm":
        """Parse ``NAME=URL``, or ``NAME=URL share=2`` (raises ValueError)."""
        match = _NAMED.fullmatch(text.strip())
        if match is None:
            raise ArmError(
                f"{shown_text(public_url(text))} is not NAME=URL, such as {_EXAMPLE}, or {_EXAMPLE} share=2"
            )
        name, url = match["name"], match["url"]
        share = None if match["share"] is None else _parsed_share(match["share"])
        return cls(checked_name(name), checked_url(url), share)


def checked_url(url: str) -> str:
    """The URL of an arm (raises ValueError)."""
    if url.startswith("dns+"):
        raise ArmError(f"{public_url(url)!r}: an arm is one URL, such as that of a balancer or of a Service")
    if Target.parse(url).query:
        raise ArmError(f"{public_url(url)!r}: ?api-version= may stand in the URL of -H only")
    return url


def checked_name(name: str) -> str:
    """A name that columns and conditions can hold (raises ArmError)."""
    if _NAME.fullmatch(name) is None or name == "none":
        raise ArmError(
            f"the name {name[:80]!r}: write 1 to 64 letters, digits, and . _ -, first a letter or digit, "
            "and not none"
        )
    return name


def chosen_arms(named: Sequence[Arm], described: Sequence[Arm], host: str | None) -> tuple[Arm, ...]:
    """Arms of a run, each with its URL.

    Args:
        named: by ``--arm``. Where there are some, they are the arms, and ``described`` says in what their
            requests differ.
        described: by the scenario.
        host: of arms without a URL of their own.

    Raises:
        ArmError: a name that the scenario does not have, an arm without a URL, arms that cannot be compared.
    """
    known = {arm.name: arm for arm in described}
    found = []
    for arm in named or described:
        if described and arm.name not in known:
            raise ArmError(
                f"the scenario has no arm {arm.name!r}; {nearest(arm.name, known)}it has {listed(known)}"
            )
        of = known.get(arm.name, arm)
        url = arm.url or of.url or host
        if not url:
            raise ArmError(f"{arm.name!r} has no url, and the run has no host: give -H http://HOST:8000")
        found.append(replace(of, url=url, share=of.share if arm.share is None else arm.share))
    if found:
        check_arms(found)
    return tuple(found)


def _parsed_share(text: str) -> float:
    """A number from 0.001 to 1,000: rarer requests would never fill an arm."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.001 <= share <= 1000:
        raise ArmError(f"share={text[:40]}: write a number from 0.001 to 1000, such as share=2")
    return share


def check_arms(arms: Sequence[Arm]) -> None:
    """Check that arms can be compared (raises ArmError)."""
    if len(arms) == 1:
        raise ArmError(f"{arms[0].name!r} is the only arm: name another one to compare it with")
    if len(arms) > MOST_ARMS:
        raise ArmError(f"{len(arms)} arms: at most {MOST_ARMS} can be compared in one run")
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArmError(f"two arms have the name {twice!r}: give each one of its own")


def arm_facts(arms: Sequence[Arm], served: Sequence[tuple[str, str]]) -> tuple[ArmFacts, ...]:
    """The arms, each with the base URL of its API and its model, for the manifest."""
    total = sum(arm.weight for arm in arms)
    return tuple(
        ArmFacts(
            name=arm.name, url=url, share=arm.weight / total, model=model, differs_in=tuple(arm.differs_in)
        )
        for arm, (url, model) in zip(arms, served, strict=True)
    )


class RandomArm(_Uncounted):
    """Assignment at random (:class:`~llm_locust.client.routes.Chooser`).

    Requests without a session are drawn one by one, from a generator of this worker. All requests of a
    session go to one arm, which is drawn from the seed and the session's name: the same at every worker.
    """

    def __init__(self, shares: Sequence[float], seed: int | str, worker: int = 0) -> None:
        total = sum(shares)
        self._shares = [share / total for share in shares]
        self._seed = f"{seed}/arms"
        self._random = random.Random(f"{seed}/arms/{worker}")

    def choose(self, session: str | None) -> int:
        place = self._random.random() if session is None else self._drawn(session)
        for arm, share in enumerate(self._shares):
            place -= share
            if place < 0:
                return arm
        return len(self._shares) - 1

    def _drawn(self, session: str) -> float:
        """A number from 0 to 1 for a session."""
        key = f"{self._seed}/{session}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") / 2**64
