"""Third-party servers on loopback: started as they are, waited for, ended by their process id."""

import http.client
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import swarm_process

HOST = "127.0.0.1"
MODEL = "tests/tiny-random-llama"
READY_WITHIN_S = 120.0
POLL_S = 0.2
ENDS_WITHIN_S = 15.0


class ServerError(RuntimeError):
    """A server that did not come up; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers: its port, and the log that tells of the requests that reached the model."""

    port: int
    log: Path
    pid: int | None = None  # of the one process that it is
    model: Path | None = None  # the folder of weights and tokenizer

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


def free_port() -> int:
    return swarm_process.free_port()


@contextmanager
def transformers_serve(venv: Path, folder: Path, *tasks: Path) -> Iterator[Server]:
    """``transformers serve`` with the tiny model, which it finds in a hub cache of its own.

    In a cache rather than a plain folder, because ``/v1/models`` lists what the cache holds. With a folder of
    recorded tasks the model is one for long histories.
    """
    cached = folder / "hub" / f"models--{MODEL.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("local")
    # Of several threads, those that have nothing to do take CPU too.
    offline = {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [venv / "bin/python", Path(__file__).with_name("tiny_model.py"), cached / "snapshots/local", *tasks],
        env=os.environ | offline,
        check=True,
        timeout=READY_WITHIN_S,
    )
    port = free_port()
    command = [str(venv / "bin/transformers"), "serve", MODEL]
    command += ["--host", HOST, "--port", str(port), "--device", "cpu"]
    with running(command, port, folder / "transformers.log", offline) as server:
        yield replace(server, model=cached / "snapshots/local")


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    log: Path,
    environment: Mapping[str, str] | None = None,
    health: str = "/health",
) -> Iterator[Server]:
    """The process of ``command`` from when it answers ``health`` on ``port`` until the block ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | dict(environment or {}), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_ready(process, port, log, health)
        yield Server(port, log, pid=process.pid)
    finally:
        end(process)


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path, health: str = "/health") -> None:
    """Returns when ``health`` says 200.

    Raises:
        ServerError: the process ended, or the deadline passed.
    """
    deadline = time.monotonic() + READY_WITHIN_S
    while not healthy(port, health):
        try:
            state = f"ended with exit code {process.wait(timeout=POLL_S)}"
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
            state = f"was not ready after {READY_WITHIN_S:.0f} s"
        raise ServerError(f"{process.args!r} {state}; the end of {log}:\n{log.read_text()[-2000:]}")


def healthy(port: int, path: str = "/health") -> bool:
    with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
