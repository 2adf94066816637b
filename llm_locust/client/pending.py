"""Answers that get their records a little later, so that their users' next requests go out first.

Decoding an answer and making its record take longer than all else between it and the next request. When many
answers end at once, each user would wait for the records of all before it. So a whole answer may wait here:
some are decoded in a row, in pieces of the loop's time, or one at once where somebody looks at it.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import gevent

from llm_locust.client.http.timers import DECODE_BUDGET
from llm_locust.client.recording import Answer
from llm_locust.core.record import RequestRecord
from llm_locust.wire.draft import Reply

#: Time in which answers gather.
GATHER_S = 0.005

#: Most answers that wait. With more, each is recorded before its user goes on.
MOST_WAITING = 64

#: Time after which other work has a turn: an answer that ends meanwhile waits for it, and one record more.
_PIECE_S = 0.0005


class Whole(Protocol):
    """A call whose response is complete."""

    def settle(self) -> None: ...

    def conclude(self) -> Answer: ...


class PendingAnswer(Answer):
    """An answer whose record is made when one of its attributes is first read, or soon.

    Args:
        recorded: called once with the finished answer.
    """

    __slots__ = ("_answer", "_call", "_recorded", "error")
    __setattr__ = object.__setattr__  # it is finished once

    def __init__(self, call: Whole, recorded: Callable[[Answer], None]) -> None:
        self.error: Exception | None = None  # that recording has raised, for the user to be told
        self._call: Whole | None = call
        self._recorded: Callable[[Answer], None] | None = recorded
        self._answer: Answer | None = None

    def finished(self) -> Answer:
        """The finished answer (raises what recording it raises, once)."""
        if self._answer is None:
            call = self._call
            assert call is not None
            call.settle()
            self._answer, self._call = call.conclude(), None
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded(self._answer)
        return self._answer

    @property
    def record(self) -> RequestRecord:
        return self.finished().record

    @property
    def reply(self) -> Reply:
        return self.finished().reply

    @property
    def retry_after_s(self) -> float | None:
        return self.finished().retry_after_s


class PendingAnswers:
    """Those of one process, in the order of their ends."""

    def __init__(self) -> None:
        self._waiting: deque[PendingAnswer] = deque()
        self._at_work = False

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < MOST_WAITING

    def add(self, call: Whole, recorded: Callable[[Answer], None]) -> PendingAnswer:
        """Let an answer wait; see :class:`PendingAnswer`."""
        answer = PendingAnswer(call, recorded)
        self._waiting.append(answer)
        if not self._at_work:
            self._at_work = True
            gevent.spawn_later(GATHER_S, self._finish_all)
        return answer

    def _finish_all(self) -> None:
        until_s = time.monotonic() + _PIECE_S
        try:
            while self._waiting:
                answer = self._waiting.popleft()
                try:
                    answer.finished()
                except Exception as e:  # of a listener: it is for the user whose answer this is
                    answer.error = e
                if time.monotonic() > until_s:
                    DECODE_BUDGET.wait_for_next()
                    until_s = time.monotonic() + _PIECE_S
        finally:
            self._at_work = False
