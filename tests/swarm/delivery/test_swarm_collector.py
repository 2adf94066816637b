"""Records into batches, and batches into the run's file, over a channel that loses, repeats and delays."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pytest
from hypothesis import example, given, strategies as st
from record_strategies import record

from llm_locust.core.batch import RecordBatch
from llm_locust.options.option import OWN_SPOOL
from llm_locust.store import FRAMES_FILE, FrameHeader, FrameLog, encode_frame, index_frames, unique_frames
from llm_locust.store.facts import SPOOL_DIR
from llm_locust.swarm.channel.collector import WRITE_BYTES, Collector, batch_fault
from llm_locust.swarm.channel.messages import BatchMessage
from llm_locust.swarm.channel.shipping import (
    BATCH_ROWS,
    RESEND_AFTER_S,
    WINDOW_BATCHES,
    WINDOW_BYTES,
    Recorder,
    SendWindow,
    Shipper,
    UnackedBatch,
    own_spool,
)
from llm_locust.swarm.process.event_loop import wait_until

# --- Records into batches: each record in one batch, each batch handed over once


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
    assert [h.seq for h in desk.headers] == list(range(recorder._seq))
    assert all(h.rows > 0 and (h.run, h.worker) == ("run", "w1") for h in desk.headers)


def test_a_full_batch_is_delivered_before_its_time_in_a_turn_of_its_own() -> None:
    desk = Desk()
    recorder = Recorder("run", "w1", desk)
    for number in range(BATCH_ROWS + 1):
        recorder.add(record(number))
    assert desk.headers == []
    assert wait_until(lambda: bool(desk.headers), timeout_s=60.0)
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


@given(st.lists(st.sampled_from(["ended", "begin", "close", "turn", "step"]), max_size=30))
@example(["ended", "begin", "ended", "begin", "close"])
@example(["ended", "begin", "step", "ended", "turn", "ended"])
@example(["ended", "begin", "close", "turn"])
def test_whatever_comes_between_the_two_halves_of_a_batch_each_record_is_delivered_once(
    happened: list[str],
) -> None:
    desk, clock = Desk(), SteppedClock()
    clock.recorder = recorder = Recorder("run", "w1", desk, clock=clock)
    made, offsets = 0, list[int]()
    for what in [*happened, "close"]:
        if what == "ended":
            recorder.add(record(made))
            made += 1
            offsets.append(clock.offset_ns)
        elif what == "begin":
            recorder.close_batch(in_turns=True)
        elif what == "turn":
            gevent.sleep(0.0002)
        elif what == "step":
            clock.step_ns = 1_000
        else:  # as at a flush, whose counts are the last word
            recorder.close_batch()
            assert desk.numbers() == list(range(made))
    assert [h.seq for h in desk.headers] == list(range(len(desk.headers)))
    assert [h.clock_offset_ns for h in desk.headers for _ in range(h.rows)] == offsets


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


# --- How much is on its way, and when which of it is sent again


def batch(seq: int, run: str = "run", size: int = 1) -> UnackedBatch:
    return UnackedBatch(FrameHeader(run, "w1", seq, 1), size, b"")


def seqs(batches: list[UnackedBatch]) -> list[int]:
    return [b.header.seq for b in batches]


def test_no_more_than_so_many_batches_are_on_their_way() -> None:
    window = SendWindow()
    for seq in range(WINDOW_BATCHES):
        assert window.has_room(1)
        window.put(batch(seq), 0.0)
    assert not window.has_room(1)
    window.remove(("run", 3))
    assert window.has_room(1)


def test_no_more_than_so_many_bytes_are_on_their_way_but_one_batch_always() -> None:
    window = SendWindow()
    assert window.has_room(WINDOW_BYTES * 3)
    window.put(batch(0, size=WINDOW_BYTES - 1), 0.0)
    assert window.has_room(1)
    assert not window.has_room(2)


def test_while_others_are_acknowledged_a_lost_batch_is_sent_again_after_its_time() -> None:
    window = SendWindow()
    window.put(batch(0), 0.0)
    window.put(batch(1), 3.0)
    window.heard(4.0)
    assert window.due_in_s(4.0) == 1.0
    assert seqs(window.overdue(4.9)) == []
    assert seqs(window.overdue(5.0)) == [0]
    assert window.due_in_s(6.0) == 0.0
    assert not window.silent


def test_in_silence_the_oldest_alone_is_sent_again_ever_more_seldom() -> None:
    window = SendWindow()
    for seq in range(3):
        window.put(batch(seq), 0.0)
    probes = []
    for tenth in range(1000):
        for probe in window.overdue(tenth / 10):
            window.put(probe, tenth / 10)
            probes.append((probe.header.seq, tenth / 10))
    assert probes == [(0, 5.0), (0, 15.0), (0, 35.0), (0, 55.0), (0, 75.0), (0, 95.0)]
    assert window.silent
    assert not window.has_room(1)


def test_the_first_word_after_a_silence_opens_the_window_and_sends_all_that_is_overdue() -> None:
    window = SendWindow()
    for seq in range(3):
        window.put(batch(seq), 0.0)
    window.put(window.overdue(5.0)[0], 5.0)
    assert window.overdue(9.0) == []
    window.remove(("run", 0))
    window.heard(9.0)
    assert window.has_room(1)
    assert seqs(window.overdue(9.0)) == [1, 2]


def test_silence_begins_with_the_first_batch_not_before_it() -> None:
    window = SendWindow()
    window.heard(0.0)
    window.put(batch(0), 100.0)
    assert window.overdue(100.0) == []
    assert window.due_in_s(100.0) == 5.0


def test_what_is_recalled_is_not_sent_again() -> None:
    window = SendWindow()
    old, new = batch(0, "old"), batch(0, "new")
    window.put(old, 0.0)
    window.put(new, 0.0)
    window.recall("old")
    assert old not in window
    assert window.overdue(5.0) == [new]
    window.recall("new")
    assert window.due_in_s(50.0) is None


# --- Where a worker keeps the batches that the master does not have yet


def folder(root: Path, worker: str = "w1", **options: Any) -> Path | None:
    run: Any = {"id": "r1", "path": str(root / "runs" / "r1")}
    spool = own_spool(Namespace(**options), worker, run)
    return None if spool is None else spool.folder


def test_batches_wait_in_the_runs_folder_or_in_one_of_the_run_where_the_worker_was_told(
    tmp_path: Path,
) -> None:
    chosen = {"spool": str(tmp_path / "master"), OWN_SPOOL: str(tmp_path / "own")}
    assert folder(tmp_path, spool=None) == tmp_path / "runs" / "r1" / SPOOL_DIR / "w1"
    assert folder(tmp_path, spool=chosen["spool"]) == tmp_path / "master" / "r1" / "w1"
    assert folder(tmp_path, **chosen) == tmp_path / "own" / "r1" / "w1"
    assert folder(tmp_path, **chosen | {OWN_SPOOL: "off"}) is None


def test_an_id_that_names_another_folder_keeps_batches_in_memory_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert folder(tmp_path, worker="../x") is None
    assert "kept in memory, not in a spool: this worker's id '../x'" in caplog.text


# --- From workers' records to the run's file, over a channel that loses, repeats and delays


class FlakyLog(FrameLog):
    """A log on a disk that is full at times: then a part of the bytes is written, and that is an error."""

    full = False

    def append(self, *frames: bytes) -> None:
        if self.full:
            data = b"".join(frames)
            with self.path.open("r+b") as file:
                file.seek(self.size)
                file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        super().append(*frames)


class Swarm:
    """Workers and a master; what is between them moves only when the test says so."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.path = folder / FRAMES_FILE
        self.log = FlakyLog(self.path)
        self.batches: list[tuple[str, BatchMessage]] = []
        self.acks: list[tuple[str, int]] = []
        self.collector = Collector(self.log, lambda worker, seq: self.acks.append((worker, seq)))
        self.shippers: dict[str, Shipper] = {}
        self.recorders: dict[str, Recorder] = {}
        self.made = 0
        self.now_s = 0.0
        for number in range(workers):
            self._add_worker(f"w{number}")

    def _add_worker(self, name: str) -> None:
        shipper = Shipper(lambda message: self.batches.append((name, message)), clock=lambda: self.now_s)
        self.shippers[name] = shipper
        self.recorders[name] = Recorder("run", name, shipper.deliver)

    def record(self, worker: str) -> None:
        self.recorders[worker].add(record(self.made))
        self.made += 1

    def batch(self, worker: str) -> None:
        self.record(worker)
        self.recorders[worker].close_batch()
        self.shippers[worker].step()

    def resend(self, worker: str) -> None:
        self.now_s += RESEND_AFTER_S
        self.shippers[worker].step()

    def deliver(self, place: int, *, again: bool = False) -> None:
        """A batch arrives at the master, whichever; it may arrive again later."""
        if self.batches:
            worker, message = self.batches[place % len(self.batches)]
            if not again:
                del self.batches[place % len(self.batches)]
            self.collector.accept(worker, message.seq, message.rows, message.frame)

    def land(self, place: int) -> None:
        self.deliver(place)
        self.collector.settle()

    def lose(self, place: int) -> None:
        if self.batches:
            del self.batches[place % len(self.batches)]

    def acknowledge(self, place: int, *, lost: bool = False) -> None:
        if self.acks:
            worker, seq = self.acks.pop(place % len(self.acks))
            if not lost:
                self.shippers[worker].acknowledged("run", seq)

    def drain(self) -> None:
        """The end of a run: everything is sent until everything is acknowledged."""
        self.log.full = False
        for recorder in self.recorders.values():
            recorder.close_batch()
        for _ in range(200):
            for worker in self.shippers:
                self.resend(worker)
            while self.batches:
                self.deliver(0)
            self.collector.settle()
            while self.acks:
                self.acknowledge(0)
            if not any(shipper.unsent for shipper in self.shippers.values()):
                return
        raise AssertionError("what is unsent does not become less")


PLACES = st.integers(0, 30)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["record", "batch", "batch", "resend"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["deliver", "land", "repeat", "lose", "acknowledge", "lose ack"]), PLACES),
    st.tuples(st.sampled_from(["disk full", "disk fine", "settle"]), st.just(0)),
)


@given(steps=st.lists(STEPS, max_size=60))
def test_whatever_is_lost_repeated_or_delayed_the_file_has_each_record_once(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    swarm = Swarm(tmp_path_factory.mktemp("swarm"), workers=2)
    act: dict[str, Callable[[int], object]] = {
        "record": lambda n: swarm.record(f"w{n}"),
        "batch": lambda n: swarm.batch(f"w{n}"),
        "resend": lambda n: swarm.resend(f"w{n}"),
        "deliver": swarm.deliver,
        "land": swarm.land,
        "repeat": lambda n: swarm.deliver(n, again=True),
        "lose": swarm.lose,
        "acknowledge": swarm.acknowledge,
        "lose ack": lambda n: swarm.acknowledge(n, lost=True),
        "disk full": lambda _: setattr(swarm.log, "full", True),
        "disk fine": lambda _: setattr(swarm.log, "full", False),
        "settle": lambda _: swarm.collector.settle(),
    }
    for step, number in steps:
        act[step](number)
    swarm.drain()
    swarm.collector.close()

    index = index_frames(swarm.path)
    assert index.tears == ()
    assert len(unique_frames(index.frames)) == len(index.frames), "a batch was written twice"
    kept = [n for f in index.frames for n in f.batch().ints("reads").tolist()]
    assert sorted(kept) == list(range(swarm.made))
    for name, recorder in swarm.recorders.items():
        assert swarm.collector.inboxes[name].rows == recorder.finished
        assert swarm.collector.inboxes[name].seqs.ranges() == (
            [range(recorder._seq)] if recorder._seq else []
        )


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    swarm = Swarm(tmp_path, workers=1)
    yield swarm
    swarm.collector.close()


def frame(seq: int) -> bytes:
    return encode_frame(FrameHeader("run", "w0", seq, 1), b"payload")


def test_a_batch_is_acknowledged_after_it_is_written(swarm: Swarm) -> None:
    swarm.collector.accept("w0", 0, 1, frame(0))
    assert swarm.acks == []
    swarm.collector.settle()
    assert swarm.acks == [("w0", 0)]
    assert swarm.path.read_bytes() == frame(0)


def test_a_write_that_fails_is_said_and_not_acknowledged(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    swarm.log.full = True
    swarm.collector.accept("w0", 0, 1, frame(0))
    swarm.collector.settle()
    assert swarm.acks == []
    assert "No space left on device" in caplog.text
    assert str(swarm.path) in caplog.text
    swarm.log.full = False
    swarm.collector.accept("w0", 0, 1, frame(0))
    swarm.collector.settle()
    assert swarm.acks == [("w0", 0)]
    assert swarm.collector.inboxes["w0"].resent == 0


def test_a_batch_that_comes_again_is_counted_and_acknowledged_again_but_not_written(swarm: Swarm) -> None:
    swarm.collector.accept("w0", 0, 3, frame(0))
    swarm.collector.accept("w0", 0, 3, frame(0))
    swarm.collector.settle()
    swarm.collector.accept("w0", 0, 3, frame(0))
    assert swarm.acks == [("w0", 0), ("w0", 0)]
    assert swarm.collector.inboxes["w0"].resent == 2
    assert swarm.collector.inboxes["w0"].rows == 3
    assert swarm.path.read_bytes() == frame(0)


def test_a_batch_that_comes_again_while_others_are_acknowledged_is_not_written_twice(tmp_path: Path) -> None:
    """Sending an acknowledgement may switch to the greenlet that receives."""
    collector: Collector
    acked: list[int] = []

    def acknowledge(worker: str, seq: int) -> None:
        acked.append(seq)
        if acked == [0]:
            collector.accept("w0", 1, 1, frame(1))

    collector = Collector(FrameLog(tmp_path / FRAMES_FILE), acknowledge)
    collector.accept("w0", 0, 1, frame(0))
    collector.accept("w0", 1, 1, frame(1))
    collector.close()
    assert (tmp_path / FRAMES_FILE).read_bytes() == frame(0) + frame(1)


def test_closing_writes_what_is_queued(swarm: Swarm) -> None:
    for seq in range(5):
        swarm.collector.accept("w0", seq, 1, frame(seq))
    swarm.collector.close()
    assert swarm.path.read_bytes() == b"".join(map(frame, range(5)))
    assert len(swarm.acks) == 5


def test_a_batch_after_the_end_is_refused_without_an_acknowledgement_and_said(
    swarm: Swarm, caplog: pytest.LogCaptureFixture
) -> None:
    swarm.collector.accept("w0", 0, 1, frame(0))
    swarm.collector.close()
    swarm.collector.accept("w0", 1, 7, frame(1))
    swarm.collector.settle()
    assert swarm.acks == [("w0", 0)]
    assert "batch 1 of worker w0 (7 records) arrived too late" in caplog.text
    swarm.collector.accept("w0", 0, 1, frame(0))
    assert swarm.acks == [("w0", 0), ("w0", 0)], "it is in the file: its worker may forget it"


def test_twenty_thousand_batches_at_once_are_taken(swarm: Swarm) -> None:
    for seq in range(20_000):
        swarm.collector.accept("w0", seq, 1, b"")
    swarm.collector.close()
    assert len(swarm.acks) == 20_000
    assert str(swarm.collector.inboxes["w0"].seqs) == "0-19999"


def test_the_newest_counts_are_those_of_the_most_finished_requests(swarm: Swarm) -> None:
    inbox = swarm.collector.inboxes["w0"]
    assert (inbox.finished, inbox.in_flight) == (None, None)
    for seq, finished, in_flight in [(0, 10, 4), (2, 30, 6), (1, 20, 5), (3, None, None)]:
        swarm.collector.accept("w0", seq, 10, frame(seq), finished, in_flight)
    assert (inbox.finished, inbox.in_flight) == (30, 6)


def test_what_finds_no_room_in_the_queue_is_not_taken_and_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acked: list[int] = []
    log = FrameLog(tmp_path / FRAMES_FILE)
    collector = Collector(log, lambda worker, seq: acked.append(seq), queue_bytes=2 * len(frame(0)))
    for seq in range(5):
        collector.accept("w0", seq, 1, frame(seq))
    collector.settle()
    assert acked == [0, 1]
    assert caplog.text.count("slower than the batches arrive") == 1
    for seq in (2, 3):
        collector.accept("w0", seq, 1, frame(seq))
    collector.close()
    assert (tmp_path / FRAMES_FILE).read_bytes() == b"".join(map(frame, range(4)))
    assert collector.inboxes["w0"].resent == 0


def test_a_batch_larger_than_the_queue_is_taken_when_it_is_empty(tmp_path: Path) -> None:
    acked: list[int] = []
    log = FrameLog(tmp_path / FRAMES_FILE)
    collector = Collector(log, lambda worker, seq: acked.append(seq), queue_bytes=1)
    collector.accept("w0", 0, 1, frame(0))
    collector.close()
    assert acked == [0]


def test_a_disk_that_stays_full_holds_no_batch_in_memory_and_is_said_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = FlakyLog(tmp_path / FRAMES_FILE)
    log.full = True
    acked: list[int] = []
    collector = Collector(log, lambda worker, seq: acked.append(seq), queue_bytes=3 * len(frame(0)))
    for seq in range(30):
        collector.accept("w0", seq, 1, frame(seq))
        collector.settle()
    assert acked == []
    assert caplog.text.count("No space left on device") == 1
    assert "slower than" not in caplog.text, "each batch that failed has left the queue"
    log.full = False
    collector.accept("w0", 29, 1, frame(29))
    collector.close()
    assert (tmp_path / FRAMES_FILE).read_bytes() == frame(29)


def test_large_batches_are_written_a_few_at_a_time(tmp_path: Path) -> None:
    """Or the first of them would wait for their acknowledgement until the last is on disk."""
    written: list[int] = []

    class Watched(FrameLog):
        def append(self, *frames: bytes) -> None:
            written.append(sum(map(len, frames)))
            super().append(*frames)

    collector = Collector(Watched(tmp_path / FRAMES_FILE), lambda worker, seq: None)
    for seq in range(10):
        collector.accept("w0", seq, 1, b"x" * (WRITE_BYTES // 3))
    collector.close()
    assert sum(written) == 10 * (WRITE_BYTES // 3)
    assert max(written) <= WRITE_BYTES


@pytest.mark.parametrize(
    ("worker", "wrong", "fault"),
    [
        ("w0", {}, ""),
        ("w1", {}, "does not match its own header"),
        ("w0", {"run": "another"}, "does not match its own header"),
        ("w0", {"seq": 4}, "does not match its own header"),
        ("w0", {"rows": 2}, "does not match its own header"),
        ("w0", {"frame": frame(3)[:-1]}, "is not a whole frame"),
    ],
)
def test_a_batch_is_taken_from_its_own_worker_as_it_was_made(
    worker: str, wrong: dict[str, Any], fault: str
) -> None:
    made: dict[str, Any] = {"run": "run", "seq": 3, "rows": 1, "finished": 1, "in_flight": 0}
    found = batch_fault(worker, BatchMessage(**made | {"frame": frame(3)} | wrong))
    assert found.endswith(fault)
    assert bool(found) == bool(fault)
