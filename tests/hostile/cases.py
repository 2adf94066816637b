"""What a hostile server sends, as data: a name, its bytes, and how the call must end.

The table is made by crossing a few things that a server can do without end (blank lines, header fields,
chunk extensions, empty events, ...) with where and how it does them.
"""

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from scripted import chunk, last_chunk

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES

MIB = 1 << 20

OK = b"HTTP/1.1 200 OK\r\n"
SSE = b"Content-Type: text/event-stream\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
UNTIL_END = b"\r\n"

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"t"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile answer.

    Attributes:
        parts: its bytes, as pieces and how often each is sent; then the server hangs up.
        outcomes: how the call may end.
        error: a part of the record's error text.
        tokens: token events that the record must have, at least.
        streamed: a stream was asked for.
        endpoint: the API that was asked.
        max_answer_bytes: the client's bound.
    """

    name: str
    parts: "Sequence[Part]" = field(repr=False)
    outcomes: tuple[str, ...]
    error: str = ""
    tokens: int = 0
    streamed: bool = True
    endpoint: Dialect = CHAT
    max_answer_bytes: int = 64 * MIB


#: Bytes, and how often they are sent.
Part = tuple[bytes, int]


def once(*pieces: bytes) -> list[Part]:
    return [(piece, 1) for piece in pieces]


def repeated(unit: bytes, size: int) -> list[Part]:
    """So many bytes of one unit, sent in pieces of some 60 kB."""
    block = unit * max(1, 60_000 // len(unit))
    return [(block, max(1, size // len(block)))]


def framed(body: Sequence[Part], how: str, head: bytes = OK + SSE) -> list[Part]:
    """A response with this body: in chunks, with a length, or until the connection's end."""
    match how:
        case "chunks":
            chunks = [(chunk(piece), count) for piece, count in body]
            return [(head + CHUNKED, 1), *chunks, (last_chunk(), 1)]
        case "length":
            size = sum(len(piece) * count for piece, count in body)
            return [(head + b"Content-Length: %d\r\n\r\n" % size, 1), *body]
    return [(head + UNTIL_END, 1), *body]


FRAMINGS = ("chunks", "length", "end")

#: Bytes that mean nothing in an event stream.
NOTHING = {
    "LF": b"\n",
    "CR": b"\r",
    "CRLF": b"\r\n",
    "comments": b":\n",
    "long comments": b": keep-alive\r\n",
    "unknown fields": b"a\n",
    "unknown events": b"a: b\n\n",
    "ids": b"id: 1\n\n",
    "retries": b"retry: 1\n\n",
    "empty data": b"data\n\n",
    "event names": b"event: x\n\n",
}

#: Payloads that are none, or that are large inside.
PAYLOADS = {
    "not JSON": b"x",
    "a number": b"1",
    "an empty object": b"{}",
    "a list": b"[]",
    "null": b"null",
    "NaN": b'{"choices":[{"index":0,"logprobs":NaN}]}',
    "deep lists": b"[" * 5_000,
    "deep objects": b'{"a":' * 5_000,
    "a deep choice": b'{"choices":' + b"[" * 900 + b"]" * 900 + b"}",
    "invalid UTF-8": b'{"choices":[{"delta":{"content":"\xff\xfe\xc3"}}]}',
    "NUL bytes": b'{"choices":[{"delta":{"content":"\x00\x00"}}]}',
    "half a surrogate": b'{"choices":[{"delta":{"content":"\\ud83d"}}]}',
    "content of numbers": b'{"choices":[{"delta":{"content":12}}]}',
    "content of objects": b'{"choices":[{"delta":{"content":{"a":1}}}]}',
    "choices of text": b'{"choices":"no"}',
    "choices of numbers": b'{"choices":[1,2,3]}',
    "many choices": b'{"choices":[' + b",".join([b"{}"] * 20_000) + b"]}",
    "many tool calls": b'{"choices":[{"delta":{"tool_calls":[' + b",".join([b"{}"] * 20_000) + b"]}}]}",
    "many parts": b'{"choices":[{"delta":{"content":[' + b",".join([b'{"text":"a"}'] * 10_000) + b"]}}]}",
    "a large usage": b'{"choices":[],"usage":{"a":[' + b",".join([b"0"] * 50_000) + b"]}}",
    "a negative usage": b'{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":-9}}',
    "a huge usage": b'{"choices":[],"usage":{"prompt_tokens":1e308,"n":' + b"9" * 4_000 + b"}}",
    "a negative index": b'{"choices":[{"index":-5,"delta":{"content":"a"}}]}',
    "a huge index": b'{"choices":[{"index":' + b"9" * 300 + b',"delta":{"content":"a"}}]}',
    "a duplicate key": b'{"choices":[],"choices":[{"delta":{"content":"a"}}],"choices":7}',
    "an error of lists": b'{"error":[[[[]]]]}',
    "a deep error": b'{"error":' * 200 + b'"x"' + b"}" * 200,
}

#: JSON values that take long to read, each just within the bounds of one document.
DEAR = {
    "objects": b"[" + b",".join(b'{"%05x":1e5}' % n for n in range(19_990)) + b"]",
    "keys": b"{" + b",".join(b'"%05x":1.5' % n for n in range(29_990)) + b"}",
    "lists": b"[" + b"[0]," * 19_900 + b"0]",
    "escapes": b'"' + b"\\n" * 500_000 + b'"',
    "escaped characters": b'"' + b"\\u4e2d" * 170_000 + b'"',
    "long integers": b"[" + b",".join([b"9" * 100] * 10_000) + b"]",
    "blanks": b" " * 1_000_000 + b"1",
    "no UTF-8": b'"' + b"\xff" * 1_000_000 + b'"',
    "infinite numbers": b"[" + b",".join([b"NaN"] * 29_000) + b"]",
    "lone surrogates": b'"' + b"\\ud800" * 21_000 + b'"',
}

#: Whole answers near the bound of one document, in which one thing comes again and again.
DEAR_BODIES = {
    "numbers": (b'{"choices":[],"x":[', b"1,", b"1]}"),
    "skipped lists": (b'{"choices":[],"x":[', b"[],", b"1]}"),
    "skipped text": (b'{"choices":[],"x":"', "é中".encode(), b'"}'),
    "skipped escapes": (b'{"choices":[],"x":"', b"\\n", b'"}'),
    "skipped log probabilities": (b'{"choices":[],"x":{', b'"token":1,', b'"logprob":1}}'),
    "choices again": (b"{", b'"choices":[{}],', b'"x":1}'),
    "rare choices again": (b"{", b'"choices":[{}],' + b" " * 300, b'"x":1}'),
    "spelt-out choices": (b"{", b'"choice\\u0073":[{}],', b'"x":1}'),
    "models": (b'{"choices":[],', b'"model":"a",', b'"x":1}'),
    "usages": (b'{"choices":[],', b'"usage":{},', b'"x":1}'),
    "escaped content": (b'{"choices":[{"message":{"content":"', b"\\u00e9", b'"}}]}'),
    "long content": (b'{"choices":[{"message":{"content":"', "é中".encode(), b'"}}]}'),
    "messages": (b'{"choices":[{', b'"message":{"content":""},', b'"index":0}]}'),
    "tool calls": (b'{"choices":[{"message":{', b'"tool_calls":[{},{}],', b'"x":1}}]}'),
    "1,000 tool calls": (b'{"choices":[{"message":{"tool_calls":[', b"{},", b"{}]}}]}"),
    "short names": (b'{"choices":[],"x":{', b'"a":1,', b'"a":1}}'),
    "lists in objects": (b'{"choices":[],"x":[', b'{"a":[1]},', b"1]}"),
    "negative names": (b'{"choices":[{', b'"index":-1,', b'"index":0}]}'),
    "negative messages": (b'{"choices":[{', b'"text":-1,' + b" " * 60, b'"index":0}]}'),
    "a long model": (b'{"choices":[],"model":"', "é中".encode(), b'"}'),
    "a long finish reason": (b'{"choices":[{"finish_reason":"', "é中".encode(), b'"}]}'),
    "a long number": (b'{"choices":[],"usage":{"prompt_tokens":', b"9", b"}}"),
    "a long fraction": (b'{"choices":[],"usage":{"prompt_tokens":0.', b"9", b"}}"),
    "a long name": (b'{"choices":[],"', b"n", b'":1}'),
}

#: The same of the responses API: as a whole answer and as the event that ends one.
DEAR_RESPONSES = {
    "skipped text": (b'"x":"', "é中".encode(), b'"'),
    "skipped log probabilities": (b'"x":{', b'"token":1,', b'"logprob":1}'),
    "a long model": (b'"model":"', "é中".encode(), b'"'),
    "a long status": (b'"status":"', "é中".encode(), b'"'),
    "a long fraction": (b'"usage":{"input_tokens":0.', b"9", b"}"),
    "rare usages again": (b"", b'"usage":{},' + b" " * 300, b'"x":1'),
    "rare outputs again": (b"", b'"output":[{}],' + b" " * 300, b'"x":1'),
    "rare parts again": (b'"output":[{', b'"content":[{"text":""}],' + b" " * 600, b'"x":1}]'),
    "long text": (b'"output":[{"content":[{"text":"', "é中".encode(), b'"}]}]'),
    "items": (b'"output":[', b"{},", b"{}]"),
}

#: Where in a payload they may stand.
PLACES = {
    "usage": b'{"choices":[],"usage":%b}',
    "error": b'{"error":%b}',
    "content": b'{"choices":[{"delta":{"content":%b}}]}',
    "arguments": b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":%b}}]}}]}',
}

#: Heads that are none, or have no end.
HEADS: dict[str, Sequence[Part]] = {
    "no HTTP": once(b"\x00\x01\x02" * 100),
    "another protocol": once(b"SSH-2.0-OpenSSH_9.7\r\n"),
    "TLS": once(b"\x15\x03\x01\x00\x02\x02\x28"),
    "HTTP/2": once(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a status of text": once(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a negative status": once(b"HTTP/1.1 -200 OK\r\n\r\n"),
    "a long status": once(b"HTTP/1.1 20000000000000000000 OK\r\n\r\n"),
    "a NUL in a name": once(OK + b"A\x00B: c\r\n\r\n"),
    "a NUL in a value": once(OK + b"A: \x00\r\n\r\n"),
    "a name without end": [(OK, 1), (b"x", 2 * MIB)],
    "a value without end": [(OK + b"A: ", 1), (b"x", 2 * MIB)],
    "a reason without end": [(b"HTTP/1.1 200 ", 1), (b"x", 2 * MIB)],
    "a version without end": [(b"HTTP/1.", 1), (b"1", 2 * MIB)],
    "HTTP/0.9": once(TOKEN, STOP),
    "a length that is less": once(OK + SSE + b"Content-Length: 5\r\n\r\n", TOKEN, STOP),
    "a length that is more": once(OK + SSE + b"Content-Length: 9000000000000000000\r\n\r\n", TOKEN),
    "a redirect to a file": once(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"),
    "a space before the colon": once(OK + b"Content-Length : 5\r\n\r\nhello"),
    "a folded value": once(OK + b"A: b\r\n c\r\n\r\n"),
    "fields without end": [(OK, 1), *repeated(b"A: b\r\n", 2 * MIB)],
    "1,001 fields": once(OK + b"A: b\r\n" * 1001 + b"\r\n"),
    "100s without end": repeated(b"HTTP/1.1 100 Continue\r\n\r\n", 2 * MIB),
    "103s without end": repeated(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 2 * MIB),
    "a protocol change": once(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "two lengths": once(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "a length and chunks": once(OK + b"Content-Length: 5\r\n" + CHUNKED + chunk(b"hello") + last_chunk()),
    "a negative length": once(OK + b"Content-Length: -5\r\n\r\nhello"),
    "a huge length": once(OK + b"Content-Length: " + b"9" * 40 + b"\r\n\r\nhello"),
    "a length of hex": once(OK + b"Content-Length: 0x10\r\n\r\nhello"),
    "a length with a plus": once(OK + b"Content-Length: +5\r\n\r\nhello"),
}

#: Chunked bodies that are none, or have no end.
CHUNKS: dict[str, Sequence[Part]] = {
    "a negative size": once(b"-1\r\nx\r\n"),
    "a size of text": once(b"zz\r\nx\r\n"),
    "a huge size": once(b"f" * 40 + b"\r\nx"),
    **{f"a size of {size}": once(b"%x\r\nx" % size) for size in (2**63 - 1, 2**63, 2**64, 2**64 + 1)},
    "a size without end": [(b"0", 2 * MIB)],
    "an empty size": once(b"\r\nx\r\n"),
    "no line end after a chunk": once(b"1\r\nxx\r\n"),
    "an extension without end": [(b"1;", 1), (b"x", 2 * MIB)],
    "trailers without end": [(b"0\r\n", 1), *repeated(b"A: b\r\n", 2 * MIB)],
    "a trailer without end": [(b"0\r\nA: ", 1), (b"x", 2 * MIB)],
}


def cases() -> Iterator[Case]:
    yield from _nothing()
    yield from _payloads()
    yield from _dear()
    yield from _framing()
    yield from _large()
    yield from _refusals()


def _nothing() -> Iterator[Case]:
    for name, unit in NOTHING.items():
        # A little less than the bound of an event, unknown fields being one; then more than it.
        body = [*repeated(unit, MIB - 1000), *once(b"\n\n", TOKEN, STOP)]
        yield Case(f"{name} before a token", framed(body, "chunks"), ("ok",), tokens=1)
        body = [*once(TOKEN), *repeated(unit, MIB + MIB // 16)]
        yield Case(f"{name} after a token", framed(body, "chunks"), ("truncated", "invalid"), tokens=1)
    for how in FRAMINGS:  # which changes nothing after its bytes have been read
        body = [*repeated(NOTHING["comments"], MIB // 4), *once(b"\n\n", TOKEN, STOP)]
        yield Case(f"comments before a token, {how}", framed(body, how), ("ok",), tokens=1)


def _payloads() -> Iterator[Case]:
    for name, payload in PAYLOADS.items():
        event = b"data: " + payload + b"\n\n"
        ends = ("ok", "invalid", "api_error")
        yield Case(f"{name}, then a token", framed(once(event, TOKEN, STOP), "chunks"), ends)
        many = [*repeated(event, 256 << 10), *once(TOKEN)]
        yield Case(f"{name} again and again", framed(many, "end"), ("truncated", "invalid", "api_error"))
        refused = ("truncated", "invalid", "api_error", "empty")
        yield Case(f"{name} as a body", framed(once(payload), "length", OK + JSON), refused, streamed=False)


def _dear() -> Iterator[Case]:
    for (name, value), (place, payload) in product(DEAR.items(), PLACES.items()):
        event = b"data: " + payload % value + b"\n\n"
        ends = ("ok", "invalid", "api_error")
        yield Case(f"dear {name} as {place}", framed(once(event, TOKEN, STOP), "chunks"), ends)
    for name, value in DEAR.items():
        body = framed(once(PLACES["usage"] % value), "length", OK + JSON)
        yield Case(f"a body of dear {name}", body, ("invalid", "empty"), streamed=False)


def _framing() -> Iterator[Case]:
    for name, head in HEADS.items():
        yield Case(f"head: {name}", head, ("invalid", "truncated", "connect_error"))
    begun = OK + SSE + CHUNKED + chunk(TOKEN)
    for name, body in CHUNKS.items():
        yield Case(f"chunks: {name}", [(begun, 1), *body], ("invalid", "truncated"), tokens=1)
    tiny = b"".join(chunk(bytes([byte])) for byte in TOKEN)
    yield Case("chunks of one byte", [(OK + SSE + CHUNKED, 1), (tiny, 2_000)], ("truncated",), tokens=2_000)


def _large() -> Iterator[Case]:
    too_long = "began at byte"
    for name, body in {
        "a line": [*once(b"data: "), (b"x", 20 * MIB)],
        "a field": [(b"x", 20 * MIB)],
        "an event": repeated(b"data: x\n", 8 * MIB),
        "a zero byte": [(b"\0", 20 * MIB)],
    }.items():
        yield Case(f"{name} without end", framed(body, "end"), ("invalid",), too_long)
    many = "200,000 events"
    deltas = repeated(b'data: {"choices":[{"delta":{}}]}\n\n', 12 * MIB)
    yield Case("empty deltas without end", framed(deltas, "end"), ("invalid",), many)
    tokens = framed(repeated(TOKEN, 18 * MIB), "end")
    yield Case("tokens without end", tokens, ("invalid",), many, tokens=200_000)
    for what, (begin, end) in {
        "content": (b'"content":"', b'"'),
        "arguments": (b'"tool_calls":[{"index":0,"function":{"arguments":"', b'"}}]'),
    }.items():
        event = [
            *once(b'data: {"choices":[{"delta":{' + begin),
            (b"x", 1_000_000),
            *once(end + b"}}]}\n\n"),
        ]
        body = framed(event * 60, "end")
        yield Case(f"60 MiB of {what}", body, ("invalid",), "characters of text", tokens=1)
    halves = [*once(b'data: {"choices":[{"delta":{"content":"'), (b"\\ud800", 20_000), *once(b'"}}]}\n\n')]
    yield Case("surrogates", framed([*halves * 100, *once(STOP)], "end"), ("ok",), tokens=100)
    numbered = (
        b'data: {"choices":[{"index":%d,"delta":{"content":"a"}}]}\n\n' % (2 * n) for n in range(20_000)
    )
    body = framed(once(b"".join(numbered)), "end")
    yield Case("a choice an event", body, ("invalid",), "1,024 choices", tokens=20_000)
    objects = [*once(b'{"usage":[{}'), (b",{}", 300_000), *once(b"]}")]
    event = [*once(b"data: "), *objects, *once(b"\n\n", STOP)]
    yield Case("an event of objects", framed(event, "end"), ("invalid",), "JSON objects and lists")
    body = framed(objects, "length", OK + JSON)
    yield Case("a body of objects", body, ("invalid",), "JSON objects and lists", streamed=False)
    body = framed([(b"x", 10 * MIB)], "length", OK + JSON)
    yield Case("a body of 10 MiB", body, ("invalid",), "7 MiB in one JSON document", streamed=False)
    for name, (begin, unit, end) in DEAR_BODIES.items():
        body = framed([*once(begin), *repeated(unit, 7_200_000), *once(end)], "length", OK + JSON)
        refused = ("ok", "invalid", "empty")
        yield Case(f"a body of {name}", body, refused, streamed=False)
    yield from _long_events()
    for how in FRAMINGS:
        body = framed(repeated(b": nothing\n", 3 * MIB), how)
        yield Case(f"over --max-answer, {how}", body, ("invalid",), "more than 1 MiB", max_answer_bytes=MIB)


def _long_events() -> Iterator[Case]:
    """Events and whole answers of the responses API, which repeats its answers at the end of a stream."""
    ends = ("ok", "invalid", "empty", "truncated", "api_error")
    for name, (begin, unit, end) in DEAR_RESPONSES.items():
        inside = [*once(b"{" + begin), *repeated(unit, 7_200_000), *once(end + b"}")]
        body = framed(inside, "length", OK + JSON)
        yield Case(f"a response of {name}", body, ends, streamed=False, endpoint=RESPONSES)
        event = [*once(b'data: {"type":"response.completed","response":'), *inside, *once(b"}\n\n")]
        yield Case(f"the end of a response of {name}", framed(event, "end"), ends, endpoint=RESPONSES)
    for name, (begin, unit, end) in {
        "a delta": (b'{"type":"response.output_text.delta","delta":"', "é中".encode(), b'"}'),
        "a type": (b'{"type":"', "é中".encode(), b'"}'),
        "types": (b"{", b'"type":"response.output_text.done",' + b" " * 300, b'"x":1}'),
        "values": (b'{"item_id":[', b"[1],", b"1]}"),
    }.items():
        long = [*once(b"data: " + begin), *repeated(unit, 7_200_000), *once(end + b"\n\n")]
        yield Case(f"a long event of {name}", framed(long, "end"), ends, endpoint=RESPONSES)
        short = [*once(b"data: " + begin), *repeated(unit, 900_000), *once(end + b"\n\n")]
        yield Case(f"an event of {name}", framed(short, "end"), ends, endpoint=RESPONSES)
    repeats = [*once(b"event: response.output_text.done\ndata: "), (b"x", 7_000_000), *once(b"\n\n")]
    yield Case("repeats that are no JSON", framed(repeats * 8, "end"), ends, endpoint=RESPONSES)
    lines = [*once(b"data: "), (b"x", 7_000_000), *repeated(b"\ndata: x", 4 * MIB)]
    yield Case("lines after a long one", framed(lines, "end"), ends, "began at byte", endpoint=RESPONSES)
    body = framed([*once(b'{"choices":[{"text":"'), *repeated("é中".encode(), 7_200_000)], "end", OK + JSON)
    yield Case("a completion of long text", body, ends, streamed=False, endpoint=COMPLETIONS)
    for name in ("objects", "keys", "escapes", "long integers"):
        block = b'{"content":[{"type":"tool_use","name":"f","input":%b}]}' % DEAR[name]
        body = framed(once(block), "length", OK + JSON)
        yield Case(f"a message of dear {name}", body, ends, streamed=False, endpoint=MESSAGES)


def _refusals() -> Iterator[Case]:
    for status, how in product((300, 302, 307, 400, 401, 404, 429, 500, 503), FRAMINGS):
        head = b"HTTP/1.1 %d Said\r\nLocation: /%b\r\n" % (status, b"x" * 2_000)
        outcome = "invalid" if status < 400 else "http_error"
        body = framed(repeated(b"no", 2 * MIB), how, head)
        yield Case(f"{status} of 2 MiB, {how}", body, (outcome,), f"HTTP {status}: ")
    packed = gzip.compress(bytes(4 * MIB))
    for coding in (b"gzip", b"deflate", b"br", b"zstd", b"GZIP", b"gzip, gzip", b"x" * 5_000):
        head = OK + SSE + b"Content-Encoding: " + coding + b"\r\n"
        yield Case(f"packed by {coding[:12].decode()}", framed(once(packed), "chunks", head), ("invalid",))
