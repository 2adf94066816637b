"""A run directory with batches becomes one with its reports: called, and as a command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_cases import Run as Live
from metrics_cases import Row, ns, rows
from report_cases import manifest, records, write_frames, write_run
from test_report_html import Page

from llm_locust.core.manifest import ScrapeFacts
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.figures.cost import Energy
from llm_locust.figures.latency import LiveCheck
from llm_locust.figures.summary import read_summary
from llm_locust.figures.verdict import RunVerdict
from llm_locust.live.snapshot import live_end
from llm_locust.metrics.question import Question
from llm_locust.report.analysis import analyse, build_report
from llm_locust.report.commands import FinishAnswer, main
from llm_locust.report.finish import finish_run
from llm_locust.report.inputs import LIVE_FILE, open_source, write_live_end
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REPORT_HTML_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    StoreError,
    open_requests,
    read_manifest,
    write_manifest,
)


def answer(said: str) -> FinishAnswer:
    """What the command said, which is one line of JSON and nothing else."""
    (line,) = said.splitlines()
    return msgspec.json.decode(line, type=FinishAnswer)


def test_a_run_of_frames_gets_its_requests_and_the_reports_of_them(tmp_path: Path) -> None:
    report = finish_run(write_frames(tmp_path / "frames", gates="rps>99"))
    same = build_report(write_run(tmp_path / "written", gates="rps>99"))
    assert (report.exit_code, report.summary) == (1, same.summary)
    assert not (tmp_path / "frames" / FRAMES_FILE).exists()
    assert len(open_requests(tmp_path / "frames")) == 100


def test_a_run_that_is_finished_again_keeps_its_records(tmp_path: Path) -> None:
    first = finish_run(write_frames(tmp_path))
    assert finish_run(tmp_path) == first
    assert len(open_requests(tmp_path)) == 100


def test_a_run_whose_process_was_killed_between_parquet_and_removal_is_finished_from_its_frames(
    tmp_path: Path,
) -> None:
    frames = (write_frames(tmp_path) / FRAMES_FILE).read_bytes()
    first = finish_run(tmp_path)
    (tmp_path / FRAMES_FILE).write_bytes(frames)
    assert finish_run(tmp_path) == first
    assert not (tmp_path / FRAMES_FILE).exists()


def test_a_run_that_nothing_came_of_has_a_report_of_nothing(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(0))
    assert finish_run(tmp_path).summary.requests.scheduled == 0


def test_what_is_no_run_is_refused_and_nothing_is_written_into_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        finish_run(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        finish_run(tmp_path)
    (write_frames(tmp_path) / MANIFEST_FILE).write_text("{")
    with pytest.raises(StoreError, match="is not a manifest"):
        finish_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MANIFEST_FILE, FRAMES_FILE}


def test_the_command_says_the_exit_code_of_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_frames(tmp_path / "-run", gates="error_rate<=10%", workers_expected=2)
    assert main(["finish", "--", "-run"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    said = answer(out).verdict
    assert said is not None
    assert (said.code, said.reason) == (4, "records are missing; --allow-incomplete accepts that")
    assert (tmp_path / "-run" / SUMMARY_FILE).exists()
    assert main(["finish", "--allow-incomplete", str(tmp_path / "-run")]) == 0
    assert answer(capfd.readouterr().out) == FinishAnswer(RunVerdict(0), error=None)


def test_the_command_says_what_is_wrong_in_one_line_and_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (write_frames(tmp_path / "run") / REQUESTS_FILE).mkdir()
    assert main(["finish", str(tmp_path / "run")]) == 1
    said = capfd.readouterr()
    assert said.err == ""
    error = answer(said.out).error or ""
    assert REQUESTS_FILE in error
    assert "\n" not in error
    assert (tmp_path / "run" / FRAMES_FILE).exists(), "the records stay"


def test_the_command_ends_well_where_nobody_reads_its_answer(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        words = [sys.executable, "-m", "llm_locust.report.commands", "finish", str(write_frames(tmp_path))]
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / SUMMARY_FILE).exists()


ALL = range(12)
QUEUES = ["prefill server, queue", "decode server, queue"]
HOSTILE = "<b>x</b>:8000"


def replica(target: str) -> list[Row]:
    return [
        *rows(target, "up", [1, 1, 0, *[1] * 9]),
        *rows(target, "running", [3 for _ in ALL]),
        *rows(target, "waiting", [1 for _ in ALL]),
        *rows(target, "generation_tokens", [50 * i for i in ALL]),
        *rows(target, "ttft_s_sum", [0.3 * i for i in ALL]),
        *rows(target, "ttft_s_count", [5 * i for i in ALL]),
        *rows("dcgm", "energy_j", [100 * i for i in ALL], UUID="g", gpu="0"),
    ]


def scraped(path: Path, **facts: Any) -> Path:
    """A run and what was scraped of it, not compacted yet."""
    run = write_run(path, **facts)
    with SampleWriter(run / SERVER_METRICS_FILE) as writer:
        samples = sorted({*replica(HOSTILE), *replica("b:8000")})
        writer.write(
            [
                ServerSample(ns(at_s), target, name, labels, value)
                for at_s, target, name, labels, value in samples
            ]
        )
    return run


def charts(run: Path) -> dict[str, Any]:
    return Page((run / REPORT_HTML_FILE).read_text(encoding="utf-8")).charts()


def test_servers_and_energy_are_in_the_summary_and_on_the_page(tmp_path: Path) -> None:
    run = scraped(tmp_path / "run")
    summary = build_report(run).summary
    assert summary.server is not None
    assert [target.name for target in summary.server.targets] == [HOSTILE, "b:8000", "dcgm"]
    assert summary.server.failure is None
    assert isinstance(summary.energy, Energy)
    assert summary.energy.joules == pytest.approx(1000)
    page = Page((run / REPORT_HTML_FILE).read_text(encoding="utf-8"))
    assert HOSTILE in page.text("servers")
    assert "gateway and balancer" in page.text("servers")
    assert "J per output token" in page.text("cost")
    found = page.charts()
    drawn = [chart for chart in found if chart.startswith("servers-")]
    assert drawn == [
        *("servers-requests", "servers-ttft", "servers-tokens"),
        *("servers-running", "servers-waiting", "servers-failed"),
    ]  # fmt: skip
    of_client = found["concurrency-over-time"]["data"][0]["columns"]["time (s)"]
    assert found["servers-running"]["data"][0]["columns"]["time (s)"] == of_client


def test_servers_with_roles_have_charts_by_role_and_none_of_a_ttft_of_both_kinds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with SampleWriter(run / SERVER_METRICS_FILE) as writer:
        for target, role in (("p:8000", "prefill"), ("d:8000", "decode")):
            told = rows(target, "queue_s_sum", [0.1 * i for i in ALL])
            told += rows(target, "queue_s_count", [5 * i for i in ALL])
            told += [*replica(target), *rows(target, "role", [1 for _ in ALL], role=role, source="the run")]
            writer.write([ServerSample(ns(row[0]), *row[1:]) for row in sorted(told)])
    build_report(run)
    drawn = charts(run)
    assert {"servers-role-ttft", "servers-role-waiting"} <= drawn.keys()
    assert "servers-ttft" not in drawn
    parts = drawn["servers-role-ttft"]["data"]
    columns = list(parts[0]["columns"])
    assert columns[1:] == [f"{name} (ms)" for name in ("TTFT of the client", *QUEUES)]


def test_servers_with_roles_that_tell_no_part_of_the_ttft_keep_its_chart(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with SampleWriter(run / SERVER_METRICS_FILE) as writer:
        roles = rows("p:8000", "role", [1 for _ in ALL], role="prefill", source="the run")
        told = sorted([*replica("p:8000"), *roles])
        writer.write([ServerSample(ns(row[0]), *row[1:]) for row in told])
    build_report(run)
    drawn = charts(run)
    assert drawn.keys() >= {"servers-ttft", "servers-role-waiting"}
    assert "servers-role-ttft" not in drawn
    assert "of all roles together" in (run / REPORT_HTML_FILE).read_text(encoding="utf-8")


def test_a_report_made_later_is_the_same(tmp_path: Path) -> None:
    run = scraped(tmp_path / "run")
    first = finish_run(run)
    assert (run / SERVER_METRICS_FILE).exists()
    assert not list(run.glob("*.arrows"))
    assert finish_run(run) == first
    with open_source([run]) as source:
        again = analyse(source, Question())
    assert again.summary == first.summary
    assert again.scraped is not None


def test_a_file_with_what_no_server_can_tell_is_reported_without_that(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    odd = [
        ServerSample(ns(3.0), "b:8000", "ttft_s_bucket", '{"le":"foo"}', 1.0),
        ServerSample(ns(3.0), "b:8000", "generation_tokens", "{}", 1e308),
    ]
    with SampleWriter(run / SERVER_METRICS_FILE) as writer:
        writer.write([ServerSample(ns(row[0]), *row[1:]) for row in sorted(replica("b:8000"))] + odd)
    server = build_report(run).summary.server
    assert server is not None
    assert server.total.generation_tokens == 500
    assert server.failure is not None
    assert "2 samples cannot be right and were left out" in server.failure
    page = Page((run / REPORT_HTML_FILE).read_text(encoding="utf-8")).text("servers")
    assert "'generation_tokens' (the value is not within ±1e+18)" in page


def test_of_a_selection_and_of_several_runs_there_are_no_servers(tmp_path: Path) -> None:
    run, other = scraped(tmp_path / "run"), write_run(tmp_path / "other", [])
    with open_source([run]) as source:
        some = analyse(source, Question(where="name==chat"))
        assert (some.summary.server, some.summary.energy) == (None, None)
        assert some.scraped is None
    manifest = json.loads((other / MANIFEST_FILE).read_text()) | {"id": "another"}
    (other / MANIFEST_FILE).write_text(json.dumps(manifest))
    with open_source([run, other]) as source:
        assert analyse(source, Question()).summary.server is None


def test_a_scraper_that_died_is_told_with_its_time(tmp_path: Path) -> None:
    facts = ScrapeFacts(failure="was ended by signal 9 (SIGKILL)", failed_ns=ns(4.0))
    run = scraped(tmp_path / "run", server_metrics=facts)
    found = build_report(run).summary.server
    assert found is not None
    assert found.failure == "the scraper was ended by signal 9 (SIGKILL), 4.00 s after the start"
    assert "SIGKILL" in Page((run / REPORT_HTML_FILE).read_text(encoding="utf-8")).text("servers")


def test_a_file_that_cannot_be_read_costs_the_servers_and_not_the_report(tmp_path: Path) -> None:
    run = scraped(tmp_path / "run")
    (run / SERVER_METRICS_FILE).write_bytes(b"PAR1 or not")
    summary = finish_run(run).summary
    assert summary.server is not None
    assert "cannot be read as server metrics" in (summary.server.failure or "")
    assert summary.requests.scheduled == 100
    assert not any(chart.startswith("servers-") for chart in charts(run))


def test_a_run_without_scraping_says_nothing_of_servers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    summary = build_report(run).summary
    assert (summary.server, summary.energy, summary.live_check) == (None, None, None)
    assert "#servers" not in (run / REPORT_HTML_FILE).read_text(encoding="utf-8")


def test_live_figures_are_checked_when_the_run_is_finished_and_the_manifest_has_what_was_found(
    tmp_path: Path,
) -> None:
    made = Live()
    made.ended(records())
    made.report()
    run = write_run(tmp_path / "run")
    write_live_end(run, live_end(made.store))
    assert finish_run(run).summary.live_check is None, "they are of another run"
    text = (run / LIVE_FILE).read_text().replace('"run": "run"', f'"run": "{read_manifest(run).id}"')
    (run / LIVE_FILE).write_text(text)
    checked = finish_run(run).summary.live_check
    assert checked is not None
    assert checked.within is True
    assert msgspec.convert(read_manifest(run).live_check, LiveCheck) == checked
    assert read_summary((run / SUMMARY_FILE).read_bytes()).live_check == checked
