"""The end of a run is no hiding place.

- A server that answers nothing in a run's last seconds: what was under way was dropped from every ratio, and
  goodput was 100 %. Now these requests are waited for, then cut, counted, and bad where a limit had passed.
- Answers that take as long as the run: only the short ones were in the mean. Now all end in the drain.
- An overloaded open loop: what was held back at the end was in no ratio. Now it is counted, by class.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from calls import HEAD, stop, token
from scripted import chunk, json_response, last_chunk
from swarm_process import LOCUSTFILES, Process, Result, forked, in_parallel, locust, wait_until

from llm_locust.store import FRAMES_FILE, index_frames

#: Says "request" for each POST. Answers after a time and not before a file is there; after so many never.
SERVER = """
import itertools, os, socket, sys, threading, time

delay_s, hangs_after, gate = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
models, answer = bytes.fromhex(sys.argv[4]), bytes.fromhex(sys.argv[5])
begun = itertools.count(1)

def serve(sock):
    data = b""
    while True:
        while b"\\r\\n\\r\\n" not in data:
            more = sock.recv(65536)
            if not more:
                return
            data += more
        head, _, data = data.partition(b"\\r\\n\\r\\n")
        if head.startswith(b"GET"):
            sock.sendall(models)
            continue
        length = int(head.lower().split(b"content-length: ")[1].split(b"\\r\\n")[0])
        while len(data) < length:
            data += sock.recv(65536)
        data = data[length:]
        number = next(begun)
        print("request", flush=True)
        if number > hangs_after:
            time.sleep(3600)
        while gate and not os.path.exists(gate):
            time.sleep(0.02)
        time.sleep(delay_s)
        sock.sendall(answer)

listener = socket.create_server(("127.0.0.1", 0), backlog=100)
print("listening on", listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass(frozen=True, slots=True)
class Backend:
    process: Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.stdout.split('listening on ')[1].split()[0]}"

    def wait_requests(self, count: int) -> None:
        wait_until(lambda: self.process.stdout.count("request") >= count, f"{count} requests at the server")


@contextmanager
def backend(folder: Path, delay_s: float, hangs_after: int = 10**9, gate: str = "") -> Iterator[Backend]:
    models = json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})
    answer = HEAD + chunk(token() + stop()) + last_chunk()
    command = [sys.executable, "-c", SERVER, str(delay_s), str(hangs_after), gate, models.hex(), answer.hex()]
    process = Process(command, folder, stdout="server.out")
    try:
        found = Backend(process)
        wait_until(lambda: "\n" in process.stdout, "the server's first word")
        yield found
    finally:
        process.end()


USUAL = ("--headless", "-u", "4", "-r", "100", "--out", "run", "--model", "m", "--slo", "ttft=500ms")


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    process: Process
    result: Result

    @classmethod
    def of(cls, process: Process, folder: Path) -> "Ended":
        return cls(process.exit_code(), process, Result.read(folder / "run"))

    @property
    def rows(self) -> list[dict[str, object]]:
        return list(self.result.rows().values())

    @property
    def drain_took_s(self) -> float:
        manifest = self.result.manifest
        assert manifest.drained_ns is not None
        assert manifest.stopped_ns is not None
        return (manifest.drained_ns - manifest.stopped_ns) * 1e-9

    @property
    def cut(self) -> int:
        return sum(worker.cut for worker in self.result.manifest.workers)


def _hung(folder: Path) -> Ended:
    with backend(folder, 0.1, hangs_after=12) as server:
        options = ("-t", "4s", "--drain", "1500ms", "--gate", "goodput>=1", "-H", server.url)
        with locust(folder, *USUAL, *options) as process:
            return Ended.of(process, folder)


def _interrupted_twice(folder: Path) -> Ended:
    """Ctrl-C to all while two workers wait for four answers, of which two come when all drain.

    The second one is for the master alone, which has the workers cut what is left.
    """
    gate = folder / "answer"
    with (
        backend(folder, 0.0, hangs_after=2, gate=str(gate)) as server,
        locust(folder, *USUAL, *forked(2), "-H", server.url) as process,
    ):
        server.wait_requests(4)
        process.signal_group(signal.SIGINT)
        process.wait_for("draining 2 requests, at most 60 s", count=2)
        process.wait_for("draining the requests in flight, at most 60 s")
        gate.touch()
        wait_until(lambda: rows_of(folder / "run") == 2, "the records of both answers at the master")
        process.signal(signal.SIGINT)
        return Ended.of(process, folder)


def rows_of(run: Path) -> int:
    """How many records a run's file has."""
    with suppress(FileNotFoundError):
        return sum(frame.header.rows for frame in index_frames(run / FRAMES_FILE).frames)
    return 0


def _overloaded(folder: Path) -> Ended:
    """Two at once, of a second each: of 20 requests/s nine in ten wait."""
    with backend(folder, 1.0) as server:
        load = ("--request-rate", "20", "--arrival", "constant", "--max-in-flight", "2", "--warmup", "3s")
        options = (*load, "-t", "6s", "-H", server.url)
        with locust(folder, *USUAL, *options, locustfile=LOCUSTFILES / "open_loop.py") as process:
            return Ended.of(process, folder)


RUNS: dict[str, Callable[[Path], Ended]] = {
    "hung": _hung,
    "interrupted twice": _interrupted_twice,
    "overloaded": _overloaded,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    found: dict[str, Ended] = in_parallel(tmp_path_factory.mktemp("ends"), RUNS, at_once=2)
    return found


def test_requests_that_a_hung_server_never_answers_are_cut_after_the_drain_and_break_the_gate(
    runs: dict[str, Ended],
) -> None:
    run = runs["hung"]
    manifest = run.result.manifest
    cut = [row for row in run.rows if row["outcome"] == "cancelled"]
    assert len(cut) == run.cut == run.result.summary["requests"]["cut"] == 4
    assert manifest.drain_s == 1.5
    assert manifest.stopped_ns is not None
    assert 1.4 < run.drain_took_s < 60
    for row in cut:
        assert not row["abandoned"]
        assert row["arrivals_ns"] == []
        ended_ns = row["ended_ns"]
        assert isinstance(ended_ns, int)
        assert ended_ns - manifest.stopped_ns >= 1.4e9, "it ended when it was cut"
    assert run.result.summary["goodput"]["ratio"] < 1
    assert run.code == 1


def test_the_first_ctrl_c_waits_for_slow_answers_and_begins_none_anew_and_the_second_cuts(
    runs: dict[str, Ended],
) -> None:
    run = runs["interrupted twice"]
    stopped_ns = run.result.manifest.stopped_ns
    assert stopped_ns is not None
    assert sorted(str(row["outcome"]) for row in run.rows) == ["cancelled", "cancelled", "ok", "ok"]
    assert all(int(str(row["ended_ns"])) > stopped_ns for row in run.rows)
    assert run.cut == 2
    assert run.drain_took_s < 50, "it was cut, and did not reach its bound"
    assert run.result.manifest.complete
    assert "Traceback" not in run.process.stderr
    assert run.process.left_over() == []


def test_what_an_overloaded_open_loop_never_sent_is_counted(runs: dict[str, Ended]) -> None:
    run = runs["overloaded"]
    (worker,) = run.result.manifest.workers
    stopped_ns = run.result.manifest.stopped_ns
    assert stopped_ns is not None
    assert {row["outcome"] for row in run.rows} == {"ok"}
    # Answers take 1 s: what was held back would be sent that much later.
    assert all(int(str(row["sent_ns"])) <= stopped_ns + 0.5e9 for row in run.rows)
    # 20 a second for the 6 s of load, whose end a busy process notices later.
    load_s = (stopped_ns - min(int(str(row["scheduled_ns"])) for row in run.rows)) * 1e-9
    assert 119 <= len(run.rows) + worker.unsent <= 20 * load_s + 21
    assert worker.unsent > 4 * len(run.rows)
    # The requests that were sent are the first ones of the schedule: within its first second.
    assert 0 <= worker.unsent_warmup < 20
    assert worker.unsent_by_class == {"": worker.unsent - worker.unsent_warmup}
