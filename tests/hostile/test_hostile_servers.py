"""No server holds a worker's event loop or fills its memory: each hostile answer is a record, soon.

The loop's hold is counted in CPU time of this thread between two looks of the loop: what else the machine
does is not in it.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import gevent
import pytest
from calls import GOOD, Caller, caller
from cases import CHUNKED, OK, SSE, STOP, TOKEN, Case, cases, framed, once, repeated
from holding import is_short
from scripted import Script, ScriptedServer, Step, chunk, scripted_server

from llm_locust.client.http.timers import Timeouts
from llm_locust.core.record import Outcome, RequestRecord

CASES = list(cases())

#: Bounds of each case, beside :func:`~holding.is_short`.
GROWTH_MIB, LASTS_S = 100, 15.0

#: A machine that is busy with something else makes even CPU time longer: a case that held the loop too long
#: is tried again.
TRIES = 5


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(slots=True)
class Seen:
    """What a case cost: the longest hold of the loop (CPU seconds), how far memory grew at its peak."""

    hold_s: float = 0.0
    growth_mib: float = 0.0
    lasted_s: float = 0.0


def memory_mib(name: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


@contextmanager
def watching() -> Iterator[Seen]:
    """Watches the loop and the memory while the block lasts."""
    seen, last_s, began_s = Seen(), time.thread_time(), time.monotonic()

    def look() -> None:
        nonlocal last_s
        now_s = time.thread_time()
        seen.hold_s, last_s = max(seen.hold_s, now_s - last_s), now_s

    CLEAR.write_text("5")  # the peak is counted from now on
    before = memory_mib("VmRSS")
    watcher = gevent.get_hub().loop.prepare()
    watcher.start(look)
    try:
        yield seen
    finally:
        look()
        watcher.stop()
        watcher.close()
        seen.growth_mib, seen.lasted_s = memory_mib("VmHWM") - before, time.monotonic() - began_s


@pytest.fixture(scope="module", autouse=True)
def collections_as_in_a_worker() -> Iterator[None]:
    """A full collection of all that the tests have imported takes longer than the bound."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)
    yield
    gc.unfreeze()
    gc.set_threshold(*usual)


@pytest.fixture(scope="module")
def hostile() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


def script_of(case: Case) -> Script:
    return [*(Step(send_b64=piece, repeat=count) for piece, count in case.parts), Step(close=True)]


def asking(url: str, max_answer_bytes: int = 64 << 20) -> AbstractContextManager[Caller]:
    bounds = Timeouts(first_s=10, gap_s=10, total_s=20)
    return caller(url, timeouts=bounds, max_answer_bytes=max_answer_bytes)


def test_the_table_is_broad_and_its_names_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 200


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_answer_is_a_record_and_holds_and_fills_nothing(
    case: Case, hostile: ScriptedServer
) -> None:
    for _ in range(TRIES):
        record, seen = asked(case, hostile)
        if held_briefly := is_short(seen.hold_s):
            break
    assert record.outcome in case.outcomes, record.error
    assert case.error in (record.error or "")
    assert len(record.arrivals_ns) >= case.tokens
    assert fit_to_be_kept(record)
    assert held_briefly, seen
    assert seen.growth_mib <= GROWTH_MIB
    assert seen.lasted_s <= LASTS_S


def asked(case: Case, server: ScriptedServer) -> tuple[RequestRecord, Seen]:
    with asking(server.url, case.max_answer_bytes) as ask:
        ask.ask([GOOD])
        script = script_of(case)
        with watching() as seen:
            record = ask.ask(script, streamed=case.streamed, endpoint=case.endpoint).record
    server.forget()
    return record, seen


def fit_to_be_kept(record: RequestRecord) -> bool:
    """No text of the record is longer than a name or an error may be, and all can be shown."""
    names = (record.model, record.replica, record.finish_reason)
    short = all(len(name) <= 200 for name in names if name is not None) and len(record.error or "") <= 300
    return short and all((text or "").isprintable() for text in (*names, record.error))


#: Where a server may drip, a byte at a time: what it has sent before, and what it drips.
DRIPPED: dict[str, tuple[bytes, bytes]] = {
    "the status line": (b"", b"HTTP/1.1 200 " + b"x" * 1_000),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    "a field": (OK, b"A: " + b"x" * 1_000),
    "a chunk's size": (OK + SSE + CHUNKED, b"0" * 1_000),
    "an event": (OK + SSE + CHUNKED, chunk(b":") * 200),
    "trailers": (OK + SSE + CHUNKED + chunk(TOKEN) + b"0\r\n", b"A: b\r\n" * 200),
}


@pytest.mark.parametrize("place", DRIPPED)
def test_a_server_that_drips_is_left_at_the_limit_of_the_whole_answer(
    place: str, hostile: ScriptedServer
) -> None:
    """No limit on silence ends it; it would go on for minutes."""
    before, dripped = DRIPPED[place]
    drips = [Step(at_ms=100 + 50 * n, send_b64=bytes([byte])) for n, byte in enumerate(dripped)]
    script = [Step(at_ms=0, send_b64=before)] * bool(before) + drips
    with caller(hostile.url, timeouts=Timeouts(first_s=60, gap_s=10, total_s=1)) as ask:
        record = ask.ask([*script, Step(stall=True)]).record
    hostile.forget()
    assert (record.outcome, "total" in (record.error or "")) == (Outcome.TIMEOUT, True), record.error


def test_many_hostile_answers_at_once_share_the_loop(hostile: ScriptedServer) -> None:
    body = framed([*repeated(b"data:x\n\n", 128 << 10)], "end")
    script = script_of(Case("", body, ()))
    patient = Timeouts(first_s=120, gap_s=120, total_s=120)
    with caller(hostile.url, timeouts=patient, max_answer_bytes=64 << 20) as ask:
        ask.ask([GOOD])
        calls = [ask.spawn(script) for _ in range(8)]
        with watching() as seen:
            gevent.joinall(calls)
    assert {answer.record.outcome for answer in ask.answers[1:]} == {Outcome.INVALID}
    assert is_short(seen.hold_s)


def test_long_answers_that_end_at_once_have_their_records_in_turns_of_their_own(
    hostile: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_locust.client.call.LONG_ANSWER_BYTES", 100)
    script = script_of(Case("", framed([(TOKEN, 9), *once(STOP)], "end"), ()))
    loop, turns = gevent.get_hub().loop, list[float]()
    with asking(hostile.url) as ask:
        monkeypatch.setattr(ask.client, "sink", lambda _: turns.append(loop.now()))
        calls = [ask.spawn(script) for _ in range(6)]
        while ask.client.in_flight < len(calls):
            gevent.sleep(0.001)
        time.sleep(0.3)  # the loop is held, and all are there at once
        gevent.joinall(calls)
    assert len(turns) == len({*turns}) == len(calls)


@pytest.mark.parametrize("name", ["r\x1b[31m\x07", "r" * 5_000, "\u202eevil", "<script>alert(1)</script>"])
def test_names_that_a_server_gives_are_cut_and_cleaned(name: str, hostile: ScriptedServer) -> None:
    said = name.encode("latin-1", "ignore").replace(b"\x07", b"")
    event = b'data: {"model":"%b","choices":[{"delta":{"content":"t"},"finish_reason":"%b"}]}\n\n'
    escaped = "".join(f"\\u{ord(c):04x}" for c in name).encode()
    head = OK + SSE + b"X-Served-By: " + said.replace(b"\x1b", b"") + b"\r\n"
    case = Case("", framed(once(event % (escaped, escaped), b"data: [DONE]\n\n"), "chunks", head), ())
    with asking(hostile.url) as ask:
        record = ask.ask(script_of(case)).record
    assert record.outcome is Outcome.OK
    assert fit_to_be_kept(record)
    assert record.model[:1] in ("r", "<", "\ufffd")


def test_a_process_keeps_a_thousand_names_of_a_kind(hostile: ScriptedServer) -> None:
    with asking(hostile.url) as ask:
        record = ask.ask([GOOD]).record
        names = ask.client.names
        kept = {names.bounded(_replica(record, f"r{n}")).replica for n in range(3_000)}
    assert len(kept) == 1_001
    assert "(other)" in kept


def _replica(record: RequestRecord, name: str) -> RequestRecord:
    return replace(record, replica=name)
