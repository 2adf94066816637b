"""Whole runs in processes of their own: Locust on one side, a simulated deployment on the other."""

import io
import json
import os
import re
import resource
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

import psutil
from summaries import typed
from warm_process import PRELOADED, WarmProcess

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.report.console import print_report
from llm_locust.store import read_manifest, read_requests

LOCUSTFILES = Path(__file__).parents[2] / "locustfiles"
CHAT = LOCUSTFILES / "chat.py"

#: Every wait is for an event, and ends after this: a machine may be busy, a test must not hang.
PATIENCE_S = 120.0

#: Tests count what servers are sent, and make failures fast: neither canary nor back-off, if not asked for.
QUIET = {"LLM_LOCUST_CANARY": "off", "LLM_LOCUST_BACKOFF": "off"}

#: What Locust itself says on stderr, whatever happens: its log below WARNING, which names no level.
_OWN_LOG = re.compile(r"\d{4}-\d\d-\d\d [\d:]{8} (?!WARNING: |ERROR: |CRITICAL: )|\[[-0-9 :,]+\] \S+/DEBUG/")


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll a condition of another process (TimeoutError, which says ``what`` did not come)."""
    began_s = time.monotonic()
    deadline = began_s + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        # To ask takes a tenth of the time at most: the process that is asked about needs it.
        time.sleep(min(max(0.03, 9 * (time.monotonic() - began_s)), 0.5))
        began_s = time.monotonic()


def free_port() -> int:
    """A port that is free, below those that the kernel gives to connections: none takes it before its use."""
    while True:
        port = 15_000 + secrets.randbelow(17_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """A process in a session of its own, its stderr read line by line, its stdout in a file.

    A ``cold`` one imports all that it needs; otherwise it may be a fork of a process that has, unless
    ``environ`` has what Python reads at its start (a fork knows PYTHONPATH). ``limits`` are of its resources,
    by their numbers.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
        stdout: str = "stdout",
        cold: bool = False,
        limits: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("LOCUST_", "LLM_LOCUST_"))}
        own = inherited | {"COLUMNS": "200"} | QUIET | dict(environ or {})
        self.command = command
        self._stdout = folder / stdout
        self._popen: WarmProcess | subprocess.Popen[str]
        with self._stdout.open("wb") as file:
            cold = cold or any(name.startswith("PYTHON") and name != "PYTHONPATH" for name in environ or {})
            if not cold and command[:2] == [sys.executable, "-m"] and command[2] in PRELOADED:
                self._popen = WarmProcess(command[2], command[3:], folder, own, file, limits or {})
            else:
                assert limits is None, "of a warm process only"
                self._popen = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stderr(self) -> str:
        return "\n".join(self.lines)

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def said(self) -> list[str]:
        """The lines on stderr that are not Locust's own log below WARNING."""
        return [line for line in self.lines if line.strip() and not _OWN_LOG.match(line)]

    def wait_for(self, pattern: str, count: int = 1) -> None:
        """Wait until ``count`` lines on stderr match (TimeoutError, with all that was said, if not)."""

        def seen() -> bool:
            return sum(bool(re.search(pattern, line)) for line in self.lines) >= count

        with self._news:
            self._news.wait_for(lambda: seen() or self._ended, PATIENCE_S)
        if not seen():
            why = "before its end" if self._ended else f"within {PATIENCE_S:g} s"
            raise TimeoutError(f"{pattern!r} was not said {count} times {why}:\n{self.stderr}\n{self.stdout}")

    def exit_code(self) -> int:
        """Wait for the end (TimeoutError, with all that was said, if it does not come)."""
        try:
            code = self._popen.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            left = "\n".join(self.left_over())
            raise TimeoutError(f"not within {PATIENCE_S:g} s: its end:\n{self.stderr}\n{left}") from None
        self._reader.join(PATIENCE_S)
        return code

    def signal(self, number: Signals) -> None:
        self._popen.send_signal(number)

    def signal_group(self, number: Signals) -> None:
        """As a terminal does: to the process and all its children."""
        os.killpg(self.pid, number)

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children()]

    def left_over(self) -> list[str]:
        """Processes of this one's session that still run, itself apart.

        One that has ended, and whose parent has not asked for its code yet, has no command any more.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if process.pid != self.pid and os.getsid(process.pid) == self.pid:
                    command = process.cmdline()
                    found += [f"{process.pid} {' '.join(command)}"] if command else []
        return found

    def end(self) -> None:
        """Kill what still runs of it."""
        if self._popen.poll() is None or self.left_over():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, SIGKILL)
        self._popen.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self._popen.stderr is not None:
            self._popen.stderr.close()

    def _read(self) -> None:
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated deployment: where it listens, and what it saw."""

    url: str
    truth: Path
    pid: int
    replicas: tuple[str, ...] = ()  # where each listens itself, with --replica-ports

    def entries(self) -> list[dict[str, Any]]:
        """The requests that are over, in the order of their ends. A line still being written is none yet."""
        whole, _, _ = self.truth.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def wait_entries(self, count: int) -> None:
        wait_until(
            lambda: self.truth.read_bytes().count(b"\n") >= count, f"{count} requests at the simulation"
        )


@contextmanager
def simulation(folder: Path, *options: str) -> Iterator[Simulation]:
    """A deployment whose steps take 5 ms, on a free port. ``options`` are the command's own."""
    folder.mkdir(parents=True, exist_ok=True)
    truth = folder / "truth.jsonl"
    command = [sys.executable, "-m", "llm_locust.sim", "--port", "0", "--truth", str(truth)]
    fast = ["--ttft-base", "5ms", "--step-base", "5ms"]
    process = Process([*command, *fast, *options], folder, stdout="sim.out")
    try:
        wait_until(lambda: "listening on " in process.stdout, "the simulation's first word")
        url = process.stdout.split("listening on ")[1].split()[0]
        own = re.compile(r"^(?:replica|prefill|decode)-\d+ on (\S+)/v1$", re.MULTILINE)
        expected = int(options[options.index("--replicas") + 1]) if "--replica-ports" in options else 0
        wait_until(lambda: len(own.findall(process.stdout)) == expected, "where the replicas listen")
        replicas = tuple(own.findall(process.stdout))
        yield Simulation(url.removesuffix("/v1"), truth, process.pid, replicas)
        process.signal(SIGTERM)
        process.exit_code()
    finally:
        process.end()


@contextmanager
def locust(
    folder: Path,
    *options: str,
    locustfile: Path = CHAT,
    environ: Mapping[str, str] | None = None,
    stdout: str = "stdout",
    largest_file_kib: int | None = None,
    most_open_files: int | None = None,
    cold: bool = False,
) -> Iterator[Process]:
    """One ``locust`` command, ended with the block. A limited size of files stands for a full disk."""
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), *options]
    limits = {}
    if largest_file_kib is not None:
        limits[resource.RLIMIT_FSIZE] = (largest_file_kib * 1024,) * 2
    if most_open_files is not None:
        limits[resource.RLIMIT_NOFILE] = (most_open_files,) * 2
    process = Process(command, folder, environ, stdout, cold, limits or None)
    try:
        yield process
    except TimeoutError as e:
        e.add_note(f"locust said:\n{process.stderr}")
        raise
    finally:
        process.end()


def forked(workers: int) -> list[str]:
    """``--processes``, on a port of its own."""
    port = str(free_port())
    return ["--processes", str(workers), "--master-bind-port", port, "--master-port", port]


def as_worker(port: int) -> list[str]:
    """What makes a command a worker of the master behind a port."""
    return ["--worker", "--master-host", "127.0.0.1", "--master-port", str(port)]


@contextmanager
def swarm(
    folder: Path,
    workers: int,
    *options: str,
    locustfile: Path = CHAT,
    port: int | None = None,
    worker_ports: Sequence[int] = (),
    first_worker: Sequence[str] = (),
    cold: bool = False,
) -> Iterator[tuple[Process, list[Process]]]:
    """A master and its workers, each started by its own command as on hosts of their own.

    The master listens on ``port`` (None: a free one). ``worker_ports`` are those that the first
    workers dial, where something lies between them and the master. ``first_worker`` are options that
    only that one has. ``cold`` is as in :class:`Process`.
    """
    port = free_port() if port is None else port
    dialled = [*worker_ports, *[port] * (workers - len(worker_ports))]
    with ExitStack() as stack:
        as_master = ["--master", "--expect-workers", str(workers), "--master-bind-port", str(port)]
        as_master += ["--master-bind-host", "127.0.0.1"]
        master = stack.enter_context(locust(folder, *as_master, *options, locustfile=locustfile, cold=cold))
        each = [
            stack.enter_context(
                locust(
                    folder,
                    *as_worker(dial),
                    *(first_worker if i == 0 else ()),
                    locustfile=locustfile,
                    stdout=f"worker-{i}",
                    cold=cold,
                )
            )
            for i, dial in enumerate(dialled)
        ]
        try:
            yield master, each
        except Exception as e:
            e.add_note("\n".join(["the master said:", master.stderr, *(w.stderr for w in each)]))
            raise


@dataclass(frozen=True, slots=True)
class Result:
    """A run directory, read."""

    path: Path
    manifest: Manifest
    requests: RecordBatch
    summary: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Result":
        summary = json.loads((path / "summary.json").read_text())
        return cls(path, read_manifest(path), read_requests(path), summary)

    def report(self) -> str:
        """All sections of its report on the console."""
        file = io.StringIO()
        print_report(typed(self.summary), self.path, file, 200, full=True)
        return file.getvalue()

    def rows(self) -> dict[str, dict[str, Any]]:
        """The records by request id, which no two share."""
        rows = self.requests.table.to_pylist()
        by_id = {row["request_id"]: row for row in rows}
        assert len(by_id) == len(rows), "a request was recorded twice"
        return by_id


def in_parallel(
    folder: Path, scenarios: Mapping[str, Callable[[Path], Any]], at_once: int = 4
) -> dict[str, Any]:
    """Run each scenario in a folder of its own; gives what they give, by name.

    Never more at once than there are cores: each has several processes.
    """

    def run(name: str) -> Any:
        place = folder / name
        place.mkdir()
        return scenarios[name](place)

    with ThreadPoolExecutor(min(at_once, os.cpu_count() or 1)) as pool:
        return dict(zip(scenarios, pool.map(run, scenarios), strict=True))
