"""Log of ``server.c``: when each request arrived and each token was written, next to a run's records.

A write's time is read just before the system call that does it. On loopback the receiving side has its time
stamp before that call returns: the truth of an arrival lies within the call.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ENTRY = np.dtype([("at_ns", "i8"), ("took_ns", "u4"), ("port", "u2"), ("token", "u2")])
_ARRIVED = 0xFFFF

#: Most that a record may be earlier on the run's clock than its request on the server's.
_SAME_NS = 5_000_000
_PORTS_APART = 1 << 44  # nanoseconds: more than any bench lasts


class LogError(ValueError):
    """A log that does not fit the run's records; the text says how."""


@dataclass(frozen=True, slots=True)
class ServerLog:
    """Requests in order of client port and time; tokens as rows of their request.

    ``written_ns`` has a row for each whole answer, ``arrived_ns`` and ``port`` an element.
    ``all_written_ns`` are the times of all writes, also of answers that were not whole. Times are realtime.
    """

    port: NDArray[np.int64]
    arrived_ns: NDArray[np.int64]
    written_ns: NDArray[np.int64]
    all_written_ns: NDArray[np.int64]
    took_ns: NDArray[np.int64]

    @property
    def ttft_ns(self) -> NDArray[np.int64]:
        return np.asarray(self.written_ns[:, 0] - self.arrived_ns, dtype=np.int64)

    def rows_of(self, port: NDArray[np.integer[Any]], sent_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row of each request that a client sent from this port at this time.

        Raises:
            LogError: one has none, or two have the same.
        """
        if not len(port):
            return np.empty(0, np.int64)
        first_ns = min(int(self.arrived_ns.min()), int(sent_ns.min())) - _SAME_NS
        keys = self.port * _PORTS_APART + (self.arrived_ns - first_ns)
        wanted = port.astype(np.int64) * _PORTS_APART + (sent_ns - _SAME_NS - first_ns)
        rows = np.searchsorted(keys, wanted)
        known = rows < len(keys)
        known[known] = self.port[rows[known]] == port[known]
        if not known.all():
            raise LogError(f"{int((~known).sum())} of {len(port)} requests are not in the server's log")
        if len(np.unique(rows)) < len(rows):
            raise LogError("two of the client's requests have the same request of the server's log")
        return np.asarray(rows, dtype=np.int64)


def read_log(path: Path, tokens: int) -> ServerLog:
    """Read the log of a server whose whole answers have so many tokens.

    Raises:
        LogError: it has no whole answer.
    """
    raw = path.read_bytes()
    to_realtime_ns = int(np.frombuffer(raw, np.int64, 1)[0])
    entries = np.frombuffer(raw, _ENTRY, offset=8)
    written = entries["token"] != _ARRIVED
    entries_of_port = entries[np.argsort(entries["port"], kind="stable")]
    starts = np.flatnonzero(entries_of_port["token"] == _ARRIVED)
    whole = np.diff(np.append(starts, len(entries_of_port))) == tokens + 1
    starts = starts[whole]
    if not len(starts):
        raise LogError(f"the server's log {path} has no whole answer")
    at_ns = entries_of_port["at_ns"] + to_realtime_ns
    return ServerLog(
        port=entries_of_port["port"][starts].astype(np.int64),
        arrived_ns=at_ns[starts],
        written_ns=at_ns[starts[:, None] + np.arange(1, tokens + 1)],
        all_written_ns=entries["at_ns"][written] + to_realtime_ns,
        took_ns=entries["took_ns"][written].astype(np.int64),
    )
