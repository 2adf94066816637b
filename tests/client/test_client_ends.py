"""What is a whole answer, and what a server says of another: over forms, places, orders and splits."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from answer_forms import CHAT_FORM, DONE, FORMS, MESSAGES_FORM, RESPONSES_FORM, Form
from hypothesis import given, strategies as st
from judged_answers import Judged, cut_at, judged, sse

from llm_locust.client.http.errors import (
    AnswerOverError,
    ClientError,
    ConnectionBrokenError,
    OversizeError,
    RequestTimeoutError,
    ResponseError,
)
from llm_locust.core.record import Doubt, Outcome
from llm_locust.wire.dialects.results import EMBEDDINGS

each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def ended(found: Judged) -> tuple[Outcome, str | None]:
    return found.outcome, found.why


# -- finish reasons -----------------------------------------------------------------------

SPELLINGS: list[Callable[[str], str]] = [
    str,
    str.upper,
    lambda text: text.replace("_", "-"),
    lambda text: text.replace("_", " ").capitalize(),
    lambda text: text.title().replace("_", ""),
    lambda text: f"FinishReason.{text.upper()}",
    lambda text: f"FINISH_REASON_{text.upper()}",
    lambda text: text.replace("_", ""),
]

FAILURES = [
    *("error", "abort", "aborted", "network_error", "insufficient_system_resource", "timeout", "timed_out"),
    *("server_error", "cancelled", "canceled", "unavailable", "service_unavailable", "overloaded", "failed"),
    *("upstream_disconnected", "internal_failure", "resource_exhausted", "deadline_exceeded", "rate_limit"),
    *(
        "worker_lost",
        "oom_killed",
        "engine_dead",
        "connection_reset",
        "server_busy",
        "backend_down",
        "preempted",
    ),
    *("exception", "interrupted", "shutdown", "rejected", "quota_exceeded", "malformed_function_call"),
    *("no_capacity", "bad_gateway", "queue_full", "terminated", "drained", "partial", "discarded"),
    *("node_down", "kv_cache_oom", "backend_closed", "incomplete", "model_unloaded", "credits_exhausted"),
    *("migrated", "no_healthy_upstream", "sigterm", "503", "http_502", "full", "kv_cache_full"),
]


@each_form
@pytest.mark.parametrize("reason", FAILURES)
def test_a_finish_reason_that_means_failure_is_one_however_it_is_spelled(form: Form, reason: str) -> None:
    spellings = {spell(reason) for spell in SPELLINGS if "_" not in reason or spell is not SPELLINGS[-1]}
    for spelled in spellings:
        found = judged(form.whole(reason=spelled), form.dialect)
        assert found.outcome is Outcome.API_ERROR, spelled
        assert f"'{spelled}'" in (found.why or "")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"type": "abort", "message": "the scheduler died"}, "'abort': the scheduler died"),
        ({"type": "abort", "status_code": 500, "err_type": "E"}, "'abort'"),
        ({"reason": "NETWORK_ERROR"}, "'NETWORK_ERROR'"),
        ({"code": "timeout", "detail": "30 s"}, "'timeout': 30 s"),
        ({"Error": "cuda"}, "'Error': cuda"),
        ({"error": {"message": "no memory"}}, "no memory"),
        (["error"], "'error'"),
    ],
)
def test_a_failure_may_be_an_object_with_the_servers_words(sent: Any, said: str) -> None:
    found = judged(CHAT_FORM.whole(reason=sent))
    assert found.outcome is Outcome.API_ERROR
    assert said in (found.why or "")


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "stop", "matched": 151645},
        {"type": "stop"},
        ["stop"],
        {"reason": "STOP"},
        "eos",
        "Tool_Calls",
        "eosFound",
        "stopStringFound",
        "completed",
    ],
)
def test_a_good_reason_is_good_as_an_object_too(sent: Any) -> None:
    assert ended(judged(CHAT_FORM.whole(reason=sent))) == (Outcome.OK, None)


@each_form
def test_the_good_ends_of_an_api_are_good_in_any_spelling(form: Form) -> None:
    for reason in form.dialect.usual_finishes:
        if form is RESPONSES_FORM and reason != "max_output_tokens":
            continue
        for spell in SPELLINGS:
            assert ended(judged(form.whole(reason=spell(reason)), form.dialect)) == (Outcome.OK, None)


@each_form
@pytest.mark.parametrize("order", ["before", "after"])
def test_no_other_reason_takes_a_failure_back(form: Form, order: str) -> None:
    if form is RESPONSES_FORM:
        return  # its event with the reason is the last
    reasons = ("error", form.good) if order == "before" else (form.good, "error")
    stream = form.text() * 2 + b"".join(map(form.finish, reasons)) + form.end
    assert judged(stream, form.dialect).outcome is Outcome.API_ERROR


NOTHING: list[Any] = [
    None,
    "",
    "null",
    "NULL",
    "None",
    "none",
    "undefined",
    False,
    0,
    [],
    {},
    [0],
    "FINISH_REASON_UNSPECIFIED",
]


@pytest.mark.parametrize("nothing", NOTHING)
@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.name)
def test_what_stands_for_no_reason_is_none_and_a_cut_after_it_is_one(form: Form, nothing: Any) -> None:
    def chunk(reason: Any) -> bytes:
        choice = {"index": 0, "delta": {"content": " w"}, "text": " w", "finish_reason": reason}
        return sse({"choices": [choice]})

    cut = judged(chunk(nothing) * 3, form.dialect)
    assert (cut.outcome, cut.reply.finish_reason) == (Outcome.TRUNCATED, None)
    whole = judged(chunk(nothing) * 3 + chunk("stop") + DONE, form.dialect)
    assert (whole.outcome, whole.reply.finish_reason) == (Outcome.OK, "stop")


def test_a_reason_that_tokens_follow_says_nothing_of_the_end() -> None:
    chunk = sse({"choices": [{"index": 0, "delta": {"content": " w"}, "finish_reason": "stop"}]})
    assert judged(chunk * 3).outcome is Outcome.TRUNCATED  # a server that sends it with every chunk
    assert judged(chunk * 3 + DONE).outcome is Outcome.OK
    assert judged(CHAT_FORM.finish("stop") + CHAT_FORM.text()).outcome is Outcome.TRUNCATED
    again = CHAT_FORM.text() + CHAT_FORM.finish("stop") * 2  # as some gateways send it
    assert judged(again).outcome is Outcome.OK


# -- errors outside of the API, in every place ----------------------------------------------

WORDS = "the worker was lost"
OBJECT = {"code": 500, "message": WORDS, "type": "server_error"}
ERRORS: dict[str, bytes] = {
    "a field": f"error: {json.dumps(OBJECT)}\n\n".encode(),
    "a field in capitals": f"ERROR:{json.dumps(OBJECT)}\n\n".encode(),
    "a field of text": f"error: {WORDS}\n\n".encode(),
    "a field, CRLF": f"error: {json.dumps(OBJECT)}\r\n\r\n".encode(),
    "a field in front of its event's data": f"error: {WORDS}\n: x\nid: 7\n\n".encode(),
    "an event": sse({"message": WORDS}, "error"),
    "an event in capitals": sse({"message": WORDS}, "Error"),
    "an event by another name": sse({"message": WORDS}, "stream_error"),
    "an event of text": sse(WORDS, "error"),
    "an event without a blank": f"event:error\ndata:{json.dumps({'error': WORDS})}\n\n".encode(),
    "an event that looks like a chunk": sse({"choices": [{"delta": {"content": WORDS}}]}, "error"),
    "an event without data": f"event: error\n: {WORDS}\n\n".encode(),
    "an event after its comment": f": {WORDS}\nevent: error\n\n".encode(),
    "a bare line": json.dumps({"error": OBJECT}).encode() + b"\n\n",
    "a bare line, not ended": json.dumps({"error": OBJECT}).encode(),
    "bare lines": json.dumps({"error": OBJECT}, indent=2).encode() + b"\n",
    "a bare line of FastAPI": json.dumps({"detail": WORDS}).encode() + b"\n",
    "a bare line in a list": json.dumps([{"error": OBJECT}]).encode() + b"\n",
    "data that was not ended": b"data: " + json.dumps({"error": OBJECT}).encode() + b"\n",
    "data": sse({"error": OBJECT}),
    "data of text": sse({"error": WORDS}),
    "data with a short name": sse({"error": "server_error", "message": WORDS}),
    "data with a truth value": sse({"error": True, "message": WORDS}),
    "data in a list": sse({"errors": [{"message": WORDS}]}),
    "data by its kind": sse({"object": "error", "message": WORDS, "code": 500}),
    "data by its state": sse({"state": "FAILED", "message": WORDS}),
    "data by a status": sse({"status_code": 503, "message": WORDS}),
    "data by a code": sse({"code": "InternalError", "message": WORDS}),
    "data by another name": sse({"error_code": 336, "error_msg": WORDS}),
    "data by the name of an exception": sse({"throttlingException": {"message": WORDS}}),
    "data as a list": sse([{"error": OBJECT}]),
    "data that is cut off": sse('{"error": {"message": "' + WORDS),
    "an object of the server's": sse({"x_groq": {"id": "r", "error": WORDS}}),
}
UNENDED = {"a bare line, not ended", "data that was not ended"}


@each_form
@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_in_any_form_fails_the_answer_with_the_servers_words(form: Form, kind: str) -> None:
    for tokens in (0, 3):
        for after in (b"",) if kind in UNENDED else (b"", DONE, form.finish(form.good) + form.end):
            found = judged(form.text() * tokens + ERRORS[kind] + after, form.dialect)
            assert found.outcome is Outcome.API_ERROR, found.why
            assert WORDS in (found.why or "")
            assert len(found.reply.token_ends) == tokens or kind == "an event that looks like a chunk"


@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.name)
@pytest.mark.parametrize("place", ["choice", "carrier", "top"])
def test_an_error_may_stand_in_a_choice(form: Form, place: str) -> None:
    carrier = "delta" if form.name == "chat" else "text"
    if place == "carrier" and carrier == "text":
        return
    choice: dict[str, Any] = {"index": 0, carrier: {} if carrier == "delta" else ""}
    payload: dict[str, Any] = {"choices": [choice]}
    {"choice": choice, "carrier": choice[carrier], "top": payload}[place]["error"] = {"message": WORDS}
    for reason in (None, "error", "stop"):
        choice["finish_reason"] = reason
        found = judged(form.text() * 2 + sse(payload) + DONE, form.dialect)
        assert ended(found) == (Outcome.API_ERROR, WORDS)
    whole = {"choices": [{"message": {"content": "a"}, "text": "a", "finish_reason": "stop", **choice}]}
    body = json.dumps(whole if place == "choice" else {**whole, **payload}).encode()
    if place != "carrier":
        found = judged(body, form.dialect, streamed=False, content_type="application/json")
        assert ended(found) == (Outcome.API_ERROR, WORDS)


def test_an_error_that_came_before_a_silence_or_a_cut_is_told_and_not_the_silence() -> None:
    stream = CHAT_FORM.text() + ERRORS["a field"]
    for error in (RequestTimeoutError("no event"), ConnectionBrokenError("cut"), AnswerOverError("over")):
        assert ended(judged(stream, error=error)) == (Outcome.API_ERROR, WORDS)


# -- what follows an answer that is decided ------------------------------------------------------

AFTER: list[bytes] = [
    b"",
    b": ping\n\n" * 3,
    *ERRORS.values(),
    CHAT_FORM.text(" more"),
    sse({"sla_metrics": {"ttft_ms": 10}}),
    sse("bye"),
    CHAT_FORM.finish("error"),
    b"garbage",
    b"data: {",
    DONE,
]
BROKEN: list[ClientError | None] = [
    None,
    RequestTimeoutError("no event for 30 s (gap)"),
    ConnectionBrokenError("reset"),
    ResponseError("not an HTTP/1.1 response"),
    OversizeError("more than 64 MiB"),
    AnswerOverError("over"),
]


@each_form
@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
def test_after_the_finish_reason_and_the_end_nothing_changes_an_answer(
    form: Form, error: ClientError | None
) -> None:
    alone = judged(form.whole(), form.dialect).reply
    for after in AFTER:
        for pieces in ([form.whole() + after], [form.whole(), after]):
            found = judged(pieces, form.dialect, error=error)
            assert ended(found) == (Outcome.OK, None), after
            assert found.reply == alone


def test_a_decided_answer_and_an_error_are_not_waited_for_and_others_are() -> None:
    assert judged(CHAT_FORM.whole()).decoder.over
    assert judged(CHAT_FORM.text() + ERRORS["a field"]).decoder.over
    assert not judged(CHAT_FORM.text() + CHAT_FORM.finish("stop")).decoder.over  # usage may follow
    assert judged(CHAT_FORM.text() + DONE).decoder.over


@each_form
@given(
    st.lists(st.integers(0, 10_000), max_size=12),
    st.lists(st.sampled_from(list(ERRORS)), max_size=2),
    st.data(),
)
def test_no_split_of_the_bytes_changes_an_outcome(
    form: Form, places: list[int], kinds: list[str], data: st.DataObject
) -> None:
    parts = [form.text() * 2, form.finish(form.good), form.end, *(ERRORS[kind] for kind in kinds)]
    stream = b"".join(data.draw(st.permutations(parts)))
    whole, split = judged(stream, form.dialect), judged(cut_at(stream, places), form.dialect)
    assert (ended(split), split.reply) == (ended(whole), whole.reply)


# -- private data, and what was no event ------------------------------------------------------------

PRIVATE = [
    {"sla_metrics": {"ttft_ms": 10}},
    {"id": "x", "object": "chat.completion.chunk", "model": "m", "load": 3},
    {"id": "x", "choices": []},
    {"id": "x", "choices": None},
    {"status": "ok", "code": 0, "message": "success"},
    {"code": "success", "message": "done"},
    {"error": None, "x": 1},
    {"errors": [], "error_code": 0},
    {},
]


@pytest.mark.parametrize("private", PRIVATE)
@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.name)
def test_private_data_passes_wherever_it_stands(form: Form, private: dict[str, Any]) -> None:
    parts = [form.text() * 2, form.finish("stop"), DONE]
    for place in range(len(parts) + 1):
        found = judged(b"".join([*parts[:place], sse(private), *parts[place:]]), form.dialect)
        assert ended(found) == (Outcome.OK, None)
        assert len(found.reply.token_ends) == 2


@pytest.mark.parametrize(
    "foreign",
    [
        {"token": {"text": "a"}},
        {"message": {"content": "a"}, "done": False},
        {"content": "a"},
        {"response": "a"},
        {"type": "x", "delta": {"text": "a"}},
        {"candidates": [{"content": {}}]},
        {"generated_text": "a"},
    ],
)
def test_a_part_of_an_answer_in_another_apis_form_is_no_private_data(foreign: dict[str, Any]) -> None:
    assert judged(CHAT_FORM.text() + sse(foreign) + CHAT_FORM.finish("stop")).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"upstream connect timed out\n\n", "outside of any event it says 'upstream connect timed out'"),
        (b'{"done":false,"response":"a"}\n', 'outside of any event it says \'{"done":false'),
        (b": upstream reset\n\n", "outside of any event it says 'upstream reset'"),
        (sse({"queue": 3}), "it sent '{\"queue\": 3}', which is no part of an answer"),
        (b": ping\n\n", "the stream ended without a finish reason or [DONE]"),
    ],
)
def test_what_was_no_event_is_quoted_where_an_answer_did_not_end_well(stream: bytes, words: str) -> None:
    for before in (b"", CHAT_FORM.text()):
        found = judged(before + stream)
        assert found.outcome is Outcome.TRUNCATED
        assert (found.why or "").endswith(words) or words in (found.why or "")
    assert judged(CHAT_FORM.text() + stream + CHAT_FORM.finish("stop")).outcome is Outcome.OK
    cut = judged(stream, error=ConnectionBrokenError("reset"))
    assert (cut.why or "").startswith("reset")


@pytest.mark.parametrize(
    "content_type", ["text/html", "text/html; charset=utf-8", "text/plain", "application/xml"]
)
def test_a_page_in_place_of_a_stream_is_quoted_with_its_type_and_status(content_type: str) -> None:
    found = judged(b"<html><title>Log in</title></html>", content_type=content_type)
    words = f"a stream was asked for, the answer (HTTP 200) is {content_type}: "
    assert ended(found) == (Outcome.INVALID, f"{words}'<html><title>Log in</title></html>'")


@pytest.mark.parametrize("content_type", ["", "text/plain", "text/html"])
def test_a_stream_under_another_type_is_a_stream(content_type: str) -> None:
    assert judged(CHAT_FORM.whole(), content_type=content_type).outcome is Outcome.OK
    assert judged(CHAT_FORM.text(), content_type=content_type).outcome is Outcome.TRUNCATED
    assert judged(ERRORS["a bare line"], content_type=content_type).outcome is Outcome.API_ERROR


def test_what_is_kept_of_a_stream_is_bounded() -> None:
    found = judged([b"nonsense\n" * 100, b"x" * 10_000 + b"\n\n", b"more\n" * 1000])
    assert len(found.decoder.stray) <= 4096
    assert len(found.why or "") < 400
    many = judged([b"event: error\n\n" * 1000, b"error: x\n\n" * 1000])
    assert many.outcome is Outcome.API_ERROR


# -- the bound of the length --------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize(
    ("tokens", "usage", "asked", "outcome"),
    [
        (3, 3, 128, Outcome.TRUNCATED),
        (100, 100, 128, Outcome.TRUNCATED),
        (128, 128, 128, Outcome.OK),
        (127, 127, 128, Outcome.OK),  # a server that counts the end, or not
        (128, 5, 128, Outcome.OK),  # usage that the events contradict
        (3, None, 128, Outcome.TRUNCATED),  # six bytes are at most six tokens
        (64, None, 128, Outcome.OK),  # 128 bytes may be 128 tokens
        (3, 3, None, Outcome.OK),  # no bound is known
    ],
)
def test_an_answer_that_ends_at_its_bound_has_as_many_tokens(
    form: Form, tokens: int, usage: int | None, asked: int | None, outcome: Outcome
) -> None:
    reason = {"messages": "max_tokens", "responses": "max_output_tokens"}.get(form.name, "length")
    for spelled in (reason, reason.upper(), "max_tokens"):
        found = judged(form.whole(tokens, spelled, usage), form.dialect, asked_tokens=asked)
        assert found.outcome is outcome
        if outcome is Outcome.TRUNCATED and usage:
            assert f"{spelled!r} after {usage} of {asked} tokens" in (found.why or "")
    by_itself = judged(form.whole(tokens, form.good, usage), form.dialect, asked_tokens=asked)
    assert by_itself.outcome is Outcome.OK


@each_form
def test_an_event_may_have_several_tokens_of_the_bound(form: Form) -> None:
    stream = form.whole(43, "max_tokens", 128, " a b c")
    assert judged(stream, form.dialect, asked_tokens=128).outcome is Outcome.OK
    assert judged(stream, form.dialect, asked_tokens=200).outcome is Outcome.TRUNCATED


def test_reasoning_that_usage_counts_apart_is_generated_too() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 20,
        "completion_tokens_details": {"reasoning_tokens": 44},
    }
    last = sse({"choices": [], "usage": usage})
    stream = CHAT_FORM.text() * 20 + CHAT_FORM.finish("length") + last + DONE
    assert judged(stream, asked_tokens=64).outcome is Outcome.OK
    assert judged(stream, asked_tokens=128).outcome is Outcome.TRUNCATED


def test_a_tokenizers_count_of_the_text_is_taken_with_a_margin() -> None:
    stream = CHAT_FORM.whole(20, "length")
    assert judged(stream, asked_tokens=64, counted=60).outcome is Outcome.OK
    assert judged(stream, asked_tokens=64, counted=40).outcome is Outcome.TRUNCATED


def test_the_bound_holds_for_answers_that_are_not_streamed_too() -> None:
    choice = {"message": {"content": "a b c"}, "finish_reason": "length"}
    body = json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}).encode()
    found = judged(body, streamed=False, content_type="application/json", asked_tokens=128)
    assert found.outcome is Outcome.TRUNCATED
    assert "'length' after 3 of 128 tokens" in (found.why or "")


# -- answers that ended ok and are doubtful --------------------------------------------------

DOUBTS = [
    ("chat", "content_filter", Doubt.CONTENT_FILTER),
    ("chat", "SAFETY", Doubt.CONTENT_FILTER),
    ("completions", "content_filtered", Doubt.CONTENT_FILTER),
    ("messages", "refusal", Doubt.CONTENT_FILTER),
    ("responses", "content_filter", Doubt.CONTENT_FILTER),
    ("chat", "eagle_landed", Doubt.UNKNOWN_FINISH_REASON),
    ("completions", 7, Doubt.UNKNOWN_FINISH_REASON),
    ("messages", "eagle_landed", Doubt.UNKNOWN_FINISH_REASON),
    ("responses", "eagle_landed", Doubt.UNKNOWN_FINISH_REASON),
    ("chat", "default", Doubt.UNKNOWN_FINISH_REASON),  # which has a fault in it
    ("chat", "stop", None),
    ("chat", "TOOL_CALL", None),
    ("chat", "length", None),
    ("chat", "context_overflow", None),
    ("chat", "max_seq_len_exceeded", None),
    ("chat", "contextFull", None),
    ("messages", "pause_turn", None),
]


@pytest.mark.parametrize(("name", "reason", "doubt"), DOUBTS)
def test_an_ok_answer_whose_end_is_no_good_one_is_doubtful(
    name: str, reason: Any, doubt: Doubt | None
) -> None:
    form = next(form for form in FORMS if form.name == name)
    found = judged(form.whole(reason=reason), form.dialect)
    assert (found.outcome, found.doubt) == (Outcome.OK, doubt)


def test_an_answer_that_is_a_refusal_is_doubtful() -> None:
    refusal = sse({"choices": [{"index": 0, "delta": {"refusal": " no"}}]}) * 3
    for text, doubt in (b"", Doubt.CONTENT_FILTER), (CHAT_FORM.text(), None):
        assert judged(refusal + text + CHAT_FORM.finish("stop") + DONE).doubt is doubt


@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: form.name)
@pytest.mark.parametrize("nothing", NOTHING)
def test_an_end_without_a_finish_reason_is_doubtful_unless_all_tokens_came(form: Form, nothing: Any) -> None:
    stream = form.text() * 3 + form.finish(nothing, usage=6) + DONE
    assert judged(stream, form.dialect).doubt is Doubt.NO_FINISH_REASON
    assert judged(stream, form.dialect, asked_tokens=128).doubt is Doubt.NO_FINISH_REASON
    assert judged(stream, form.dialect, asked_tokens=6).doubt is None
    choice = {"message": {"content": "a"}, "text": "a", "finish_reason": nothing}
    body = json.dumps({"choices": [choice]}).encode()
    whole = judged(body, form.dialect, streamed=False, content_type="application/json")
    assert (whole.outcome, whole.doubt) == (Outcome.OK, Doubt.NO_FINISH_REASON)


def reasoning(form: Form) -> bytes:
    match form.name:
        case "chat":
            return sse({"choices": [{"index": 0, "delta": {"reasoning_content": " hm"}}]})
        case "messages":
            delta = {"type": "thinking_delta", "thinking": " hm"}
            return sse({"type": "content_block_delta", "index": 0, "delta": delta})
    return sse({"type": "response.reasoning_text.delta", "item_id": "r", "delta": " hm"})


@pytest.mark.parametrize("form", [CHAT_FORM, MESSAGES_FORM, RESPONSES_FORM], ids=lambda form: form.name)
def test_reasoning_without_an_answer_is_doubtful(form: Form) -> None:
    end = form.finish(form.good) + form.end
    assert judged(reasoning(form) * 3 + end, form.dialect).doubt is Doubt.NO_ANSWER
    assert judged(reasoning(form) * 3 + form.text() + end, form.dialect).doubt is None
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    calls = sse({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]})
    assert judged(reasoning(CHAT_FORM) + calls + DONE).doubt is None


def test_what_failed_and_what_generates_nothing_is_not_doubtful() -> None:
    assert judged(CHAT_FORM.text() + CHAT_FORM.finish("error") + DONE).doubt is None
    assert judged(CHAT_FORM.text()).doubt is None
    body = b'{"object":"list","model":"m","data":[{"index":0,"embedding":[0.1]}]}'
    found = judged(body, EMBEDDINGS, streamed=False, content_type="application/json")
    assert (found.outcome, found.doubt) == (Outcome.OK, None)


# -- error bodies that are packed ---------------------------------------------------------------------------


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "br": lambda body: pa.Codec("brotli").compress(body).to_pybytes(),
    "zstd": lambda body: pa.Codec("zstd").compress(body).to_pybytes(),
    "identity": bytes,
}
LIMITED = json.dumps({"error": {"message": "rate limit reached"}}).encode()


@pytest.mark.parametrize("coding", PACKED)
def test_a_packed_error_body_is_read(coding: str) -> None:
    packed = PACKED[coding](LIMITED)
    found = judged(packed, status=429, content_type="application/json", coding=coding)
    assert ended(found) == (Outcome.HTTP_ERROR, "HTTP 429: rate limit reached")
    page = PACKED[coding](b"<html>too many</html>")
    found = judged(page, status=429, content_type="text/html", coding=coding)
    assert ended(found) == (Outcome.HTTP_ERROR, "HTTP 429 text/html: <html>too many</html>")


@pytest.mark.parametrize(
    ("packed", "label"),
    [
        (gzip.compress(LIMITED), ""),
        (gzip.compress(LIMITED), "br"),
        (LIMITED, "gzip"),
        (LIMITED, "zstd"),
        (LIMITED, "unheard-of"),
        (gzip.compress(gzip.compress(LIMITED)), "gzip, gzip"),
        (PACKED["zstd"](gzip.compress(LIMITED)), "gzip, zstd"),
        (gzip.compress(LIMITED)[:-6], "gzip"),
    ],
)
def test_a_wrong_label_or_a_cut_hides_no_error(packed: bytes, label: str) -> None:
    found = judged(packed, status=500, content_type="application/json", coding=label)
    assert found.why == "HTTP 500: rate limit reached"


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate"])
def test_a_bomb_is_unpacked_within_bounds(coding: str) -> None:
    bomb = PACKED[coding](b"a" * (64 << 20))[: 64 << 10]
    found = judged(bomb, status=500, content_type="text/plain", coding=coding)
    assert (found.why or "").startswith("HTTP 500: aaaa")
    assert len(found.decoder.body()) <= (64 << 10) + 512


@pytest.mark.parametrize("coding", ["", "gzip", "compress"])
def test_a_body_that_is_no_text_is_named(coding: str) -> None:
    body = bytes(range(256)) * 4
    found = judged(body, status=500, content_type="application/octet-stream", coding=coding)
    packed = f"{coding}-encoded " if coding else ""
    assert f"1,024 {packed}bytes of application/octet-stream that are no text" in (found.why or "")


def test_an_error_sent_as_an_event_stream_is_read() -> None:
    found = judged(sse({"error": {"message": WORDS}}), status=500)
    assert found.why == f"HTTP 500: {WORDS}"


def test_messages_name_the_errors_type() -> None:
    event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    for stream in (sse(event, "error"), sse(event), json.dumps(event).encode() + b"\n"):
        found = judged(MESSAGES_FORM.text() + stream, MESSAGES_FORM.dialect)
        assert found.outcome is Outcome.API_ERROR
        assert "Overloaded" in (found.why or "")
