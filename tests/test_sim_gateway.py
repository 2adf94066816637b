import asyncio
import random
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_deployment import CHAT, FAST, Deployment, deployment

from llm_locust.sim.engine import Engine
from llm_locust.sim.gateway import make_router
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.replica import Replica

USER = [{"role": "user", "content": "one two three"}]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def test_the_truth_is_one_to_one_with_what_clients_saw(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path) as sim:
            before_ns = time.time_ns()
            seen = await asyncio.gather(*(sim.chat(f"id-{i}", tokens=3 + i % 5) for i in range(40)))
            entries = await sim.entries(40)
            for i, answer in enumerate(seen):
                entry = entries[f"id-{i}"]
                assert answer.headers["X-Request-Id"] == f"id-{i}"
                assert answer.headers["X-Served-By"] == entry["replica"]
                assert len(answer.texts) == entry["output_tokens"] == len(entry["token_ns"]) == 3 + i % 5
                assert (entry["status"], entry["fault"], entry["input_tokens"]) == (200, None, 3)
                assert (entry["complete"], entry["disconnected"]) == (True, False)
                times = [
                    before_ns,
                    entry["received_ns"],
                    *entry["token_ns"],
                    entry["ended_ns"],
                    time.time_ns(),
                ]
                assert times == sorted(times)
                assert entry["first_token_ns"] == entry["token_ns"][0]
            assert Counter(e["replica"] for e in entries.values()) == {f"replica-{i}": 10 for i in range(4)}

    run(test())


def test_the_same_seed_gives_the_same_answers_and_faults_in_any_order(tmp_path: Path) -> None:
    async def answers(folder: Path, seed: int, ids: list[int]) -> dict[str, Any]:
        folder.mkdir()
        async with deployment(folder, "http_500=30% truncated=20%", seed=seed) as sim:
            seen = {i: await sim.chat(f"id-{i}", ignore_eos=False, tokens=30) for i in ids}
            entries = await sim.entries(len(ids))
            return {f"id-{i}": (seen[i].texts, entries[f"id-{i}"]["fault"]) for i in ids}

    async def test() -> None:
        ids = list(range(12))
        first = await answers(tmp_path / "1", 1, ids)
        assert await answers(tmp_path / "2", 1, ids[::-1]) == first
        assert await answers(tmp_path / "3", 2, ids) != first
        assert len({fault for _, fault in first.values()}) > 1

    run(test())


def test_usage_is_sent_in_the_forms_that_were_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path) as sim:
            plain = await sim.chat()
            final = await sim.chat(stream_options={"include_usage": True})
            continuous = await sim.chat(
                stream_options={"include_usage": True, "continuous_usage_stats": True}
            )
            whole = await sim.chat(stream=False)
            usage = {"prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6}
            assert [e for e in plain.events if "usage" in e] == []
            assert [e["usage"] for e in final.events if "usage" in e] == [usage]
            assert [e["usage"]["completion_tokens"] for e in continuous.events] == [0, 1, 2, 3, 4, 5, 6, 6]
            assert whole.json["usage"] == usage
            assert {s.data[-1] for s in (plain, final, continuous)} == {"[DONE]"}

    run(test())


def test_completions_and_responses_stream_and_answer_whole(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path) as sim:
            ask = {"prompt": "hi", "max_tokens": 4, "ignore_eos": True}
            streamed = await sim.post("/completions", ask | {"stream": True})
            whole = await sim.post("/completions", ask)
            assert [len(e["choices"]) for e in streamed.events] == [1] * 4
            assert whole.json["usage"]["completion_tokens"] == 4
            ask = {"input": "hi", "max_output_tokens": 4, "ignore_eos": True}
            streamed = await sim.post("/responses", ask | {"stream": True})
            whole = await sim.post("/responses", ask)
            assert [e["type"] for e in streamed.events].count("response.output_text.delta") == 4
            assert streamed.events[-1]["response"]["usage"] == whole.json["usage"]
            paths = Counter(e["path"] for e in (await sim.entries(4)).values())
            assert paths == {"/v1/completions": 2, "/v1/responses": 2}

    run(test())


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{nonsense", 400, "not JSON"),
        (b'{"messages": 3}', 400, "not what this endpoint takes"),
        (b'{"model": "gpt-9", "messages": [{"content": "x"}]}', 404, "Models served: sim."),
    ],
)
def test_a_bad_request_gets_an_error_object_and_a_truth_entry(
    tmp_path: Path, body: bytes, status: int, says: str
) -> None:
    async def test() -> None:
        async with deployment(tmp_path) as sim:
            seen = await sim.post(CHAT, body, x_request_id="bad")
            error = seen.json["error"]
            assert (seen.status, error["code"]) == (status, status)
            assert says in error["message"]
            entry = (await sim.entries(1))["bad"]
            assert (entry["status"], entry["replica"], entry["output_tokens"]) == (status, None, 0)

    run(test())


def test_without_the_key_v1_is_closed_and_health_is_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, api_key="secret") as sim:
            assert (await sim.chat("a")).status == 401
            assert (await sim.post(CHAT, {"messages": USER}, authorization="Bearer wrong")).status == 401
            right = await sim.post(CHAT, {"messages": USER, "max_tokens": 1}, authorization="Bearer secret")
            assert right.status == 200
            assert (await sim.get("/v1/models"))[0] == 401
            assert (await sim.get("/v1/models", Authorization="Bearer secret"))[0] == 200
            assert (await sim.get("/health"))[0] == 200
            assert "secret" not in sim.truth.read_text()

    run(test())


def test_models_are_listed_and_each_is_served(tmp_path: Path) -> None:
    async def test() -> None:
        limits = ModelLimits(models=("a", "b"))
        async with deployment(tmp_path, limits=limits) as sim:
            assert '"id": "a"' in (await sim.get("/v1/models"))[1]
            for model in ("a", "b"):
                assert (await sim.chat(model=model)).events[0]["model"] == model

    run(test())


def test_metrics_count_what_was_served(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, replicas=2) as sim:
            for i in range(3):
                await sim.chat(f"id-{i}", tokens=5)
            status, text = await sim.get("/metrics")
            assert status == 200
            for line in (
                'generation_tokens_total{engine="0",model_name="sim"} 10',
                'generation_tokens_total{engine="1",model_name="sim"} 5',
                'prompt_tokens_total{engine="0",model_name="sim"} 6',
                'request_success_total{engine="0",model_name="sim",finished_reason="length"} 2',
                'time_to_first_token_seconds_count{engine="0",model_name="sim"} 2',
                'num_requests_running{engine="0",model_name="sim"} 0',
            ):
                assert f"vllm:{line}\n" in text

    run(test())


def test_a_client_that_leaves_frees_its_sequence_and_the_truth_says_so(tmp_path: Path) -> None:
    async def leave_midway(sim: Deployment) -> None:
        body = {"messages": USER, "stream": True, "max_tokens": 20_000, "ignore_eos": True}
        url = sim.addresses.gateway + CHAT
        async with sim.session.post(url, json=body, headers={"X-Request-Id": "left"}) as response:
            async for line in response.content:
                if b'"content":" ' in line:
                    break
            response.close()

    async def test() -> None:
        async with deployment(tmp_path, replicas=1) as sim:
            await leave_midway(sim)
            entry = (await sim.entries(1))["left"]
            assert (entry["disconnected"], entry["complete"], entry["fault"]) == (True, False, None)
            assert 1 <= entry["output_tokens"] < 20_000
            assert 'num_requests_running{engine="0",model_name="sim"} 0\n' in (await sim.get("/metrics"))[1]

    run(test())


def test_stopping_breaks_off_what_runs_and_writes_its_truth(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path) as sim:
            running = asyncio.create_task(sim.chat("cut-short", tokens=20_000))
            while 'running{engine="0",model_name="sim"} 1' not in (await sim.get("/metrics"))[1]:
                await asyncio.sleep(0.001)
            sim.stop.set()
            seen = await running
            entry = (await sim.entries(1))["cut-short"]
            assert (entry["complete"], entry["disconnected"]) == (False, False)
            assert seen.error is not None

    run(test())


def test_each_replica_serves_on_its_own_port_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, replicas=3, replica_ports=0) as sim:
            served = []
            for url in sim.addresses.replicas:
                for _ in range(2):
                    seen = await sim.post(CHAT, {"messages": USER, "max_tokens": 1}, base=url)
                    served.append(seen.headers["X-Served-By"])
            assert served == [f"replica-{i}" for i in (0, 0, 1, 1, 2, 2)]
            assert len(await sim.entries(6)) == 6

    run(test())


def test_a_role_may_be_sent_with_the_headers_well_ahead_of_the_first_token(tmp_path: Path) -> None:
    async def first_line_at(sim: Deployment) -> float:
        body = {"messages": USER, "stream": True, "max_tokens": 1}
        async with sim.session.post(sim.addresses.gateway + CHAT, json=body) as response:
            line = await response.content.readline()
            at = time.time_ns()
            assert b'"role"' in line
            await response.read()
        return at

    async def test() -> None:
        slow = replace(FAST, ttft_base_ns=150_000_000)
        async with deployment(tmp_path, early_role=True, engine=slow) as sim:
            at = await first_line_at(sim)
            (entry,) = (await sim.entries(1)).values()
            assert at < entry["first_token_ns"]

    run(test())


@pytest.mark.parametrize(
    ("version", "header", "status", "request_id"),
    [(b"1.0", b"old", 400, "old"), (b"1.1", b'caf\xc3\xa9 \xff"', 200, 'café ?"')],
)
def test_old_clients_and_odd_request_ids_are_answered(
    tmp_path: Path, version: bytes, header: bytes, status: int, request_id: str
) -> None:
    async def test() -> None:
        async with deployment(tmp_path) as sim:
            host, port = sim.addresses.gateway.split("/")[2].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = b'{"messages": [{"content": "x"}], "stream": true, "max_tokens": 2}'
            head = b"POST /v1/chat/completions HTTP/%b\r\nHost: x\r\nConnection: close\r\n" % version
            writer.write(
                head + b"X-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (header, len(body), body)
            )
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert int(answer.split(b" ")[1]) == status
            assert f"X-Request-Id: {request_id}\r\n".encode() in answer
            assert (await sim.entries(1))[request_id]["status"] == status

    run(test())


def replicas(count: int) -> list[Replica]:
    return [Replica(i, Engine(FAST, i)) for i in range(count)]


def test_round_robin_takes_turns_and_random_takes_all() -> None:
    pool, source = replicas(3), random.Random(0)
    turns = make_router("round_robin", pool)
    assert [turns(source).name for _ in range(4)] == ["replica-0", "replica-1", "replica-2", "replica-0"]
    drawn = make_router("random", pool)
    assert Counter(drawn(source).name for _ in range(300)).keys() == {r.name for r in pool}


def test_least_inflight_takes_the_idlest_replica() -> None:
    async def test() -> None:
        pool, source = replicas(2), random.Random(0)
        route = make_router("least_inflight", pool)
        first = pool[0].submit(1, 5, 1, "stop", lambda: None)
        assert route(source) is pool[1]
        pool[0].cancel(first)
        assert route(source) is pool[0]

    run(test())
