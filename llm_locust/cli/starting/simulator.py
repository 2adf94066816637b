"""Simulated deployment for one run: it ends when the processes of the run have ended, however they end."""

import os
import select
import subprocess
import sys
from collections.abc import Sequence

#: Longest wait until it serves; a start takes about a second.
READY_S = 60.0


class SimulatorError(ValueError):
    """The simulator did not start; what was wrong is on standard error, or in the text."""


def start_simulator(words: Sequence[str] = ()) -> str:
    """Start a simulated deployment on a free port of the loopback interface and wait until it serves.

    It ends when this process has ended, also if this process replaces itself by another program (exec) or is
    killed: the simulator reads from a pipe whose other end only this process and its forks hold. It is in a
    session of its own, so that a Ctrl-C in the terminal does not end it before the run.

    Args:
        words: arguments of ``llm-locust sim``.

    Returns:
        URL of the deployment.

    Raises:
        SimulatorError: it ended, or did not serve within :data:`READY_S`.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "llm_locust.sim", "--port=0", "--end-with-stdin", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_S)
    # "listening on URL (4 replicas, model sim)", written at once.
    found = process.stdout.readline().decode().split() if ready else []
    if len(found) < 3:
        with process:  # closes its pipes, and waits
            process.kill()
        raise SimulatorError(
            "the simulator did not start" if ready else f"the simulator did not start within {READY_S:g} s"
        )
    os.set_inheritable(process.stdin.fileno(), True)
    return found[2]
