"""Runs of servers whose truth is known, as records: closed and open loops before a server that may freeze.

Nothing is sent. A server works but for the spans in which it is frozen, and what it makes of a request is a
:class:`Course`.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from metrics_cases import ns

from llm_locust.core.record import Doubt, Outcome, RequestRecord, TokenSource

#: A request that the server never answers takes this long.
FOR_EVER = 1e9


@dataclass(frozen=True, slots=True)
class Course:
    """What a server does with a request, in seconds of its work: ``pauses`` come after so many tokens.

    ``cut`` answers break off, of ``buffered`` ones all comes at once.
    """

    ttft: float = 0.1
    gap: float = 0.01
    n: int = 40
    pauses: dict[int, float] = field(default_factory=dict)
    streamed: bool = True
    status: int = 200
    doubt: Doubt | None = None
    cut: bool = False
    buffered: bool = False
    slo_class: str = ""
    name: str = "chat"

    def tokens_s(self) -> list[float]:
        """When each token is made, in seconds of work after the beginning."""
        at, found = self.ttft, []
        for k in range(self.n):
            at += (self.gap if k else 0.0) + self.pauses.get(k, 0.0)
            found.append(at)
        return [found[-1] + 1e-5 * k for k in range(self.n)] if self.buffered else found


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server knows of a request: its user, its number there, when, and a draw."""

    user: int
    i: int
    at_s: float
    rng: random.Random


Server = Callable[[Asked], Course]


@dataclass(frozen=True, slots=True)
class Load:
    """A load of ``seconds``, in which the server is frozen during ``freezes``, and the drain after it.

    Args:
        think: a user's pause after an answer.
        patience: time after which a user leaves that has no token.
        backoff: longest wait after a failure; the bound doubles with each one in a row.
    """

    seconds: float = 60.0
    drain: float = 30.0
    freezes: Sequence[tuple[float, float]] = ()
    think: Callable[[random.Random], float] = lambda rng: 0.0
    patience: float = FOR_EVER
    backoff: float = 5.0
    timeout: float = FOR_EVER
    seed: int = 1

    def closed(self, users: int, server: Server, ramp: float = 0.0) -> list[RequestRecord]:
        """Each user sends when it has its answer, has thought, and has waited after a failure."""
        found: list[RequestRecord] = []
        for user in range(users):
            rng = random.Random(1000 * self.seed + user)
            at, failures = ramp * user / users, 0
            for i in count():
                if at >= self.seconds:
                    break
                record, at = self._one(user, i, at, server, rng)
                found.append(record)
                failures = failures + 1 if record.outcome not in (Outcome.OK, Outcome.CANCELLED) else 0
                pause = self.think(rng)
                if failures:
                    pause = max(pause, rng.random() * min(self.backoff, 0.1 * 2 ** (failures - 1)))
                at += pause
        return found

    def open(self, due_s: Iterable[float], server: Server) -> list[RequestRecord]:
        """A request at each of these times, however slow the server is."""
        rng = random.Random(self.seed)
        return [self._one(None, i, at, server, rng)[0] for i, at in enumerate(due_s) if at < self.seconds]

    def _after(self, at: float, work: float) -> float:
        """When the server has done so much work from a time on."""
        for begin, end in self.freezes:
            if end <= at:
                continue
            if at + work < begin:
                break
            work -= max(0.0, begin - at)
            at = end
        return at + work

    def _one(
        self, user: int | None, i: int, at: float, server: Server, rng: random.Random
    ) -> tuple[RequestRecord, float]:
        course = server(Asked(-1 if user is None else user, i, at, rng))
        events = [self._after(at, work) for work in course.tokens_s()]
        ended, outcome = events[-1], Outcome.OK
        first = events[0] if course.streamed else ended
        if course.status != 200:
            events, ended, outcome = [], self._after(at, course.ttft), Outcome.HTTP_ERROR
            first = ended
        if course.cut:
            outcome = Outcome.TRUNCATED
        limits = [
            (at + self.patience, Outcome.CANCELLED, first > at + self.patience),
            (at + self.timeout, Outcome.TIMEOUT, first > at + self.timeout),
            (self.seconds + self.drain, Outcome.CANCELLED, ended > self.seconds + self.drain),
        ]
        left = False
        for when, why, applies in sorted(limits, key=lambda limit: limit[0]):
            if applies:
                left = why is Outcome.CANCELLED and when == at + self.patience
                ended, outcome = when, why
                break
        events = [event for event in events if event <= ended] if course.streamed else []
        n = len(events) if course.streamed else course.n
        known: dict[str, Any] = {"output_tokens": n} if outcome is Outcome.OK else {"output_tokens": None}
        record = RequestRecord(
            request_id=f"{user}-{i}",
            name=course.name,
            slo_class=course.slo_class,
            outcome=outcome,
            scheduled_ns=ns(at),
            started_ns=ns(at),
            connected_ns=ns(at),
            sent_ns=ns(at),
            ended_ns=ns(ended),
            arrivals_ns=np.array([round((event - at) * 1e9) for event in events], dtype=np.int64),
            first_answer_ns=round((events[0] - at) * 1e9) if events else None,
            streamed=course.streamed,
            user=user,
            status=course.status,
            error=None if course.status == 200 else "no room",
            input_tokens=100,
            token_source=TokenSource.USAGE,
            kernel_stamps=True,
            client_lag_ns=20_000,
            reads=len(events),
            abandoned=left,
            doubt=course.doubt if outcome is Outcome.OK else None,
            **known,
        )
        return record, ended
