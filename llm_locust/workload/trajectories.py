"""The pool of trajectories of a run, and the prefix-cache hits that are possible with them."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from llm_locust.core.manifest import MOST_TRAJECTORIES, MOST_TURNS, TrajectoryFacts
from llm_locust.figures.text import plural
from llm_locust.workload.draws import digest, generator
from llm_locust.workload.trajectory_formats import (
    FileLine,
    Trajectory,
    TrajectoryError,
    Turn,
    lines,
    numbered,
    read_chat,
    read_mlperf,
    read_mooncake,
    read_weka,
    system_messages,
)

# --- Prefix-cache hits that are possible at best, in a cache that forgets nothing


#: A text, or what stands for one of equal length: a block of which only the hash is known.
Part = str | int
Node = dict[Part, Any]

#: Characters that a block counts as; any number does, as all blocks of a trajectory are equally long.
_BLOCK = 64


def parts(turn: Turn) -> list[Part]:
    """A request as texts in the order in which a chat template has them: tools first, then the messages."""
    if turn.hashed is not None:
        return [*turn.hashed.hashes()]
    tools = turn.extra.get("tools")
    rendered = [json.dumps(tools, ensure_ascii=False)] if tools else []
    return [*rendered, *(json.dumps(message, ensure_ascii=False) for message in turn.messages)]


def shared_characters(requests: Iterable[Sequence[Part]], known: Iterable[Sequence[Part]] = ()) -> list[int]:
    """Length of the longest beginning that each request has in common with ``known`` or an earlier request.

    Requests are sequences of texts; a text that is not equal as a whole counts up to its first difference,
    and ends the comparison.
    """
    root: Node = {}
    for request in known:
        _add(root, request)
    found: list[int] = []
    before: Sequence[Part] = ()
    length, end = 0, root
    for request in requests:
        # Most requests begin with all of the one before, whose place is known.
        at, begun, node = len(before), length, end
        if request[:at] != before:
            at, begun, node = 0, 0, root
        rest = request[at:]
        found.append(begun + _shared(node, rest))
        before, length, end = request, begun + _length(rest), _add(node, rest)
    return found


def possible_shares(root: Trajectory, *, marked: bool) -> dict[int, list[float]]:
    """Share of each turn's prompt that a prefix cache can have at best, by the index of its trajectory.

    ``root`` and its sub-agents are one walk, in the order of the recording. A turn can have what an earlier
    turn of the walk began with, and, with a mark after the system prompt, tools and system prompt, which all
    walks have in common. Without a mark it can have all: another walk may have sent the very same. Characters
    stand for tokens, or blocks where only their hashes are known.
    """
    walk = list(_in_order(root))
    if not marked:
        return {trajectory.index: [1.0] * len(trajectory.turns) for trajectory in every((root,))}
    requests = [parts(turn) for _, turn in walk]
    heads = [_head(turn, request) for (_, turn), request in zip(walk, requests, strict=True)]
    found: dict[int, list[float]] = {}
    for (index, turn), request, shared in zip(
        walk, requests, shared_characters(requests, heads), strict=True
    ):
        whole = _length(request) if turn.hashed is None else turn.hashed.tokens * _BLOCK / turn.hashed.block
        found.setdefault(index, []).append(round(min(1.0, shared / whole), 5))
    return found


def _head(turn: Turn, request: Sequence[Part]) -> Sequence[Part]:
    """The part of a request before its mark."""
    if turn.hashed is not None:
        return request[: turn.hashed.system]
    return request[: len(request) - len(turn.messages) + system_messages(turn.messages)]


def _in_order(trajectory: Trajectory) -> Iterator[tuple[int, Turn]]:
    """Its turns, each followed by those of its sub-agents, with the index of their trajectory."""
    for turn in trajectory.turns:
        yield trajectory.index, turn
        for fork in turn.forks:
            yield from _in_order(fork)


def every(trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The trajectories and their sub-agents."""
    for trajectory in trajectories:
        yield trajectory
        for turn in trajectory.turns:
            yield from every(turn.forks)


def _length(request: Iterable[Part]) -> int:
    return sum(len(part) if isinstance(part, str) else _BLOCK for part in request)


def _shared(node: Node, request: Sequence[Part]) -> int:
    length = 0
    for part in request:
        following = node.get(part)
        if following is None:
            others = () if isinstance(part, int) else (other for other in node if isinstance(other, str))
            return length + max((_common(str(part), other) for other in others), default=0)
        length, node = length + (len(part) if isinstance(part, str) else _BLOCK), following
    return length


def _add(node: Node, request: Sequence[Part]) -> Node:
    for part in request:
        node = node.setdefault(part, {})
    return node


def _common(a: str, b: str) -> int:
    """Length of the common beginning, by halving: equal texts are compared at once."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# --- The pool of trajectories of a run


History = Literal["recorded", "own"]
HISTORIES: tuple[History, ...] = ("recorded", "own")

#: Third number of the keys of an agent's orders; see :mod:`llm_locust.workload.draws`.
_WALKS = 101


#: Keys by which a format is known, and its reader.
_READERS = (
    ({"conversation_id", "turn", "role"}, read_mlperf),
    ({"requests", "block_size"}, read_weka),
)


@dataclass(frozen=True)
class TrajectoryPool:
    """Trajectories, and how agents walk through them.

    Attributes:
        history: whether a turn has the recorded answers before it, or the server's own.
        bust: whether each walk has a mark of its own after the system prompt, so that no prefix cache knows
            more of a walk than the system prompt and its own earlier turns.
    """

    trajectories: tuple[Trajectory, ...]
    history: History = "recorded"
    bust: bool = True

    @cached_property
    def facts(self) -> TrajectoryFacts:
        """What reports need of the pool."""
        found = sorted(every(self.trajectories), key=lambda trajectory: trajectory.index)
        possible: dict[int, list[float]] = {}
        for root in self.trajectories:
            possible |= possible_shares(root, marked=self.bust)
        return TrajectoryFacts(
            ids=[trajectory.id[:100] for trajectory in found],
            roots=len(self.trajectories),
            possible=[possible[trajectory.index] for trajectory in found],
            pauses_s=[[round(turn.pause_s, 6) for turn in trajectory.turns] for trajectory in found],
        )

    def walk_of(self, seed: int, worker: int, user: int, walk: int) -> Trajectory:
        """The trajectory of the n-th walk of an agent, which has an order of its own for each round."""
        n = len(self.trajectories)
        order = generator(seed, worker, user, _WALKS, walk // n).permutation(n)
        return self.trajectories[int(order[walk % n])]


def load_pool(path: str | Path, block_tokens: int | None = None) -> tuple[Trajectory, ...]:
    """Read the trajectories of a file, or of the files of JSON lines in a folder.

    Args:
        block_tokens: that a hash of Mooncake's lines stands for; by default 512.

    Raises:
        TrajectoryError: a file or a line that cannot be read, or nothing in it.
    """
    found = lines(Path(path))
    first = next(found, None)
    if first is None:
        raise TrajectoryError(f"trajectories {str(path)!r}: nothing in it")
    pool = numbered(tuple(_reader(first, block_tokens)(chain((first,), found))))
    turns = [len(trajectory.turns) for trajectory in every(pool)]
    if len(turns) > MOST_TRAJECTORIES or sum(turns) > MOST_TURNS:
        raise TrajectoryError(
            f"trajectories {str(path)!r}: {plural(len(turns), 'trajectory', 'trajectories')} with "
            f"{plural(sum(turns), 'turn')}; at most "
            f"{MOST_TRAJECTORIES:,} with {MOST_TURNS:,} are allowed"
        )
    return pool


def mark_of(*key: object) -> str:
    """A mark of 64 bits, equal for equal keys: ``[1f0c9a3be2d4071b]``."""
    return f"[{digest(*key).hex()}]"


def how_read(path: str | Path, trajectories: Iterable[Trajectory]) -> str:
    """How trajectories were read: ``9 trajectories, 41 turns, pauses of 2.1 s in the median, messages``."""
    turns = [turn for found in every(trajectories) for turn in found.turns]
    blocks = sorted({turn.hashed.block for turn in turns if turn.hashed is not None})
    pauses_s = [turn.pause_s for turn in turns if turn.pause_s]
    number = sum(1 for _ in every(trajectories))
    parts = [plural(number, "trajectory", "trajectories"), plural(len(turns), "turn")]
    parts.append(f"pauses of {median(pauses_s):.3g} s in the median" if pauses_s else "no pauses")
    parts.append(f"hashes of {', '.join(map(str, blocks))} tokens" if blocks else "messages")
    return f"trajectories {str(path)!r}: {', '.join(parts)}"


def _reader(line: FileLine, block_tokens: int | None) -> Callable[[Iterable[FileLine]], list[Trajectory]]:
    """The reader of files that begin with this line; of an unreadable one, whose error is the clearest."""
    try:
        keys = msgspec.json.decode(line.raw, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return read_chat
    for marks, read in _READERS:
        if marks <= keys and "messages" not in keys:
            return read
    if {"hash_ids", "input_length"} <= keys and "messages" not in keys:
        return partial(read_mooncake, block_tokens=block_tokens)
    return read_chat
