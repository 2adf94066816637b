"""Fuzzers of what reads a server's bytes; ``make fuzz`` runs them for long.

Every seed that once failed stands here as an example.
"""

from contextlib import suppress
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.errors import ResponseError
from llm_locust.client.exchange import Exchange
from llm_locust.wire.reply import Endpoint
from llm_locust.wire.sse import SseDecoder, SseError, SseEvent

#: What streams are made of, and what breaks them; runs are longer than those that are skipped at once.
PIECES = st.sampled_from(
    [
        *(b"\n", b"\r", b"\r\n", b"\n\n", b"\n" * 9, b"\r" * 9, b"\r\n" * 9, b"\n\r" * 9, b"\r\r\n" * 5),
        *(
            b":",
            b": ping\n",
            b":\n" * 9,
            b"data",
            b"data: x",
            b"data:x\n\n",
            b"data: \n\n",
            b"event: error\n",
        ),
        *(
            b"id: 1\n",
            b"\xef\xbb\xbf",
            b"\xef\xbb",
            b"\x00",
            b"\xff",
            b'data: {"choices":[{"delta":{"content":"a"}}]}',
        ),
        *(b"data: [DONE]\n\n", b'{"choices":[]}', b"[[[[", b"}", b'"'),
    ]
)
STREAMS = st.lists(PIECES | st.binary(max_size=6), max_size=30).map(b"".join)
PLACES = st.lists(st.integers(0, 400), max_size=10)

CHUNKS = st.sampled_from(
    [
        *(b"0\r\n\r\n", b"0\r\n", b"1\r\nx\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"5;a=b\r\nhello\r\n"),
        *(
            b"\r\n",
            b"\n",
            b";",
            b"A: b\r\n",
            b"g\r\n",
            b"7\r\ndata:x\n\r\n",
            b"1\r\n\n\r\n",
            b" 1\r\nx\r\n",
            b"1 \r\nx\r\n",
        ),
    ]
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places} - {0, len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def events_of(pieces: list[bytes]) -> list[SseEvent]:
    decoder, events = SseDecoder(max_event_bytes=1 << 20), list[SseEvent]()
    for piece in pieces:
        events += decoder.feed(piece)
    return events


@given(data=STREAMS, places=PLACES)
@example(data=b"\n" * 9 + b"data: x\n\n", places=[])
@example(data=b"data: x\r" + b"\r" * 9 + b"\ndata: y\n\n", places=[8])
@example(data=b":\r" * 9 + b"\ndata: x\n\n", places=[18])
@example(data=b"\xef\xbb\xbf" + b"\n" * 9 + b"data: x\n\n", places=[3])
@example(data=b"\n" * 9 + b"\xef\xbb\xbfdata: x\n\n", places=[])
@example(data=b"data: x\n" + b"\n\r" * 9 + b"data: y\n\n", places=[9, 10])
def test_fuzz_a_stream_has_the_same_events_however_it_is_split(data: bytes, places: list[int]) -> None:
    by_bytes = events_of([data[at : at + 1] for at in range(len(data))])
    assert events_of(cut(data, places)) == events_of([data]) == by_bytes


@given(data=STREAMS, places=PLACES, bound=st.integers(8, 40))
def test_fuzz_a_bound_of_events_ends_the_stream_or_changes_nothing(
    data: bytes, places: list[int], bound: int
) -> None:
    decoder, events = SseDecoder(max_event_bytes=bound), list[SseEvent]()
    try:
        for piece in cut(data, places):
            events += decoder.feed(piece)
    except SseError as e:
        events += e.events
    assert events == events_of([data])[: len(events)]


@given(body=st.lists(CHUNKS | st.binary(max_size=4), max_size=20).map(b"".join), places=PLACES)
@example(body=b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n", places=[1, 2, 3])
@example(body=b"fffffffffffffffff\r\n", places=[])
def test_fuzz_chunks_have_the_same_body_however_they_are_split(body: bytes, places: list[int]) -> None:
    def read(pieces: list[bytes]) -> tuple[bytes, bool]:
        exchange, slices = Exchange(), list[bytes]()
        exchange.on_slice = slices.append
        with suppress(ResponseError):
            for piece in pieces:
                exchange.on_read(piece, [], 1)
                if exchange.complete:
                    break
        exchange.drain()
        return b"".join(slices), exchange.complete

    assert read(cut(HEAD + body, places)) == read([HEAD + body])


@given(endpoint=st.sampled_from(Endpoint), streamed=st.booleans(), data=STREAMS)
@example(endpoint=Endpoint.CHAT, streamed=False, data=b"[" * 5_000)
@example(endpoint=Endpoint.MESSAGES, streamed=True, data=b'data: {"type":"content_block_delta"}\n\n')
def test_fuzz_any_body_is_a_reply(endpoint: Endpoint, streamed: bool, data: bytes) -> None:
    exchange = Exchange()
    decoder = BodyDecoder(exchange, endpoint, streamed=streamed)
    exchange.on_read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data, [], 1)
    reply = decoder.finish()
    assert list(reply.token_ends) == sorted(reply.token_ends)
    reply.text.encode()
    exchange.release()
