"""Fuzzers of what workers and masters say to each other, Locust's own messages included."""

import csv
import io
import math
from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
from fuzz_target import Target, check_line
from locust.event import Events
from locust.rpc import Message
from locust.stats import (
    RequestStats,
    StatsCSV,
    get_error_report_summary,
    get_percentile_stats_summary,
    get_stats_summary,
    setup_distributed_stats_event_listeners,
)
from prometheus_client import generate_latest

from llm_locust.core.manifest import ClockFacts, Manifest, NodeHealth
from llm_locust.core.record import OtherRequests
from llm_locust.live.counts import SCALARS, LiveKey
from llm_locust.live.prometheus import registry
from llm_locust.live.series import Charts
from llm_locust.live.snapshot import snapshot
from llm_locust.live.state import LiveRun
from llm_locust.live.store import LiveStore
from llm_locust.live.worker_report import LiveReport, LiveSlice, PackedCounts, ReportError, encode_report
from llm_locust.store import FrameHeader, encode_frame, frame_header
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.collector import Inbox
from llm_locust.swarm.channel.locust_messages import KINDS as LOCUST_KINDS, Reported, check, unpacked
from llm_locust.swarm.channel.messages import CountsMessage, MessageError, plain, read
from llm_locust.swarm.run.roster import Roster

#: Every message of this project's own, and an example of it.
EXAMPLES: dict[str, msgspec.Struct] = {
    messages.HELLO: messages.HelloMessage(protocol=1, version="1.0"),
    messages.BATCH: messages.BatchMessage(
        run="r", seq=0, rows=1, finished=1, in_flight=0, frame=encode_frame(FrameHeader("r", "w", 0, 1), b"p")
    ),
    messages.ACK: messages.AckMessage(run="r", seq=0),
    messages.FLUSH: messages.RunMessage(run="r"),
    messages.PING: messages.PingMessage(number=1, sent_ns=1),
    messages.PONG: messages.PongMessage(number=1, sent_ns=1, received_ns=2, answered_ns=3),
    messages.RATE: messages.RateMessage(run="r", at_ns=5, rate=2.5),
    messages.STAGE: messages.StageMessage(
        run="r", stage=1, step="load", at_ns=5, measured_ns=6, rate=2.5, drain_s=60.0
    ),
    messages.STAGED: messages.StagedMessage(run="r", stage=1, step="drain", cut=1, unsent=2),
    messages.END: messages.EndMessage(run="r", code=3),
    messages.REFUSED: messages.RefusedMessage(run="r", reason="no"),
    messages.DONE: CountsMessage(
        run="r",
        number=1,
        finished=3,
        in_flight=0,
        load=messages.LoadCounts(ok=3, unsent_by_class={"a": 1}, drained_ns=5),
        clock=msgspec.convert(
            {"offset_ns": 1, "error_ns": 1, "least_offset_ns": 0, "most_offset_ns": 2, "exchanges": 3},
            ClockFacts,
        ),
        health=msgspec.convert({"rss_mib": [[0.0, 1.0]], "cpu_percent_max": 5.0}, NodeHealth),
        others=[OtherRequests(method="GET", name="/", requests=2, failures=1, times=[(300, 1)])],
    ),
    messages.RESET: messages.ResetMessage(run="r", epoch=1),
    messages.LIVE: messages.LiveMessage(report=b"r"),
    messages.STRANGER: messages.StrangerMessage(takes=["r"]),
}
assert {type(m) for m in EXAMPLES.values()} == {
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__.endswith("Message")
}, "a message without an example"

_ENTRY = {
    "name": "chat",
    "method": "POST",
    "last_request_timestamp": 1.8e9,
    "start_time": 1.8e9,
    "num_requests": 2,
    "num_none_requests": 0,
    "num_failures": 1,
    "total_response_time": 30.0,
    "max_response_time": 20.0,
    "min_response_time": 10.0,
    "total_content_length": 5,
    "response_times": {10: 1, 20: 1},
    "num_reqs_per_sec": {1800000000: 2},
    "num_fail_per_sec": {},
}
_ERROR = {
    "method": "POST",
    "name": "chat",
    "error": "e",
    "occurrences": 1,
    "first_seen": 1.8e9,
    "last_seen": 1.8e9,
}
_LOCUST: dict[str, Any] = {
    "locustfile": {"version": "2.47.0"},
    "heartbeat": {"state": "running", "current_cpu_usage": 5.0, "current_memory_usage": 5},
    "spawning_complete": {"user_classes_count": {"U": 1}, "user_count": 1},
    "logs": {"worker_id": "w", "logs": ["line"]},
    "exception": {"msg": "m", "traceback": "t"},
    "stats": {
        "stats": [_ENTRY],
        "stats_total": _ENTRY,
        "errors": {"k": _ERROR},
        "user_classes_count": {"U": 1},
        "user_count": 1,
        "llm": plain(EXAMPLES[messages.DONE]),
    },
    "client_ready": "2.47.0",
    **dict.fromkeys(("client_stopped", "spawning", "quit")),
}
assert _LOCUST.keys() == LOCUST_KINDS, "a message of Locust's without an example"

_REPORT = encode_report(
    LiveReport(
        "r",
        0,
        0,
        1,
        [LiveSlice(0.5, [PackedCounts(LiveKey("chat", "", ""), [1] * len(SCALARS), [5, 7], [1, 2])])],
    )
)


def check_own(data: object, kind: type[msgspec.Struct]) -> None:
    """Data is a message of this kind that can be sent on, or a MessageError without its content."""
    try:
        found = read(data, kind)
    except MessageError as e:
        check_line(e)
        return
    assert read(plain(found), kind) == found
    for value in _numbers(plain(found)):
        assert math.isfinite(value)
        assert abs(value) < 2**63
    if isinstance(found, CountsMessage):
        check_counts(found)
    if isinstance(found, messages.BatchMessage):
        frame_header(found.frame)


def _numbers(value: object) -> Iterable[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield value


def check_counts(counts: CountsMessage) -> None:
    """A worker's counts can be kept, awaited, and stand in a manifest that can be read again."""
    roster = Roster("r", ["w"], lambda: 1)
    roster.heard("w", counts)
    roster.done("w", counts, stopped=True)
    roster.awaited(lambda _: True)
    facts = roster.facts({"w": Inbox()})
    manifest = Manifest(id="r", name="r", started_ns=0, workers=facts)
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest).workers == facts


def check_locust(message: Message) -> None:
    """Of a message that is let through to Locust, its tables, files and pages can be made."""
    try:
        check(message)
    except MessageError as e:
        check_line(e)
        return
    if message.type != "stats":
        return
    events, stats = Events(), RequestStats()
    setup_distributed_stats_event_listeners(events, stats)
    reported = Reported(SimpleNamespace(stats=stats, exceptions={}))  # type: ignore[arg-type]
    reported.bound_stats(message.data)
    for _ in range(2):
        for handler in events.worker_report._handlers:
            handler(client_id="w", data=message.data)
    reported.after()
    for current in (True, False):
        get_stats_summary(stats, current)
    get_percentile_stats_summary(stats)
    get_error_report_summary(stats)
    for entry in (*stats.entries.values(), stats.total):
        entry.to_dict()
        entry.get_current_response_time_percentile(0.95)
    tables = StatsCSV(SimpleNamespace(stats=stats, runner=None), [0.5, 0.99])  # type: ignore[arg-type]
    tables.requests_csv(csv.writer(io.StringIO()))
    tables.failures_csv(csv.writer(io.StringIO()))


def check_report(data: bytes) -> None:
    """Bytes are a live report, of which every table and page can be made, or a ReportError."""
    store = LiveStore(lambda: 1000.0)
    store.begin(LiveRun(id="r"))
    with suppress(ReportError):
        store.take("w", data)
    assert store.total.ended >= 0
    assert store.missed >= 0
    for seconds in (None, 10.0):
        snapshot(store, seconds)
    Charts().series(store, "5m")
    generate_latest(registry(store))


def _messages(case: bytes) -> None:
    check_report(case)
    try:
        message = unpacked(case)
    except MessageError as e:
        check_line(e)
        return
    check_locust(message)
    for kind in {type(example) for example in EXAMPLES.values()}:
        check_own(message.data, kind)


def _packed(kind: str, data: object) -> bytes:
    packed: bytes = msgpack.dumps((kind, data, "w"))
    return packed


MESSAGES = Target(
    "messages",
    _messages,
    (
        *(
            bytes([byte])
            for byte in (0x80, 0x81, 0x90, 0x91, 0x93, 0xA0, 0xA1, 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC7)
        ),
        *(
            b"\xcb\x7f\xf8" + bytes(6),
            b"\xcb\x7f\xf0" + bytes(6),
            b"\xcb\xff\xf0" + bytes(6),
            b"\xcb\x80" + bytes(7),
        ),
        *(
            b"\xcf" + b"\xff" * 8,
            b"\xd3\x80" + bytes(7),
            b"\xd3" + b"\xff" * 8,
            b"\xce\xff\xff\xff\xff",
            b"\xff",
            b"\x7f",
        ),
        *(
            b"\xdf\xff\xff\xff\xff",
            b"\xdd\xff\xff\xff\xff",
            b"\xdb\xff\xff\xff\xff",
            b"\xde\x00\x01",
            b"\xdc\x00\x02",
        ),
        *(b"\xcb\x43\x40" + bytes(6), b"\xcb\x7f\xe1\xcc\xf3\x85\xeb\xc8\xa0", b"\xcf\x00\x20" + bytes(6)),
        *(
            msgpack.dumps(name)
            for name in (*_LOCUST, *EXAMPLES, *_ENTRY, *_LOCUST["stats"], "__datetime__", "as_str")
        ),
        *(
            msgpack.dumps(name)
            for name in ("run", "health", "rss_mib", "load", "clock", "w", "\ud7ff", "\x1b[2J")
        ),
    ),
    (
        *(_packed(kind, data) for kind, data in _LOCUST.items()),
        *(_packed(kind, plain(example)) for kind, example in EXAMPLES.items()),
        _REPORT,
        _packed("x", {"__datetime__": True, "as_str": "20261122T07:00:00.0"}),
    ),
)
