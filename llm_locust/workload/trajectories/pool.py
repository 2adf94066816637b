"""The pool of trajectories of a run.

============= =====================================================================================
``chat``      :mod:`~llm_locust.workload.trajectories.chat`: OpenAI's messages, agentperf-local's files
``mlperf``    :mod:`~llm_locust.workload.trajectories.mlperf`: MLPerf's agentic data sets
``weka``      :mod:`~llm_locust.workload.trajectories.weka`: hashes of blocks, with sub-agents
``mooncake``  :mod:`~llm_locust.workload.trajectories.mooncake`: hashes of blocks, by session
============= =====================================================================================
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from llm_locust.core.run_facts import MOST_TRAJECTORIES, MOST_TURNS, TrajectoryFacts
from llm_locust.workload.draws import generator
from llm_locust.workload.trajectories import chat, mlperf, mooncake, weka
from llm_locust.workload.trajectories.hits import every, possible_shares
from llm_locust.workload.trajectories.reading import FileLine, lines
from llm_locust.workload.trajectories.trajectory import Trajectory, TrajectoryError, numbered

History = Literal["recorded", "own"]
HISTORIES: tuple[History, ...] = ("recorded", "own")

#: Third number of the keys of an agent's orders; see :mod:`llm_locust.workload.draws`.
_WALKS = 101


#: Keys by which a format is known, and its reader.
_READERS = (
    ({"conversation_id", "turn", "role"}, mlperf.read),
    ({"requests", "block_size"}, weka.read),
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
            f"trajectories {str(path)!r}: {len(turns):,} trajectories with {sum(turns):,} turns; at most "
            f"{MOST_TRAJECTORIES:,} with {MOST_TURNS:,} are allowed"
        )
    return pool


def mark_of(*key: object) -> str:
    """A mark of 64 bits, equal for equal keys: ``[1f0c9a3be2d4071b]``."""
    return f"[{blake2b('/'.join(map(str, key)).encode(), digest_size=8).hexdigest()}]"


def how_read(path: str | Path, trajectories: Iterable[Trajectory]) -> str:
    """How trajectories were read: ``9 trajectories, 41 turns, pauses of 2.1 s in the median, messages``."""
    turns = [turn for found in every(trajectories) for turn in found.turns]
    blocks = sorted({turn.hashed.block for turn in turns if turn.hashed is not None})
    pauses_s = [turn.pause_s for turn in turns if turn.pause_s]
    number = sum(1 for _ in every(trajectories))
    parts = [f"{number:,} trajectories", f"{len(turns):,} turns"]
    parts.append(f"pauses of {median(pauses_s):.3g} s in the median" if pauses_s else "no pauses")
    parts.append(f"hashes of {', '.join(map(str, blocks))} tokens" if blocks else "messages")
    return f"trajectories {str(path)!r}: {', '.join(parts)}"


def _reader(line: FileLine, block_tokens: int | None) -> Callable[[Iterable[FileLine]], list[Trajectory]]:
    """The reader of files that begin with this line; of an unreadable one, whose error is the clearest."""
    try:
        keys = msgspec.json.decode(line.raw, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return chat.read
    for marks, read in _READERS:
        if marks <= keys and "messages" not in keys:
            return read
    if {"hash_ids", "input_length"} <= keys and "messages" not in keys:
        return partial(mooncake.read, block_tokens=block_tokens)
    return chat.read
