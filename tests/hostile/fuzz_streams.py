"""Fuzzers of what a server sends: event streams, and HTTP responses with chunks."""

from dataclasses import dataclass

import h11
from fuzz_target import Target, chance_of, check_line, cut, places_of
from reads import read

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.errors import ResponseError
from llm_locust.client.http.exchange import Exchange
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.sse import SseDecoder, SseError, SseEvent

# -- event streams -------------------------------------------------------------------------


def events_of_standard(data: bytes) -> list[SseEvent]:
    """The events of a whole stream, byte by byte as WHATWG HTML, 9.2.6 tells it, slowly.

    An event whose data is empty is none here: the standard dispatches one whose data lines are all empty
    if there are two of them or more, and then its data is line ends alone, which stay.
    """
    events, values, kind, line = list[SseEvent](), list[bytes](), b"", bytearray()
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    while at < len(data):
        byte = data[at : at + 1]
        at += 1
        if byte not in (b"\n", b"\r"):
            line += byte
            continue
        end = at
        if byte == b"\r" and data[at : at + 1] == b"\n":
            at += 1
        if not line:
            if text := b"\n".join(values):
                events.append(SseEvent(text, end, kind))
            values, kind = [], b""
        elif not line.startswith(b":"):
            field, _, value = bytes(line).partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                values.append(value)
            elif field == b"event":
                kind = value
        line.clear()
    return events


@dataclass(frozen=True, slots=True)
class Read:
    """What a decoder made of a stream: its events, and whether a bound ended it."""

    events: list[SseEvent]
    ended: bool


def read_events(pieces: list[bytes], bound: int = 1 << 20) -> Read:
    decoder, events = SseDecoder(max_event_bytes=bound), list[SseEvent]()
    for piece in pieces:
        try:
            events += decoder.feed(piece)
        except SseError as e:
            return Read(events + e.events, True)
    return Read(events, False)


def check_events(data: bytes, places: list[int], bound: int) -> None:
    """However a stream is split, its events are those of the standard; a bound ends it at the same one."""
    expected = events_of_standard(data)
    by_bytes = [data[at : at + 1] for at in range(len(data))]
    splits = ([data], cut(data, places), by_bytes)
    for pieces in splits:
        assert read_events(pieces).events == expected
    bounded = [read_events(pieces, bound) for pieces in splits]
    assert bounded[0] == bounded[1] == bounded[2]
    assert bounded[0].events == expected[: len(bounded[0].events)]
    assert bounded[0].ended or len(bounded[0].events) == len(expected)


def check_reply(data: bytes, endpoint: Dialect, *, streamed: bool) -> None:
    """Any body is a reply whose text can be encoded, with tokens in order."""
    exchange = Exchange()
    decoder = BodyDecoder(exchange, endpoint, streamed=streamed)
    exchange.on_reads(*read(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data))
    reply = decoder.finish()
    assert list(reply.token_ends) == sorted(reply.token_ends)
    reply.text.encode()
    exchange.release()


def _sse(case: bytes) -> None:
    chance = chance_of(case)
    check_events(case, places_of(case), chance.choice((1, 3, 8, 20, 60)))
    check_reply(case, chance.choice(list(DIALECTS.values())), streamed=chance.random() < 0.8)


_DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'

SSE = Target(
    "sse",
    _sse,
    (
        *(b"\n", b"\r", b"\r\n", b"\n\n", b"\n" * 9, b"\r" * 9, b"\r\n" * 9, b"\n\r" * 9, b"\r\r\n" * 5),
        *(b":", b": ping\n", b":\n" * 9, b"data", b"data:", b"data: ", b"data: x", b"data:x\n\n", b"data\n"),
        *(b"data: \n\n", b"event: error\n", b"event:", b"id: 1\n", b"retry: 1\n", b" ", b"x", b"\xef\xbb"),
        *(b'data: {"choices":[{"delta":{"content":"a"}}]}', b"data: [DONE]\n\n", b'{"choices":[]}', b"[[[["),
        *(b"}", b'"', b"\\ud800", b'"delta":null', b'"index":-1', b'"type":"content_block_delta"', b"1e999"),
        *(b'"usage":{"completion_tokens":', b'"tool_calls":[{"function":{"arguments":{}}}]', b"NaN", b"\0"),
    ),
    (
        b": ping\n\n" + _DELTA * 3 + _USAGE + b"data: [DONE]\n\n",
        (b"\xef\xbb\xbf" + _DELTA + b"data: [DONE]\n\n").replace(b"\n", b"\r\n"),
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":3}}}\n\n'
        b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
        b'data: {"type":"response.completed","response":{"usage":{"output_tokens":1}}}\n\n',
        b'data: {"choices":[{"text":"a"}]}\r\rdata: {"choices":[{"text":"b"}]}\r\r',
        b'{"choices":[{"message":{"content":"a"}}],"usage":{"completion_tokens":1}}',
    ),
)

# -- responses -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Response:
    """What an exchange made of a response's bytes."""

    status: int | None
    headers: dict[bytes, bytes]
    body: bytes
    complete: bool
    refused: bool


def read_response(pieces: list[bytes], drained_every: int = 1 << 20) -> Response:
    exchange, slices, refused = Exchange(), list[bytes](), False
    exchange.on_slice = slices.append
    total = 0
    try:
        for n, piece in enumerate(pieces, 1):
            exchange.on_reads(*read(piece, n))
            total += len(piece)
            if exchange.complete:
                break
            if n % drained_every == 0:
                exchange.drain()
        else:
            exchange.on_eof()
    except ResponseError as e:
        refused = True
        check_line(e)
    exchange.drain()
    body, ends = b"".join(slices), exchange.reads.columns()[:, 0]
    assert (ends[1:] >= ends[:-1]).all()
    assert not len(ends) or ends[-1] == len(body)
    assert exchange.headers_at is None or 0 <= exchange.headers_at < exchange.read_count
    assert not exchange.complete or exchange.status is not None
    assert refused or exchange.complete or exchange.bytes_received == total
    # Of a head that has not ended, the parser gives the fields that it has: more with each read.
    headers = {} if exchange.status is None else exchange.headers
    found = Response(exchange.status, headers, body, exchange.complete, refused)
    exchange.release()
    return found


def read_by_h11(data: bytes) -> Response | None:
    """The response as h11 reads it; None where it does not take it as a whole one."""
    peer, body, head = h11.Connection(h11.CLIENT), list[bytes](), None
    peer.send(h11.Request(method="POST", target="/", headers=[("Host", "h"), ("Content-Length", "0")]))
    peer.send(h11.EndOfMessage())
    try:
        for given in (data, b""):
            peer.receive_data(given)
            while not isinstance(event := peer.next_event(), type) and not isinstance(
                event, h11.ConnectionClosed
            ):
                if isinstance(event, h11.Response):
                    head = event
                elif isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage) and head is not None:
                    return Response(head.status_code, dict(head.headers), b"".join(body), True, False)
    except h11.RemoteProtocolError:
        return None
    return None


def check_response(data: bytes, places: list[int]) -> None:
    """However a response is split, it is the same; and where h11 reads a whole one too, that is the same."""
    whole = read_response([data])
    assert read_response(cut(data, places)) == whole
    assert read_response([data[at : at + 1] for at in range(len(data))], drained_every=3) == whole
    other = read_by_h11(data)
    if other is not None and whole.complete:
        assert (whole.status, whole.body) == (other.status, other.body)
        assert _compared(whole.headers) == _compared(other.headers)


def _compared(headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """h11 writes the one transfer encoding that it knows in lower case."""
    return {k: v.strip().lower() if k == b"transfer-encoding" else v.strip() for k, v in headers.items()}


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunks(case: bytes) -> None:
    check_response(case, places_of(case))
    check_response(HEAD + case, [len(HEAD) + place for place in places_of(case)])


CHUNKS = Target(
    "chunks",
    _chunks,
    (
        *(b"0\r\n\r\n", b"0\r\n", b"1\r\nx\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"5;a=b\r\nhello\r\n"),
        *(
            b"\r\n",
            b"\n",
            b"\r",
            b";",
            b"A: b\r\n",
            b"g\r\n",
            b"7\r\ndata:x\n\r\n",
            b"1\r\n\n\r\n",
            b"0x1\r\n",
        ),
        *(
            b" 1\r\nx\r\n",
            b"1 \r\nx\r\n",
            b"+1\r\n",
            b"00000000000000000001\r\nx\r\n",
            b'1;a="\r\n"\r\nx\r\n',
        ),
        *(
            b"HTTP/1.1 ",
            b"HTTP/1.0 ",
            b"HTTP/2 ",
            b"200 OK\r\n",
            b"100 Continue\r\n\r\n",
            b"204 \r\n",
            b"101 ",
        ),
        *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length:"),
        *(
            b"Transfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: gzip, chunked\r\n",
            b"Connection: close\r\n",
        ),
        *(
            b"Transfer-Encoding : chunked\r\n",
            b"Content-Encoding: gzip\r\n",
            b" folded\r\n",
            b"Upgrade: h2c\r\n",
        ),
        *(b"Connection: upgrade\r\n", b": x\r\n", b"X\r\n", b"hello", b"Trailer: A\r\n"),
    ),
    (
        HEAD + b"7\r\ndata:x\n\r\n1\r\n\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nuntil the end",
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n",
    ),
)
