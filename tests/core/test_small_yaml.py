"""Small YAML files of people: read as plain values, or refused in one line."""

from pathlib import Path
from typing import Any

import pytest

from llm_locust.core import files
from llm_locust.core.files import SETTINGS, SmallYamlError, read_small_yaml


@pytest.fixture(autouse=True)
def _few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """FileReading 10,000 values takes a second."""
    monkeypatch.setattr(files, "MAX_VALUES", 1_000)


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        (b"a: [1, 2.5, x]", {"a": [1, 2.5, "x"]}),
        (b'{"a": null}', {"a": None}),
        (b"\xef\xbb\xbfa: \xc3\xa9", {"a": "é"}),
        (b"", None),
        (b"[" + b"1," * 999 + b"]", [1] * 999),  # with the list itself 1,000 values
        (b" " * SETTINGS.expanded_bytes, None),
    ],
)
def test_a_small_file_is_its_values(tmp_path: Path, raw: bytes, content: Any) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(raw)
    assert read_small_yaml(path) == content


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"a: [", "broken YAML: "),
        (b'a: "\\UFFFFFFFF"', "broken YAML: "),
        (b"a: 2026-13-01", "broken YAML: "),
        (b"[" * 500, "broken YAML: too deep"),
        (b"a: \xff", "cannot be read: it is not UTF-8"),
        (b" " * (SETTINGS.expanded_bytes + 1), "longer than 64 KiB"),
        (b"[" + b"1," * 1_000 + b"]", "more than 1,000 values"),
        (b"{" + b"".join(b"%d: 1, " % i for i in range(500)) + b"}", "more than 1,000 values"),
        (
            b"a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\nb: &b ["
            + b"*a, " * 40
            + b"]\nc: ["
            + b"*b, " * 40
            + b"]",
            "with its aliases replaced, it has more than 1,000 values",
        ),
    ],
)
def test_what_is_too_much_or_no_yaml_is_refused_in_one_line(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(raw)
    with pytest.raises(SmallYamlError) as told:
        read_small_yaml(path)
    assert why in str(told.value)
    assert str(told.value).isprintable()
    assert len(str(told.value)) <= 500


@pytest.mark.parametrize("name", ["none.yaml", "a\0b"])
def test_a_file_that_cannot_be_opened_is_refused_without_its_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(SmallYamlError, match="cannot be read: ") as told:
        read_small_yaml(tmp_path / name)
    assert str(tmp_path) not in str(told.value)
