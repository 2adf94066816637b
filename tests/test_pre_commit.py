"""The hooks of ``.pre-commit-config.yaml``: of this project alone, and what ``make test`` runs too."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
HOOKS: list[dict[str, Any]] = [hook for repo in CONFIG["repos"] for hook in repo["hooks"]]


def test_hooks_need_no_network() -> None:
    """A hook of another repository is cloned when it is first run; one with requirements is installed."""
    assert [repo["repo"] for repo in CONFIG["repos"]] == ["local"]
    assert {hook["language"] for hook in HOOKS} == {"system"}
    assert not [hook for hook in HOOKS if "additional_dependencies" in hook]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: str(hook["id"]))
def test_each_hook_runs_a_program_of_the_environment_that_the_makefile_makes_and_uses(
    hook: dict[str, Any],
) -> None:
    program, *words = shlex.split(hook["entry"])
    folder, name = program.rsplit("/", 1)
    assert folder == ".venv/bin"
    assert f"$(BIN)/{name}" in MAKEFILE
    assert f"\n{name}==" in (ROOT / "tests" / "requirements.txt").read_text()
    assert all((ROOT / word).exists() for word in words if "/" in word)


def test_the_hooks_lint_format_and_check_types_and_sizes() -> None:
    assert {hook["id"] for hook in HOOKS} == {"ruff-check", "ruff-format", "mypy", "sizes-and-layers"}
