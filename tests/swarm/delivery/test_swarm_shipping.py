"""A batch is kept until it is acknowledged, on disk where that works, and sent again until then."""

import errno
import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import gevent
import msgspec
import pytest
from gevent.event import Event
from hypothesis import given, settings, strategies as st

from llm_locust.core.manifest import WorkerFacts
from llm_locust.store import MANIFEST_FILE, WORKER_FILE, FrameHeader, Spool
from llm_locust.swarm.channel import shipping
from llm_locust.swarm.channel.messages import BatchMessage
from llm_locust.swarm.channel.shipping import RESEND_AFTER_S, WINDOW_BATCHES, Shipper


class Wire:
    """Takes messages; while it is cut, sending raises."""

    def __init__(self) -> None:
        self.messages: list[BatchMessage] = []
        self.cut = False
        self.look: Callable[[BatchMessage], object] = lambda message: None

    def __call__(self, message: BatchMessage) -> None:
        self.look(message)
        if self.cut:
            raise ConnectionError("no master")
        self.messages.append(message)

    @property
    def sent(self) -> list[int]:
        return [message.seq for message in self.messages]


class FlakySpool(Spool):
    """A spool on a disk that is full at times."""

    full = False
    writes = 0

    def write(self, seq: int, frame: bytes) -> None:
        self.writes += 1
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(seq, frame)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Outbox:
    """A shipper whose time and steps are the test's."""

    def __init__(self, root: Path, *, spool: bool = True, memory_bytes: int = 1000) -> None:
        self.wire, self.clock = Wire(), Clock()
        self.spool = FlakySpool(root / "spool" / "w1", root)
        self.shipper = Shipper(self.wire, memory_bytes=memory_bytes, clock=self.clock)
        self.shipper.begin("run", self.spool if spool else None, '{"id": "run"}')

    def deliver(self, *seqs: int, rows: int = 1, size: int = 100, run: str = "run") -> None:
        for seq in seqs:
            self.shipper.deliver(FrameHeader(run, "w1", seq, rows, seq + 1, 7), frame(seq, size))

    def ship(self, *seqs: int) -> None:
        self.deliver(*seqs)
        self.shipper.step()

    def acknowledge(self, *seqs: int, run: str = "run") -> None:
        for seq in seqs:
            self.shipper.acknowledged(run, seq)

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.shipper.step()

    @property
    def files(self) -> list[str]:
        return sorted(p.name for p in self.spool.folder.iterdir()) if self.spool.folder.exists() else []


def frame(seq: int, size: int = 100) -> bytes:
    return bytes([seq % 256]) * size


def facts(announced: int = 3) -> WorkerFacts:
    return WorkerFacts(id="w1", index=0, announced=announced, received=0)


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    return Outbox(tmp_path)


# -- on disk, then sent, then forgotten ------------------------------------------------------


def test_delivering_waits_for_neither_disk_nor_master(outbox: Outbox) -> None:
    outbox.deliver(0)
    assert outbox.files == []
    assert outbox.wire.sent == []
    assert outbox.shipper.unsent == 1


def test_a_batch_is_on_disk_beside_the_manifest_before_it_is_sent(outbox: Outbox) -> None:
    seen: list[bytes] = []
    outbox.wire.look = lambda message: seen.append(outbox.spool.read(message.seq))
    outbox.ship(0, 1)
    assert seen == [frame(0), frame(1)]
    assert msgspec.json.decode((outbox.spool.folder / MANIFEST_FILE).read_bytes()) == {"id": "run"}
    assert outbox.shipper.spooled_bytes == 200


def test_a_message_says_what_the_header_says(outbox: Outbox) -> None:
    outbox.deliver(4, rows=3)
    outbox.shipper.step()
    assert outbox.wire.messages == [
        BatchMessage(run="run", seq=4, rows=3, finished=5, in_flight=7, frame=frame(4))
    ]


def test_an_acknowledged_batch_is_removed_from_disk(outbox: Outbox) -> None:
    outbox.ship(0, 1)
    outbox.acknowledge(0)
    outbox.shipper.step()
    assert outbox.files == ["00000001.frame", MANIFEST_FILE]
    assert outbox.shipper.unsent == 1
    assert outbox.shipper.spooled_bytes == 100


def test_what_finds_no_room_on_the_way_waits_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, memory_bytes=100_000)
    outbox.ship(*range(50))
    assert outbox.wire.sent == list(range(WINDOW_BATCHES))
    assert outbox.shipper.memory_bytes == 0
    assert outbox.shipper.spooled_bytes == 50 * 100
    outbox.acknowledge(0, 5)
    outbox.shipper.step()
    assert outbox.wire.sent == list(range(WINDOW_BATCHES + 2))
    assert [m.frame for m in outbox.wire.messages] == [frame(n) for n in outbox.wire.sent]


def test_an_acknowledgement_that_comes_twice_or_of_another_run_does_nothing(outbox: Outbox) -> None:
    outbox.ship(0)
    outbox.acknowledge(0, run="another")
    assert outbox.shipper.unsent == 1
    outbox.acknowledge(0, 0)
    assert outbox.shipper.unsent == 0


def test_an_acknowledgement_may_come_while_the_batch_is_being_sent(outbox: Outbox) -> None:
    outbox.wire.look = lambda message: outbox.acknowledge(message.seq)
    outbox.ship(0, 1)
    assert outbox.wire.sent == [0, 1]
    assert outbox.shipper.unsent == 0
    assert outbox.shipper.step() is None
    assert outbox.files == [MANIFEST_FILE]


# -- sent again ------------------------------------------------------------------------------


def test_a_batch_is_sent_once_while_its_acknowledgement_is_not_overdue(outbox: Outbox) -> None:
    outbox.ship(0)
    outbox.pass_time(RESEND_AFTER_S - 0.1)
    assert outbox.wire.sent == [0]


def test_a_batch_without_an_acknowledgement_is_sent_again_from_disk(outbox: Outbox) -> None:
    outbox.ship(0, 1)
    outbox.acknowledge(0)
    outbox.pass_time(RESEND_AFTER_S)
    assert outbox.wire.sent == [0, 1, 1]
    assert outbox.wire.messages[2].frame == frame(1)
    assert outbox.shipper.memory_bytes == 0


def test_a_silent_master_is_sent_the_oldest_alone_until_it_answers(outbox: Outbox) -> None:
    outbox.ship(0, 1, 2)
    for _ in range(7):
        outbox.pass_time(RESEND_AFTER_S)
    outbox.ship(3)
    assert outbox.wire.sent == [0, 1, 2, 0, 0, 0], "at 5, 15 and 35 s"
    outbox.acknowledge(0)
    outbox.shipper.step()
    assert outbox.wire.sent[6:] == [1, 2, 3]


def test_a_batch_that_could_not_be_sent_is_kept_and_sent_when_the_wire_is_whole(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.wire.cut = True
    outbox.ship(0, 1)
    assert outbox.shipper.unsent == 2
    assert caplog.text.count("will send it again: no master") == 1
    outbox.wire.cut = False
    outbox.pass_time(RESEND_AFTER_S)
    outbox.acknowledge(0)
    outbox.shipper.step()
    assert outbox.wire.sent == [0, 1]


def test_a_batch_whose_file_is_gone_or_cut_is_counted_as_dropped_and_never_sent(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.ship(0, 1, 2)
    outbox.pass_time(RESEND_AFTER_S - 1)
    outbox.acknowledge(2)
    outbox.spool.drop(0)
    (outbox.spool.folder / "00000001.frame").write_bytes(b"cut")
    outbox.pass_time(1.0)
    assert outbox.wire.sent == [0, 1, 2]
    assert outbox.shipper.dropped == 2
    assert outbox.shipper.unsent == 0
    assert "batch 1 (1 records) is gone" in caplog.text


# -- a disk that does not take them ----------------------------------------------------------


def test_while_the_disk_is_full_batches_go_by_memory_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(tmp_path, memory_bytes=3 << 20)
    outbox.spool.full = True
    outbox.ship(0)
    outbox.ship(1)
    assert outbox.wire.sent == [0, 1]
    assert outbox.shipper.memory_bytes == 200
    assert caplog.text.count("No space left on device") == 1
    assert str(outbox.spool.folder) in caplog.text
    assert "up to 3 MiB" in caplog.text
    outbox.acknowledge(0, 1)
    assert outbox.shipper.memory_bytes == 0


def test_a_disk_that_works_again_is_said_and_takes_what_waits_in_memory(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.spool.full = True
    outbox.ship(0)
    outbox.ship(1)
    outbox.spool.full = False
    outbox.shipper.step()
    assert outbox.shipper.memory_bytes == 200, "the disk is tried with a batch that comes"
    outbox.ship(2)
    assert outbox.shipper.memory_bytes == 0
    assert outbox.files == ["00000000.frame", "00000001.frame", "00000002.frame", MANIFEST_FILE]
    assert caplog.text.count("can be written again") == 1
    assert outbox.wire.sent == [0, 1, 2]


def test_a_full_disk_is_asked_once_a_batch(outbox: Outbox) -> None:
    outbox.spool.full = True
    for seq in range(5):
        outbox.ship(seq)
        outbox.pass_time(1.0)
    assert outbox.spool.writes == 5


def test_a_disk_that_is_full_now_and_then_is_not_talked_about_all_the_time(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    for seq in range(40):
        outbox.spool.full = seq % 2 == 0
        outbox.ship(seq)
        outbox.acknowledge(seq)
        outbox.pass_time(1.0)
    assert caplog.text.count("No space left on device") == 2, "in 40 s"


def test_what_memory_cannot_hold_is_dropped_counted_and_said_seldom(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.spool.full = True
    outbox.wire.cut = True
    for seq in range(14):
        outbox.deliver(seq, rows=5)
        outbox.pass_time(0.0)
    assert outbox.shipper.memory_bytes == 1000
    assert outbox.shipper.unsent == 10
    assert outbox.shipper.dropped == 20
    assert [r.getMessage()[:20] for r in caplog.records if "dropped" in r.getMessage()] == [
        "5 records of run run"
    ]
    outbox.clock.now_s += 30.0
    outbox.deliver(99, rows=5)
    assert "25 records of run run dropped so far" in caplog.text


def test_a_full_memory_is_emptied_by_a_disk_that_works_again(outbox: Outbox) -> None:
    outbox.spool.full = True
    outbox.ship(*range(10))
    outbox.acknowledge(0)  # the disk is not asked about it any more
    outbox.ship(10)
    outbox.spool.full = False
    outbox.ship(11)
    assert outbox.shipper.dropped == 1
    assert outbox.shipper.memory_bytes == 0
    assert outbox.shipper.spooled_bytes == 1000
    outbox.ship(12)
    assert outbox.shipper.dropped == 1


def test_without_a_spool_batches_are_in_memory_and_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(tmp_path, spool=False)
    outbox.ship(*range(12))
    assert outbox.wire.sent == list(range(WINDOW_BATCHES))
    assert outbox.shipper.unsent == 10
    assert outbox.shipper.dropped == 2
    outbox.acknowledge(*range(8))
    outbox.shipper.step()
    assert outbox.wire.sent == list(range(10))
    assert [r for r in caplog.records if "spool" in r.getMessage() and r.levelno == logging.WARNING] == []


def test_a_batch_that_is_acknowledged_while_it_is_written_leaves_no_file(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.spool.full = True
    outbox.ship(0)
    outbox.spool.full = False
    loop, done = gevent.get_hub().loop, threading.Event()

    def acknowledge() -> None:
        outbox.acknowledge(0)
        done.set()

    def slow(seq: int, data: bytes) -> None:
        Spool.write(outbox.spool, seq, data)
        if seq == 0:
            loop.run_callback_threadsafe(acknowledge)
            assert done.wait(5.0)

    monkeypatch.setattr(outbox.spool, "write", slow)
    outbox.ship(1)
    assert done.is_set()
    assert outbox.files == ["00000001.frame", MANIFEST_FILE]
    assert outbox.shipper.spooled_bytes == 100


# -- the end of a run ------------------------------------------------------------------------


def test_of_a_run_of_which_all_is_acknowledged_nothing_stays(outbox: Outbox, tmp_path: Path) -> None:
    outbox.ship(0, 1)
    outbox.acknowledge(0, 1)
    assert outbox.shipper.finish("run", facts()) == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_acknowledged_at_the_end_stays_on_disk_with_the_workers_last_word(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.ship(0, 1, 2)
    outbox.acknowledge(1)
    assert outbox.shipper.finish("run", facts()) == 2
    assert outbox.files == ["00000000.frame", "00000002.frame", MANIFEST_FILE, WORKER_FILE]
    assert msgspec.json.decode((outbox.spool.folder / WORKER_FILE).read_bytes(), type=WorkerFacts) == facts()
    assert "2 batches (2 records) of run run" in caplog.text
    assert f"llm-locust merge RUN_DIRECTORY {outbox.spool.folder}" in caplog.text
    assert outbox.shipper.unsent == 0


def test_the_last_word_is_there_before_the_last_acknowledgement_and_goes_with_it(
    outbox: Outbox, tmp_path: Path
) -> None:
    outbox.ship(0, 1)
    outbox.shipper.queue_final_facts("run", facts())
    assert msgspec.json.decode((outbox.spool.folder / WORKER_FILE).read_bytes(), type=WorkerFacts) == facts()
    outbox.acknowledge(0, 1)
    assert outbox.shipper.finish("run", facts()) == 0
    assert list(tmp_path.iterdir()) == []


def test_at_the_end_the_disk_is_asked_once_more(outbox: Outbox) -> None:
    outbox.spool.full = True
    outbox.ship(0, 1)
    outbox.deliver(2)
    outbox.spool.full = False
    assert outbox.shipper.finish("run", facts()) == 3
    assert outbox.files[:3] == ["00000000.frame", "00000001.frame", "00000002.frame"]


def test_what_the_disk_does_not_take_in_the_end_is_said_and_counted_as_dropped(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.ship(0)
    outbox.spool.full = True
    outbox.ship(1, 2)
    assert outbox.shipper.finish("run", facts()) == 3
    assert "2 batches (2 records) of run run are lost" in caplog.text
    told = msgspec.json.decode((outbox.spool.folder / WORKER_FILE).read_bytes(), type=WorkerFacts)
    assert told.dropped == 2


def test_a_last_word_that_the_disk_does_not_take_is_said(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    outbox.ship(0)
    monkeypatch.setattr(outbox.spool, "write_facts", refuse)
    assert outbox.shipper.finish("run", facts()) == 1
    folder = outbox.spool.folder
    assert f"{WORKER_FILE} could not be written into {folder}: No space left on device" in caplog.text


def test_after_the_end_nothing_of_the_run_is_sent_or_written(outbox: Outbox) -> None:
    outbox.ship(0)
    outbox.shipper.finish("run", facts())
    outbox.pass_time(60.0)
    assert outbox.wire.sent == [0]
    assert outbox.shipper.finish("run") == 0


def test_a_run_that_is_over_at_the_master_is_kept_on_disk_and_sent_no_more(outbox: Outbox) -> None:
    outbox.ship(0)
    outbox.shipper.over("run")
    outbox.ship(1)
    outbox.pass_time(60.0)
    assert outbox.wire.sent == [0]
    assert outbox.files == ["00000000.frame", "00000001.frame", MANIFEST_FILE]
    with gevent.Timeout(120):  # at once: nothing more can come
        assert outbox.shipper.flush(600.0) is False
    assert outbox.shipper.finish("run", facts()) == 2


def test_runs_follow_each_other_and_do_not_touch(outbox: Outbox, tmp_path: Path) -> None:
    outbox.ship(0)
    other = Spool(tmp_path / "spool2" / "w1", tmp_path)
    outbox.shipper.begin("run 2", other)
    outbox.deliver(0, run="run 2")
    outbox.shipper.step()
    outbox.acknowledge(0)
    assert outbox.shipper.unsent == 1
    assert outbox.shipper.finish("run", facts()) == 0
    assert other.read(0) == frame(0)
    outbox.acknowledge(0, run="run 2")
    assert outbox.shipper.finish("run 2") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_ends_makes_room_on_the_way_for_what_waits_of_the_next(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, memory_bytes=100_000)
    outbox.ship(*range(WINDOW_BATCHES + 2))
    outbox.deliver(0, run="run 2")
    outbox.shipper.step()
    assert len(outbox.wire.messages) == WINDOW_BATCHES
    outbox.shipper.finish("run", facts())
    outbox.shipper.step()
    assert [message.run for message in outbox.wire.messages[WINDOW_BATCHES:]] == ["run 2"]


def test_a_step_without_work_for_the_disk_enters_no_thread(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.ship(0)
    monkeypatch.setattr(shipping, "off_the_hub", lambda *_: pytest.fail("a thread"))
    assert outbox.shipper.step() == RESEND_AFTER_S


# -- with a greenlet of its own --------------------------------------------------------------


def test_flushing_nothing_does_not_wait() -> None:
    assert Shipper(Wire()).flush(0.0) is True


def test_flushing_ends_with_the_last_acknowledgement(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, memory_bytes=100_000)
    all_sent = Event()
    outbox.wire.look = lambda message: all_sent.set() if message.seq == 19 else None
    shipping = gevent.spawn(outbox.shipper.ship_forever)
    outbox.deliver(*range(20))
    flushing = gevent.spawn(outbox.shipper.flush, 20.0)
    for seq in range(WINDOW_BATCHES, 20):
        outbox.acknowledge(seq - WINDOW_BATCHES)
    assert all_sent.wait(5.0)
    outbox.acknowledge(*range(20 - WINDOW_BATCHES, 19))
    gevent.idle()
    assert not flushing.ready()
    outbox.acknowledge(19)
    assert flushing.get(timeout=120) is True
    shipping.kill()


def test_flushing_gives_up_in_time_and_keeps_what_is_unsent(outbox: Outbox) -> None:
    outbox.ship(0)
    assert outbox.shipper.flush(0.01) is False
    assert outbox.shipper.unsent == 1


def test_flushing_ends_a_silence(outbox: Outbox) -> None:
    """Its cause, the master's word, may be the first that is heard again."""
    outbox.ship(0, 1, 2)
    outbox.pass_time(RESEND_AFTER_S)
    outbox.pass_time(1.0)
    outbox.shipper.flush(0.0)
    outbox.shipper.step()
    assert outbox.wire.sent == [0, 1, 2, 0, 1, 2]


def test_who_hears_nothing_sends_everything_once_and_waits_for_no_word(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, memory_bytes=100_000)
    shipping = gevent.spawn(outbox.shipper.ship_forever)
    outbox.deliver(*range(20))
    with gevent.Timeout(120):
        assert outbox.shipper.flush(600.0, hears=False) is False
    assert outbox.wire.sent == list(range(20))
    shipping.kill()
    outbox.shipper.begin("run 2", None)  # a run has a master, who is heard: its window is full
    outbox.deliver(0, run="run 2")
    outbox.shipper.step()
    assert len(outbox.wire.sent) == 20


def test_a_greenlet_that_ships_wakes_by_itself_to_send_again(tmp_path: Path) -> None:
    wire, again = Wire(), Event()
    wire.look = lambda message: again.set() if wire.messages else None
    shipper = Shipper(wire, clock=itertools.count(0.0, 2.4).__next__)
    shipping = gevent.spawn(shipper.ship_forever)
    shipper.deliver(FrameHeader("run", "w1", 0, 1), b"frame")
    assert again.wait(20.0)
    shipping.kill()


# -- whatever happens ------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("deliver"), st.integers(1, 300)),
    st.tuples(st.sampled_from(["acknowledge", "acknowledge", "lose"]), st.integers(0, 30)),
    st.tuples(st.sampled_from(["step", "step", "disk full", "disk fine", "cut", "whole"]), st.just(0)),
    st.tuples(st.just("time"), st.integers(1, 30)),
)


@given(steps=st.lists(STEPS, max_size=80), over=st.booleans())
def test_whatever_happens_each_batch_is_acknowledged_or_on_disk_or_counted_and_memory_is_bounded(
    steps: list[tuple[str, int]], over: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("shipping")
    outbox = Outbox(root, memory_bytes=1000)
    sizes: list[int] = []
    acknowledged: set[int] = set()

    def deliver(size: int) -> None:
        outbox.deliver(len(sizes), size=size)
        sizes.append(size)

    def acknowledge(place: int) -> None:
        if outbox.wire.messages:
            message = outbox.wire.messages.pop(place % len(outbox.wire.messages))
            assert message.frame == frame(message.seq, sizes[message.seq])
            outbox.acknowledge(message.seq)
            acknowledged.add(message.seq)

    def lose(place: int) -> None:
        if outbox.wire.messages:
            del outbox.wire.messages[place % len(outbox.wire.messages)]

    act: dict[str, Callable[[int], object]] = {
        "deliver": deliver,
        "acknowledge": acknowledge,
        "lose": lose,
        "step": lambda _: outbox.shipper.step(),
        "disk full": lambda _: setattr(outbox.spool, "full", True),
        "disk fine": lambda _: setattr(outbox.spool, "full", False),
        "cut": lambda _: setattr(outbox.wire, "cut", True),
        "whole": lambda _: setattr(outbox.wire, "cut", False),
        "time": outbox.pass_time,
    }
    for step, number in steps:
        act[step](number)
        assert outbox.shipper.memory_bytes <= 1000
        assert len(sizes) == outbox.shipper.unsent + len(acknowledged) + outbox.shipper.dropped
    if over:
        outbox.shipper.over("run")
    dropped = outbox.shipper.dropped
    left = outbox.shipper.finish("run", facts())
    kept = {int(path.stem): path.read_bytes() for path in root.rglob("*.frame")}
    assert left == len(sizes) - len(acknowledged) - dropped
    assert not acknowledged & kept.keys()
    assert all(data == frame(seq, sizes[seq]) for seq, data in kept.items())
    assert len(kept) == left or outbox.spool.full
    if left and kept:
        told = msgspec.json.decode((outbox.spool.folder / WORKER_FILE).read_bytes(), type=WorkerFacts)
        assert len(sizes) == len(acknowledged) + len(kept) + told.dropped
    if not left:
        assert list(root.iterdir()) == []


@settings(max_examples=50)
@given(losses=st.lists(st.sampled_from(["arrives", "lost", "ack lost"]), max_size=60))
def test_whatever_gets_lost_everything_is_acknowledged_in_the_end(
    losses: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    outbox = Outbox(tmp_path_factory.mktemp("shipping"), memory_bytes=100_000)
    fates = iter(losses)
    arrived: set[int] = set()

    def look(message: BatchMessage) -> None:
        fate = next(fates, "arrives")
        if fate != "lost":
            arrived.add(message.seq)
        if fate == "arrives":
            outbox.acknowledge(message.seq)

    outbox.wire.look = look
    outbox.ship(*range(20))
    while (due_in_s := outbox.shipper.step()) is not None:
        outbox.pass_time(due_in_s)
    assert arrived == set(range(20))
    assert outbox.shipper.unsent == 0
    assert len(outbox.wire.messages) <= 20 + len(losses) + WINDOW_BATCHES
