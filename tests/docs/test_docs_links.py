"""Links between README.md, the pages and the files of the repository lead somewhere; pages are listed."""

import re
from functools import cache
from pathlib import Path

import pytest
from doc_blocks import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "llms.txt",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$|<img [^>]*src=\"([^\"]+)\"", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")


def links(page: Path) -> list[str]:
    prose = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    found = ["".join(groups) for groups in _LINK.findall(prose)]
    return [link for link in found if not link.startswith(("http://", "https://", "mailto:"))]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        linked = {(page.parent / link.partition("#")[0]).resolve() for page in new for link in links(page)}
        new = {target for target in linked if target.suffix == ".md"} - reached
    assert {page for page in PAGES if page.suffix == ".md"} - reached == set()


def test_llms_txt_has_every_page() -> None:
    listed = {(ROOT / link).resolve() for link in links(ROOT / "llms.txt")}
    pages = {page for page in PAGES if page.suffix == ".md" and page.parent.name != "upstream"}
    assert pages - listed == set()


def test_runs_are_started_by_llm_locust_and_one_page_says_how_locust_itself_does_it() -> None:
    starting = {
        page.name for page in PAGES if page.parent.name != "upstream" and "locust -f" in page.read_text()
    }
    assert starting == {"users.md"}


def test_the_page_of_figures_can_be_read_in_one_go() -> None:
    """What is longer belongs into definitions.md, statistics.md or, generated, into summary-keys.md."""
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    assert len(lines) <= 150
