"""Finished requests into numbered batches, in the process that made them."""

from collections.abc import Callable

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import RequestRecord, moved
from llm_locust.store import FrameHeader, encode_frame

#: A batch is closed at this size even before its time: building one then costs about 2 ms.
BATCH_ROWS = 256

#: And before it has more token arrivals than this: 256 answers of 1,000 tokens in one batch would hold the
#: event loop for 17 ms, and 256 of the longest would pass the bound of a message. A longer answer has a
#: batch of its own.
BATCH_ARRIVALS = 1 << 15

Deliver = Callable[[FrameHeader, bytes], None]

#: What has to be added to this process's clock to get the run's time, and its error, in ns; None: not known.
Offset = tuple[int, int] | None


class Recorder:
    """Collects one run's records on one worker and hands each closed batch over, once.

    Args:
        deliver: takes a batch's header and frame; it is then answerable for it.
        in_flight: gives the number of requests under way.
        clock: looks at the clock and gives its present offset; a step that it finds closes the batch first.
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
        if record.clock_step_ns is not None:
            # Its times are of the clock before the step: a batch of those may just have been closed.
            self._clock()
            record = moved(record, record.clock_step_ns)
        arrivals = len(record.arrivals_ns)
        if self._open_arrivals + arrivals > BATCH_ARRIVALS:
            self.close_batch()
        self._open.append(record)
        self._open_arrivals += arrivals
        if len(self._open) >= BATCH_ROWS:
            self.close_batch()

    def close_batch(self) -> None:
        """Deliver what has come since the last batch; nothing where nothing has."""
        if not self._open:
            return
        offset_ns, error_ns = self._clock() or (None, None)
        records, self._open, self._open_arrivals = self._open, [], 0
        if not records:  # the look at the clock found a step, and closed the batch of before
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
        """Batches closed so far."""
        return self._seq
