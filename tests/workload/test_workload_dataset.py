"""Files of a dataset: what they may hold, how they are shared, how a wrong one is answered."""

import csv
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import example, given, strategies as st

from llm_locust.workload.datasets import Dataset, DatasetError, load_dataset
from llm_locust.workload.draws import sequential, shuffled, weighted
from llm_locust.workload.prompts import Prompt

# --- JSONL datasets: what a line may be, how it is shared, how a wrong one is answered


QUESTIONS = Path(__file__).parents[2] / "examples" / "questions.jsonl"


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


# --- JSON datasets that are one list


def load_json(folder: Path, content: bytes) -> Dataset:
    path = folder / "data.json"
    path.write_bytes(content)
    return load_dataset(path)


def test_a_lists_items_are_prompts_and_know_the_lines_that_they_begin_in(tmp_path: Path) -> None:
    dataset = load_json(
        tmp_path, b'\xef\xbb\xbf\r\n[ "a", "a",\n\n {"prompt":\n "b", "temperature": 0},\n"c" ]\n'
    )
    assert [p.text for p in dataset.prompts] == ["a", "a", "b", "c"]
    assert dataset.lines == (2, 2, 4, 6)
    assert dataset.prompts[2].extra == {"temperature": 0}


def test_messages_with_tools_and_pictures_go_through_untouched(tmp_path: Path) -> None:
    (prompt,) = load_json(
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
        load_json(tmp_path, content)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/data.json:{where}: ")
    assert said in text
    assert "expected an object with" in text
    assert "\n" not in text


@given(st.binary(max_size=40).map(lambda data: b"[" + data) | st.binary(max_size=40))
@example(b'["\\ud800"]')
@example(b"[1e400]")
@example(b"[{}\xff]")
def test_no_bytes_of_json_raise_anything_but_a_dataset_error(data: bytes) -> None:
    with TemporaryDirectory() as folder, suppress(DatasetError):
        assert len(load_json(Path(folder), data)) > 0


# --- CSV datasets


def load_table(folder: Path, content: str, name: str = "data.csv") -> Dataset:
    path = folder / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return load_dataset(path)


def test_a_table_has_a_column_of_prompts_and_others_that_are_understood(tmp_path: Path) -> None:
    dataset = load_table(
        tmp_path,
        "id,Prompt,class,output_tokens,input_tokens,weight,name,notes\r\n"
        '7,"Why, ""then""?\nSay.",agent,20,100,2,weather,mine\r\n'
        "\r\n"
        "8,How?,,,,,,\r\n",
    )
    assert dataset.prompts == (
        Prompt(
            text='Why, "then"?\nSay.',
            id="7",
            slo_class="agent",
            asked_output_tokens=20,
            asked_input_tokens=100,
            name="weather",
        ),
        Prompt(text="How?", id="8"),
    )
    assert dataset.lines == (2, 5)
    assert dataset.weights == (2.0, 1.0)


@pytest.mark.parametrize(
    ("header", "column"), [("text,input", "text"), ("input,other", "input"), ("text,prompt", "prompt")]
)
def test_the_first_of_prompt_text_and_input_is_the_prompt(tmp_path: Path, header: str, column: str) -> None:
    (prompt,) = load_table(tmp_path, "﻿" + header + "\n" + header + "\n").prompts
    assert prompt.text == column


def test_a_prompt_may_be_longer_than_the_csv_modules_limit_which_stays_as_it_was(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    long = "word " * 100_000
    assert load_table(tmp_path, f"prompt\n{long}\n").prompts[0].text == long
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("subject,answer\na,b\n", ":1: the header is 'subject', 'answer'; expected a header with a column"),
        ("\n", ":1: the header is nothing; expected"),
        ('prompt,id\n"a\nb",1\nc\n', ":4: 1 column, 2 in the header"),
        ("prompt,id\na,1,2\n", ":2: 3 columns, 2 in the header"),
        ("prompt,id\n ,1\n", ":2: column 'prompt' is empty"),
        ("prompt,output_tokens\na,many\n", ":2: output_tokens must be a positive integer, got 'many'"),
        ("prompt,input_tokens\na,0\n", ":2: input_tokens must be a positive integer, got '0'"),
        ("prompt,weight\na,-2\n", ":2: weight must be a number above 0, got '-2'"),
        ('prompt\n"a" b\n', ":2: "),
        ("prompt\ncaf\udce9\n", ":2: not UTF-8, byte 4"),
    ],
)
def test_a_wrong_table_is_answered_in_one_line_with_file_and_number(
    tmp_path: Path, content: str, said: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        load_table(tmp_path, content)
    assert f"{tmp_path}/data.csv" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_without_a_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no line with a prompt"):
        load_table(tmp_path, "prompt\n\n")


@given(st.text(max_size=40) | st.text('prompt,"\n a1', max_size=40).map(lambda t: "prompt,id\n" + t))
def test_no_text_raises_anything_but_a_dataset_error(content: str) -> None:
    with TemporaryDirectory() as folder, suppress(DatasetError, UnicodeEncodeError):
        assert len(load_table(Path(folder), content)) > 0


def test_what_is_wrong_is_one_printable_line_whatever_the_file_holds(tmp_path: Path) -> None:
    for content in ('"a"}]', "p\x1b[2J\tq\n", "prompt\tid\n\x9b2J\n", f"{'x' * 9_000}\n"):
        with pytest.raises(DatasetError) as caught:
            load_table(tmp_path, content, "data.tsv")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) <= 2_000


# --- Datasets of plain text: a prompt a line, or a prompt a file


def test_each_line_that_is_not_blank_is_a_prompt_with_its_own_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone \r\n\r\n  two\u2028still two\n \nthree".encode())
    dataset = load_dataset(path)
    assert [p.text for p in dataset.prompts] == ["one ", "  two\u2028still two", "three"]
    assert dataset.lines == (1, 3, 5)


def test_each_file_of_a_folder_is_a_prompt_in_the_order_of_names(tmp_path: Path) -> None:
    for name, text in {"b.md": "two\nlines\n", "a.txt": "one", ".hidden": "x", "empty": "\n"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "inner").mkdir()
    assert load_dataset(tmp_path).prompts == (
        Prompt(text="one", id="a.txt"),
        Prompt(text="two\nlines\n", id="b.md"),
    )


def test_text_that_is_no_utf8_is_answered_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    for place, where in ((path, f"{path}:2"), (tmp_path, str(path))):
        with pytest.raises(DatasetError) as caught:
            load_dataset(place)
        assert str(caught.value).startswith(f"{where}: not UTF-8 at byte ")
        assert str(caught.value).endswith("; expected plain text")


# --- Which worker sends which line of a dataset, and when


sizes = st.tuples(st.integers(1, 60), st.integers(1, 12))


def epoch_share(lines: int, worker: int, workers: int) -> int:
    return len(range(worker % lines, lines, workers))


def test_sequential_is_every_wth_line_over_and_over() -> None:
    assert list(islice(sequential(5, 1, 2), 5)) == [1, 3, 1, 3, 1]


@given(sizes, st.integers(0, 99), st.integers(0, 3))
def test_in_each_epoch_of_a_shuffle_the_workers_have_all_lines_and_none_twice(
    size: tuple[int, int], seed: int, epoch: int
) -> None:
    lines, workers = size
    taken = []
    for worker in range(min(workers, lines)):
        n = epoch_share(lines, worker, workers)
        taken += list(islice(shuffled(lines, worker, workers, seed), epoch * n, (epoch + 1) * n))
    assert sorted(taken) == list(range(lines))


def test_a_shuffle_is_the_seeds_and_every_epoch_has_another() -> None:
    def epochs(seed: int) -> list[list[int]]:
        stream = shuffled(50, 0, 1, seed)
        return [list(islice(stream, 50)) for _ in range(3)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    assert len({tuple(epoch) for epoch in [*epochs(1), range(50)]}) == 4


def test_more_workers_than_lines_still_have_one_each() -> None:
    assert next(sequential(2, 5, 8)) == 1
    assert {next(shuffled(2, worker, 8, 1)) for worker in range(8)} == {0, 1}


def test_weighted_lines_come_as_often_as_their_weights_say_from_every_worker() -> None:
    weights = (1.0, 2.0, 0.5, 6.5)
    for worker in range(2):
        drawn = Counter(islice(weighted(weights, worker, 7), 20_000))
        for line, weight in enumerate(weights):
            assert abs(drawn[line] / 20_000 - weight / 10) < 0.015


def test_weighted_draws_are_the_seeds_and_the_workers_own() -> None:
    weights = [1.0] * 100

    def first(worker: int, seed: int) -> list[int]:
        return list(islice(weighted(weights, worker, seed), 100))

    assert first(0, 1) == first(0, 1)
    assert first(0, 1) != first(1, 1)
    assert first(0, 1) != first(0, 2)


@pytest.mark.parametrize(("text", "said"), [("a\n", "1 prompt"), ("a\nb\n", "2 prompts")])
def test_how_a_dataset_was_read_counts_its_prompts(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(text)
    assert load_dataset(path).how_read == f"dataset {str(path)!r}: {said}"
