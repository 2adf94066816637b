"""A soak as somebody watches it: Chromium on a real master with two workers, a deployment with faults."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

import pytest
from page_server import hang, serving
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright
from swarm_process import PATIENCE_S, Process, free_port, simulation, swarm
from web_browser import ARGUMENTS, CHROMIUM, Watch

HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
WINDOW: ViewportSize = {"width": 1440, "height": 1000}
DARK, LIGHT = "rgb(18, 18, 18)", "rgb(255, 255, 255)"

LOCUSTFILE = f"""
from locust import task

from llm_locust import ChatUser


class Chat(ChatUser):
    @task(3)
    def ask_one(self):
        self.chat()

    @task
    def ask_another(self):
        self.chat(name={HOSTILE!r})
"""

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium as {CHROMIUM}")


def points(chart: str) -> str:
    """How many defined values the longest line of a chart has."""
    return (
        f"Math.max(0, ...(document.getElementById('plot-{chart}').data ?? [])"
        ".filter((t) => t.name !== '').map((t) => t.y.filter((v) => v !== null).length))"
    )


@dataclass(frozen=True, slots=True)
class Stand:
    watch: Watch
    master: Process
    workers: list[Process]


def scraped(url: str, hung: int) -> list[str]:
    urls = f"{url}/metrics", f"{url}/gpu/metrics", f"http://127.0.0.1:{hung}"
    return [word for each in urls for word in ("--metrics-url", each)]


@contextmanager
def stand(folder: Path) -> Iterator[Stand]:
    (folder / "locustfile.py").write_text(LOCUSTFILE)
    port = free_port()
    web = ["--web-host", "127.0.0.1", "--web-port", str(port), "--out", "run"]
    options = [*web, "--slo", "ttft=300ms tpot=50ms", "--output-tokens", "uniform:4,12"]
    faults = ["--faults", "http_500=5% truncated=5%", "--replicas", "2", "--model", HOSTILE]
    faults += ["--step-base", "20ms"]
    with (
        simulation(folder / "sim", *faults) as sim,
        serving(hang) as hung,
        swarm(
            folder, 2, *options, *scraped(sim.url, hung), "-H", sim.url, locustfile=folder / "locustfile.py"
        ) as (master, workers),
        sync_playwright() as playwright,
    ):
        master.wait_for(r"\b2 workers connected")
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            context = chromium.new_context(color_scheme="light", viewport=WINDOW)
            yield Stand(Watch(context.new_page(), f"http://127.0.0.1:{port}"), master, workers)
        finally:
            chromium.close()


def test_a_soak_can_be_watched_from_the_form_to_the_report(tmp_path: Path) -> None:
    with stand(tmp_path) as made:
        watch = made.watch
        steps: list[Callable[[Stand], None]] = [
            start_from_the_form,
            the_table_fills,
            the_charts_fill,
            colours_are_those_of_locusts_page,
            more_users_are_marked,
            pause_holds_the_charts,
            a_dead_worker_is_marked,
            the_report_opens_once_it_has_stopped,
        ]
        for step in steps:
            step(made)
            assert watch.wrong == [], step.__name__
        assert watch.page.title() != "owned"


def start_from_the_form(made: Stand) -> None:
    page = made.watch.page
    page.goto(made.watch.url)
    fields_are_in_groups(page)
    page.fill("input[name=userCount]", "6")
    page.fill("input[name=spawnRate]", "50")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_role("tab", name="LLM", exact=True).wait_for()
    expect(page.get_by_role("tab", name="Live charts")).to_have_attribute("aria-selected", "true")


def fields_are_in_groups(page: Page) -> None:
    page.get_by_text("Custom parameters").click()
    form = page.locator("form")
    names = form.locator("[data-grouped]").evaluate_all("(all) => all.map((each) => each.name)")
    assert names[:5] == ["slo", "gate", "warmup", "model", "inputTokens"]
    assert "Limits" in form.locator("h3").all_inner_texts()
    help_text = form.locator("[name=find]").get_attribute("aria-describedby")
    expect(page.locator(f"#{help_text}")).to_contain_text('"max rate under goodput>=95%"')
    assert "%%" not in page.content()
    assert max(map(len, form.locator("label").all_inner_texts())) < 60


def the_table_fills(made: Stand) -> None:
    page = made.watch.page
    made.watch.tab("LLM")
    row = page.locator("tbody tr", has=page.get_by_text("last 30 s")).last
    expect(row.locator("td").nth(5)).not_to_be_empty(timeout=PATIENCE_S * 1e3)
    assert float(row.locator("td").nth(6).inner_text()) > 5  # TTFT p50 in ms
    expect(page.get_by_text(HOSTILE, exact=True).first).to_be_visible()
    expect(page.get_by_role("columnheader", name="Requests")).to_be_visible()
    expect(page.locator("th", has_text="Images/s")).to_be_hidden()
    made.watch.tab("Replicas")
    expect(page.locator("tbody tr")).to_have_count(4)
    made.watch.tab("Download Data")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download LLM figures by name CSV").click()
    assert download.value.suggested_filename == "llm-names.csv"


def the_charts_fill(made: Stand) -> None:
    page, watch = made.watch.page, made.watch
    watch.tab("Live charts")
    expect(page.frame_locator("iframe").locator("#tiles")).to_contain_text(
        "Goodput", timeout=PATIENCE_S * 1e3
    )
    expect(page.frame_locator("iframe").locator("nav")).to_be_hidden()
    for name in ("Edit", "Stop", "Reset"):
        expect(page.get_by_role("button", name=name, exact=True).first).to_be_visible()
    page.goto(f"{watch.url}/llm/charts")
    watch.show_few_charts()
    page.select_option("#interval", "1")
    for chart in ("ttft", "tpot", "itl", "tokens", "goodput", "concurrency", "delay", "outcomes", "workers"):
        page.locator(f"#plot-{chart}").scroll_into_view_if_needed()
        watch.wait_js(f"{points(chart)} >= 2")
    expect(page.locator("#workers tr")).to_have_count(2)
    expect(page.locator("#state")).to_contain_text("RUNNING")
    expect(page.locator("#state")).to_contain_text(HOSTILE)
    for chart in ("server-running", "server-kv-cache-usage", "server-ttft-ms", "server-power-w"):
        page.locator(f"#plot-{chart}").scroll_into_view_if_needed()
        watch.wait_js(f"{points(chart)} >= 2")
    expect(page.locator("#plot-server-prefix-hits")).to_be_hidden()
    expect(page.locator("#servers-silent")).to_contain_text("No page of metrics from 127.0.0.1:")
    names = page.evaluate("document.getElementById('plot-outcomes').data.map((t) => t.name)")
    assert {"ok", "http error"} <= set(names)


def colours_are_those_of_locusts_page(made: Stand) -> None:
    page = made.watch.page
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == LIGHT
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    page.set_viewport_size(WINDOW)
    page.goto(f"{made.watch.url}/?tab=llm")
    made.watch.wait_js(f"getComputedStyle(document.body).backgroundColor === '{DARK}'")
    expect(page.get_by_role("tab", name="LLM", exact=True)).to_have_attribute("aria-selected", "true")


def more_users_are_marked(made: Stand) -> None:
    page = made.watch.page
    page.get_by_role("button", name="Edit", exact=True).first.click()
    page.fill("input[name=userCount]", "10")
    page.fill("input[name=spawnRate]", "50")
    page.get_by_role("button", name="Update Swarm").or_(
        page.get_by_role("button", name="Update")
    ).first.click()
    made.watch.show_few_charts()
    page.goto(f"{made.watch.url}/llm/charts")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == DARK
    expect(page.locator("#marks")).to_contain_text("users 6 → 10")


def pause_holds_the_charts(made: Stand) -> None:
    page = made.watch.page
    made.watch.wait_js(f"{points('ttft')} >= 2")
    asked: list[str] = []
    page.get_by_role("button", name="Pause").click()
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
    page.get_by_role("button", name="Go on").click()
    with page.expect_request("**/llm/series?*span=run*"):
        page.get_by_role("button", name="Whole run").click()


def a_dead_worker_is_marked(made: Stand) -> None:
    page = made.watch.page
    made.workers[0].signal(SIGKILL)
    expect(page.locator("#marks tr.bad")).to_contain_text("is lost", timeout=PATIENCE_S * 1e3)
    expect(page.locator("#workers tr.bad")).to_have_count(1)
    page.locator("#plot-ttft").scroll_into_view_if_needed()
    made.watch.wait_js("document.getElementById('plot-ttft').layout?.shapes?.length >= 2")


def the_report_opens_once_it_has_stopped(made: Stand) -> None:
    page = made.watch.page
    page.set_viewport_size(WINDOW)
    page.get_by_role("link", name="Locust", exact=True).last.click()
    page.get_by_role("button", name="Stop", exact=True).first.click()
    made.watch.tab("Reports")
    link = page.frame_locator("iframe").get_by_role("link", name="report.html")
    page.frame_locator("iframe").locator("main").wait_for()
    for _ in range(int(PATIENCE_S)):
        if link.count():
            break
        page.wait_for_timeout(1000)
        page.reload()
    link.click()
    page.locator("[data-chart] .main-svg").first.wait_for()
    assert page.url.endswith("/report.html")
