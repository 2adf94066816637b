"""What the answers took of electrical energy."""

from typing import Any

import pytest
from metrics_cases import plain
from server_cases import Row, rows, series

from llm_locust.figures.energy import energy as energy_of


def energy(*given: Any, **more: Any) -> Any:
    series, figures = given
    found = energy_of(series, figures["throughput"], figures["goodput"])
    return {} if found is None else {"missing": found} if isinstance(found, str) else plain(found)


FIGURES: dict[str, Any] = {
    "throughput": {"output_tokens_per_s": 1000.0, "total_tokens_per_s": 3000.0, "requests_per_s": 5.0},
    "goodput": {"requests_per_s": 4.0, "output_tokens_per_s": 800.0},
}


def gpu(uuid: str, watts: float = 500.0, target: str = "dcgm") -> list[Row]:
    return rows(target, "energy_j", [1e6 + watts * i for i in range(11)], UUID=uuid)


def test_joules_are_those_of_the_counters_over_the_window() -> None:
    found = energy(series([*gpu("g1", 500.0), *gpu("g2", 300.0)]), FIGURES)
    assert (found["gpus"], found["by_counter"]) == (2, 2)
    assert found["power_w"] == pytest.approx(800)
    assert found["joules"] == pytest.approx(8000)
    assert found["joules_per_output_token"] == pytest.approx(0.8)
    assert found["joules_per_token"] == pytest.approx(8 / 30)
    assert found["joules_per_good_request"] == pytest.approx(200)
    assert found["per_watt"]["output_tokens_per_s"] == pytest.approx(1000 / 800)
    assert found["per_watt"]["goodput_requests_per_s"] == pytest.approx(4 / 800)
    assert found["per_gpu"]["goodput_output_tokens_per_s"] == pytest.approx(400)


def test_without_a_counter_it_is_power_by_time() -> None:
    found = energy(series(rows("dcgm", "power_w", [200, 400] * 5 + [300], UUID="g1")), FIGURES)
    assert (found["gpus"], found["by_counter"]) == (1, 0)
    assert found["joules"] == pytest.approx(3000)


def test_a_gpu_of_two_exporters_and_of_two_metrics_counts_once() -> None:
    power = rows("triton", "power_w", [999] * 11, gpu_uuid="g1")
    found = energy(series([*gpu("g1"), *gpu("g1", target="other"), *power]), FIGURES)
    assert (found["gpus"], found["power_w"]) == (1, pytest.approx(500))


def test_a_gpu_that_was_watched_for_half_of_the_window_gives_no_figure() -> None:
    half = rows("dcgm", "energy_j", [0, 500, 1000, 1500, 2000], UUID="g2")
    found = energy(series([*gpu("g1"), *half]), FIGURES)
    assert found == {"missing": "observed for less than 90 % of the window: g2"}


def test_power_stands_in_where_the_counter_was_watched_too_little() -> None:
    half = rows("dcgm", "energy_j", [0, 500, 1000], UUID="g1")
    found = energy(series([*half, *rows("dcgm", "power_w", [100] * 11, UUID="g1")]), FIGURES)
    assert (found["power_w"], found["by_counter"]) == (pytest.approx(100), 0)


def test_what_is_not_known_is_none_and_without_a_gpu_there_is_nothing() -> None:
    none = {"throughput": dict.fromkeys(FIGURES["throughput"]), "goodput": dict.fromkeys(FIGURES["goodput"])}
    found = energy(series(gpu("g1")), none)
    assert found["joules"] == pytest.approx(5000)
    assert found["joules_per_output_token"] is found["per_watt"]["requests_per_s"] is None
    assert energy(series(rows("t", "running", [1.0] * 11)), FIGURES) == {}
