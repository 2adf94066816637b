"""Tests in forks tell what they would tell in one process, whatever becomes of a fork."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).with_name("support")

FILES = {
    "conftest.py": """
import os
import pytest

pytest_plugins = ["forking"]

@pytest.fixture(scope="session")
def shared():
    yield os.getpid()
    with open("ended", "a") as file:
        print(os.getpid(), file=file)
""",
    "test_a.py": """
import os
import pytest

@pytest.fixture(scope="module")
def pid():
    return os.getpid()

def test_passes(shared, pid):
    assert shared == pid == os.getpid() != os.getppid()

def test_fails(shared, pid):
    print("what it printed")
    assert shared != pid

@pytest.mark.skip(reason="not today")
def test_skipped():
    pass
""",
    "test_b.py": """
def test_passes(shared):
    assert shared
""",
    "test_c.py": """
import os
import signal

def test_ends_its_process():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_it():
    pass
""",
    "test_d.py": """
import pytest

@pytest.fixture(scope="session")
def broken():
    yield
    raise ValueError("broke at the end")

def test_has_an_end_that_breaks(broken):
    pass
""",
}


ENDS_ITS_PROCESS_AT_THE_END = """
import os
import pytest

@pytest.fixture(scope="session")
def ends():
    yield
    os._exit({code})

def test_passes(ends):
    pass
"""


def _pytest(folder: Path, *options: str, files: dict[str, str] = FILES) -> tuple[int, str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", "--color=no", *options]
    bare = {
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # plugins take longer
    environ = os.environ | {"PYTHONPATH": str(SUPPORT)} | bare
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_every_test_has_one_outcome_also_those_of_a_fork_that_is_killed(tmp_path: Path) -> None:
    code, said = _pytest(tmp_path, "--forks", "3")
    assert code == 1
    named = re.findall(r"^(FAILED|SKIPPED|ERROR) (?:\[1\] )?([^ \n]+)", said, re.MULTILINE)
    assert sorted(named) == [
        ("ERROR", "test_c.py::test_after_it"),
        ("ERROR", "test_c.py::test_ends_its_process"),
        ("ERROR", "test_d.py::test_has_an_end_that_breaks"),
        ("FAILED", "test_a.py::test_fails"),
        ("SKIPPED", "test_a.py:16:"),
    ]
    assert re.search(r"1 failed, 3 passed, 1 skipped, 3 errors", said)
    assert "what it printed" in said
    assert "ValueError: broke at the end" in said
    assert said.count("its process ended before its end") >= 2
    pids = (tmp_path / "ended").read_text().split()
    assert len(pids) == len({*pids}) > 0


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_fork_that_is_ended_after_its_last_test_fails_that_test(exit_code: int, tmp_path: Path) -> None:
    ends = ENDS_ITS_PROCESS_AT_THE_END.format(code=exit_code)
    files = {"conftest.py": FILES["conftest.py"], "test_e.py": ends}
    code, said = _pytest(tmp_path, "--forks", "2", files=files)
    assert code == 1
    assert "ERROR test_e.py::test_passes - its process ended before its end" in said
    assert "1 passed, 1 error" in said


def test_the_rest_is_not_begun_after_as_many_failures_as_are_wanted(tmp_path: Path) -> None:
    code, said = _pytest(tmp_path, "--forks", "1", "-x")
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "stopping after 1 failures" in said


def test_a_file_that_cannot_be_collected_is_told_as_without_forks(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text("import not_there\n")
    code, said = _pytest(tmp_path, "--forks", "2")
    assert code == 2
    assert "ModuleNotFoundError" in said
