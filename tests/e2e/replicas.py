"""Simulated replicas behind a real balancer, each a process with a log of what it did."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

from swarm_process import Simulation, simulation, wait_until

from e2e.servers import Server

#: A step of a usual replica; all of them take the same time to begin, and no step depends on the batch.
STEP_MS = 10
RUNNING = "vllm:num_requests_running{"
ENGINE = ("--ttft-base", "20ms", "--step-per-seq", "0ms", "--noise", "0")


def server(url: str, log: Path) -> Server:
    return Server(int(url.rpartition(":")[2]), log)


def kill(replica: Simulation) -> float:
    """End it as a crash does, with requests in flight: they are cut. When that was, in Unix seconds."""
    wait_until(lambda: _running(replica) >= 2, "two requests at the replica that is to die")
    os.kill(replica.pid, signal.SIGKILL)
    return time.time()


def _running(replica: Simulation) -> float:
    """How many requests it answers at the moment."""
    with urlopen(f"{replica.url}/metrics", timeout=60) as page:
        text = page.read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(RUNNING))


@contextmanager
def replicas(folder: Path, step_ms: Sequence[int]) -> Iterator[list[Simulation]]:
    """One simulator for each time of a step."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                simulation(folder / f"r{i}", *ENGINE, "--step-base", f"{step}ms", "--replicas", "1")
            )
            for i, step in enumerate(step_ms)
        ]


@contextmanager
def one_process(folder: Path, count: int) -> Iterator[list[Server]]:
    """``count`` replicas that name themselves, each on a port of its own."""
    options = ("--step-base", f"{STEP_MS}ms", "--replicas", str(count), "--replica-ports", "0")
    with simulation(folder, *ENGINE, *options) as several:
        yield [server(url, several.truth) for url in several.replicas]
