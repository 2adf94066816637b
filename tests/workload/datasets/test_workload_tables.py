"""CSV datasets."""

import csv
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.datasets.load import Dataset, load_dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.text.prompts import Prompt


def load(folder: Path, content: str, name: str = "data.csv") -> Dataset:
    path = folder / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    return load_dataset(path)


def test_a_table_has_a_column_of_prompts_and_others_that_are_understood(tmp_path: Path) -> None:
    dataset = load(
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
    (prompt,) = load(tmp_path, "﻿" + header + "\n" + header + "\n").prompts
    assert prompt.text == column


def test_a_prompt_may_be_longer_than_the_csv_modules_limit_which_stays_as_it_was(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    long = "word " * 100_000
    assert load(tmp_path, f"prompt\n{long}\n").prompts[0].text == long
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("subject,answer\na,b\n", ":1: the header is 'subject', 'answer'; expected a header with a column"),
        ("\n", ":1: the header is nothing; expected"),
        ('prompt,id\n"a\nb",1\nc\n', ":4: 1 columns, 2 in the header"),
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
        load(tmp_path, content)
    assert f"{tmp_path}/data.csv" in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_without_a_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no line with a prompt"):
        load(tmp_path, "prompt\n\n")


@given(st.text(max_size=40) | st.text('prompt,"\n a1', max_size=40).map(lambda t: "prompt,id\n" + t))
def test_no_text_raises_anything_but_a_dataset_error(content: str) -> None:
    with TemporaryDirectory() as folder, suppress(DatasetError, UnicodeEncodeError):
        assert len(load(Path(folder), content)) > 0


def test_what_is_wrong_is_one_printable_line_whatever_the_file_holds(tmp_path: Path) -> None:
    for content in ('"a"}]', "p\x1b[2J\tq\n", "prompt\tid\n\x9b2J\n", f"{'x' * 9_000}\n"):
        with pytest.raises(DatasetError) as caught:
            load(tmp_path, content, "data.tsv")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) <= 2_000
