"""What is published: one wheel a platform for every Python, with the reader in C, and the source of both."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"


def built(what: str, tree: Path, made: Path) -> Path:
    """The one file that a source tree becomes."""
    made.mkdir()
    command = [sys.executable, "-c", BUILD.format(what=what), str(made)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = made.iterdir()
    return file


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="no C compiler")
def test_the_wheel_serves_every_python_and_the_sdist_can_make_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(
        ROOT / "llm_locust", tree / "llm_locust", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    sdist = built("sdist", tree, tmp_path / "sdist")
    subprocess.run(["tar", "xzf", str(sdist), "-C", str(tmp_path)], check=True)
    assert (tmp_path / sdist.name.removesuffix(".tar.gz") / "llm_locust/client/_reader.c").is_file()
    wheel = built("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    assert wheel.stem.split("-")[2:4] == ["cp311", "abi3"]
    assert wheel.stem.split("-")[4].startswith("linux_")
    assert "llm_locust/client/_reader.abi3.so" in zipfile.ZipFile(wheel).namelist()


def test_the_published_wheels_are_of_the_lowest_python_and_are_tried_for_the_reader() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = project["tool"]["cibuildwheel"]
    lowest = project["project"]["requires-python"].removeprefix(">=").replace(".", "")
    assert asked["build"] == f"cp{lowest}-manylinux_*"
    assert f'"py_limited_api": "cp{lowest}"' in (ROOT / "setup.py").read_text()
    assert "why_python" in asked["test-command"]
