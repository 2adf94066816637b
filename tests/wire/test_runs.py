"""Runs of events: what belongs to one, and where it ends."""

import json

import pytest

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.reply import ReplyReader, reply_reader
from llm_locust.wire.runs import EventRun, Pieces, run_of
from llm_locust.wire.sse import SseDecoder

RUN = EventRun(CHAT.read_events, Pieces(), b'{"t":"', b'"}')


def event(text: str, dialect: Dialect = CHAT, field: str = "content", **more: object) -> bytes:
    held = {"delta": {field: text}} if dialect is CHAT else {"text": text}
    document = {"model": "m", "choices": [{"index": 0, **held}], **more}
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def after(*events: bytes, dialect: Dialect = CHAT) -> tuple[ReplyReader, int]:
    """A reader of these events, and where the next one starts."""
    decoder, reader = SseDecoder(), reply_reader(dialect)
    reader.feed(decoder.feed(b"".join(events)))
    assert decoder.between_events is not None
    return reader, decoder.between_events


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ('data: {"t":"a"}\n\ndata: {"t":"é b"}\n\n', ["a", "é b"]),
        ('data: {"t":"a"}\n\ndata: {"t":"b"}\n', ["a"]),
        ('data: {"t":"a"}\n\ndata: {"t":"b', ["a"]),
        ('data: {"t":"a"}\n\ndata: {"t":""}\n\ndata: {"t":"c"}\n\n', ["a"]),
        ('data: {"t":"a"}\n\ndata: {"t":"b","u":1}\n\n', ["a"]),
        ('data: {"t":"a"}\n\ndata: {"t":"\\n"}\n\n', ["a"]),
        ('data: {"t":"a"}\n\ndata: {"t":"b\tc"}\n\ndata: {"t":"d"}\n\n', ["a"]),
        ('data: {"t":"a"}\n\ndata: {"t":"b\nc"}\n\ndata: {"t":"d"}\n\n', ["a"]),
        ('data: {"t":"a"}\n\n: ping\n\ndata: {"t":"b"}\n\n', ["a"]),
        ('data: {"x":"a"}\n\n', []),
        ("", []),
    ],
)
def test_a_run_has_whole_events_that_differ_in_plain_text_only(data: str, texts: list[str]) -> None:
    body = b"before" + data.encode()
    found, ends = RUN.read(body, 6, 1000)
    assert [text.decode() for text in found] == texts
    assert [body[:end].endswith(b'"}\n\n') for end in ends] == [True] * len(texts)


def test_a_text_that_is_no_utf_8_by_itself_ends_a_run() -> None:
    """Two halves of a character in two events are none, though they are one when joined."""
    halves = "é".encode()
    body = b"".join(b'data: {"t":"%b"}\n\n' % text for text in (b"a", halves[:1], halves[1:]))
    assert RUN.read(body, 0, 1000)[0] == [b"a"]


def test_no_more_events_are_read_than_are_asked_for() -> None:
    assert RUN.read(b'data: {"t":"a"}\n\n' * 9, 0, 4)[0] == [b"a"] * 4


@pytest.mark.parametrize(
    "data",
    [b'{"t":\n"a"}', b'{"t":"a",\r"u":1}', b'{"t":"a","u":"%b"}' % (b"x" * 5000), b'{"t":"\\u0061"}'],
    ids=["line feed", "carriage return", "long", "escaped"],
)
def test_an_event_whose_text_is_not_found_for_sure_begins_no_run(data: bytes) -> None:
    assert run_of(CHAT.read_events, data, "a", Pieces(), lambda each: json.loads(each)["t"]) is None


@pytest.mark.parametrize("data", [b'{"t":"a","u":"a"}', b'{"u":"a","t":"a"}'], ids=["first", "last"])
def test_the_text_is_found_among_others_like_it(data: bytes) -> None:
    run = run_of(CHAT.read_events, data, "a", Pieces(), lambda each: json.loads(each)["t"])
    assert run is not None
    changed = data.replace(b'"t":"a"', b'"t":"b"')
    assert run.fits(changed)
    assert not run.fits(data.replace(b'"u":"a"', b'"u":"b"'))


@pytest.mark.parametrize(
    ("dialect", "field"),
    [(CHAT, "content"), (CHAT, "reasoning"), (CHAT, "reasoning_content"), (COMPLETIONS, "")],
)
def test_a_reader_reads_runs_of_its_own_events(dialect: Dialect, field: str) -> None:
    reader, start = after(event("a", dialect, field), event("b", dialect, field), dialect=dialect)
    body = event("c", dialect, field) + event("d", dialect, field) + event("e", dialect, field, usage=None)
    whole = len(event("c", dialect, field))
    assert reader.read_run(b"x" + body, 1, start, 100) == (2, 2 * whole)
    assert reader.last_event_end == start + 2 * whole == reader.token_ends[-1]
    reply = reader.finish()
    assert reply.text + reply.reasoning == "abcd"
    assert reader.read_run(body, 0, start, 0) == (0, 0)


def test_a_run_goes_on_after_an_event_between() -> None:
    reader, _ = after(event("a"), event("b"), event("c", created=2), event("d"), event("d"))
    assert reader.read_run(event("e"), 0, 1000, 100)[0] == 1


def test_events_with_counts_or_without_a_model_begin_no_run() -> None:
    for events in (
        [event("a"), event("b", usage={"completion_tokens": 2})],
        [event("a", model=None), event("b", model=None)],
        [event("a")],
    ):
        reader, start = after(*events)
        assert reader.read_run(events[-1], 0, start, 100) == (0, 0)


def test_what_is_skipped_moves_the_ends_of_later_events() -> None:
    decoder = SseDecoder()
    decoder.feed(event("a"))
    decoder.skip(100)
    assert decoder.feed(event("b"))[0].end == 2 * len(event("a")) + 100
    decoder.feed(b"data: be")
    assert decoder.between_events is None
