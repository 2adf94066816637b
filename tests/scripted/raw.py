"""The plainest client: bytes on a socket."""

import contextlib
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_locust.host import CpuTaken
from scripted.process import ScriptedServer
from scripted.script import Script, ServedRequest, script_header

#: Percentage of the time in which CPUs are short, above which a late moment is the machine's doing.
MOST_PRESSURE = 60.0

#: Percentage of the CPU time that a hypervisor gave to others: the same. The kernel sees no pressure in it.
MOST_STOLEN = 5.0


def request(script: Script | None, *, body: bytes = b"", headers: str = "", path: str = "/v1/x") -> bytes:
    """The bytes of one POST that carries the script."""
    lines = "".join(f"{k}: {v}\r\n" for k, v in (script_header(script) if script else {}).items())
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\n{headers}{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(server: ScriptedServer) -> socket.socket:
    """A connection whose operations take 10 s at most."""
    return socket.create_connection((server.host, server.port), timeout=120)


def read(sock: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer if the stream ends before."""
    data = bytearray()
    while len(data) < size and (part := sock.recv(min(size - len(data), 65536))):
        data += part
    return bytes(data)


def send_until_blocked(sock: socket.socket, data: bytes) -> bytes:
    """What the kernel would not take at once."""
    timeout_s = sock.gettimeout()
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while data:
            data = data[sock.send(data) :]
    sock.settimeout(timeout_s)
    return data


def said(script: Script) -> bytes:
    """All that the script writes."""
    return b"".join(step.data or b"" for step in script)


def lateness_ms(served: ServedRequest, script: Script) -> list[float]:
    """How long after its scheduled time each write was begun."""
    return [(w.write_ns - served.received_ns) / 1e6 - (script[w.step].at_ms or 0) for w in served.writes]


def best_of(tries: int, measure: Callable[[], float], enough: float) -> float:
    """The least of so many measures, of fewer once one is below ``enough``.

    A machine that is busy with something else may spoil a measure of time. Where it spoils all of them, and
    the kernel says that others waited for a CPU most of the time, or that a hypervisor took it, the test is
    skipped with these figures.
    """
    taken = CpuTaken()
    best, before = float("inf"), taken.read()
    while tries and best >= enough:
        tries, best = tries - 1, min(best, measure())
    if best >= enough:
        busy, stolen = cpu_pressure(), taken.read().steal_percent(before) or 0.0
        if busy > MOST_PRESSURE or stolen > MOST_STOLEN:
            why = f"CPUs were short {busy:.0f} % of the time and {stolen:.0f} % of it was stolen"
            pytest.skip(f"{best:.3g} where less than {enough:g} is right, but {why}")
    return best


def cpu_pressure() -> float:
    """Percentage of the last 10 s in which a process waited for a CPU; 0 where the kernel does not say."""
    try:
        found = re.search(r"some avg10=([\d.]+)", Path("/proc/pressure/cpu").read_text())
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0
