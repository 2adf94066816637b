"""One recorded request: as a file has it, and as it is to be replayed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from llm_locust.wire.names import one_line

#: Prompt tokens that one of a Mooncake trace's hash ids stands for.
HASH_BLOCK_TOKENS = 512


class TraceError(ValueError):
    """A trace that cannot be read, or a line of it; one line: where, the value, and what is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))


class TraceRow(NamedTuple):
    """One line of a trace. Rows order by time, then by line.

    ``at_ns`` is the recorded time in nanoseconds, of whatever epoch the format has.
    """

    at_ns: int
    line: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """One request of a trace.

    Attributes:
        k: its place among the slice's requests in order of time, from 0.
        at_s: seconds after the slice's start, scaled.
        input_tokens, output_tokens: as recorded. 0 is possible, as of requests that failed then.
        hash_ids: one id for each :data:`HASH_BLOCK_TOKENS` tokens of the prompt, from its start; prompts
            that begin with the same ids begin with the same tokens.
        session: what keeps requests on one worker, ``None`` for one by itself.
        id: its name within the trace, where others refer to it.
        after: the ids of the requests of its session that have to be over before it starts.
        gap_s: idle time after the last of these, scaled.
        turn: its depth in its session, from 0, where the trace says what depends on what.
        line: its line in the file.
    """

    k: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None
    line: int = 0

    def due_s(self, ended_s: Iterable[float]) -> float:
        """When it may start: at ``at_s``, but not before ``gap_s`` after the last of ``ended_s``.

        ``ended_s`` are the times at which the requests in ``after`` were over. Of its delay
        ``due_s - at_s`` was spent blocked by them, and only what comes after ``due_s`` is the sender's.
        """
        last_s = max(ended_s, default=None)
        return self.at_s if last_s is None else max(self.at_s, last_s + self.gap_s)
