"""A batch is kept until it is acknowledged, and sent again until then."""

import gevent
import pytest

from llm_locust.store import FrameHeader
from llm_locust.swarm.messages import BatchMessage
from llm_locust.swarm.shipping import Shipper


class Wire:
    """Takes messages; while it is cut, sending raises."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.cut = False

    def __call__(self, message: BatchMessage) -> None:
        if self.cut:
            raise ConnectionError("no master")
        self.sent.append((message["run"], message["seq"]))


@pytest.fixture
def wire() -> Wire:
    return Wire()


def deliver(shipper: Shipper, seq: int, run: str = "run", rows: int = 1) -> None:
    shipper.deliver(FrameHeader(run, "w1", seq, rows), b"frame")


def test_a_batch_is_sent_once_while_its_acknowledgement_is_not_overdue(wire: Wire) -> None:
    shipper = Shipper(wire)
    deliver(shipper, 0)
    shipper.resend_overdue()
    assert wire.sent == [("run", 0)]
    assert shipper.unsent == 1


def test_a_batch_without_an_acknowledgement_is_sent_again_and_one_with_it_is_not(wire: Wire) -> None:
    shipper = Shipper(wire, resend_after_s=0)
    deliver(shipper, 0)
    deliver(shipper, 1)
    shipper.acknowledged("run", 0)
    shipper.resend_overdue()
    assert wire.sent == [("run", 0), ("run", 1), ("run", 1)]
    assert shipper.unsent == 1


def test_a_batch_that_could_not_be_sent_is_kept_and_sent_when_the_wire_is_whole(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    shipper = Shipper(wire, resend_after_s=0)
    wire.cut = True
    deliver(shipper, 0)
    assert shipper.unsent == 1
    assert "batch 0 could not be sent, will be sent again: no master" in caplog.text
    wire.cut = False
    shipper.resend_overdue()
    assert wire.sent == [("run", 0)]


def test_an_acknowledgement_that_comes_twice_or_of_another_run_does_nothing(wire: Wire) -> None:
    shipper = Shipper(wire)
    deliver(shipper, 0)
    shipper.acknowledged("another", 0)
    assert shipper.unsent == 1
    shipper.acknowledged("run", 0)
    shipper.acknowledged("run", 0)
    assert shipper.unsent == 0


def test_flushing_ends_with_the_last_acknowledgement(wire: Wire) -> None:
    shipper = Shipper(wire)
    deliver(shipper, 0)
    deliver(shipper, 1)
    flushing = gevent.spawn(shipper.flush, 20.0)
    gevent.idle()
    shipper.acknowledged("run", 1)
    gevent.idle()
    assert not flushing.ready()
    shipper.acknowledged("run", 0)
    assert flushing.get(timeout=5) is True


def test_flushing_nothing_does_not_wait() -> None:
    assert Shipper(Wire()).flush(0.0) is True


def test_flushing_gives_up_in_time_and_keeps_what_is_unsent(wire: Wire) -> None:
    shipper = Shipper(wire, resend_after_s=0.01)
    deliver(shipper, 0)
    assert shipper.flush(0.05) is False
    assert shipper.unsent == 1
    assert len(wire.sent) > 1, "flushing sends again what is overdue"


def test_a_run_that_nobody_takes_any_more_is_forgotten_and_no_other(wire: Wire) -> None:
    shipper = Shipper(wire)
    deliver(shipper, 0, "old", rows=3)
    deliver(shipper, 1, "old", rows=4)
    deliver(shipper, 0, "new")
    assert shipper.abandon("old") == 7
    assert shipper.unsent == 1
    assert shipper.abandon("new") == 1
    assert shipper.flush(0.0) is True
