"""The last live figures, kept and read again."""

from pathlib import Path

import pytest
from live_cases import Run
from metrics_cases import failed, request

from llm_locust.figures.live_check import LastLatency
from llm_locust.live.store import live_end
from llm_locust.report.inputs import LIVE_FILE, read_live_end, write_live_end
from llm_locust.store import StoreError


def run() -> Run:
    made = Run()
    made.ended([request(arrivals=(0.1, 0.2, 0.3)), request(arrivals=(0.1,)), failed()])
    made.report()
    return made


def test_all_requests_of_the_run_are_in_the_last_figures() -> None:
    end = live_end(run().store)
    assert (end.run, end.ok, end.failed, end.cancelled, end.ended) == ("run", 2, 1, 0, 3)
    assert (end.resets, end.missed) == (0, 0)
    assert end.latency_ms["ttft"].n == 2
    assert end.latency_ms["ttft"].p50 == pytest.approx(100, rel=end.relative_error)
    assert end.latency_ms["itl"].n == 2


def test_resets_and_lost_reports_are_told() -> None:
    made = run()
    made.store.reset()
    end = live_end(made.store)
    assert (end.resets, end.ended) == (1, 0)
    assert end.latency_ms["tpot"] == LastLatency(n=0)


def test_figures_come_back_as_they_were_and_only_to_their_own_run(tmp_path: Path) -> None:
    end = live_end(run().store)
    assert read_live_end(tmp_path, "run") is None
    write_live_end(tmp_path, end)
    assert read_live_end(tmp_path, "run") == end
    assert read_live_end(tmp_path, "another") is None


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / LIVE_FILE).write_text("{}")
    with pytest.raises(StoreError, match=r"live\.json.*can do without") as raised:
        read_live_end(tmp_path, "run")
    assert "\n" not in str(raised.value)
