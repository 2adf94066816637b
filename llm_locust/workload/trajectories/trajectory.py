"""A trajectory as a value: what an agent asked, turn after turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.names import one_line
from llm_locust.workload.text.prompts import Prompt, with_head
from llm_locust.workload.trajectories.hashed import HashedPrompt

#: Roles of the messages that a prefix cache may share between trajectories; the mark comes after them.
_SYSTEM = ("system", "developer")


class TrajectoryError(ValueError):
    """A file of trajectories that cannot be used; one line: where, the value, and what is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of an agent.

    Attributes:
        messages: all of them, in OpenAI's chat form, with the recorded history; or
        hashed: what a text is made of where only hashes are recorded.
        extra: further fields of the body, such as ``tools``.
        pause_s: between the end of its answer and the next turn: the recorded tools.
        forks: sub-agents that start when its answer has ended; the next turn waits for all of them.
    """

    messages: tuple[Message, ...] = ()
    hashed: HashedPrompt | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    asked_output_tokens: int | None = None
    pause_s: float = 0.0
    forks: tuple["Trajectory", ...] = ()

    def content(self) -> tuple[Message, ...]:
        """What is sent: the recorded messages, or those made from the hashes."""
        return self.messages if self.hashed is None else self.hashed.messages()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Turns in their order, at least one. ``index`` is its place in its pool, sub-agents included.

    ``delay_s``: a sub-agent's first turn comes this long after the answer that begins it.
    """

    id: str
    turns: tuple[Turn, ...]
    index: int = 0
    delay_s: float = 0.0


def system_messages(messages: tuple[Message, ...]) -> int:
    """How many messages of the beginning are the system's."""
    for i, message in enumerate(messages):
        if message.get("role") not in _SYSTEM:
            return i
    return len(messages)


def marked(messages: tuple[Message, ...], mark: str) -> tuple[Message, ...]:
    """The messages with ``mark`` before the first text after the system prompt.

    What stands before it is shared by all trajectories with this system prompt, what stands after it by the
    turns with this mark.
    """
    at = min(system_messages(messages), len(messages) - 1)
    headed = with_head(Prompt(messages=messages[at:]), mark).messages
    assert headed is not None
    return (*messages[:at], *headed)


def answered(sent: tuple[Message, ...], before: Turn, turn: Turn, answer: str) -> tuple[Message, ...]:
    """Messages of ``turn`` with the server's own ``answer`` to ``before`` in place of the recorded one.

    ``sent`` are those of the request before. A turn whose recorded history does not continue the one before
    (an agent that compacts its context) is taken as recorded. Recorded tool calls stay: the tools' results
    after them name them.
    """
    known = len(before.messages)
    if turn.messages[:known] != before.messages:
        return turn.messages
    new = list(turn.messages[known:])
    for i, message in enumerate(new):
        if message.get("role") == "assistant":
            new[i] = {**message, "content": answer}
            break
    return (*sent, *new)


def numbered(trajectories: tuple[Trajectory, ...]) -> tuple[Trajectory, ...]:
    """The same with their indices: those of the pool first, then their sub-agents, depth first."""
    following = len(trajectories)

    def inner(trajectory: Trajectory, index: int) -> Trajectory:
        nonlocal following
        turns = []
        for turn in trajectory.turns:
            forks = []
            for fork in turn.forks:
                following += 1
                forks.append(inner(fork, following - 1))
            turns.append(replace(turn, forks=tuple(forks)) if forks else turn)
        return replace(trajectory, turns=tuple(turns), index=index)

    return tuple(inner(trajectory, i) for i, trajectory in enumerate(trajectories))
