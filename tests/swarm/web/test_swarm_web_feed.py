"""What pages of the web UI are told: series piece by piece, and tables."""

import csv
import io
from typing import Any

import msgspec
import pytest
from live_cases import Run, observation, worker
from metrics_cases import failed, request

from llm_locust.core.manifest import HealthCell
from llm_locust.core.record import Outcome
from llm_locust.live.state import MISSING
from llm_locust.live.store import SPANS, Charts, LiveSeries, LiveStore, Span
from llm_locust.metrics.catalogue import LIVE
from llm_locust.metrics.server_series import ServerNow
from llm_locust.swarm.web.assets import asset
from llm_locust.swarm.web.numbers import (
    MOST_WORKERS,
    NAMES,
    RECENT,
    REPLICAS,
    TOTAL,
    WHOLE,
    Feed,
    Fresh,
    at_rest,
    by_name,
    by_replica,
    catalogue,
    look_at,
    series_csv,
    status,
    table_csv,
)

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
        assert page.shows(Charts(run.store).series(span)), span
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
    assert page.shows(Charts(run.store).series("5m"))


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
    still = at_rest(run.store)
    before = look_at(still).whole.total.requests, Charts(still).series("run").columns, still.missed
    for _ in range(50):
        second(run)
    run.store.reset()
    assert (look_at(still).whole.total.requests, Charts(still).series("run").columns, still.missed) == before
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
    rows = list(csv.DictReader(io.StringIO(series_csv(Charts(run.store).series("run")))))
    assert len(rows) == 5
    assert float(rows[0]["users"]) == 4
    assert rows[0]["ttft_scheduled_p50_ms"] != ""


def test_the_workers_that_matter_come_first_and_are_not_too_many() -> None:
    run = Run()
    crowd = [worker(f"w{i:03d}", cpu_percent=float(i)) for i in range(MOST_WORKERS + 5)]
    run.store.observe(observation(4, *crowd, worker("lost<b>", MISSING)))
    told = status(look_at(run.store), ["a drift"])
    assert [w["id"] for w in told["workers"]][:2] == ["lost<b>", f"w{MOST_WORKERS + 4:03d}"]
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
    told, columns = catalogue(), Charts(run.store).series("run").columns
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
