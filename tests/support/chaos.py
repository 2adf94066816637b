"""What the chaos tests share: the load, the events to wait for, and a run that something happened to."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from signal import SIGTERM
from typing import Any

from swarm_process import Process, Result, Simulation, wait_until

from llm_locust.store import FRAMES_FILE, index_frames

#: Batches are closed each 3 s; the rest is for a busy machine.
INTERVAL_S = 5.0

#: Options of the simulation: with 8 tokens an answer takes about 0.4 s.
UNHURRIED = ("--step-base", "50ms")

USERS = 12

USUAL = (
    *("--headless", "-u", str(USERS), "-r", "100", "--out", "run", "--seed", "7", "--slo", "e2el=20s"),
    *("--input-tokens", "10", "--output-tokens", "8", "--body", '{"ignore_eos": true}'),
)


@dataclass(frozen=True)
class Survived:
    """A run that something happened to at ``at_ns``, what the server saw, and what a merge made of it."""

    code: int
    process: Process
    workers: list[Process]
    path: Path
    sim: Simulation
    at_ns: int
    merged: "Merged | None" = None

    @cached_property
    def result(self) -> Result:
        return Result.read(self.path)

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        return self.result.rows()

    @cached_property
    def truth(self) -> dict[str, dict[str, Any]]:
        """What the server saw, by request id. The simulation has ended: these are all."""
        return {entry["request_id"]: entry for entry in self.sim.entries()}

    def told(self) -> str:
        """All that was said, for a failed assertion."""
        return "\n\n".join([self.process.stderr, self.process.stdout, *(w.stderr for w in self.workers)])


@dataclass(frozen=True)
class Merged:
    """What ``llm-locust merge`` said, and the run directory that it made."""

    code: int
    output: str
    errors: str
    path: Path

    @cached_property
    def result(self) -> Result:
        return Result.read(self.path)

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        return self.result.rows()


def merge(out: Path, *sources: Path, options: tuple[str, ...] = ()) -> Merged:
    """Run ``llm-locust merge`` on run directories and spools."""
    command = [sys.executable, "-m", "llm_locust", "merge", *map(str, sources), "--out", str(out), *options]
    process = Process(command, out.parent, stdout=f"{out.name}.out")
    code = process.exit_code()
    process.end()
    return Merged(code, process.stdout, process.stderr, out)


def unrecorded(truth: dict[str, dict[str, Any]], rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server saw and the records do not have.

    The other way round only such may be as did not reach the server: a request that was cancelled
    just as it was sent.
    """
    unseen = {rows[request_id]["outcome"] for request_id in rows.keys() - truth.keys()}
    assert unseen <= {"cancelled"}, f"records of what the server never saw: {unseen}"
    return [entry for request_id, entry in truth.items() if request_id not in rows]


def sender(request_id: str) -> str:
    """What begins all request ids of one process."""
    return request_id.partition("-")[0]


def senders_of(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    """The worker that each sender is, by the records."""
    return {sender(request_id): row["worker"] for request_id, row in rows.items()}


def wait_more(sim: Simulation, count: int = 15) -> None:
    """Wait until so many more requests are over."""
    sim.wait_entries(len(sim.entries()) + count)


def wait_senders(sim: Simulation, count: int, since_ns: int = 0) -> None:
    """Wait until requests of ``count`` processes are over that came after a moment."""

    def heard() -> int:
        entries = sim.entries()
        return len({sender(e["request_id"]) for e in entries if e["received_ns"] > since_ns})

    wait_until(lambda: heard() >= count, f"requests of {count} processes")


def batches_of(run: Path) -> Counter[str]:
    """How many batches of each worker are in the run's file."""
    with suppress(FileNotFoundError):
        return Counter(f.header.worker for f in index_frames(run / FRAMES_FILE).frames)
    return Counter()


def wait_batches(run: Path, workers: int, each: int = 1) -> None:
    """Wait until so many batches of so many workers are in the run's file."""
    wait_until(
        lambda: sum(count >= each for count in batches_of(run).values()) >= workers,
        f"{each} batches of each of {workers} workers",
    )


def wait_spooled(spool: Path, since_ns: int) -> None:
    """Wait until a batch lies in a spool that was written after a moment."""

    def found() -> bool:
        with suppress(FileNotFoundError):
            return any(path.stat().st_mtime_ns > since_ns for path in spool.rglob("*.frame"))
        return False

    wait_until(found, f"a batch in {spool}")


def end(process: Process, workers: list[Process]) -> int:
    """Tell a master to end; gives its exit code once its workers have ended too."""
    process.signal(SIGTERM)
    code = process.exit_code()
    for worker in workers:
        worker.exit_code()
    return code


class NoSmallDiskError(Exception):
    """A file system of a chosen size cannot be made here; the text says why."""


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """A folder on a file system of that size, which is gone with the block.

    The file system is mounted in a namespace of its own, for which nobody needs to be root, and is
    reached through the process that holds it.

    Raises:
        NoSmallDiskError: this machine does not let us.
    """
    place = folder / "disk"
    place.mkdir()
    script = f'mount -t tmpfs -o size={kib}k none "$1" && echo mounted && exec sleep 300'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(place)]
    try:
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError as e:
        raise NoSmallDiskError(f"{e.filename} is not installed") from e
    with holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if not holder.stdout.readline():
                raise NoSmallDiskError(f"a tmpfs cannot be mounted: {holder.stderr.read().strip()}")
            yield Path(f"/proc/{holder.pid}/root{place}")
        finally:
            holder.kill()


def fill(folder: Path, most_kib: int = 16_384) -> None:
    """Leave no room on a small disk; once more takes what has become free since."""
    with (folder / "filler").open("ab", buffering=0) as file, suppress(OSError):
        for _ in range(most_kib // 4):
            file.write(bytes(4096))
        raise AssertionError(f"{folder} is larger than {most_kib} KiB")
