"""What servers said, in the spans of the client's time axis."""

import numpy as np
import pytest
from metrics_cases import columns, request
from server_cases import Row, rows, tables

from llm_locust.figures.charts.course import MOST_CURVES, ServerCurves, TimeAxis, axis_window, server_curves
from llm_locust.metrics.server_series import read_server_series

AXIS = TimeAxis(start_s=0.0, width_s=2.0, bins=5)
CLIENT = columns(*(request(i * 0.1, (0.25, 0.27)) for i in range(90)))
ALL = range(11)


def told(*samples: Row) -> ServerCurves:
    series = read_server_series(tables(samples), axis_window(AXIS, CLIENT), AXIS.bins)
    found = server_curves(series, AXIS, CLIENT)
    assert found is not None
    return found


def test_a_state_is_the_mean_of_its_samples_in_each_span() -> None:
    curves = told(*rows("a", "running", [1, 3, 5, 7, 2, 2, 0, 0, 0, 0])).by_server["running"]
    assert curves["a"].tolist() == [2, 6, 2, 0, 0]


def test_a_server_that_gives_no_page_leaves_a_gap() -> None:
    axis = TimeAxis(start_s=0.0, width_s=0.1, bins=100)
    before, after = (
        rows("a", "kv_cache_usage", [0.5] * n, every_s=0.25, first_s=s) for n, s in ((8, 0.0), (4, 9.0))
    )
    samples = [*before, *after]
    fine = server_curves(
        read_server_series(tables(samples), axis_window(axis, CLIENT), axis.bins), axis, CLIENT
    )
    assert fine is not None
    unknown = np.isnan(fine.by_server["kv_cache_usage"]["a"])
    assert unknown[50:90].all()
    assert not unknown[:20].any()
    assert not unknown[90:].any()


def test_counters_are_rates_and_unknown_where_nobody_watched() -> None:
    curve = told(*rows("a", "generation_tokens", [100 * i for i in range(5)], first_s=2.0)).of_all[
        "generation_tokens_per_s"
    ]
    assert np.isnan(curve[0])
    assert curve[1:3] == pytest.approx([100, 100])
    assert np.isnan(curve[4])


def test_the_mean_ttft_of_servers_stands_beside_the_clients() -> None:
    sums = rows("a", "ttft_s_sum", [2.0 * i for i in ALL])
    counts = rows("a", "ttft_s_count", [10 * i for i in ALL])
    ttft = told(*sums, *counts).ttft_s
    assert ttft["client"] == pytest.approx([0.25] * 5)
    assert ttft["servers"] == pytest.approx([0.2] * 5)


def test_without_the_servers_ttft_there_is_nothing_to_compare() -> None:
    assert told(*rows("a", "running", [1])).ttft_s == {}


def test_hits_are_the_share_of_what_was_looked_up_in_the_span_or_what_the_server_tells() -> None:
    counts = [
        *rows("a", "prefix_cache_queries", [100 * i for i in ALL]),
        *rows("a", "prefix_cache_hits", [25 * i for i in ALL]),
    ]
    curves = told(*counts, *rows("b", "prefix_cache_hit_rate", [0.4] * 10)).by_server["prefix_hits"]
    assert curves["a"] == pytest.approx([0.25] * 5)
    assert curves["b"] == pytest.approx([0.4] * 5)


def test_engines_and_gpus_of_one_target_have_curves_of_their_own_and_a_gpu_only_one() -> None:
    found = told(
        *rows("gw", "running", [1] * 10, engine="0"),
        *rows("gw", "running", [2] * 10, engine="1"),
        *rows("x", "power_w", [100] * 10, UUID="g0", gpu="0"),
        *rows("x", "power_w", [200] * 10, UUID="g1", gpu="1"),
        *rows("y", "power_w", [100] * 10, UUID="g0", gpu="0"),
    )
    assert {name: curve[0] for name, curve in found.by_server["running"].items()} == {
        "gw engine 0": 1, "gw engine 1": 2,
    }  # fmt: skip
    assert {name: curve[0] for name, curve in found.by_server["power_w"].items()} == {
        "x GPU 0": 100, "x GPU 1": 200,
    }  # fmt: skip
    assert found.of_all["running"].tolist() == [3] * 5


def test_of_many_servers_the_extremes_and_the_middle_are_told() -> None:
    many = [row for i in range(MOST_CURVES + 1) for row in rows(f"s{i}", "running", [i] * 10)]
    curves = told(*many).by_server["running"]
    assert {name: curve[0] for name, curve in curves.items()} == {"highest": 6, "median": 3, "lowest": 0}


def test_scrapes_that_failed_are_counted_for_each_target_that_had_any() -> None:
    many = [row for i in range(MOST_CURVES + 2) for row in rows(f"s{i}", "up", [0] * (10 - i))]
    failed = told(*rows("good", "up", [1] * 10), *many).failed
    assert list(failed) == [*(f"s{i}" for i in range(MOST_CURVES)), "2 others"]
    assert failed["s0"].tolist() == [2] * 5
    assert failed["2 others"].sum() == (10 - 6) + (10 - 7)


def test_without_any_server_there_are_no_curves() -> None:
    empty = read_server_series([], axis_window(AXIS, CLIENT), AXIS.bins)
    assert server_curves(empty, AXIS, CLIENT) is None


def pool(target: str, role: str, waiting: float, queue_s: float, took_s: float) -> list[Row]:
    """A server that ends ten requests a second."""
    means = {"queue_s": queue_s, "e2el_s": took_s}
    sums = {f"{name}_sum": [10 * mean_s * i for i in ALL] for name, mean_s in means.items()}
    counts = {f"{name}_count": [10 * i for i in ALL] for name in means}
    counters = [row for name, values in (sums | counts).items() for row in rows(target, name, values)]
    return [
        *counters,
        *rows(target, "waiting", [waiting] * 10),
        *rows(target, "role", [1] * 10, role=role, source="the run"),
    ]


def test_servers_with_roles_have_curves_of_their_queues_and_of_the_parts_of_the_ttft() -> None:
    transfers = [
        *rows("d", "kv_transfer_s_sum", [10 * 0.02 * i for i in ALL]),
        *rows("d", "kv_transfer_s_count", [10 * i for i in ALL]),
    ]
    first, second = pool("p1", "prefill", 2, 0.01, 0.1), pool("p2", "prefill", 4, 0.03, 0.2)
    by_role = told(*first, *second, *pool("d", "decode", 1, 0.04, 2.0), *transfers).by_role
    assert by_role is not None
    assert {name: curve.tolist() for name, curve in by_role.waiting.items()} == {
        "prefill servers": [6] * 5,
        "decode servers": [1] * 5,
    }
    parts_s = {
        "TTFT of the client": 0.25,
        "prefill server, queue": 0.02,
        "prefill server, whole request": 0.15,
        "KV transfer": 0.02,
        "decode server, queue": 0.04,
    }
    assert by_role.parts_s.keys() == parts_s.keys()
    for name, mean_s in parts_s.items():
        assert by_role.parts_s[name] == pytest.approx([mean_s] * 5), name


def test_without_roles_or_without_their_histograms_there_are_no_such_curves() -> None:
    assert told(*rows("a", "running", [1])).by_role is None
    by_role = told(*rows("a", "role", [1] * 10, role="prefill", source="the run")).by_role
    assert by_role is not None
    assert (by_role.parts_s, by_role.waiting) == ({}, {})
