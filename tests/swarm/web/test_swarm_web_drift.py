"""Drift alarms: what gets worse with the hours is said, noise and changes of the load are not."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
from live_cases import Run, observation, worker
from metrics_cases import failed, request

from llm_locust.swarm.web.drift import LOOKS, DriftWatch, drifts

MINUTES = 40
PER_MINUTE = 120


def soak(
    ttft_s: Callable[[float], float] = lambda _: 0.05,
    error_rate: Callable[[float], float] = lambda _: 0.0,
    users: Callable[[float], int] = lambda _: 4,
    minutes: int = MINUTES,
) -> Run:
    """A run whose figures go with the share of it that is over, and wander by a fifth."""
    generator, run = np.random.default_rng(5), Run()
    for half in range(2 * minutes):
        over = half / (2 * minutes)
        spread = generator.lognormal(0, 0.2, PER_MINUTE // 2) * generator.lognormal(0, 0.03)
        bad = generator.random(PER_MINUTE // 2) < error_rate(over)
        run.ended(
            failed() if is_bad else request(arrivals=(ttft_s(over) * x, ttft_s(over) * x + 0.02))
            for x, is_bad in zip(spread, bad, strict=True)
        )
        run.report()
        for _ in range(5):
            run.store.observe(observation(users(over), worker("a", in_flight=1)))
            run.clock.tick(6)
    return run


@pytest.fixture(scope="module")
def slower() -> Run:
    return soak(ttft_s=lambda over: 0.03 * (1 + over))


def test_a_server_that_gets_slower_is_told_with_its_slope(slower: Run) -> None:
    found = drifts(slower.store, ())
    assert set(found) == {"TTFT p99"}
    assert "TTFT p99 rises" in found["TTFT p99"]
    assert "ms an hour (95 % interval " in found["TTFT p99"]


def test_noise_is_no_drift() -> None:
    assert drifts(soak().store, ()) == {}


def test_a_server_that_gets_faster_is_no_alarm() -> None:
    assert drifts(soak(ttft_s=lambda over: 0.09 * (1 - over / 2)).store, ()) == {}


def test_more_and_more_errors_are_told() -> None:
    found = drifts(soak(error_rate=lambda over: 0.1 * over).store, ())
    assert set(found) == {"goodput", "error rate"}
    assert "error rate rises" in found["error rate"]


def test_a_short_run_says_nothing() -> None:
    assert drifts(soak(ttft_s=lambda over: 0.05 * (1 + over), minutes=15).store, ()) == {}


def test_more_users_are_no_drift() -> None:
    run = soak(ttft_s=lambda over: 0.05 if over < 0.5 else 0.09, users=lambda over: 4 if over < 0.5 else 8)
    assert "TTFT p99" not in drifts(run.store, ())


def test_a_client_whose_memory_grows_is_told() -> None:
    run = soak()
    times = run.store.content.started_s + 60.0 * np.arange(MINUTES)
    growing = [(float(at), 200.0 + 2.0 * i + i % 3) for i, at in enumerate(times)]
    flat = [(float(at), 200.0 + i % 3) for i, at in enumerate(times)]
    assert "memory of a client process rises" in drifts(run.store, growing)["memory of a client process"]
    assert drifts(run.store, flat) == {}


def test_a_drift_is_said_once_when_it_was_found_often_enough_and_forgotten_by_a_reset(
    slower: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llm_locust")
    watch = DriftWatch(slower.store, lambda: None)
    for _ in range(LOOKS - 1):
        watch.look()
    assert watch.alarms == ()
    for _ in range(3):
        watch.look()
    assert len(watch.alarms) == 1
    assert [r.message.split(":")[:2] for r in caplog.records] == [["drift", " TTFT p99 rises"]]
    slower.store.reset()
    watch.look()
    assert watch.alarms == ()


def test_a_run_that_has_stopped_is_not_looked_at_any_more() -> None:
    run = soak(minutes=1)
    run.store.stop()
    asked: list[float] = []
    watch = DriftWatch(run.store, lambda: asked.append(1.0) or 1.0)  # type: ignore[func-returns-value]
    watch.look()
    assert asked == []
