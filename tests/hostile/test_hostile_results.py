"""Embeddings and rerank: answers that are a list of results, honest and not."""

import base64
import json
import math
import struct
from typing import Any

import pytest
from holding import cpu_s, is_short
from hypothesis import example, given, strategies as st

from llm_locust.wire.dialects.dialect import Dialect, ReplyReader, read_body
from llm_locust.wire.dialects.results import EMBEDDINGS, MAX_BYTES, RERANK
from llm_locust.wire.draft import Reply
from llm_locust.wire.payload import AskedResults, Results, mismatch
from llm_locust.wire.sse import SseEvent


def read(dialect: Dialect, answer: Any) -> Reply:
    return read_body(dialect, json.dumps(answer).encode())


def vectors(*found: Any, **more: Any) -> dict[str, Any]:
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(found)]
    return {"object": "list", "model": "m", "data": data, **more}


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def scores(*pairs: tuple[Any, Any], **more: Any) -> dict[str, Any]:
    return {"results": [{"index": i, "relevance_score": score} for i, score in pairs], **more}


def test_an_embeddings_answer_is_done_with_its_vectors_and_has_no_token() -> None:
    reply = read(
        EMBEDDINGS, vectors([0.1, -2e-3, 3], [1, 2, 3], usage={"prompt_tokens": 7, "total_tokens": 7})
    )
    assert (reply.results, reply.done, reply.error, reply.invalid) == (Results(2, 1, 3), True, None, None)
    assert (len(reply.token_ends), reply.text, reply.model) == (0, "", "m")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, None)


def test_vectors_in_base64_have_the_dimensions_of_their_floats() -> None:
    assert read(EMBEDDINGS, vectors(packed(0.5, 1.0), packed(1.5, -1.0))).results == Results(2, 1, 2)
    escaped = json.dumps(vectors(packed(*range(300)))).replace("/", "\\/").encode()
    assert read_body(EMBEDDINGS, escaped).results == Results(1, 0, 300)


@given(st.lists(st.lists(st.binary(min_size=4, max_size=4), min_size=7, max_size=7), min_size=1, max_size=4))
@example([[b"\0\0\x80\x7f"] * 7])
@example([[b"\xff\xff\x7f\xff"] * 7])
def test_what_is_finite_in_base64_is_what_its_numbers_are(found: list[list[bytes]]) -> None:
    raws = [b"".join(numbers) for numbers in found]
    finite = all(map(math.isfinite, struct.unpack(f"<{7 * len(raws)}f", b"".join(raws))))
    reply = read(EMBEDDINGS, vectors(*(base64.b64encode(raw).decode() for raw in raws)))
    assert (reply.invalid is None) == finite
    assert reply.results == (Results(len(raws), len(raws) - 1, 7) if finite else None)


def test_a_number_that_is_not_finite_is_found_wherever_it_is() -> None:
    numbers = [0.25] * 3072
    many = [packed(*numbers)] * 200 + [packed(*numbers[:-1], math.nan)]  # behind 3 MiB
    reply = read(EMBEDDINGS, vectors(*many))
    assert reply.invalid is not None
    assert "an embedding has numbers that are not finite" in reply.invalid


@pytest.mark.parametrize("text", ["AAA=AAA=", "AAAAA===", "AAAA-AA=", "AAAAA\u00e9A=", "=", "AAAAAAA"])
def test_what_is_no_base64_is_invalid(text: str) -> None:
    assert "an embedding is not base64" in (read(EMBEDDINGS, vectors(text)).invalid or "")


def test_results_need_not_be_in_order() -> None:
    assert read(RERANK, scores((4, 0.9), (0, 0.1), (2, -3.5))).results == Results(3, 4)


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({"usage": {"total_tokens": 9}}, 9),
        ({"usage": {"prompt_tokens": 8, "total_tokens": 9}}, 8),
        ({"meta": {"tokens": {"input_tokens": 5}}}, 5),
        ({"meta": {"billed_units": {"input_tokens": 6, "search_units": 1}}}, 6),
        ({"meta": {"billed_units": {"search_units": 1}}}, None),
        ({"usage": {"prompt_tokens": -1}}, None),
        ({"usage": "9"}, None),
    ],
)
def test_the_input_is_counted_by_the_server_or_not_at_all(more: dict[str, Any], tokens: int | None) -> None:
    usage = read(RERANK, scores((0, 1), **more)).usage
    assert (None if usage is None else usage.input_tokens) == tokens


@pytest.mark.parametrize(
    ("number", "finite"),
    [
        ("1e999", False),
        ("-1E+999", False),
        ("1e0999", False),
        ("1" + "0" * 400, False),
        ("-1" + "0" * 250 + "e99", False),
        ("1e-999", True),
        ("1.5e-05", True),
        ("3.4E+38", True),
        ("0.1" + "0" * 400, True),
        ("-0." + "3" * 60 + "e-12", True),
    ],
)
def test_a_plain_number_beyond_all_floats_is_not_finite(number: str, finite: bool) -> None:
    answer = json.dumps(vectors([0.25, 8, 0.5])).replace("8", number)
    reply = read_body(EMBEDDINGS, answer.encode())
    assert (reply.invalid is None) == finite
    assert finite or "an embedding has numbers that are not finite" in (reply.invalid or "")


@pytest.mark.parametrize(
    ("dialect", "answer", "why"),
    [
        (EMBEDDINGS, vectors([1], [1, 2]), "vectors of 1 and of 2 dimensions"),
        (EMBEDDINGS, vectors([1, None]), "not a list of numbers"),
        (EMBEDDINGS, vectors([1, "2"]), "not a list of numbers"),
        (EMBEDDINGS, vectors([[1], [2]]), "not a list of numbers"),
        (EMBEDDINGS, vectors([True]), "not a list of numbers"),
        (EMBEDDINGS, vectors(None), "not a list of numbers"),
        (EMBEDDINGS, vectors([]), "without any dimension"),
        (EMBEDDINGS, vectors([float("nan")]), "NaN is no JSON"),
        (EMBEDDINGS, vectors(packed(1.0, float("nan"))), "not finite"),
        (EMBEDDINGS, vectors(packed(float("inf"))), "not finite"),
        (EMBEDDINGS, vectors("AAAA"), "not base64 of 32-bit numbers"),
        (EMBEDDINGS, vectors("!!!!!!=="), "not base64"),
        (EMBEDDINGS, {"data": [{"index": 0}]}, "without an embedding"),
        (EMBEDDINGS, {"data": [{"embedding": [1]}]}, "index of embedding is not a finite number"),
        (EMBEDDINGS, {"data": {}}, "not an answer of this API"),
        (EMBEDDINGS, {"choices": []}, "no list of results"),
        (EMBEDDINGS, [], "not an answer of this API"),
        (EMBEDDINGS, vectors([0] * (2 << 20)), "more than 4 MiB in one answer"),
        (RERANK, [{}] * 20_001, "more than 20,000 JSON objects"),
        (RERANK, scores((0, 1), (0, 2)), "two results have the index 0"),
        (RERANK, scores((0, None)), "a relevance_score is not a finite number"),
        (RERANK, scores((0, "high")), "a relevance_score is not a finite number"),
        (RERANK, scores((0, 1e300), (1, 10**400)), "a relevance_score is not a finite number"),
        (RERANK, scores((-1, 1)), "the index of result is -1"),
        (RERANK, scores((0.5, 1)), "the index of result is 0.5"),
    ],
)
def test_a_wrong_answer_is_invalid_with_the_reason(dialect: Dialect, answer: Any, why: str) -> None:
    reply = read(dialect, answer)
    assert why in (reply.invalid or "")
    assert not reply.done


def test_a_stream_is_no_answer_of_these_apis() -> None:
    reader = ReplyReader(RERANK)
    reader.feed([SseEvent(b"{}", 2)])
    assert "an event stream" in (reader.finish().invalid or "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"vectors": None, "base_resp": {"status_code": 1008, "status_msg": "no balance"}}, "no balance"),
        ({"code": 429, "msg": "slow down"}, "slow down"),
        ({"message": "no such model"}, "no such model"),
    ],
)
def test_an_error_in_place_of_results_is_one_in_any_form(answer: Any, said: str) -> None:
    assert read(RERANK, answer).error == said


def test_no_depth_of_nesting_raises() -> None:
    for depth in range(800, 1_000):
        nested = "[" * depth + "]" * depth
        answer = f'{{"results": [{{"index": 0, "relevance_score": 1}}], "model": {nested}}}'
        reply = read_body(RERANK, answer.encode())
        assert reply.done or reply.invalid


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": {"message": "out of memory"}}, "out of memory"),
        ({"object": "error", "message": "no such model"}, "no such model"),
        ({"detail": "Not Found"}, "Not Found"),
    ],
)
@pytest.mark.parametrize("dialect", [EMBEDDINGS, RERANK])
def test_an_error_object_with_status_200_is_an_error(dialect: Dialect, answer: Any, said: str) -> None:
    reply = read(dialect, answer)
    assert (reply.error, reply.done) == (said, False)


@pytest.mark.parametrize(
    ("got", "why"),
    [
        (Results(3, 2, 8), None),
        (Results(2, 1, 8), "the answer has 2 results, 3 were asked for"),
        (Results(4, 3, 8), "the answer has 4 results, 3 were asked for"),
        (Results(3, 7, 8), "a result has index 7, the request has 3 inputs"),
        (Results(3, 2, 9), "vectors of 9 dimensions, 8 were asked for"),
    ],
)
def test_an_answer_is_held_against_what_was_asked_for(got: Results, why: str | None) -> None:
    assert mismatch(AskedResults(3, 3, 8), got) == why


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"input": "one"}, AskedResults(1, 1)),
        ({"input": ["one", "two"], "dimensions": 64}, AskedResults(2, 2, 64)),
        ({"input": [1, 2, 3]}, AskedResults(1, 1)),
        ({"input": [[1, 2], [3]]}, AskedResults(2, 2)),
    ],
)
def test_what_an_embeddings_request_asks_for(body: dict[str, Any], asked: AskedResults) -> None:
    assert EMBEDDINGS.asked is not None
    assert EMBEDDINGS.asked(body) == asked


def test_a_rerank_asks_for_the_best_or_for_all() -> None:
    assert RERANK.asked is not None
    documents = {"query": "q", "documents": ["a", "b", "c"]}
    assert RERANK.asked(documents) == AskedResults(3, 3)
    assert RERANK.asked({**documents, "top_n": 2}) == AskedResults(3, 2)
    assert RERANK.asked({**documents, "top_n": 9}) == AskedResults(3, 3)


_SIZE = MAX_BYTES - 200
LONG = {
    "digits of a score": (RERANK, b'{"results":[{"index":0,"relevance_score":' + b"1" * _SIZE + b"}]}"),
    "digits of an index": (RERANK, b'{"results":[{"relevance_score":1,"index":' + b"1" * _SIZE + b"}]}"),
    "usage": (RERANK, b'{"results":[],"usage":"' + b"x" * _SIZE + b'"}'),
    "one vector": (EMBEDDINGS, b'{"data":[{"index":0,"embedding":[' + b"1," * (_SIZE // 5) + b"1]}]}"),
    "base64": (EMBEDDINGS, b'{"data":[{"index":0,"embedding":"' + b"AAAA" * (_SIZE // 16 * 4) + b'"}]}'),
    "many vectors in base64": (
        EMBEDDINGS,
        b'{"data":['
        + b",".join(
            b'{"index":%d,"embedding":"%b"}' % (n, b"AAAA" * (_SIZE // 2100 // 16 * 4)) for n in range(2048)
        )
        + b"]}",
    ),
    "objects": (EMBEDDINGS, b'{"data":[' + b"{}," * (_SIZE // 3) + b"{}]}"),
    "too much": (EMBEDDINGS, b'{"data":[' + b" " * (7 << 20) + b"]}"),
    "depth": (EMBEDDINGS, b'{"data":' + b"[" * _SIZE),
}


@pytest.mark.parametrize("case", LONG)
def test_no_answer_holds_the_event_loop(case: str) -> None:
    dialect, body = LONG[case]
    assert is_short(min(cpu_s(lambda: read_body(dialect, body)) for _ in range(3)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["data", "results", "index", "embedding", "relevance_score", "usage", "error"]
                ),
                inner,
            )
        ),
    )
)
def test_no_json_raises(answer: Any) -> None:
    for dialect in (EMBEDDINGS, RERANK):
        reply = read(dialect, answer)
        assert "raised" not in (reply.invalid or "")
        assert reply.done == (reply.error is None and reply.invalid is None)
