"""Faults: what a plan may say, what a client sees of each, what the truth log tells."""

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from sim_deployment import CHAT, FAST, Deployment, Seen, deployment

from llm_locust.deployment.server_metrics import readings
from llm_locust.sim.faults import (
    Action,
    FaultPlan,
    FaultPlanError,
    PlanError,
    PlanStep,
    Refusal,
    check_plan,
    http_status,
    parse_factor,
    parse_fault_plan,
    parse_plan,
)
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.telemetry import EventLog, TruthError, events_path
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import ReplyReader, read_body
from llm_locust.wire.draft import Reply
from llm_locust.wire.sse import SseDecoder
from llm_locust.wire.usage import Usage

# --- What a plan may say


S = 1_000_000_000
EXAMPLE = "10s kill 2; 20s start 2; 30s slow 1 3x; 40s normal 1; 50s drain 0"
#: What is written in 300 characters and is a million values long.
ALIASES = "- &a [x, x]\n" + "".join(f"- &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmnopqrst"))
STEPS = (
    PlanStep(10 * S, Action.KILL, 2),
    PlanStep(20 * S, Action.START, 2),
    PlanStep(30 * S, Action.SLOW, 1, 3.0),
    PlanStep(40 * S, Action.NORMAL, 1),
    PlanStep(50 * S, Action.DRAIN, 0),
)


def test_a_plan_is_steps_in_words() -> None:
    assert parse_plan(EXAMPLE) == STEPS


def test_steps_are_in_order_of_time_however_they_are_written() -> None:
    assert parse_plan(" 20s start 2;\n10s   kill 2 ;; ") == STEPS[:2]


def test_steps_of_one_time_keep_the_order_in_which_they_are_written() -> None:
    assert [step.replica for step in parse_plan("1s kill 2; 1s kill 0; 1s kill 1")] == [2, 0, 1]


@pytest.mark.parametrize("name", ["plan.yaml", "plan.yml", "plan.json"])
def test_a_file_says_the_same_as_words(tmp_path: Path, name: str) -> None:
    items = [
        {"at": "30s", "action": "slow", "replica": 1, "factor": "3x"},
        {"at": "10s", "action": "kill", "replica": 2},
        {"at": "40s", "action": "normal", "replica": "1"},
    ]
    path = tmp_path / name
    path.write_text(json.dumps(items) if name.endswith("json") else yaml.safe_dump(items))
    assert parse_plan(str(path)) == (STEPS[0], STEPS[2], STEPS[3])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10s kil 2", "word 2 of the plan, 'kil': there is no action 'kil'; did you mean 'kill'?"),
        ("10s explode 2", "there is no action 'explode'; known: kill, start, drain, slow, normal"),
        (
            "1s kill 2; soon start 2",
            "word 4 of the plan, 'soon': a step begins with its time: 'soon': not a",
        ),
        ("10 kill 2", "word 1 of the plan, '10': a step begins with its time: '10': a number without a unit"),
        ("10s kill", "word 2 of the plan, 'kill': the step ends too early; write such as '10s kill 2'"),
        ("10s kill x2", "word 3 of the plan, 'x2': 'x2' is not the number of a replica"),
        ("10s kill -1", "'-1' is not the number of a replica: they count from 0"),
        ("10s kill 2 20s start 2", "word 4 of the plan, '20s': nothing follows 'kill 2'; put ';'"),
        ("10s slow 2", "word 3 of the plan, '2': 'slow 2' needs a factor, such as 3x"),
        ("10s slow 2 fast", "word 4 of the plan, 'fast': 'fast' is not a factor from 0.001 to 1000"),
        ("10s slow 2 0x", "'0x' is not a factor"),
        ("10s slow 2 3x 4", "word 5 of the plan, '4': nothing follows the factor"),
        ("nowhere/plan.yaml", "plan nowhere/plan.yaml: cannot be read: No such file or directory"),
    ],
)
def test_a_bad_plan_is_one_line_that_points_at_the_word(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("10s: kill", "must be a list of steps"),
        ("[", "broken YAML"),
        ('- "\\U99999999"', "broken YAML"),
        (ALIASES, "more than 10,000 values"),
        ("- kill", "step 1, 'kill': must map at, action, replica, factor to values"),
        ("- {at: 1s, action: kill, replika: 0}", "there is no key 'replika'; did you mean 'replica'?"),
        ("- {at: 1s, action: kill}", "step 1: has no 'replica'"),
        (
            "- {at: 1, action: kill, replica: 0}",
            "step 1, at: a step begins with its time: '1': a number",
        ),
        ("- {at: 1s, action: kill, replica: 0, factor: 3x}", "step 1: kill takes no factor"),
        ("- {at: 1s, action: slow, replica: 0}", "step 1: slow needs a factor"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name_and_step(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(PlanError) as caught:
        parse_plan(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_whose_steps_fit_each_other_passes() -> None:
    check_plan(parse_plan(EXAMPLE), 3)
    check_plan(parse_plan("1s drain 0; 2s kill 0; 3s start 0; 4s kill 0; 5s slow 0 2x"), 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10s kill 4", "word 2 of the plan, 'kill': there is no replica 4; there are 0 to 3"),
        ("10s start 1", "at 10 s replica 1 serves already: kill or drain it before"),
        ("20s kill 1; 10s kill 1", "word 2 of the plan, 'kill': at 20 s replica 1 is dead already"),
        ("1s kill 1; 2s start 1; 3s start 1", "at 3 s replica 1 serves already"),
        ("1s kill 1; 2s drain 1", "at 2 s replica 1 serves no more: start it before"),
    ],
)
def test_steps_that_cannot_be_done_are_told_before_the_start(text: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(parse_plan(text), 4)
    assert says in str(caught.value)


@pytest.mark.parametrize(("text", "factor"), [("3x", 3.0), ("3", 3.0), ("0.5x", 0.5), (".5", 0.5)])
def test_a_factor_is_a_number_with_or_without_an_x(text: str, factor: float) -> None:
    assert parse_factor(text) == factor


@given(st.text() | st.text(alphabet="0123456789smx;kildranowtup .\n"))
def test_no_text_raises_another_error(text: str) -> None:
    with contextlib.suppress(PlanError):
        check_plan(parse_plan(text), 2)


def test_a_plan_is_words_of_shares_and_a_refusal() -> None:
    plan = parse_fault_plan(" http_500=1%, reset=0.02  stall=.5%\nrefused=2s@10s ")
    assert plan == FaultPlan(
        (("http_500", 0.01), ("reset", 0.02), ("stall", 0.005)), Refusal(10_000_000_000, 2_000_000_000)
    )


def test_an_empty_plan_has_no_fault() -> None:
    assert parse_fault_plan("").pick(0.0) is None


def test_each_fault_gets_its_share_of_the_draws() -> None:
    plan = parse_fault_plan("http_429=10% garbage=25% cut=0%")
    picked = Counter(plan.pick(i / 1000) for i in range(1000))
    assert picked == {"http_429": 100, "garbage": 250, None: 650}


def test_shares_of_exactly_all_leave_no_request_whole() -> None:
    plan = parse_fault_plan("reset=50% cut=50%")
    assert {plan.pick(draw) for draw in (0.0, 0.4999, 0.5, 0.9999)} == {"reset", "cut"}


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml", "plan.yml"])
def test_a_file_of_faults_says_the_same_as_words(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({"http_503": 0.25, "slow": "3%", "refused": "1s@0"}))
    assert parse_fault_plan(str(path)) == parse_fault_plan("http_503=25% slow=3% refused=1s@0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("reset=1% rest=1%", "word 2 of the fault plan, 'rest=1%': there is no fault 'rest'; did you"),
        ("http_302=1%", "there is no fault 'http_302'; did you mean"),
        ("earthquake=1%", "there is no fault 'earthquake'; known: close_before, reset, "),
        ("reset", "word 1 of the fault plan, 'reset': has no '='"),
        ("reset=often", "'often' is not a share; write 1% or 0.01"),
        ("reset=", "'' is not a share"),
        ("reset=5", "'5' is over 100%"),
        ("reset=60% cut=60%", "word 2 of the fault plan, 'cut=60%': the shares up to here are 1.2"),
        ("cut=1% cut=2%", "'cut' appears twice"),
        ("refused=1%", "must be a duration and a start, such as 2s@10s (refused closes the listening port"),
        ("refused=2s@soon", "'soon': not a duration"),
        ("nowhere/plan.yaml", "fault plan nowhere/plan.yaml: cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_bad_fault_is_one_line_that_points_at_the_word(text: str, says: str) -> None:
    with pytest.raises(FaultPlanError) as caught:
        parse_fault_plan(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("- reset", "must map faults to shares"),
        ("reset: [", "broken YAML"),
        ('reset: "\\U99999999"', "broken YAML"),
        ("[\n" * 1500, "broken YAML: too deep"),
        ("rest: 1%", "plan.yaml, key 'rest': there is no fault 'rest'"),
        ("reset:", "'None' is not a share"),
    ],
)
def test_a_bad_plan_file_is_one_line_with_the_files_name(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(FaultPlanError) as caught:
        parse_fault_plan(str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "status"), [("http_400", 400), ("http_599", 599), ("http_200", None), ("cut", None)]
)
def test_a_status_fault_names_its_status(fault: str, status: int | None) -> None:
    assert http_status(fault) == status


@given(st.text())
def test_no_text_of_faults_raises_another_error(text: str) -> None:
    with contextlib.suppress(FaultPlanError):
        parse_fault_plan(text).pick(0.5)


# --- The log of what happened to replicas


def test_each_event_is_a_line_and_an_object_with_its_time(tmp_path: Path) -> None:
    lines: list[str] = []
    path = events_path(tmp_path / "truth.jsonl")
    with EventLog(path, lines.append) as events:
        before_ns = time.time_ns()
        events.begin()
        events.add("plan", "replica-2", "kill")
        events.add("plan", "replica-1", "slow", 2.5)
    assert [line.rpartition(" at ")[0] for line in lines] == [
        "plan: replica-2 killed",
        "plan: replica-1 slowed 2.5x",
    ]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == "truth.jsonl.events.jsonl"
    assert [(w["who"], w["replica"], w["action"], w["factor"]) for w in written] == [
        ("plan", "replica-2", "kill", None),
        ("plan", "replica-1", "slow", 2.5),
    ]
    assert before_ns <= written[0]["time_ns"] <= written[1]["time_ns"] <= time.time_ns()


def test_without_a_file_events_are_lines_alone() -> None:
    lines: list[str] = []
    with EventLog(None, lines.append) as events:
        events.add("gateway", "replica-0", "out")
    assert lines[0].startswith("gateway: replica-0 out of rotation at 0.0")


def test_a_file_that_cannot_be_written_is_one_line_before_the_start() -> None:
    with pytest.raises(TruthError, match=r"event log /nowhere/e: No such file or directory; name a file"):
        EventLog(Path("/nowhere/e"), lambda line: None)


def test_a_disk_that_fills_is_told_once_and_lines_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with EventLog(Path("/dev/full"), lines.append) as events:
        events.add("plan", "replica-0", "kill")
        events.add("plan", "replica-0", "start")
    assert capsys.readouterr().err == (
        "event log /dev/full: No space left on device; nothing more is written to it\n"
    )
    assert len(lines) == 2


# --- Each fault, as a client sees it and as the truth log tells it


CUT_TOKENS = 3  # where a fault midway strikes


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def one_faulty_answer(folder: Path, fault: str, **ask: Any) -> tuple[Seen, dict[str, Any]]:
    """What a client saw of a request that the fault befell, and its truth entry."""
    result: list[tuple[Seen, dict[str, Any]]] = []

    async def test() -> None:
        async with deployment(folder, f"{fault}=100%", {"after_tokens": CUT_TOKENS, "stall_ns": 0}) as sim:
            seen = await sim.chat("id", **ask)
            result.append((seen, (await sim.entries(1))["id"]))

    run(test())
    seen, entry = result[0]
    assert entry["fault"] == fault
    assert not entry["disconnected"]
    return seen, entry


@pytest.mark.parametrize("status", [400, 408, 429, 500, 503])
def test_a_status_fault_answers_with_that_status_and_an_error_object(tmp_path: Path, status: int) -> None:
    seen, entry = one_faulty_answer(tmp_path, f"http_{status}")
    assert (seen.status, seen.json["error"]["code"], entry["status"]) == (status, status, status)
    assert ("Retry-After" in seen.headers) == (status == 429)
    assert entry["output_tokens"] == 0


def test_close_before_ends_the_connection_ahead_of_any_byte(tmp_path: Path) -> None:
    seen, entry = one_faulty_answer(tmp_path, "close_before")
    assert (seen.status, seen.error) == (None, "ServerDisconnectedError")
    assert entry["status"] is None


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_broken_connection_keeps_the_tokens_before_it(tmp_path: Path, fault: str) -> None:
    seen, entry = one_faulty_answer(tmp_path, fault)
    assert seen.error is not None
    assert entry["output_tokens"] == CUT_TOKENS
    assert (entry["status"], entry["complete"]) == (200, False)
    if fault == "cut":  # all that was sent ahead of a FIN comes through, ahead of an RST it may not
        assert len(seen.texts) == CUT_TOKENS


def test_a_truncated_stream_ends_in_good_order_without_finish_reason_or_done(tmp_path: Path) -> None:
    seen, entry = one_faulty_answer(tmp_path, "truncated")
    assert seen.error is None
    assert len(seen.texts) == entry["output_tokens"] == CUT_TOKENS
    assert "[DONE]" not in seen.data
    assert {e["choices"][0]["finish_reason"] for e in seen.events} == {None}


def test_an_error_object_stands_inside_the_200_stream(tmp_path: Path) -> None:
    seen, entry = one_faulty_answer(tmp_path, "error_object")
    assert (seen.status, entry["status"]) == (200, 200)
    assert seen.events[-1]["error"]["code"] == 500
    assert len(seen.texts) == entry["output_tokens"] == CUT_TOKENS


def test_garbage_is_one_event_that_is_not_json(tmp_path: Path) -> None:
    seen, entry = one_faulty_answer(tmp_path, "garbage")
    bad = []
    for line in seen.data[:-1]:
        try:
            json.loads(line)
        except json.JSONDecodeError:
            bad.append(line)
    assert len(bad) == 1
    assert entry["output_tokens"] == 6


def test_an_empty_answer_is_complete_and_has_no_token(tmp_path: Path) -> None:
    seen, entry = one_faulty_answer(tmp_path, "empty", stream_options={"include_usage": True})
    assert (seen.texts, seen.data[-1]) == ([], "[DONE]")
    assert seen.events[-1]["usage"]["completion_tokens"] == 0
    assert (entry["output_tokens"], entry["first_token_ns"], entry["complete"]) == (0, None, True)


def test_a_slow_answer_is_whole_and_its_gaps_are_many_steps(tmp_path: Path) -> None:
    seen, entry = one_faulty_answer(tmp_path, "slow")
    assert len(seen.texts) == 6
    # A step of 1 ms with the prompt, ten for each further token; a token may be late, and is never early.
    assert entry["token_ns"][-1] - entry["scheduled_ns"] >= (1 + 5 * 10) * 1_000_000 * 0.99


async def test_a_stalled_stream_stops_midway_and_goes_on_after_its_time(tmp_path: Path) -> None:
    stall_ns = 100_000_000
    settings = {"after_tokens": CUT_TOKENS, "stall_ns": stall_ns}
    async with deployment(tmp_path, "stall=100%", settings) as sim:
        seen = await sim.chat("id")
        times = (await sim.entries(1))["id"]["token_ns"]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert len(seen.texts) == 6
        assert gaps.index(max(gaps)) == CUT_TOKENS - 1
        assert max(gaps) >= stall_ns * 0.9


async def test_a_client_that_gives_up_on_a_stalled_stream_is_a_disconnect(tmp_path: Path) -> None:
    async def give_up(sim: Deployment) -> None:
        body = {"messages": [{"content": "x"}], "stream": True, "max_tokens": 9, "ignore_eos": True}
        async with sim.session.post(
            sim.addresses.gateway + CHAT, json=body, headers={"X-Request-Id": "id"}
        ) as response:
            tokens = 0
            while tokens < CUT_TOKENS:
                tokens += b'"delta":{"content"' in await response.content.readline()
            response.close()

    async with deployment(tmp_path, "stall=100%", {"after_tokens": CUT_TOKENS}) as sim:
        await give_up(sim)
        entry = (await sim.entries(1))["id"]
        assert (entry["fault"], entry["disconnected"], entry["output_tokens"]) == (
            "stall",
            True,
            CUT_TOKENS,
        )


@pytest.mark.parametrize("fault", ["reset", "cut", "truncated", "error_object", "garbage", "stall"])
def test_a_fault_strikes_an_answer_of_one_token_too(tmp_path: Path, fault: str) -> None:
    seen, entry = one_faulty_answer(tmp_path, fault, tokens=1)
    assert entry["output_tokens"] == (1 if fault in ("garbage", "stall") else 0)
    assert seen.status == 200


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_whole_body_is_broken_off_half_way(tmp_path: Path, fault: str) -> None:
    seen, entry = one_faulty_answer(tmp_path, fault, stream=False)
    assert seen.error is not None
    assert (entry["status"], entry["complete"]) == (200, False)


@pytest.mark.parametrize("fault", ["truncated", "garbage"])
def test_a_whole_body_may_not_be_json(tmp_path: Path, fault: str) -> None:
    seen, _ = one_faulty_answer(tmp_path, fault, stream=False)
    assert (seen.status, seen.error) == (200, None)
    with pytest.raises(json.JSONDecodeError):
        json.loads(seen.body)


@pytest.mark.parametrize(
    ("fault", "key"), [("error_object", "error"), ("stall", "usage"), ("empty", "usage")]
)
def test_a_whole_body_may_be_an_error_or_late_or_empty(tmp_path: Path, fault: str, key: str) -> None:
    seen, entry = one_faulty_answer(tmp_path, fault, stream=False)
    assert seen.status == 200
    assert key in seen.json
    assert entry["output_tokens"] == (6 if fault == "stall" else 0)


async def test_a_refusal_closes_the_port_for_its_time_and_opens_it_again(tmp_path: Path) -> None:
    async def connects(port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the backlog
            return False
        writer.close()
        await writer.wait_closed()
        return True

    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    async with deployment(tmp_path, "refused=100ms@0", port=port) as sim:
        while await connects(port):
            await asyncio.sleep(0.002)
        while not await connects(port):
            await asyncio.sleep(0.002)
        assert (await sim.chat("after")).status == 200
        assert list(await sim.entries(1)) == ["after"]


async def test_the_shares_of_a_plan_are_held_over_many_requests(tmp_path: Path) -> None:
    async with deployment(tmp_path, "http_503=20% empty=20%") as sim:
        seen = await asyncio.gather(*(sim.chat(f"id-{i}", tokens=1) for i in range(300)))
        entries = await sim.entries(300)
        for fault in ("http_503", "empty"):
            assert 35 <= sum(e["fault"] == fault for e in entries.values()) <= 85  # 3.6 sigma
        for i, answer in enumerate(seen):
            fault = entries[f"id-{i}"]["fault"]
            assert (answer.status == 503) == (fault == "http_503")
            assert bool(answer.status == 200 and not answer.texts) == (fault == "empty")


LONG_PROMPT = " ".join(f"word{i}" for i in range(30))  # 60 tokens, 3 full blocks of 16
ASKS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"content": LONG_PROMPT}], "max_tokens": 3},
    "/completions": {"prompt": LONG_PROMPT, "max_tokens": 3},
    "/responses": {"input": LONG_PROMPT, "max_output_tokens": 3},
    "/messages": {"messages": [{"content": LONG_PROMPT}], "max_tokens": 3},
}


def reply_of(path: str, seen: Seen, stream: bool) -> Reply:
    """As this project's own decoders read it."""
    spoken = DIALECTS[path.removeprefix("/").partition("/")[0]]
    if not stream:
        return read_body(spoken, seen.body)
    reader = ReplyReader(spoken)
    reader.feed(SseDecoder().feed(seen.body))
    return reader.finish()


def usage_of(path: str, seen: Seen, stream: bool) -> Usage:
    usage = reply_of(path, seen, stream).usage
    assert usage is not None
    return usage


@pytest.mark.parametrize("path", ASKS)
async def test_an_answer_that_ends_by_itself_has_an_end_that_is_counted_and_has_no_text(
    tmp_path: Path, path: str
) -> None:
    bound = {"max_tokens": 90, "max_output_tokens": 90, "min_tokens": 9}
    ask = ASKS[path] | bound | {"stream": True, "stream_options": {"include_usage": True}}
    limits = ModelLimits(mean_output_tokens=0)
    async with deployment(tmp_path, limits=limits) as sim:
        seen = await sim.post(path, ask, x_request_id="id", anthropic_version="2023-06-01")
        entry = (await sim.entries(1))["id"]
    reply = reply_of(path, seen, stream=True)
    assert reply.usage is not None
    assert (reply.usage.output_tokens, len(reply.token_ends), reply.done) == (10, 9, True)
    assert reply.finish_reason in ("stop", "end_turn", "completed")
    assert reply.finish_end is not None
    assert (entry["output_tokens"], len(entry["token_ns"])) == (10, 9)
    assert entry["eos_ns"] > entry["token_ns"][-1]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ASKS)
async def test_the_usage_tells_what_the_prefix_cache_had(tmp_path: Path, path: str, stream: bool) -> None:
    engine = replace(FAST, prefix_cache=True)
    ask = ASKS[path] | {"stream": stream, "ignore_eos": True, "stream_options": {"include_usage": True}}
    async with deployment(tmp_path, engine=engine, replicas=1) as sim:
        for request_id, cached in (("first", 0), ("second", 48)):
            headers = {"anthropic_version": "2023-06-01", "x_request_id": request_id}
            usage = usage_of(path, await sim.post(path, ask, **headers), stream)
            assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (60, 3, cached)
        entries = await sim.entries(2)
        assert [entries[i]["cached_tokens"] for i in ("first", "second")] == [0, 48]


async def test_without_a_prefix_cache_the_usage_does_not_speak_of_one(tmp_path: Path) -> None:
    async with deployment(tmp_path, replicas=1) as sim:
        seen = await sim.chat("id", stream=False)
        assert "prompt_tokens_details" not in seen.json["usage"]
        assert (await sim.entries(1))["id"]["cached_tokens"] is None


async def test_the_truth_has_queue_and_preemptions_and_agrees_with_the_metrics(tmp_path: Path) -> None:
    engine = replace(FAST, prefix_cache=True, kv_cache_tokens=192, max_num_seqs=3)
    limits = ModelLimits(max_model_len=192)
    async with deployment(tmp_path, engine=engine, limits=limits, replicas=1) as sim:
        asks = [
            sim.chat(f"id-{i}", 60, messages=[{"content": f"{'x ' * (10 * i)} {LONG_PROMPT}"}])
            for i in range(6)
        ]
        await asyncio.gather(*asks, *(sim.chat(f"same-{i}", 20) for i in range(6)))
        entries = list((await sim.entries(12)).values())
        for entry in entries:
            assert entry["received_ns"] <= entry["scheduled_ns"] < entry["first_token_ns"]
        totals = {
            r.name: r.value for r in readings((await sim.get("/metrics"))[1]) if "_bucket" not in r.name
        }
        for name, total in (
            ("preemptions", sum(e["preemptions"] for e in entries)),
            ("prefix_cache_hits", sum(e["cached_tokens"] for e in entries)),
            ("prefix_cache_queries", sum(e["input_tokens"] for e in entries)),
            ("prompt_tokens", sum(e["input_tokens"] for e in entries)),
            ("generation_tokens", sum(e["output_tokens"] for e in entries)),
            ("itl_s_count", sum(e["output_tokens"] - 1 for e in entries)),
            ("queue_s_count", 12),
        ):
            assert totals[name] == total, name
        assert totals["preemptions"] > 0
        queued_s = sum(e["scheduled_ns"] - e["received_ns"] for e in entries) * 1e-9
        assert 0 < totals["queue_s_sum"] <= queued_s


def test_a_request_that_no_engine_began_has_no_time_in_the_queue(tmp_path: Path) -> None:
    _, entry = one_faulty_answer(tmp_path, "http_500")
    assert (entry["scheduled_ns"], entry["cached_tokens"], entry["preemptions"]) == (None, None, 0)
