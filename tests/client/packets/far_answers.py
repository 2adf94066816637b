"""Streamed answers across a bad network, and a second capture of the packets that brought them.

Run as a program in a network namespace of its own (``unshare --net``). A server of known bytes is in another
one. The client is the package's, with packet stamps, and its event loop is held most of the time, so that no
read is in time. Prints what it recorded, and what another socket saw, packet by packet.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bad_network import ADDRESSES, Network, carry, elsewhere, open_tun

EVENTS, GAP_S, CALLS = 50, 0.004, 4
HELD_S, FREE_S = 0.04, 0.01
PORT = 8000

#: From the server to the client.
NETWORKS = {
    "delay": Network(0.008, jitter_s=0.003),
    "loss": Network(0.004, lost=1),
    "reordering": Network(0.004, jitter_s=0.001, late=3),
    "all of it": Network(0.006, jitter_s=0.002, lost=1, late=3),
}


def parts() -> list[bytes]:
    """Writes of one answer: its head, its events, its end."""
    from scripted import chat_chunk, chunk, last_chunk, response_head, sse

    events = [chunk(sse(chat_chunk("t" * (1 + n % 7)))) for n in range(EVENTS)]
    end = chunk(sse(chat_chunk(finish_reason="stop")) + sse("[DONE]")) + last_chunk()
    return [response_head(), *events, end]


def event_ends() -> list[int]:
    """Offset after each token event, without the line end of its chunk."""
    written, ends = parts(), []
    at = len(written[0])
    for event in written[1 : EVENTS + 1]:
        at += len(event)
        ends.append(at - 2)
    return ends


def answer(connection: socket.socket) -> None:
    """Answer one request, whatever it is."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = b""
    while b"\r\n\r\n" not in asked or not asked.endswith(b"}"):
        asked += connection.recv(65_536)
    for part in parts():
        connection.sendall(part)
        time.sleep(GAP_S)
    connection.recv(1)  # until the client closes


def serve(listeners: list[socket.socket]) -> None:
    """Answer for ever, each connection once."""

    def accept(listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,)).start()

    for listener in listeners:
        threading.Thread(target=accept, args=(listener,)).start()


@contextmanager
def child(work: Callable[..., None], *arguments: object) -> Iterator[None]:
    """A forked process that does this until the block's end."""
    pid = os.fork()
    if not pid:
        try:
            work(*arguments)
            threading.Event().wait()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def listener_at(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, PORT))
    listener.listen(64)
    return listener


def tap() -> socket.socket:
    """A packet socket of the near end's device, with a large buffer."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0003))
    made.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    made.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
    made.bind(("near", 0x0003))
    made.setblocking(False)
    return made


def seen_by(second: socket.socket) -> dict[int, list[tuple[int, int, int]]]:
    """By the client's port: sequence number, size (of a SYN: -1) and time of each packet that came."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    while True:
        try:
            data, ancillary, _, address = second.recvmsg(65_536, 64)
        except BlockingIOError:
            return found
        start = (data[0] & 15) * 4 if data[0] >> 4 == 4 else 40
        protocol = data[9] if data[0] >> 4 == 4 else data[6]
        if address[2] == socket.PACKET_OUTGOING or protocol != socket.IPPROTO_TCP:
            continue
        port, seq = struct.unpack_from("!HI", data, start + 2)
        size = -1 if data[start + 13] & 0x02 else len(data) - start - (data[start + 12] >> 4) * 4
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        if size:
            found.setdefault(port, []).append((seq, size, seconds * 10**9 + nanoseconds))


def ask(host: str) -> dict[str, object]:
    """Calls at the same time, each on a connection of its own: their records and the capture's counts."""
    import gevent
    from calls import arrived_ns, caller
    from capturing import packet_stamps
    from gevent.monkey import get_original

    def hold() -> None:
        while True:
            get_original("time", "sleep")(HELD_S)
            gevent.get_hub().loop.update_now()
            gevent.sleep(FREE_S)

    authority = f"[{host}]" if ":" in host else host
    with packet_stamps() as stamping, caller(f"http://{authority}:{PORT}/v1", stamping=stamping) as ask:
        asked = [gevent.spawn(ask.ask, None) for _ in range(CALLS)]
        holding = gevent.spawn(hold)
        gevent.joinall(asked, raise_error=True, timeout=60)
        holding.kill()
        records = [
            {
                "port": answer.record.local_port,
                "outcome": answer.record.outcome,
                "arrived_ns": arrived_ns(answer.record).tolist(),
                "lag_ns": answer.record.client_lag_ns,
            }
            for answer in ask.answers
        ]
        facts = stamping.facts()
    return {"records": records, "dropped": facts.dropped, "unseen_reads": facts.unseen_reads}


def main() -> None:
    near = open_tun("near", 0)
    with elsewhere():
        far = open_tun("far", 1)
        listeners = [listener_at(far_end) for _, far_end in ADDRESSES.values()]
    runs = []
    with child(serve, listeners):
        for seed, (name, network) in enumerate(NETWORKS.items()):
            with child(carry, near, far, network, seed):
                for version, (_, far_end) in ADDRESSES.items():
                    second = tap()
                    run = {"network": name, "version": version, **ask(far_end)}
                    runs.append({**run, "second": seen_by(second)})
    json.dump({"ends": event_ends(), "runs": runs}, sys.stdout)


if __name__ == "__main__":
    main()
