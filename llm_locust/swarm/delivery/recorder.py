"""Numbered batches of finished requests, in the process that made them."""

from collections.abc import Callable

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import RequestRecord, moved
from llm_locust.store import FrameHeader, encode_frame

#: A batch is closed at this number of rows even before its time: building one then takes about 2 ms.
BATCH_ROWS = 256

#: Limit of token arrivals in a batch. 256 answers of 1,000 tokens in one batch would hold the event loop for
#: 17 ms, and 256 of the longest would exceed the size limit of a message. A longer answer gets a batch of its
#: own.
BATCH_ARRIVALS = 1 << 15

Deliver = Callable[[FrameHeader, bytes], None]

#: Offset to add to this process's clock to get the run's time, and its error, in ns; None if unknown.
Offset = tuple[int, int] | None


class Recorder:
    """Collects one run's records on one worker and delivers each closed batch once.

    Args:
        deliver: called with a batch's header and frame; it is responsible for them from then on.
        in_flight: returns the number of requests in flight.
        clock: reads the clock and returns its offset; if it detects a step, it closes the batch first.
    """

    __slots__ = (
        "_clock",
        "_deliver",
        "_in_flight",
        "_open",
        "_open_arrivals",
        "_seq",
        "finished",
        "run",
        "worker",
    )

    def __init__(
        self,
        run: str,
        worker: str,
        deliver: Deliver,
        in_flight: Callable[[], int] = lambda: 0,
        clock: Callable[[], Offset] = lambda: None,
    ) -> None:
        self.run = run
        self.worker = worker
        self.finished = 0
        self._deliver = deliver
        self._in_flight = in_flight
        self._clock = clock
        self._open: list[RequestRecord] = []
        self._open_arrivals = 0
        self._seq = 0

    def add(self, record: RequestRecord) -> None:
        self.finished += 1
        # A step that nobody has seen yet closes the batch of those before it: the next has another offset.
        self._clock()
        if record.clock_step_ns is not None:
            # Its times are on the clock before the step.
            record = moved(record, record.clock_step_ns)
        arrivals = len(record.arrivals_ns)
        if self._open_arrivals + arrivals > BATCH_ARRIVALS:
            self.close_batch()
        self._open.append(record)
        self._open_arrivals += arrivals
        if len(self._open) >= BATCH_ROWS:
            self.close_batch()

    def close_batch(self) -> None:
        """Deliver the records since the last batch; do nothing if there are none."""
        if not self._open:
            return
        offset_ns, error_ns = self._clock() or (None, None)
        records, self._open, self._open_arrivals = self._open, [], 0
        if not records:  # reading the clock has detected a step and closed the batch
            return
        header = FrameHeader(
            self.run,
            self.worker,
            self._seq,
            len(records),
            finished=self.finished,
            in_flight=self._in_flight(),
            clock_offset_ns=offset_ns,
            clock_error_ns=error_ns,
        )
        self._seq += 1
        self._deliver(header, encode_frame(header, RecordBatch.from_records(records, self.worker).to_bytes()))

    @property
    def batches(self) -> int:
        """Number of batches closed."""
        return self._seq
