"""A search as somebody watches it stage by stage: Chromium on a real run against the simulator."""

import csv
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from playwright.sync_api import Page, expect, sync_playwright
from swarm_process import LOCUSTFILES, PATIENCE_S, Result, free_port, locust, simulation, wait_until
from web_browser import ARGUMENTS, CHROMIUM, Watch

#: A step takes 6 ms and 12 ms a user: three users have a token every 35 ms, four every 47 ms.
ENGINE = ("--replicas", "1", "--step-base", "6ms", "--step-per-seq", "12ms")
OBJECTIVE = "max concurrency under p50_tpot<41ms"
SEARCH = (
    "--find",
    OBJECTIVE,
    "--first-load",
    "2",
    "--stage-time",
    "2s",
    "--warmup",
    "0.5s",
    "--max-stages",
    "3",
)
LENGTHS = ("--input-tokens", "16", "--output-tokens", "4", "--slo", "ttft=2s")

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium as {CHROMIUM}")


@dataclass
class Seen:
    """What the page was told and showed while the run went on, and what the report says."""

    watch: Watch
    result: Result
    told: list[dict[str, Any]] = field(default_factory=list)
    live_csv: str = ""
    table: list[list[str]] = field(default_factory=list)
    answer: str = ""
    links: list[str] = field(default_factory=list)


@contextmanager
def browser(url: str) -> Iterator[Watch]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            watch = Watch(chromium.new_page(color_scheme="light"), url)
            watch.show_few_charts()
            yield watch
        finally:
            chromium.close()


def asked(url: str, form: bytes | None = None) -> str:
    try:
        with urlopen(Request(url, form), timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except HTTPError as e:
        with e:
            return ""


def watched(page: Page, url: str, run: Path, seen: Seen) -> None:
    """Look at the page and at what it is told until the report is there."""

    def is_reported() -> bool:
        page.wait_for_timeout(700)
        told = msgspec.json.decode(asked(f"{url}/llm/series"))
        seen.told.append(told["stages"] or {})
        if told["now"]["running"]:
            seen.live_csv = asked(f"{url}/llm/stages.csv") or seen.live_csv
        photographed(page, f"{len(seen.told):03}")
        return (run / "summary.json").exists()

    wait_until(is_reported, "the report", 2 * PATIENCE_S)
    expect(page.locator("#stages-lines")).to_contain_text("the search ended")


def photographed(page: Page, name: str) -> None:
    """A picture of the page for whoever asks for one."""
    if folder := os.environ.get("LLM_LOCUST_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=False)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("watched")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ("--web-host", "127.0.0.1", "--web-port", str(port), *LENGTHS, *SEARCH, "--out", "run")
    with (
        simulation(folder, *ENGINE) as simulated,
        locust(folder, "-H", simulated.url, *words, locustfile=LOCUSTFILES / "chat.py") as process,
        browser(url) as watch,
    ):
        process.wait_for("Starting web interface")
        page = watch.page
        page.goto(f"{url}/llm/charts")
        expect(page.locator("#state")).to_contain_text("READY")
        expect(page.locator("#stages-section")).to_be_hidden()
        asked(f"{url}/swarm", b"user_count=2&spawn_rate=100")
        found = Seen(watch, None)  # type: ignore[arg-type]
        watched(page, url, folder / "run", found)
        points = [load for pair in found.told[-1]["points"] for load in pair["load"]]
        for place in ("latency", "rates") if points else ():  # none where a busy client limited all stages
            page.locator(f"#plot-stage-{place}").scroll_into_view_if_needed()
            watch.wait_js(f"document.querySelectorAll('#plot-stage-{place} .main-svg').length > 0")
            watch.wait_js(f"document.getElementById('plot-stage-{place}').data[0].x.length === {len(points)}")
        rows = page.locator("#stages tr")
        found.table = [row.locator("td").all_inner_texts() for row in rows.all()]
        found.answer = page.locator("#stages-lines").inner_text()
        found.links = [str(a.get_attribute("href")) for a in page.locator("#stages-fine a").all()]
        page.set_viewport_size({"width": 390, "height": 900})
        # The table scrolls by itself, the page does not, once its charts have followed the new width.
        watch.wait_js("document.documentElement.scrollWidth <= 390")
        photographed(page, "narrow")
        found.result = Result.read(folder / "run")
        return found


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_stage_that_has_ended_is_read_as_the_report_has_it(seen: Seen) -> None:
    live = rows(seen.live_csv)
    final = rows((seen.result.path / "stages.csv").read_text())
    assert live, "a stage was read while the run went on"
    # The verdict on the client also rests on what workers report of themselves, until the run's end.
    loose = {"client", "is_result", "reasons"}
    for mine, theirs in zip(live, final, strict=False):
        assert {k: v for k, v in mine.items() if k not in loose} == {
            k: theirs[k] for k in mine if k not in loose
        }


def test_states_follow_each_other_and_every_load_has_its_reason(seen: Seen) -> None:
    states: dict[str, list[str]] = {}
    whys: dict[str, str] = {}
    for told in seen.told:
        for number, state, *_, why in (row["cells"] for row in told.get("rows", ())):
            if not states.setdefault(number, []) or states[number][-1] != state:
                states[number].append(state)
            whys[number] = why
    order = ["to come", "ramp", "measuring", "draining", "drained"]
    for found in states.values():
        assert found == sorted(found, key=order.index)
        assert found[-1] == "drained"
    assert whys["0"] == "the first load"
    assert all(whys.values())


def test_the_page_shows_the_table_and_the_answer_of_the_report(seen: Seen) -> None:
    stages = seen.result.summary["stages"]
    # A search may try a load again: "3 (repeat 1)".
    assert [row[0].partition(" ")[0] for row in seen.table] == [str(stage["number"]) for stage in stages]
    report = (seen.result.path / "report.md").read_text()
    for row in seen.table:
        for figure in (row[2], row[-2]):  # asked, result
            assert figure in report
    reported = rows((seen.result.path / "stages.csv").read_text())
    assert [row[5] for row in seen.table] == [stage["requests"] for stage in reported]
    assert seen.result.summary["search"]["answer"]["why"] in seen.answer
    assert seen.links == ["./stages.csv"]


def test_the_page_says_nothing_to_the_console_and_leaves_no_machine(seen: Seen) -> None:
    assert seen.watch.wrong == []
