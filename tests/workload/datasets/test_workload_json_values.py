"""JSON datasets that are one list."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, strategies as st

from llm_locust.workload.datasets.load import Dataset, load_dataset
from llm_locust.workload.datasets.row import DatasetError


def load(folder: Path, content: bytes) -> Dataset:
    path = folder / "data.json"
    path.write_bytes(content)
    return load_dataset(path)


def test_a_lists_items_are_prompts_and_know_the_lines_that_they_begin_in(tmp_path: Path) -> None:
    dataset = load(tmp_path, b'\xef\xbb\xbf\r\n[ "a", "a",\n\n {"prompt":\n "b", "temperature": 0},\n"c" ]\n')
    assert [p.text for p in dataset.prompts] == ["a", "a", "b", "c"]
    assert dataset.lines == (2, 2, 4, 6)
    assert dataset.prompts[2].extra == {"temperature": 0}


def test_messages_with_tools_and_pictures_go_through_untouched(tmp_path: Path) -> None:
    (prompt,) = load(
        tmp_path,
        b'[{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": '
        b'{"url": "data:image/png;base64,AAAA"}}]}], "tools": [{"type": "function"}]}]',
    ).prompts
    assert prompt.messages == (
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        },
    )
    assert prompt.extra == {"tools": [{"type": "function"}]}


@pytest.mark.parametrize(
    ("content", "where", "said"),
    [
        (b'["a",\n "b"\n "c"]', 3, "malformed"),
        (b'["a",\n "b"', 2, "truncated"),
        (b'["a",\n\n {"subject": "b"}]', 3, 'no "messages" and no "prompt"'),
        (b'["a",\n "caf\xe9"]', 2, "not UTF-8 at byte 5 (0xe9)"),
        (b"[" * 100_000, 1, "nested too deep"),
        (b'["a",\n 7]', 2, "Expected `object`"),
    ],
)
def test_a_wrong_list_is_answered_in_one_line_with_the_number_of_the_line(
    tmp_path: Path, content: bytes, where: int, said: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        load(tmp_path, content)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/data.json:{where}: ")
    assert said in text
    assert "expected an object with" in text
    assert "\n" not in text


@given(st.binary(max_size=40).map(lambda data: b"[" + data) | st.binary(max_size=40))
@example(b'["\\ud800"]')
@example(b"[1e400]")
@example(b"[{}\xff]")
def test_no_bytes_raise_anything_but_a_dataset_error(data: bytes) -> None:
    with TemporaryDirectory() as folder, suppress(DatasetError):
        assert len(load(Path(folder), data)) > 0
