"""Header values of requests, and the header that a session gives back."""

import json

import pytest
from hypothesis import given, strategies as st

from llm_locust.client.recording import Call
from llm_locust.client.routes import call_fields, header_value, make_head, with_lines
from llm_locust.wire.headers import (
    HEADER_FIELDS,
    MOST_BYTES,
    MOST_CHARS,
    RESERVED,
    Fate,
    HeaderError,
    SessionHeader,
    SessionTokens,
    as_last,
    header_lines,
    header_template,
    secret_texts,
)

# --- Header values of requests: templates, what is no template, what is refused, what is secret


FIELDS = {name: name.upper() for name in HEADER_FIELDS}


def filled(value: str) -> str:
    return header_template("X-A", value).value(FIELDS)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("", ""),
        ("plain", "plain"),
        ("{session}", "SESSION"),
        ("s-{session}/{turn}", "s-SESSION/TURN"),
        ("{user}{worker}", "USERWORKER"),
        ("{{session}", "{session}"),
        ("{{session}}", "{session}"),
        ("{{nobody}}-{class}", "{nobody}-CLASS"),
        ('{"a":1}', '{"a":1}'),
        ('{"a":{"b":"{name}"}}', '{"a":{"b":"NAME"}}'),
        ("{}{ session }{1}{", "{}{ session }{1}{"),
        ("a}}b}", "a}}b}"),
    ],
)
def test_only_a_word_in_braces_is_a_template(value: str, sent: str) -> None:
    assert filled(value) == sent


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    )
)
def test_json_needs_no_care(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":"))):
        assert header_template("X-A", text).fixed
        assert filled(text) == text


@pytest.mark.parametrize("value", ["{sesion}", "a{hunter2}", "{request-id}", "{Session}"])
def test_an_unknown_word_is_refused_with_the_fields_there_are_and_without_the_value(value: str) -> None:
    with pytest.raises(HeaderError) as told:
        header_template("X-A", value)
    assert "'X-A'" in str(told.value)
    assert all(f"{{{name}}}" in str(told.value) for name in HEADER_FIELDS)
    assert value.strip("a{}") not in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "CONNECTION", "X-Request-Id"])
def test_what_is_each_requests_own_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(HeaderError, match=f"'{name}' cannot be set: ") as told:
        header_template(name, "sk-hush")
    assert "sk-hush" not in str(told.value)
    assert name.lower() in RESERVED


@pytest.mark.parametrize("value", ["a\r\nb", "a\x7f", "a\u20ac", "\x00"])
def test_a_value_that_no_header_can_have_is_refused_without_it(value: str) -> None:
    with pytest.raises(HeaderError, match="'X-A' holds a line break or a character") as told:
        header_template("X-A", value)
    assert value not in str(told.value)


def test_a_last_request_says_so_in_its_first_header() -> None:
    request = b"POST / HTTP/1.1\r\nHost: h\r\n\r\n\r\n"
    assert as_last(request) == b"POST / HTTP/1.1\r\nConnection: close\r\nHost: h\r\n\r\n\r\n"


def test_the_users_headers_replace_ours_of_the_same_name_host_too() -> None:
    head = make_head("h:1", {"host": "other", "User-Agent": "me", "X-A": "1", "x-a": "2"})
    assert head.fixed == (
        b"host: other\r\nUser-Agent: me\r\nAccept: text/event-stream, application/json\r\n"
        b"Accept-Encoding: identity\r\nContent-Type: application/json\r\nx-a: 2\r\n"
    )
    assert not head.templates


def test_a_templated_header_is_no_part_of_what_all_requests_share() -> None:
    head = make_head("h:1", {"X-Session": "{session}", "Accept": "{name}"})
    assert b"X-Session" not in head.fixed
    assert b"Accept:" not in head.fixed
    assert [template.name for template in head.templates] == ["Accept", "X-Session"]


def call(**of: object) -> Call:
    return Call(request_id="r-1", name="talk", scheduled_ns=1, **of)  # type: ignore[arg-type]


def test_every_field_is_filled_for_any_call() -> None:
    fields = call_fields(call(user=7, session="s", turn=2, slo_class="gold"), worker="w", seq=3)
    assert fields == {
        "class": "gold",
        "name": "talk",
        "request_id": "r-1",
        "seq": "3",
        "session": "s",
        "turn": "2",
        "user": "7",
        "worker": "w",
    }
    alone = call_fields(call(), worker="", seq=0)
    assert fields.keys() == set(HEADER_FIELDS) == alone.keys()
    assert alone["turn"] == "0"


def test_all_requests_of_a_user_without_sessions_share_one() -> None:
    sessions = [call_fields(call(user=user), worker=w, seq=0)["session"] for w in "ab" for user in (1, 1, 2)]
    assert sessions == ["a-1", "a-1", "a-2", "b-1", "b-1", "b-2"]


@given(st.text(), st.text("abc{}", max_size=5))
def test_no_field_can_break_out_of_its_line(name: str, around: str) -> None:
    try:
        template = header_template("X-A", around + "{name}")
    except HeaderError:
        return
    line = header_lines([("X-A", template.value({"name": name}))])
    assert line.endswith(b"\r\n")
    assert line.isascii()
    assert line[:-2].decode().isprintable()


def test_what_stands_around_a_templates_fields_is_secret() -> None:
    headers = {
        "Authorization": "Bearer tok-0002",
        "X-Key": "{user}:hush-hush",
        "Proxy-Authorization": "Basic k-{user}-longer",
        "X-N": "abc",
    }
    assert set(secret_texts(headers)) == {
        *("Bearer tok-0002", "tok-0002", ":hush-hush", "Basic k-", "-longer"),
    }


def test_the_header_of_a_request_is_read_and_added_to() -> None:
    body = b"\r\n\r\nX-Own: of the body\r\n"
    request = b"POST /x HTTP/1.1\r\nHost: h\r\nx-oWn:  first \r\nX-Own: second\r\nX-Last:\xe9" + body
    assert header_value(request, b"x-own") == "first"
    assert header_value(request, b"x-last") == "\u00e9"
    assert header_value(request, b"own") is None
    assert header_value(b"POST /x HTTP/1.1\r\nHost: h" + body, b"x-own") is None
    added = with_lines(request, b"A: 1\r\nB: 2\r\n")
    assert added == b"POST /x HTTP/1.1\r\nA: 1\r\nB: 2\r\n" + request.partition(b"\r\n")[2]


# --- The header that a session gives back: what of a server's bytes may go into a request, and for how long


HEADER = SessionHeader.parse("X-Session-Token")
COOKIE = SessionHeader.parse("cookie:llm-d-session")
TOKEN = b"ZGVmYXVsdC9wb2QtMQ=="
NAMES = st.sampled_from(["a", "b", "c", "d"])


def request(tokens: SessionTokens, session: str | None) -> bytes:
    return b"POST /v1 HTTP/1.1\r\nHost: h\r\n%b\r\nx-session-token: in the body" % tokens.line(session)


def asked(tokens: SessionTokens, session: str | None, turn: int | None) -> Fate | None:
    return tokens.fate(session, turn, request(tokens, session))


def test_the_next_request_of_the_session_gives_the_value_back_and_no_other_does() -> None:
    tokens = SessionTokens(HEADER)
    assert asked(tokens, "a", 0) is None
    tokens.take("a", {b"x-session-token": TOKEN})
    assert tokens.line("a") == b"x-session-token: %b\r\n" % TOKEN
    assert (asked(tokens, "a", 1), asked(tokens, "b", 1), asked(tokens, None, None)) == (
        "echoed",
        "missing",
        None,
    )


def test_an_answer_without_the_header_changes_nothing_and_an_empty_value_takes_it_back() -> None:
    tokens = SessionTokens(HEADER)
    tokens.take("a", {b"x-session-token": TOKEN})
    tokens.take("a", {b"content-type": b"text/plain"})
    assert asked(tokens, "a", 2) == "echoed"
    tokens.take("a", {b"x-session-token": b""})
    assert asked(tokens, "a", 3) == "missing"


def test_a_cookie_is_found_among_others_and_goes_back_without_its_attributes() -> None:
    tokens = SessionTokens(COOKIE)
    lines = b"other=1; Path=/\nllm-d-session=%b; Path=/; HttpOnly; SameSite=Lax\nnone" % TOKEN
    tokens.take("a", {b"set-cookie": lines})
    assert tokens.line("a") == b"cookie: llm-d-session=%b\r\n" % TOKEN
    assert asked(tokens, "a", 1) == "echoed"
    tokens.take("b", {b"set-cookie": b"xllm-d-session=1\nllm-d-session-2=2"})
    assert asked(tokens, "b", 1) == "missing"
    tokens.take("a", {b"set-cookie": b"llm-d-session=; Max-Age=0"})
    assert tokens.line("a") == b""


@pytest.mark.parametrize(
    "value",
    [
        b"x" * (MOST_CHARS + 1),
        b"a\r\nX-Admin: 1",
        b"a\nb",
        b"a\x00b",
        b"tab\there",
        b"caf\xe9",
        b"\x7f",
        b"\x1b[31m",
    ],
)
def test_a_value_that_no_request_may_have_is_not_sent_and_takes_the_earlier_one_along(value: bytes) -> None:
    tokens = SessionTokens(HEADER)
    tokens.take("a", {b"x-session-token": TOKEN})
    tokens.take("a", {b"x-session-token": value})
    assert tokens.line("a") == b""
    assert asked(tokens, "a", 1) == "refused"


@given(st.lists(st.tuples(NAMES, st.binary(max_size=40)), max_size=30))
def test_whatever_comes_a_request_has_one_line_of_plain_text_or_none(given: list[tuple[str, bytes]]) -> None:
    tokens = SessionTokens(HEADER)
    for session, value in given:
        tokens.take(session, {b"x-session-token": value})
        line = tokens.line(session)
        assert line in (b"", b"x-session-token: %b\r\n" % value)
        assert line.count(b"\r\n") == bool(line)
        assert all(32 <= byte < 127 for byte in line[:-2])


@given(st.binary(max_size=200))
def test_no_bytes_of_a_cookie_header_raise_or_break_the_line(value: bytes) -> None:
    tokens = SessionTokens(COOKIE)
    tokens.take("a", {b"set-cookie": value})
    assert b";" not in tokens.line("a")
    assert tokens.line("a").count(b"\n") <= 1


def test_a_server_that_gives_each_session_a_long_value_does_not_fill_the_memory() -> None:
    tokens, value = SessionTokens(HEADER), b"v" * MOST_CHARS
    sessions = 2 * MOST_BYTES // MOST_CHARS
    for number in range(sessions):
        tokens.take(str(number), {b"x-session-token": value})
    assert asked(tokens, "0", 1) == "missing"
    assert asked(tokens, str(sessions - 1), 1) == "echoed"
    kept = sum(bool(tokens.line(str(number))) for number in range(sessions))
    assert kept * MOST_CHARS <= MOST_BYTES < (kept + 2) * (MOST_CHARS + 300)


def test_the_texts_that_a_record_must_not_have_are_those_of_the_call() -> None:
    tokens = SessionTokens(HEADER)
    assert tokens.take("a", {b"x-session-token": TOKEN}) == (TOKEN.decode(),)
    assert set(tokens.take("a", {b"x-session-token": b"another-token"})) == {TOKEN.decode(), "another-token"}
    assert tokens.take("b", {b"x-session-token": b"short"}) == ()
    assert tokens.take(None, {b"x-session-token": TOKEN}) == ()


@pytest.mark.parametrize("name", ["Content-Type", "authorization", "Cookie", "Set-Cookie", "X-Request-Id"])
def test_a_header_that_requests_have_themselves_is_refused(name: str) -> None:
    with pytest.raises(HeaderError, match=name):
        SessionHeader.parse(name)


@pytest.mark.parametrize("text", ["", "a b", "cookie:", "cookie:a b", "cookie:a;b", "header:x", "x:y"])
def test_what_names_no_header_is_refused(text: str) -> None:
    with pytest.raises(HeaderError):
        SessionHeader.parse(text)
