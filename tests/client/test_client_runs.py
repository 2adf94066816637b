"""Like events read at once are read as each for itself: whatever a server sends, however it is cut."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.client import decoder as decoder_module
from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.exchange import Exchange
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect, ReplyReader
from llm_locust.wire.draft import Reply

TEXTS = st.one_of(
    st.sampled_from(
        [
            " tok",
            "m",
            "stop",
            "assistant",
            "delta",
            "é",
            "🙂",
            "\n",
            '"',
            "\\",
            "\u2028",
            "\ud83d",
            "",
            ",",
            ":",
        ]
    ),
    st.text(max_size=5),
)


def chunk(dialect: Dialect, text: str, *, ascii_only: bool = False, **more: Any) -> bytes:
    finish, choice_more = more.pop("finish", None), more.pop("choice", {})
    field = more.pop("field", "content")
    held = {"delta": {field: text}} if dialect is CHAT else {"text": text}
    document = {
        "id": "c",
        "created": more.pop("created", 1),
        "model": "m",
        "choices": [{"index": 0, **held, "finish_reason": finish, "token_ids": None, **choice_more}],
        **more,
    }
    try:
        return json.dumps(document, separators=(",", ":"), ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()


def odd_events(dialect: Dialect) -> list[bytes]:
    """Events that break a run, each whole with its blank line."""
    plain = chunk(dialect, " tok")
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    documents = [
        chunk(dialect, " b", created=2),
        chunk(dialect, " b", ascii_only=True, usage=usage),
        chunk(dialect, "", choice={"finish_reason": "stop"}),
        chunk(dialect, " end", choice={"finish_reason": "length"}),
        chunk(dialect, " r", field="reasoning_content"),
        chunk(dialect, " r", field="reasoning"),
        chunk(dialect, " r", field="refusal"),
        chunk(dialect, " tok", choice={"content": " tok", "text2": " tok"}),
        chunk(dialect, " b", choice={"index": 1}),
        chunk(dialect, " b", filler="x" * 5_000),
        chunk(dialect, " b", error="broken"),
        chunk(dialect, "a\nb"),
        chunk(dialect, 'a"b'),
        chunk(dialect, "m").replace(b'"model":"m"', b'"model":"zz"'),
        plain.replace(b" tok", b"\xff"),
        plain.replace(b" tok", b"\xc3"),
        plain.replace(b" tok", b"a\x01b"),
        plain.replace(b" tok", b"a\nb"),
        plain.replace(b" tok", b'a","content":"twice'),
        plain.replace(b'{"id"', b'{"id":"x","usage":{"completion_tokens":7},"id2"'),
        plain + b" ",
        plain + plain,
        plain[:-1],
        b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}',
        b'{"error":{"message":"no"}}',
        b"[DONE]",
        b"",
    ]
    lines = [b"data: " + document + b"\n\n" for document in documents]
    others = [
        b": ping\n\n",
        b"\n",
        b"event: error\ndata: {}\n\n",
        b"error: out of memory\n\n",
        b"event: x\ndata: " + plain + b"\n\n",
        b"data: " + plain + b"\r\n\r\n",
        b"data:" + plain + b"\n\n",
        b"data: " + plain + b"\ndata: " + plain + b"\n\n",
        b"data: " + plain.replace(b",", b",\ndata: ", 1) + b"\n\n",
        b"stray\n\n",
    ]
    return [*lines, *others]


def streams(dialect: Dialect) -> st.SearchStrategy[list[bytes]]:
    def run(texts: Sequence[str]) -> list[bytes]:
        return [b"data: " + chunk(dialect, text) + b"\n\n" for text in texts]

    fields = ["content", "reasoning_content"] if dialect is CHAT else ["text"]

    def other_run(field: str, texts: Sequence[str]) -> list[bytes]:
        return [b"data: " + chunk(dialect, text, field=field) + b"\n\n" for text in texts]

    parts = st.one_of(
        st.lists(TEXTS, max_size=12).map(run),
        st.tuples(st.sampled_from(fields), st.lists(TEXTS, max_size=5)).map(lambda of: other_run(*of)),
        st.sampled_from(odd_events(dialect)).map(lambda event: [event]),
    )
    return st.lists(parts, max_size=8).map(lambda found: [event for part in found for event in part])


def read(
    dialect: Dialect, slices: Sequence[bytes], *, at_once: bool
) -> tuple[Reply, bytes, str | None, bool, int]:
    exchange = Exchange()
    exchange.status = 200
    decoder = BodyDecoder(exchange, dialect, streamed=True)
    decoder._misses = 0 if at_once else decoder_module._MOST_MISSES
    assert exchange.on_slice is not None
    for each in slices:
        exchange.on_slice(each)
    return decoder.finish(), decoder.stray, decoder.fault, decoder.has_events, decoder._events


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS], ids=lambda dialect: dialect.name)
@given(data=st.data())
def test_runs_are_read_as_their_events(dialect: Dialect, data: st.DataObject) -> None:
    events = data.draw(streams(dialect))
    body = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=3)))
    slices = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert read(dialect, slices, at_once=True) == read(dialect, slices, at_once=False)


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("last", [" tok", "m", "length", "é"])
def test_what_breaks_a_run_is_read_as_ever(dialect: Dialect, last: str) -> None:
    """Between rows of like events, each twice."""
    run = b"".join(b"data: " + chunk(dialect, text) + b"\n\n" for text in [last] * 6)
    for event in odd_events(dialect):
        slices = [run, run + event + run + event + run]
        assert read(dialect, slices, at_once=True) == read(dialect, slices, at_once=False), event
        assert read(dialect, [b"".join(slices)], at_once=True) == read(dialect, slices, at_once=True), event


def test_a_run_needs_no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    feed = ReplyReader.feed

    def counted(reader: ReplyReader, events: Sequence[Any], *more: Any) -> None:
        decoded.append(len(events))
        feed(reader, events, *more)

    monkeypatch.setattr(ReplyReader, "feed", counted)
    texts = [f" tok{n}é" for n in range(300)]
    body = b"".join(b"data: " + chunk(CHAT, text) + b"\n\n" for text in texts) + b"data: [DONE]\n\n"
    reply, *_ = read(CHAT, [body], at_once=True)
    assert reply.text == "".join(texts)
    assert len(reply.token_ends) == 300
    assert sum(decoded) < 10


@pytest.mark.parametrize("most", [1, 2, 5, 20])
def test_a_stream_of_too_many_events_is_refused_at_the_same_one(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(decoder_module, "MAX_ARRIVALS", most)
    body = b"".join(b"data: " + chunk(CHAT, f" t{n}") + b"\n\n" for n in range(9))
    found = [read(CHAT, [body], at_once=at_once) for at_once in (True, False)]
    assert [len(reply.token_ends) for reply, *_ in found] == [min(most, 9)] * 2
    assert [fault for _, _, fault, *_ in found] == [
        None if most > 9 else f"the stream has more than {most:,} events"
    ] * 2


def test_events_of_a_dialect_of_its_own_are_all_its_own() -> None:
    """One that reads chat's events, and more in them."""
    seen: list[int] = []

    def read_events(draft: Any, events: Sequence[Any]) -> None:
        seen.extend(len(event.data) for event in events)
        CHAT.read_events(draft, events)

    own = replace(CHAT, name="own", read_events=read_events)
    body = b"".join(b"data: " + chunk(CHAT, f" t{n}") + b"\n\n" for n in range(50))
    reply, *_ = read(own, [body], at_once=True)
    assert len(seen) == len(reply.token_ends) == 50


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("text", [",", ":", "m", "c", "content"])
def test_a_text_that_is_spelled_like_what_stands_around_it_breaks_no_answer(
    dialect: Dialect, text: str
) -> None:
    slices = [b"data: " + chunk(dialect, each) + b"\n\n" for each in (text, text, " tok", text, text)]
    reply, _, fault, _, events = read(dialect, slices, at_once=True)
    assert reply.invalid is None
    assert (reply.text, fault, events) == (f"{text}{text} tok{text}{text}", None, 5)
