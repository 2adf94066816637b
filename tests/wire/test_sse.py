"""The event stream decoder: every trap of the wire, at any split; runs of events."""

import json

import pytest
from hypothesis import given, strategies as st
from openai._streaming import SSEDecoder
from strategies import complete_streams, cuts, streams

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect, ReplyReader
from llm_locust.wire.draft import EventTemplate, Pieces, template_of
from llm_locust.wire.sse import SseDecoder, SseError, SseEvent

# --- The event stream decoder: every trap of the wire, at any split


def decode(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def payloads(*pieces: bytes) -> list[bytes]:
    return [event.data for event in decode(*pieces)]


def by_the_rules(stream: bytes) -> list[tuple[bytes, int, bytes]]:
    """The standard's algorithm, byte by byte, as plainly as it can be written."""
    found: list[tuple[bytes, int, bytes]] = []
    data: list[bytes] = []
    event, line, start = b"", b"", True
    for at, byte in enumerate(stream):
        if byte not in b"\r\n":
            line += bytes([byte])
            continue
        if byte == 10 and at and stream[at - 1] == 13:
            continue  # the second half of CRLF
        if start:
            line, start = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            if b"\n".join(data):
                found.append((b"\n".join(data), at + 1, event))
            data, event = [], b""
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        if name == b"event":
            event = value.removeprefix(b" ")
        line = b""
    return found


@given(st.data())
def test_any_split_gives_what_the_standard_says_with_the_same_ends(data: st.DataObject) -> None:
    stream = data.draw(streams())
    expected = by_the_rules(stream)
    pieces = data.draw(cuts(stream))
    assert [(e.data, e.end, e.event) for e in decode(*pieces)] == expected
    assert [
        (e.data, e.end, e.event) for e in decode(*(stream[i : i + 1] for i in range(len(stream))))
    ] == expected


@given(st.data())
def test_an_event_comes_from_the_feed_that_holds_its_last_byte(data: st.DataObject) -> None:
    pieces = data.draw(cuts(data.draw(streams())))
    decoder, begin = SseDecoder(), 0
    for piece in pieces:
        for event in decoder.feed(piece):
            assert begin < event.end <= begin + len(piece)
        begin += len(piece)


@given(complete_streams())
def test_complete_streams_read_as_the_openai_sdk_reads_them(stream: bytes) -> None:
    theirs = [e for e in SSEDecoder().iter_bytes(iter([stream])) if e.data]
    ours = decode(stream)
    assert [e.data.decode() for e in ours] == [e.data for e in theirs]
    assert [e.event.decode() for e in ours] == [e.event or "" for e in theirs]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_may_end_with_lf_cr_or_crlf(end: bytes) -> None:
    stream = b"data: a" + end + end + b"data: b" + end + end
    assert payloads(stream) == [b"a", b"b"]
    assert payloads(*(bytes([b]) for b in stream)) == [b"a", b"b"]


def test_an_event_is_complete_at_the_first_byte_of_the_blank_lines_end() -> None:
    assert decode(b"data: a\r\n\r\ndata: b\r\n\r\n") == [SseEvent(b"a", 10), SseEvent(b"b", 21)]
    assert decode(b"data: a\n\n") == [SseEvent(b"a", 9)]


def test_a_cr_at_the_end_of_a_read_completes_the_event_without_waiting_for_an_lf() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [SseEvent(b"a", 10)]
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: b\n\n") == [SseEvent(b"b", 20)]


def test_the_space_after_the_colon_may_be_missing_and_only_one_is_taken() -> None:
    assert payloads(b"data:[DONE]\n\ndata: a\n\ndata:  b\n\n") == [b"[DONE]", b"a", b" b"]


def test_several_data_lines_are_joined_by_lf() -> None:
    assert payloads(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


def test_comments_ids_retries_and_unknown_fields_are_no_events() -> None:
    assert decode(b": ping\n\nid: 1\nretry: 5\nfoo: x\n\ndata: a\n\n") == [SseEvent(b"a", 40)]
    assert decode(b"data: a\r\n\r\n: ping\r\ndata: b\r\n\r\n") == [SseEvent(b"a", 10), SseEvent(b"b", 29)]


def test_the_event_type_belongs_to_one_event_only() -> None:
    assert [e.event for e in decode(b"event: error\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\n\n")] == [
        b"error",
        b"",
        b"",
    ]


@pytest.mark.parametrize("empty", [b"data\n\n", b"data:\n\n", b"data: \n\n", b"event: ping\n\n", b"\n\n\n"])
def test_an_event_without_data_is_not_dispatched(empty: bytes) -> None:
    stream = empty + b"data: a\n\n"
    after = [SseEvent(b"a", len(stream))]
    assert decode(empty) == []
    assert decode(stream) == decode(empty, b"data: a\n\n") == decode(*(bytes([b]) for b in stream)) == after


def test_a_bom_counts_as_bytes_and_only_the_first_is_taken() -> None:
    bom = b"\xef\xbb\xbf"
    assert decode(bom + b"data: a\n\n") == [SseEvent(b"a", 12)]
    assert decode(bom[:1], bom[1:] + b"data: a\n", b"\n") == [SseEvent(b"a", 12)]
    assert decode(b"data: a\n\n" + bom + b"data: b\n\n") == [SseEvent(b"a", 9)]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\f", "\v", "\x1c", "\x00"])
def test_no_other_character_ends_a_line(character: str) -> None:
    payload = f"a{character}data: b".encode()
    assert payloads(b"data: " + payload + b"\n\n") == [payload]
    assert payloads(b"data: " + payload + b"\r\n\r\n") == [payload]


@pytest.mark.parametrize("blank", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 3, 7, 50, 1_000])
def test_many_blank_lines_in_a_row_are_skipped_however_they_are_split(blank: bytes, size: int) -> None:
    stream = b"data: a" + 40 * blank + b"data: b" + 9 * blank + b"id: 1" + blank + b"data: c" + 2 * blank
    pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert [(e.data, e.end, e.event) for e in decode(*pieces)] == by_the_rules(stream)


def test_an_unfinished_event_waits_for_its_end() -> None:
    for last in (b"data: b", b"data: b\n", b"data: b\r\n"):
        decoder = SseDecoder()
        assert decoder.feed(b"data: a\n\n" + last) == [SseEvent(b"a", 9)]
        assert decoder.feed(b"\n\n") == [SseEvent(b"b", 9 + len(last) + 2 - last.count(b"\n"))]


@pytest.mark.parametrize(
    ("stream", "begun", "errors"),
    [
        (b"data: a\n\n", b"", []),
        (b"data: a", b"a", []),
        (b"data: a\ndata: b", b"a\nb", []),
        (b"event: error\ndata: a", b"", [b"a"]),
        (b": lost\nevent: error", b"", [b"lost"]),
        (b"error: a", b"", [b"a"]),
        (b'{"error": "a"}', b"", []),
    ],
)
def test_what_was_begun_is_told_once_and_an_error_is_one_without_its_end(
    stream: bytes, begun: bytes, errors: list[bytes]
) -> None:
    for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        decoder = SseDecoder()
        for piece in pieces:
            decoder.feed(piece)
        assert decoder.finish() == begun
        assert [error.data for error in decoder.take_errors()] == errors
        assert (decoder.finish(), decoder.take_errors()) == (b"", [])


def test_an_event_of_many_reads_is_read_in_linear_time() -> None:
    decoder, size = SseDecoder(max_event_bytes=64 << 20), 0
    piece = b"x" * 1000
    decoder.feed(b"data: ")
    for _ in range(20_000):
        assert decoder.feed(piece) == []
        size += len(piece)
    (event,) = decoder.feed(b"\n\n")
    assert len(event.data) == size


def test_an_event_over_the_bound_is_an_error_that_keeps_the_events_before_it() -> None:
    decoder = SseDecoder(max_event_bytes=20)
    with pytest.raises(SseError, match=r"more than 20 bytes began at byte 9 of") as raised:
        decoder.feed(b"data: a\n\ndata: " + b"b" * 20)
    assert raised.value.events == [SseEvent(b"a", 9)]
    with pytest.raises(SseError) as raised:
        decoder.feed(b"\n\ndata: c\n\n")
    assert raised.value.events == []


@pytest.mark.parametrize("before", [b"", b"data: z\n\n", b"\n"])
@pytest.mark.parametrize(
    ("event", "size"),
    [
        (b"data: ab\n\n", 10),
        (b"event: x\ndata: ab\n\n", 19),
        (b"data:ab\n\n", 9),
        (b"data: ab\r\n\r\n", 11),  # the blank line ends with its CR
        (b"data: a\ndata: b\n\n", 17),
        (b"data: abcdef", 12),  # a line without its end
        (b"data: ab\ndata: cdef", 19),
    ],
)
def test_an_event_may_have_as_many_bytes_as_the_bound_and_no_more(
    before: bytes, event: bytes, size: int
) -> None:
    stream = before + event
    for cut in (1, 3, 1000):
        pieces = [stream[i : i + cut] for i in range(0, len(stream), cut)]
        assert not bounded(pieces, size)[1], cut
        assert bounded(pieces, size - 1)[1], cut


def test_the_bound_counts_a_bom() -> None:
    assert SseDecoder(max_event_bytes=4).feed(b"\xef\xbb\xbf\n") == []
    with pytest.raises(SseError):
        SseDecoder(max_event_bytes=3).feed(b"\xef\xbb\xbf\n")


def test_a_comment_counts_for_itself_before_an_event_and_with_it_inside() -> None:
    for pieces in ([b":data\n" * 3], [b":d", b"ata\n:data\n", b":data\n"]):
        assert bounded(pieces, 5) == ([], False)
        assert bounded(pieces, 4) == ([], True)
    assert bounded([b"data: a\n:b\n\n"], 10) == ([], True)
    assert bounded([b":longer\n:a\n"], 6) == ([], True)
    (event,), failed = bounded([b":12345", b"6\n", b"data: x\n\n"], 12)
    assert (event.data, failed) == (b"x", False)


def bounded(pieces: list[bytes], bound: int) -> tuple[list[SseEvent], bool]:
    decoder, events = SseDecoder(bound), []
    for piece in pieces:
        try:
            events += decoder.feed(piece)
        except SseError as e:
            return events + e.events, True
    return events, False


@given(st.data(), st.integers(1, 40))
def test_the_bound_holds_alike_for_any_split(data: st.DataObject, bound: int) -> None:
    stream = data.draw(streams())
    assert bounded(data.draw(cuts(stream)), bound) == bounded([stream], bound)


LONG = b"x" * 1_000_000


@pytest.mark.parametrize("piece", [1 << 30, 999_983, 65_537, 16_384, 3_001])
@pytest.mark.parametrize(
    "begin", [b"data: ", b"data:", b"event: a\nid: 1\ndata: ", b"\xef\xbb\xbfid: 1\ndata: "]
)
def test_a_long_document_is_read_alike_however_it_is_split(begin: bytes, piece: int) -> None:
    stream = begin + LONG * 3 + b"\r\ndata: y\n\n" + b"data: b\n\n" + begin + LONG * 2 + b"\n\n"
    decoder = SseDecoder(long_data=True)
    found = [e for at in range(0, len(stream), piece) for e in decoder.feed(stream[at : at + piece])]
    assert [(e.data, e.end, e.event) for e in found] == [
        (LONG * 3 + b"\ny", len(begin) + 3_000_011, b"a" * (begin[:5] == b"event")),
        (b"b", len(begin) + 3_000_020, b""),
        (LONG * 2, 2 * len(begin) + 5_000_022, b"a" * (begin[:5] == b"event")),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
def test_a_long_document_may_come_with_its_fields_name_in_pieces(size: int) -> None:
    decoder = SseDecoder(long_data=True)
    begin = b"data: "
    pieces = [begin[at : at + size] for at in range(0, len(begin), size)]
    events = [e for piece in [*pieces, LONG, LONG, b"\n", b"\n"] for e in decoder.feed(piece)]
    assert [(e.data, e.end) for e in events] == [(LONG * 2, 2_000_008)]


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (b"data: " + LONG * 8, "has more than 7 MiB in one JSON document"),
        (b"data: " + b"," * 1_000_001, "has more than 1,000,000 JSON values"),
        (b"id: " + LONG * 2, "an event of more than 1048576 bytes began at byte 0"),
        (b"data: y\ndata: " + LONG * 2, "an event of more than 1048576 bytes"),
        (b"data: " + LONG * 2 + b"\n" + b"data: x\n" * 140_000, "an event of more than 1048576 bytes"),
        (b"data: " + LONG * 2 + b"\n" + b"data: " + LONG * 2, "an event of more than 1048576 bytes"),
    ],
)
@pytest.mark.parametrize("piece", [16_384, 1 << 30])
def test_no_more_than_one_long_document_makes_an_event(stream: bytes, what: str, piece: int) -> None:
    decoder = SseDecoder(long_data=True)
    pieces = (stream[at : at + piece] for at in range(0, len(stream), piece))
    with pytest.raises(SseError, match=what):
        list(map(decoder.feed, pieces))
    with pytest.raises(SseError, match=what):
        decoder.feed(b"\n\ndata: a\n\n")


# --- Runs of events: what belongs to one, and where it ends


TEMPLATE = EventTemplate(CHAT.read_events, Pieces(), b'{"t":"', b'"}')


def event(text: str, dialect: Dialect = CHAT, field: str = "content", **more: object) -> bytes:
    held = {"delta": {field: text}} if dialect is CHAT else {"text": text}
    document = {"model": "m", "choices": [{"index": 0, **held}], **more}
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def after(*events: bytes, dialect: Dialect = CHAT) -> tuple[ReplyReader, int]:
    """A reader of these events, and where the next one starts."""
    decoder, reader = SseDecoder(), ReplyReader(dialect)
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
    found, ends = TEMPLATE.read(body, 6, 1000)
    assert [text.decode() for text in found] == texts
    assert [body[:end].endswith(b'"}\n\n') for end in ends] == [True] * len(texts)


def test_a_text_that_is_no_utf_8_by_itself_ends_a_run() -> None:
    """Two halves of a character in two events are none, though they are one when joined."""
    halves = "é".encode()
    body = b"".join(b'data: {"t":"%b"}\n\n' % text for text in (b"a", halves[:1], halves[1:]))
    assert TEMPLATE.read(body, 0, 1000)[0] == [b"a"]


def test_no_more_events_are_read_than_are_asked_for() -> None:
    assert TEMPLATE.read(b'data: {"t":"a"}\n\n' * 9, 0, 4)[0] == [b"a"] * 4


@pytest.mark.parametrize(
    "data",
    [b'{"t":\n"a"}', b'{"t":"a",\r"u":1}', b'{"t":"a","u":"%b"}' % (b"x" * 5000), b'{"t":"\\u0061"}'],
    ids=["line feed", "carriage return", "long", "escaped"],
)
def test_an_event_whose_text_is_not_found_for_sure_begins_no_run(data: bytes) -> None:
    assert template_of(CHAT.read_events, data, "a", Pieces(), lambda each: json.loads(each)["t"]) is None


@pytest.mark.parametrize("data", [b'{"t":"a","u":"a"}', b'{"u":"a","t":"a"}'], ids=["first", "last"])
def test_the_text_is_found_among_others_like_it(data: bytes) -> None:
    template = template_of(CHAT.read_events, data, "a", Pieces(), lambda each: json.loads(each)["t"])
    assert template is not None
    changed = data.replace(b'"t":"a"', b'"t":"b"')
    assert template.fits(changed)
    assert not template.fits(data.replace(b'"u":"a"', b'"u":"b"'))


@pytest.mark.parametrize(
    ("dialect", "field"),
    [(CHAT, "content"), (CHAT, "reasoning"), (CHAT, "reasoning_content"), (COMPLETIONS, "")],
)
def test_a_reader_reads_runs_of_its_own_events(dialect: Dialect, field: str) -> None:
    reader, start = after(event("a", dialect, field), event("b", dialect, field), dialect=dialect)
    body = event("c", dialect, field) + event("d", dialect, field) + event("e", dialect, field, usage=None)
    whole = len(event("c", dialect, field))
    assert reader.read_alike(b"x" + body, 1, start, 100) == (2, 2 * whole)
    assert reader.last_event_end == start + 2 * whole == reader.token_ends[-1]
    reply = reader.finish()
    assert reply.text + reply.reasoning == "abcd"
    assert reader.read_alike(body, 0, start, 0) == (0, 0)


def test_a_run_goes_on_after_an_event_between() -> None:
    reader, _ = after(event("a"), event("b"), event("c", created=2), event("d"), event("d"))
    assert reader.read_alike(event("e"), 0, 1000, 100)[0] == 1


def test_events_with_counts_or_without_a_model_begin_no_run() -> None:
    for events in (
        [event("a"), event("b", usage={"completion_tokens": 2})],
        [event("a", model=None), event("b", model=None)],
        [event("a")],
    ):
        reader, start = after(*events)
        assert reader.read_alike(events[-1], 0, start, 100) == (0, 0)


def test_what_is_skipped_moves_the_ends_of_later_events() -> None:
    decoder = SseDecoder()
    decoder.feed(event("a"))
    decoder.skip(100)
    assert decoder.feed(event("b"))[0].end == 2 * len(event("a")) + 100
    decoder.feed(b"data: be")
    assert decoder.between_events is None
