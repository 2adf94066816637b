"""``transformers serve`` before each model of ``tiny_model``, in forks of the process that made these.

Run by the servers' environment: ``python tiny_servers.py FOLDER TASKS PORT PORT``. The ports are those of
the model in FOLDER/tiny and of that for long histories in FOLDER/long. To import torch and transformers takes
as much CPU time as three of the tests' runs.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from transformers.cli import transformers
from transformers.cli.serving import chat_completion, server  # noqa: F401  # each would import these itself

from e2e import tiny_model

HOST = "127.0.0.1"


def serve(model: Path, port: str) -> NoReturn:
    """The command, as a person gives it in the folder of the model's name."""
    log = os.open(f"{model}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(model.parent)
    sys.argv = ["transformers", "serve", model.name, "--host", HOST, "--port", port, "--device", "cpu"]
    transformers.main()
    sys.exit()


def run(folder: Path, tasks: Path, ports: list[str]) -> None:
    tiny_model.build(folder / "tiny")
    tiny_model.build(folder / "long", tasks)
    begun = []
    for name, port in zip(("tiny", "long"), ports, strict=True):
        pid = os.fork()
        if not pid:
            serve(folder / name, port)
        begun.append(pid)

    def end(*_: object) -> None:
        for pid in begun:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    for pid in begun:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
