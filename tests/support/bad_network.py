"""A network that delays, loses and reorders, between two network namespaces: ``tc netem`` in plain code.

Each namespace has a TUN device, and a process carries the packets from one to the other by a plan drawn with
a seed. What is lost, and what is overtaken, is so many of every 50 packets with payload: never none by
chance.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Addresses of the near end and of the far one, by the version of IP.
ADDRESSES = {4: ("10.78.0.1", "10.78.0.2"), 6: ("fd78::1", "fd78::2")}

BLOCK = 50
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUN_WITHOUT_HEADS = 0x400454CA, 0x1001
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Network:
    """One way: every packet takes ``delay_s``, and up to ``jitter_s`` more, in order.

    Of every :data:`BLOCK` packets with payload ``lost`` never arrive, and ``late`` take ``late_s`` more and
    are overtaken.
    """

    delay_s: float
    jitter_s: float = 0.0
    lost: int = 0
    late: int = 0
    late_s: float = 0.012


@dataclass(slots=True)
class Way:
    """The plan for one direction, packet by packet."""

    network: Network
    rng: random.Random
    _block: list[str] = field(default_factory=list)
    _latest_s: float = 0.0

    def due_s(self, now_s: float, *, has_payload: bool) -> float | None:
        """When a packet that came now is to be handed on; None if it is lost."""
        fate = self._fate() if has_payload else "in order"
        if fate == "lost":
            return None
        usual_s = now_s + self.network.delay_s + self.rng.uniform(0, self.network.jitter_s)
        if fate == "late":
            return usual_s + self.network.late_s
        self._latest_s = max(self._latest_s, usual_s)
        return self._latest_s

    def _fate(self) -> str:
        if not self._block:
            special = ["lost"] * self.network.lost + ["late"] * self.network.late
            self._block = special + ["in order"] * (BLOCK - len(special))
            self.rng.shuffle(self._block)
        return self._block.pop()


def has_payload(packet: bytes) -> bool:
    """Whether a packet is TCP with bytes of a stream."""
    if packet[0] >> 4 == 4:
        start, protocol, total = (packet[0] & 15) * 4, packet[9], int.from_bytes(packet[2:4])
    else:
        start, protocol, total = 40, packet[6], 40 + int.from_bytes(packet[4:6])
    return protocol == socket.IPPROTO_TCP and total > start + (packet[start + 12] >> 4) * 4


def carry(near: int, far: int, network: Network, seed: int) -> None:
    """Carry packets between two TUN devices, for ever. The plan is for those from the far end.

    Those from the near end are delayed alike, and none is lost.
    """
    back = Network(network.delay_s, network.jitter_s)
    ways = {far: Way(network, random.Random(seed)), near: Way(back, random.Random(seed + 1))}
    other = {near: far, far: near}
    due: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        for tun in select.select([near, far], [], [], wait_s)[0]:
            packet = os.read(tun, 65_536)
            now_s = time.monotonic()
            at_s = ways[tun].due_s(now_s, has_payload=has_payload(packet))
            if at_s is not None:
                number += 1
                heapq.heappush(due, (at_s, number, other[tun], packet))
        while due and due[0][0] <= time.monotonic():
            _, _, tun, packet = heapq.heappop(due)
            os.write(tun, packet)


def open_tun(name: str, end: int) -> int:
    """Make a TUN device in this namespace, with the addresses of one end; return its file descriptor."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADS))
    for command in (
        f"ip link set {name} up",
        f"ip addr add {ADDRESSES[4][end]}/24 dev {name}",
        f"ip addr add {ADDRESSES[6][end]}/64 dev {name} nodad",
    ):
        subprocess.run(command.split(), check=True)
    return tun


@contextmanager
def elsewhere() -> Iterator[None]:
    """A new namespace for this thread; its sockets and devices stay there after the block."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    _call("unshare", _CLONE_NEWNET)
    try:
        yield
    finally:
        _call("setns", here, _CLONE_NEWNET)
        os.close(here)


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def why_not() -> str:
    """Why there can be no such network here; empty if there can be one."""
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    program = "import bad_network as b; b.open_tun('try', 0)"
    try:
        made = subprocess.run(
            ["unshare", "--net", sys.executable, "-c", program],
            capture_output=True, text=True, check=False, env={"PYTHONPATH": os.path.dirname(__file__)},
        )  # fmt: skip
    except FileNotFoundError:
        return "no unshare (util-linux)"
    return "" if made.returncode == 0 else "no network namespace with a TUN device (needs root and iproute2)"
