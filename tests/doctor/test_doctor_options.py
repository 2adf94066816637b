"""The options of ``llm-locust doctor``: what cannot be used is refused in one line, without a secret."""

import pytest

from llm_locust.cli import doctor
from llm_locust.cli.main import main
from llm_locust.doctor.checks import Result
from llm_locust.doctor.finding import Examination

KEY = "sk-a-key-of-this-test"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--users", "0"], "must be a whole number from 1 to 1,000,000, got '0'"),
        (["--users", "many"], "got 'many'"),
        (["ftp://host"], "is not a URL such as"),
        ([f"http://me:{KEY}@host"], "leave user, query and fragment out"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["--header", f"X-Key {KEY}"], "NAME=VALUE"),
        (["--endpoint", "chats"], "chats"),
        (["--body", "[1]"], "a list"),
        (["--body", '{"messages": []}'], "'messages' is what the workload fills"),
        (["https://127.0.0.1:1", "--ca-cert", "/no/such/file"], "--ca-cert '/no/such/file' cannot be used"),
        (["--jsn"], "--json"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["doctor", *words])
    except SystemExit as e:
        code = e.code
    said = capsys.readouterr()
    assert code == 2
    assert why in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert KEY not in said.err


@pytest.mark.parametrize(
    ("words", "has_key"),
    [([], True), (["--api-key-env", ""], False), (["--header", "api-key=another-one"], True)],
)
def test_the_usual_variable_of_a_key_is_read_where_nothing_is_said(
    words: list[str], has_key: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Examination] = []

    def examine(asked: Examination) -> list[Result]:
        seen.append(asked)
        return []

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor", "http://host", *words]) == 0
    (asked,) = seen
    assert asked.has_key is has_key
    assert (KEY in asked.secrets) is (words == [])
    assert KEY not in capsys.readouterr().out + repr(asked)
