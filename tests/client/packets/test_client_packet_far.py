"""Stamps of answers over delay, loss and reordering, against a capture of the test's own."""

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from bad_network import ADDRESSES, why_not
from capturing import captures
from far_answers import CALLS, EVENTS, HELD_S, NETWORKS

PROGRAM = Path(__file__).with_name("far_answers.py")

#: Largest difference between the stamps of two sockets for one packet.
SAME_NS = 50_000

_WHY_NOT = why_not()
pytestmark = [captures, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]


@dataclass(frozen=True, slots=True)
class Came:
    """What the second capture saw of one connection: offset, size and time of each packet with payload."""

    packets: list[tuple[int, int, int]]

    @classmethod
    def of(cls, seen: list[tuple[int, int, int]]) -> "Came":
        first = next(seq for seq, size, _ in seen if size < 0) + 1
        return cls([((seq - first) % 2**32, size, at) for seq, size, at in seen if size > 0])

    @property
    def overtaken(self) -> int:
        """Packets that came after a later one."""
        furthest, found = 0, 0
        for offset, size, _ in self.packets:
            found += offset < furthest
            furthest = max(furthest, offset + size)
        return found

    def arrived_ns(self) -> list[int]:
        """When each byte and all before it had come: of each byte the first time counts."""
        first_ns: dict[int, int] = {}
        for offset, size, at_ns in self.packets:
            for byte in range(offset, offset + size):
                first_ns.setdefault(byte, at_ns)
        return list(accumulate((first_ns[byte] for byte in range(len(first_ns))), max))


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """All runs: one program, because to start it takes longer than a run does."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": ":".join(map(str, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("version", ADDRESSES)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_event_has_the_time_at_which_it_and_all_before_it_had_come(
    seen: dict[str, Any], network: str, version: int
) -> None:
    (run,) = (run for run in seen["runs"] if (run["network"], run["version"]) == (network, version))
    assert (run["dropped"], run["unseen_reads"]) == (0, 0)
    assert [record["outcome"] for record in run["records"]] == ["ok"] * CALLS
    overtaken = 0
    for record in run["records"]:
        came = Came.of(run["second"][str(record["port"])])
        overtaken += came.overtaken
        arrived_ns = came.arrived_ns()
        expected = [arrived_ns[end - 1] for end in seen["ends"]]
        assert len(record["arrived_ns"]) == len(expected) == EVENTS
        off = [abs(a - b) for a, b in zip(record["arrived_ns"], expected, strict=True)]
        assert max(off) < SAME_NS
        assert record["lag_ns"] > HELD_S * 1e9 / 2  # it was read late: no read's own time would do
    if NETWORKS[network].lost or NETWORKS[network].late:
        assert overtaken > 0
