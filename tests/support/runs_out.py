"""A locustfile whose process runs out of something at a point of its run, and says so with the error seen.

``RUNS_OUT`` has the error's name and the point: ``start`` (before there is a role), ``ready`` (before the
load), ``middle`` (20 requests) or ``end`` (the load has ended). ``SMALL_DISK`` is the folder that gets full.
"""

import ctypes
import os
import resource
import sys
from collections import Counter
from pathlib import Path

from chaos import fill
from gevent.monkey import get_original
from locust import events as locust_events

from llm_locust.locustfiles.chat import Chat

__all__ = ["Chat"]

WHAT, POINT = os.environ["RUNS_OUT"].split()
REQUESTS = 20

#: ``_LINUX_CAPABILITY_VERSION_3``, and the capabilities with which root passes its limit of processes.
_VERSION, _ADMIN, _RESOURCE = 0x20080522, 21, 24
_NOBODY = 54_321

_seen: Counter[str] = Counter()


def _be_limited() -> None:
    """Let the limit of processes hold for root too, who is then a user that has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    for field in (0, 1):  # effective, permitted
        data[field] &= ~(1 << _ADMIN | 1 << _RESOURCE) & 0xFFFFFFFF
    os.setresuid(_NOBODY, -1, -1)
    assert libc.capset(header, data) == 0


def _limit() -> None:
    if WHAT == "EMFILE":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    elif WHAT == "ENOMEM":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(),) * 2)
    elif WHAT == "EAGAIN":
        if os.getuid() == 0:
            _be_limited()
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    else:
        fill(Path(os.environ["SMALL_DISK"]))


def _attempt() -> None:
    """Take what there should be none of."""
    if WHAT == "EMFILE":
        os.close(os.open("/dev/null", os.O_RDONLY))
    elif WHAT == "ENOMEM":
        bytearray(64 << 20)
    elif WHAT == "EAGAIN":
        get_original("_thread", "start_new_thread")(lambda: None, ())
    else:
        (Path(os.environ["SMALL_DISK"]) / "attempt").write_bytes(bytes(8192))


def run_out(**_: object) -> None:
    _seen["calls"] += 1
    if POINT == "middle" and _seen["calls"] != REQUESTS:
        return
    _limit()
    try:
        _attempt()
    except (OSError, MemoryError, RuntimeError) as e:
        os.write(sys.stderr.fileno(), f"ran out: {e!r}\n".encode())


if POINT == "start":
    run_out()
else:
    event = {"ready": "init", "middle": "request", "end": "test_stop"}[POINT]
    getattr(locust_events, event).add_listener(run_out)
