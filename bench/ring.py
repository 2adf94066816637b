"""``python bench/ring.py``: how many packets the ring of captured heads can take.

200 connections get 100,000 packets/s from ``server.c``, each an event of one stream. A capture of the package
follows them, and the sockets are read every 20 ms, with nothing else done. First the ring is looked at every
3 ms, then with pauses of growing length at the beginning, in which nothing looks at it: as long as one fits,
no packet may be missing, and of one that does not fit each must be among the dropped.
"""

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clients import BenchError, ask_truth, serving
from figures import Mark
from printing import print_marks, print_table
from rich.console import Console
from run import compile_c, server_of

from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.packets.capture import Capture, Tracked
from llm_locust.client.packets.heads import FRAME_BYTES
from llm_locust.client.packets.ring import SLOTS, CaptureError

CONNECTIONS = 200
LOOK_S, READ_S = 0.003, 0.02
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: known\r\nContent-Length: 2\r\n\r\n{}"


@dataclass(frozen=True, slots=True)
class Span:
    """A time with a pause in it: the server's writes, packets captured and dropped, CPU of the looks."""

    pause_s: float
    seconds: float
    writes: int
    packets: int
    dropped: int
    unseen_reads: int
    looks_cpu_s: float

    @property
    def lost(self) -> int:
        return self.dropped + self.unseen_reads

    @property
    def unnamed_percent(self) -> float:
        """Writes whose packets were neither captured nor dropped."""
        return 100 * abs(1 - (self.packets + self.dropped) / self.writes)


@dataclass(slots=True)
class Line:
    """A connection, and the bytes read of it that are not yet compared with the captured packets."""

    sock: socket.socket
    tracked: Tracked
    size: int = 0


class Client:
    """Connections that are read, and followed by a capture, and nothing else."""

    def __init__(self, port: int, connections: int) -> None:
        self._port = port
        self.capture = Capture()
        self.capture.watch("127.0.0.1", port)
        self.lines: list[Line] = []
        for _ in range(connections):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setblocking(False)
            self.lines.append(Line(sock, self.capture.track(sock, "127.0.0.1", port)))
            sock.sendall(REQUEST)
        self._space = bytearray(1 << 20)
        self._cpu_s = 0.0

    def look(self) -> None:
        before_s = time.thread_time()
        self.capture.drain()
        self._cpu_s += time.thread_time() - before_s

    def read(self, *, compare: bool) -> None:
        """Read what is there; compare it with the packets now, or later."""
        for line in self.lines:
            with suppress(BlockingIOError):
                size = line.sock.recv_into(self._space)
                if not size:
                    raise BenchError("the server closed a connection")
                line.size += size
            if compare and line.size:
                line.tracked.pieces(line.size)
                line.size = 0

    def span(self, seconds: float, pause_s: float) -> Span:
        """Look and read, for so long; in the pause at its beginning only read."""
        self.look()
        self.read(compare=True)
        capture = self.capture
        before = capture.packets, capture.dropped, capture.unseen_reads
        writes = ask_truth(self._port)["tokens"]
        self._cpu_s, start_s = 0.0, time.monotonic()
        next_read_s = start_s
        while (now_s := time.monotonic()) < start_s + seconds:
            paused = now_s < start_s + pause_s
            if not paused:
                self.look()
            if now_s >= next_read_s:
                self.read(compare=not paused)
                next_read_s = now_s + READ_S
            time.sleep(max(0.0, LOOK_S - (time.monotonic() - now_s)))
        self.look()
        return Span(
            pause_s=pause_s,
            seconds=time.monotonic() - start_s,
            packets=capture.packets - before[0],
            dropped=capture.dropped - before[1],
            unseen_reads=capture.unseen_reads - before[2],
            writes=ask_truth(self._port)["tokens"] - writes,
            looks_cpu_s=self._cpu_s,
        )

    def close(self) -> None:
        for line in self.lines:
            line.sock.close()
            line.tracked.close()
        self.capture.close()


@contextmanager
def stamping() -> Iterator[None]:
    """Let the kernel stamp packets from before the first one on."""
    holder = hold_stamping()
    yield
    if holder is not None:
        holder.close()


def measure(console: Console, rate: int, seconds: float) -> list[Span]:
    programs = compile_c(console)
    if not programs:
        raise BenchError("the server in Python cannot send that fast: a C compiler is needed")
    gap_ms = 1000 * CONNECTIONS / rate
    tokens = min(65_000, round(30 * seconds * 1000 / gap_ms))
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = ["--gap-ms", f"{gap_ms:g}", "--tokens", str(tokens)]
        port = stack.enter_context(serving(server_of(programs, console).command, logs, options))
        client = stack.enter_context(closing(Client(port, CONNECTIONS)))
        client.span(0.5, 0.0)  # all are under way
        fits_s = SLOTS / rate
        return [client.span(seconds, pause_s) for pause_s in (0.0, 0.15, 0.8 * fits_s, 1.5 * fits_s)]


def main() -> int:
    """Return 0 if every mark is met, 1 if not."""
    parser = argparse.ArgumentParser(description="What the ring of captured packets can take.")
    parser.add_argument("--rate", type=int, default=100_000, help="packets/s")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each span")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        with stamping():
            spans = measure(console, options.rate, options.seconds)
    except (BenchError, CaptureError) as e:
        parser.error(str(e))
    size = f"{SLOTS:,} heads, {SLOTS * FRAME_BYTES >> 20} MiB"
    print_table(
        console,
        f"A ring of {size}, which is {SLOTS / options.rate:.2f} s at this rate",
        "pause s|writes/s|writes|captured|dropped|reads without theirs|CPU µs/head|heads/s of one core",
        [row(span) for span in spans],
    )
    return print_marks(console, marks_of(spans, options.rate))


def row(span: Span) -> list[str]:
    return [
        f"{span.pause_s:.2f}",
        f"{span.writes / span.seconds:,.0f}",
        *(f"{count:,}" for count in (span.writes, span.packets, span.dropped, span.unseen_reads)),
        f"{span.looks_cpu_s / span.packets * 1e6:.2f}",
        f"{span.packets / span.looks_cpu_s:,.0f}",
    ]


def marks_of(spans: list[Span], rate: int) -> list[Mark]:
    """The rate is offered; none is lost where the pause fits; where it does not, all are named."""
    marks = [
        Mark("writes/s short of the rate", 100 * (1 - spans[0].writes / spans[0].seconds / rate), 2.0, "%")
    ]
    for span in spans[:-1]:
        lost = f"pause of {span.pause_s:.2f} s: dropped, and reads without theirs"
        marks.append(Mark(lost, span.lost, 0, ""))
    for span in spans:
        unnamed = f"pause of {span.pause_s:.2f} s: writes neither captured nor dropped"
        marks.append(Mark(unnamed, span.unnamed_percent, 1.0, "%"))
    return marks


if __name__ == "__main__":
    sys.exit(main())
