"""From the records of a run directory to its summary and reports."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from report_cases import lost_records, records, write_run

from llm_locust.figures.summary import read_summary
from llm_locust.metrics.gates import GateError, SloError
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.report.console import print_report
from llm_locust.report.inputs import Source
from llm_locust.report.run.analysis import analyse, build_report
from llm_locust.store import (
    REPORT_HTML_FILE,
    REPORT_MD_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
    StoreError,
)


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_the_reports_are_written_beside_the_records(tmp_path: Path) -> None:
    before = set(files(write_run(tmp_path)))
    report = build_report(tmp_path)
    assert set(files(tmp_path)) - before == {SUMMARY_FILE, REPORT_HTML_FILE, REPORT_MD_FILE, TIMESERIES_FILE}
    assert read_summary((tmp_path / SUMMARY_FILE).read_bytes()) == report.summary
    assert (tmp_path / REPORT_MD_FILE).read_text().startswith("## ❌ FAIL: 5 of 100 requests failed")
    assert (tmp_path / REPORT_HTML_FILE).read_text().startswith("<!doctype html>")
    assert (tmp_path / TIMESERIES_FILE).read_text().startswith("second,time,started,")


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    build_report(write_run(tmp_path))
    first = files(tmp_path)
    build_report(tmp_path)
    assert files(tmp_path) == first


def test_limits_are_those_of_the_run_where_none_are_given(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, gates="rps>1", warmup_s=2.0))
    assert report.summary.goodput.slo == {"ttft": 100.0, "tpot": 50.0}
    assert [gate.text for gate in report.summary.gates] == ["rps>1"]
    assert report.summary.window.seconds == pytest.approx(8)


def test_other_limits_judge_the_same_records_anew(tmp_path: Path) -> None:
    write_run(tmp_path, gates="rps>1", warmup_s=2.0)
    report = build_report(tmp_path, Question(slo="ttft=1s", gates="goodput>=99%", warmup_s=0.0))
    assert report.summary.goodput.slo == {"ttft": 1000.0}
    assert report.summary.goodput.ratio == 0.95
    assert [gate.text for gate in report.summary.gates] == ["goodput>=99%"]
    assert report.summary.window.seconds == pytest.approx(10)
    assert report.exit_code == 1


def test_an_empty_text_takes_a_limit_away(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, gates="rps>1000"), Question(slo="", gates=""))
    assert report.summary.goodput.slo == {}
    assert report.verdict is None


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ({"options": {"models": "base=1,lora=2"}}, True),
        ({"scenario_document": {"models": "base,lora"}}, True),
        ({"scenario_document": {"classes": {"a": {"models": {"base": 1, "lora": 1}}}}}, True),
        ({"scenario_document": {"classes": [{"name": "a", "models": "lora"}, {"name": "b"}]}}, True),
        ({"options": {"models": ""}}, False),
    ],
)
def test_a_run_over_several_models_has_its_figures_by_model_unasked(
    tmp_path: Path, said: Any, has: bool
) -> None:
    run = write_run(tmp_path, records(ok=3, bad=1), **said)
    assert list(analyse(Source.of(run), PLAIN).summary.by or ()) == ["model"] * has


def test_models_have_a_table_in_every_format_beside_what_is_asked_for(tmp_path: Path) -> None:
    made = [replace(r, model="lora" if i % 3 else "base") for i, r in enumerate(records())]
    run = write_run(tmp_path, made, options={"models": "base=1,lora=2"})
    summary = build_report(run, Question(by=("user",))).summary
    assert summary.by is not None
    assert list(summary.by) == ["user", "model"]
    assert {name: part.requests.population for name, part in summary.by["model"].groups.items()} == {
        name: sum(r.model == name for r in made) for name in ("base", "lora")
    }
    printed = StringIO()
    print_report(summary, None, printed, 80)
    for text in (
        printed.getvalue(),
        (run / REPORT_MD_FILE).read_text(),
        (run / REPORT_HTML_FILE).read_text(),
    ):
        assert "Model" in text
        assert "lora" in text


def test_the_steady_window_can_be_judged_instead(tmp_path: Path) -> None:
    made = [*records(user=1), *records(bad=0, user=2)]
    assert build_report(write_run(tmp_path, made), Question(window="steady")).summary.window.rule.startswith(
        "steady"
    )


@pytest.mark.usefixtures("without_page")
def test_the_exit_code_says_what_is_wrong(tmp_path: Path) -> None:
    blind = records(kernel_stamps=False, client_lag_ns=30_000_000)
    assert build_report(write_run(tmp_path / "none")).verdict is None
    assert build_report(write_run(tmp_path / "held", gates="rps>1 error_rate<=10%")).exit_code == 0
    assert build_report(write_run(tmp_path / "broken", gates="rps>99")).exit_code == 1
    assert build_report(write_run(tmp_path / "invalid", blind, require_valid=True)).exit_code == 3
    incomplete = write_run(tmp_path / "incomplete", gates="error_rate<=10%", workers=lost_records(100, 1))
    assert build_report(incomplete).exit_code == 4
    assert build_report(incomplete, allow_incomplete=True).exit_code == 0


def test_a_run_without_a_request_has_its_reports(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, [], gates="requests>0"))
    assert report.exit_code == 3
    assert report.summary.latency_ms["ttft"].known.p50 is None


def test_text_that_is_no_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    before = files(write_run(tmp_path))
    with pytest.raises(SloError, match="unknown metric"):
        build_report(tmp_path, Question(slo="tffd=1s"))
    with pytest.raises(GateError, match="unknown metric"):
        build_report(tmp_path, Question(gates="goodness>1"))
    assert files(tmp_path) == before


def test_what_is_not_a_run_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        build_report(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        build_report(tmp_path)
    (write_run(tmp_path / "run") / REQUESTS_FILE).write_bytes(b"PAR1 no more")
    with pytest.raises(StoreError, match=r"requests\.parquet"):
        build_report(tmp_path / "run")


def test_reports_that_cannot_be_written_are_an_error_that_names_the_directory(tmp_path: Path) -> None:
    (write_run(tmp_path / "run") / REPORT_MD_FILE).mkdir()
    with pytest.raises(StoreError, match=r"the reports in '.*run' cannot be written: Is a directory"):
        build_report(tmp_path / "run")
