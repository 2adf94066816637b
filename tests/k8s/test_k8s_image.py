"""The locked packages of the image, the tests and the audit: by hash, in versions that the project allows."""

import tomllib

import pytest
from k8s_tools import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

LOCKS = (
    *("k8s/requirements.txt", "k8s/build-requirements.txt"),
    *("tests/requirements.txt", "tests/lowest-requirements.txt", ".ci/audit-requirements.txt"),
)


@pytest.mark.parametrize("name", LOCKS)
def test_locked_packages_have_hashes_and_name_no_place_to_take_them_from(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        assert "==" in lines[start]
        assert any("--hash=sha256:" in line for line in lines[start + 1 : end])
    assert not any("://" in line or "-index" in line for line in lines)


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if not line.startswith(" "))


def test_locks_hold_every_dependency_in_a_version_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image, tests = pinned("k8s/requirements.txt"), pinned("tests/requirements.txt")
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier.contains(image[requirement.name.lower()]), requirement
    for requirement in map(Requirement, project["dependencies"] + project["optional-dependencies"]["test"]):
        name = requirement.name.lower()
        assert name == "llm-locust" or requirement.specifier.contains(tests[name]), requirement


def test_the_lowest_versions_that_are_tested_are_those_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = pinned("tests/lowest-requirements.txt")
    for requirement in map(Requirement, project["dependencies"]):
        (bound,) = (each.version for each in requirement.specifier if each.operator == ">=")
        assert Version(bound) == Version(lowest[requirement.name.lower()]), requirement
