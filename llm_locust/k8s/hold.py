"""First process of a master's container: runs a command, then stays until its files are fetched.

    python -P -m llm_locust.k8s.hold SECONDS COMMAND...

When the command has ended, :data:`ENDED` has its exit code. This process then waits until :data:`FETCHED`
exists, at most for SECONDS, and ends with the same code. Signals go to the command; while there is none, they
end the wait.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

#: In the pod's own /tmp: /runs may be a volume that other runs have, too.
FOLDER = Path(os.environ.get("LLM_LOCUST_HOLD", "/tmp/llm-locust-hold"))
ENDED, FETCHED = "ended", "fetched"

_LOOK_S = 0.2


def main(words: list[str]) -> int:
    """Run the command and return its exit code, as a shell has it."""
    seconds, command = float(words[0]), words[1:]
    FOLDER.mkdir(parents=True, exist_ok=True)
    child: subprocess.Popen[bytes] | None = None
    is_told_to_end = False

    def pass_on(number: int, _: FrameType | None) -> None:
        nonlocal is_told_to_end
        if child is not None and child.poll() is None:
            child.send_signal(number)
        else:
            is_told_to_end = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    child = subprocess.Popen(command)
    code = child.wait()
    code = code if code >= 0 else 128 - code
    part = FOLDER / f".{ENDED}"
    part.write_text(f"{code}\n", encoding="ascii")
    part.rename(FOLDER / ENDED)
    until = time.monotonic() + seconds
    while not is_told_to_end and time.monotonic() < until and not (FOLDER / FETCHED).exists():
        time.sleep(_LOOK_S)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
