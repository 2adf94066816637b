"""Third-party servers on loopback: started as they are, waited for, ended by their process id."""

import http.client
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import swarm_process

HOST = "127.0.0.1"
MODEL = "tiny"
READY_WITHIN_S = 240.0
POLL_S = 0.2
ENDS_WITHIN_S = 15.0


class ServerError(RuntimeError):
    """A server that did not come up; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers: its port, and the log that tells of the requests that reached the model."""

    port: int
    log: Path
    model: Path | None = None  # the folder of weights and tokenizer

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


def python(venv: Path, program: Path) -> list[str]:
    """The beginning of a command: a program that seldom looks for garbage, of which an import makes little.

    To import torch or LiteLLM takes a fifth less so.
    """
    code = "import gc, runpy, sys; gc.set_threshold(100_000); del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return [str(venv / "bin/python"), "-c", code, str(program)]


def free_port() -> int:
    return swarm_process.free_port()


@contextmanager
def transformers_serve(venv: Path, tasks: Path, folder: Path) -> Iterator[tuple[Server, Server]]:
    """``transformers serve`` with the tiny model, and another one with the model for ``tasks``."""
    # Of several threads, those that have nothing to do take CPU too.
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HF_HOME": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    ports = free_port(), free_port()
    program = Path(__file__).with_name("tiny_servers.py")
    command = [*python(venv, program), str(folder), str(tasks), *map(str, ports)]
    with running(command, ports[1], folder / "servers.log", environment):
        swarm_process.wait_until(lambda: healthy(ports[0]), "the server of the tiny model")
        models = folder / MODEL, folder / "long"
        tiny, long = (Server(port, Path(f"{m}.log"), m) for port, m in zip(ports, models, strict=True))
        yield tiny, long


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
        _wait_until_ready(process, port, log, health)
        yield Server(port, log)
    finally:
        _end(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], port: int, log: Path, health: str = "/health"
) -> None:
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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
