"""``llm-locust compare --pareto``: every load of several runs by the rates per user and per GPU."""

import csv
from pathlib import Path

import pytest
from compare_cases import write_made_run

from llm_locust.cli.main import main
from llm_locust.metrics.question import Question
from llm_locust.report.inputs import Source
from llm_locust.report.run.analysis import analyse


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [write_made_run(folder / name, seed, n=200) for seed, name in enumerate(("few", "many"), 1)]


def pareto(*words: object) -> int:
    return main(["compare", *map(str, words), "--pareto"])


def test_each_point_is_of_its_runs_own_summary_and_the_page_has_the_same_as_a_csv(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "pareto.html"
    assert pareto(*runs, "--gpus", 4, "--html", page) == 0
    printed = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "pareto.html.csv").read_text().splitlines()))
    assert [row["run"] for row in rows] == ["few", "many"]
    for row, path in zip(rows, runs, strict=True):
        summary = analyse(Source.of(path), Question()).summary
        tpot_ms, per_s = summary.latency_ms["tpot"].figure("p50"), summary.throughput.output_tokens_per_s
        assert tpot_ms
        assert per_s
        assert float(row["user_tokens_per_s"]) == pytest.approx(1e3 / tpot_ms)
        assert float(row["gpu_output_tokens_per_s"]) == pytest.approx(per_s / 4)
    best = max(rows, key=lambda row: float(row["gpu_output_tokens_per_s"]))
    assert best["is_best"] == "True"
    assert max(map(len, printed.splitlines())) <= 80
    assert "best" in printed
    text = page.read_text()
    assert '"id":"pareto"' in text.replace(" ", "")
    assert "default-src &#39;none&#39;" in text, "it loads nothing"


def test_a_run_without_gpus_is_refused_with_what_to_give(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pareto(*runs) == 2
    assert "does not say how many GPUs it had: give --gpus N for all runs" in capsys.readouterr().err


def test_what_the_points_do_not_have_is_refused(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert pareto(*runs, "--gpus", 4, "--gate", "p50_ttft<=+5%") == 2
    assert "--pareto takes no --gate" in capsys.readouterr().err
