"""A trajectory as a value: what an agent asked, turn after turn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.core.files import TRAJECTORIES, FileReading, InputError, folder_files, input_lines, read_input
from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.foreign_text import one_line
from llm_locust.workload.text.prompts import SLICE_WORDS, WORDS, Corpus, Prompt, with_head

# --------------------
# Prompts of which only the hashes of their blocks are known, as texts.
#
# Equal hashes give equal blocks of words, and different ones begin differently, so that two prompts have in
# common what their lists of hashes have: the hits that a prefix cache can have are those of the recording.
# A word counts as a token.
# --------------------


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
        texts = [_text(self.scope, number, self.block) for number in hashes]
        missing = self.tokens - len(hashes) * self.block
        if missing > 0:
            texts.append(_rest(f"{self.scope}/{len(hashes)}/{hashes[-1:]}", missing))
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


@lru_cache(maxsize=_KEPT)
def _text(scope: str, number: int, words: int) -> str:
    """The block with this hash."""
    return _words(f"{scope}/{number}", words)


def _rest(key: str, words: int) -> str:
    return " ".join(_words(f"{key}/{at}", min(MOST_BLOCK, words - at)) for at in range(0, words, MOST_BLOCK))


def _words(key: str, words: int) -> str:
    digest = blake2b(key.encode(), digest_size=16).digest()
    number = int.from_bytes(digest[:8])
    own = []
    for _ in range(min(words, _OWN_WORDS)):
        number, word = divmod(number, len(WORDS))
        own.append(WORDS[word])
    if words == len(own):
        return " ".join(own)
    corpus, others = _corpus(), words - len(own)
    first = int.from_bytes(digest[8:]) % (len(corpus.words) - others)
    return f"{' '.join(own)} {corpus.cut(first, others)}"


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
