"""Prefix-cache hits that are possible at best, in a cache that forgets nothing."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llm_locust.workload.trajectories.trajectory import Trajectory, Turn, system_messages

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
