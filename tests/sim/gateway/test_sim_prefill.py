"""Disaggregated prefill: who computes what, when, and what the replicas' metrics say of it."""

import asyncio
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_deployment import FAST, Deployment, deployment

from llm_locust.deployment.exposition import readings
from llm_locust.sim.answers.jobs import ModelLimits
from llm_locust.sim.command import settings_from
from llm_locust.sim.engine.engine import Engine
from llm_locust.sim.engine.scheduler import EngineSequence
from llm_locust.sim.engine.stats import KV_BYTES_PER_TOKEN
from llm_locust.sim.settings import SettingsError, SimSettings, add_arguments, check

MS = 1_000_000
PROMPT = 3  # tokens of the test client's prompt

#: TTFT on an idle deployment = 2 · ttft_base + 2 · step_base + (PROMPT + 1) · prefill_per_token + transfer.
PROFILE = replace(FAST, ttft_base_ns=2 * MS, step_base_ns=3 * MS, prefill_per_token_ns=1 * MS)
TRANSFER_NS = 20 * MS
TTFT_NS = 2 * 2 * MS + 2 * 3 * MS + (PROMPT + 1) * MS + TRANSFER_NS

POOLS: dict[str, Any] = {
    "replicas": 3,
    "prefill_replicas": 1,
    "replica_ports": 0,
    "engine": PROFILE,
    "kv_transfer_ns": TRANSFER_NS,
}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


async def figures(sim: Deployment, index: int) -> dict[str, float]:
    """A replica's own metrics as our scraper reads them; states of buckets are left out."""
    _, page = await sim.get("/metrics", base=sim.addresses.replicas[index])
    return {r.name: r.value for r in readings(page) if not r.name.endswith("_bucket")}


def test_a_prompt_is_computed_by_one_replica_moved_and_decoded_by_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, **POOLS) as sim:
            seen = [await sim.chat(f"id-{i}", tokens=5) for i in range(6)]
            entries = await sim.entries(6)
            prefill, *decodes = [await figures(sim, index) for index in range(3)]
            assert {answer.headers["X-Served-By"] for answer in seen} == {"decode-1", "decode-2"}
            assert [len(answer.texts) for answer in seen] == [5] * 6
            for entry in entries.values():
                assert entry["prefill_replica"] == "prefill-0"
                assert entry["complete"]
                # Nothing comes earlier than the closed form; how much later is up to the machine.
                assert entry["first_token_ns"] - entry["received_ns"] >= TTFT_NS
                assert entry["prefilled_ns"] - entry["received_ns"] >= 2 * MS + 3 * MS + PROMPT * MS
                assert entry["first_token_ns"] - entry["prefilled_ns"] >= TRANSFER_NS + 2 * MS + 3 * MS + MS
                assert entry["received_ns"] + 2 * MS <= entry["scheduled_ns"] <= entry["prefilled_ns"]
            assert (prefill["prompt_tokens"], prefill["generation_tokens"]) == (6 * PROMPT, 6)
            assert prefill["kv_transfer_s_count"] == 0
            for decode in decodes:
                assert decode["generation_tokens"] == 3 * 5
                assert decode["kv_transfer_s_count"] == 3
                assert decode["kv_transfer_s_sum"] == pytest.approx(3 * TRANSFER_NS * 1e-9)
                assert decode["kv_transfer_bytes_sum"] == 3 * PROMPT * KV_BYTES_PER_TOKEN
                assert decode["kv_transfers_failed"] == 0

    run(test())


def test_a_failed_transfer_is_counted_and_its_prompt_computed_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, "kv_transfer=50%", **POOLS) as sim:
            seen = [await sim.chat(f"id-{i}") for i in range(12)]
            faults = Counter(entry["fault"] for entry in (await sim.entries(12)).values())
            decodes = [await figures(sim, index) for index in (1, 2)]
            assert all(len(answer.texts) == 6 for answer in seen)
            assert 0 < faults["kv_transfer"] < 12
            assert sum(decode["kv_transfers_failed"] for decode in decodes) == faults["kv_transfer"]
            assert sum(decode["kv_transfer_s_count"] for decode in decodes) == 12 - faults["kv_transfer"]
            _, page = await sim.get("/metrics", base=sim.addresses.replicas[1])
            assert 'source="external_kv_transfer"} 0\n' not in page

    run(test())


def test_a_killed_prefill_replica_breaks_off_what_it_computes_and_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, **POOLS | {"kv_transfer_ns": 0}) as sim:
            decoding = asyncio.create_task(sim.chat("early", tokens=100))
            while not (await figures(sim, 0))["prompt_tokens"]:
                await asyncio.sleep(0.005)
            await sim.act("slow 0 1000x")
            prefilling = asyncio.create_task(sim.chat("late"))
            while not (await figures(sim, 0))["running"]:
                await asyncio.sleep(0.005)
            await sim.act("kill 0")
            assert len((await decoding).texts) == 100
            broken = await prefilling
            assert not broken.texts
            refused = await sim.chat("after")
            assert (refused.status, refused.headers["X-Served-By"][:6]) == (502, "decode")
            sim.fleet.look()
            assert (await sim.chat("no rotation")).status == 503
            entries = await sim.entries(4)
            assert [entries[i]["fault"] for i in ("early", "late", "after")] == [None, "killed", "dead"]

    run(test())


def test_embeddings_and_a_replicas_own_port_need_no_other_replica(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, **POOLS) as sim:
            embedded = await sim.post("/embeddings", {"input": "a b"}, x_request_id="embedded")
            own = await sim.post(
                "/completions", {"prompt": "x", "max_tokens": 2}, base=sim.addresses.replicas[0]
            )
            assert (embedded.status, own.status) == (200, 200)
            assert {entry["prefill_replica"] for entry in (await sim.entries(2)).values()} == {None}

    run(test())


def test_a_received_prompt_takes_a_step_of_one_token_and_a_preemption_loses_it() -> None:
    engine = Engine(replace(PROFILE, kv_cache_tokens=64), 0)
    first = EngineSequence(prompt_tokens=20, output_tokens=30, ready_ns=0, received=19)
    second = EngineSequence(prompt_tokens=20, output_tokens=30, ready_ns=0, received=19)
    engine.submit(first)
    engine.submit(second)
    assert engine.start_step() == 3 * MS + 2 * MS  # one token of each prompt
    assert engine.finish_step() == [first, second]
    while engine.start_step() is not None:
        engine.finish_step()
    assert (first.preemptions, first.received) == (0, 19)
    assert (second.preemptions, second.received) == (1, 0)


def test_pools_that_cannot_work_are_refused() -> None:
    limits = ModelLimits(max_model_len=1_000)
    with pytest.raises(SettingsError, match="leaves none that decodes"):
        check(SimSettings(replicas=2, prefill_replicas=2, limits=limits))
    parser = ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SettingsError, match="nothing is transferred without --prefill-replicas"):
        settings_from(parser.parse_args(["--faults", "kv_transfer=1%"]))
