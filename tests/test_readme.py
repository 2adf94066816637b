"""README.md: its targets exist, it shows users before tests, and every locustfile loads."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from swarm_process import Process

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:`| {4})make ([a-z][a-z0-9-]+)", README))))
def test_the_make_targets_that_it_names_exist(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_its_first_screens_are_for_users() -> None:
    beginning = "\n".join(README.splitlines()[:60])
    assert "make test" not in beginning
    assert "test suite" not in beginning
    assert "llm-locust run" in beginning


@pytest.mark.run
def test_the_locustfiles_load_side_by_side_and_are_short(tmp_path: Path) -> None:
    paths = sorted((ROOT / "llm_locust" / "locustfiles").glob("[a-z]*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    command = [sys.executable, "-m", "locust", "-f", ",".join(map(str, paths)), "--list"]
    process = Process(command, tmp_path)
    assert process.exit_code() == 0, process.stderr
    process.end()
    listed = process.stdout.split()[2:]
    assert sorted(listed) == sorted(re.findall(r"^class (\w+)", "\n".join(texts), re.MULTILINE))
    assert max(len(text.splitlines()) for text in texts) <= 40
