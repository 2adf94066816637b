"""Records into batches: each record in one batch, each batch handed over once."""

from hypothesis import given
from hypothesis import strategies as st
from record_strategies import record

from llm_locust.batch import RecordBatch
from llm_locust.store import FrameHeader, encode_frame
from llm_locust.swarm.recorder import BATCH_ROWS, Recorder


class Desk:
    """Keeps what was delivered."""

    def __init__(self) -> None:
        self.headers: list[FrameHeader] = []
        self.frames: list[bytes] = []

    def __call__(self, header: FrameHeader, frame: bytes) -> None:
        self.headers.append(header)
        self.frames.append(frame)

    def numbers(self) -> list[int]:
        """Of all records delivered, in order."""
        each = []
        for header, frame in zip(self.headers, self.frames, strict=True):
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
