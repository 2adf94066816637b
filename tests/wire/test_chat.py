"""Chat and legacy completions: every trap of their chunks."""

import json
from array import array
from typing import Any

import pytest
from hypothesis import given, strategies as st
from openai.types.chat import ChatCompletionChunk
from payloads import DONE, ROLE, STOP, chunk, read, says
from strategies import chat_chunks

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect, ReplyReader
from llm_locust.wire.draft import Reply, ToolCall
from llm_locust.wire.ends import AnswerEnd
from llm_locust.wire.sse import SseEvent
from llm_locust.wire.usage import OutputCount, Usage


def test_a_plain_stream_reads_whole() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    reply = read(ROLE, says("Hello"), says(" you"), STOP, {"choices": [], "usage": usage}, DONE)
    assert reply == Reply(
        token_ends=array("q", (20, 30)),
        first_answer=0,
        text="Hello you",
        reasoning="",
        refusal="",
        tool_calls=[],
        output_chars=9,
        finish_reason="stop",
        end=AnswerEnd.WHOLE,
        done=True,
        decided=True,
        usage=Usage(input_tokens=5, output_tokens=2, total_tokens=7),
        count=OutputCount(tokens=2),
        error=None,
        invalid=None,
        model="m",
        opening_end=10,  # the role
        finish_end=40,
        closing_end=40,
    )


def test_the_ends_of_events_with_choices_around_the_tokens_are_told() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}

    def ends(reply: Reply) -> tuple[int | None, int | None, int | None]:
        return reply.opening_end, reply.finish_end, reply.closing_end

    assert ends(read(ROLE, chunk({}), says("a"), chunk({}), says("b"), STOP)) == (10, 60, 60)
    # A gateway's usage event with an empty delta and the finish reason once more is no second finish.
    again = chunk({"content": ""}, "stop", usage=usage)
    assert ends(read(says("a"), STOP, again, {"choices": [], "usage": usage}, DONE)) == (None, 20, 30)
    assert ends(read(says("a"), chunk({"content": "b"}, "length"), DONE)) == (None, None, None)
    assert ends(read(says("a"), STOP, says("b"))) == (None, None, None)


@pytest.mark.parametrize(
    ("made", "events", "hidden"),
    [
        ({"reasoning_tokens": 8}, [says("a"), says("b")], True),
        ({"reasoning_tokens": 8}, [chunk({"reasoning": "hm"}), says("b")], False),
        ({"reasoning_tokens": 0}, [says("a"), says("b")], False),
        ({}, [says("a"), says("b")], False),
    ],
)
def test_reasoning_that_usage_counts_and_no_event_brought_is_hidden(
    made: dict[str, int], events: list[Any], hidden: bool
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 10, "completion_tokens_details": made}
    assert bool(read(ROLE, *events, STOP, {"choices": [], "usage": usage}).count.hidden) is hidden


@pytest.mark.parametrize(
    "empty",
    [
        *(
            ROLE,
            STOP,
            DONE,
            b" \n",
            chunk(None),
            chunk({}),
            chunk({"content": None}),
            chunk({"tool_calls": []}),
        ),
        *({"choices": []}, {"choices": None}, {"choices": [{"index": 0}]}, {"usage": {"prompt_tokens": 1}}),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "", "arguments": ""}}]}),
    ],
)
def test_events_without_text_are_no_token_events(empty: Any) -> None:
    reply = read(empty, says("a"), empty)
    assert (tuple(reply.token_ends), reply.invalid, reply.error) == ((20,), None, None)


def test_the_last_usage_counts_and_null_or_odd_usage_takes_nothing_away() -> None:
    first, last = {"prompt_tokens": 5, "completion_tokens": 1}, {"prompt_tokens": 5, "completion_tokens": 2}
    odd: list[Any] = [None, {}, "many", 7]
    for after in odd:
        reply = read(says("a", usage=first), says("b", usage=last), chunk({"content": ""}, usage=after), DONE)
        assert reply.usage == Usage(input_tokens=5, output_tokens=2)
        assert tuple(reply.token_ends) == (10, 20)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_piece_of_text_may_name_the_model_and_the_usage_so_far(endpoint: Dialect) -> None:
    def piece(text: str, **more: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"content": text}, "text": text}], **more}

    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    reply = read(piece("a"), piece("b", model="late", usage=usage), piece("c"), endpoint=endpoint)
    assert (reply.text, reply.model) == ("abc", "late")
    assert reply.usage == Usage(input_tokens=5, output_tokens=2)
    late, last = piece("b", model="late"), piece("d", usage=usage | {"completion_tokens": 4})
    reply = read(piece("a"), late, piece("c", usage=usage, model="other"), last, endpoint=endpoint)
    assert (reply.text, reply.model) == ("abcd", "late")
    assert reply.usage == Usage(input_tokens=5, output_tokens=4)


def test_usage_may_come_with_the_finish_reason_and_with_details() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 3.0,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    reply = read(says("a"), chunk({"content": "b"}, "length", usage=usage))
    assert reply.usage == Usage(input_tokens=9, output_tokens=3, cached_tokens=4, reasoning_tokens=2)
    assert (reply.finish_reason, reply.done, tuple(reply.token_ends)) == ("length", True, (10, 20))


@pytest.mark.parametrize("count", [None, -1, 10**30, "3 of 4", True, 1.5, [], {}])
def test_a_count_that_is_none_is_unknown_not_zero(count: Any) -> None:
    reply = read(says("a", usage={"prompt_tokens": 1, "completion_tokens": count}))
    assert reply.usage == Usage(input_tokens=1, output_tokens=None)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_tokens_and_the_first_answer_is_the_first_event_with_anything_else(field: str) -> None:
    reply = read(
        ROLE, chunk({field: "Hm"}), chunk({field: "m", "content": None}), says("Yes"), says("!"), STOP
    )
    assert (tuple(reply.token_ends), reply.first_answer) == ((20, 30, 40, 50), 2)
    assert (reply.reasoning, reply.text, reply.output_chars) == ("Hmm", "Yes!", 7)


def test_an_event_with_reasoning_and_content_is_one_token_event_of_the_answer() -> None:
    reply = read(chunk({"reasoning": "a"}), chunk({"reasoning": "b", "content": "c"}))
    assert (tuple(reply.token_ends), reply.first_answer, reply.reasoning, reply.text) == (
        (10, 20),
        1,
        "ab",
        "c",
    )


def test_only_reasoning_has_no_first_answer() -> None:
    assert read(chunk({"reasoning": "a"}), chunk({"reasoning": "b"})).first_answer is None


def test_without_done_and_finish_reason_the_answer_is_not_done() -> None:
    assert not read(ROLE, says("a")).done
    assert read(ROLE, says("a"), DONE).done
    assert read(ROLE, says("a"), STOP).done
    assert not read().done


def test_several_choices_stand_one_after_another_and_all_must_finish() -> None:
    both = {"choices": [*says("a1", index=0)["choices"], *says("b1", index=1)["choices"]]}
    parts = [both, says("b2", index=1), says("a2"), chunk({}, "stop", 1)]
    assert not read(*parts).done
    reply = read(*parts, chunk({}, "length", 0))
    assert (reply.text, tuple(reply.token_ends), reply.done) == ("a1a2b1b2", (10, 20, 30), True)
    assert reply.finish_reason == "length"


def test_the_first_choice_may_begin_after_another_one() -> None:
    parts = [says("b", index=1), says("a", index=0), chunk({}, "stop", 1)]
    assert read(*parts).text == "ab"
    assert not read(*parts).done
    assert read(chunk({"reasoning": "b"}, index=1), chunk({"reasoning": "a"})).reasoning == "ab"


def test_tool_calls_are_put_together_by_index() -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}

    reply = read(
        chunk({"tool_calls": [call(0, "", id="x", type="function", function={"name": "f"})]}),
        chunk({"tool_calls": [call(0, '{"a"')]}),
        chunk({"tool_calls": [call(1, "{}", id="y", function={"name": "g"}), call(0, ":1}")]}),
        chunk({}, "tool_calls"),
    )
    assert reply.tool_calls == [
        ToolCall(id="x", name="f", arguments='{"a":1}'),
        ToolCall(id="y", name="g", arguments="{}"),
    ]
    assert (tuple(reply.token_ends), reply.first_answer, reply.output_chars) == ((10, 20, 30), 0, 11)


def test_a_tool_call_without_arguments_is_an_answer() -> None:
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "now", "arguments": ""}}
    reply = read(ROLE, chunk({"tool_calls": [call]}), chunk({"tool_calls": [call]}), chunk({}, "tool_calls"))
    assert (tuple(reply.token_ends), reply.first_answer, reply.done, reply.output_chars) == (
        (20,),
        0,
        True,
        3,
    )


def test_tool_calls_without_index_are_told_apart_by_id_and_may_hold_an_object() -> None:
    reply = read(
        chunk({"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": 1}}}]}),
        chunk({"tool_calls": [{"id": "y", "function": {"name": "g", "arguments": "1"}}]}),
        chunk({"tool_calls": [{"function": {"arguments": "2"}}]}),
    )
    assert [(c.id, c.arguments) for c in reply.tool_calls] == [("x", '{"a":1}'), ("y", "12")]


@pytest.mark.parametrize(("name", "calls"), [("f", 2), (None, 1)])
def test_calls_of_one_index_are_several_where_each_has_an_id_and_a_name(name: str | None, calls: int) -> None:
    first, second = (
        chunk({"tool_calls": [{"index": 0, "id": id_, "function": {"name": name, "arguments": "{}"}}]})
        for id_ in "xy"
    )
    named = chunk({"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f"}}]})
    assert len(read(ROLE, named, first, second, chunk({}, "tool_calls")).tool_calls) == calls


def test_a_tool_calls_piece_without_index_and_id_belongs_to_the_last_call_of_its_own_choice() -> None:
    def piece(choice: int, arguments: str, **more: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"function": {"arguments": arguments}, **more}]}, index=choice)

    reply = read(piece(0, "a1", id="a"), piece(1, "b1", id="b"), piece(0, "a2"), piece(1, "b2"))
    assert [(c.id, c.arguments) for c in reply.tool_calls] == [("a", "a1a2"), ("b", "b1b2")]


def test_the_legacy_function_call_is_a_tool_call() -> None:
    calls = [{"name": "f", "arguments": ""}, {"arguments": "{"}, {"arguments": "}"}]
    reply = read(*(chunk({"function_call": call}) for call in calls))
    assert reply.tool_calls == [ToolCall(id=None, name="f", arguments="{}")]
    assert tuple(reply.token_ends) == (10, 20, 30)


def test_a_refusal_is_an_answer() -> None:
    reply = read(chunk({"refusal": "I "}), chunk({"refusal": "won't"}))
    assert (reply.refusal, tuple(reply.token_ends), reply.first_answer) == ("I won't", (10, 20), 0)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
        ({"error": "out of memory", "error_type": "x"}, "out of memory"),
        ({"object": "error", "message": "out of memory", "code": 500}, "out of memory"),
        ({"error": {"code": 500}}, "500"),
        ({"error": {"error": {"detail": "deep"}}}, "deep"),
        (chunk({}, "error", error={"message": "provider"}), "provider"),
        (chunk({}, "error"), "the server ended the answer with finish reason 'error'"),
        (chunk({}, "abort"), "the server ended the answer with finish reason 'abort'"),
    ],
)
def test_an_error_object_in_the_stream_is_an_error_that_keeps_the_tokens(payload: Any, message: str) -> None:
    for endpoint, token in ((CHAT, says("a")), (COMPLETIONS, {"choices": [{"text": "a"}]})):
        reply = read(token, payload, token, endpoint=endpoint)
        assert (reply.error, tuple(reply.token_ends), reply.invalid) == (message, (10, 30), None)


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"<html>502", "not JSON: '<html>502'"),
        (b"[1]", "not a JSON object: '[1]'"),
        (b'{"choices":{}}', "choices is not a list of objects: '{\"choices\":{}}'"),
        (b'{"choices":[null]}', "choices is not a list of objects: '{\"choices\":[null]}'"),
        (b'{"choices":[{"delta":5}]}', "delta is not an object: '{\"choices\":[{\"delta\":5}]}'"),
        (b'{"choices":[{"delta":{"content":5}}]}', "content is not text: "),
        (b'{"text":"a"}', 'no "choices" in \'{"text":"a"}\''),
        (b"[" * 10_000, "not JSON: '[[["),
        (b'{"choices":' + b"[" * 10_000, "not JSON: "),
        (b'{"choices":' + b"[" * 100_000, "more than 20,000 JSON objects and lists: "),
        (b'{"choices":[],"n":' + b"9" * 5000 + b'}{', "not JSON: "),
        (b'{"n":' + b"9" * 5000 + b"}", "not JSON: "),
    ],
)  # fmt: skip
def test_a_payload_that_is_not_the_apis_is_invalid_with_its_start_and_the_tokens_stay(
    payload: bytes, what: str
) -> None:
    reply = read(says("a"), payload, b"worse", says("b"))
    assert reply.invalid is not None
    assert reply.invalid.startswith(what)
    assert len(reply.invalid) < 200
    assert (tuple(reply.token_ends), reply.text, reply.error) == ((10, 40), "ab", None)


def test_a_private_event_of_the_server_is_let_pass() -> None:
    reader = ReplyReader(CHAT)
    reader.feed([SseEvent(b'{"load":3}', 5, b"metrics"), SseEvent(b"pong", 9, b"ping")])
    assert reader.finish().invalid is None


@pytest.mark.parametrize(
    "odd",
    [
        *(
            {"created": 1.5},
            {"created": "now"},
            {"created": 10**40},
            {"id": None},
            {"model": 7},
            {"object": 1},
        ),
        *({"system_fingerprint": {}}, {"usage": []}, {"error": None}, {"x": [[[1]]]}),
        *({"x": float("nan")}, {"x": float("-inf")}),
    ],
)
def test_odd_values_of_fields_that_are_not_read_change_nothing(odd: dict[str, Any]) -> None:
    reply = read(*[says("a") | odd] * 3, chunk({}, 2) | odd, DONE)
    assert (tuple(reply.token_ends), reply.text, reply.invalid, reply.error) == (
        (10, 20, 30),
        "aaa",
        None,
        None,
    )
    assert (reply.finish_reason, reply.done) == ("2", True)


@pytest.mark.parametrize("index", [None, "0", -1, 1.5, [], {}, True])
def test_an_odd_choice_index_loses_no_text(index: Any) -> None:
    assert read(*[says("a", index=index)] * 3).text == "aaa"


def test_a_surrogate_pair_split_over_two_events_is_joined_and_a_lone_one_replaced() -> None:
    reply = read(
        b'{"choices":[{"delta":{"content":"\\ud83d"}}]}', b'{"choices":[{"delta":{"content":"\\ude00"}}]}'
    )
    assert (reply.text, reply.output_chars) == ("😀", 1)
    assert read(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}').text == "a\ufffd"


def test_bytes_that_are_not_utf8_become_the_replacement_character() -> None:
    assert read(b'{"choices":[{"delta":{"content":"a\xff"}}]}').text == "a\ufffd"


def test_completions_read_text() -> None:
    def text(piece: str, finish: Any = None) -> dict[str, Any]:
        return {"model": "m", "choices": [{"index": 0, "text": piece, "finish_reason": finish}]}

    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 4}}
    reply = read(text("a"), text(""), text("b"), text("c", "length"), usage, DONE, endpoint=COMPLETIONS)
    assert (reply.text, tuple(reply.token_ends), reply.first_answer) == ("abc", (10, 30, 40), 0)
    assert (reply.finish_reason, reply.model, reply.usage) == (
        "length",
        "m",
        Usage(input_tokens=1, output_tokens=4),
    )


def joined(parsed: list[ChatCompletionChunk], field: str) -> str:
    pieces = [(c.index, getattr(c.delta, field, None) or "") for p in parsed for c in p.choices]
    return "".join(text for index in (0, 1) for i, text in pieces if i == index)


@given(st.lists(chat_chunks, max_size=12))
def test_the_reply_agrees_with_the_openai_sdks_own_chunks(stream: list[dict[str, Any]]) -> None:
    parsed = [ChatCompletionChunk.model_validate_json(json.dumps(c)) for c in stream]
    reply = read(*stream)
    assert reply.text == joined(parsed, "content")
    assert reply.refusal == joined(parsed, "refusal")
    assert reply.reasoning == joined(parsed, "reasoning_content")
    arguments = [
        t.function.arguments
        for p in parsed
        for c in p.choices
        for t in c.delta.tool_calls or []
        if t.function and t.function.arguments
    ]
    assert sorted("".join(c.arguments for c in reply.tool_calls)) == sorted("".join(arguments))
    usages = [p.usage.completion_tokens for p in parsed if p.usage]
    assert (reply.usage and reply.usage.output_tokens) == max(usages, default=None)


def test_a_choice_that_has_only_a_tool_call_is_one_beside_another_that_answered_first() -> None:
    def chunk(index: int, **delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": delta}]}

    call = {"index": 0, "function": {"arguments": "{"}}
    assert read(chunk(1, content="a"), chunk(0, tool_calls=[call])).choices == 2


@given(st.lists(chat_chunks, max_size=12))
def test_the_short_way_and_the_lenient_way_read_the_same(stream: list[dict[str, Any]]) -> None:
    """A NaN anywhere is refused by typed decoding, so that every chunk is read leniently."""
    assert read(*stream) == read(*({**c, "nan": float("nan")} for c in stream))


counted_pieces = st.builds(
    lambda text, made, given, total: chunk(
        {"content": text},
        usage={"prompt_tokens": given, "completion_tokens": made, "total_tokens": total}
        if made is not None
        else None,
    ),
    st.sampled_from(["", "a", "bc"]),
    st.sampled_from([None, 0, 1, 2, 3, 4, 5, 2.0, 2.5, -1, 10**12]),
    st.sampled_from([5, 5, 5, 9, None]),
    st.sampled_from([6, 7, 8, None, 10**12, 8.5]),
)


@given(st.lists(counted_pieces, max_size=8), st.sampled_from([(), (STOP,), (STOP, DONE), (DONE,)]))
def test_both_ways_read_the_same_counts_in_each_event(stream: list[Any], end: tuple[Any, ...]) -> None:
    """Counts that shrink, stand still, are left out, or are none; in events with text and without."""
    lenient = [{**c, "nan": float("nan")} if isinstance(c, dict) else c for c in (*stream, *end)]
    assert read(*stream, *end) == read(*lenient)


def test_counts_in_each_of_two_events_are_enough() -> None:
    def counted(text: str, made: int) -> dict[str, Any]:
        return chunk({"content": text}, usage={"prompt_tokens": 5, "completion_tokens": made})

    reply = read(counted("a", 1), counted("b", 4), DONE)
    assert (reply.count.opening, reply.count.came) == (1, 4)


def test_a_first_tool_call_without_index_and_id_is_that_of_index_0() -> None:
    first, rest = {"name": "f", "arguments": "{"}, {"index": 0, "function": {"arguments": "}"}}
    reply = read(chunk({"tool_calls": [{"function": first}]}), chunk({"tool_calls": [rest]}), DONE)
    assert reply.tool_calls == [ToolCall(id=None, name="f", arguments="{}")]
