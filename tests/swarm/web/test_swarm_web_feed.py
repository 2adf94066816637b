"""What pages of the web UI are told: series piece by piece, tables, stages, reports."""

import csv
import io
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from compare_cases import write_made_run
from live_cases import START_S, Run, observation, worker
from metrics_cases import ORIGIN_NS, failed, going_on, manifest, ns, request, stage

from llm_locust.core.manifest import HealthCell, StageFacts
from llm_locust.core.record import Outcome
from llm_locust.figures.stages import Stage
from llm_locust.figures.summary import decode_table
from llm_locust.live.series import SPANS, Charts, LiveSeries, Span
from llm_locust.live.snapshot import figures_since
from llm_locust.live.state import MISSING, LiveStages, state_of
from llm_locust.live.store import LiveStore
from llm_locust.metrics.catalogue import LIVE
from llm_locust.metrics.question import PLAIN
from llm_locust.metrics.server_series import ServerNow
from llm_locust.report.analysis import analyse, build_report, write_reports
from llm_locust.report.commands import main
from llm_locust.report.csv_tables import stages_csv
from llm_locust.report.inputs import open_source
from llm_locust.report.so_far import StageAnswer, StageQuestion, answer_of
from llm_locust.store import compact, write_manifest
from llm_locust.swarm.drift import LOOKS, DriftWatch, drifts
from llm_locust.swarm.process.event_loop import Fresh
from llm_locust.swarm.web.pages import asset
from llm_locust.swarm.web.reports import ComparisonError, ListedRun, Reports
from llm_locust.swarm.web.series_feed import Feed
from llm_locust.swarm.web.stage_table import MOST_ROWS, StageBoard, columns
from llm_locust.swarm.web.status import MOST_WORKERS, catalogue, look_at, status
from llm_locust.swarm.web.tables import (
    NAMES,
    RECENT,
    REPLICAS,
    TOTAL,
    WHOLE,
    by_name,
    by_replica,
    series_csv,
    table_csv,
)

# --- What pages of the web UI are told: series piece by piece, and tables


Answer = dict[str, Any]


class Page:
    """Puts answers together as the page's script does."""

    def __init__(self, store: LiveStore, span: Span = "5m") -> None:
        self.feed = Feed(store, keep_s=0)
        self._span = span
        self.points: dict[float, dict[str, float | None]] = {}
        self.marks: list[str] = []
        self.token = ""

    def poll(self) -> Answer:
        answer = msgspec.json.decode(msgspec.json.encode(self.feed.answer(self._span, self.token)))
        if answer["full"]:
            self.points.clear()
        told = {at: dict(zip(answer["columns"], values, strict=True)) for at, values in _rows(answer)}
        kept = {at: point for at, point in self.points.items() if at >= (answer["from_s"] or 0)}
        self.points = dict(sorted({**kept, **told}.items()))
        self.marks = [mark["text"] for mark in answer["marks"]] if "marks" in answer else self.marks
        self.token = answer["token"]
        return dict(answer)

    def shows(self, series: LiveSeries) -> bool:
        columns = {name: [point[name] for point in self.points.values()] for name in series.columns}
        return list(self.points) == series.at_s and columns == series.columns


def _rows(answer: Answer) -> list[tuple[float, tuple[float | None, ...]]]:
    return list(zip(answer["at_s"], zip(*answer["columns"].values(), strict=True), strict=False))


def second(run: Run, n: int = 3, seconds: float = 1.0) -> None:
    run.ended(request(arrivals=(0.05 + 0.01 * i, 0.2), replica=f"r{i % 2}") for i in range(n))
    run.report()
    run.store.observe(observation(4, worker("a", in_flight=2)))
    run.clock.tick(seconds)


def test_pages_that_poll_now_and_then_show_the_series_as_it_is() -> None:
    run = Run()
    pages = {span: Page(run.store, span) for span in SPANS}
    for tick in range(380):
        second(run, seconds=2)
        if tick % 37 == 0:
            for page in pages.values():
                page.poll()
    for span, page in pages.items():
        page.poll()
        assert page.shows(Charts().series(run.store, span)), span
        assert len(page.points) > 30, span


def test_a_poll_is_told_what_is_new_and_nothing_else() -> None:
    run = Run()
    page = Page(run.store)
    for _ in range(60):
        second(run)
    assert page.poll()["full"]
    assert len(page.points) == 30
    for _ in range(4):
        second(run)
    answer = page.poll()
    assert not answer["full"]
    assert len(answer["at_s"]) == 2
    assert page.poll()["at_s"] == []


def test_a_point_that_changed_late_is_told_again() -> None:
    run = Run()
    page = Page(run.store)
    for _ in range(10):
        second(run)
    page.poll()
    run.ended([request()], worker="late")
    run.worker("late")
    run.clock.tick(2)
    run.report()  # of requests that ended 2 s ago
    assert len(page.poll()["at_s"]) >= 1
    assert page.shows(Charts().series(run.store, "5m"))


def test_a_reset_a_new_outcome_and_another_page_get_everything() -> None:
    run = Run()
    page = Page(run.store)
    for _ in range(10):
        second(run)
    page.poll()
    run.ended([failed()])
    second(run)
    run.clock.tick(2)
    assert page.poll()["full"]
    for token in ("", "0-0", "1", "-", "1-x", "9-9", "1-²"):
        assert page.feed.answer("5m", token)["full"]


def test_marks_come_once_and_all_of_them() -> None:
    run = Run()
    page = Page(run.store)
    for _ in range(4):
        second(run)
    page.poll()
    run.store.observe(observation(9, worker("a"), worker("b")))
    second(run)
    run.clock.tick(2)
    assert "marks" in page.poll()
    assert page.marks[:2] == ["users 4 → 9", "worker b came"]
    assert "marks" not in page.poll()


def test_a_store_at_rest_stays_as_it_was() -> None:
    run = Run()
    for _ in range(5):
        second(run)
    still = run.store.at_rest()
    before = look_at(still).whole.total.requests, Charts().series(still, "run").columns, still.missed
    for _ in range(50):
        second(run)
    run.store.reset()
    assert (
        look_at(still).whole.total.requests,
        Charts().series(still, "run").columns,
        still.missed,
    ) == before
    assert before[0] == 15


def test_a_fresh_value_is_made_once_for_all_who_ask_together() -> None:
    made: list[int] = []
    fresh = Fresh(lambda: made.append(1) or len(made), keep_s=1000)  # type: ignore[func-returns-value]
    assert [fresh(), fresh()] == [1, 1]
    ever = Fresh(lambda: made.append(1) or len(made), keep_s=0)  # type: ignore[func-returns-value]
    assert [ever(), ever()] == [2, 3]


def test_a_value_that_could_not_be_made_is_tried_again() -> None:
    answers = iter([0, 5])
    fresh = Fresh(lambda: 10 // next(answers), keep_s=1000)
    with pytest.raises(ZeroDivisionError):
        fresh()
    assert fresh() == 2


def test_each_name_has_its_whole_and_its_recent_past_and_the_total_is_last() -> None:
    run = Run()
    run.ended([request(name="old", slo_class="gold"), *(request(name="chat") for _ in range(3)), failed()])
    run.report()
    for _ in range(60):
        run.clock.tick()
    run.ended([request(arrivals=(0.3, 0.4), name="chat")])
    run.report()
    run.clock.tick(2)
    rows = by_name(look_at(run.store))
    assert [(r["request"], r["slo_class"], r["span"]) for r in rows] == [
        ("chat", "", WHOLE), ("chat", "", RECENT), ("old", "gold", WHOLE), ("old", "gold", RECENT),
        (TOTAL, "", WHOLE), (TOTAL, "", RECENT),
    ]  # fmt: skip
    assert [r["requests"] for r in rows] == [5, 1, 1, None, 6, 1]
    assert [r["failures"] for r in rows] == [1, 0, 0, None, 1, 0]
    assert rows[0]["goodput"] == pytest.approx(60)
    assert rows[1]["ttft_p50"] == pytest.approx(300, rel=0.01)
    assert rows[3]["ttft_p50"] is None  # nothing is not zero
    assert [r["name"] for r in rows] == sorted(str(r["name"]) for r in rows)


def test_replicas_are_told_once_they_are_known() -> None:
    run = Run()
    run.ended([request()])
    run.report()
    run.clock.tick(2)
    assert by_replica(look_at(run.store)) == []
    second(run)
    run.clock.tick(2)
    assert [r["replica"] for r in by_replica(look_at(run.store))] == ["r0", "r0", "r1", "r1"]


def test_a_table_is_a_csv_in_which_text_is_no_formula() -> None:
    run = Run()
    run.ended([request(name='=HYPERLINK("x"),"y"')])
    run.report()
    run.clock.tick(2)
    head, first, *_ = csv.reader(io.StringIO(table_csv(NAMES, by_name(look_at(run.store)))))
    assert head[:4] == ["Name", "Class", "Span", "Requests"]
    assert first[:4] == ['\'=HYPERLINK("x"),"y"', "", "since start", "1"]
    assert [key for key, _ in REPLICAS.columns][:2] == ["replica", "span"]


def test_a_series_is_a_csv_with_a_row_for_each_cell() -> None:
    run = Run()
    for _ in range(10):
        second(run)
    rows = list(csv.DictReader(io.StringIO(series_csv(Charts().series(run.store, "run")))))
    assert len(rows) == 5
    assert float(rows[0]["users"]) == 4
    assert rows[0]["ttft_scheduled_p50_ms"] != ""


def test_the_workers_that_matter_come_first_and_are_not_too_many() -> None:
    run = Run()
    crowd = [worker(f"w{i:03d}", cpu_percent=float(i)) for i in range(MOST_WORKERS + 5)]
    run.store.observe(observation(4, *crowd, worker("lost<b>", MISSING)))
    told = status(look_at(run.store), ["a drift"])
    assert [w.id for w in told["workers"]][:2] == ["lost<b>", f"w{MOST_WORKERS + 4:03d}"]
    assert (len(told["workers"]), told["workers_hidden"]) == (MOST_WORKERS, 6)
    assert (told["workers_here"], told["workers_lost"]) == (MOST_WORKERS + 5, 1)
    assert told["alarms"] == ["a drift"]
    assert told["limits_ms"] == {"ttft": 100, "tpot": 50}


def test_a_late_client_is_told_with_its_cause() -> None:
    run = Run()
    run.ended([request(end_lag_ns=100_000_000)] * 5)
    run.report()
    run.clock.tick(10.0)
    starved = HealthCell(at_s=0.0, seconds=9.0, cpu_percent=10.0, run_queue_percent=60.0)
    run.store.observe(observation(4, worker(now=starved)))
    told = status(look_at(run.store), ())
    assert (told["verdict"], told["cause"]) == ("invalid", "starved")
    assert "Stop other programs" in told["reasons"][0]
    run.store.observe(observation(4, worker(cpu_percent=95.0)))
    assert status(look_at(run.store), ())["cause"] == "busy"


def test_servers_that_give_no_page_are_named() -> None:
    run = Run()
    run.store.observe_servers(ServerNow(name=name, up=name == "c") for name in ("b", "a<b>", "c"))
    assert status(look_at(run.store), ())["servers_silent"] == ["a<b>", "b"]
    run.store.observe_servers([ServerNow(name="b", up=True)])
    assert status(look_at(run.store), ())["servers_silent"] == ["a<b>"]


def test_the_page_has_charts_and_tiles_of_what_the_catalogue_says() -> None:
    run = Run()
    for _ in range(10):
        second(run)
    told, columns = catalogue(), Charts().series(run.store, "run").columns
    charted = [metric["key"] for metric in told["latencies"] if metric["chart"]]
    assert charted == [metric.key for metric in LIVE if metric.live and metric.live.chart]
    assert {f"{key}_{place}_ms" for key in charted for place in ("p50", "p95", "p99")} <= columns.keys()
    tiled = [metric["key"] for metric in told["latencies"] if metric["tile"]]
    figures = status(look_at(run.store), ())["whole"]
    assert tiled
    assert {f"{key}_{place}_ms" for key in tiled for place in ("p50", "p99")} <= figures.keys()
    assert {"ok", "resent", *told["outcomes"]} == {outcome.value for outcome in Outcome}
    assert ["name", "up", "role", *told["servers"]] == list(ServerNow.__dataclass_fields__)
    # The page's script has no list of its own beside it.
    script = asset("live.js")
    assert script is not None
    assert not [
        key for key in (*charted, *told["outcomes"], *told["servers"]) if f'"{key}"' in script.plain.decode()
    ]


def test_what_is_told_of_a_store_without_a_run_is_nothing_and_no_error() -> None:
    store = LiveStore(lambda: 1000.0)
    told = msgspec.json.decode(msgspec.json.encode(status(look_at(store), ())))
    assert not told["running"]
    assert told["whole"]["ttft_p50_ms"] is None
    assert Feed(store).answer("run")["at_s"] == []
    assert [r["requests"] for r in by_name(look_at(store))] == [0, 0]


# --- What the page is told of the stages of a run: their states, the live figures, what the report has


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"

#: Ends of 10 s, after a ramp and a warm-up of half a second, and a drain of a quarter.
SWEEP = [stage(0, 1.0, 11.0, asked=1.0), stage(1, 13.0, 23.0, asked=2.0)]


def records(until_s: float = 24.0) -> list[Any]:
    """One user, then two, with ten requests a second each."""
    found = [request(i / 10, (0.05, 0.08), user=0, request_id=f"a{i}") for i in range(5, 110)]
    for user in (0, 1):
        found += [
            request(i / 10 + user / 1000, (0.06, 0.09), user=user, request_id=f"b{i}-{user}")
            for i in range(125, 230)
        ]
    return [one for one in found if one.ended_ns <= ns(until_s)]


@pytest.mark.parametrize(
    ("at_s", "facts", "state"),
    [
        (0.4, {}, "to come"),
        (0.7, {}, "ramp"),
        (0.7, {"measured_ns": None, "ended_ns": None, "drained_ns": None}, "ramp"),
        (1.0, {"ended_ns": None, "drained_ns": None}, "measuring"),
        (11.0, {"drained_ns": None}, "draining"),
        (11.0, {"drained_ns": None, "fault": "a worker was lost"}, "over"),
        (11.3, {}, "drained"),
    ],
)
def test_a_stage_is_where_its_times_say(at_s: float, facts: dict[str, Any], state: str) -> None:
    assert state_of(stage(0, 1.0, 11.0, **facts), ns(at_s), is_sweep=True) == state


def test_a_stage_of_a_profile_has_no_drain() -> None:
    found = stage(0, 1.0, 11.0, drained_ns=None)
    assert state_of(found, ns(11.0), is_sweep=False) == "over"


def test_live_figures_since_a_time_have_the_requests_that_ended_since() -> None:
    run = Run()
    for _ in range(100):
        run.ended([request(arrivals=(0.05, 0.4))] * 4)
        run.report()
        run.clock.tick(4.0)
    assert figures_since(run.store, START_S + 380).requests == pytest.approx(20, abs=4)
    long_ago = figures_since(run.store, START_S + 40)  # further back than the finest cells reach
    assert long_ago.requests == pytest.approx(360, abs=24)
    assert long_ago.requests_per_s == pytest.approx(1.0, rel=0.06)
    assert figures_since(run.store, START_S + 500).requests == 0


def test_what_is_read_of_a_stage_that_has_ended_is_what_the_report_has(tmp_path: Path) -> None:
    options: dict[str, Any] = {"stages": SWEEP, "options": {"sweep": "users=1,2"}}
    with going_on(tmp_path, [("a", records())], **options):
        early = answer_of(tmp_path, StageQuestion(SWEEP[:1], figures=[0])).figures
        both = answer_of(tmp_path, StageQuestion(SWEEP, figures=[0, 1])).figures
        probe = answer_of(tmp_path, StageQuestion(SWEEP, find="max concurrency under p99_ttft<100ms")).probe
    write_manifest(tmp_path, manifest(24.0, **options, slo="ttft=1s", workers=[]))
    compact(tmp_path)
    report = build_report(tmp_path, allow_incomplete=True).summary
    text = stages_csv(report.stages)
    assert text is not None

    def sent(stages: list[Stage]) -> list[Stage]:
        said = msgspec.json.encode(stages)
        return msgspec.json.decode(said, type=list[Stage], dec_hook=decode_table)

    assert stages_csv(sent(both)) == text
    assert stages_csv(sent(early)) == "".join(text.splitlines(keepends=True)[:2])
    assert probe is not None
    assert probe.load == 2.0


def test_a_stage_without_a_drain_waits_for_its_last_requests(tmp_path: Path) -> None:
    profile = [stage(0, 1.0, 11.0, drained_ns=None), stage(1, 11.0, 23.0, drained_ns=None)]
    asked = StageQuestion(profile, figures=[0], undrained=[0])
    with going_on(tmp_path, [("a", records(11.0))], stages=profile):
        assert answer_of(tmp_path, asked).figures == []
    with going_on(tmp_path / "later", [("a", records(14.0))], stages=profile):
        (found,) = answer_of(tmp_path / "later", asked).figures
        assert found.figures is not None
        assert found.figures.requests.ok == 100


@pytest.mark.parametrize("question", ["", "{}", '{"stages": []}', "[1]", '{"stages": [{"number": -1}]}'])
def test_a_question_that_cannot_be_read_is_answered_with_one_line(
    question: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["stages", str(tmp_path), question]) == 1
    answer = msgspec.json.decode(capfd.readouterr().out, type=StageAnswer)
    assert answer.error
    assert "\n" not in answer.error


def board(facts: Sequence[StageFacts], at_s: float, **fields: Any) -> tuple[StageBoard, LiveStages]:
    run = Run()
    run.clock.now_s = ORIGIN_NS * 1e-9 + at_s
    shown = run.store.stages = LiveStages("run", Path("/nowhere"), lambda: facts, **fields)
    shown.has_records = lambda: False  # nothing is read here
    return StageBoard(run.store), shown


def test_a_run_without_stages_has_no_table() -> None:
    assert StageBoard(Run().store).table() is None
    assert board([], 1.0)[0].table() is None
    other, shown = board(SWEEP, 1.0)
    shown.run = "an earlier run"
    assert other.table() is None
    assert other.csv() is None


def test_a_search_says_what_it_tries_and_why() -> None:
    facts = [SWEEP[0], stage(1, 13.0, 23.0, asked=2.0, ended_ns=None, drained_ns=None)]
    whys = {0: "the first load", 1: f"all limits hold {HOSTILE}"}
    made, shown = board(
        facts, 14.0, is_sweep=True, planned=12, objective="max concurrency under ok>9%", whys=whys
    )
    told = made.table()
    assert told is not None
    assert [row.cells[1] for row in told.rows] == ["drained", "measuring"]
    assert [row.cells[-1] for row in told.rows] == [
        "the first load",
        "all limits hold <script>alert(1)</script>",  # a page writes it as text; nothing reorders it
    ]
    assert "stage 1 (2 of at most 12): 2 users, all limits hold" in told.lines[0].text
    assert {len(row.cells) for row in told.rows} == {len(columns())}
    shown.reading = 1
    again = StageBoard(made._store).table()
    assert again is not None
    assert "being read" in again.lines[0].text


def test_a_stage_that_is_measured_has_the_live_figures_of_what_ended_in_it() -> None:
    run = Run()
    begun_ns = round(START_S * 1e9)
    facts = StageFacts(
        number=0, kind="users", asked=4.0, begun_ns=begun_ns, measured_ns=begun_ns + 10 * 10**9
    )
    run.store.stages = LiveStages("run", Path("/nowhere"), lambda: [facts], is_sweep=True)
    for _ in range(20):  # 10 s of warm-up, 10 s of measured part
        run.ended([request(arrivals=(0.05, 0.4))] * 3)
        run.report()
        run.clock.tick()
    told = StageBoard(run.store).table()
    assert told is not None
    (row,) = told.rows
    heads = [column.head for column in columns()]
    found = dict(zip(heads, row.cells, strict=False))
    assert (found["state"], found["requests"], found["measured"]) == ("measuring", "30", "10.0 s")
    assert found["result"].startswith("so far: client ")


def test_a_page_lists_the_last_stages_of_very_many() -> None:
    facts = [stage(i, 1.0 + i, 1.5 + i, begun_ns=ns(0.5 + i), drained_ns=ns(1.5 + i)) for i in range(1000)]
    told = board(facts, 2000.0, is_sweep=True)[0].table()
    assert told is not None
    assert len(told.rows) == MOST_ROWS
    assert told.hidden == 900
    assert told.rows[-1].cells[0] == "999"


# --- The list of reports in the web UI: what it says of each run, and the page of two


def reported(path: Path, number: int, slower: float = 1.0, **known: Any) -> ListedRun:
    """A run with its report."""
    write_made_run(path, number, slower, n=300, started_ns=ns(3600 * number), **known)
    with open_source([path]) as source:
        write_reports(path, analyse(source, PLAIN), None)
    return ListedRun(path.name, path, "http://h", "m")


def test_the_list_has_verdict_goodput_and_p99_of_each_run_and_a_page_of_two(tmp_path: Path) -> None:
    reports = Reports()
    usual, slow = (reported(tmp_path / name, i, 1 + i) for i, name in enumerate(("usual", "slow")))
    none = ListedRun("none", tmp_path / "none", "http://h", "m")
    for run in (usual, slow, none):
        reports.add(run)
    found = reports.figures(slow)
    assert found is not None
    assert (found.word, found.tone) == ("PASS", "good")
    assert re.fullmatch(r"[\d.]+ %", found.goodput)
    assert re.fullmatch(r"[\d.]+ ms", found.ttft_p99)
    assert reports.figures(slow) is found  # read once
    reports.add(cut := reported(tmp_path / "cut", 2, cut_short=True))
    assert (of_cut := reports.figures(cut)) is not None
    assert of_cut.word == "INCOMPLETE", "the word of its report"
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
    reports.add(ListedRun("a", tmp_path, "http://h", "m"))
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


# --- Drift alarms: what gets worse with the hours is said, noise and changes of the load are not


MINUTES = 40
PER_MINUTE = 120


def soak(
    ttft_s: Callable[[float], float] = lambda _: 0.05,
    error_rate: Callable[[float], float] = lambda _: 0.0,
    users: Callable[[float], int] = lambda _: 4,
    minutes: int = MINUTES,
) -> Run:
    """A run whose figures go with the share of it that is over, and wander by a fifth."""
    generator, run = np.random.default_rng(5), Run()
    for half in range(2 * minutes):
        over = half / (2 * minutes)
        spread = generator.lognormal(0, 0.2, PER_MINUTE // 2) * generator.lognormal(0, 0.03)
        bad = generator.random(PER_MINUTE // 2) < error_rate(over)
        run.ended(
            failed() if is_bad else request(arrivals=(ttft_s(over) * x, ttft_s(over) * x + 0.02))
            for x, is_bad in zip(spread, bad, strict=True)
        )
        run.report()
        for _ in range(5):
            run.store.observe(observation(users(over), worker("a", in_flight=1)))
            run.clock.tick(6)
    return run


@pytest.fixture(scope="module")
def slower() -> Run:
    return soak(ttft_s=lambda over: 0.03 * (1 + over))


def test_a_server_that_gets_slower_is_told_with_its_slope(slower: Run) -> None:
    found = drifts(slower.store, ())
    assert set(found) == {"TTFT p99"}
    assert "TTFT p99 rises" in found["TTFT p99"]
    assert "ms an hour (95 % interval " in found["TTFT p99"]


def test_noise_is_no_drift() -> None:
    assert drifts(soak().store, ()) == {}


def test_a_server_that_gets_faster_is_no_alarm() -> None:
    assert drifts(soak(ttft_s=lambda over: 0.09 * (1 - over / 2)).store, ()) == {}


def test_more_and_more_errors_are_told() -> None:
    found = drifts(soak(error_rate=lambda over: 0.1 * over).store, ())
    assert set(found) == {"goodput", "error rate"}
    assert "error rate rises" in found["error rate"]


def test_a_short_run_says_nothing() -> None:
    assert drifts(soak(ttft_s=lambda over: 0.05 * (1 + over), minutes=15).store, ()) == {}


def test_more_users_are_no_drift() -> None:
    run = soak(ttft_s=lambda over: 0.05 if over < 0.5 else 0.09, users=lambda over: 4 if over < 0.5 else 8)
    assert "TTFT p99" not in drifts(run.store, ())


def test_a_client_whose_memory_grows_is_told() -> None:
    run = soak()
    times = run.store.content.started_s + 60.0 * np.arange(MINUTES)
    growing = [(float(at), 200.0 + 2.0 * i + i % 3) for i, at in enumerate(times)]
    flat = [(float(at), 200.0 + i % 3) for i, at in enumerate(times)]
    assert "memory of a client process rises" in drifts(run.store, growing)["memory of a client process"]
    assert drifts(run.store, flat) == {}


def test_a_drift_is_said_once_when_it_was_found_often_enough_and_forgotten_by_a_reset(
    slower: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llm_locust")
    watch = DriftWatch(slower.store, lambda: None)
    for _ in range(LOOKS - 1):
        watch.look()
    assert watch.alarms == ()
    for _ in range(3):
        watch.look()
    assert len(watch.alarms) == 1
    assert [r.message.split(":")[:2] for r in caplog.records] == [["drift", " TTFT p99 rises"]]
    slower.store.reset()
    watch.look()
    assert watch.alarms == ()


def test_a_run_that_has_stopped_is_not_looked_at_any_more() -> None:
    run = soak(minutes=1)
    run.store.stop()
    asked: list[float] = []
    watch = DriftWatch(run.store, lambda: asked.append(1.0) or 1.0)  # type: ignore[func-returns-value]
    watch.look()
    assert asked == []
