"""Each fault, as a client sees it and as the truth log tells it."""

import asyncio
import itertools
import json
import socket
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_deployment import CHAT, FAST, Deployment, Seen, deployment

from llm_locust.deployment.exposition import readings
from llm_locust.sim.answers.jobs import ModelLimits
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.draft import Reply
from llm_locust.wire.reply import read_body, reply_reader
from llm_locust.wire.sse import SseDecoder
from llm_locust.wire.usage import Usage

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


def test_a_stalled_stream_stops_midway_and_goes_on_after_its_time(tmp_path: Path) -> None:
    async def test() -> None:
        stall_ns = 100_000_000
        settings = {"after_tokens": CUT_TOKENS, "stall_ns": stall_ns}
        async with deployment(tmp_path, "stall=100%", settings) as sim:
            seen = await sim.chat("id")
            times = (await sim.entries(1))["id"]["token_ns"]
            gaps = [b - a for a, b in itertools.pairwise(times)]
            assert len(seen.texts) == 6
            assert gaps.index(max(gaps)) == CUT_TOKENS - 1
            assert max(gaps) >= stall_ns * 0.9

    run(test())


def test_a_client_that_gives_up_on_a_stalled_stream_is_a_disconnect(tmp_path: Path) -> None:
    async def give_up(sim: Deployment) -> None:
        body = {"messages": [{"content": "x"}], "stream": True, "max_tokens": 9, "ignore_eos": True}
        async with sim.session.post(
            sim.addresses.gateway + CHAT, json=body, headers={"X-Request-Id": "id"}
        ) as response:
            tokens = 0
            while tokens < CUT_TOKENS:
                tokens += b'"delta":{"content"' in await response.content.readline()
            response.close()

    async def test() -> None:
        async with deployment(tmp_path, "stall=100%", {"after_tokens": CUT_TOKENS}) as sim:
            await give_up(sim)
            entry = (await sim.entries(1))["id"]
            assert (entry["fault"], entry["disconnected"], entry["output_tokens"]) == (
                "stall",
                True,
                CUT_TOKENS,
            )

    run(test())


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


def test_a_refusal_closes_the_port_for_its_time_and_opens_it_again(tmp_path: Path) -> None:
    async def connects(port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the backlog
            return False
        writer.close()
        await writer.wait_closed()
        return True

    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port = reserved.getsockname()[1]
        async with deployment(tmp_path, "refused=100ms@0", port=port) as sim:
            while await connects(port):
                await asyncio.sleep(0.002)
            while not await connects(port):
                await asyncio.sleep(0.002)
            assert (await sim.chat("after")).status == 200
            assert list(await sim.entries(1)) == ["after"]

    run(test())


def test_the_shares_of_a_plan_are_held_over_many_requests(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, "http_503=20% empty=20%") as sim:
            seen = await asyncio.gather(*(sim.chat(f"id-{i}", tokens=1) for i in range(300)))
            entries = await sim.entries(300)
            for fault in ("http_503", "empty"):
                assert 35 <= sum(e["fault"] == fault for e in entries.values()) <= 85  # 3.6 sigma
            for i, answer in enumerate(seen):
                fault = entries[f"id-{i}"]["fault"]
                assert (answer.status == 503) == (fault == "http_503")
                assert bool(answer.status == 200 and not answer.texts) == (fault == "empty")

    run(test())


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
    reader = reply_reader(spoken)
    reader.feed(SseDecoder().feed(seen.body))
    return reader.finish()


def usage_of(path: str, seen: Seen, stream: bool) -> Usage:
    usage = reply_of(path, seen, stream).usage
    assert usage is not None
    return usage


@pytest.mark.parametrize("path", ASKS)
def test_an_answer_that_ends_by_itself_has_an_end_that_is_counted_and_has_no_text(
    tmp_path: Path, path: str
) -> None:
    async def test() -> None:
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

    run(test())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ASKS)
def test_the_usage_tells_what_the_prefix_cache_had(tmp_path: Path, path: str, stream: bool) -> None:
    async def test() -> None:
        engine = replace(FAST, prefix_cache=True)
        ask = ASKS[path] | {"stream": stream, "ignore_eos": True, "stream_options": {"include_usage": True}}
        async with deployment(tmp_path, engine=engine, replicas=1) as sim:
            for request_id, cached in (("first", 0), ("second", 48)):
                headers = {"anthropic_version": "2023-06-01", "x_request_id": request_id}
                usage = usage_of(path, await sim.post(path, ask, **headers), stream)
                assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (60, 3, cached)
            entries = await sim.entries(2)
            assert [entries[i]["cached_tokens"] for i in ("first", "second")] == [0, 48]

    run(test())


def test_without_a_prefix_cache_the_usage_does_not_speak_of_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, replicas=1) as sim:
            seen = await sim.chat("id", stream=False)
            assert "prompt_tokens_details" not in seen.json["usage"]
            assert (await sim.entries(1))["id"]["cached_tokens"] is None

    run(test())


def test_the_truth_has_queue_and_preemptions_and_agrees_with_the_metrics(tmp_path: Path) -> None:
    async def test() -> None:
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

    run(test())


def test_a_request_that_no_engine_began_has_no_time_in_the_queue(tmp_path: Path) -> None:
    _, entry = one_faulty_answer(tmp_path, "http_500")
    assert (entry["scheduled_ns"], entry["cached_tokens"], entry["preemptions"]) == (None, None, 0)
