"""``CHANGELOG.md`` is a list of releases, each short enough to be read, and the version is one everywhere."""

import re
import tomllib

from doc_blocks import ROOT

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
