"""Messages of a hostile, broken or different worker, and of one without the run's secret."""

import math
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest
import zmq.green as zmq
from hypothesis import given, strategies as st
from record_strategies import record
from warm_process import warm_code

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.live.counts import LiveKey
from llm_locust.live.state import LiveRun
from llm_locust.live.store import LiveStore
from llm_locust.live.worker_report import LiveReport, LiveSlice, PackedCounts, ReportError, decode_report
from llm_locust.options.settings import UsageError
from llm_locust.store import FrameHeader, FrameLog, encode_frame, frame_header
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.collector import Collector, Inbox
from llm_locust.swarm.channel.messages import (
    MOST_SENDERS,
    OTHERS,
    AckMessage,
    BatchMessage,
    CountsMessage,
    DroppedMessages,
    HelloMessage,
    MessageError,
    PingMessage,
    PongMessage,
    RateMessage,
    RefusedMessage,
    RunMessage,
    plain,
    read,
    version_conflict,
)
from llm_locust.swarm.channel.trust import derive_keys, secret_of
from llm_locust.swarm.process.event_loop import Supervised
from llm_locust.swarm.run.roster import MOST_FAULTS, Roster

# --- Messages of a hostile, broken or different worker: what does not fit changes nothing, and is named


KINDS: list[type[msgspec.Struct]] = [
    *(AckMessage, BatchMessage, CountsMessage, HelloMessage, PingMessage, PongMessage, RateMessage),
    *(RefusedMessage, RunMessage),
]

BATCH: dict[str, Any] = {"run": "r", "seq": 0, "rows": 1, "finished": 1, "in_flight": 0, "frame": b"f"}
COUNTS: dict[str, Any] = {"run": "r", "number": 1, "finished": 3, "in_flight": 0, "load": {"ok": 3}}


def counts(finished: int, number: int = 0, in_flight: int = 0) -> CountsMessage:
    return CountsMessage(run="r", number=number, finished=finished, in_flight=in_flight)


@pytest.mark.parametrize(
    "attack",
    [
        {"seq": -1},
        {"seq": 2**70},
        {"seq": "0"},
        {"seq": None},
        {"seq": 1.5},
        {"seq": True},
        {"rows": "x"},
        {"rows": 0},
        {"rows": -3},
        {"rows": 2**40},
        {"frame": "abc"},
        {"frame": b""},
        {"frame": [1, 2]},
        pytest.param({"frame": b"x" * (messages.MOST_FRAME_BYTES + 1)}, id="frame=too long"),
        {"run": ""},
        {"run": 7},
        {"run": "r" * 300},
        {"finished": -1},
        {"finished": 2**60},
        {"in_flight": "many"},
    ],
    ids=lambda attack: "{}={!r:.12}".format(*next(iter(attack.items()))),
)
def test_a_batch_that_does_not_fit_is_no_batch(attack: dict[str, Any]) -> None:
    assert read(BATCH, BatchMessage).rows == 1
    with pytest.raises(MessageError):
        read(BATCH | attack, BatchMessage)


@pytest.mark.parametrize(
    "data", [None, 3, "done", b"\xff", [], [BATCH], {}, {"run": "r"}, {1: 2}, {"run": {}}]
)
@pytest.mark.parametrize("kind", [BatchMessage, CountsMessage, PingMessage, RateMessage])
def test_what_is_no_such_message_at_all_is_refused(kind: type[msgspec.Struct], data: object) -> None:
    with pytest.raises(MessageError):
        read(data, kind)


@pytest.mark.parametrize(
    "attack",
    [
        {"finished": -1},
        {"finished": 1e9},
        {"load": {"ok": -1}},
        {"load": "none"},
        {"load": {"spent": "yes"}},
        {"health": {"rss_mib": [[0.0, 1.0]] * 100_000}},
        {"health": {"rss_mib": [[1.0, 2.0, 3.0]]}},
        {"health": {"hub_lag_ms_p99": "slow"}},
        {"health": []},
        {"clock": {"offset_ns": 1}},
        {"clock": dict.fromkeys(("offset_ns", "error_ns", "least_offset_ns", "most_offset_ns"), 10**30)},
        {
            "clock": {
                **dict.fromkeys(("offset_ns", "error_ns", "least_offset_ns", "most_offset_ns"), 10**30),
                "exchanges": 1,
            }
        },
    ],
    ids=repr,
)
def test_counts_that_do_not_fit_are_none(attack: dict[str, Any]) -> None:
    assert read(COUNTS, CountsMessage).load.ok == 3
    with pytest.raises(MessageError):
        read(COUNTS | attack, CountsMessage)


def test_the_counts_of_a_newer_minor_version_are_read_field_by_field(tmp_path: Path) -> None:
    newer = COUNTS | {"health": {"cpu_percent_max": 3.0, "gpu_percent": 9.0}, "mood": "fine"}
    older = {key: COUNTS[key] for key in ("run", "finished", "in_flight")}
    assert read(newer, CountsMessage).health.cpu_percent_max == 3.0
    assert read(older, CountsMessage).load.ok == 0
    roster = Roster("r", ["w"], lambda: 1)
    roster.heard("w", read(newer, CountsMessage))
    facts = roster.facts({})
    manifest = Manifest(id="r", name="r", started_ns=0, workers=facts)
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest).workers == facts


def test_a_refusal_says_where_and_not_what() -> None:
    with pytest.raises(MessageError) as caught:
        read(BATCH | {"rows": "sk-secret"}, BatchMessage)
    assert "$.rows" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(KINDS), anything)
def test_no_data_at_all_raises_anything_but_a_message_error(kind: type[msgspec.Struct], data: object) -> None:
    with suppress(MessageError):
        read(data, kind)


@given(st.data(), st.sampled_from(KINDS))
def test_one_field_with_anything_in_it_gives_a_message_within_the_bounds_or_none(
    data: st.DataObject, kind: type[msgspec.Struct]
) -> None:
    valid = {
        **BATCH,
        **COUNTS,
        "number": 1,
        "sent_ns": 1,
        "received_ns": 1,
        "answered_ns": 1,
        "at_ns": 1,
        "rate": 1.0,
        "reason": "x",
        "protocol": 1,
        "version": "1",
    }
    field = data.draw(st.sampled_from([f.name for f in msgspec.structs.fields(kind)]))
    try:
        taken = read(valid | {field: data.draw(anything)}, kind)
    except MessageError:
        return
    assert read(plain(taken), kind) == taken
    for f in msgspec.structs.fields(kind):
        value = getattr(taken, f.name)
        assert not isinstance(value, int) or abs(value) < 2**63
        assert not isinstance(value, str) or len(value) <= 4096


def test_deeply_nested_data_is_refused() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(MessageError):
        read(COUNTS | {"health": {"rss_mib": nested}}, CountsMessage)


@pytest.mark.parametrize(
    "frame",
    [
        b"abc",
        b"LLB1",
        b"LLB1" + b"\xff" * 12,
        encode_frame(FrameHeader("r", "w", 0, 1), b"payload")[:-1],
        encode_frame(FrameHeader("r", "w", 0, 1), b"payload") + b"x",
        encode_frame(FrameHeader("r", "w", 0, 1), b"payload")[:-1] + b"X",
    ],
)
def test_bytes_that_are_not_one_whole_frame_have_no_header(frame: bytes) -> None:
    assert frame_header(frame) is None


@given(st.binary(max_size=64))
def test_no_bytes_raise(data: bytes) -> None:
    assert frame_header(data) is None
    assert frame_header(b"LLB1" + data) is None


def test_a_whole_frame_has_its_header() -> None:
    header = FrameHeader("r", "w", 3, 1, finished=7)
    payload = RecordBatch.from_records([record(0)], "w").to_bytes()
    assert frame_header(encode_frame(header, payload)) == header


# -- counts that contradict each other ----------------------------------------------------


def complete(roster: Roster, rows: int) -> bool:
    inbox = Inbox()
    inbox.rows = rows
    facts = roster.facts({"w": inbox})
    return Manifest(id="r", name="r", started_ns=0, workers=facts).complete


@pytest.fixture
def roster() -> Roster:
    return Roster("r", ["w"], lambda: 1)


def test_a_run_whose_counts_agree_is_complete(roster: Roster) -> None:
    roster.heard("w", counts(3, number=1))
    roster.done("w", counts(10, number=2), stopped=True)
    roster.heard("w", counts(10, number=3))  # reports go on until the process ends
    roster.done("w", counts(10, number=2), stopped=True)  # asked again, it says the same
    assert complete(roster, rows=10)


def test_an_older_report_behind_a_newer_one_is_no_contradiction(roster: Roster) -> None:
    roster.heard("w", counts(9, number=2))
    roster.heard("w", counts(3, number=1))
    roster.done("w", counts(10, number=3), stopped=True)
    assert complete(roster, rows=10)


def test_an_early_done_with_fewer_requests_than_were_reported_is_not_believed(roster: Roster) -> None:
    roster.heard("w", counts(10, number=5))
    roster.done("w", counts(4), stopped=False)
    assert not complete(roster, rows=4)
    assert not complete(roster, rows=10)


def test_after_an_early_done_the_worker_is_awaited_again_once_it_says_more(roster: Roster) -> None:
    roster.done("w", counts(4, number=1), stopped=False)
    assert roster.awaited(lambda _: True) == []
    roster.heard("w", counts(9, number=2))
    assert roster.awaited(lambda _: True) == ["w"]
    roster.done("w", counts(9, number=3), stopped=True)
    assert not complete(roster, rows=4)


def test_more_records_than_the_last_word_announced_are_a_contradiction(roster: Roster) -> None:
    roster.done("w", counts(4, number=1), stopped=True)
    assert not complete(roster, rows=5)


def test_a_batch_that_could_not_be_taken_makes_the_run_incomplete(roster: Roster) -> None:
    roster.done("w", counts(4, number=1), stopped=True)
    roster.fault("w", "a batch could not be taken: batch 3 is not a whole frame")
    assert not complete(roster, rows=4)


def test_the_named_faults_are_bounded(roster: Roster) -> None:
    for n in range(100):
        roster.fault("w", f"fault {n}")
        roster.fault("nobody", f"fault {n}")
    (facts,) = roster.facts({})
    assert len(facts.faults) == MOST_FAULTS


# -- the master's writer and loops ---------------------------------------------------------


class OddLog(FrameLog):
    """Raises what no disk raises for some frames."""

    def append(self, *frames: bytes) -> None:
        if b"odd" in frames:
            raise TypeError("a bytes-like object is required")
        super().append(*frames)


def test_the_writer_goes_on_after_a_batch_that_cannot_be_written(tmp_path: Path) -> None:
    acks: list[int] = []
    log = OddLog(tmp_path / "frames")
    collector = Collector(log, lambda _, seq: acks.append(seq))
    collector.accept("w", 0, 1, b"odd")
    assert collector.settle()
    collector.accept("w", 1, 1, encode_frame(FrameHeader("r", "w", 1, 1), b"payload"))
    assert collector.settle()
    assert acks == [1]
    collector.close()


def test_the_end_does_not_wait_for_ever_for_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    released = threading.Semaphore(0)

    class Stuck(FrameLog):
        def append(self, *frames: bytes) -> None:
            released.acquire()

    collector = Collector(Stuck(tmp_path / "frames"), lambda *_: None, settle_within_s=0.1)
    collector.accept("w", 0, 1, b"frame")
    assert not collector.settle()
    with pytest.raises(OSError, match="written nothing"):
        collector.close()
    released.release()


def test_a_loop_goes_on_after_any_exception_and_says_each_kind_once(caplog: pytest.LogCaptureFixture) -> None:
    errors = iter([OSError(24, "Too many open files"), ValueError("odd"), *[ValueError("odd")] * 50])
    loop = Supervised(lambda: (_ for _ in ()).throw(e) if (e := next(errors, None)) else None, "a loop", 0.0)
    loop()
    assert loop.failures == 52
    assert [r.getMessage()[:13] for r in caplog.records] == ["a loop failed"] * 2
    assert "Too many open files" in caplog.text


def test_killing_a_supervised_loop_ends_it() -> None:
    greenlet = gevent.spawn(Supervised(lambda: gevent.sleep(60), "a loop"))
    gevent.sleep(0)
    greenlet.kill(timeout=120.0)
    assert greenlet.dead


# -- what was dropped ------------------------------------------------------------------------


def test_dropped_messages_are_counted_and_their_log_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    dropped = DroppedMessages()
    for n in range(5_000):
        dropped.note(f"fake-{n % 500}\n[ERROR] forged", "llm_batch", "why")
    assert dropped.total == 5_000
    assert len(dropped.by_sender) == MOST_SENDERS + 1
    assert dropped.by_sender[OTHERS]["llm_batch"] == 5_000 - MOST_SENDERS * 10
    assert len(caplog.records) < 30
    assert all("\n" not in r.getMessage() for r in caplog.records)


def test_versions_that_understand_each_other_are_told_from_those_that_do_not() -> None:
    assert version_conflict(messages.PROTOCOL, "9.9.9", "worker w") is None
    line = version_conflict(messages.PROTOCOL + 1, "9.9.9", "worker w")
    assert line is not None
    assert "9.9.9" in line
    assert messages.PACKAGE in line
    assert "install one version" in line


# -- live reports ----------------------------------------------------------------------------


def live(**fields: Any) -> bytes:
    key = LiveKey("chat", "", "")
    packed = PackedCounts(key, fields.pop("scalars", []), fields.pop("steps", []), fields.pop("counts", []))
    slices = [LiveSlice(fields.pop("age_s", 0.5), [packed])]
    report = LiveReport(
        *{"run": "r", "epoch": 0, "seq": 0, "finished": 1, "slices": slices, **fields}.values()
    )
    return msgspec.msgpack.encode(report)


@pytest.mark.parametrize(
    "attack",
    [
        {"age_s": math.nan},
        {"age_s": math.inf},
        {"age_s": -1e300},
        {"seq": -1},
        {"seq": 2**60},
        {"epoch": -1},
        {"finished": -5},
        {"scalars": [-1]},
        {"scalars": [2**60]},
        {"scalars": [1] * 10_000},
        {"steps": [-1], "counts": [1]},
        {"steps": [1], "counts": [2**60]},
        {"slices": [LiveSlice(0.5, [])] * 10_000},
    ],
    ids=lambda attack: repr(attack)[:40],
)
def test_a_live_report_out_of_bounds_counts_nothing(attack: dict[str, Any]) -> None:
    store = LiveStore(lambda: 1000.0)
    store.begin(LiveRun(id="r"))
    with pytest.raises(ReportError):
        store.take("w", live(**attack))
    assert store.total.ended == 0
    assert store.missed == 0


@given(st.binary(max_size=200))
def test_bytes_that_are_no_live_report_raise_that_they_are_none(data: bytes) -> None:
    try:
        decode_report(data)
    except ReportError:
        return


# --- The run's secret: who does not know it takes no part, and what was sent can neither be read nor used


SECRET = b"sixteen bytes at least"


def test_a_secret_comes_from_the_environment_and_is_never_shown() -> None:
    assert secret_of("S", {"S": " 0123456789abcdef\n"}) == b"0123456789abcdef"
    for environ in ({}, {"S": ""}, {"S": "tooshortsecret"}):
        with pytest.raises(UsageError, match="swarm-secret-env") as caught:
            secret_of("S", environ)
        assert "tooshortsecret" not in str(caught.value)


def test_the_keys_are_the_secrets_alone_differ_in_their_roles_and_are_never_shown() -> None:
    keys = derive_keys(SECRET)
    assert keys == derive_keys(SECRET)
    other = derive_keys(SECRET + b"!")
    pairs = (keys.master, keys.worker, other.master, other.worker)
    every = [key for pair in pairs for key in (pair.public, pair.secret)]
    assert len(set(every)) == len(every)
    assert all(key.decode() not in repr(keys) for key in every)


def test_an_installation_without_curve_is_refused_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda _: False)
    with pytest.raises(UsageError, match="built here without CURVE; pip install") as caught:
        derive_keys(SECRET)
    assert "\n" not in str(caught.value)


#: Locust patches the process that imports it: what is about its channel has a process of its own.
PATCHED = """
import contextlib, sys
import pytest
with contextlib.redirect_stdout(sys.stderr):
    sys.exit(pytest.main(["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-Wignore", *sys.argv[1:]]))
"""


def test_both_ends_of_the_channel() -> None:
    warm_code(PATCHED, str(Path(__file__).parent / "channel_cases.py"))
