"""Local ports of one process, in blocks that no other process of this package on the machine uses.

A capture then passes only what its own connections receive, and each of many workers parses only that.
"""

import _socket
import os
import sys
from contextlib import suppress
from pathlib import Path

#: Ports of a block: a packet is of a block if the upper byte of its port is the block's number.
BLOCK_PORTS = 256

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: ``IP_LOCAL_PORT_RANGE`` (Linux 6.3): upper and lower bound in 16 bits each; 0 takes it back.
IP_LOCAL_PORT_RANGE = 51
_CLAIM = "\0llm-locust-local-ports-{}"  # an abstract socket: of this network namespace, gone with the process


class LocalPorts:
    """Blocks claimed by this process, of which its connections get their local ports.

    Attributes:
        blocks: numbers of the blocks; None if the kernel chooses any port, because it cannot be told, or
            because no block is left.
    """

    def __init__(self, ephemeral: Path = _EPHEMERAL) -> None:
        self.blocks: list[int] | None = []
        self._current = 0  # index of the block that connections get their ports of
        self._claims: list[_socket.socket] = []
        self._free: list[int] = []
        with suppress(OSError, ValueError):
            lowest, highest = map(int, ephemeral.read_text().split())
            blocks = range(-(-lowest // BLOCK_PORTS), (highest + 1) // BLOCK_PORTS)
            first = os.getpid() % max(1, len(blocks))
            self._free = [*blocks[first:], *blocks[:first]][::-1]
        self.claim()

    def turn(self, tries: int) -> bool:
        """Choose another block for a socket for which so many had no free port: one of this process's own, in
        which ports may be free again, and after all of them a new one. Return as :meth:`claim`."""
        if self.blocks is None or tries >= len(self.blocks):
            return self.claim()
        self._current = (self._current + 1) % len(self.blocks)
        return True

    def claim(self) -> bool:
        """Claim one more block; return whether there was one. Without, the kernel chooses from now on."""
        while self._free and self.blocks is not None:
            block = self._free.pop()
            claim = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            try:
                claim.bind(_CLAIM.format(block))
            except OSError:  # another process has it
                claim.close()
                continue
            self._claims.append(claim)
            self.blocks.append(block)
            self._current = len(self.blocks) - 1
            return True
        self.close()
        return False

    def prepare(self, sock: _socket.socket) -> None:
        """Let a socket that is about to connect take a port of the current block."""
        if not self.blocks:
            return
        lowest = self.blocks[self._current] * BLOCK_PORTS
        limits = ((lowest + BLOCK_PORTS - 1) << 16 | lowest).to_bytes(4, sys.byteorder)
        try:
            sock.setsockopt(_socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, limits)
        except OSError:  # before Linux 6.3
            self.close()

    def close(self) -> None:
        """Give the blocks back."""
        self.blocks = None
        for claim in self._claims:
            claim.close()
        self._claims.clear()
