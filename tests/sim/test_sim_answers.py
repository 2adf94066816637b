"""What the simulated deployment answers: jobs, the bytes of its templates, the messages API."""

import asyncio
import json
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from sim_deployment import Deployment, deployment

from llm_locust.sim.answers import (
    StreamTemplate,
    chat_body,
    chat_template,
    messages_body,
    messages_template,
    responses_body,
    responses_template,
)
from llm_locust.sim.jobs import (
    Job,
    ModelLimits,
    RecentTexts,
    RequestError,
    TokenText,
    count_tokens,
    resolve,
    split_tokens,
)
from llm_locust.wire.chat_form import Size
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect, ReplyReader, read_body
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.draft import Reply
from llm_locust.wire.sse import SseDecoder
from llm_locust.workload.prompts import OWN_BYTES, noise_image

LIMITS = ModelLimits(models=("sim", "other"), max_model_len=1_000, mean_output_tokens=50)


def job(endpoint: Dialect = CHAT, seed: int = 0, limits: ModelLimits = LIMITS, **body: Any) -> Job:
    if endpoint is CHAT:
        body.setdefault("messages", [{"role": "user", "content": "hello"}])
    return resolve(endpoint, json.dumps(body).encode(), "id", limits, random.Random(seed))


def test_ignore_eos_gives_exactly_the_tokens_asked_for() -> None:
    made = job(max_tokens=77, ignore_eos=True)
    assert (made.output_tokens, made.finish_reason) == (77, "length")


def test_max_completion_tokens_comes_before_max_tokens() -> None:
    assert job(max_tokens=9, max_completion_tokens=5, ignore_eos=True).output_tokens == 5


def test_natural_lengths_have_their_mean_their_bound_and_their_finish_reason() -> None:
    jobs = [job(seed=seed, max_tokens=900) for seed in range(2_000)]
    mean = sum(j.text_tokens for j in jobs) / len(jobs)
    assert mean == pytest.approx(50, rel=0.12)  # 5 standard errors
    bounded = [job(seed=seed, max_tokens=20) for seed in range(100)]
    assert {j.output_tokens == 20 for j in bounded if j.finish_reason == "length"} == {True}
    assert {j.finish_reason for j in bounded} == {"stop", "length"}
    assert min(j.text_tokens for j in jobs) >= 1


def test_an_answer_that_ends_by_itself_ends_with_a_token_without_text() -> None:
    for seed in range(200):
        made, without = (
            job(seed=seed, max_tokens=20, limits=replace(LIMITS, eos=eos)) for eos in (True, False)
        )
        assert made.eos == (made.finish_reason == "stop")
        assert made.text_tokens == min(without.output_tokens, 20 if not made.eos else 19)
        assert not without.eos
        assert not job(seed=seed, max_tokens=20, ignore_eos=True).eos


def test_min_tokens_is_a_lower_bound() -> None:
    assert min(job(seed=seed, max_tokens=50, min_tokens=40).output_tokens for seed in range(50)) >= 40


def test_the_same_seed_makes_the_same_job_and_another_one_does_not() -> None:
    first, again, other = (job(seed=seed, max_tokens=900) for seed in (1, 1, 2))
    assert (first.output_tokens, first.text) == (again.output_tokens, again.text)
    assert (first.output_tokens, first.text) != (other.output_tokens, other.text)


def test_a_chat_without_a_bound_may_fill_the_context_and_a_completion_gets_sixteen() -> None:
    assert job(ignore_eos=True).output_tokens == 1_000 - 1
    assert job(COMPLETIONS, prompt="x", ignore_eos=True).output_tokens == 16


@pytest.mark.parametrize(
    ("endpoint", "body", "tokens"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "a b c d"}]}, 4),  # words
        (CHAT, {"messages": [{"role": "user", "content": "x" * 41}]}, 4),  # 12 letters
        (CHAT, {"messages": [{"role": "s", "content": "a"}, {"role": "user", "content": "b c"}]}, 3),
        (CHAT, {"messages": [{"content": [{"text": "a b"}, {"type": "image_url"}]}]}, 2),
        (CHAT, {"messages": [{"role": "user", "content": None}]}, 1),
        (COMPLETIONS, {"prompt": "a b c"}, 3),
        (COMPLETIONS, {"prompt": ["a b c"]}, 3),
        (COMPLETIONS, {"prompt": [5, 6, 7, 8]}, 4),
        (RESPONSES, {"input": "a b", "instructions": "c"}, 3),
        (RESPONSES, {"input": [{"role": "user", "content": "a b"}]}, 2),
    ],
)  # fmt: skip
def test_prompt_tokens_are_those_of_all_its_texts(
    endpoint: Dialect, body: dict[str, Any], tokens: int
) -> None:
    assert job(endpoint, **body).prompt_tokens == tokens


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "gpt"}, 404, "`gpt` does not exist. Models served: sim, other."),
        ({"messages": []}, 400, "length >= 1 - at `$.messages`"),
        ({"messages": "hi"}, 400, "Expected `array`, got `str`"),
        ({"max_tokens": 0}, 400, "`$.max_tokens`"),
        ({"n": 2}, 400, "`$.n`"),
        ({"max_tokens": 2_000}, 400, "maximum context length is 1000 tokens. However, you requested 2000"),
        ({"messages": [{"content": "x " * 2_000}]}, 400, "your prompt contains 2000 tokens"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(body: dict[str, Any], status: int, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        job(**body)
    assert caught.value.status == status
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"messages": 3}', b"\xff", b'{"messages":["\xff"]}']
)
@pytest.mark.parametrize("endpoint", list(DIALECTS.values()))
def test_a_body_that_is_not_a_request_is_a_400(endpoint: Dialect, body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        resolve(endpoint, body, "id", LIMITS, random.Random(0))
    assert caught.value.status == 400


def hashes(endpoint: Dialect = COMPLETIONS, block_tokens: int = 4, **body: Any) -> tuple[int, ...]:
    encoded = json.dumps(body).encode()
    return resolve(endpoint, encoded, "id", LIMITS, random.Random(0), block_tokens).block_hashes


def test_a_block_hash_stands_for_the_prompt_up_to_its_end() -> None:
    known = hashes(prompt="a b c d e f g h")
    assert len(known) == 2
    assert hashes(prompt="a b c d e f g") == known[:1]
    assert hashes(prompt="a b c d e f g h i j k") == known
    assert hashes(prompt="a b c d e f g x")[0] == known[0]
    assert hashes(prompt="a b c d e f g x")[1] != known[1]
    assert not set(hashes(prompt="x b c d e f g h")) & set(known)
    assert not set(hashes(prompt="e f g h a b c d")) & set(known)
    assert hashes(prompt="a b c") == ()


def test_no_adapter_finds_the_blocks_of_the_base_model_or_of_another_one() -> None:
    one, other = ModelLimits(models=("base", "a", "ab")), ModelLimits(models=("a", "b"))

    def keys(limits: ModelLimits, model: str, prompt: str) -> tuple[int, ...]:
        body = json.dumps({"model": model, "prompt": prompt}).encode()
        return resolve(COMPLETIONS, body, "id", limits, random.Random(0), 4).block_hashes

    found = [keys(one, model, "b c d e") for model in ("base", "a", "ab")]
    assert len({key for block in found for key in block}) == 3
    assert found[0] == keys(other, "a", "b c d e") == hashes(prompt="b c d e")


def test_block_hashes_are_the_same_in_every_process() -> None:
    assert hashes(prompt="a b c d") == (0x5C76CE4400CF54FC,)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, {"messages": [{"role": "system", "content": "a b"}, {"content": "c d"}]}),
        (RESPONSES, {"instructions": "a b", "input": "c d"}),
        (MESSAGES, {"system": "a b", "messages": [{"content": "c d"}], "max_tokens": 1}),
        (COMPLETIONS, {"prompt": ["a  b\nc d"]}),
    ],
)
def test_every_endpoint_hashes_its_texts_in_their_order(endpoint: Dialect, body: dict[str, Any]) -> None:
    assert hashes(endpoint, **body) == hashes(prompt="a b c d")


def test_token_ids_have_hashes_too_and_blocks_are_of_sixteen_unless_told() -> None:
    assert hashes(prompt=[5, 6, 7, 8])[0] == hashes(prompt=[5, 6, 7, 8, 9])[0]
    assert hashes(prompt=[5, 6, 7, 8]) != hashes(prompt=[56, 7, 8, 9])
    assert len(job(messages=[{"content": "x " * 40}]).block_hashes) == 2


@given(st.lists(st.sampled_from("ab"), max_size=30), st.lists(st.sampled_from("ab"), max_size=30))
def test_two_prompts_share_as_many_hashes_as_whole_blocks_of_their_beginning(
    first: list[str], second: list[str]
) -> None:
    one, other = hashes(prompt=" ".join(first)), hashes(prompt=" ".join(second))
    alike = [first[:end] == second[:end] for end in range(4, min(len(first), len(second)) + 1, 4)]
    assert [a == b for a, b in zip(one, other, strict=False)] == alike
    assert len(set(one) & set(other)) == sum(alike)


@given(st.sampled_from(list(DIALECTS.values())), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["messages", "prompt", "input", "content", "max_tokens"]), inner),
))  # fmt: skip
def test_no_json_raises_another_error(endpoint: Dialect, body: Any) -> None:
    try:
        made = resolve(endpoint, json.dumps(body).encode(), "id", LIMITS, random.Random(0))
    except RequestError:
        return
    assert 1 <= made.output_tokens <= LIMITS.max_model_len - made.prompt_tokens


def image(width: int, height: int, own: bytes = b"x" * OWN_BYTES) -> dict[str, Any]:
    made = noise_image(Size(width, height), own)
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + (made.body + made.end).decode()},
    }


def shown(*parts: dict[str, Any]) -> Job:
    said = [{"type": "text", "text": "what is this?"}, *parts]
    return job(
        messages=[{"role": "user", "content": said}],
        max_tokens=5,
        limits=replace(LIMITS, max_model_len=32_768),
    )


@pytest.mark.parametrize(
    ("size", "tokens"), [((8, 8), 64), ((256, 256), 64), ((320, 257), 90), ((8, 8192), 256)]
)
def test_an_image_has_a_token_for_each_square_of_32_pixels(size: tuple[int, int], tokens: int) -> None:
    assert shown(image(*size)).prompt_tokens == 4 + tokens
    assert shown(image(*size), image(*size)).prompt_tokens == 4 + 2 * tokens


def test_a_prefix_cache_knows_an_equal_image_again_and_no_other() -> None:
    first, equal, other = shown(image(64, 64)), shown(image(64, 64)), shown(image(64, 64, b"y" * OWN_BYTES))
    assert first.block_hashes == equal.block_hashes
    assert set(first.block_hashes).isdisjoint(other.block_hashes)


@pytest.mark.parametrize("url", ["https://host/cat.png", "data:image/png;base64,AAAA", 7, None, {"a": 1}])
def test_an_image_that_is_no_png_or_jpeg_is_refused(url: Any) -> None:
    with pytest.raises(RequestError, match="An image must be a data: URL"):
        shown({"type": "image_url", "image_url": {"url": url}})


@given(st.lists(st.text(st.sampled_from("ab 1."), max_size=60), max_size=40))
def test_recent_texts_have_the_tokens_of_any_other_and_are_bounded(texts: list[str]) -> None:
    recent = RecentTexts(most_bytes=2000)
    for text in texts:
        assert recent.tokens(text) == split_tokens(text)
        kept = [384 + len(known) + 96 * len(found) for known, found in recent._known.items()]
        assert recent._bytes == sum(kept) <= 2000


@pytest.mark.parametrize("piece", ["word ", "漢", "\U0001f642", "é", "7 ", ""])
def test_recent_texts_take_no_more_memory_than_is_said_whatever_their_characters(piece: str) -> None:
    recent = RecentTexts(most_bytes=200_000)
    tracemalloc.start()
    try:
        for i in range(600):
            recent.tokens(f"{piece * 100}{i}")
        assert 20_000 < tracemalloc.get_traced_memory()[0] <= 200_000
    finally:
        tracemalloc.stop()


def test_a_text_that_came_again_is_kept_longer_than_one_that_did_not() -> None:
    recent = RecentTexts(most_bytes=3 * (384 + 4 + 96))
    first = recent.tokens("aaaa")
    recent.tokens("bbbb")
    assert recent.tokens("aaaa") is first
    recent.tokens("cccc")
    recent.tokens("dddd")  # "bbbb" has gone, and then the one after it
    assert recent.tokens("aaaa") is first


# --- The prebuilt bytes are the JSON that a server would have rendered chunk by chunk


def make_job(endpoint: Dialect = CHAT, tokens: int = 5, **changed: Any) -> Job:
    fields: dict[str, Any] = {
        "request_id": "id", "model": "sim", "created_s": 7, "stream": True, "include_usage": False,
        "continuous_usage": False, "prompt_tokens": 3, "finish_reason": "length", "text": TokenText(60, 1),
    }  # fmt: skip
    return Job(endpoint=endpoint, output_tokens=tokens, **(fields | changed))


def stream_bytes(job: Job, template: StreamTemplate) -> bytes:
    tokens = [
        template.token(job.text.escaped(n - 1), n, n == job.output_tokens)
        for n in range(1, job.output_tokens + 1)
    ]
    return b"".join([*template.opening, *tokens, template.closing(None)])


def data_of(stream: bytes) -> list[Any]:
    events = stream.decode().removesuffix("\n\n").split("\n\n")
    lines = [line for event in events for line in event.split("\n") if line.startswith("data: ")]
    assert len(lines) == len(events)
    return ["[DONE]" if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_a_chat_stream_is_a_role_then_a_chunk_per_token_then_done() -> None:
    job = make_job()
    role, *tokens, done = data_of(stream_bytes(job, chat_template(job)))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert done == "[DONE]"
    assert "".join(t["choices"][0]["delta"]["content"] for t in tokens) == job.text.whole(5)
    assert [t["choices"][0]["finish_reason"] for t in tokens] == [None] * 4 + ["length"]
    assert {(t["id"], t["object"], t["created"], t["model"]) for t in (role, *tokens)} == {
        ("chatcmpl-id", "chat.completion.chunk", 7, "sim")
    }
    assert not any("usage" in t for t in tokens)


def test_a_completion_stream_has_no_role_and_its_text_outside_a_delta() -> None:
    job = make_job(COMPLETIONS)
    *tokens, _ = data_of(stream_bytes(job, chat_template(job)))
    assert "".join(t["choices"][0]["text"] for t in tokens) == job.text.whole(5)
    assert tokens[0]["object"] == "text_completion"


def test_usage_is_one_chunk_without_choices_ahead_of_done() -> None:
    job = make_job(include_usage=True)
    *_, usage, done = data_of(stream_bytes(job, chat_template(job)))
    assert (usage["choices"], done) == ([], "[DONE]")
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}


@given(
    st.sampled_from([CHAT, COMPLETIONS]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
)
def test_continuous_usage_counts_up_whatever_the_models_name(endpoint: Dialect, model: str) -> None:
    job = make_job(endpoint, model=model, include_usage=True, continuous_usage=True)
    *all_chunks, _ = data_of(stream_bytes(job, chat_template(job)))
    counted = [c["usage"]["completion_tokens"] for c in all_chunks]
    assert counted == ([0] if endpoint is CHAT else []) + [1, 2, 3, 4, 5, 5]
    assert all(c["usage"]["total_tokens"] == 3 + n for c, n in zip(all_chunks, counted, strict=True))
    assert {c["model"] for c in all_chunks} == {model}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), st.integers(0, 40))
def test_a_responses_stream_is_numbered_without_a_gap(request_id: str, tokens: int) -> None:
    job = make_job(RESPONSES, tokens, request_id=request_id)
    events = data_of(stream_bytes(job, responses_template(job)))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == job.text.whole(tokens)
    assert len(deltas) == tokens
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")


def test_a_completed_response_says_its_usage_and_why_it_ended() -> None:
    job = make_job(RESPONSES)
    done = data_of(stream_bytes(job, responses_template(job)))[-1]["response"]
    assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"], done["usage"]["total_tokens"]) == (
        3,
        5,
        8,
    )
    assert (done["status"], done["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert done == responses_body(job)
    whole = responses_body(make_job(RESPONSES, finish_reason="stop"))
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)


def test_an_answer_without_tokens_still_has_its_finish_reason() -> None:
    job = make_job(tokens=0, finish_reason="stop", include_usage=True)
    role, finish, usage, done = data_of(stream_bytes(job, chat_template(job)))
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert (finish["choices"][0]["delta"]["content"], finish["choices"][0]["finish_reason"]) == ("", "stop")
    assert (usage["usage"]["completion_tokens"], done) == (0, "[DONE]")


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_whole_body_has_the_streams_text_and_usage(endpoint: Dialect) -> None:
    job = make_job(endpoint, stream=False)
    body = chat_body(job)
    choice = body["choices"][0]
    text = choice["message"]["content"] if endpoint is CHAT else choice["text"]
    assert (text, choice["finish_reason"]) == (job.text.whole(5), "length")
    assert body["usage"]["completion_tokens"] == 5
    assert body["object"] == ("chat.completion" if endpoint is CHAT else "text_completion")


@given(st.integers(0, 78), st.integers(1, 78))
def test_every_walk_visits_the_whole_vocabulary_and_escapes_it_rightly(start: int, stride: int) -> None:
    text = TokenText(start, stride)
    pieces = [json.loads(b'"' + text.escaped(i) + b'"') for i in range(79)]
    assert len(set(pieces)) == 79
    assert "".join(pieces) == text.whole(79)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("a b, c!", 5),
        ("internationalisation", 2),
        ("x" * 36, 3),
        ("12345", 2),
        ("東京へ", 3),
    ],
)
def test_tokens_are_counted_as_byte_pair_tokenizers_cut_english(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


# --- The simulated messages API: its events, its body, its errors, and who gets in


VERSION = {"anthropic_version": "2023-06-01"}
BODY: dict[str, Any] = {
    "model": "sim",
    "system": "one two",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "three four five"}]}],
    "max_tokens": 6,
    "ignore_eos": True,
}


def read(stream: bytes) -> Reply:
    reader = ReplyReader(MESSAGES)
    reader.feed(SseDecoder().feed(stream))
    return reader.finish()


def test_a_messages_stream_has_a_start_a_delta_per_token_and_a_stop() -> None:
    job = make_job(MESSAGES)
    events = data_of(stream_bytes(job, messages_template(job)))
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "ping"),
        *["content_block_delta"] * 5,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert "".join(e["delta"]["text"] for e in events[3:8]) == job.text.whole(5)
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    assert events[-2]["usage"] == {"output_tokens": 5}


def test_each_event_names_its_type() -> None:
    job = make_job(MESSAGES, tokens=2)
    for event in stream_bytes(job, messages_template(job)).decode().strip().split("\n\n"):
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


@pytest.mark.parametrize(("tokens", "reason"), [(0, "stop"), (7, "stop"), (3, "length")])
def test_our_reader_reads_what_was_generated(tokens: int, reason: str) -> None:
    job = make_job(MESSAGES, tokens=tokens, finish_reason=reason)
    streamed = read(stream_bytes(job, messages_template(job)))
    whole = read_body(MESSAGES, json.dumps(messages_body(job)).encode())
    for reply in (streamed, whole):
        assert (reply.text, reply.done, reply.model) == (job.text.whole(tokens), True, "sim")
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, tokens)
        assert reply.finish_reason == {"stop": "end_turn", "length": "max_tokens"}[reason]
    assert len(streamed.token_ends) == tokens


def served(folder: Path, faults: str = "", api_key: str | None = None, **headers: str) -> Any:
    """The answer to BODY, streamed."""

    async def ask() -> Any:
        sim: Deployment
        async with deployment(folder, faults, api_key=api_key) as sim:
            return await sim.post("/messages", BODY | {"stream": True}, **VERSION | headers)

    return asyncio.run(ask())


def test_the_system_text_counts_as_input(tmp_path: Path) -> None:
    reply = read(served(tmp_path).body)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, len(reply.token_ends)) == (5, 6, 6)


def test_a_fault_midway_is_an_error_event_after_the_tokens_that_came(tmp_path: Path) -> None:
    reply = read(served(tmp_path, "error_object=100%").body)
    assert reply.error is not None
    assert reply.error.startswith("overloaded_error: ")
    assert (len(reply.token_ends), reply.done) == (3, False)


@pytest.mark.parametrize(("status", "type_"), [(429, "rate_limit_error"), (529, "overloaded_error")])
def test_an_error_has_this_apis_form(tmp_path: Path, status: int, type_: str) -> None:
    seen = served(tmp_path, f"http_{status}=100%")
    assert (seen.status, seen.json["type"], seen.json["error"]["type"]) == (status, "error", type_)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_api_key": "sk"}, 200),
        ({"authorization": "Bearer sk"}, 200),
        ({"x_api_key": "other"}, 401),
        ({}, 401),
    ],
)
def test_the_key_is_taken_by_either_name(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    assert served(tmp_path, api_key="sk", **headers).status == status


def test_a_request_without_version_or_bound_is_refused(tmp_path: Path) -> None:
    async def ask() -> list[Any]:
        async with deployment(tmp_path) as sim:
            unversioned = await sim.post("/messages", BODY)
            unbounded = {name: value for name, value in BODY.items() if name != "max_tokens"}
            return [unversioned, await sim.post("/messages", unbounded, **VERSION)]

    unversioned, unbounded = asyncio.run(ask())
    assert (unversioned.status, unbounded.status) == (400, 400)
    assert "anthropic-version" in unversioned.json["error"]["message"]
    assert "max_tokens" in unbounded.json["error"]["message"]
