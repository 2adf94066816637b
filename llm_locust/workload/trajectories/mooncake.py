"""Mooncake's lines with sessions: JSON lines, one turn each, with the hashes of its blocks, of 512 tokens
unless somebody says otherwise.

``session_id`` says to which trajectory a turn belongs, ``delay`` how many milliseconds after the answer
before it is sent. Without a session lines are arrivals, not turns: ``--arrival trace:FILE`` replays them.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import msgspec

from llm_locust.core.record import MAX_TOKENS
from llm_locust.workload.traces.entry import MOONCAKE_BLOCK_TOKENS
from llm_locust.workload.traces.plausible import BlockError, Hashed, check_blocks
from llm_locust.workload.trajectories.hashed import Chain
from llm_locust.workload.trajectories.reading import MOST_PAUSE_S, FileLine, decoded
from llm_locust.workload.trajectories.trajectory import Trajectory, TrajectoryError, Turn

_Ms = Annotated[float, msgspec.Meta(ge=0, le=MOST_PAUSE_S * 1000)]
_Tokens = Annotated[float, msgspec.Meta(ge=1, le=MAX_TOKENS, multiple_of=1)]


class MooncakeTurn(msgspec.Struct, frozen=True):
    """One turn. Unknown keys are ignored."""

    input_length: _Tokens
    hash_ids: tuple[int, ...]
    session_id: str | int | None = None
    output_length: _Tokens | None = None
    delay: _Ms = 0.0


_DECODER = msgspec.json.Decoder(MooncakeTurn)
_EXPECTED = '{"session_id": ID, "input_length": N, "output_length": N, "hash_ids": [...], "delay": MS}'


def read(lines: Iterable[FileLine], block_tokens: int | None = None) -> list[Trajectory]:
    """The sessions of such lines. Their hashes are those of the whole pool.

    Args:
        block_tokens: that a hash stands for; None: 512, if that can be.
    """
    block = block_tokens or MOONCAKE_BLOCK_TOKENS
    sessions: dict[str, tuple[Chain, list[Turn]]] = {}
    hashed: list[Hashed] = []
    for line in lines:
        found = decoded(_DECODER, line, _EXPECTED)
        if found.session_id is None:
            raise TrajectoryError(
                f"{line.where}: no session_id, so that it is no turn of a trajectory; replay such lines with "
                f"--arrival trace:FILE, or add it: {_EXPECTED}"
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
