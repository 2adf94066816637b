"""``python bench/many.py``: memory of one worker by the streams that it holds open.

A real headless run, whose users each have one answer that lasts longer than the run. The worker's resident
memory is looked at all the time, next to the number of streams that the server has open. What the kernel
holds of each connection is not in it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from harness import BenchError, Mark, Timing, ask_truth, print_marks, print_table, running, serving
from rich.console import Console
from run import raise_file_limit, server_of
from swarm import Asked, commands

GAP_S, LONGEST_S = 1.0, 300
SAMPLE_S = 0.1
MOST_KB = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Streams that are open, and the worker's resident memory."""

    streams: int
    rss_kb: float


def samples_of(port: int, worker: int, streams: int, hold_s: float) -> list[Sample]:
    """Look until all streams have been open for so long.

    Raises:
        BenchError: they are not within two minutes, or some end before.
    """
    process, found = psutil.Process(worker), list[Sample]()
    deadline_s = time.monotonic() + 120
    full_s = None
    while full_s is None or time.monotonic() < full_s + hold_s:
        truth = ask_truth(port)
        found.append(Sample(truth["streams"], process.memory_info().rss / 1024))
        if truth["broken"] or truth["completed"] or time.monotonic() > deadline_s:
            raise BenchError(
                f"{found[-1].streams} of {streams} streams are open, {truth['broken']} are broken, "
                f"{truth['completed']} have ended"
            )
        if full_s is None and found[-1].streams == streams:
            full_s = time.monotonic()
        time.sleep(SAMPLE_S)
    return found


def measure(console: Console, streams: int, hold_s: float) -> list[Sample]:
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        times = ["--gap-ms", f"{GAP_S * 1000:g}", "--tokens", str(round(LONGEST_S / GAP_S))]
        port = stack.enter_context(serving(server_of(console), logs, times))
        timing, asked = Timing(0, LONGEST_S, 0), Asked(streams, more="--drain 0")
        master, worker = (
            stack.enter_context(running(command, logs / f"{name}.log"))
            for name, command in commands(port, asked, timing, logs / "run").items()
        )
        found = samples_of(port, worker.pid, streams, hold_s)
        master.terminate()
        master.wait(60)  # its code says that nothing was measured: no answer has ended
        return found


def rows(found: Sequence[Sample], streams: int) -> list[list[str]]:
    """Memory when so many streams were first open, and at the end."""
    wanted = [streams // 4, streams // 2, streams]
    chosen = [next(s for s in found if s.streams >= n) for n in wanted]
    further = [s.rss_kb - before.rss_kb for before, s in pairwise(chosen)]
    more = [n.streams - before.streams for before, n in pairwise(chosen)]
    each = ["", *(f"{kb / n:.1f}" for kb, n in zip(further, more, strict=True)), ""]
    return [
        [f"{s.streams:,}", f"{s.rss_kb / 1024:,.1f}", f"{s.rss_kb / s.streams:.1f}", one]
        for s, one in zip([*chosen, found[-1]], each, strict=True)
    ]


def main() -> int:
    """Return 0 if every mark is met, 1 if not."""
    parser = argparse.ArgumentParser(description="Memory of one worker by the streams that it holds open.")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--hold", type=float, default=10, help="seconds with all of them open")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    raise_file_limit(options.streams + 1000)
    try:
        found = measure(console, options.streams, options.hold)
    except BenchError as e:
        parser.error(str(e))
    title = f"An event of each stream every {GAP_S:g} s"
    print_table(
        console,
        title,
        "streams|RSS MiB|KiB a stream, program included|KiB of each further stream",
        rows(found, options.streams),
    )
    most_kb = max(s.rss_kb for s in found) / options.streams
    marks = [Mark("most memory a stream, program included", most_kb, MOST_KB, "KiB")]
    return print_marks(console, marks)


if __name__ == "__main__":
    sys.exit(main())
