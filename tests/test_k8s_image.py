"""What goes into the image: packages by hash, in versions that the project allows."""

import tomllib

import pytest
from k8s_tools import ROOT
from packaging.requirements import Requirement


@pytest.mark.parametrize("name", ["requirements.txt", "build-requirements.txt"])
def test_the_image_takes_packages_by_hash_and_from_no_named_place(name: str) -> None:
    lines = (ROOT / "k8s" / name).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        assert "==" in lines[start]
        assert any("--hash=sha256:" in line for line in lines[start + 1 : end])
    assert not any("://" in line or "-index" in line for line in lines)


def test_the_image_has_every_dependency_in_a_version_that_the_project_allows() -> None:
    lines = (ROOT / "k8s" / "requirements.txt").read_text().splitlines()
    pinned = dict(line.split(" ")[0].split("==") for line in lines if not line.startswith(" "))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), requirement
