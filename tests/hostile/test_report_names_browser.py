"""Charts of the reports in Chromium: names that hold what plotly reads as markup stand there as text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_cases import write_made_run
from metrics_cases import request
from playwright.sync_api import Page, sync_playwright
from report_cases import write_run

from llm_locust.report.compare.outcome import compare_runs
from llm_locust.report.compare.page import page as compared_page
from llm_locust.report.run.build import build_report
from llm_locust.store import REPORT_HTML_FILE

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
HOSTILE = "<b>x<i>y<br>&lt;"

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium as {CHROMIUM}")


@pytest.fixture(scope="module")
def opened() -> Iterator[Callable[[Path], Page]]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)

        def open_(path: Path) -> Page:
            page = chromium.new_page(viewport={"width": 2400, "height": 1200})
            page.goto(path.as_uri())
            for plot in page.locator("[data-chart]").all():
                plot.scroll_into_view_if_needed()
                plot.locator(".main-svg").first.wait_for()
            return page

        yield open_
        chromium.close()


def texts(page: Page) -> list[str]:
    """All texts in the charts, without the blanks that plotly sets between lines."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.main-svg text')].map((t) => t.textContent)"
    )
    return found


def markup(page: Page) -> list[Any]:
    """What only markup in a text can have made: links, and bold or slanted texts."""
    found: list[Any] = page.evaluate(
        '[...document.querySelectorAll(\'.main-svg a, .main-svg tspan[style*="weight"], '
        '.main-svg tspan[style*="italic"]\')].map((e) => e.outerHTML)'
    )
    return found


def test_names_from_a_server_are_text_in_the_charts_of_a_report(
    opened: Callable[[Path], Page], tmp_path: Path
) -> None:
    made = [
        replace(
            request(i * 0.02, (0.05 + 2e-5 * (i % 300), 0.09, 0.12)),
            replica=f"{HOSTILE}{i % 3}",
            request_id=f"{HOSTILE}{i}",
            name=f"{HOSTILE}{i % 2}",
        )
        for i in range(400)
    ]
    run = write_run(tmp_path / "run", made, model=HOSTILE)
    build_report(run)
    page = opened(run / REPORT_HTML_FILE)
    assert [name for name in texts(page) if HOSTILE in name], texts(page)
    assert markup(page) == []


def test_names_of_runs_are_text_in_the_charts_of_a_comparison(
    opened: Callable[[Path], Page], tmp_path: Path
) -> None:
    label = "<a href='https:evil'>in<b>bold"  # a folder's name has no slash
    runs = [write_made_run(tmp_path / f"{label}{i}", i, n=60) for i in range(3)]
    for number, count in (("pair", 2), ("several", 3)):
        path = tmp_path / f"{number}.html"
        path.write_text(compared_page(compare_runs(runs[:count])))
        page = opened(path)
        assert [name for name in texts(page) if label in name], texts(page)
        assert markup(page) == []
