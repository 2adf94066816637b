"""A whole search: loads chosen while the swarm runs, an answer with its gate, code and page."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from swarm_process import LOCUSTFILES, Process, Result, locust, simulation

from llm_locust.core import EXIT_INVALID

#: A step takes 6 ms and 12 ms a user. Of short answers, with pauses between them, three users have a token
#: every 35 ms, four every 47 ms: the limit lies between, or a search would go on until no stages are left.
ENGINE = ("--replicas", "1", "--step-base", "6ms", "--step-per-seq", "12ms")
OBJECTIVE, LIMIT_MS = "max concurrency under p50_tpot<41ms", 41
SEARCH = ("--find", OBJECTIVE, "--first-load", "2", "--stage-time", "2s", "--warmup", "0.5s")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, str]:
    folder = tmp_path_factory.mktemp("search")
    lengths = ("--input-tokens", "16", "--output-tokens", "3")
    words = ("--headless", *lengths, *SEARCH, "--gate", "edge>=2", "--out", "run", "-r", "100")
    with (
        simulation(folder, *ENGINE) as simulated,
        locust(folder, "-H", simulated.url, *words, locustfile=LOCUSTFILES / "chat.py") as process,
    ):
        code = process.exit_code()
        result = Result.read(folder / "run")
        answer = result.summary["search"]["answer"]
        has_answer = any(answer[bound] is not None for bound in ("load", "at_least", "at_most"))
        judged = 0 if result.summary["gates"][0]["passed"] else 1
        assert code == (judged if has_answer else EXIT_INVALID), process.stderr
        return result, process.stdout


def medians_ms(result: Result) -> dict[float, float]:
    """Median time per output token at each load, by pandas: a busy machine slows the server too."""
    frame = pd.read_parquet(result.path / "requests.parquet")
    frame = frame[(frame["outcome"] == "ok") & (frame["stage"] >= 0)]
    frame = frame[frame["arrivals_ns"].map(len) > 1]  # a busy server writes all tokens of an answer at once
    tpot_ms = frame["arrivals_ns"].map(lambda at: (at[-1] - at[0]) / (len(at) - 1) / 1e6)
    asked = {stage.number: stage.asked for stage in result.manifest.stages}
    return dict(tpot_ms.groupby(frame["stage"].map(asked)).median().items())  # type: ignore[arg-type]


#: How far the median of a stage may be from the limit by what lies outside its measured part.
EDGE_MS = 3.0


def test_the_answer_is_the_edge_or_says_what_hid_it(run: tuple[Result, str]) -> None:
    result, printed = run
    search = result.summary["search"]
    assert search["objective"] == OBJECTIVE
    assert [stage["load"] for stage in search["stages"]] == [s.asked for s in result.manifest.stages]
    assert len(search["stages"]) <= 12
    answer = search["answer"]
    if not answer["is_resolved"]:
        busy = ("the client is the limit", "gave no result", "make stages longer", "stages were allowed")
        assert any(why in answer["why"] for why in busy), answer
        return
    assert answer["limit"] == f"p50_tpot<{LIMIT_MS}ms"
    assert f"{answer['load']:.3g} users" in printed
    for load, median_ms in medians_ms(result).items():
        assert load > answer["load"] or median_ms < LIMIT_MS + EDGE_MS, answer
        assert load <= answer["load"] or median_ms > LIMIT_MS - EDGE_MS, answer


def test_the_workers_stay_and_every_stage_is_drained(run: tuple[Result, str]) -> None:
    manifest = run[0].manifest
    assert manifest.is_sweep
    assert manifest.complete
    assert [stage.fault for stage in manifest.stages] == [""] * len(manifest.stages)


def test_the_gate_is_on_the_edge_and_the_report_can_be_asked_for_another(
    run: tuple[Result, str], tmp_path: Path
) -> None:
    result, printed = run
    (gate,) = result.summary["gates"]
    assert gate["passed"] == (gate["value"] is not None and gate["value"] >= 2)
    assert "edge>=2" in printed
    asked = [sys.executable, "-m", "llm_locust", "report", str(result.path), "--gate"]
    again = Process([*asked, "edge>=50"], tmp_path)
    answer = result.summary["search"]["answer"]
    has_answer = any(answer[bound] is not None for bound in ("load", "at_least", "at_most"))
    assert again.exit_code() == (1 if has_answer else EXIT_INVALID), again.stderr
    assert "edge>=50" in again.stdout
    refused = Process([*asked, "p99_ttft<1s"], tmp_path)
    assert refused.exit_code() == 2
    again.end()
    refused.end()
    assert "a sweep has several loads" in refused.stderr


def test_the_page_has_the_answer_and_no_figure_over_all_loads(run: tuple[Result, str]) -> None:
    page = (run[0].path / "report.html").read_text()
    assert "Search: max concurrency" in page
    assert "Readings of the search" in page
    assert "Goodput at any limit" not in page
