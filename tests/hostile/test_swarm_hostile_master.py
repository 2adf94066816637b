"""A real master under a hostile worker: it ends in time, has every genuine record, and never says that a
run with a doubtful count is whole."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any, Self

import msgpack  # type: ignore[import-untyped]
import psutil
import pytest
import zmq
from swarm_process import (
    Process,
    Result,
    Simulation,
    as_worker,
    forked,
    free_port,
    in_parallel,
    locust,
    simulation,
    swarm,
    wait_until,
)

from llm_locust.store import FrameHeader, encode_frame
from llm_locust.swarm.channel.trust import derive_keys, secure_worker

SECRET = "a secret of the run, for tests"
LOAD = ["--headless", "-u", "4", "-r", "100", "-t", "4s", "--output-tokens", "30", "--out", "run"]
LOAD += ["--body", '{"ignore_eos": true}']


class Fake:
    """A hand-made worker: it sends what it likes, under the name that it likes."""

    def __init__(self, port: int, name: str, secret: bytes | None = None) -> None:
        self.name = name
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._socket.setsockopt(zmq.LINGER, 2000)
        if secret is not None:
            secure_worker(self._socket, derive_keys(secret))
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def raw(self, *parts: bytes) -> None:
        self._socket.send_multipart(list(parts))

    def say(self, kind: object, data: object = None, name: object = None) -> None:
        self.raw(msgpack.dumps((kind, data, self.name if name is None else name)))

    def hears_nothing(self) -> bool:
        return not self._socket.poll(500)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


def batch(run: str, worker: str, seq: int = 0, rows: int = 1, **changes: Any) -> dict[str, Any]:
    frame = encode_frame(FrameHeader(run, worker, seq, rows), b"no batch")
    return {"run": run, "seq": seq, "rows": rows, "finished": 9, "in_flight": 0, "frame": frame, **changes}


def counts(run: str, **changes: Any) -> dict[str, Any]:
    load = {"ok": 0, "failed": 0, "waiting": 0, "held_back": 0, "longest_held_ns": 0, "spent": True}
    whole = {"run": run, "finished": 0, "in_flight": 0, "unsent": 0, "dropped": 0, "load": load}
    return {**whole, "clock": None, "health": {}, **changes}


def statistics(*names: str) -> dict[str, Any]:
    """A report that Locust's master can take."""
    whole = {
        "method": "POST",
        "num_requests": 1,
        "response_times": {7: 1},
        "num_reqs_per_sec": {1_800_000_000: 1},
    }
    entries = [{**whole, "name": name} for name in names]
    return {"stats": entries, "stats_total": {**whole, "name": "A"}, "errors": {}, "user_classes_count": {}}


def attacks(run: str, genuine: str) -> list[Callable[[Fake], None]]:
    """What a stranger, who is no worker of the master, tries: as itself and as the genuine worker."""
    return [
        lambda f: f.raw(b""),
        lambda f: f.raw(b"\xc1"),
        lambda f: f.raw(b"\xff" * 1000),
        lambda f: f.raw(b"a", b"b", b"c"),
        lambda f: f.raw(msgpack.dumps([1, 2])),
        lambda f: f.raw(msgpack.dumps(([], {}, []))),
        lambda f: f.say("llm_batch", {**batch(run, f.name), "seq": -1}),
        lambda f: f.say("llm_batch", batch(run, f.name, frame="abc")),
        lambda f: f.say("llm_batch", {**batch(run, f.name), "rows": "x"}),
        lambda f: f.say("llm_batch", batch(run, genuine), genuine),
        lambda f: f.say("llm_batch", batch(run, f.name)),
        lambda f: f.say("llm_done", counts(run), genuine),
        lambda f: f.say("llm_done", counts(run)),
        lambda f: f.say("llm_spent", counts(run), genuine),
        lambda f: f.say("llm_refused", {"run": run, "reason": "no"}, genuine),
        lambda f: f.say("llm_refused", {"run": run, "reason": "no"}),
        lambda f: f.say("llm_ping", {"number": "x"}),
        lambda f: f.say("llm_live", {"report": b"x" * 100}),
        lambda f: f.say("llm_hello", {"protocol": 99, "version": "9.9"}),
        lambda f: f.say("stats", {"llm": counts(run)}),
        lambda f: f.say("stats", {"llm": counts(run, health={"mood": 1})}, genuine),
        lambda f: f.say("stats", 7),
        lambda f: f.say("stats", statistics("by-a-stranger")),
        lambda f: f.say("heartbeat", None, genuine),
        lambda f: f.say("heartbeat", {"state": "missing", "current_cpu_usage": 0}, genuine),
        lambda f: f.say("spawning_complete", None),
        lambda f: f.say("client_ready", 5),
        lambda f: f.say("client_stopped", None, genuine),
        lambda f: f.say("quit", None, genuine),
        lambda f: f.say("exception", "x"),
        lambda f: f.say("logs", [1]),
        lambda f: f.say("locustfile", {}),
        lambda f: f.say("nobody_listens", {}),
    ]


def joined_attacks(run: str) -> list[Callable[[Fake], None]]:
    """What a worker tries that has joined, as anybody can where there is no secret."""
    return [
        lambda f: f.say("llm_batch", {**batch(run, f.name), "seq": -1}),
        lambda f: f.say("llm_batch", {**batch(run, f.name), "rows": "x"}),
        lambda f: f.say("llm_batch", batch(run, f.name, frame=b"abc")),
        lambda f: f.say("llm_batch", batch(run, "another", seq=3)),
        lambda f: f.say("stats", {"llm": {"run": []}}),
        lambda f: f.say("llm_done", counts(run, finished=50)),
        lambda f: f.say("llm_done", counts(run, finished=5)),
        lambda f: f.say("llm_live", {"report": b"x"}),
        lambda f: f.say("llm_ping", {"number": 2**60, "sent_ns": 0}),
        lambda f: f.say("stats", statistics(*(f"{i}-{'x' * 3000}" for i in range(3000)))),
    ]


def names(master: Process) -> tuple[str, str]:
    """The run and its worker, as the master's log tells anybody."""
    master.wait_for(r"run \S+ writes to")
    master.wait_for("reported as ready")
    (run,) = (line.split(" run ")[1].split()[0] for line in master.lines if " writes to " in line)
    first = next(line for line in master.lines if "reported as ready" in line)
    return run, first.split()[2]


def finished(master: Process, sim: Simulation, folder: Path) -> dict[str, Any]:
    code = master.exit_code()
    result = Result.read(folder / "run")
    served = {entry["request_id"] for entry in sim.entries() if entry.get("request_id")}
    return {
        "code": code,
        "summary": result.summary["completeness"],
        "rows": len(result.requests),
        "entries": len(sim.entries()),
        "missing": served - set(result.rows()),
        "stderr": master.stderr,
    }


def by_strangers(folder: Path) -> dict[str, Any]:
    port = free_port()
    with simulation(folder / "sim") as sim, swarm(folder, 1, *LOAD, "-H", sim.url, port=port) as (master, _):
        run, genuine = names(master)
        sim.wait_entries(4)
        with Fake(port, "stranger") as fake:
            for attack in attacks(run, genuine):
                attack(fake)
            return finished(master, sim, folder) | {"attacks": len(attacks(run, genuine))}


def by_a_worker(folder: Path) -> dict[str, Any]:
    port = free_port()
    with simulation(folder / "sim") as sim, swarm(folder, 1, *LOAD, "-H", sim.url, port=port) as (master, _):
        run, _genuine = names(master)
        sim.wait_entries(4)
        with Fake(port, "fake") as fake:
            fake.say("client_ready", "2.47.0")
            master.wait_for("fake .*reported as ready")
            for attack in joined_attacks(run):
                attack(fake)
            return finished(master, sim, folder)


def with_a_secret(folder: Path) -> dict[str, Any]:
    port = free_port()
    secret = {"RUN_SECRET": SECRET}
    known = ["--swarm-secret-env", "RUN_SECRET"]
    as_master = ["--master", "--expect-workers", "1", "--master-bind-port", str(port)]
    header = ["--header", "X-Key=sk-not-for-strangers"]
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *as_master, *LOAD, *known, *header, "-H", sim.url, environ=secret) as master,
        locust(folder, *as_worker(port), *known, environ=secret, stdout="worker"),
    ):
        run, genuine = names(master)
        sim.wait_entries(4)
        with Fake(port, "stranger", b"a secret of another run") as fake:
            fake.say("client_ready", "2.47.0")
            for attack in [*attacks(run, genuine), *joined_attacks(run)]:
                attack(fake)
            return finished(master, sim, folder) | {"silent": fake.hears_nothing()}


def orphaned(folder: Path) -> dict[str, Any]:
    """``--processes``, whose master is killed."""
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *LOAD, "-H", sim.url, "-t", "60s", "--flush-timeout", "3s", *forked(2)) as master,
    ):
        sim.wait_entries(4)
        children = psutil.Process(master.pid).children(recursive=True)
        os.kill(master.pid, SIGKILL)
        began_s = time.monotonic()
        wait_until(lambda: not any(map(alive, children)), "the end of the forked workers")
        return {"workers": len(children), "seconds": time.monotonic() - began_s}


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scenarios = {
        "strangers": by_strangers,
        "worker": by_a_worker,
        "secret": with_a_secret,
        "orphaned": orphaned,
    }
    return in_parallel(tmp_path_factory.mktemp("hostile"), scenarios, at_once=2)


def test_a_stranger_changes_nothing_and_every_attack_is_counted(told: dict[str, Any]) -> None:
    run = told["strangers"]
    assert run["code"] == 0, run["stderr"]
    assert run["summary"]["complete"] is True
    assert run["rows"] == run["entries"] > 4
    assert run["summary"]["messages_dropped"] >= run["attacks"]
    assert set(run["summary"]["messages_dropped_by"]) == {"stranger"}
    assert "by-a-stranger" not in run["stderr"]
    assert "Traceback" not in run["stderr"]


def test_a_worker_that_sends_nonsense_makes_the_run_incomplete_and_loses_nobody_elses_record(
    told: dict[str, Any],
) -> None:
    run = told["worker"]
    assert run["code"] == 4, run["stderr"]
    assert run["summary"]["complete"] is False
    assert run["rows"] == run["entries"] > 4
    assert run["summary"]["faults"]["fake"]
    assert run["summary"]["messages_dropped_by"]["fake"]["llm_batch"] == 4
    assert "more than 500 names of requests" in run["stderr"]
    assert "x" * 201 not in run["stderr"]
    assert "Traceback" not in run["stderr"]


def test_with_a_secret_a_stranger_is_neither_heard_nor_told_anything(told: dict[str, Any]) -> None:
    run = told["secret"]
    assert run["code"] == 0, run["stderr"]
    assert run["summary"]["complete"] is True
    assert run["rows"] == run["entries"] > 4
    assert run["silent"]
    assert "stranger" not in [line.split()[0] for line in run["stderr"].splitlines() if "ready" in line]
    assert run["summary"]["messages_dropped_by"] == {
        "strangers": {"unproven": run["summary"]["messages_dropped"]}
    }
    assert SECRET not in run["stderr"]


def test_forked_workers_end_when_their_master_is_gone(told: dict[str, Any]) -> None:
    assert told["orphaned"]["workers"] == 2
    assert told["orphaned"]["seconds"] < 25
