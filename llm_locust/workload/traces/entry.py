"""One recorded request: as in a file, and for replay."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from llm_locust.wire.names import one_line

#: Prompt tokens that one of a Mooncake trace's hash ids stands for, and one of Bailian's (Qwen).
MOONCAKE_BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS = 512, 16


class TraceError(ValueError):
    """A trace, or a line of it, that cannot be read; one line: where, the value, and what is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))


class TraceRow(NamedTuple):
    """One line of a trace. Rows order by time, then by line.

    ``at_ns`` is the recorded time in nanoseconds, of whatever epoch the format has. ``blocks`` is the number
    of hash ids in the file, of which ``hash_ids`` are those that the prompt's length has room for.
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
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """One request of a trace.

    Attributes:
        k: its index among the slice's requests in order of time, from 0.
        at_s: seconds after the slice's start, scaled.
        input_tokens, output_tokens: as recorded. 0 is possible, for requests that failed then.
        hash_ids: one id for each ``block_tokens`` tokens of the prompt, from its start; prompts with the same
            leading ids have the same leading tokens.
        session: what keeps requests on one worker, ``None`` for a single one.
        id: its name within the trace, for references.
        after: ids of the requests of its session that must end before it starts.
        gap_s: idle time after the last of these, scaled.
        turn: its depth in its session, from 0, if the trace has dependencies.
        line: its line in the file.
    """

    k: int
    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    session: str | None = None
    id: str | None = None
    after: tuple[str, ...] = ()
    gap_s: float = 0.0
    turn: int | None = None
    line: int = 0

    def due_s(self, ended_s: Iterable[float]) -> float:
        """Time at which it may start: ``at_s``, but not before ``gap_s`` after the last of ``ended_s``.

        ``ended_s`` are the end times of the requests in ``after``. They blocked it for ``due_s - at_s`` of
        its delay; only the time after ``due_s`` is the sender's.
        """
        last_s = max(ended_s, default=None)
        return self.at_s if last_s is None else max(self.at_s, last_s + self.gap_s)
