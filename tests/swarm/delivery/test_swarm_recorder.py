"""Records into batches: each record in one batch, each batch handed over once."""

from dataclasses import replace

from hypothesis import given, strategies as st
from record_strategies import record

from llm_locust.core.batch import RecordBatch
from llm_locust.store import FrameHeader, encode_frame
from llm_locust.swarm.delivery.unacked import BATCH_ROWS, Recorder


class Desk:
    """Keeps what was delivered."""

    def __init__(self) -> None:
        self.headers: list[FrameHeader] = []
        self.frames: list[bytes] = []

    def __call__(self, header: FrameHeader, frame: bytes) -> None:
        self.headers.append(header)
        self.frames.append(frame)

    def delivered(self) -> list[tuple[FrameHeader, bytes]]:
        return list(zip(self.headers, self.frames, strict=True))

    def numbers(self) -> list[int]:
        """Of all records delivered, in order."""
        each = []
        for header, frame in self.delivered():
            payload = frame[len(encode_frame(header, b"")) :]
            batch = RecordBatch.from_bytes(payload)
            assert len(batch) == header.rows
            assert frame == encode_frame(header, payload)
            each += batch.ints("reads").tolist()
        return each


@given(st.lists(st.integers(0, 3), max_size=20))
def test_closing_at_any_time_delivers_each_record_once_and_in_order(pauses: list[int]) -> None:
    desk = Desk()
    recorder = Recorder("run", "w1", desk)
    made = 0
    for adds in pauses:
        for _ in range(adds):
            recorder.add(record(made))
            made += 1
        recorder.close_batch()
    assert desk.numbers() == list(range(made))
    assert recorder.finished == made
    assert [h.seq for h in desk.headers] == list(range(recorder.batches))
    assert all(h.rows > 0 and (h.run, h.worker) == ("run", "w1") for h in desk.headers)


def test_a_full_batch_is_delivered_before_its_time() -> None:
    desk = Desk()
    recorder = Recorder("run", "w1", desk)
    for number in range(BATCH_ROWS + 1):
        recorder.add(record(number))
    assert [h.rows for h in desk.headers] == [BATCH_ROWS]
    recorder.close_batch()
    assert desk.numbers() == list(range(BATCH_ROWS + 1))


def test_a_record_that_is_added_while_a_batch_is_delivered_goes_into_the_next() -> None:
    """Delivering sends a message, and that may let another user's request end."""
    recorder: Recorder
    seen: list[int] = []

    def deliver(header: FrameHeader, frame: bytes) -> None:
        seen.append(header.rows)
        if len(seen) == 1:
            recorder.add(record(2))

    recorder = Recorder("run", "w1", deliver)
    recorder.add(record(1))
    recorder.close_batch()
    recorder.close_batch()
    assert seen == [1, 1]
    assert recorder.finished == 2


class SteppedClock:
    """A clock that is found to be stepped at one look, which closes the batch of before."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.offset_ns = 40
        self.step_ns: int | None = None

    def __call__(self) -> tuple[int, int]:
        if self.step_ns is not None and self.recorder is not None:
            step_ns, self.step_ns = self.step_ns, None
            self.recorder.close_batch()
            self.offset_ns -= step_ns
        return self.offset_ns, 5


def test_each_batch_carries_the_offset_of_its_time_and_the_counts() -> None:
    desk, clock = Desk(), SteppedClock()
    clock.recorder = recorder = Recorder("run", "w1", desk, in_flight=lambda: 7, clock=clock)
    recorder.add(record(1))
    recorder.add(record(2))
    clock.step_ns = 1_000
    recorder.close_batch()
    recorder.add(record(3))
    recorder.close_batch()
    assert [(h.clock_offset_ns, h.clock_error_ns) for h in desk.headers] == [(40, 5), (-960, 5)]
    assert [(h.rows, h.finished, h.in_flight) for h in desk.headers] == [(2, 2, 7), (1, 3, 7)]
    assert desk.numbers() == [1, 2, 3]


def test_a_request_that_a_step_fell_into_is_placed_by_the_clock_of_after() -> None:
    """Its own times are of before: on the run's axis it must not jump by the step."""
    desk, clock = Desk(), SteppedClock()
    clock.recorder = recorder = Recorder("run", "w1", desk, clock=clock)
    recorder.add(record(1))
    clock.step_ns = 1_000
    recorder.add(replace(record(2), clock_step_ns=1_000, sent_ns=5))
    recorder.close_batch()
    before, after = (RecordBatch.from_bytes(f[len(encode_frame(h, b"")) :]) for h, f in desk.delivered())
    assert before.ints("scheduled_ns").tolist() == [1]
    assert desk.headers[1].clock_offset_ns == 40 - 1_000
    assert after.ints("scheduled_ns").tolist() == [2 + 1_000]
    assert (after.ints("sent_ns") - after.ints("scheduled_ns")).tolist() == [3]


def test_a_request_that_began_after_a_step_which_nobody_has_seen_is_in_a_batch_of_its_own() -> None:
    """It is over before anybody looks: in the batch of before it would be off by the step."""
    desk, clock = Desk(), SteppedClock()
    clock.recorder = recorder = Recorder("run", "w1", desk, clock=clock)
    recorder.add(record(1))
    clock.step_ns = 1_000
    recorder.add(record(2))
    recorder.close_batch()
    assert [header.clock_offset_ns for header in desk.headers] == [40, 40 - 1_000]
    assert desk.numbers() == [1, 2]
