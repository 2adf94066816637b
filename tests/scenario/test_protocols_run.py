"""Public protocols against the simulator for five seconds, all in one process: each is answered.

Whole runs of them, one by one, are ``make presets``.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Process, simulation

from llm_locust.core.batch import RecordBatch
from llm_locust.scenario.document import protocol_names
from llm_locust.store.frames import index_frames

SECONDS = 5

#: Prompts of 163,000 tokens fit, and cost no time of a model.
ROOM = ("--max-model-len", "300000", "--kv-cache-tokens", "100000000", "--max-num-seqs", "1000")
SLOW = ("--prefill-per-token", "0", "--ttft-base", "50ms", "--step-base", "50ms")


@dataclass(frozen=True, slots=True)
class Seen:
    """The records of each protocol, and the ids of all requests that the simulator answered."""

    records: dict[str, list[dict[str, Any]]]
    answered: set[str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder, names = tmp_path_factory.mktemp("protocols"), protocol_names()
    script = Path(__file__).parents[1] / "support/protocol_loads.py"
    with simulation(folder / "sim", *ROOM, *SLOW) as sim:
        process = Process([sys.executable, str(script), sim.url, str(folder), str(SECONDS), *names], folder)
        try:
            process.wait_for("done: begin")
            assert process.exit_code() == 0, process.stderr
        finally:
            process.end()
        answered = {entry["request_id"] for entry in sim.entries()}
    return Seen({name: _records(folder / f"{name}.frames") for name in names}, answered)


def _records(path: Path) -> list[dict[str, Any]]:
    frames = index_frames(path).frames
    return list(RecordBatch.concat(frame.batch() for frame in frames).table.to_pylist())


@pytest.mark.parametrize("name", protocol_names())
def test_every_protocol_is_answered_and_none_of_its_requests_fails(name: str, seen: Seen) -> None:
    records = seen.records[name]
    ok = [record for record in records if record["outcome"] == "ok"]
    assert ok, records
    assert {r["outcome"] for r in records} <= {"ok", "cancelled"}, [r["error"] for r in records]
    assert {r["request_id"] for r in ok} <= seen.answered


@pytest.mark.parametrize("name", protocol_names())
def test_prompts_of_every_protocol_have_the_lengths_that_it_asks_for(name: str, seen: Seen) -> None:
    for record in seen.records[name]:
        asked, found = record["asked_input_tokens"], record["input_tokens"]
        if asked is not None and found is not None:
            assert found == pytest.approx(asked, rel=0.02, abs=16)


def test_every_answer_of_the_simulator_has_a_record_of_one_protocol(seen: Seen) -> None:
    ids = [record["request_id"] for records in seen.records.values() for record in records]
    assert len(ids) == len(set(ids))
    assert seen.answered <= set(ids)
