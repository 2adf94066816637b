"""A trajectory as a value: what an agent asked, turn after turn; and the formats of their files.

============ ======================================================
``chat``     OpenAI's messages, agentperf-local's files
``mlperf``   MLPerf's agentic data sets
``weka``     hashes of blocks, with sub-agents
``mooncake`` hashes of blocks, by session
============ ======================================================
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from llm_locust.core.files import TRAJECTORIES, FileReading, InputError, folder_files, input_lines, read_input
from llm_locust.core.record import MAX_TOKENS
from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.foreign_text import one_line
from llm_locust.workload.draws import digest
from llm_locust.workload.prompts import SLICE_WORDS, Corpus, Prompt, with_head, words_of
from llm_locust.workload.trace_formats import MOONCAKE_BLOCK_TOKENS
from llm_locust.workload.traces import BlockError, Hashed, check_blocks

# --- Prompts of which only the hashes of their blocks are known, as texts
#
# Equal hashes give equal blocks of words, and different ones begin differently, so that two prompts have in
# common what their lists of hashes have: the hits that a prefix cache can have are those of the recording.
# A word counts as a token.


#: Largest block, in tokens.
MOST_BLOCK = SLICE_WORDS

#: Words of a block that are its own, 60 bits of its hash; its other words are of a text that all share.
_OWN_WORDS = 6

#: Blocks that are kept as text: with 64 tokens each, 30 MB.
_KEPT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPrompt:
    """A prompt of ``tokens`` tokens: the first ``kept`` blocks of ``before``, and the blocks ``new``.

    A history that turns repeat is held once. Tokens beyond the blocks are a text that follows no other
    blocks; a last block that is longer than what is left of ``tokens`` is cut.

    Attributes:
        scope: hashes are equal only within it: the file, or the trace.
        system: number of blocks of the beginning that are the system prompt.
    """

    scope: str
    block: int
    tokens: int
    new: tuple[int, ...]
    before: "HashedPrompt | None" = None
    kept: int = 0
    system: int = 0

    def hashes(self) -> list[int]:
        """All of its hashes."""
        parts, wanted, at = [], self.kept + len(self.new), self
        while True:
            parts.append(at.new[: max(0, wanted - at.kept)])
            wanted = min(wanted, at.kept)
            if at.before is None or not wanted:
                break
            at = at.before
        return [number for part in reversed(parts) for number in part]

    def messages(self) -> tuple[Message, ...]:
        """The system prompt, if there is one, and a message of the user with all else."""
        hashes = self.hashes()
        texts = [_block(f"{self.scope}/{number}", self.block) for number in hashes]
        missing = self.tokens - len(hashes) * self.block
        if missing > 0:
            key = f"{self.scope}/{len(hashes)}/{hashes[-1:]}"
            starts = range(0, missing, MOST_BLOCK)
            texts += [_words(f"{key}/{at}", min(MOST_BLOCK, missing - at)) for at in starts]
        elif missing < 0:
            texts[-1] = " ".join(texts[-1].split(" ")[:missing])
        system = min(self.system, len(texts) - 1)  # a request without a user's message is refused
        user: Message = {"role": "user", "content": " ".join(texts[system:])}
        return ({"role": "system", "content": " ".join(texts[:system])}, user) if system > 0 else (user,)


@dataclass(slots=True)
class Chain:
    """Prompts of an agent in their order, each of which may begin as the one before.

    ``scope`` and ``block`` are those of the prompts; ``prompt`` is the last one, with these ``hashes``.
    """

    scope: str
    block: int
    prompt: HashedPrompt | None = None
    hashes: tuple[int, ...] = ()

    def forked(self) -> "Chain":
        """A chain of another agent whose first prompt may begin as this one's last."""
        return replace(self)

    def following(self, hashes: Sequence[int], tokens: int, system: int = 0) -> HashedPrompt:
        """The next prompt: as many of these hashes as ``tokens`` has blocks.

        Args:
            system: blocks of the system prompt; 0: those of the prompt before, if it begins with all of them.
        """
        hashes = tuple(hashes[: -(-tokens // self.block)])
        kept = min(len(self.hashes), len(hashes))
        if hashes[:kept] != self.hashes[:kept]:
            kept = next(i for i, (a, b) in enumerate(zip(self.hashes, hashes, strict=False)) if a != b)
        if not system and self.prompt is not None and kept >= self.prompt.system:
            system = self.prompt.system
        self.hashes = hashes
        self.prompt = HashedPrompt(
            scope=self.scope,
            block=self.block,
            tokens=tokens,
            new=hashes[kept:],
            before=self.prompt if kept else None,
            kept=kept,
            system=system,
        )
        return self.prompt


@lru_cache(maxsize=1)
def _corpus() -> Corpus:
    return Corpus.of(0)


def _words(key: str, words: int) -> str:
    hashed = digest(key, size=16)
    own = words_of(hashed[:8], min(words, _OWN_WORDS))
    if words == len(own):
        return " ".join(own)
    corpus, others = _corpus(), words - len(own)
    first = int.from_bytes(hashed[8:]) % (len(corpus.words) - others)
    return f"{' '.join(own)} {corpus.cut(first, others)}"


_block = lru_cache(maxsize=_KEPT)(_words)


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


# --- Lines of files of trajectories; every error names the file and the line


#: Longest pause between two turns: a day.
MOST_PAUSE_S = 86_400.0

#: Sub-agents of sub-agents of ..., at most.
MOST_LEVELS = 32

#: Files that may be one JSON document in several lines.
_WHOLE = (".json", ".json.gz")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line that is not blank, and its number from 1.

    ``file`` names its file: the path in the folder that was given, without the last suffix.
    """

    path: Path
    file: str
    number: int
    raw: bytes

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}"


def files(path: Path) -> list[Path]:
    """The file, or the files of JSON lines in the folder and below it, by name; else those of JSON.

    Hidden files and folders are left out.

    Raises:
        TrajectoryError: there is none.
        InputError: the folder cannot be read, or has too many files.
    """
    if not path.is_dir():
        return [path]
    there = folder_files(path, TRAJECTORIES.name, below=True)
    for suffixes in ((".jsonl", ".jsonl.gz"), _WHOLE):
        found = [each for each in there if each.name.endswith(suffixes)]
        if found:
            return found
    raise TrajectoryError(f"trajectories {str(path)!r}: no file in it ends in .jsonl, .jsonl.gz or .json")


def lines(given: Path) -> Iterator[FileLine]:
    """Lines of its :func:`files` that are not blank; gzip is decompressed (raises TrajectoryError).

    A JSON file whose first line is no document is one line as a whole.
    """
    reading = FileReading(TRAJECTORIES, given)
    try:
        for path in files(given):
            name = path.relative_to(given if path != given else given.parent).with_suffix("").as_posix()
            for number, raw in enumerate(input_lines(path, reading), 1):
                if number == 1 and path.name.endswith(_WHOLE) and not _is_document(raw):
                    document = read_input(path, TRAJECTORIES, reading)
                    reading.add_line(document, 1)
                    yield FileLine(path, name, 1, document)
                    break
                if not raw.isspace():
                    yield FileLine(path, name, number, raw)
    except InputError as e:
        raise TrajectoryError(str(e)) from e


def _is_document(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def decoded(decoder: "msgspec.json.Decoder[T]", line: FileLine, expected: str) -> T:
    try:
        return decoder.decode(line.raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise TrajectoryError(f"{line.where}: {e}; expected {expected}") from e


def shared_messages(
    messages: Sequence[dict[str, Any]], before: tuple[Message, ...] | None
) -> tuple[Message, ...]:
    """The messages, those of the turn before being the same objects: a history is held once."""
    same = 0
    for a, b in zip(messages, before or (), strict=False):
        if a != b:
            break
        same += 1
    return (*(before or ())[:same], *messages[same:])


# --- Trajectories in OpenAI's chat form: JSON lines, one turn each, with the whole recorded history
#
# ``messages``, and where they are known ``tools``, ``target_output_tokens`` (or ``max_tokens``), and the
# pause after the answer: ``pause_ms_after``, or ``simulated_tool_delay_ms_after``, as agentperf-local has
# it. Lines of one ``conversation_id`` (``trajectory_id``, ``task_id``; else of one file, whose path in the
# folder without suffix is the id) are its turns, in their order. A line with ``parent`` (the id of another
# trajectory) and ``after_turn`` begins a sub-agent of that turn.


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


def read_chat(lines: Iterable[FileLine]) -> list[Trajectory]:
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
        if not (content is None or isinstance(content, str)) and not (
            isinstance(content, list) and all(isinstance(part, dict) for part in content)
        ):
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


# --- MLPerf's agentic data sets: JSON lines, one message each (mlcommons/endpoints, schema 1.0.0)
#
# Each row of a user or a tool asks for an answer; rows of an assistant are the recorded answers.


#: Parameters of an answer that are fields of a chat request.
_PARAMETERS = (
    *("temperature", "top_p", "top_k", "seed", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "stop", "tools"),
)


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


_MLPERF_DECODER = msgspec.json.Decoder(AgenticRow)
_MLPERF_EXPECTED = (
    '{"conversation_id": ID, "turn": N, "role": "user"|"assistant"|"tool", "content": TEXT, ...}'
)


def read_mlperf(lines: Iterable[FileLine]) -> list[Trajectory]:
    """The conversations of such lines."""
    rows: dict[str, list[AgenticRow]] = {}
    begun: dict[str, str] = {}
    for line in lines:
        row = decoded(_MLPERF_DECODER, line, _MLPERF_EXPECTED)
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


# --- Mooncake's lines with sessions: JSON lines, one turn each, with the hashes of its blocks, of 512 tokens
# unless somebody says otherwise
#
# ``session_id`` says to which trajectory a turn belongs, ``delay`` how many milliseconds after the answer
# before it is sent. Without a session lines are arrivals, not turns: ``--arrival trace:FILE`` replays them.


_MooncakeTokens = Annotated[float, msgspec.Meta(ge=1, le=MAX_TOKENS, multiple_of=1)]


class MooncakeTurn(msgspec.Struct, frozen=True):
    """One turn. Unknown keys are ignored."""

    input_length: _MooncakeTokens
    hash_ids: tuple[int, ...]
    session_id: str | int | None = None
    output_length: _MooncakeTokens | None = None
    delay: _Ms = 0.0


_MOONCAKE_DECODER = msgspec.json.Decoder(MooncakeTurn)
_MOONCAKE_EXPECTED = (
    '{"session_id": ID, "input_length": N, "output_length": N, "hash_ids": [...], "delay": MS}'
)


def read_mooncake(lines: Iterable[FileLine], block_tokens: int | None = None) -> list[Trajectory]:
    """The sessions of such lines. Their hashes are those of the whole pool.

    Args:
        block_tokens: that a hash stands for; None: 512, if that can be.
    """
    block = block_tokens or MOONCAKE_BLOCK_TOKENS
    sessions: dict[str, tuple[Chain, list[Turn]]] = {}
    hashed: list[Hashed] = []
    for line in lines:
        found = decoded(_MOONCAKE_DECODER, line, _MOONCAKE_EXPECTED)
        if found.session_id is None:
            raise TrajectoryError(
                f"{line.where}: no session_id, so that it is no turn of a trajectory; replay such lines with "
                f"--arrival trace:FILE, or add it: {_MOONCAKE_EXPECTED}"
            )
        chain, turns = sessions.setdefault(str(found.session_id), (Chain("", block), []))
        if turns:
            turns[-1] = replace(turns[-1], pause_s=found.delay * 1e-3)
        tokens, output = int(found.input_length), found.output_length
        hashed.append(Hashed(tokens, len(found.hash_ids), line.where))
        prompt = chain.following(found.hash_ids, tokens)
        turns.append(Turn(hashed=prompt, asked_output_tokens=None if output is None else int(output)))
    if block_tokens is None:
        try:
            check_blocks(hashed, block)
        except BlockError as e:
            raise TrajectoryError(str(e)) from e
    return [Trajectory(id=name, turns=tuple(turns)) for name, (_, turns) in sessions.items()]


# --- Traces of WEKA's kv-cache-tester, as SemiAnalysis publishes them (cc-traces-weka): one JSON object a
# trace
#
# ``{"id", "block_size", "requests": [...]}``, where a request is ``{"t", "in", "out", "hash_ids",
# "api_time", "think_time"}``, with times in seconds, or a sub-agent: ``{"type": "subagent", "agent_id",
# "t", "requests": [...]}``. The hashes are those of one trace.
#
# A sub-agent begins after the answer of the request before it, one that begins a trace after the first
# answer, and the next request waits for all of them: its pause is what the recording has after their end.
# Requests of one list are sent one after the other, also where the recorded ones overlapped.


_Seconds = Annotated[float, msgspec.Meta(ge=0, le=10 * 365 * 86_400)]
_Prefix = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class WekaEntry(msgspec.Struct, frozen=True, rename={"input_tokens": "in", "output_tokens": "out"}):
    """A request, or a sub-agent. Unknown keys are ignored."""

    t: _Seconds = 0.0
    type: str = "n"
    input_tokens: _Tokens | None = None
    output_tokens: _Prefix | None = None
    hash_ids: tuple[int, ...] = ()
    api_time: _Seconds | None = None
    think_time: _Seconds | None = None
    agent_id: str | None = None
    requests: "list[WekaEntry]" = []
    tool_tokens: _Prefix = 0
    system_tokens: _Prefix = 0

    @property
    def ended_s(self) -> float:
        """When it ended, on the trace's clock; of a sub-agent: its last answer. Its times may be relative."""
        if self.type != "subagent":
            return self.t + (self.api_time or 0.0)
        last = max((entry.ended_s for entry in self.requests), default=self.t)
        first = min((entry.t for entry in self.requests), default=self.t)
        return self.t + max(0.0, last - first)


class WekaTrace(msgspec.Struct, frozen=True):
    """One trace. Unknown keys are ignored."""

    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_BLOCK)]
    requests: list[WekaEntry]
    tool_tokens: _Prefix = 0
    system_tokens: _Prefix = 0


_WEKA_DECODER = msgspec.json.Decoder(WekaTrace)
_WEKA_EXPECTED = (
    '{"id": ID, "block_size": N, "requests": [{"t": S, "in": N, "out": N, "hash_ids": [...]}, ...]}'
)


def read_weka(lines: Iterable[FileLine]) -> list[Trajectory]:
    """A trajectory of each line."""
    found = []
    for number, line in enumerate(lines):
        trace = decoded(_WEKA_DECODER, line, _WEKA_EXPECTED)
        chain = Chain(f"{number}/{trace.id}", trace.block_size)
        system = trace.tool_tokens + trace.system_tokens
        found.append(_Agents(line).trajectory(trace.id, trace.requests, system, chain, 0))
    return found


@dataclass(frozen=True, slots=True)
class _Agents:
    """Makes the agents of the trace in a line."""

    line: FileLine

    def trajectory(
        self, name: str, entries: Sequence[WekaEntry], system: int, chain: Chain, depth: int
    ) -> Trajectory:
        """An agent's trajectory; ``system`` in tokens."""
        if depth > MOST_LEVELS:
            raise TrajectoryError(f"{self.line.where}: sub-agents of more than {MOST_LEVELS} levels")
        own = [i for i, entry in enumerate(entries) if entry.type != "subagent"]
        if not own:
            if not entries:
                raise TrajectoryError(f"{self.line.where}: {name[:60]!r} has no request")
            # Nobody began these sub-agents: the first one stands for the agent.
            return self.trajectory(name, [*entries[0].requests, *entries[1:]], system, chain, depth + 1)
        turns = []
        for place, (at, until) in enumerate(zip(own, [*own[1:], len(entries)], strict=True)):
            begun = [*(entries[:at] if place == 0 else ()), *entries[at + 1 : until]]
            entry = entries[at]
            if entry.input_tokens is None:
                raise TrajectoryError(
                    f"{self.line.where}: a request of {name[:60]!r} has no 'in'; expected {_WEKA_EXPECTED}"
                )
            prompt = chain.following(entry.hash_ids, entry.input_tokens, system // chain.block)
            forks = tuple(self._forks(entry, begun, chain, depth))
            turns.append(
                Turn(
                    hashed=prompt,
                    asked_output_tokens=None if entry.output_tokens is None else max(1, entry.output_tokens),
                    pause_s=_weka_pause_s(entry, begun, entries[until]) if until < len(entries) else 0.0,
                    forks=forks,
                )
            )
        return Trajectory(id=name, turns=tuple(turns))

    def _forks(
        self, entry: WekaEntry, begun: Sequence[WekaEntry], chain: Chain, depth: int
    ) -> Iterator[Trajectory]:
        """The sub-agents that begin after this request; one without a request is none."""
        for agent in begun:
            if agent.requests:
                system = agent.tool_tokens + agent.system_tokens
                name = agent.agent_id or "subagent"
                found = self.trajectory(name, agent.requests, system, chain.forked(), depth + 1)
                yield replace(found, delay_s=_bounded_s(agent.t - entry.ended_s))


def _weka_pause_s(entry: WekaEntry, begun: Sequence[WekaEntry], following: WekaEntry) -> float:
    """Between the end of the request, or of the sub-agents after it, and the following request."""
    if following.think_time is not None and not begun:
        return _bounded_s(following.think_time)
    return _bounded_s(following.t - max(entry.ended_s, *(agent.ended_s for agent in begun), 0.0))


def _bounded_s(seconds: float) -> float:
    return min(max(0.0, seconds), MOST_PAUSE_S)
