"""Traces of WEKA's kv-cache-tester, as SemiAnalysis publishes them (cc-traces-weka): one JSON object a trace.

``{"id", "block_size", "requests": [...]}``, where a request is ``{"t", "in", "out", "hash_ids", "api_time",
"think_time"}``, with times in seconds, or a sub-agent: ``{"type": "subagent", "agent_id", "t", "requests":
[...]}``. The hashes are those of one trace.

A sub-agent begins after the answer of the request before it, one that begins a trace after the first answer,
and the next request waits for all of them: its pause is what the recording has after their end. Requests of
one list are sent one after the other, also where the recorded ones overlapped.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from llm_locust.workload.lengths.tokens import MAX_TOKENS
from llm_locust.workload.trajectories.hashed import MOST_BLOCK, Chain
from llm_locust.workload.trajectories.reading import MOST_LEVELS, MOST_PAUSE_S, FileLine, decoded
from llm_locust.workload.trajectories.trajectory import Trajectory, TrajectoryError, Turn

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=10 * 365 * 86_400)]
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
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


_DECODER = msgspec.json.Decoder(WekaTrace)
_EXPECTED = '{"id": ID, "block_size": N, "requests": [{"t": S, "in": N, "out": N, "hash_ids": [...]}, ...]}'


def read(lines: Iterable[FileLine]) -> list[Trajectory]:
    """A trajectory of each line."""
    found = []
    for number, line in enumerate(lines):
        trace = decoded(_DECODER, line, _EXPECTED)
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
                    f"{self.line.where}: a request of {name[:60]!r} has no 'in'; expected {_EXPECTED}"
                )
            prompt = chain.following(entry.hash_ids, entry.input_tokens, system // chain.block)
            forks = tuple(self._forks(entry, begun, chain, depth))
            turns.append(
                Turn(
                    hashed=prompt,
                    asked_output_tokens=None if entry.output_tokens is None else max(1, entry.output_tokens),
                    pause_s=_pause_s(entry, begun, entries[until]) if until < len(entries) else 0.0,
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


def _pause_s(entry: WekaEntry, begun: Sequence[WekaEntry], following: WekaEntry) -> float:
    """Between the end of the request, or of the sub-agents after it, and the following request."""
    if following.think_time is not None and not begun:
        return _bounded_s(following.think_time)
    return _bounded_s(following.t - max(entry.ended_s, *(agent.ended_s for agent in begun), 0.0))


def _bounded_s(seconds: float) -> float:
    return min(max(0.0, seconds), MOST_PAUSE_S)
