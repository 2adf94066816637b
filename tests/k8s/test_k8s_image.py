"""The image: what its entry point runs, and its locked packages, as those of the tests and the audit."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

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
    for requirement in map(Requirement, project["dependencies"] + project["optional-dependencies"]["otel"]):
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


@pytest.mark.parametrize(
    ("words", "ran"),
    [
        (["run", "--sim"], "llm-locust run --sim"),
        (["report", "/runs/a b"], "llm-locust report /runs/a b"),
        ([], "llm-locust"),
        (["--help"], "llm-locust --help"),
        (["--version"], "llm-locust --version"),
        (["locust", "-f", "x.py"], "locust -f x.py"),
        # What an operator gives to an image whose entry point is Locust's.
        (["--locustfile=x.py", "--master"], "locust --locustfile=x.py --master"),
        (["-f", "x.py"], "locust -f x.py"),
        (["python", "-c", "0"], "python -c 0"),
        (["nonsense"], "llm-locust nonsense"),
    ],
)
def test_a_command_is_one_word_away_and_options_alone_are_locusts(
    words: list[str], ran: str, tmp_path: Path
) -> None:
    for name in ("locust", "llm-locust", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        [str(ROOT / "k8s" / "entry-point"), *words],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ran


def test_the_entry_point_is_in_the_image() -> None:
    dockerfile = (ROOT / "k8s" / "Dockerfile").read_text()
    (copied,) = re.findall(r"^COPY .*k8s/entry-point /opt/llm-locust/bin/(\S+)$", dockerfile, flags=re.M)
    assert f'ENTRYPOINT ["{copied}"]' in dockerfile
    assert "!k8s/entry-point" in (ROOT / ".dockerignore").read_text().splitlines()
