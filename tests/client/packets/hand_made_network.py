"""A peer made of packets, in a network namespace: it sends them in any order, late, twice or cut anew.

Run as a program in a namespace of its own (``unshare --net``). A pair of virtual interfaces connects this
machine's TCP with a packet socket; what that sends is in the order and at the times of a plan. The client's
capture is compared with a second one: another socket, without a ring, read packet by packet.
"""

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from ipaddress import ip_address

from packet_bytes import ACK, SYN_ACK, Packet

from llm_locust.client.http.clock import SO_TIMESTAMPNS, hold_stamping
from llm_locust.client.packets.capture import Capture

HERE, PEER, PORT = "10.77.0.1", "10.77.0.2", 8000
PEER_MAC = "02:00:00:00:00:02"
FIRST_SEQ = 2**32 - 150  # the sequence numbers wrap within the plan


def folded_sum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    words = struct.unpack(f"!{len(data) // 2 + len(data) % 2}H", data + bytes(len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def with_checksums(packet: Packet, acknowledged: int) -> bytes:
    data = bytearray(packet.data)
    struct.pack_into("!I", data, 28, acknowledged)
    struct.pack_into("!H", data, 34, 60_000)  # its window
    struct.pack_into("!H", data, 10, folded_sum(bytes(data[:20])))
    pseudo = ip_address(PEER).packed + ip_address(HERE).packed + struct.pack("!HH", 6, len(data) - 20)
    struct.pack_into("!H", data, 36, folded_sum(pseudo + bytes(data[20:])))
    return bytes(data)


def answer(wire: socket.socket, plan: list[tuple[float, int, int]]) -> None:
    """Accept one connection, and send the plan's packets: seconds to wait, offset, size."""
    while True:
        frame = wire.recv(2048)
        if frame[12:14] == b"\x08\x00" and frame[23] == 6 and frame[47] & 0x02:
            break
    here_port, client_seq = struct.unpack("!H2xI", frame[34:42])
    link = frame[6:12] + frame[:6] + b"\x08\x00"

    def send(seq: int, size: int, flags: int) -> None:
        packet = Packet(
            seq=seq,
            size=size,
            flags=flags,
            here=HERE,
            peer=PEER,
            here_port=here_port,
            peer_port=PORT,
            tcp_options=0,
        )
        wire.send(link + with_checksums(packet, (client_seq + 1) % 2**32))

    send(FIRST_SEQ - 1, 0, SYN_ACK)
    for wait_s, offset, size in plan:
        time.sleep(wait_s)
        send(FIRST_SEQ + offset, size, ACK)


def second_capture(tap: socket.socket) -> list[tuple[int, int, int]]:
    """Offset, size and time of each packet with payload that an independent socket saw."""
    found: list[tuple[int, int, int]] = []
    tap.setblocking(False)
    while True:
        try:
            data, ancillary, _, address = tap.recvmsg(4096, 64)
        except BlockingIOError:
            return found
        head = (data[0] & 15) * 4
        size = len(data) - head - (data[head + 12] >> 4) * 4
        if address[2] != socket.PACKET_OUTGOING and data[9] == 6 and size > 0:
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            (seq,) = struct.unpack_from("!I", data, head + 4)
            found.append(((seq - FIRST_SEQ) % 2**32, size, seconds * 10**9 + nanoseconds))


def main() -> None:
    stamping = hold_stamping()  # first: the kernel begins some time after it is asked
    plan = [(wait_s, offset, size) for wait_s, offset, size in json.load(sys.stdin)]
    total = max(offset + size for _, offset, size in plan)
    for command in (
        "ip link add here type veth peer name wire",
        f"ip addr add {HERE}/24 dev here",
        "ip link set here up",
        "ip link set wire up",
        f"ip neigh add {PEER} lladdr {PEER_MAC} dev here",
        "ip link set wire promisc on",
    ):
        subprocess.run(command.split(), check=True)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    wire.bind(("wire", 0x0800))
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    tap.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    tap.bind(("here", 0x0800))
    capture = Capture(1024)
    capture.watch(PEER, PORT)
    threading.Thread(target=answer, args=(wire, plan), daemon=True).start()
    receiver = socket.socket()
    receiver.connect((PEER, PORT))
    tracked = capture.track(receiver, PEER, PORT)
    receiver.settimeout(60)
    left = total
    while left:
        got = len(receiver.recv(left))
        if not got:
            raise SystemExit("the connection ended")
        left -= got
    pieces = tracked.pieces(total)
    json.dump({"pieces": pieces, "second": second_capture(tap), "dropped": capture.dropped}, sys.stdout)
    assert stamping is not None


if __name__ == "__main__":
    main()
