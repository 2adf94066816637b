"""The list of reports in the web UI: what it says of each run, and the page of two."""

import re
from pathlib import Path
from typing import Any

import pytest
from compare_cases import write_made_run
from metrics_cases import ns

from llm_locust.metrics.question import PLAIN
from llm_locust.report.inputs import open_source
from llm_locust.report.run.analysis import analyse, write_reports
from llm_locust.swarm.web.reports import ComparisonError, KnownRun, Reports


def reported(path: Path, number: int, slower: float = 1.0, **known: Any) -> KnownRun:
    """A run with its report."""
    write_made_run(path, number, slower, n=300, started_ns=ns(3600 * number), **known)
    with open_source([path]) as source:
        write_reports(path, analyse(source, PLAIN), None)
    return KnownRun(path.name, path, "http://h", "m")


def test_the_list_has_verdict_goodput_and_p99_of_each_run_and_a_page_of_two(tmp_path: Path) -> None:
    reports = Reports()
    usual, slow = (reported(tmp_path / name, i, 1 + i) for i, name in enumerate(("usual", "slow")))
    none = KnownRun("none", tmp_path / "none", "http://h", "m")
    for run in (usual, slow, none):
        reports.add(run)
    found = reports.figures(slow)
    assert found is not None
    assert (found.word, found.tone) == ("PASS", "good")
    assert re.fullmatch(r"[\d.]+ %", found.goodput)
    assert re.fullmatch(r"[\d.]+ ms", found.ttft_p99)
    assert reports.figures(slow) is found  # read once
    (slow.path / "summary.json").write_text("{")
    assert reports.figures(slow) is None
    assert reports.figures(none) is None
    assert [
        reports.comparison(*pair) for pair in (("usual", "usual"), ("usual", "none"), ("usual", "x"))
    ] == [None] * 3
    page = reports.comparison("usual", "slow")
    assert page is not None
    assert page.parent == slow.path
    assert "WORSE" in page.read_text()
    at_ns = page.stat().st_mtime_ns
    assert reports.comparison("usual", "slow") == page
    assert page.stat().st_mtime_ns == at_ns  # made once
    (usual.path / "requests.parquet").write_bytes(b"no Parquet")
    with pytest.raises(ComparisonError, match="cannot be read as requests"):
        reports.comparison("slow", "usual")


def test_only_known_files_of_known_runs_are_found(tmp_path: Path) -> None:
    reports = Reports()
    reports.add(KnownRun("a", tmp_path, "http://h", "m"))
    (tmp_path / "report.html").write_text("r")
    (tmp_path / "so-far").mkdir()
    (tmp_path / "so-far" / "report.html").write_text("s")
    (tmp_path / "manifest.json").write_text("{}")
    assert reports.file("a", "report.html") == tmp_path / "report.html"
    assert reports.file("a", "report.html", so_far=True) == tmp_path / "so-far" / "report.html"
    assert reports.file("b", "report.html") is None
    assert [reports.file("a", name) for name in ("manifest.json", "../report.html", "summary.json")] == [
        None
    ] * 3
