"""Worker's side: records are counted as they end, and sent with each report."""

from collections.abc import Callable, Iterator

import numpy as np

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.core.rows import RecordRows
from llm_locust.live.counting import count_in_steps
from llm_locust.live.counts import Counts
from llm_locust.live.keys import KeyLimit, LiveKey
from llm_locust.live.messages import LiveReport, LiveSlice, encode_report
from llm_locust.live.state import LiveRun

#: Records that are counted in one pass: it takes about 3 ms, in which nothing else runs.
PASS_ROWS = 256

#: Token arrivals that are counted in one pass. A longer answer has a pass of its own.
PASS_ARRIVALS = 1 << 15

_SECOND_NS = 1_000_000_000

_MADE_UP = RequestRecord(
    request_id="",
    name="",
    outcome=Outcome.OK,
    scheduled_ns=0,
    started_ns=0,
    ended_ns=3,
    sent_ns=0,
    arrivals_ns=np.array([1, 2, 3], dtype=np.int64),
    input_tokens=1,
    output_tokens=3,
)


class LiveCounts:
    """Counts one worker's requests between two reports, second by second.

    Adding a record is an append; counting is one vectorised pass for each second, or each :data:`PASS_ROWS`
    records.

    Args:
        clock_ns: a clock that is never set, in nanoseconds.
    """

    def __init__(self, run: LiveRun, clock_ns: Callable[[], int], epoch: int = 0) -> None:
        self.run = run
        self._clock_ns = clock_ns
        self.reset(epoch)
        self.add(_MADE_UP)  # the first pass takes 8 ms, which the load must not wait for
        self.report()
        self.reset(epoch)

    def reset(self, epoch: int) -> None:
        """Discard what was not reported yet and start a new epoch."""
        self.epoch = epoch
        self._limit = KeyLimit()
        self._seq = 0
        self._finished = 0
        self._waiting: dict[int, list[RequestRecord]] = {}  # records by their second, the newest last
        self._arrivals = 0  # token arrivals of the newest second's
        self._pass: Iterator[None] | None = None
        self._counted: dict[int, dict[LiveKey, Counts]] = {}

    def add(self, record: RequestRecord) -> None:
        """Add a request that has just ended."""
        second = self._clock_ns() // _SECOND_NS
        arrivals = len(record.arrivals_ns)
        records = self._waiting.get(second)
        if records is None:
            records, self._arrivals = self._waiting.setdefault(second, []), 0
        elif len(records) >= PASS_ROWS or self._arrivals + arrivals > PASS_ARRIVALS:
            self.count()
            records, self._arrivals = self._waiting.setdefault(second, []), 0
        records.append(record)
        self._arrivals += arrivals

    @property
    def is_due(self) -> bool:
        """Whether records should be counted soon: their second has passed, or they have many arrivals."""
        return self._pass is not None or len(self._waiting) > 1 or self._arrivals > PASS_ARRIVALS

    def report(self, *, whole: bool = True) -> bytes:
        """Return the counts since the last report, and forget them.

        Args:
            whole: count first what waits; else the next report has it.
        """
        if whole:
            self.count()
        counted, self._counted = self._counted, {}
        now_s = self._clock_ns() / _SECOND_NS
        slices = [LiveSlice.of(max(0.0, now_s - second - 0.5), counts) for second, counts in counted.items()]
        report = LiveReport(self.run.id, self.epoch, self._seq, self._finished, slices)
        self._seq += 1
        return encode_report(report)

    def count(self) -> None:
        """Count the waiting records."""
        while self.step():
            pass

    def step(self) -> bool:
        """Take one step of a pass over the oldest second; return whether there is another step to take."""
        if self._pass is None and self._waiting:
            second = next(iter(self._waiting))
            self._pass = self._count(second, self._waiting.pop(second))
            if not self._waiting:
                self._arrivals = 0
        if self._pass is not None and next(self._pass, self) is self:
            self._pass = None
        return self._pass is not None or bool(self._waiting)

    def _count(self, second: int, records: list[RequestRecord]) -> Iterator[None]:
        found = yield from count_in_steps(RecordRows(records, worker=""), self._limit, self.run)
        self._finished += len(records)
        counts = self._counted.setdefault(second, {})
        for key, more in found.items():
            counts[key] = Counts.merge([counts[key], more]) if key in counts else more
