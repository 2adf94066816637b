"""Request bodies: what is in them, whose field wins, how a wrong --body is answered."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.wire.dialects import DIALECTS, GENERATING, dialect_of
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS, Dialect
from llm_locust.wire.dialects.messages import MESSAGES as MESSAGES_API
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK
from llm_locust.workload.body import (
    BodyError,
    body_template,
    one_token,
    output_limit,
    parse_body,
)
from llm_locust.workload.datasets import DatasetError, load_dataset
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import Workload, WorkloadError, WorkloadSpec
from llm_locust.workload.prompts import Prompt, PromptError, texts_of

# --- Request bodies: what is in them, whose field wins, how a wrong --body is answered


HELLO = Prompt(text="Hello", asked_output_tokens=16)
MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"})


def body(prompt: Prompt, endpoint: str = "chat", **options: Any) -> dict[str, Any]:
    """The decoded body; a name that stands twice in it is an error."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    encoded = body_template(DIALECTS[endpoint], "m", **options).encode(prompt)
    decoded = json.loads(encoded, object_pairs_hook=once)
    assert isinstance(decoded, dict)
    return decoded


def test_a_chat_body_streams_with_usage_and_bounds_the_answer() -> None:
    assert body(HELLO) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
    }


def test_a_completions_body_has_the_text_and_messages_become_one() -> None:
    streamed = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert body(HELLO, "completions") == {**streamed, "prompt": "Hello", "max_tokens": 16}
    assert body(Prompt(messages=MESSAGES), "completions") == {**streamed, "prompt": "Be brief.\n\nWhy?"}


def test_a_responses_body_has_input_and_no_stream_options() -> None:
    assert body(HELLO, "responses") == {
        "model": "m",
        "input": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "max_output_tokens": 16,
    }
    assert body(Prompt(messages=MESSAGES), "responses")["input"] == list(MESSAGES)


def test_a_messages_body_takes_the_systems_messages_apart_and_has_no_stream_options() -> None:
    assert body(Prompt(messages=MESSAGES, asked_output_tokens=16), "messages") == {
        "model": "m",
        "messages": [{"role": "user", "content": "Why?"}],
        "system": "Be brief.",
        "stream": True,
        "max_tokens": 16,
    }


TOOL = {
    "type": "function",
    "function": {"name": "w", "description": "d", "parameters": {"type": "object"}, "strict": True},
}
PICTURES = [
    {"type": "text", "text": "See"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
]

#: What each endpoint is sent of a system's message, pictures (a text to completions) and a tool.
SENT = {
    "chat": b'{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":['
    b'{"type":"text","text":"See"},'
    b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}},'
    b'{"type":"image_url","image_url":{"url":"http://x/y.png"}}]}],'
    b'"tools":[{"type":"function","function":{"name":"w","description":"d",'
    b'"parameters":{"type":"object"},"strict":true}}],"max_tokens":16,"model":"m"',
    "completions": b'{"prompt":"Be brief.\\n\\nWhy?",'
    b'"tools":[{"type":"function","function":{"name":"w","description":"d",'
    b'"parameters":{"type":"object"},"strict":true}}],"max_tokens":16,"model":"m"',
    "responses": b'{"input":[{"role":"system","content":"Be brief."},{"role":"user","content":['
    b'{"type":"input_text","text":"See"},'
    b'{"type":"input_image","image_url":"data:image/png;base64,AAAA","detail":"low"},'
    b'{"type":"input_image","image_url":"http://x/y.png","detail":"auto"}]}],'
    b'"tools":[{"type":"function","name":"w","description":"d",'
    b'"parameters":{"type":"object"},"strict":true}],"max_output_tokens":16,"model":"m"',
    "messages": b'{"messages":[{"role":"user","content":[{"type":"text","text":"See"},'
    b'{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},'
    b'{"type":"image","source":{"type":"url","url":"http://x/y.png"}}]}],"system":"Be brief.",'
    b'"tools":[{"name":"w","description":"d","input_schema":{"type":"object"}}],'
    b'"max_tokens":16,"model":"m"',
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", GENERATING)
def test_bodies_are_these_bytes(endpoint: str, stream: bool) -> None:
    user = MESSAGES[1] if endpoint == "completions" else {"role": "user", "content": PICTURES}
    prompt = Prompt(messages=(MESSAGES[0], user), asked_output_tokens=16, extra={"tools": [TOOL]})
    ends = b',"stream":true}' if stream else b',"stream":false}'
    if stream and endpoint in ("chat", "completions"):
        ends = b',"stream":true,"stream_options":{"include_usage":true}}'
    assert body_template(DIALECTS[endpoint], "m", stream=stream).encode(prompt) == SENT[endpoint] + ends


def test_the_users_system_text_wins_over_the_lines() -> None:
    sent = body(Prompt(messages=MESSAGES), "messages", extra_body={"system": "Be long."})
    assert sent["system"] == "Be long."


def test_a_messages_body_is_never_without_a_bound() -> None:
    assert body(Prompt(text="a"), "messages")["max_tokens"] == MESSAGES_API.default_limit == 1024
    assert body(Prompt(text="a", extra={"max_completion_tokens": 5}), "messages")["max_tokens"] == 5
    assert body(Prompt(text="a"), "messages", extra_body={"max_tokens": 7})["max_tokens"] == 7
    for without in ({"max_tokens": None}, {"max_completion_tokens": 5}):
        with pytest.raises(BodyError, match="no request without 'max_tokens'"):
            body_template(MESSAGES_API, "m", extra_body=without)


def test_a_lines_bound_goes_under_the_name_that_the_endpoint_has_for_it() -> None:
    sent = body(Prompt(text="a", asked_output_tokens=5, extra={"max_tokens": 5}), "responses")
    assert {name: sent[name] for name in LIMIT_FIELDS if name in sent} == {"max_output_tokens": 5}


@pytest.mark.parametrize("endpoint", GENERATING)
def test_a_body_without_stream_asks_for_none_and_has_no_stream_options(endpoint: str) -> None:
    sent = body(HELLO, endpoint, stream=False)
    assert sent["stream"] is False
    assert "stream_options" not in sent


def test_without_an_asked_length_nothing_bounds_the_answer() -> None:
    assert not set(LIMIT_FIELDS) & set(body(Prompt(text="Hello")))


def test_ignore_eos_is_there_only_when_asked() -> None:
    assert "ignore_eos" not in body(HELLO)
    assert body(HELLO, ignore_eos=True)["ignore_eos"] is True


def test_the_bounds_name_can_be_chosen() -> None:
    sent = body(HELLO, limit_field="max_completion_tokens")
    assert sent["max_completion_tokens"] == 16
    assert "max_tokens" not in sent


def test_a_lines_fields_go_in_but_not_over_the_runs_own() -> None:
    line = Prompt(
        text="a", extra={"temperature": 1, "tools": [], "model": "x", "stream": False, "messages": 1}
    )
    sent = body(line)
    assert (sent["temperature"], sent["tools"]) == (1, [])
    assert (sent["model"], sent["stream"]) == ("m", True)
    assert sent["messages"] == [{"role": "user", "content": "a"}]


def test_a_lines_own_bound_stays_under_its_own_name() -> None:
    sent = body(Prompt(text="a", asked_output_tokens=5, extra={"max_completion_tokens": 5}))
    assert sent["max_completion_tokens"] == 5
    assert "max_tokens" not in sent


def test_the_users_fields_win_over_the_lines_and_null_removes_one() -> None:
    line = Prompt(text="a", extra={"temperature": 1, "top_p": 0.5, "seed": 3})
    sent = body(line, extra_body=parse_body('{"temperature": 0, "top_p": null, "stream_options": null}'))
    assert sent["temperature"] == 0
    assert sent["seed"] == 3
    assert not {"top_p", "stream_options"} & set(sent)


@pytest.mark.parametrize(
    "text", ['{"max_tokens": 7}', '{"max_completion_tokens": 7}', '{"max_tokens": null}']
)
def test_the_users_bound_stands_alone_or_not_at_all(text: str) -> None:
    asked = parse_body(text)
    line = Prompt(text="a", asked_output_tokens=5, extra={"max_tokens": 5, "max_output_tokens": 5})
    sent = body(line, extra_body=asked)
    assert {k: v for k, v in sent.items() if k in LIMIT_FIELDS} == {k: v for k, v in asked.items() if v}


def test_one_choice_may_be_asked_for_by_name() -> None:
    asked = parse_body('{"n": 1, "best_of": null}')
    assert body(HELLO, extra_body=asked)["n"] == 1


def test_stream_options_are_merged() -> None:
    asked = parse_body('{"stream_options": {"continuous_usage_stats": true}}')
    assert body(HELLO, extra_body=asked)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }


@pytest.mark.parametrize(
    ("text", "streamed"), [("{}", True), ('{"stream": false}', False), ('{"stream": null}', False)]
)
def test_the_template_says_whether_the_server_was_asked_for_a_stream(text: str, streamed: bool) -> None:
    assert body_template(DIALECTS["chat"], "m", extra_body=parse_body(text)).streamed is streamed


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda v: st.lists(v, max_size=3)
)
fields = st.dictionaries(
    st.text(max_size=8).filter(lambda name: name not in ("messages", "prompt", "input", "stream_options")),
    values,
    max_size=5,
)


@given(st.sampled_from(GENERATING), st.text(min_size=1), fields, fields, st.booleans())
def test_any_prompt_and_fields_make_one_json_object_that_says_them(
    endpoint: str, text: str, line: dict[str, Any], asked: dict[str, Any], stream: bool
) -> None:
    prompt = Prompt(text=text, asked_output_tokens=9, extra=line)
    sent = body(prompt, endpoint, stream=stream, extra_body=asked)
    content = {"chat": "messages", "completions": "prompt", "responses": "input", "messages": "messages"}[
        endpoint
    ]
    said = sent[content] if endpoint == "completions" else sent[content][0]["content"]
    assert said == text
    for name, value in asked.items():
        assert sent.get(name) == value


def test_a_picture_cannot_go_to_completions() -> None:
    prompt = Prompt(messages=({"role": "user", "content": [{"type": "image_url"}]},))
    with pytest.raises(PromptError, match="'image_url' is not text"):
        body_template(COMPLETIONS, "m").encode(prompt)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at character 1, at its end"),
        ("temperature=0", "at character 1, before 'temperature=0'"),
        ('{"temperature" 0}', "Expecting ':' delimiter at character 16, before '0}'"),
        ("{temperature: 0}", "at character 2, before 'temperature: 0}'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": "\\ud800"}', "surrogates"),
        ("[1]", "is a list"),
        ("null", "is null"),
        ("true", "is a truth value"),
        ("3", "is a number"),
        ('"a"', "is a text"),
        ('{"messages": []}', "'messages' is what the workload fills"),
        ('{"stream_options": 1}', "'stream_options' is not an object"),
        ('{"n": 2}', "'n' asks for 2 answers in one"),
        ('{"best_of": 4}', "leave it out and send more requests"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_wrong_body_is_answered_in_one_line_that_points_at_the_place(text: str, said: str) -> None:
    with pytest.raises(BodyError) as caught:
        parse_body(text)
    assert said in str(caught.value)
    assert text[:7] in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_raises_anything_but_a_body_error(text: str) -> None:
    with suppress(BodyError):
        parse_body(text)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({}, None), ({"max_tokens": 5}, 5), ({"max_tokens": None}, None), ({"max_output_tokens": True}, None)],
)
def test_an_output_limit_is_a_positive_number_under_any_of_its_names(
    fields: dict[str, Any], limit: int | None
) -> None:
    assert output_limit(fields) == limit


def test_each_endpoint_has_its_path_and_an_unknown_one_is_an_error_that_lists_them() -> None:
    paths = ["/chat/completions", "/completions", "/responses", "/messages", "/embeddings", "/rerank"]
    assert [dialect.path_to("m", stream=True) for dialect in DIALECTS.values()] == paths
    assert dialect_of("chat") is dialect_of(CHAT) is CHAT
    with pytest.raises(
        ValueError, match="no endpoint 'chats'; there are chat, completions, responses, messages"
    ):
        dialect_of("chats")


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        ({}, {"max_tokens": 1}),
        ({"ignore_eos": True, "min_tokens": 9, "temperature": 0}, {"max_tokens": 1}),
        ({"max_completion_tokens": 500}, {"max_completion_tokens": 1}),
        ({"max_tokens": None}, {"max_tokens": 1}),
    ],
    ids=["plain", "to its end", "the user's bound", "no bound"],
)
def test_one_token_is_one_token_whatever_the_users_body_asks_for(
    said: dict[str, Any], limits: dict[str, int]
) -> None:
    template = body_template(DIALECTS["chat"], "m", ignore_eos=True, extra_body=said)
    found = json.loads(one_token(template, replace(HELLO, asked_output_tokens=300)))
    assert {name: value for name, value in found.items() if name in LIMIT_FIELDS} == limits
    assert not {"ignore_eos", "min_tokens"} & found.keys()
    assert found.get("temperature") == said.get("temperature")


@pytest.mark.parametrize("endpoint", sorted(set(DIALECTS) - set(GENERATING)))
def test_a_request_for_no_tokens_gets_no_bound_of_one(endpoint: str) -> None:
    template = body_template(DIALECTS[endpoint], "m", stream=False)
    assert not set(LIMIT_FIELDS) & json.loads(one_token(template, HELLO)).keys()


# --- Requests of several inputs: their texts, lengths and bodies


def spec(endpoint: Dialect, inputs: str | None = None, **more: Any) -> WorkloadSpec:
    sizes = None if inputs is None else parse_lengths(inputs)
    return WorkloadSpec(endpoint=endpoint, inputs=sizes, **more)


def prompts(of: WorkloadSpec, number: int, user: int = 0, salt: str = "run") -> list[Prompt]:
    made = Workload(of, 7, 0, 1, salt).prompts(user)
    return [next(made) for _ in range(number)]


def bodies(of: WorkloadSpec, number: int) -> list[dict[str, Any]]:
    template = of.body_template("m")
    return [json.loads(template.encode(prompt)) for prompt in prompts(of, number)]


def test_an_embeddings_request_has_so_many_texts_of_the_asked_length() -> None:
    of = spec(EMBEDDINGS, "3", input_tokens=parse_lengths("20"), calibrate=False)
    for body, prompt in zip(bodies(of, 5), prompts(of, 5), strict=True):
        assert body.keys() == {"model", "input"}
        assert [len(text.split()) for text in body["input"]] == [18, 18, 18]  # and a mark on each side
        assert prompt.asked_input_tokens == 60
        assert prompt.asked_output_tokens is None


def test_a_single_text_is_no_list() -> None:
    (body,) = bodies(spec(EMBEDDINGS, input_tokens=parse_lengths("20")), 1)
    assert isinstance(body["input"], str)


def test_numbers_of_inputs_follow_their_distribution_and_the_seed_alone() -> None:
    of = spec(EMBEDDINGS, "uniform:1,8")
    sizes = [len(prompt.messages or (1,)) for prompt in prompts(of, 200)]
    assert set(sizes) == set(range(1, 9))
    assert sizes == [len(prompt.messages or (1,)) for prompt in prompts(of, 200, salt="another")]


def test_every_text_of_a_run_begins_with_words_of_its_own() -> None:
    of = spec(EMBEDDINGS, "8", input_tokens=parse_lengths("20"))
    texts = [text for body in bodies(of, 10) for text in body["input"]]
    assert len({tuple(text.split()[:6]) for text in texts}) == 80


def test_a_rerank_has_one_query_and_counts_it_with_each_document() -> None:
    of = spec(RERANK, "4", input_tokens=parse_lengths("50"), extra_body={"top_n": 2})
    (prompt,), (body,) = prompts(of, 1), bodies(of, 1)
    assert body.keys() == {"model", "query", "documents", "top_n"}
    pairs = [len(body["query"].split()) + len(text.split()) for text in body["documents"]]
    assert pairs == [32 + 50 - RERANK.template_tokens] * 4
    assert prompt.asked_input_tokens == 4 * (32 + 50)


@pytest.mark.parametrize(("endpoint", "around"), [(EMBEDDINGS, 2), (EMBEDDINGS, 9), (RERANK, 0), (RERANK, 4)])
@pytest.mark.parametrize("lengths", ["120", "uniform:40,400"])
def test_lengths_are_learned_from_counts_of_several_texts(
    endpoint: Dialect, around: int, lengths: str
) -> None:
    of = spec(endpoint, "uniform:2,9", input_tokens=parse_lengths(lengths))
    workload = Workload(of, 7, 0, 1, "run")
    made, off = workload.prompts(0), []
    for _ in range(200):
        prompt = next(made)
        query, *documents = [len(text.split()) for text in texts_of(prompt)]
        alone = [query, *documents] if endpoint is EMBEDDINGS else [query + words for words in documents]
        counted = sum(round(1.4 * words) + around for words in alone)
        workload.learn(prompt, counted)
        assert prompt.asked_input_tokens is not None
        off.append(counted / prompt.asked_input_tokens - 1)
    assert abs(sum(off[:8]) / 8) > 0.2
    assert abs(sum(off[128:]) / 72) < 0.01


def test_a_rerank_without_a_number_has_ten_documents() -> None:
    (body,) = bodies(spec(RERANK), 1)
    assert len(body["documents"]) == 10


def lines(folder: Path, *found: Any) -> Path:
    path = folder / "lines.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in found))
    return path


def test_lines_of_a_dataset_are_grouped(tmp_path: Path) -> None:
    dataset = load_dataset(lines(tmp_path, *"abcdef"))
    first, second = bodies(spec(EMBEDDINGS, "3", dataset=dataset, unique_head=False), 2)
    assert (first["input"], second["input"]) == (["a", "b", "c"], ["d", "e", "f"])
    first, second = bodies(spec(RERANK, "2", dataset=dataset, unique_head=False), 2)
    assert (first["query"], first["documents"]) == ("a", ["b", "c"])
    assert (second["query"], second["documents"]) == ("d", ["e", "f"])


def test_each_text_of_a_dataset_has_a_head_of_its_own(tmp_path: Path) -> None:
    dataset = load_dataset(lines(tmp_path, *"aaa"))
    (body,) = bodies(spec(EMBEDDINGS, "3", dataset=dataset), 1)
    assert len(set(body["input"])) == 3
    assert all(text.endswith(" a") for text in body["input"])


def test_a_line_of_messages_is_a_request_of_its_own(tmp_path: Path) -> None:
    texts = [{"role": "user", "content": text} for text in ("q", "one", "two")]
    dataset = load_dataset(lines(tmp_path, {"messages": texts, "top_n": 1}))
    (body,) = bodies(spec(RERANK, dataset=dataset, unique_head=False), 1)
    assert (body["query"], body["documents"], body["top_n"]) == ("q", ["one", "two"], 1)


def test_what_cannot_be_sent_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="inputs '8' for the chat endpoint"):
        spec(CHAT, "8")
    with pytest.raises(WorkloadError, match="at most 2,048"):
        spec(EMBEDDINGS, "uniform:1,4000")
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    with pytest.raises(DatasetError, match="image_url"):
        spec(EMBEDDINGS, dataset=load_dataset(lines(tmp_path, image)))
    query = {"messages": [{"role": "user", "content": "a query alone"}]}
    with pytest.raises(DatasetError, match="no document"):
        spec(RERANK, dataset=load_dataset(lines(tmp_path, query)))


@pytest.mark.parametrize("endpoint", [EMBEDDINGS, RERANK])
def test_a_body_asks_for_no_stream_and_bounds_no_answer(endpoint: Dialect) -> None:
    of = spec(endpoint, output_tokens=parse_lengths("64"), ignore_eos=True)
    assert of.body_template("m").streamed is False
    (body,) = bodies(of, 1)
    assert not {"stream", "stream_options", "max_tokens", "ignore_eos"} & body.keys()
