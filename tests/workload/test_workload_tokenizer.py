"""Tokenizers out of folders and files, and what they count."""

import json
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import CHATML, small_tokenizer, write_folder

from llm_locust.workload.tokenizer import (
    ChatTemplate,
    ChatTemplateError,
    PromptTokenizer,
    TokenizerError,
    load_tokenizer,
)

QUESTION = [{"role": "user", "content": "where is the board"}]


def change(folder: Path, **fields: Any) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def plain_count(tokenizer: PromptTokenizer, text: str) -> int:
    return len(tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)


def test_a_folder_counts_a_conversation_with_its_templates_own_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path))
    whole = "<|im_start|>user\nwhere is the board<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.knows_chat
    assert tokenizer.count_chat(QUESTION) == plain_count(tokenizer, whole)
    assert plain_count(tokenizer, whole) > plain_count(tokenizer, QUESTION[0]["content"]) + 5


def test_a_bare_text_has_the_special_tokens_only_where_they_are_asked_for(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path))
    assert tokenizer.count("the board", special=True) == tokenizer.count("the board") + 1
    assert tokenizer.count_all(["the board", ""]) == [tokenizer.count("the board"), 0]


def test_a_tokenizer_file_alone_counts_texts_and_says_what_a_chat_needs(tmp_path: Path) -> None:
    file = write_folder(tmp_path) / "tokenizer.json"
    tokenizer = load_tokenizer(file)
    assert tokenizer.count("the board") == load_tokenizer(tmp_path).count("the board")
    assert not tokenizer.knows_chat
    with pytest.raises(TokenizerError, match=r"tokenizer\.json' has no chat template: expected one in"):
        tokenizer.count_chat(QUESTION)


@pytest.mark.parametrize("place", ["config", "config list", "chat_template.json", "chat_template.jinja"])
def test_the_template_is_found_wherever_a_folder_has_it(tmp_path: Path, place: str) -> None:
    write_folder(tmp_path, template=None)
    if place == "config":
        change(tmp_path, chat_template=CHATML)
    elif place == "config list":
        change(tmp_path, chat_template=[{"name": "default", "template": CHATML}, {"name": "x"}, 3])
    elif place == "chat_template.json":
        (tmp_path / place).write_text(json.dumps({"chat_template": CHATML}))
    else:
        change(tmp_path, chat_template="another {{ messages }}")
        (tmp_path / place).write_text(CHATML)
    expected = load_tokenizer(write_folder(tmp_path / "other")).count_chat(QUESTION)
    assert load_tokenizer(tmp_path).count_chat(QUESTION) == expected


def test_of_several_templates_the_default_is_used(tmp_path: Path) -> None:
    write_folder(tmp_path, template=None)
    change(
        tmp_path,
        chat_template=[
            {"name": "tool_use", "template": "{{ tools[0].name }}"},
            {"name": "default", "template": "a"},
        ],
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.count_chat(QUESTION) == tokenizer.count("a")


def test_special_tokens_are_texts_or_objects_and_may_stand_in_the_older_file(tmp_path: Path) -> None:
    write_folder(tmp_path, template="{{ bos_token }}{{ eos_token }}{{ unk_token }}")
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "<unk>", "bos_token": "wrong"}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.template is not None
    assert tokenizer.template.render(QUESTION) == "<s></s><unk>"
    assert tokenizer.count_chat(QUESTION) == 3


def test_bounds_that_a_file_was_trained_with_do_not_bound_a_count(tmp_path: Path) -> None:
    write_folder(tmp_path)
    bounded = load_tokenizer(tmp_path).tokenizer
    bounded.enable_truncation(8)
    bounded.enable_padding(length=16)
    (tmp_path / "tokenizer.json").write_text(bounded.to_str())
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.count("the") < 8
    assert tokenizer.count("the board " * 50) > 50


def test_parts_of_text_are_counted_as_lines_and_a_picture_cannot_be(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert tokenizer.count_chat([{"role": "user", "content": parts}]) == tokenizer.count_chat(
        [{"role": "user", "content": "one\ntwo"}]
    )
    with pytest.raises(TokenizerError, match="part of type 'image_url' cannot be counted"):
        tokenizer.count_chat([{"role": "user", "content": [{"type": "image_url"}]}])


def write_nothing(folder: Path) -> None:
    folder.mkdir()


def write_broken_tokenizer(folder: Path) -> None:
    write_folder(folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0"')


def write_broken_config(folder: Path) -> None:
    write_folder(folder)
    (folder / "tokenizer_config.json").write_text("{")


def write_list_config(folder: Path) -> None:
    write_folder(folder)
    (folder / "tokenizer_config.json").write_text("[]")


def write_broken_template(folder: Path) -> None:
    write_folder(folder, template="a\n{% for %}")


def write_latin(folder: Path) -> None:
    write_folder(folder)
    (folder / "chat_template.jinja").write_bytes(b"caf\xe9")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda folder: None, "model' does not exist; expected a Hugging Face folder with tokenizer.json"),
        (write_nothing, "tokenizer.json' does not exist; expected a Hugging Face folder"),
        (write_broken_tokenizer, "tokenizer.json is not a tokenizer: EOF"),
        (write_broken_config, "tokenizer_config.json is not JSON: Expecting"),
        (write_list_config, "tokenizer_config.json: expected a JSON object"),
        (write_broken_template, "line 2 of the chat template: "),
        (write_latin, "chat_template.jinja': cannot be read: "),
    ],
)
def test_a_wrong_path_or_file_is_answered_in_one_line_that_names_it(
    tmp_path: Path, write: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "model"
    write(folder)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(folder)
    assert str(folder) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_knows_what_the_published_ones_use() -> None:
    source = (
        "{%- for m in messages %}\n"
        "    {%- if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {%- generation %}{{ m | tojson }}{% endgeneration %}\n"
        "{%- endfor %}\n"
        "{{ strftime_now('%Y') }}{{ tools is none }}{{ add_generation_prompt }}"
    )
    rendered = ChatTemplate(source, {}).render([{"content": "<é>"}, {"content": "second"}])
    assert rendered == '{"content": "<é>"}' + f"{datetime.now():%Y}TrueTrue"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "{{ raise_exception('roles must alternate') }}",
            "does not take these messages: roles must alternate",
        ),
        ("{{ messages[7].content }}", "does not take these messages: list object has no element 7"),
        ("{{ messages.append(1) }}", "does not take these messages: "),
        ("{{ ''.__class__.__mro__ }}", "does not take these messages: access to attribute '__class__'"),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_an_error_in_its_words(source: str, said: str) -> None:
    with pytest.raises(ChatTemplateError, match=said):
        ChatTemplate(source, {}).render(QUESTION)


def test_counting_in_a_thread_lets_other_threads_go_on(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path))
    text, done = "the board " * 60_000, threading.Event()

    def count() -> None:
        tokenizer.count(text)
        done.set()

    counter = threading.Thread(target=count)
    counter.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    counter.join()
    assert turns >= 5


def test_every_kind_of_tokenizer_can_be_loaded_from_its_file(tmp_path: Path) -> None:
    for kind in ("byte_level", "metaspace", "word_piece", "unigram"):
        file = tmp_path / f"{kind}.json"
        file.write_text(small_tokenizer(kind))
        assert load_tokenizer(file).count("the board") > 0
