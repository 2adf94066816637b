"""MLPerf's agentic data sets: JSON lines, one message each (mlcommons/endpoints, schema 1.0.0).

Each row of a user or a tool asks for an answer; rows of an assistant are the recorded answers.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.lengths.tokens import MAX_TOKENS
from llm_locust.workload.trajectories.reading import MOST_PAUSE_S, FileLine, decoded
from llm_locust.workload.trajectories.trajectory import Trajectory, TrajectoryError, Turn

#: Parameters of an answer that are fields of a chat request.
_PARAMETERS = (
    *("temperature", "top_p", "top_k", "seed", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "stop", "tools"),
)
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]


class ToolResult(msgspec.Struct, frozen=True):
    """What a tool gave."""

    tool_call_id: str
    content: str


class AgenticRow(msgspec.Struct, frozen=True):
    """One message. Unknown keys are ignored."""

    conversation_id: str
    turn: Annotated[int, msgspec.Meta(ge=1)]
    role: Literal["user", "assistant", "tool"]
    content: str | None = None
    system: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_results: list[ToolResult] | None = None
    max_new_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=MOST_PAUSE_S)] = 0.0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None


_DECODER = msgspec.json.Decoder(AgenticRow)
_EXPECTED = '{"conversation_id": ID, "turn": N, "role": "user"|"assistant"|"tool", "content": TEXT, ...}'


def read(lines: Iterable[FileLine]) -> list[Trajectory]:
    """The conversations of such lines."""
    rows: dict[str, list[AgenticRow]] = {}
    begun: dict[str, str] = {}
    for line in lines:
        row = decoded(_DECODER, line, _EXPECTED)
        of = rows.setdefault(row.conversation_id, [])
        if row.turn != len(of) + 1:
            raise TrajectoryError(f"{line.where}: turn {row.turn} where turn {len(of) + 1} is next")
        of.append(row)
        begun.setdefault(row.conversation_id, line.where)
    return [_trajectory(name, found, begun[name]) for name, found in rows.items()]


def _trajectory(name: str, rows: list[AgenticRow], where: str) -> Trajectory:
    messages: list[Message] = []
    turns: list[Turn] = []
    tools: list[dict[str, Any]] | None = None
    for i, row in enumerate(rows):
        if row.system is not None and not messages:
            messages.append({"role": "system", "content": row.system})
        messages += _messages(row)
        tools = row.tools or tools
        if row.role == "assistant":
            continue
        extra = {key: value for key in _PARAMETERS if (value := getattr(row, key)) is not None}
        turns.append(
            Turn(
                messages=tuple(messages),
                extra=extra | ({"tools": tools} if tools else {}),
                asked_output_tokens=row.max_new_tokens or row.max_completion_tokens,
                pause_s=_pause_s(rows, i),
            )
        )
    if not turns:
        raise TrajectoryError(f"{where}: conversation {name[:60]!r} has no row of a user or a tool")
    return Trajectory(id=name, turns=tuple(turns))


def _pause_s(rows: list[AgenticRow], i: int) -> float:
    """The delay before the next turn of the client's side, which follows this one's answer."""
    return next((row.delay_seconds for row in rows[i + 1 :] if row.role != "assistant"), 0.0)


def _messages(row: AgenticRow) -> list[Message]:
    if row.role == "tool" and row.tool_results is not None:
        return [
            {"role": "tool", "tool_call_id": result.tool_call_id, "content": result.content}
            for result in row.tool_results
        ]
    message: Message = {"role": row.role, "content": row.content}
    return [{**message, "tool_calls": row.tool_calls} if row.tool_calls else message]
