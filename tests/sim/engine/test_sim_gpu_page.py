"""The simulated GPUs' page."""

import asyncio
from pathlib import Path

import pytest
from sim_deployment import deployment

from llm_locust.deployment.exposition import readings
from llm_locust.sim.engine.engine import Engine
from llm_locust.sim.engine.scheduler import EngineProfile, EngineSequence
from llm_locust.sim.engine.stats import BUSY_W, IDLE_W, GpuKind, GpuReading, gpu_exposition

S = 1_000_000_000


def test_an_idle_device_draws_idle_power_and_one_in_steps_all_the_time_the_most() -> None:
    idle, busy = GpuReading("0", 10 * S, 0, False, 0.0), GpuReading("1", 10 * S, 10 * S, True, 0.5)
    assert (idle.power_w, idle.energy_j) == (IDLE_W, 10 * IDLE_W)
    assert (busy.power_w, busy.energy_j) == (BUSY_W, 10 * BUSY_W)
    assert GpuReading("2", 10 * S, 5 * S, False, 0.0).energy_j == 5 * (IDLE_W + BUSY_W)


def test_the_page_reads_as_that_of_the_exporter() -> None:
    found = readings(
        gpu_exposition(
            [GpuReading("0", 10 * S, 5 * S, True, 0.0), GpuReading("1", 10 * S, 0, False, 1.0)], GpuKind()
        )
    )
    values = {(r.name, r.labels["gpu"]): r.value for r in found}
    assert [values["gpu_utilisation", gpu] for gpu in "01"] == [1.0, 0.0]
    assert values["power_w", "1"] == IDLE_W
    assert values["energy_j", "0"] == pytest.approx(5 * (IDLE_W + BUSY_W))
    assert values["gpu_memory_used_bytes", "1"] > values["gpu_memory_used_bytes", "0"] > 0
    assert {r.labels["UUID"] for r in found} == {"GPU-sim-0", "GPU-sim-1"}


def test_a_replica_on_several_gpus_has_as_many_devices_that_share_its_memory() -> None:
    kind = GpuKind(model="H100", count=4, weights_mib=100.0, kv_cache_mib=10.0)
    found = readings(
        gpu_exposition([GpuReading(label, 10 * S, 5 * S, True, 0.5) for label in ("0", "1")], kind)
    )
    used = {r.labels["gpu"]: r.value for r in found if r.name == "gpu_memory_used_bytes"}
    assert used == {str(number): 105 * 2**20 for number in range(8)}
    assert {r.labels["modelName"] for r in found} == {"H100"}


def test_time_in_steps_is_that_of_the_steps_and_not_of_the_pauses() -> None:
    engine = Engine(
        EngineProfile(noise=0.0, step_base_ns=1000, step_per_sequence_ns=10, prefill_per_token_ns=1), 0
    )
    for ready_ns in (0, 10_000_000):  # a pause of 10 ms between them
        engine.submit(EngineSequence(prompt_tokens=100, output_tokens=3, ready_ns=ready_ns))
        while engine.start_step() is not None:
            engine.finish_step()
    assert engine.busy_ns == 2 * (1110 + 2 * 1010)


def test_a_deployment_serves_the_page_and_its_energy_grows_with_work(tmp_path: Path) -> None:
    async def test() -> None:
        async with deployment(tmp_path, replicas=1) as sim:
            await sim.chat(tokens=40)
            status, text = await sim.get("/gpu/metrics")
            assert status == 200
            (energy,) = [r.value for r in readings(text) if r.name == "energy_j"]
            assert energy >= 40 * 0.001 * (BUSY_W - IDLE_W)  # 40 steps of 1 ms
            _, page = await sim.get("/metrics")
            served = {r.name: r.value for r in readings(page)}
            assert (served["generation_tokens"], served["preemptions"]) == (40, 0)
            assert served["tpot_s_count"] == served["e2el_s_count"] == served["ttft_s_count"] == 1
            assert served["tpot_s_sum"] == pytest.approx(0.001, rel=0.5)

    asyncio.run(asyncio.wait_for(test(), 10))
