"""Charts of comparisons in Chromium: names that hold what plotly reads as markup stand there as text."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chromium import ARGUMENTS, CHROMIUM, markup, texts
from compare_cases import write_made_run
from playwright.sync_api import Page, sync_playwright

from llm_locust.report.compare.outcome import compare_runs
from llm_locust.report.compare.page import page as compared_page

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
