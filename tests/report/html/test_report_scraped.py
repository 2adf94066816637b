"""A run directory with samples of its servers: in the summary, on the page, and where they are damaged."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_cases import Run as Live
from metrics_cases import ns
from report_cases import records, write_run
from server_cases import Row, rows
from test_report_html import Page

from llm_locust.core.manifest import ScrapeFacts
from llm_locust.deployment.samples import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.figures.energy import Energy
from llm_locust.figures.live_check import LiveCheck
from llm_locust.figures.summary import read_summary
from llm_locust.live.store import live_end
from llm_locust.metrics.question import Question
from llm_locust.report.inputs import LIVE_FILE, open_source, write_live_end
from llm_locust.report.run.analysis import analyse, build_report
from llm_locust.report.run.finish import finish_run
from llm_locust.store import MANIFEST_FILE, REPORT_HTML_FILE, SUMMARY_FILE, read_manifest

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
