"""``report.html`` in Chromium: it draws, follows light and dark, hands out CSV, and asks nobody."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from compare_cases import write_made_run
from metrics_cases import failed, request
from playwright.sync_api import Browser, Page, sync_playwright
from report_cases import write_run
from swarm_process import PATIENCE_S
from web_browser import ARGUMENTS, CHROMIUM, markup, texts

from llm_locust.report.analysis import build_report
from llm_locust.report.comparison import compare_runs
from llm_locust.report.comparison_page import page as compared_page
from llm_locust.store import REPORT_HTML_FILE

WHITE = "rgb(255, 255, 255)"
MARKUP = "<b>x<i>y<br>&lt;"  # what plotly reads as markup in a text
HOSTILE = "</script><script>document.title = 'owned'</script><img src=http://evil.example/x onerror=alert(1)>"

pytestmark = [
    pytest.mark.run,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium as {CHROMIUM}"),
]


@dataclass
class Visit:
    """An open page, and what it did that a report must not do."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    def draw(self, *charts: str) -> None:
        """Scroll to charts, to all if none is named, as a reader does, until each is drawn."""
        selectors = [f"[data-chart={chart}]" for chart in charts] or ["[data-chart]"]
        for plot in (each for selector in selectors for each in self.page.locator(selector).all()):
            plot.scroll_into_view_if_needed()
            plot.locator(".main-svg").first.wait_for()

    def widths(self) -> set[int]:
        """Of all charts; 0 of one that is not drawn."""
        return {
            *self.page.evaluate(
                "[...document.querySelectorAll('[data-chart]')].map(e => e._fullLayout?.width ?? 0)"
            )
        }

    def is_within_the_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def colour(self, selector: str, style: str) -> Any:
        return self.page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{style}")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = [
        request(
            i * 0.02,
            (0.05 + 2e-5 * (i % 300), 0.09, 0.12),
            input_tokens=i % 300,
            name=f"{HOSTILE}{i % 2}",
            replica=f"{MARKUP}{i % 3}",
            request_id=f"{MARKUP}{i}",
        )
        for i in range(400)
    ]
    made.append(request(1.0, (0.05, 3.0), request_id="=1+1", name=HOSTILE))
    made += [failed(8.5 + i * 0.1, error=f"{HOSTILE} {i}") for i in range(10)]
    run = write_run(tmp_path_factory.mktemp("html") / "run", made, model=HOSTILE, gates="goodput>=99%")
    build_report(run)
    return run / REPORT_HTML_FILE


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@contextmanager
def visited(browser: Browser, report: Path, scheme: Literal["light", "dark"], width: int) -> Iterator[Visit]:
    """The report, opened from its file; in the end it must have done nothing wrong."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    context.set_default_timeout(PATIENCE_S * 1e3)
    found = Visit(context.new_page())
    page = found.page
    page.on("console", lambda message: found.wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: found.wrong.append(f"dialog: {dialog.message}"))
    page.on("request", lambda asked: found.wrong.append(asked.url) if asked.url != report.as_uri() else None)
    page.goto(report.as_uri())
    yield found
    context.close()
    assert [w for w in found.wrong if not w.startswith(("data:", "blob:"))] == []


@pytest.fixture(scope="module")
def visit(browser: Browser, report: Path) -> Iterator[Visit]:
    """The page on a phone, opened once: the script of its charts is most of what a visit costs."""
    with visited(browser, report, "dark", 390) as visit:
        yield visit


@pytest.fixture(scope="module")
def on_paper(visit: Visit) -> tuple[set[int], str]:
    """The widths of the charts and the page's colour in print; what comes after has been printed before."""
    visit.page.emulate_media(media="print")
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    found = visit.widths(), visit.colour("body", "backgroundColor")
    visit.page.emulate_media(media="screen")
    visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
    return found


def test_a_chart_is_drawn_when_the_reader_comes_near_it(visit: Visit) -> None:
    visit.draw("ttft-over-time")
    assert 0 in visit.widths()


def test_colours_are_the_system_s_until_the_reader_changes_them(visit: Visit) -> None:
    axis = "[data-chart=ttft-over-time] .xtick text"
    visit.draw("ttft-over-time")
    dark = visit.colour("body", "backgroundColor"), visit.colour(axis, "fill")
    visit.page.locator("#theme").click()
    light = visit.colour("body", "backgroundColor"), visit.colour(axis, "fill")
    assert light[0] == WHITE
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    visit.page.locator("#theme").click()
    assert (visit.colour("body", "backgroundColor"), visit.colour(axis, "fill")) == dark


def test_on_paper_every_chart_is_there_in_light_colours(visit: Visit, on_paper: tuple[set[int], str]) -> None:
    assert on_paper == ({680}, WHITE)
    assert visit.colour("body", "backgroundColor") != WHITE


@pytest.mark.usefixtures("on_paper")
def test_every_chart_fits_a_phone_and_a_desk(visit: Visit) -> None:
    visit.draw()
    assert 0 < min(visit.widths()) <= max(visit.widths()) <= 390
    assert visit.is_within_the_screen()
    visit.page.set_viewport_size({"width": 1440, "height": 900})
    deadline = time.monotonic() + PATIENCE_S
    while min(visit.widths()) <= 390:  # they follow a little later
        assert time.monotonic() < deadline, visit.widths()
        visit.page.wait_for_timeout(100)
    assert visit.is_within_the_screen()
    assert visit.wrong == []
    assert visit.page.title() != "owned"


def test_names_from_a_server_are_text_in_the_charts(visit: Visit) -> None:
    visit.draw("replicas-in-flight", "slowest")
    assert [name for name in texts(visit.page) if MARKUP in name], texts(visit.page)
    assert markup(visit.page) == []


def test_the_csv_of_a_chart_is_its_data(visit: Visit, tmp_path: Path) -> None:
    with visit.page.expect_download() as download:
        visit.page.locator("[data-csv=failures-over-time]").click()
    assert download.value.suggested_filename == "20261121-first-failures-over-time.csv"
    download.value.save_as(tmp_path / "chart.csv")
    head, *rows = (tmp_path / "chart.csv").read_text().splitlines()
    assert head == "time (s),http_error"
    assert sum(float(row.split(",")[1]) for row in rows) == 10


def test_a_chart_of_several_tables_has_each_of_them_as_csv(visit: Visit, tmp_path: Path) -> None:
    names = []
    for button in visit.page.locator("[data-csv=ttft-by-input]").all():
        with visit.page.expect_download() as download:
            button.click()
        names.append(download.value.suggested_filename)
        download.value.save_as(tmp_path / names[-1])
    assert [name.rsplit("-", 1)[1] for name in names] == ["requests.csv", "groups.csv", "line.csv"]
    assert len((tmp_path / names[0]).read_text().splitlines()) == 402


def test_text_in_a_csv_is_no_formula(visit: Visit, tmp_path: Path) -> None:
    with visit.page.expect_download() as download:
        visit.page.locator("[data-csv=slowest]").click()
    download.value.save_as(tmp_path / "chart.csv")
    assert "'=1+1" in (tmp_path / "chart.csv").read_text().splitlines()[1]


def test_the_log_button_changes_the_axis_and_back(visit: Visit) -> None:
    visit.draw("ttft-over-time")
    button = visit.page.locator("[data-log=ttft-over-time]")
    kind = "document.querySelector('[data-chart=ttft-over-time]')._fullLayout.yaxis.type"
    button.click()
    assert (visit.page.evaluate(kind), button.get_attribute("aria-pressed")) == ("log", "true")
    button.click()
    assert (visit.page.evaluate(kind), button.get_attribute("aria-pressed")) == ("linear", "false")


def test_a_script_that_found_its_way_into_the_page_would_not_run(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    # Without charts, and with the same policy.
    bare = re.sub(r"<script\b.*?</script>", "", report.read_text(), flags=re.DOTALL)
    broken.write_text(bare.replace("<main>", "<main><script>document.title = 'owned'</script>", 1))
    assert "document.title = 'owned'" in broken.read_text()
    page = browser.new_page()
    page.goto(broken.as_uri())
    assert page.title() != "owned"
    page.close()


def test_a_chart_names_the_point_that_the_reader_points_at(browser: Browser, report: Path) -> None:
    """And a heatmap its cell: a kind of chart that plotly's smallest bundle lacks."""
    with visited(browser, report, "light", 1200) as visit:
        for chart in ("ttft-over-time", "itl-heat-map"):
            visit.draw(chart)
            plot = visit.page.locator(f"[data-chart={chart}]")
            plot.locator(".nsewdrag").first.hover()
            plot.locator(".hoverlayer text").first.wait_for()
            assert plot.locator(".modebar-btn[data-title^=Download]").count() == 1
            assert plot.locator(".modebar-btn[data-title^=Share]").count() == 0, (
                "plotly would upload the data"
            )


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("delete window.DecompressionStream", "Charts need a newer browser: Chrome or Edge 80"),
        (
            "window.atob = () => 'no gzip'",
            "The charts could not be drawn",
        ),
    ],
)
def test_a_browser_that_cannot_unpack_the_charts_says_so_and_has_all_else(
    browser: Browser, report: Path, broken: str, said: str
) -> None:
    context = browser.new_context()
    context.add_init_script(broken)
    page = context.new_page()
    page.goto(report.as_uri())
    line = page.locator("#no-charts")
    line.wait_for()
    assert said in line.inner_text()
    with page.expect_download() as download:
        page.locator("[data-csv=failures-over-time]").click()
    assert download.value.suggested_filename.endswith("failures-over-time.csv")
    context.close()


def test_names_of_runs_are_text_in_the_charts_of_a_comparison(browser: Browser, tmp_path: Path) -> None:
    label = "<a href='https:evil'>in<b>bold"  # a folder's name has no slash
    runs = [write_made_run(tmp_path / f"{label}{i}", i, n=60) for i in range(3)]
    path = tmp_path / "several.html"
    path.write_bytes(compared_page(compare_runs(runs)))
    with visited(browser, path, "light", 500) as visit:
        visit.draw("trend-p50-ttft", "cdf-e2el")
        assert [name for name in texts(visit.page) if label in name], texts(visit.page)
        assert markup(visit.page) == []


@pytest.mark.parametrize("kind", ["one gap", "events at once", "failures only", "not streamed"])
def test_charts_of_few_points_are_drawn_without_an_error(browser: Browser, tmp_path: Path, kind: str) -> None:
    made = [request(0.0, (0.05, 0.07))]
    if kind == "events at once":  # a heat map of one row
        made = [request(1.0, (0.05, 0.05, 0.05))]
    if kind == "not streamed":
        made = [request(i * 0.1, (), ended=i * 0.1 + 1, streamed=False) for i in range(30)]
    if kind == "failures only":
        made = [failed(i * 0.1, error="gone") for i in range(30)]
    run = write_run(tmp_path / "run", made, slo="ttft=500ms tpot=50ms")
    build_report(run)
    with visited(browser, run / REPORT_HTML_FILE, "light", 1200) as visit:
        visit.draw()
