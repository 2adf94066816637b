"""When the turns of one walk are due, on a virtual clock: a process that is late hides nothing of it."""

import json

import pytest
from warm_process import warm_code

# Locust patches the standard library: agents walk in a process of their own. An answer takes 100 ms, and the
# process handles each 300 ms late.
SCRIPT = """
import json
import time
from types import SimpleNamespace as Fake

from llm_locust.core.record import Outcome
from llm_locust.swarm.agents import Walk
from llm_locust.workload.trajectories.trajectory import Trajectory, Turn

MS = 1_000_000


class LateRequester:
    now_ns = 10**18
    session = Fake(gate=Fake(phase=0), client=Fake(new_request_id=lambda: "r"))

    def __init__(self):
        self.sent = []

    def follow(self, session_id, parent_id):
        pass

    def bounded(self, prompt):
        return prompt

    def prepared(self, prompt, session_id):
        return prompt.messages[0]["content"]

    def admitted(self, due_ns):
        return due_ns

    def send(self, name, due_ns, **_):
        ended_ns = self.now_ns + 100 * MS
        self.now_ns = ended_ns + 300 * MS
        self.sent.append((name, due_ns, ended_ns))
        return Fake(record=Fake(outcome=Outcome.OK, ended_ns=ended_ns))


def walk(name, *forks, turns=1, pause_s=0.0):
    said = ({"role": "user", "content": name},)
    first = Turn(messages=said, forks=forks, pause_s=pause_s)
    return Trajectory(id=name, turns=(first, *[Turn(messages=said)] * (turns - 1)))


def held(*forks, pause_s=0.0):
    requester = LateRequester()
    time.time_ns = lambda: requester.now_ns
    root = walk("root", *forks, turns=2, pause_s=pause_s)
    ended_ns = Walk(requester, Fake(history="recorded"), root, "").hold()
    return requester.sent, ended_ns


print(json.dumps({
    "none": held(),
    "one": held(walk("a")),
    "two": held(walk("a", turns=2), walk("b")),
    "its own": held(walk("a", walk("b", walk("c")))),
    "long pause": held(walk("a"), pause_s=0.6),
}))
"""


@pytest.fixture(scope="module")
def walks() -> dict[str, tuple[list[tuple[str, int, int]], int]]:
    """Of each walk what was sent, when it was due and when it ended; and when the walk ended."""
    return dict(json.loads(warm_code(SCRIPT)))


def test_a_turn_is_due_when_what_it_waits_for_ended_however_late_that_is_noticed(
    walks: dict[str, tuple[list[tuple[str, int, int]], int]],
) -> None:
    for name, turns in {"none": 2, "one": 3, "two": 5, "its own": 5}.items():
        (*before, (who, due_ns, last_ns)), ended_ns = walks[name]
        assert (name, len(before) + 1, who) == (name, turns, "root")
        assert due_ns == max(end for _, _, end in before), name
        assert ended_ns == last_ns, name


def test_a_pause_that_is_longer_than_all_sub_agents_counts_from_its_turn(
    walks: dict[str, tuple[list[tuple[str, int, int]], int]],
) -> None:
    first, _, last = walks["long pause"][0]
    assert last[1] == first[2] + 600_000_000
