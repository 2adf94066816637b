"""Prefix-cache hits that are possible at best, in a cache that forgets nothing."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llm_locust.workload.trajectories.trajectory import Trajectory, Turn, system_messages

Node = dict[str, Any]


def parts(turn: Turn) -> list[str]:
    """A request as texts in the order in which a chat template has them: tools first, then the messages."""
    tools = turn.extra.get("tools")
    rendered = [json.dumps(tools, ensure_ascii=False)] if tools else []
    return rendered + [json.dumps(message, ensure_ascii=False) for message in turn.messages]


def shared_characters(requests: Iterable[Sequence[str]], known: Iterable[Sequence[str]] = ()) -> list[int]:
    """Length of the longest beginning that each request has in common with ``known`` or an earlier request.

    Requests are sequences of texts; a text that is not equal as a whole counts up to its first difference,
    and ends the comparison.
    """
    root: Node = {}
    for request in known:
        _add(root, request)
    found = []
    for request in requests:
        found.append(_shared(root, request))
        _add(root, request)
    return found


def possible_shares(trajectory: Trajectory, *, marked: bool) -> list[float]:
    """Share of each turn's prompt, in characters, that a prefix cache can have at best.

    It can have what an earlier turn of the same walk began with, and, with a mark after the system prompt,
    tools and system prompt, which every walk has in common. Without a mark it can have all: another walk may
    have sent the very same. Characters stand for tokens.
    """
    requests = [parts(turn) for turn in trajectory.turns]
    if not marked:
        return [1.0] * len(requests)
    heads = [
        request[: len(request) - len(turn.messages) + system_messages(turn.messages)]
        for request, turn in zip(requests, trajectory.turns, strict=True)
    ]
    shared = shared_characters(requests, heads)
    return [
        round(length / sum(map(len, request)), 5) for length, request in zip(shared, requests, strict=True)
    ]


def every(trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """The trajectories and their sub-agents."""
    for trajectory in trajectories:
        yield trajectory
        for turn in trajectory.turns:
            yield from every(turn.forks)


def _shared(node: Node, request: Sequence[str]) -> int:
    length = 0
    for part in request:
        following = node.get(part)
        if following is None:
            return length + max((_common(part, other) for other in node), default=0)
        length, node = length + len(part), following
    return length


def _add(node: Node, request: Sequence[str]) -> None:
    for part in request:
        node = node.setdefault(part, {})


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
