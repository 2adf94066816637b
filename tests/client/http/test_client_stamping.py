"""The source of stamps that a user chooses, and calls with each of them."""

from collections.abc import Iterator

import gevent
import numpy as np
import pytest
from calls import Caller, arrived_ns, caller
from capturing import captures, packet_stamps
from scripted import ScriptedServer, TlsFiles, stream_script

from llm_locust.client.http.stamping import Stamping
from llm_locust.client.packets.capture import Capture
from llm_locust.client.packets.ring import CaptureError
from llm_locust.core.record import Outcome
from llm_locust.core.run_facts import StampFacts

pytestmark = pytest.mark.usefixtures("kernel_stamping")


def refuse() -> Capture:
    raise CaptureError("packets cannot be captured: not permitted")


def test_packets_that_cannot_be_captured_are_refused_by_the_name_of_the_option() -> None:
    with pytest.raises(CaptureError, match="--stamps packet: packets cannot be captured: not permitted"):
        Stamping.chosen("packet", refuse)


@pytest.mark.parametrize("choice", ["auto", "read", "program"])
def test_no_other_choice_captures_anything(choice: str) -> None:
    stamping = Stamping.chosen(choice, refuse)
    assert stamping.capture is None
    assert stamping.facts() == StampFacts(source="program" if choice == "program" else "read")


def test_stamps_of_the_program_are_no_stamps_of_the_kernel(server: ScriptedServer) -> None:
    with caller(server.url, stamping=Stamping.chosen("program")) as ask:
        record = ask.ask(stream_script(tokens=3)).record
    assert (record.outcome, record.kernel_stamps, record.client_lag_ns) == (Outcome.OK, False, None)


@pytest.fixture
def by_packet() -> Iterator[Stamping]:
    with packet_stamps() as stamping:
        yield stamping
        facts = stamping.facts()
        assert (facts.source, facts.dropped, facts.unseen_reads) == ("packet", 0, 0)
        assert facts.packets > 0


def true_times(server: ScriptedServer, ask: Caller, calls: int) -> None:
    """Every event came after its writing, and its time is known exactly."""
    served = {r.header("X-Request-Id"): r for r in server.wait_ended(calls)}
    late_ns = []
    for answer in ask.answers:
        record = answer.record
        assert (record.outcome, record.kernel_stamps) == (Outcome.OK, True)
        assert record.early_ns is None
        late_ns.append(arrived_ns(record) - np.array(served[record.request_id].write_ns[1:-1]))
    assert (np.concatenate(late_ns) >= 0).all()


@captures
def test_calls_on_one_connection_one_after_another(server: ScriptedServer, by_packet: Stamping) -> None:
    with caller(server.url, stamping=by_packet) as ask:
        for _ in range(5):
            ask.ask(stream_script(ttft_ms=2, gap_ms=1, tokens=20))
        assert [a.record.reused for a in ask.answers] == [False] + [True] * 4
        true_times(server, ask, 5)


@captures
def test_calls_at_once(server: ScriptedServer, by_packet: Stamping) -> None:
    with caller(server.url, stamping=by_packet) as ask:
        jobs = [ask.spawn(stream_script(ttft_ms=20, gap_ms=2, tokens=30)) for _ in range(40)]
        gevent.joinall(jobs, timeout=120)
        true_times(server, ask, 40)


@captures
def test_calls_over_tls_have_the_times_of_the_packets_that_ended_their_records(
    tls_server: ScriptedServer, tls_files: TlsFiles, by_packet: Stamping
) -> None:
    with caller(tls_server.url, tls=tls_files.client_context(), stamping=by_packet) as ask:
        jobs = [ask.spawn(stream_script(ttft_ms=20, gap_ms=5, tokens=30)) for _ in range(8)]
        gevent.joinall(jobs, timeout=120)
        ask.ask(stream_script(ttft_ms=2, gap_ms=1, tokens=20))
        assert ask.answers[-1].record.reused
        true_times(tls_server, ask, 9)


@captures
def test_a_connection_that_is_refused_is_not_followed(by_packet: Stamping, server: ScriptedServer) -> None:
    with caller("http://127.0.0.1:9", stamping=by_packet) as ask:
        assert ask.ask(None).record.outcome is Outcome.CONNECT_ERROR
    assert by_packet.capture is not None
    assert not by_packet.capture._streams
    with caller(server.url, stamping=by_packet) as ask:
        ask.ask(stream_script(tokens=2))
