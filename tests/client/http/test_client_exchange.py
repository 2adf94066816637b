"""One response's bytes, however they are split into reads."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st
from reads import read, reads
from scripted import chunk, last_chunk

from llm_locust.client.http.errors import OversizeError, ResponseError
from llm_locust.client.http.exchange import MAX_ANSWER_BYTES, SLICE_BYTES, STEP_BYTES, Exchange

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nok"


def fed(parts: Sequence[bytes], *, ended: bool = False) -> tuple[Exchange, bytes]:
    """An exchange after these reads (at 1 ns, 2 ns, ...), and its body."""
    exchange, slices = Exchange(), list[bytes]()
    exchange.on_slice = slices.append
    for at_ns, data in enumerate(parts, start=1):
        exchange.on_reads(*read(data, at_ns))
    if ended:
        exchange.on_eof()
    exchange.drain()
    return exchange, b"".join(slices)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces, none of them empty."""
    edges = [0, *sorted({p % len(data) for p in places} - {0}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """The bytes of a response, its body, and whether the connection's end delimits it."""
    body = draw(st.binary(max_size=60))
    interim = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"])
    )
    head = interim + OK + b"X-Served-By: r1\r\n"
    match draw(st.sampled_from(["length", "chunked", "end"])):
        case "length":
            return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), body, False
        case "chunked":
            pieces = cut(body, draw(st.lists(st.integers(0, 100), max_size=5))) if body else []
            end = draw(st.sampled_from([last_chunk(), b"0;ext=1\r\nX-Served-By: trailer\r\n\r\n"]))
            framed = b"".join(map(chunk, pieces)) + end
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed, body, False
        case _:
            return head + b"\r\n" + body, body, True


@given(response=responses(), places=st.lists(st.integers(0, 300), max_size=12))
def test_any_split_gives_the_same_response(response: tuple[bytes, bytes, bool], places: list[int]) -> None:
    data, body, until_end = response
    exchange, got = fed(cut(data, places), ended=until_end)
    assert (got, exchange.complete, exchange.status) == (body, True, 200)
    assert exchange.headers[b"x-served-by"] == b"r1"
    assert b"link" not in exchange.headers
    assert exchange.bytes_received == len(data)
    assert exchange.reusable is not until_end
    assert not exchange.overrun


@given(response=responses(), places=st.lists(st.integers(0, 300), max_size=12))
def test_read_ends_are_the_body_that_was_there_after_each_read(
    response: tuple[bytes, bytes, bool], places: list[int]
) -> None:
    reads = cut(response[0], places)
    exchange, _ = fed(reads)
    after = [len(fed(reads[: n + 1])[1]) for n in range(len(reads))]
    assert exchange.reads.columns()[:, 0].tolist() == after
    assert exchange.read_count == len(reads)
    assert exchange.reads.columns()[:, 2].tolist() == list(range(1, len(reads) + 1))


@given(response=responses(), places=st.lists(st.integers(0, 300), max_size=12))
def test_it_is_complete_with_the_read_of_its_last_byte_and_no_sooner(
    response: tuple[bytes, bytes, bool], places: list[int]
) -> None:
    data, _, until_end = response
    reads = cut(data, places)
    exchange, _ = fed(reads)
    assert exchange.complete is not until_end
    assert exchange.completed_at == (None if until_end else len(reads) - 1)
    assert not fed([data[:-1]], ended=True)[0].complete or until_end


@given(
    response=responses().filter(lambda r: not r[2]),
    extra=st.sampled_from([WHOLE, b"HTTP/1.1 500 No\r\n\r\nbody", b"garbage", b"\0"]),
    places=st.lists(st.integers(0, 300), max_size=6),
)
def test_bytes_after_the_end_are_noticed_and_taken_for_no_part_of_it(
    response: tuple[bytes, bytes, bool], extra: bytes, places: list[int]
) -> None:
    *before, last = cut(response[0], places)
    exchange, got = fed([*before, last + extra])
    assert (got, exchange.status, exchange.overrun) == (response[1], 200, True)


@given(st.binary(max_size=200), st.booleans(), st.lists(st.integers(0, 300), max_size=3))
def test_garbage_raises_nothing_but_a_response_error(
    data: bytes, after_head: bool, places: list[int]
) -> None:
    exchange = Exchange()
    with suppress(ResponseError):
        for part in cut(
            (OK + b"Transfer-Encoding: chunked\r\n\r\n" if after_head else b"") + b"\0" + data, places
        ):
            exchange.on_reads(*read(part))
    exchange.on_eof()
    exchange.drain()
    assert not exchange.complete


@pytest.mark.parametrize("data", [b"garbage", b"HTTP/9.9 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n"])
def test_what_is_not_http_is_said(data: bytes) -> None:
    with pytest.raises(ResponseError, match=r"not an HTTP/1\.1 response: "):
        fed([data])


@pytest.mark.parametrize(
    ("head", "ended", "complete", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False, True, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False, True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False, True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", False, True, True),
        (b"HTTP/1.0 200 OK\r\n\r\n", False, False, False),
        (b"HTTP/1.0 200 OK\r\n\r\n", True, True, False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", False, True, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", True, False, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", True, False, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", True, False, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", True, False, False),
    ],
)
def test_what_ends_a_response_and_what_keeps_the_connection(
    head: bytes, ended: bool, complete: bool, reusable: bool
) -> None:
    exchange, _ = fed([head], ended=ended)
    assert (exchange.complete, exchange.reusable) == (complete, reusable)


def test_an_unasked_change_of_protocol_is_a_response_error() -> None:
    with pytest.raises(ResponseError, match="HTTP 101: the server changed the protocol"):
        fed([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nxx"])


def test_a_long_body_is_handed_on_in_slices() -> None:
    pieces = [b"%d;" % n for n in range(SLICE_BYTES // 4)]
    exchange, slices = Exchange(), list[bytes]()
    exchange.on_slice = slices.append
    exchange.on_reads(*read(OK + b"Transfer-Encoding: chunked\r\n\r\n", 1))
    for n, piece in enumerate(pieces):
        exchange.on_reads(*read(chunk(piece), n + 2))
    assert len(slices) == len(b"".join(pieces)) // SLICE_BYTES
    assert all(SLICE_BYTES <= len(each) < SLICE_BYTES + 16 for each in slices)
    exchange.drain()
    assert b"".join(slices) == b"".join(pieces)
    ends = exchange.reads.columns()[:, 0]
    assert (len(ends), ends[0], ends[-1]) == (len(pieces) + 1, 0, len(b"".join(pieces)))
    assert exchange.reads.event_ns(len(pieces[0])) == 2
    assert exchange.reads.event_ns(int(ends[-1])) == exchange.last_read_ns == len(pieces) + 1


def in_reads(data: bytes) -> list[bytes]:
    return [data[at : at + 16_384] for at in range(0, len(data), 16_384)]


def take(exchange: Exchange, parts: Sequence[bytes]) -> None:
    for part in parts:
        exchange.on_reads(*read(part))


def refusal_of(data: bytes, max_answer_bytes: int = MAX_ANSWER_BYTES) -> tuple[str, int]:
    """Why the bytes were refused, and how many of them were taken before."""
    exchange = Exchange(max_answer_bytes)
    with pytest.raises(OversizeError) as caught:
        take(exchange, in_reads(data))
    return str(caught.value), exchange.bytes_received


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
ERROR = b"HTTP/1.1 500 Internal Server Error\r\n"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (OK + CHUNKED + chunk(b"x" * 4096) * 600, "the answer has more than 1 MiB"),
        (OK + b"\r\n" + b"x" * (2 << 20), "the answer has more than 1 MiB"),
        (ERROR + CHUNKED + chunk(b"x" * 4096) * 40, "the answer has more than 64 KiB"),
        (OK + b"X-A: " + b"x" * (1 << 20), "the header section has more than 256 KiB"),
        (b"HTTP/1.1 200 " + b"x" * (1 << 20), "the header section has more than 256 KiB"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, "the header section has more than 256 KiB"),
        (OK + b"A: b\r\n" * 1001 + b"\r\n", "the response has more than 1,000 header fields"),
        (b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" * 1001, "the response has more than 1,000 header fields"),
        (OK + CHUNKED + b"1;" + b"x" * (1 << 20), "chunk extensions or trailers have more than 256 KiB"),
        (
            OK + CHUNKED + b"0\r\nX-A: " + b"x" * (1 << 20),
            "chunk extensions or trailers have more than 256 KiB",
        ),
    ],
)
def test_a_part_of_a_response_without_end_is_given_up_at_its_bound(data: bytes, why: str) -> None:
    said, taken = refusal_of(data, 1 << 20)
    bounds = {"1 MiB": 1 << 20, "64 KiB": 64 << 10, "256 KiB": 256 << 10}
    bound = next((b for text, b in bounds.items() if text in said), 256 << 10)
    assert said == why
    assert taken <= bound + 4 * SLICE_BYTES


@pytest.mark.parametrize("fields", [b"Content-Encoding: gzip\r\n", b"content-encoding: x, br\r\n"])
def test_a_packed_answer_is_refused_at_its_head(fields: bytes) -> None:
    with pytest.raises(ResponseError, match="-encoded, which the request did not allow"):
        fed([OK + fields + b"\r\n"])
    for refused in (ERROR, b"HTTP/1.1 300 Multiple Choices\r\n"):
        assert fed([refused + fields + b"Content-Length: 2\r\n\r\nok"])[0].complete


@pytest.mark.parametrize("coding", [b"identity", b"none", b"UTF-8", b""])
def test_a_coding_that_packs_nothing_is_none(coding: bytes) -> None:
    exchange, body = fed([OK + b"Content-Encoding: " + coding + b"\r\nContent-Length: 2\r\n\r\nok"])
    assert (exchange.complete, body) == (True, b"ok")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x16", "speaks TLS: the URL must begin with https://"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03", "speaks HTTP/2 only"),
        (b"SSH-2.0-OpenSSH_9\r\n", r"begins with b'SSH-2.0-OpenSSH_9\\r\\n'"),
    ],
)
def test_what_answers_in_another_protocol_is_named(data: bytes, why: str) -> None:
    with pytest.raises(ResponseError, match=why):
        fed([data])


def test_each_cookie_has_a_line_and_of_another_field_the_last_one_holds() -> None:
    fields = b"Set-Cookie: a=1\r\nX-A: 1\r\nset-cookie: b=2\r\nx-a: 2\r\nContent-Length: 0\r\n\r\n"
    headers = fed([OK + fields])[0].headers
    assert (headers[b"set-cookie"], headers[b"x-a"]) == (b"a=1\nb=2", b"2")


def test_as_many_fields_as_are_allowed_are_a_response() -> None:
    exchange, _ = fed([OK + b"A: b\r\n" * 999 + b"Content-Length: 0\r\n\r\n"])
    assert (exchange.complete, exchange.status) == (True, 200)


def stepped(body: bytes) -> list[bytes]:
    """A body of which nothing was decoded, as steps pass it on."""
    slices = list[bytes]()
    exchange = Exchange()
    exchange.on_due, exchange.on_slice = lambda: None, slices.append
    exchange.on_reads(*read(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body, 7))
    while exchange.step():
        assert exchange.decoded_to_ns == 7
    assert not exchange.has_body
    return slices


def test_a_long_body_is_passed_on_in_steps() -> None:
    body = bytes(range(256)).replace(b"\n", b"") * 500
    slices = stepped(body)
    assert [len(each) for each in slices] == [STEP_BYTES] * (len(body) // STEP_BYTES) + [
        len(body) % STEP_BYTES
    ]
    assert b"".join(slices) == body


@pytest.mark.parametrize("blank", [b"\n\n", b"\r\n\r\n"])
def test_a_step_cuts_no_event_in_two(blank: bytes) -> None:
    event = b"data: " + b"x" * 1000 + blank
    slices = stepped(event * 100)
    assert len(slices) > 3
    assert b"".join(slices) == event * 100
    assert not any(len(each) % len(event) for each in slices)


def test_what_waits_to_be_decoded_is_kept_up_to_a_bound() -> None:
    exchange, slices = Exchange(), list[bytes]()
    exchange.on_slice, exchange.on_due = slices.append, lambda: None
    exchange.on_reads(*read(OK + b"\r\n", 1))
    exchange.on_reads(*read(b"x" * STEP_BYTES + b"y" * 9 * STEP_BYTES, 2))
    exchange.step()
    exchange.forget(beyond=5)
    exchange.drain()
    assert slices == [b"x" * STEP_BYTES, b"y" * 5]


def test_of_what_is_not_decoded_no_time_is_known() -> None:
    exchange = Exchange()
    assert exchange.decoded_to_ns is None
    exchange.on_reads(*reads([OK + b"\r\n", b"ab", b"cd"]))
    assert exchange.decoded_to_ns is None
    exchange.drain()
    assert exchange.decoded_to_ns == 3


@given(
    head=st.sampled_from([OK, ERROR, OK + CHUNKED]),
    pieces=st.lists(
        st.binary(max_size=40) | st.sampled_from([b"\r\n", b"0\r\n", b"-1\r\n", b";x=", b"A: b\r\n"])
    ),
    places=st.lists(st.integers(0, 300), max_size=8),
)
@example(head=OK + CHUNKED, pieces=[b"fffffffffffffffff\r\n"], places=[])
@example(head=OK + CHUNKED, pieces=[b"-1\r\n", b"x"], places=[5])
@example(head=OK, pieces=[b"Content-Length: 99999999999999999999\r\n\r\n"], places=[])
def test_any_bytes_are_a_response_or_a_response_error(
    head: bytes, pieces: list[bytes], places: list[int]
) -> None:
    exchange = Exchange()
    with suppress(ResponseError):
        take(exchange, cut(head + b"".join(pieces), places))
        exchange.on_eof()
    exchange.drain()
    assert exchange.read_count == len(exchange.reads.columns())


@given(response=responses(), spoil=st.integers(0, 400), places=st.lists(st.integers(0, 300), max_size=5))
def test_reads_that_are_processed_together_are_a_response_as_if_each_had_come_alone(
    response: tuple[bytes, bytes, bool], spoil: int, places: list[int]
) -> None:
    data = bytearray(response[0])
    data[spoil % len(data)] ^= spoil > 200
    pieces = cut(bytes(data), places)

    def told(work: Callable[[Exchange], object]) -> tuple[str, bytes, list[int], bool, int | None]:
        exchange, slices, why = Exchange(), list[bytes](), ""
        exchange.on_slice = slices.append
        try:
            work(exchange)
        except ResponseError as e:
            why = type(e).__name__
        exchange.drain()
        ends = [] if why else exchange.reads.columns()[:, 0].tolist()[: (exchange.completed_at or 99) + 1]
        return why, b"".join(slices), ends, exchange.complete, exchange.completed_at

    def read_alone(exchange: Exchange) -> None:
        for at_ns, piece in enumerate(pieces, start=1):
            if not exchange.complete:
                exchange.on_reads(*read(piece, at_ns))

    assert told(lambda exchange: exchange.on_reads(*reads(pieces))) == told(read_alone)
