"""Forms of a dataset's values: which key is the prompt, what is sent beside it, and what is not."""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.body import LINE_FIELDS
from llm_locust.workload.conversations import ShareGptConversation, ShareGptTurn, conversation_of
from llm_locust.workload.datasets import Dataset, DatasetError, load_conversations, load_dataset, parse_keys
from llm_locust.workload.prompts import Prompt

# --- Forms of a dataset's values: which key is the prompt, what is sent beside it, and what is not


PAGE = Path(__file__).parents[2] / "docs" / "data-files.md"

ASKED = {"role": "user", "content": "Why?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "So."}


def write(folder: Path, *values: Any, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def content(prompt: Prompt) -> Any:
    """What is sent of a prompt."""
    return prompt.text if prompt.messages is None else [*prompt.messages]


#: A value, and what is sent of it.
FORMS: dict[str, tuple[Any, Any]] = {
    "text": ({"text": "Why?"}, "Why?"),
    "input": ({"input": "Why?"}, "Why?"),
    "question": ({"question": "Why?", "answer": "So."}, "Why?"),
    "text_input": ({"text_input": "Why?", "output_length": 5}, "Why?"),
    "instruction": ({"instruction": "Translate.", "input": "", "output": "x"}, "Translate."),
    "instruction and input": ({"instruction": "Translate.", "input": "Hut"}, "Translate.\n\nHut"),
    "prompt before text": ({"text": "no", "prompt": "Why?"}, "Why?"),
    "null beside": ({"prompt": None, "text": "Why?", "messages": None}, "Why?"),
    "a list": ([SYSTEM, ASKED], [SYSTEM, ASKED]),
    "messages": ({"messages": [SYSTEM, ASKED]}, [SYSTEM, ASKED]),
    "prompt of messages": ({"prompt": [SYSTEM, ASKED]}, [SYSTEM, ASKED]),
    "input of messages": ({"input": [SYSTEM, ASKED]}, [SYSTEM, ASKED]),
    "input of parts": (
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]},
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    ),
    "input of texts": (
        {"input": ["a", "b"]},
        [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    ),
    "system": ({"system": "Be brief.", "prompt": "Why?"}, [SYSTEM, ASKED]),
    "system beside messages": ({"system": "Be brief.", "messages": [ASKED]}, [SYSTEM, ASKED]),
    "two systems": ({"system": "no", "messages": [SYSTEM, ASKED]}, [SYSTEM, ASKED]),
    "batch of messages": (
        {"custom_id": "7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [ASKED]}},
        [ASKED],
    ),
    "batch of a prompt": ({"custom_id": "7", "body": {"prompt": "Why?"}}, "Why?"),
    "batch of an input": ({"body": {"input": "Why?", "model": "x"}}, "Why?"),
    "batch of Anthropic's": (
        {"custom_id": "a", "params": {"system": "Be brief.", "messages": [ASKED], "max_tokens": 9}},
        [SYSTEM, ASKED],
    ),
    "system_prompt": ({"system_prompt": "Be brief.", "question": "Why?", "response": "So."}, [SYSTEM, ASKED]),
    "turns": ({"question_id": 81, "turns": ["Why?", "And?"]}, "Why?"),
    "turns of messages": ({"turns": [ASKED, ANSWER]}, "Why?"),
    "conversation": ({"conversation": [ASKED, ANSWER, ASKED]}, "Why?"),
    "conversations of roles": ({"conversations": [SYSTEM, ASKED]}, [SYSTEM, ASKED]),
    "conversations and system": (
        {"system": "Be brief.", "conversations": [{"from": "human", "value": "Why?"}]},
        [SYSTEM, ASKED],
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.jsonl.gz", "data"])
def test_every_form_is_a_prompt_in_lines_in_a_list_and_packed(tmp_path: Path, form: str, name: str) -> None:
    value, sent = FORMS[form]
    path = write(tmp_path, value, value, name=name)
    if name.endswith(".json"):
        path.write_text(json.dumps([value, value], indent=1))
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    first, second = load_dataset(path).prompts
    assert content(first) == content(second) == sent


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_object_is_a_row_of_a_parquet_file(tmp_path: Path, form: str) -> None:
    value, sent = FORMS[form]
    if isinstance(value, dict):
        path = tmp_path / "data"
        pq.write_table(pa.Table.from_pylist([value, value]), path)
        dataset = load_dataset(path)
        assert [content(prompt) for prompt in dataset.prompts] == [sent, sent]
        assert dataset.lines == (1, 2)


def test_fields_that_a_row_does_not_have_are_not_sent(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "a", "name": None}], "temperature": 0.5},
        {"messages": [{"role": "assistant", "content": None, "name": "n"}, ASKED], "temperature": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    first, second = load_dataset(tmp_path / "a.parquet").prompts
    assert (content(first), first.extra) == ([{"role": "user", "content": "a"}], {"temperature": 0.5})
    assert content(second) == [{"role": "assistant", "content": None, "name": "n"}, ASKED]
    assert second.extra == {}


def test_one_prompt_of_messages_in_one_document_is_no_list_of_prompts(tmp_path: Path) -> None:
    for text in (json.dumps([SYSTEM, ASKED]), json.dumps([SYSTEM, ASKED], indent=2)):
        path = tmp_path / "one.json"
        path.write_text(text)
        (prompt,) = load_dataset(path).prompts
        assert content(prompt) == [SYSTEM, ASKED]


@given(
    st.lists(
        st.sampled_from(["plain", 'a "quoted", [text] {x}', "\\", "\n", "]", ",", "é\u2028", '\\\\"'])
        | st.text(min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([None, 0, 3]),
    st.booleans(),
)
def test_items_of_a_list_are_found_whatever_their_texts_hold(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], indent: int | None, is_ascii: bool
) -> None:
    path = tmp_path_factory.mktemp("d") / "data.json"
    values: list[Any] = [
        text if i % 2 else {"prompt": text, "tools": [{"a": [1, [2, {}], text]}]}
        for i, text in enumerate(texts)
    ]
    path.write_text(json.dumps(values, indent=indent, ensure_ascii=is_ascii), encoding="utf-8")
    prompts = load_dataset(path).prompts
    assert [prompt.text for prompt in prompts] == texts
    assert [prompt.extra for prompt in prompts][::2] == [{"tools": v["tools"]} for v in values[::2]]


def test_a_column_of_a_table_has_the_same_names_as_a_key(tmp_path: Path) -> None:
    for name in ("prompt", "text", "input", "question", "text_input", "instruction"):
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(f"id,{name}\r\n1,Why?\r\n".encode()))
        (prompt,) = load_dataset(path).prompts
        assert (prompt.text, prompt.id) == ("Why?", "1")


META = {
    "question_id": 3,
    "category": "writing",
    "reference": "long",
    "source": "web",
    "metadata": {"a": 1},
    "model": "m",
    "answer": "So.",
    "user": "u",
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_field_of_an_api_is_not_sent_and_is_named(tmp_path: Path, form: str) -> None:
    value, sent = FORMS[form]
    if not isinstance(value, dict):
        return
    dataset = load_dataset(write(tmp_path, META | {"temperature": 0} | value), most_skipped=0)
    (prompt,) = dataset.prompts
    assert content(prompt) == sent
    assert "custom_id" in value or "body" in value or prompt.extra == {"temperature": 0}
    assert set(META) - {"model"} <= set(dataset.unsent)
    assert "model" not in dataset.unsent  # which is the run's
    assert (
        "keys that are not sent (--dataset-keys sends them): answer, category, metadata, " in dataset.how_read
    )


def test_keys_are_sent_that_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "a", "lora_id": 7, "domain": "x", "top_k": 3, "id": 1})
    for keys, extra, unsent in (
        (frozenset[str](), {"top_k": 3}, ("domain", "lora_id")),
        (parse_keys("lora_id, none"), {"top_k": 3, "lora_id": 7}, ("domain",)),
        (parse_keys("all"), {"top_k": 3, "lora_id": 7, "domain": "x"}, ()),
    ):
        dataset = load_dataset(path, sent=keys)
        assert (dataset.prompts[0].extra, dataset.unsent) == (extra, unsent)
    for wrong in ("", "a,,b", "all,b", " "):
        with pytest.raises(ValueError, match="names with commas between"):
            parse_keys(wrong)


def test_all_of_a_batch_lines_body_is_sent(tmp_path: Path) -> None:
    body = {"messages": [ASKED], "max_tokens": 9, "own_field": [1], "temperature": 0}
    path = write(tmp_path, {"custom_id": "req-1", "method": "POST", "url": "/v1", "body": body, "note": 1})
    dataset = load_dataset(path)
    (prompt,) = dataset.prompts
    assert prompt.extra == {"max_tokens": 9, "own_field": [1], "temperature": 0}
    assert (prompt.id, prompt.asked_output_tokens, dataset.unsent) == ("req-1", 9, ("note",))


def test_the_page_lists_the_keys_that_are_sent() -> None:
    text = re.search(r"## Keys that are sent\n(.*?)\n## ", PAGE.read_text(), re.DOTALL)
    assert text is not None
    assert set(re.findall(r"`(\w+)`", text[1])) == LINE_FIELDS


def test_numbers_that_are_whole_may_be_written_as_floats(tmp_path: Path) -> None:
    line = {"prompt": "a", "id": 17.0, "input_tokens": 5.0, "output_tokens": 6.0, "max_tokens": 64.0}
    (prompt,) = load_dataset(write(tmp_path, line)).prompts
    assert (prompt.id, prompt.asked_input_tokens, prompt.asked_output_tokens) == ("17", 5, 6)
    assert json.dumps(prompt.extra) == '{"max_tokens": 64}'
    with pytest.raises(DatasetError, match=r"\$\.output_tokens"):
        load_dataset(write(tmp_path, {"prompt": "a", "output_tokens": 6.5}))


def _said(*items: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": text} for who, text in items], **more}


@pytest.mark.parametrize(
    "between",
    [
        ("function_call", '{"name": "f"}'),
        ("observation", "42"),
        ("gpt", None),
        ("human", None),
        ("tool", ["x"][:0]),
        ("Function_Response", ""),
    ],
)
def test_calls_of_tools_and_items_without_a_text_are_left_out(
    tmp_path: Path, between: tuple[str, Any]
) -> None:
    value = _said(("human", "Why?"), between, ("gpt", "So."), tools='[{"name": "f"}]')
    dataset = load_dataset(write(tmp_path, value))
    assert dataset.prompts == (Prompt(text="Why?", answer="So."),)
    assert dataset.unsent == ("tools",)  # a text, which is no list of tools
    (conversation,) = load_conversations(write(tmp_path, value))
    assert [(turn.text, turn.answer) for turn in conversation.turns] == [("Why?", "So.")]


def test_turns_are_all_questions_of_a_conversation(tmp_path: Path) -> None:
    path = write(tmp_path, {"turns": ["a", "b"]}, {"conversation": [ASKED, ANSWER, ASKED]})
    first, second = load_conversations(path)
    assert [(turn.text, turn.answer) for turn in first.turns] == [("a", None), ("b", None)]
    assert [(turn.text, turn.answer) for turn in second.turns] == [("Why?", "So."), ("Why?", None)]


BAD: dict[str, tuple[str, str]] = {
    "lines": ("data.jsonl", '"a"\n{\n{"x": 1}\n"b"\n'),
    "a list": ("data.json", '["a",\n 5,\n {"x": 1},\n "b"]'),
    "a table": ("data.csv", "prompt,weight\na,1\n,2\nc,-1\nb,1\n"),
    "a table of rows of other lengths": ("data.tsv", "id\tprompt\n1\ta\n2\n3\t4\t5\n6\tb\n"),
    "not UTF-8": ("data.txt", "a\n\udcff\n\udcfe\nb\n"),
    "a table that is not UTF-8": ("data.csv", "prompt\na\n\udcff\n\udcfe\nb\n"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lines_are_skipped_up_to_a_number_and_counted(tmp_path: Path, case: str) -> None:
    name, text = BAD[case]
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    dataset: Dataset = load_dataset(path, most_skipped=2)
    assert [prompt.text for prompt in dataset.prompts] == ["a", "b"]
    assert dataset.skipped == 2
    assert f"2 prompts; 2 lines skipped, the first: {path}:" in dataset.how_read
    with pytest.raises(DatasetError, match="; 1 lines before it were skipped, and no more may be"):
        load_dataset(path, most_skipped=1)
    with pytest.raises(DatasetError) as caught:
        load_dataset(path)
    assert "were skipped" not in str(caught.value)


def test_rows_of_a_parquet_file_are_skipped_too(tmp_path: Path) -> None:
    rows: list[Mapping[str, Any]] = [{"prompt": "a", "weight": 1.0}, {"prompt": "b", "weight": -1.0}]
    pq.write_table(pa.Table.from_pylist([*rows]), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"a\.parquet: row 2: .*\$\.weight`, of columns 'prompt', 'we"):
        load_dataset(tmp_path / "a.parquet")
    dataset = load_dataset(tmp_path / "a.parquet", most_skipped=1)
    assert (len(dataset), dataset.skipped) == (1, 1)


@pytest.mark.parametrize("cut", [3, 30, -3])
def test_a_parquet_file_that_is_torn_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["a"]}), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DatasetError, match=r"not a Parquet file that can be read: |cannot be read"):
        load_dataset(path)


def test_a_parquet_file_with_more_rows_than_a_dataset_may_have_is_refused(tmp_path: Path) -> None:
    """A run of equal rows takes no room: 6 million take 15 kB."""
    path = tmp_path / "a.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 6_000_000, pa.int8()), ["a"])
    pq.write_table(pa.table({"prompt": column}), path)
    assert path.stat().st_size < 50_000
    with pytest.raises(DatasetError, match="6,000,000 rows; at most 5,000,000 are allowed"):
        load_dataset(path)


# --- ShareGPT's conversations: as prompts, and with all their turns


def said(*turns: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {**more, "conversations": [{"from": who, "value": text} for who, text in turns]}


CHAT = said(("human", "Why?"), ("gpt", "Because."), ("human", "And?"), id="x_0")


def write_sharegpt(folder: Path, value: Any, name: str = "sharegpt.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value, indent=1))
    return path


def test_a_conversation_is_its_users_turns_with_their_answers() -> None:
    assert conversation_of(CHAT) == ShareGptConversation(
        (ShareGptTurn("Why?", "Because."), ShareGptTurn("And?")), id="x_0"
    )


def test_what_comes_before_a_question_or_has_no_text_is_left_out() -> None:
    value = said(
        ("gpt", "Continued"), ("human", " "), ("user", "a"), ("gpt", ""), ("bard", "b"), ("bing", "c")
    )
    assert conversation_of(value) == ShareGptConversation((ShareGptTurn("a", "b\n\nc"),))
    assert conversation_of(said()) is None
    assert conversation_of(said(("gpt", "hello"))) is None


def test_a_conversations_first_question_is_a_prompt_and_its_answer_stays_beside_it(tmp_path: Path) -> None:
    system = said(("system", "Be brief."), ("human", "Why?"), ("gpt", "So."))
    dataset = load_dataset(write_sharegpt(tmp_path, [CHAT, said(("gpt", "nobody asked")), system]))
    assert dataset.prompts == (
        Prompt(text="Why?", answer="Because.", id="x_0"),
        Prompt(
            messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}),
            answer="So.",
        ),
    )


def test_all_turns_can_be_read_from_json_and_from_jsonl(tmp_path: Path) -> None:
    lines = tmp_path / "sharegpt.jsonl"
    lines.write_text(json.dumps(CHAT) + "\n\n" + json.dumps(said()) + "\n" + json.dumps(CHAT))
    expected = conversation_of(CHAT)
    assert load_conversations(lines) == (expected, expected)
    assert load_conversations(write_sharegpt(tmp_path, [CHAT, said()])) == (expected,)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (
            said(("narrator", "Once")),
            "speaker 'narrator' - at `$.conversations[0].from`; known are human, user",
        ),
        ({"conversations": [{"from": "human"}]}, "missing required field `value` - at `$.conversations[0]`"),
        ({"conversations": "hi"}, "`$.conversations`"),
    ],
)
def test_a_wrong_conversation_is_answered_with_the_line_that_it_begins_in(
    tmp_path: Path, value: Any, what: str
) -> None:
    path = write_sharegpt(tmp_path, [CHAT, value])
    line = 1 + path.read_text().splitlines().index(" },") + 1
    for load in (load_dataset, load_conversations):
        with pytest.raises(DatasetError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}:{line}: ")
        assert what in str(caught.value)
        assert "\n" not in str(caught.value)


def test_conversations_that_are_none_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no line with a prompt"):
        load_conversations(write_sharegpt(tmp_path, [said()]))
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        load_conversations(tmp_path / "absent.json")
    with pytest.raises(DatasetError, match=r"sharegpt\.json:2: .*no conversations, conversation, turns"):
        load_conversations(write_sharegpt(tmp_path, [{"prompt": "a"}]))
