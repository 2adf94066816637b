"""llm-locust sweep: llm-locust run with loads of its own where nobody says which."""

import argparse

import pytest

from llm_locust.cli import run as run_command, sweep


@pytest.mark.parametrize(
    ("words", "environment", "loads"),
    [
        ([], {}, sweep.DEFAULT_SWEEP),
        (["--sweep=rate=1,2"], {}, "rate=1,2"),
        ([], {"LLM_LOCUST_SWEEP": "users=3"}, None),
    ],
)
def test_loads_that_nobody_says_are_the_default(
    words: list[str],
    environment: dict[str, str],
    loads: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    args = parser.parse_args(["http://127.0.0.1:9", *words])
    args.rest = []
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found: list[argparse.Namespace] = []

    def run(given: argparse.Namespace) -> int:
        found.append(given)
        return 7

    monkeypatch.setattr(run_command, "run", run)
    assert sweep.run(args) == 7
    assert getattr(found[0], "sweep", None) == loads
