"""How much is on its way, and when which of it is sent again."""

from llm_locust.store import FrameHeader
from llm_locust.swarm.delivery.shipping import WINDOW_BATCHES, WINDOW_BYTES, SendWindow
from llm_locust.swarm.delivery.unacked import UnackedBatch


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
