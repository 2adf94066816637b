"""Trajectories in OpenAI's chat form: JSON lines, one turn each, with the whole recorded history.

``messages``, and where they are known ``tools``, ``target_output_tokens`` (or ``max_tokens``), and the pause
after the answer: ``pause_ms_after``, or ``simulated_tool_delay_ms_after``, as agentperf-local has it. Lines
of one ``conversation_id`` (``trajectory_id``, ``task_id``; else of one file, whose path in the folder without
suffix is the id) are its turns, in their order. A line with ``parent`` (the id of another trajectory) and
``after_turn`` begins a sub-agent of that turn.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from llm_locust.workload.lengths.tokens import MAX_TOKENS
from llm_locust.workload.trajectories.reading import (
    MOST_LEVELS,
    MOST_PAUSE_S,
    FileLine,
    decoded,
    shared_messages,
)
from llm_locust.workload.trajectories.trajectory import Trajectory, TrajectoryError, Turn

_Ms = Annotated[float, msgspec.Meta(ge=0, le=MOST_PAUSE_S * 1000)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class ChatLine(msgspec.Struct, frozen=True):
    """One turn. Unknown keys are ignored."""

    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    conversation_id: str | None = None
    trajectory_id: str | None = None
    task_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    target_output_tokens: _Tokens | None = None
    max_tokens: _Tokens | None = None
    pause_ms_after: _Ms | None = None
    simulated_tool_delay_ms_after: _Ms | None = None
    parent: str | None = None
    after_turn: Annotated[int, msgspec.Meta(ge=0)] | None = None


_DECODER = msgspec.json.Decoder(ChatLine)
_EXPECTED = '{"conversation_id": ID, "messages": [...], "tools": [...], "target_output_tokens": N, ...}'


def read(lines: Iterable[FileLine]) -> list[Trajectory]:
    """The trajectories of such lines, sub-agents at the turns that began them."""
    turns: dict[str, list[Turn]] = {}
    parents: dict[str, tuple[str, int, str]] = {}
    for line in lines:
        found = decoded(_DECODER, line, _EXPECTED)
        name = found.conversation_id or found.trajectory_id or found.task_id or line.file
        of = turns.setdefault(name, [])
        if found.parent is not None and not of:
            parents[name] = found.parent, found.after_turn or 0, line.where
        _check_parent(found, parents.get(name), line)
        of.append(_turn(found, of[-1] if of else None, line))
    trajectories = {name: Trajectory(id=name, turns=tuple(found)) for name, found in turns.items()}
    return _joined(trajectories, parents)


def _check_parent(found: ChatLine, known: tuple[str, int, str] | None, line: FileLine) -> None:
    """Refuse what a line says of its trajectory's parent, if the trajectory's first line does not."""
    if (found.parent is None and found.after_turn is None) or (
        known is not None and (found.parent, found.after_turn or 0) == known[:2]
    ):
        return
    raise TrajectoryError(
        f"{line.where}: parent {found.parent!r} and after_turn {found.after_turn} are not those of its "
        "trajectory; expected both on the first line of a sub-agent"
    )


def _turn(found: ChatLine, before: Turn | None, line: FileLine) -> Turn:
    for message in found.messages:
        if not isinstance(message.get("role"), str):
            raise TrajectoryError(f"{line.where}: a message has no role; expected {_EXPECTED}")
        content = message.get("content")
        if not (content is None or isinstance(content, str)) and not _are_parts(content):
            raise TrajectoryError(
                f"{line.where}: the content of a message is {str(content)[:60]!r}; expected a text or a list "
                "of parts, as OpenAI's API has it"
            )
    pause_ms = found.pause_ms_after
    if pause_ms is None:
        pause_ms = found.simulated_tool_delay_ms_after or 0.0
    return Turn(
        messages=shared_messages(found.messages, None if before is None else before.messages),
        extra={"tools": found.tools} if found.tools else {},
        asked_output_tokens=found.target_output_tokens or found.max_tokens,
        pause_s=pause_ms * 1e-3,
    )


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict) for part in content)


def _joined(
    trajectories: dict[str, Trajectory], parents: dict[str, tuple[str, int, str]]
) -> list[Trajectory]:
    """Hang each sub-agent, the last ones first, on its parent's turn; the parent is on an earlier line."""
    order = {name: number for number, name in enumerate(trajectories)}
    levels: dict[str, int] = {}
    for name, (parent, _, where) in parents.items():
        levels[name] = levels.get(parent, 0) + 1
        if levels[name] > MOST_LEVELS:
            raise TrajectoryError(f"{where}: sub-agents of more than {MOST_LEVELS} levels")
    for name in reversed(list(parents)):
        parent, after, where = parents[name]
        above = trajectories.get(parent)
        if above is None or order[parent] >= order[name] or after >= len(above.turns):
            raise TrajectoryError(
                f"{where}: parent {parent[:60]!r} has no turn {after} before this line; expected the id of "
                "another trajectory and the number of its turn, from 0"
            )
        turns = list(above.turns)
        turns[after] = replace(turns[after], forks=(trajectories[name], *turns[after].forks))
        trajectories[parent] = replace(above, turns=tuple(turns))
    roots = [found for name, found in trajectories.items() if name not in parents]
    if trajectories and not roots:
        raise TrajectoryError("every trajectory has a parent; expected at least one that has none")
    return roots
