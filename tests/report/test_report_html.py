"""The page: what is on it, and that nothing in it is markup, code or a load from elsewhere."""

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from metrics_cases import (
    NAMES,
    at_random,
    batch,
    failed,
    in_turn,
    manifest as metrics_manifest,
    request,
    served,
    stage,
)
from msgspec.structs import replace as replace_of_structs
from report_cases import held_back, manifest, records, seen_worker
from summaries import summarise, typed

from llm_locust.core.manifest import PrefixShare, ReplicaCache
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.core.stages import with_stages
from llm_locust.figures.charts import run_charts
from llm_locust.figures.summary import Summary
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.report.html.charts import over_load
from llm_locust.report.html.over_time import MOST_SHOWN, in_flight
from llm_locust.report.html.page import html_report
from llm_locust.report.html.shell import Chart, plotly

EVIL = "<script>alert(1)</script><!--<b onclick=x()>\u2028"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """A page taken apart: its text by the nearest id, its tags, the content of its scripts."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self.open.pop()
        assert opened == tag, f"</{tag}> ends <{opened}>"

    def handle_data(self, data: str) -> None:
        tag, attrs = self.open[-1] if self.open else ("", {})
        if tag == "script":
            self.scripts.append((attrs, data))
        elif tag != "style":
            ids = [a["id"] for _, a in self.open if a.get("id")]
            self.texts.setdefault(str(ids[-1]) if ids else "", []).append(data)

    def text(self, id_: str | None = None) -> str:
        chosen = self.texts.get(id_, []) if id_ else [t for some in self.texts.values() for t in some]
        return " ".join(" ".join(chosen).split())

    def charts(self) -> dict[str, Any]:
        (data,) = (text for attrs, text in self.scripts if attrs.get("type") == "application/json")
        return {chart["id"]: chart for chart in json.loads(data)["charts"]}


def page(made: list[RequestRecord] | None = None, **facts: Any) -> Page:
    if made is None:
        return page(records(), **facts) if facts else _usual()
    rows = batch(*made)
    known = manifest(len(rows), **facts)
    found = summarise(rows, known)
    measured = measure(rows, known, PLAIN)
    return Page(html_report(rows, known, typed(found), measured).decode())


@cache
def _usual() -> Page:
    return page(records())


def test_a_stream_that_was_held_back_is_told_on_the_first_screen() -> None:
    assert "buffered" not in page().text()
    text = " ".join(page(held_back(records(output_tokens=15))).text().split())
    assert text.index("Stream buffered on the way") < text.index("Requests in flight by replica")
    assert "TTFT, TPOT and ITL are not the server's (median gap 0 ms, 3.00 tokens per event)" in text


def test_every_chapter_of_the_contents_is_there() -> None:
    found = page(workers=[seen_worker(0, 50), seen_worker(1, 50)])
    links = {attrs["href"] for tag, attrs in found.tags if tag == "a"}
    ids = {f"#{attrs['id']}" for _, attrs in found.tags if attrs.get("id")}
    assert links <= ids
    assert {"#over-time", "#latency", "#load", "#limits", "#groups", "#slowest", "#errors"} <= links
    assert {"#definitions", "#configuration"} <= links


def test_the_charts_that_a_review_asks_for_are_there_with_title_reading_and_csv() -> None:
    found = page()
    charts = found.charts()
    assert set(charts) == {
        *("ttft-over-time", "tpot-over-time", "e2el-over-time"),
        *("tokens-over-time", "requests-over-time", "concurrency-over-time", "failures-over-time"),
        *("cdf", "tail", "ttft-by-input", "tpot-by-concurrency", "itl-heat-map"),
        *("goodput-by-ttft", "goodput-by-tpot", "goodput-by-e2el", "goodput-surface", "slowest"),
        "replicas-in-flight",
    }
    plots = [attrs["data-chart"] for _, attrs in found.tags if "data-chart" in attrs]
    assert sorted(map(str, plots)) == sorted(charts)
    for id_, chart in charts.items():
        buttons = [attrs for _, attrs in found.tags if attrs.get("data-csv") == id_]
        assert len(buttons) == len(chart["data"])
        assert chart["reading"].endswith(".")
        assert found.text(f"chart-{id_}").startswith(chart["title"])


def test_all_columns_of_a_chart_are_equally_long_and_its_series_are_among_them() -> None:
    for chart in page().charts().values():
        for data in chart["data"]:
            assert len({len(column) for column in data["columns"].values()}) == 1
        for series in chart["series"]:
            columns = chart["data"][series["table"]]["columns"]
            assert series["x"] in columns
            assert series["kind"] == "heat" or series["y"] in columns


def test_a_chart_without_anything_to_draw_is_left_out() -> None:
    assert "failures-over-time" not in page(records(bad=0)).charts()
    whole = [request(i * 0.1, (), ended=i * 0.1 + 1, streamed=False) for i in range(20)]
    charts = page(whole).charts()
    assert "itl-heat-map" not in charts
    assert "ttft-by-input" not in charts
    assert "goodput-by-e2el" in charts


def test_the_goodput_curve_goes_through_the_goodput_of_the_report() -> None:
    (data,) = page().charts()["goodput-by-ttft"]["data"]
    at = data["columns"]["TTFT limit (ms)"].index(100)
    assert data["columns"]["all limits (%)"][at] == 51
    assert data["columns"]["alone (%)"][at] == 51


def test_the_limit_is_a_line_only_where_it_does_not_press_the_curves_down() -> None:
    near = page().charts()["ttft-over-time"]
    assert [mark["at"] for mark in near["marks"]] == [100]
    far = page(slo="ttft=100s").charts()["ttft-over-time"]
    assert far["marks"] == []
    assert "100,000 ms is above the chart" in far["reading"]


def test_a_slope_is_said_in_words_and_a_flat_one_is_called_so() -> None:
    slope = [request(i * 0.01, (0.04 + 2e-5 * i, 1.0), input_tokens=i + 1) for i in range(400)]
    (said,) = page(slope).charts()["ttft-by-input"]["notes"]
    assert said.startswith("+20.0 ms per 1,000 input tokens")
    assert "50,000 tokens/s" in said
    noise = [
        request(i * 0.01, (0.04 + 0.001 * (i * 7919 % 101), 1.0), input_tokens=i + 1) for i in range(400)
    ]
    (said,) = page(noise).charts()["ttft-by-input"]["notes"]
    assert said.startswith("No slope beyond noise")
    (said,) = page().charts()["ttft-by-input"]["notes"]
    assert said.startswith("No line: prompts hardly varied")


def test_the_slowest_requests_show_what_they_waited_for() -> None:
    made = [*records(), request(2.0, (), ended=9.0, outcome=Outcome.TIMEOUT, request_id="stuck")]
    columns = page(made).charts()["slowest"]["data"][0]["columns"]
    assert columns["request"][0] == "stuck"
    assert columns["first byte (ms)"][0] == 7000


def test_text_of_a_server_or_a_user_stays_text() -> None:
    made = [
        request(i * 0.1, name=f"{EVIL}{i % 2}", replica=EVIL, slo_class=EVIL, request_id=EVIL)
        for i in range(30)
    ]
    made += [failed(4.0, error=f"{EVIL} http://evil.example")]
    found = page(
        made, name=EVIL, model=EVIL, host=EVIL, options={EVIL: EVIL}, id=EVIL, versions={"llm-locust": EVIL}
    )
    assert not found.open
    # Page() checks that every tag is closed: none of the text opened or closed one.
    assert [tag for tag, attrs in found.tags if tag == "b" and attrs] == []
    assert all("onclick" not in attrs for _, attrs in found.tags)
    shown = "<script>alert(1)</script><!--<b onclick=x()>"
    for place in ("top", "groups", "slowest", "errors", "configuration"):
        assert shown[:16] in found.text(place), place  # names are cut where a table would be too wide
    (data,) = (text for attrs, text in found.scripts if attrs.get("type") == "application/json")
    assert not set("<>&\u2028") & set(data)
    assert shown in json.dumps(json.loads(data))


def test_there_is_one_plotly_and_only_the_page_s_own_scripts_may_run() -> None:
    found = page()
    (own,) = (text for attrs, text in found.scripts if not attrs.get("type"))
    (packed,) = (text for attrs, text in found.scripts if attrs.get("id") == "plotly")
    drawer = gzip.decompress(base64.b64decode(packed, validate=True))
    assert drawer == plotly()
    (policy,) = (
        str(attrs["content"])
        for _, attrs in found.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in (drawer, own.encode())]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "unsafe-eval" not in policy


def test_nothing_is_loaded_from_anywhere() -> None:
    found = page()
    for tag, attrs in found.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form", "img"), tag
        for attribute in ("src", "href", "action", "srcset", "data", "style"):
            assert (attrs.get(attribute) or "#").startswith(("#", "data:")), (tag, attrs)
    style = found.source.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_a_million_requests_would_fit_because_no_chart_grows_with_them() -> None:
    """Points drawn are bounded whatever the number of requests; most of the rest of the page is plotly."""
    few, many = (
        page([request(i * (10 / n), (0.05 + 1e-5 * i, 0.1 + 2e-5 * i), input_tokens=i) for i in range(n)])
        for n in (2_000, 8_000)
    )
    assert len(many.source) < 1_100_000
    points = [
        sum(
            len(column)
            for chart in p.charts().values()
            for d in chart["data"]
            for column in d["columns"].values()
        )
        for p in (few, many)
    ]
    assert points[1] < 1.5 * points[0]
    assert "random sample of 1,500 of 8,000 ok requests" in many.text()


def test_the_same_records_give_the_same_page() -> None:
    assert page(records()).source == page().source


def test_templates_escape_and_name_no_other_place() -> None:
    templates = Path(html_report.__code__.co_filename).parent / "templates"
    for path in templates.iterdir():
        text = path.read_text()
        assert "|safe" not in text.replace(" ", ""), path
        assert not re.search(r"https?://", text), path


@pytest.mark.parametrize("slo", ["", "e2el=1s", "ttft_scheduled=1s"])
def test_any_slo_or_none_has_its_page(slo: str) -> None:
    assert "goodput-surface" in page(slo=slo, open_loop=True).charts()


N = 512
PRIMED = ReplicaCache(target="http://r", before=0, after=0, again=496, primed=10)


def experiment(*stages_of: tuple[float, int, float]) -> Summary:
    """Stages by what was asked, the tokens of each prompt that were cached, and the TTFT in seconds."""
    stages, made = [], []
    for i, (asked, cached, ttft) in enumerate(stages_of):
        at_s = 1 + 12 * i
        stages.append(stage(i, at_s, at_s + 10, prefix=PrefixShare.of(asked, N, 10), caches=[PRIMED]))
        known: dict[str, Any] = {"input_tokens": N, "asked_input_tokens": N, "cached_tokens": cached}
        times = [(ttft + 1e-4 * (37 * k % 100), ttft + 0.02, ttft + 0.04) for k in range(100)]
        made += [request(at_s + k / 10, at, **known) for k, at in enumerate(times)]
    records = [replace(record, request_id=f"{i}") for i, record in enumerate(made)]
    facts = metrics_manifest(
        12.0 * len(stages), stages=stages, options={"sweep": "users=1 prefix-share=0%,50%"}
    )
    workers = [replace(facts.workers[0], announced=len(records), received=len(records))]
    of = with_stages(batch(*records), stages, open_loop=False)
    return typed(summarise(of, replace(facts, workers=workers), Question()))


def test_ttft_is_drawn_by_rising_achieved_hits_and_nothing_over_the_one_load() -> None:
    summary = experiment((0.9, 464, 0.02), (0.0, 0, 0.10), (0.5, 256, 0.06))
    ttft, tpot = over_load(summary, {})
    assert (ttft.id, tpot.id) == ("ttft-over-hits", "tpot-over-hits")
    columns = ttft.data[0].columns
    (hits, *_) = columns
    assert columns[hits] == [0, 50, 90.625]
    assert columns["p50 (ms)"] == [104.95, 64.95, 24.95]
    assert {series.x for series in ttft.series} == {hits}
    assert [s.name for s in ttft.series if s.name.startswith("p50")] == ["p50", "p50 low", "p50 high"]


def test_a_stage_that_is_no_result_is_left_out_and_said() -> None:
    ttft, _ = over_load(experiment((0.0, 0, 0.10), (0.5, 256, 0.06), (0.9, 0, 0.02)), {})
    assert "1 stage without a result left out" in ttft.reading
    assert len(ttft.data[0].columns["p50 (ms)"]) == 2


SECONDS = 80


def charts(made: list[RequestRecord], **changes: Any) -> list[Chart]:
    rows = batch(*made)
    known = manifest(len(rows), stopped_ns=manifest(0).started_ns + SECONDS * 1_000_000_000)
    summary = typed(summarise(rows, known))
    summary = replace_of_structs(
        summary, replicas=[replace_of_structs(each, **changes) for each in summary.replicas]
    )
    run = run_charts(rows, known, measure(rows, known, Question(warmup_s=0.0)))
    return in_flight(run, summary)


def dead_at_30s(i: int) -> str:
    live = in_turn(NAMES[:3])
    return NAMES[i % 4] if i < 300 else live(i)


def test_each_replica_is_a_line_on_the_time_of_the_window() -> None:
    (chart,) = charts(served(at_random()))
    (data,) = chart.data
    assert [series.name for series in chart.series] == list(NAMES)
    times = data.columns["time of the window (s)"]
    assert (times[0], times[-1]) == pytest.approx((SECONDS / 120, SECONDS - SECONDS / 120), rel=1e-4)
    assert {len(column) for column in data.columns.values()} == {60}
    assert chart.marks == ()


def test_the_time_at_which_one_stopped_and_came_back_is_marked() -> None:
    (chart,) = charts(served(dead_at_30s))
    (mark,) = chart.marks
    assert (mark.axis, mark.text) == ("x", "d out")
    assert mark.at == pytest.approx(30.0, abs=0.5)
    (back,) = charts(served(lambda i: dead_at_30s(i) if i < 500 else NAMES[i % 4]))
    assert [m.text for m in back.marks] == ["d out", "d back"]
    assert back.marks[1].at == pytest.approx(50.3, abs=0.5)


def test_of_many_replicas_those_that_a_cause_names_are_shown_first() -> None:
    many = [f"r{i:02}" for i in range(20)]
    slow, fast = (tuple(0.05 + pace * k for k in range(10)) for pace in (0.06, 0.02))
    made = [request(i * 0.1, slow if i % 20 == 17 else fast, replica=many[i % 20]) for i in range(800)]
    (chart,) = charts(made)
    assert [series.name for series in chart.series] == [*many[: MOST_SHOWN - 1], "r17"]
    assert chart.reading.endswith("12 more are in summary.json.")


def test_one_replica_or_none_has_no_such_chart() -> None:
    assert charts(served(lambda _: "a")) == []
    assert charts(served(lambda _: None)) == []
    assert charts(served(at_random()), in_flight=[]) == []  # the window is empty
