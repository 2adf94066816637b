"""Simulated replicas behind a real balancer, and what their truth logs say of a run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.servers import HOST, POLL_S, READY_WITHIN_S, Server, ServerError, end, free_port, wait_until_ready

#: A step of a usual replica; all of them take the same time to begin, and no step depends on the batch.
STEP_MS = 10
ENGINE = ("--ttft-base", "20ms", "--step-per-seq", "0ms", "--noise", "0")


@dataclass(frozen=True, slots=True)
class Replica:
    """A simulator of one replica in a process of its own, and the log of what it did."""

    server: Server
    truth: Path

    def entries(self) -> list[dict[str, Any]]:
        """The requests that were over, in the order in which they ended. A line that is being written
        is left out."""
        lines = self.truth.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def kill(self) -> float:
        """End the process as a crash does: its connections are reset. When that was, in Unix seconds."""
        assert self.server.pid is not None
        os.kill(self.server.pid, signal.SIGKILL)
        return time.time()

    def wait_for(self, requests: int) -> None:
        """Return once so many requests are over."""
        deadline = time.monotonic() + READY_WITHIN_S
        while len(self.entries()) < requests:
            if time.monotonic() > deadline:
                raise ServerError(f"{self.server.address} had not served {requests} requests in time")
            time.sleep(POLL_S)


@contextmanager
def replicas(folder: Path, step_ms: Sequence[int]) -> Iterator[list[Replica]]:
    """One simulator for each time of a step."""
    with ExitStack() as stack:
        begun = []
        for i, step in enumerate(step_ms):
            place = folder / f"r{i}"
            place.mkdir(parents=True)
            begun.append(_begin(stack, place, ("--step-base", f"{step}ms", "--replicas", "1")))
        for replica, process in begun:
            wait_until_ready(process, replica.server.port, replica.server.log)
        yield [replica for replica, _ in begun]


@contextmanager
def one_process(folder: Path, count: int) -> Iterator[list[Server]]:
    """``count`` replicas that name themselves, each on a port of its own."""
    with ExitStack() as stack:
        replica, process = _begin(
            stack,
            folder,
            ("--step-base", f"{STEP_MS}ms", "--replicas", str(count), "--replica-ports", "0"),
        )
        wait_until_ready(process, replica.server.port, replica.server.log)
        lines = replica.server.log.read_text(encoding="utf-8").splitlines()
        urls = [line.split()[-1] for line in lines if line.startswith("replica-")]
        ports = [int(url.removesuffix("/v1").rsplit(":", 1)[1]) for url in urls]
        yield [Server(port, replica.server.log) for port in ports]


def _begin(stack: ExitStack, folder: Path, options: Sequence[str]) -> tuple[Replica, subprocess.Popen[bytes]]:
    port, truth, log = free_port(), folder / "truth.jsonl", folder / "sim.log"
    command = [sys.executable, "-m", "llm_locust", "sim", "--host", HOST, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--truth", str(truth), *ENGINE, *options], stdout=output, stderr=subprocess.STDOUT
        )
    stack.callback(end, process)
    return Replica(Server(port, log, pid=process.pid), truth), process
