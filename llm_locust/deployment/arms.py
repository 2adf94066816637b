"""Arms of an interleaved comparison: targets in one run, each request assigned to one of them at random.

What drifts during a run, such as a neighbour's load, hits all arms alike. So it is in no difference between
them, as it would be in one between two runs that were made one after the other.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from llm_locust.core.arms import ArmFacts

#: Most arms of a run: each is compared with the first, and widens all intervals.
MOST_ARMS = 8

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)

#: The part of a word before its URL; a URL alone has ``:`` before any ``=``.
_NAMED = re.compile(r"(?P<name>[^=:/]*)=(?P<url>\S+)(?:\s+share=(?P<share>\S*))?")

_EXAMPLE = "gateway=http://HOST:8000"


class ArmError(ValueError):
    """A text that is not an arm; one line that says what to write."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One target of an interleaved comparison.

    Attributes:
        share: of the requests, in proportion to the other arms' shares.
    """

    name: str
    url: str
    share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Arm":
        """Parse ``NAME=URL``, or ``NAME=URL share=2``; the URL is not checked.

        Raises:
            ArmError: something else.
        """
        match = _NAMED.fullmatch(text.strip())
        if match is None:
            raise ArmError(f"{text[:80]!r} is not NAME=URL, such as {_EXAMPLE}, or {_EXAMPLE} share=2")
        name, url = match["name"], match["url"]
        if _NAME.fullmatch(name) is None or name == "none":
            raise ArmError(
                f"the name {name[:80]!r}: write 1 to 64 letters, digits, and . _ -, first a letter or digit, "
                "and not none"
            )
        return cls(name, url, 1.0 if match["share"] is None else _share(match["share"]))


def _share(text: str) -> float:
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


def arm_facts(arms: Sequence[Arm], bases: Sequence[str]) -> tuple[ArmFacts, ...]:
    """The arms, each with the base URL of its API, for the manifest."""
    total = sum(arm.share for arm in arms)
    return tuple(
        ArmFacts(name=arm.name, url=url, share=arm.share / total)
        for arm, url in zip(arms, bases, strict=True)
    )


class RandomArm:
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
        return self._arm_at(self._random.random() if session is None else self._drawn(session))

    def began(self, target: int) -> None:
        pass

    def ended(self, target: int) -> None:
        pass

    def _drawn(self, session: str) -> float:
        """A number from 0 to 1 for a session."""
        key = f"{self._seed}/{session}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") / 2**64

    def _arm_at(self, place: float) -> int:
        for arm, share in enumerate(self._shares):
            place -= share
            if place < 0:
                return arm
        return len(self._shares) - 1
