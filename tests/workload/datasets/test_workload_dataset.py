"""JSONL datasets: what a line may be, how it is shared, how a wrong one is answered."""

from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from llm_locust.workload.datasets.load import Dataset, load_dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.text.prompts import Prompt

QUESTIONS = Path(__file__).parents[3] / "examples" / "questions.jsonl"


def write(folder: Path, *lines: bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def only(line: bytes) -> Prompt:
    """The prompt of a file of one line."""
    with TemporaryDirectory() as folder:
        (prompt,) = load_dataset(write(Path(folder), line)).prompts
    return prompt


def test_a_line_is_messages_or_a_prompt_or_a_bare_text(tmp_path: Path) -> None:
    message = {"role": "user", "content": "Why?"}
    path = write(tmp_path, msgspec.json.encode({"messages": [message]}), b'{"prompt": "Once"}', b'"Hello"')
    dataset = load_dataset(path)
    assert dataset.prompts == (Prompt(messages=(message,)), Prompt(text="Once"), Prompt(text="Hello"))


def test_understood_keys_become_fields_and_all_others_the_bodys() -> None:
    line = {
        "id": 17,
        "name": "weather",
        "class": "agent",
        "input_tokens": 100,
        "output_tokens": 20,
        "prompt": "?",
        "tools": [{"type": "function"}],
        "temperature": 0,
    }
    assert only(msgspec.json.encode(line)) == Prompt(
        text="?",
        id="17",
        name="weather",
        slo_class="agent",
        asked_input_tokens=100,
        asked_output_tokens=20,
        extra={"tools": [{"type": "function"}], "temperature": 0},
    )


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_a_lines_own_bound_is_its_asked_output_length_and_still_goes_into_the_body(name: str) -> None:
    prompt = only(msgspec.json.encode({"prompt": "?", name: 64}))
    assert prompt.asked_output_tokens == 64
    assert prompt.extra == {name: 64}


def test_messages_go_through_untouched_with_parts_tool_calls_and_unknown_keys() -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "4", "x": [1, {"y": None}]},
    ]
    assert only(msgspec.json.encode({"messages": messages})).messages == tuple(messages)


def test_blank_lines_a_bom_and_crlf_are_no_matter_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, b'\xef\xbb\xbf"a"\r', b"", b"  \r", b'"b"'))
    assert [p.text for p in dataset.prompts] == ["a", "b"]
    assert dataset.lines == (1, 4)


def test_line_separators_that_json_allows_inside_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    (prompt,) = load_dataset(write(tmp_path, '"a\u2028b\u0085c"'.encode())).prompts
    assert prompt.text == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "a" "id": 1}', "malformed"),
        (b'{"prompt": "a"', "truncated"),
        (b"hello", "malformed"),
        (b"12", "Expected `object`"),
        (b"[]", "Expected `object`"),
        (b"{}", 'no "messages" and no "prompt"'),
        (b'{"subject": "a"}', 'no "messages" and no "prompt"'),
        (b'{"prompt": "a", "messages": [{"role": "user"}]}', 'both "messages" and "prompt"'),
        (b'""', "an empty text"),
        (b'{"prompt": ""}', "$.prompt"),
        (b'{"prompt": ["a", "b"]}', "$.prompt"),
        (b'{"messages": []}', "$.messages"),
        (b'{"messages": "hi"}', "$.messages"),
        (b'{"messages": [{"content": "a"}]}', "missing required field `role` - at `$.messages[0]`"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "$.messages[0].content"),
        (b'{"messages": [{"role": "user", "content": [{"text": "a"}]}]}', "$.messages[0].content[0]"),
        (b'{"prompt": "a", "output_tokens": 0}', "$.output_tokens"),
        (b'{"prompt": "a", "class": 3}', "$.class"),
        (b'{"prompt": "a", "n": 2}', "'n' asks for 2 answers in one"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 at byte 16 (0xe9)"),
        (b'{"prompt": "\\ud800"}', "data.jsonl:2"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_wrong_line_is_answered_in_one_line_with_file_and_number(
    tmp_path: Path, line: bytes, said: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        load_dataset(write(tmp_path, b'"fine"', line))
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/data.jsonl:2: ")
    assert said in text
    assert line[:9].decode(errors="replace") in text
    assert "expected an object with" in text
    assert "\n" not in text
    assert len(text) < 400 + len(str(tmp_path))


def test_a_dataset_without_a_prompt_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no line with a prompt"):
        load_dataset(write(tmp_path, b"", b"  "))


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"'.*absent\.jsonl': cannot be read: No such file"):
        load_dataset(tmp_path / "absent.jsonl")
    with pytest.raises(DatasetError, match="cannot be read: embedded null byte"):
        load_dataset("a\0b")
    with pytest.raises(DatasetError, match=r"has no line with a prompt; expected .* or a folder of texts"):
        load_dataset(tmp_path)


@given(st.binary(max_size=60).filter(lambda data: b"\n" not in data))
@example(b'{"id": 1e400}')
def test_no_bytes_raise_anything_but_a_dataset_error(data: bytes) -> None:
    with suppress(DatasetError):
        assert isinstance(only(data), Prompt)


def test_a_lines_weight_is_understood_and_one_without_weighs_one(tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path, b'{"prompt": "a", "weight": 2.5}', b'"b"'))
    assert dataset.weights == (2.5, 1.0)
    assert dataset.prompts[0].extra == {}
    assert load_dataset(write(tmp_path, b'"a"')).weights == ()
    for wrong in (b"0", b"-1", b'"much"'):
        with pytest.raises(DatasetError, match=r"\.jsonl:1: .*\$\.weight"):
            load_dataset(write(tmp_path, b'{"prompt": "a", "weight": %b}' % wrong))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '"one"\n"two"\n'),
        ("a.NDJSON", '{"prompt": "one"}\n{"prompt": "two"}\n'),
        ("a.json", '["one", {"prompt": "two"}]'),
        ("a.json", '"one"\n"two"\n'),
        ("a.csv", "prompt\none\ntwo\n"),
        ("a.tsv", "id\ttext\n1\tone\n2\ttwo\n"),
        ("a.txt", "one\n\ntwo\n"),
        ("a", '\ufeff  ["one", "two"]'),
        ("a.data", '{"prompt": "one"}\n"two"\n'),
        ("a.md", "one\ntwo"),
    ],
)
def test_a_files_name_says_what_it_is_and_else_its_first_character(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert [p.text for p in load_dataset(tmp_path / name).prompts] == ["one", "two"]


def test_an_order_is_that_of_the_lines_it_names() -> None:
    dataset = Dataset("d", numbered(6).prompts, tuple(range(6)), (0.5,) * 5 + (1e9,))
    shuffle = [p.text for p in islice(dataset.stream(0, 1, "shuffled", 3), 6)]
    assert sorted(t or "" for t in shuffle) == list("012345")
    assert shuffle != list("012345")
    assert {p.text for p in islice(dataset.stream(0, 3, "weighted", 3), 50)} == {"5"}
    with pytest.raises(DatasetError, match="'numbers': order 'weighted', and no line has a weight"):
        numbered(3).stream(0, 1, "weighted")


def numbered(n: int) -> Dataset:
    return Dataset("numbers", tuple(Prompt(text=str(i)) for i in range(n)), tuple(range(1, n + 1)))


@given(st.integers(1, 60), st.integers(1, 12))
def test_the_workers_shares_are_the_whole_dataset_without_overlap(n: int, workers: int) -> None:
    shares = [[p.text for p in numbered(n).share(i, workers)] for i in range(workers)]
    if workers <= n:
        assert sorted(int(t or "") for share in shares for t in share) == list(range(n))
    else:
        assert all(len(share) == 1 for share in shares)
        assert {t for share in shares for t in share} == {str(i) for i in range(n)}


def test_a_worker_takes_every_wth_line_in_order_and_starts_again() -> None:
    stream = numbered(5).stream(1, 2)
    assert [p.text for p in islice(stream, 5)] == ["1", "3", "1", "3", "1"]


def test_the_example_questions_are_many_different_and_varied() -> None:
    prompts = load_dataset(QUESTIONS).prompts
    assert len(prompts) >= 200
    assert len({msgspec.json.encode([p.text, p.messages]) for p in prompts}) == len(prompts)
    turns = [p.messages for p in prompts if p.messages]
    assert sum(any(m["role"] == "assistant" for m in messages) for messages in turns) >= 20
    assert sum(messages[0]["role"] == "system" for messages in turns) >= 20
    texts = [str(p.text or p.messages) for p in prompts]
    assert sum(not text.isascii() for text in texts) >= 30
    assert max(map(len, texts)) > 2500
