"""What the README shows works: its options exist, its commands parse, its code compiles and runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def output(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def locust_help() -> str:
    return output(str(BIN / "llm-locust"), "options") + output(str(BIN / "locust"), "--help")


def test_every_locust_option_that_it_names_exists(locust_help: str) -> None:
    table = README.split("## Options")[1].split("##")[0]
    commands = [b for b in blocks("sh") if b.startswith("pip") or "locust -f" in b]
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", table + "".join(commands)))
    assert named
    known = set(re.findall(r"(--[a-z][a-z-]+)", locust_help))
    assert named <= known, f"not options of locust: {sorted(named - known)}"


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "test-e2e", "test-k8s", "audit", "mutate"])
def test_the_make_targets_that_it_names_exist(target: str) -> None:
    assert f"make {target}" in README
    assert output("make", "--dry-run", target)


def test_the_simulator_takes_the_options_that_it_shows() -> None:
    (command,) = [b for b in blocks("sh") if b.startswith("llm-locust sim")]
    known = output(str(BIN / "llm-locust"), "sim", "--help")
    for flag in re.findall(r"(--[a-z-]+)", command):
        assert flag in known


def test_its_locustfile_loads(tmp_path: Path) -> None:
    (code,) = blocks("python")
    (tmp_path / "shown.py").write_text(code, encoding="utf-8")
    listed = output(str(BIN / "locust"), "-f", str(tmp_path / "shown.py"), "--list", cwd=tmp_path)
    assert "Support" in listed
    assert "Sdk" in listed


def test_every_file_that_it_links_to_exists() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("path", sorted((ROOT / "locustfiles").glob("*.py")), ids=lambda p: p.name)
def test_every_locustfile_loads_and_is_short(path: Path) -> None:
    assert output(str(BIN / "locust"), "-f", str(path), "--list")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
