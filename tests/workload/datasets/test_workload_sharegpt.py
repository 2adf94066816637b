"""ShareGPT's conversations: as prompts, and with all their turns."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_locust.workload.datasets.load import load_conversations, load_dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.datasets.sharegpt import ShareGptConversation, ShareGptTurn, conversation_of
from llm_locust.workload.text.prompts import Prompt


def said(*turns: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {**more, "conversations": [{"from": who, "value": text} for who, text in turns]}


CHAT = said(("human", "Why?"), ("gpt", "Because."), ("human", "And?"), id="x_0")


def write(folder: Path, value: Any, name: str = "sharegpt.json") -> Path:
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
    dataset = load_dataset(write(tmp_path, [CHAT, said(("gpt", "nobody asked")), system]))
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
    assert load_conversations(write(tmp_path, [CHAT, said()])) == (expected,)


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
    path = write(tmp_path, [CHAT, value])
    line = 1 + path.read_text().splitlines().index(" },") + 1
    for load in (load_dataset, load_conversations):
        with pytest.raises(DatasetError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}:{line}: ")
        assert what in str(caught.value)
        assert "\n" not in str(caught.value)


def test_conversations_that_are_none_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"has no line with a prompt"):
        load_conversations(write(tmp_path, [said()]))
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        load_conversations(tmp_path / "absent.json")
    with pytest.raises(DatasetError, match=r"sharegpt\.json:2: .*no conversations, conversation, turns"):
        load_conversations(write(tmp_path, [{"prompt": "a"}]))
