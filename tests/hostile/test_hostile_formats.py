"""Names in a run's records never write anything but text to the terminal that a report is printed on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from report_cases import records, write_run

from llm_locust.cli.main import main
from llm_locust.report.output import shown_json

#: A title, colours by both kinds of escape, DEL, text from right to left, a separator of lines, a mark.
ODD = "m\x1b]0;owned\x07\x1b[31m\x9b32m\x7f\r\u202ex\u2028y\u200fz\ufeff"


def odd_run(path: Path) -> Path:
    """As a worker that lies can make one."""
    made = [replace(each, name=ODD, slo_class=ODD, replica=ODD, model=ODD, error=ODD) for each in records()]
    odd = {"name": ODD, "model": ODD, "host": f"http://{ODD}"}
    return write_run(path, made, id=path.name, slo="ttft=100ms", gates="rps>1", **odd)


@pytest.mark.parametrize(
    "words",
    [
        *(["report", "--format", form] for form in ("console", "json", "md", "vllm", "junit")),
        ["report", "--format", "vllm", "--save-detailed"],
        *(["compare", "--format", form] for form in ("console", "json", "md")),
    ],
    ids=" ".join,
)
def test_no_format_prints_a_control_character(
    words: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(odd_run(tmp_path / name)) for name in ("a", "b")[: 1 + (words[0] == "compare")]]
    main([words[0], *runs, *words[1:]])
    said = capsys.readouterr()
    assert len(said.out) > 200
    for line in (said.out + said.err).split("\n"):
        assert line.isprintable(), [c for c in line if not c.isprintable()]


def test_json_read_back_has_the_names_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", str(odd_run(tmp_path / "a")), "--format", "json"])
    assert list(json.loads(capsys.readouterr().out)["by_name"]) == [ODD]


@given(st.recursive(st.text() | st.none(), lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_printed_json_is_the_value(value: object) -> None:
    for indent in (None, 2):
        text = shown_json(value, indent=indent)
        assert json.loads(text) == value
    assert "\n" not in shown_json(value)
