"""The help of every command: complete, and as it is meant to be read."""

import re
import subprocess
import sys

import pytest

from llm_locust.cli.main import COMMANDS, main


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("name", [*COMMANDS, "k8s render", "k8s run"])
def test_help_shows_percentages_and_fits_the_terminal(
    name: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(capsys, *name.split())
    assert "%%" not in text, "argparse expands it in some texts, and not in others"
    assert not re.search(r"%\(\w+\)s", text)
    assert not [line for line in text.splitlines() if len(line) > columns]


def test_the_list_of_options_shows_percentages() -> None:
    """In a process of its own: they are those of Locust's parser, which patches what it imports."""
    command = [sys.executable, "-m", "llm_locust", "options"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout
    assert "%%" not in done.stdout
