"""The pipelines in ``docs/ci`` do what the tutorial does, and every option in them exists."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from doc_blocks import ROOT

from llm_locust.cli.main import main

PIPELINES = sorted((ROOT / "docs" / "ci").glob("*.yaml"))


def commands(text: str) -> list[list[str]]:
    """The words of each ``llm-locust`` command in a pipeline's scripts."""

    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for each in value.values() for text in texts(each)]
        if isinstance(value, list):
            return [text for each in value for text in texts(each)]
        return [value] if isinstance(value, str) else []

    lines = [line for text in texts(yaml.safe_load(text)) for line in text.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("llm-locust ")]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda path: path.name)
def test_a_pipeline_runs_the_load_of_the_tutorial(pipeline: Path) -> None:
    text = (ROOT / "docs/tutorials/ci.md").read_text()
    found = re.search(r"^llm-locust run URL (.*)$", text, re.MULTILINE)
    assert found is not None
    load, report = commands(pipeline.read_text())
    assert load[3:] == shlex.split(found[1])
    assert " ".join(report[:5]) in text


def test_every_option_of_the_pipelines_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    known = capsys.readouterr().out
    for pipeline in PIPELINES:
        for option in commands(pipeline.read_text())[0]:
            assert not option.startswith("--") or option in known, option
