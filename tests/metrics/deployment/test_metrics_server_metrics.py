"""What servers said of themselves, and what lies between them and the client."""

from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, columns, manifest, request
from server_cases import WINDOW, Row, rows, series

from llm_locust.figures.server_metrics import gateway, in_parts, server_metrics
from llm_locust.figures.summarise import summarise


def histogram(target: str, name: str, at: dict[str, int], total_s: float) -> list[Row]:
    """A histogram that was empty at the window's start and is this at its end."""
    buckets = [row for le, n in at.items() for row in rows(target, f"{name}_bucket", [0, n], 10.0, le=le)]
    n = at["+Inf"]
    return [
        *buckets,
        *rows(target, f"{name}_sum", [0, total_s], 10.0),
        *rows(target, f"{name}_count", [0, n], 10.0),
    ]


def replica(target: str, running: float = 3.0) -> list[Row]:
    return [
        *rows(target, "up", [1] * 11),
        *rows(target, "running", [running] * 11),
        *rows(target, "kv_cache_usage", [0.1 * i for i in range(11)]),
        *rows(target, "prefix_cache_queries", [100 * i for i in range(11)]),
        *rows(target, "prefix_cache_hits", [25 * i for i in range(11)]),
        *histogram(target, "ttft_s", {"0.04": 0, "0.06": 50, "0.1": 98, "+Inf": 100}, 6.0),
    ]


def test_engines_of_one_target_run_together_also_at_their_most() -> None:
    engines = [rows("a", "running", [n] * 11, engine=engine) for engine, n in (("0", 5), ("1", 3))]
    (a,) = server_metrics(
        series([*rows("a", "up", [1] * 11), *engines[0], *engines[1]]), columns(request()), WINDOW
    )["targets"]
    assert (a["running_mean"], a["running_max"]) == (8.0, 8.0)


def test_each_target_and_the_total_of_all_are_told() -> None:
    found = server_metrics(series([*replica("a"), *replica("b", 5.0)]), columns(request()), WINDOW)
    a, b = found["targets"]
    assert (a["name"], b["name"]) == ("a", "b")
    assert (a["running_mean"], found["total"]["running_mean"]) == (3.0, 8.0)
    assert (a["running_max"], found["total"]["running_max"]) == (3.0, 8.0)
    assert a["kv_cache_usage_mean"] == found["total"]["kv_cache_usage_mean"] == pytest.approx(0.45)
    assert a["kv_cache_usage_max"] == pytest.approx(0.9)
    assert found["total"]["prefix_cache_queries"] == pytest.approx(2000)
    assert found["total"]["prefix_cache_hit_ratio"] == pytest.approx(0.25)
    assert a["ttft_ms"] == {
        "n": pytest.approx(100),
        "n_error": 0.0,
        "mean": pytest.approx(60),
        "p50_bounds": [40, 60],
        "p99_bounds": [100, None],
    }
    assert a["tpot_ms"] is a["waiting_mean"] is a["preemptions"] is a["power_w_mean"] is None
    assert (a["scrapes"], a["failed"], a["covered"]) == (10, 0, pytest.approx(1.0))


def test_one_that_was_silent_for_half_the_window_counts_for_half_in_what_all_had() -> None:
    half = [*rows("a", "running", [10] * 10), *rows("b", "running", [10] * 5)]
    found = server_metrics(series(half), client(10, 0.5), WINDOW)
    assert [target["running_mean"] for target in found["targets"]] == [10, 10]  # of the pages that they gave
    assert found["total"]["running_mean"] == pytest.approx(15, abs=1.1)


def test_acceptance_is_by_the_counters_of_the_window() -> None:
    counters = {"spec_drafts": 100, "spec_draft_tokens": 300, "spec_accepted_tokens": 120}

    def of(target: str, times: int) -> list[Row]:
        return [
            row
            for name, a_second in counters.items()
            for row in rows(target, name, [50_000 + times * a_second * i for i in range(11)])
        ]

    found = server_metrics(series([*of("a", 1), *of("b", 3)]), columns(request()), WINDOW)
    for told in (*found["targets"], found["total"]):
        assert told["acceptance_length"] == pytest.approx(2.2)
        assert told["acceptance_rate"] == pytest.approx(0.4)
    assert found["total"]["spec_drafts"] == pytest.approx(4_000)


def test_acceptance_of_a_server_that_reports_only_means_is_their_mean() -> None:
    gauges = [*rows("a", "spec_accept_length", [2.0, 3.0]), *rows("a", "spec_accept_rate", [0.25, 0.75])]
    (told,) = server_metrics(series(gauges), columns(request()), WINDOW)["targets"]
    assert (told["acceptance_length"], told["acceptance_rate"], told["spec_drafts"]) == (2.5, 0.5, None)


def test_without_drafts_there_is_no_acceptance() -> None:
    silent = [row for name in ("spec_drafts", "spec_accepted_tokens") for row in rows("a", name, [7] * 11)]
    (told,) = server_metrics(series(silent), columns(request()), WINDOW)["targets"]
    assert (told["acceptance_length"], told["acceptance_rate"], told["spec_drafts"]) == (None, None, 0)


def test_scrapes_that_gave_nothing_are_counted() -> None:
    found = server_metrics(series(rows("a", "up", [1, 1, 0, 0, 1])), columns(request()), WINDOW)
    assert (found["total"]["scrapes"], found["total"]["failed"]) == (5, 2)
    assert found["total"]["covered"] == pytest.approx(0.4)
    assert found["gateway"] is None


def test_nothing_scraped_is_nothing_told() -> None:
    assert server_metrics(series([]), columns(request()), WINDOW) == {}


def client(n: int, ttft_s: float, rtt_ms: float = 2.0) -> Any:
    return columns(
        *(request(i * 0.05, (ttft_s, ttft_s + 0.01), rtt_ns=round(rtt_ms * 1e6)) for i in range(n))
    )


def test_what_the_gateway_adds_is_the_clients_ttft_without_the_servers_and_the_round_trip() -> None:
    found = gateway({"n": 100.0, "n_error": 0.0, "mean": 60.0}, client(100, 0.075), WINDOW)
    assert found == {
        "client_ttft_ms": pytest.approx(75),
        "server_ttft_ms": 60.0,
        "rtt_ms": pytest.approx(2),
        "gateway_ms": pytest.approx(13),
        "client_n": 100,
        "server_n": 100.0,
        "same_requests": True,
    }


def test_a_server_that_saw_more_requests_is_used_by_others() -> None:
    found = gateway({"n": 150.0, "n_error": 40.0, "mean": 60.0}, client(100, 0.075), WINDOW)
    assert found is not None
    assert found["same_requests"] is False
    bursts = gateway({"n": 150.0, "n_error": 46.0, "mean": 60.0}, client(100, 0.075), WINDOW)
    assert bursts is not None
    assert bursts["same_requests"] is True


def test_without_one_of_both_there_is_no_difference() -> None:
    assert gateway(None, client(9, 0.1), WINDOW) is None
    assert gateway({"n": 0.0, "n_error": 0.0, "mean": None}, client(9, 0.1), WINDOW) is None
    assert gateway({"n": 9.0, "n_error": 0.0, "mean": 1.0}, columns(request(arrivals=())), WINDOW) is None


def test_a_state_over_time_adds_up_over_replicas_or_is_their_mean() -> None:
    found = series([*rows("a", "running", [2] * 11), *rows("b", "running", [3] * 5),
                    *rows("a", "gpu_utilisation", [0.5] * 11, UUID="g1"),
                    *rows("b", "gpu_utilisation", [1.0] * 11, UUID="g2"),
                    *rows("c", "gpu_utilisation", [1.0] * 11, UUID="g2")])  # fmt: skip
    running, used = in_parts(found, "running"), in_parts(found, "gpu_utilisation")
    # The second one said nothing after 4 s: it is held for two seconds, then not known.
    assert [running[int(24 * s)] for s in (0, 0.5, 4, 5.5, 6.5)] == [5, 5, 5, 5, 2]
    assert used[0] == pytest.approx(0.75)  # a GPU that two exporters tell of is one
    assert np.isnan(in_parts(found, "waiting")).all()


def test_a_summary_has_them_unless_only_some_requests_are_looked_at() -> None:
    made, power = batch(request(1.0)), rows("gpu", "power_w", [300] * 11)
    scraped = series(power)
    whole = summarise(made, manifest(10.0), server=scraped)
    assert whole["server"]["total"]["gpus"] == whole["energy"]["gpus"] == 1
    assert whole["energy"]["power_w"] == pytest.approx(300)
    some = summarise(made, manifest(10.0), server=scraped, rows_of_run=9)
    assert some["server"] == some["energy"] == {}
    assert summarise(made, manifest(10.0))["server"] == {}
