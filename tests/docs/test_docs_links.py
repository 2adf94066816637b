"""Links, pages, options and waits that the documentation names exist; the changelog can be read."""

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from doc_blocks import ROOT

from llm_locust.cli.main import main
from llm_locust.options.table import OPTION
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.collector import SETTLE_WITHIN_S
from llm_locust.swarm.channel.shipping import RESEND_AFTER_S

# --- Links between README.md, the pages and the files of the repository lead somewhere; pages are listed


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


# --- ``CHANGELOG.md`` is a list of releases, each short enough to be read, and the version is one everywhere


MOST_LINES = 120

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_first_release_of_the_changelog_is_the_version_of_the_package() -> None:
    versions = re.findall(r"^## (\S+) \((?:unreleased|\d+ [A-Z][a-z]+ \d{4})\)$", TEXT, re.MULTILINE)
    assert versions[0] == VERSION
    assert len(versions) == TEXT.count("\n## "), (
        "a heading is '## 1.2.3 (unreleased)' or '## 1.2.3 (27 November 2026)'"
    )
    parts = [tuple(map(int, version.split("."))) for version in versions]
    assert parts == sorted(parts, reverse=True)


def test_a_release_is_short_enough_to_be_read_and_has_each_heading_once() -> None:
    for release in TEXT.split("\n## ")[1:]:
        lines = release.splitlines()
        assert len(lines) <= MOST_LINES, f"{lines[0]}: shorten it"
        headings = [line for line in lines if line.startswith("### ")]
        assert len(headings) == len(set(headings)), lines[0]


def test_images_in_pages_and_manifests_have_the_version_of_the_package() -> None:
    files = [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "llm_locust/k8s").rglob("*.yaml"),
        ROOT / "k8s/Dockerfile",
    ]
    named = {
        (str(file.relative_to(ROOT)), tag)
        for file in files
        for tag in re.findall(r"\bllm-locust:(\d+\.\d[\w.]*)", file.read_text(encoding="utf-8"))
    }
    assert named
    assert {(file, tag) for file, tag in named if tag != VERSION} == set()


# --- The pipelines in ``docs/ci`` do what the tutorial does, and every option in them exists


PIPELINES = sorted((ROOT / "docs" / "ci").glob("*.yaml"))


def commands(text: str) -> list[list[str]]:
    """The words of each ``llm-locust`` command in a pipeline's scripts."""

    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for each in value.values() for text in texts(each)]
        if isinstance(value, list):
            return [text for each in value for text in texts(each)]
        return [value] if isinstance(value, str) else []

    lines = [line for text in texts(yaml.safe_load(text)) for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("llm-locust ")]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda path: path.name)
def test_a_pipeline_runs_the_load_of_the_tutorial(pipeline: Path) -> None:
    text = (ROOT / "docs/tutorials/ci.md").read_text()
    found = re.search(r"^llm-locust run URL (.*)$", text, re.MULTILINE)
    assert found is not None
    load, report = commands(pipeline.read_text())
    assert load[3:] == shlex.split(found[1])
    assert " ".join(report[:5]) in text


def test_every_option_of_the_pipelines_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    known = capsys.readouterr().out
    for pipeline in PIPELINES:
        for option in commands(pipeline.read_text())[0]:
            assert not option.startswith("--") or option in known, option


# --- docs/run-states.md names every message and the bounds of every wait, as the code has them


PAGE = Path(__file__).parents[2].joinpath("docs", "run-states.md").read_text()


def test_the_page_has_every_message() -> None:
    texts = (value for value in vars(messages).values() if isinstance(value, str))
    kinds = {text for text in texts if text.startswith("llm_") and "." not in text}
    assert len(kinds) > 15
    assert {kind for kind in kinds if kind not in PAGE} == set()


def test_the_page_has_the_bounds_of_the_code() -> None:
    assert f"`--drain` ({OPTION['drain'].default})" in PAGE
    assert f"disk {SETTLE_WITHIN_S:g} s" in PAGE
    assert f"sent again after {RESEND_AFTER_S:g} s" in PAGE
