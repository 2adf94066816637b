"""Stamps of packets that came out of order, twice, late or cut anew, against a second capture."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from capturing import captures

PROGRAM = Path(__file__).with_name("hand_made_network.py")

#: Largest difference between the stamps of two sockets for one packet.
SAME_NS = 50_000


def _namespaces() -> bool:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    made = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"],
        capture_output=True,
        check=False,
    )
    return made.returncode == 0


pytestmark = [
    captures,
    pytest.mark.skipif(not _namespaces(), reason="no network namespace with a pair of virtual interfaces"),
]

#: Seconds to wait, offset, size. The sequence numbers wrap after 150 bytes.
PLANS = {
    "in order": [(0.005, 40 * n, 40) for n in range(10)],
    "delayed": [(0.05 if n == 5 else 0.002, 40 * n, 40) for n in range(10)],
    "reordered": [(0.004, 40 * n, 40) for n in (0, 2, 1, 5, 4, 3, 6, 8, 9, 7)],
    "lost, and sent again": [(0.004, 40 * n, 40) for n in (0, 1, 3, 4, 5, 2, 6, 7, 8, 9)],
    "sent twice": [(0.004, 40 * n, 40) for n in (0, 1, 1, 0, 2, 3, 2, 4)],
    "sent again in other pieces": [(0.004, o, s) for o, s in ((0, 40), (60, 40), (20, 60), (80, 100))],
}


@pytest.mark.parametrize("name", PLANS)
def test_every_byte_has_the_time_that_a_second_capture_gives_it(name: str) -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(PROGRAM)],
        input=json.dumps(PLANS[name]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": ":".join(map(str, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["dropped"] == 0
    first_ns: dict[int, int] = {}
    for offset, size, at_ns in seen["second"]:
        for byte in range(offset, offset + size):
            first_ns.setdefault(byte, at_ns)
    latest_ns, expected = 0, []
    for byte in range(len(first_ns)):
        latest_ns = max(latest_ns, first_ns[byte])
        expected.append(latest_ns)
    stamps: list[int] = []
    for end, at_ns in seen["pieces"]:
        stamps += [at_ns] * (end - len(stamps))
    assert len(stamps) == len(expected)
    assert max(abs(a - b) for a, b in zip(stamps, expected, strict=True)) < SAME_NS
