"""No server holds a worker's loop, fills its memory, or writes anything but text to a terminal."""

import gc
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gevent
import psutil
import pytest
from calls import GOOD, Caller, caller
from cases import CHUNKED, OK, SSE, STOP, TOKEN, Case, cases, framed, once, repeated
from holding import is_short
from hypothesis import given, strategies as st
from report_cases import records, write_run
from scripted import Script, ScriptedServer, Step, chunk, response_head, scripted_server, write
from warm_process import warm_code

from llm_locust.cli.main import main
from llm_locust.client.http.timers import Timeouts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.host import MARGIN, descriptors_for
from llm_locust.options.settings import UsageError
from llm_locust.report.output import one_line, shown_json
from llm_locust.swarm.process.exits import leave
from llm_locust.swarm.process.health import ensure_descriptors

# --- No server holds a worker's event loop or fills its memory: each hostile answer is a record, soon


CASES = list(cases())

#: Bounds of each case, beside :func:`~holding.is_short`.
GROWTH_MIB, LASTS_S = 100, 15.0

#: A machine that is busy with something else makes even CPU time longer: a case that held the loop too long
#: is tried again. Some take nine tenths of the bound, and several seconds outlast most of what else there is.
TRIES = 40


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


# --- The list of models is under the same bounds as the run's own answers, and fit to be shown


#: Locust patches the standard library when it is imported: in a process of its own.
CHECK = """
import sys
from locust.argument_parser import LocustArgumentParser
from llm_locust.options.table import add_arguments
from llm_locust.swarm.run.target_check import check_target
from llm_locust.options.settings import UsageError, parse_settings
parser = LocustArgumentParser()
add_arguments(parser)
for url in sys.argv[1:]:
    try:
        print(check_target(url, parse_settings(parser.parse_args([]))), end="\\0")
    except UsageError as e:
        print("refused:", e, end="\\0")
"""


#: What is around many times the same bytes, and why it is refused.
LISTS = [
    (b"", b"x", 8 << 20, b"", "cannot be reached: the answer has more than 4 MiB"),
    (b'{"data":[{"id":"a"}', b',{"id":"a"}', 200_000, b"]}", "does not list its models: give --model"),
    (b'{"data":[],"later":', b"[", 100_000, b"", "does not list its models: give --model"),
    (
        b'{"data":[{"id":"\\u001b[31m',
        b"m",
        5_000,
        b'"}]}',
        "has 1 models, give --model NAME: \ufffd[31m",
    ),
    (b'{"data":[{"id":"a', b"\\n", 1, b'b"}]}', "has 1 models, give --model NAME: a\ufffdb"),
]


def test_a_list_of_models_is_bounded_and_fit_to_be_shown() -> None:
    head = response_head(content_type="application/json", chunked=False)
    routes = {
        f"/{i}/v1/models": [
            write(0, head + begin),
            Step(send_b64=unit, repeat=count),
            write(None, end),
            Step(close=True),
        ]
        for i, (begin, unit, count, end, _) in enumerate(LISTS)
    }
    with scripted_server(routes=routes) as server:
        printed = warm_code(CHECK, *(f"{server.url}/{i}" for i in range(len(LISTS))))
    said = printed.removesuffix("\0").split("\0")
    assert len(said) == len(LISTS)
    for text, (*_, why) in zip(said, LISTS, strict=True):
        assert text.startswith("refused: ")
        assert why in text
        assert text.isprintable()
        assert len(text) < 500


# --- Names in a run's records never write anything but text to the terminal that a report is printed on


#: A title, colours by both kinds of escape, DEL, text from right to left, a separator of lines, a mark.
ODD_NAMES = "m\x1b]0;owned\x07\x1b[31m\x9b32m\x7f\r\u202ex\u2028y\u200fz\ufeff"


def odd_run(path: Path) -> Path:
    """As a worker that lies can make one."""
    made = [
        replace(
            each, name=ODD_NAMES, slo_class=ODD_NAMES, replica=ODD_NAMES, model=ODD_NAMES, error=ODD_NAMES
        )
        for each in records()
    ]
    odd = {"name": ODD_NAMES, "model": ODD_NAMES, "host": f"http://{ODD}"}
    return write_run(path, made, id=path.name, slo="ttft=100ms", gates="rps>1", **odd)


@pytest.mark.parametrize(
    "words",
    [
        *(["report", "--format", form] for form in ("console", "json", "md", "vllm", "junit")),
        ["report", "--format", "vllm", "--save-detailed"],
        *(["compare", "--format", form] for form in ("console", "json", "md")),
    ],
    ids=" ".join,
)
def test_no_format_prints_a_control_character(
    words: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(odd_run(tmp_path / name)) for name in ("a", "b")[: 1 + (words[0] == "compare")]]
    main([words[0], *runs, *words[1:]])
    said = capsys.readouterr()
    assert len(said.out) > 200
    for line in (said.out + said.err).split("\n"):
        assert line.isprintable(), [c for c in line if not c.isprintable()]


def test_json_read_back_has_the_names_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(odd_run(tmp_path / "a")), "--format", "json"])
    assert list(json.loads(capsys.readouterr().out)["by_name"]) == [ODD_NAMES]


@given(st.recursive(st.text() | st.none(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_printed_json_is_the_value(value: object) -> None:
    for indent in (None, 2):
        text = shown_json(value, indent=indent)
        assert json.loads(text) == value
    assert "\n" not in shown_json(value)


# --- What others say never writes anything but text to a terminal: in the log, in error lines


#: The title of a terminal's window, colours, a line that is written over, text from right to left.
ODD = "\x1b]0;owned\x07\x1b[31m\x9b32mmodel\r\u202ex\n2nd line"

LOG = """
import json, logging, sys
from llm_locust.swarm.process.log import (Redactor)

odd = json.loads(sys.argv[1])
line = logging.LogRecord("locust", logging.INFO, "", 1, "a table\\n\\tof %s", (odd,), None)
try:
    raise ValueError(odd)
except ValueError as e:
    trace = logging.LogRecord("x", logging.ERROR, "", 1, "odd", (), (type(e), e, e.__traceback__))
assert Redactor().filter(line) and Redactor().filter(trace)
print(json.dumps([line.getMessage(), trace.exc_text]))
"""

GREENLET = """
import gevent, json, sys
sys.stderr = sys.stdout
from llm_locust.swarm.process.log import (attach_redactor, redact)
from locust.env import Environment
from locust.log import setup_logging

def fail(text):
    raise ValueError(text)

setup_logging("INFO")
environment = Environment()
attach_redactor(environment)
redact(environment, ["sk-secret-of-the-run"])
text = json.loads(sys.argv[1]) + " sk-secret-of-the-run"
gevent.spawn(fail, text).join()
gevent.get_hub().threadpool.spawn(fail, text).wait()
gevent.get_hub().loop.run_callback(fail, text)
gevent.sleep(0.05)
"""


def test_what_is_said_of_a_greenlet_that_failed_is_clean_and_without_secrets() -> None:
    said = warm_code(GREENLET, json.dumps(ODD))
    assert said.count("/ERROR/llm_locust.swarm.process.log: ") == 3
    assert said.count("ValueError: \ufffd]0;owned") == 3
    assert "sk-secret-of-the-run" not in said
    assert all(line.replace("\t", "").isprintable() for line in said.split("\n"))


def test_a_command_that_refuses_says_so_in_one_clean_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!{sys.executable}\nimport sys\nsys.exit({ODD!r})\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "host: http://10.0.0.1:8000\nrun_time: 1m\n"
        "classes:\n  - {name: a, input_tokens: 10, output_tokens: 5}\n"
    )
    run = write_run(tmp_path / "run")
    for command in (
        ["k8s", "render", "--scenario", str(scenario), "--workers", "1"],
        ["upload", str(run), f"file://{ODD}"],
        ["sim", "--faults", ODD],
    ):
        assert main(command) == 2
        said = capfd.readouterr().err
        assert said.startswith(f"llm-locust {command[0]}")
        assert "owned" in said or "2nd line" in said
        assert said[:-1].isprintable(), said


def test_an_error_line_is_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda _: [])
    with pytest.raises(SystemExit):
        leave(UsageError(f"models: {ODD}"))
    printed = capsys.readouterr().err
    assert printed.endswith("2nd line\n")
    assert printed[:-1].isprintable()
    assert one_line(ODD).isprintable()


def test_lines_of_the_log_have_no_control_characters_and_tables_keep_their_lines() -> None:
    line, trace = json.loads(warm_code(LOG, json.dumps(ODD)))
    assert line.startswith("a table\n\tof \ufffd]0;owned")
    assert line.endswith("\n2nd line")
    assert trace.startswith("Traceback")
    for text in (line, trace):
        assert all(part.replace("\t", "").isprintable() for part in text.split("\n"))


# --- Open files are counted before the load; a process that runs out of them still ends its run


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """This process's limit of open files, as it is told and as it is set."""
    limits: dict[str, Any] = {"now": (256, 1024), "infinity": resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    return limits


def test_the_soft_limit_is_raised_when_the_load_needs_it(limits: dict[str, Any]) -> None:
    ensure_descriptors(100, "users", 1, 0)
    assert limits["now"] == (256, 1024)
    ensure_descriptors(400, "users", 1, 0)
    assert limits["now"] == (1024, 1024)


def test_a_load_beyond_the_hard_limit_is_refused_with_the_number(
    limits: dict[str, Any],
) -> None:
    with pytest.raises(UsageError) as caught:
        ensure_descriptors(2000, "users", 1, 0)
    needed = 2000 + MARGIN
    assert f"2000 users need {needed} open files" in str(caught.value)
    assert "may have 1024" in str(caught.value)
    assert f"`ulimit -n {needed}`" in str(caught.value)


def test_workers_share_users_and_several_targets_need_more(limits: dict[str, Any]) -> None:
    ensure_descriptors(2000, "users", 4, 0)
    assert descriptors_for(100, targets=8) == 200 + MARGIN
    with pytest.raises(UsageError):
        ensure_descriptors(2000, "users", 4, 2)


def test_an_open_loop_is_bounded_by_max_in_flight_or_not_at_all(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="1500 requests at once need"):
        ensure_descriptors(1500, "requests at once", 1, 0)
    ensure_descriptors(None, "requests at once", 1, 0)
    assert limits["now"] == (1024, 1024)


def test_no_limit_is_enough(limits: dict[str, Any]) -> None:
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    ensure_descriptors(1_000_000, "users", 1, 0)
    limits["now"] = (256, resource.RLIM_INFINITY)
    ensure_descriptors(1_000_000, "users", 1, 0)
