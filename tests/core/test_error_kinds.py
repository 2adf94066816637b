"""Errors of one kind have one text, whatever their details; the number of kinds is bounded."""

import uuid

import pytest
from hypothesis import example, given, strategies as st

from llm_locust.core.error_kinds import LONGEST, PLACEHOLDERS, ErrorKinds, fold

#: What texts are made of where folding could go wrong: pieces that mean something else beside others.
PIECES = st.sampled_from(
    [
        *"abx12.:-/_ ?=[],<>%'\"é…",
        *("23", "12345", "::", ", ", "s", "ms", "0x", "e-5", "1.2.3.4", "fe80::1", "abcdef01"),
        *("<n>", "<id>", "<addr>", "HTTP", "HTTP/1.1 ", "code ", "status: ", "errno "),
        *("chatcmpl-", "req-", "AAAABBBBCCCCDDDD", "6fa459ea-ee8a-3ca4-894e-db77e160355e", "\x1b[31m"),
        *("z" * 290, "z " * 145),
    ]
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("request 6fa459ea-ee8a-3ca4-894e-db77e160355e is gone", "request <id> is gone"),
        ("req-E6FA459E-ee8a-3ca4-894e-db77e160355e: no", "req-<id>: no"),
        ("no chatcmpl-7f8e9d0c1b2a4f5e8d9c0a1b here", "no chatcmpl-<id> here"),
        ("no chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYzAbC here", "no chatcmpl-<id> here"),
        ("<Stream object at 0x7fd1c0ffee10>", "<Stream object at <id>>"),
        ("digest e3b0c44298fc1c14", "digest <id>"),
        ("pod vllm-6f7d9c5b4 left", "pod vllm-<id> left"),
    ],
)
def test_ids_are_folded(text: str, kind: str) -> None:
    assert fold(text) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("connection to 10.0.3.17:8000 broke", "connection to <addr> broke"),
        ("connection to 10.0.3.17 broke.", "connection to <addr> broke."),
        ("cannot connect to [2001:db8::1]:443: refused", "cannot connect to <addr>: refused"),
        ("peer ::1, peer fe80::1%eth0", "peer <addr>, peer <addr>"),
        ("http://10.0.0.1:8000/v1/chat", "http://<addr>/v1/chat"),
        ("http://llm.example:8000/v1?user=7&x=a timed out", "http://llm.example:<n>/v1?<query> timed out"),
        ("std::bad_alloc in c10::Error", "std::bad_alloc in c10::Error"),
    ],
)
def test_addresses_and_queries_are_folded(text: str, kind: str) -> None:
    assert fold(text) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("no byte within 60 s (first)", "no byte within <n> s (first)"),
        ("gave up after 12.5s", "gave up after <n>"),
        ("gave up after 1m30.5s", "gave up after <n>"),
        ("tried to allocate 2.00 GiB, 512MiB free", "tried to allocate <n> GiB, <n>MiB free"),
        ("16,384 tokens, you asked for 17001", "<n> tokens, you asked for <n>"),
        ("ids [1, 22, 333] and [4]", "ids [<n>] and [<n>]"),
        ("loss 1e-5 at step=7", "loss <n> at step=<n>"),
        ("batch 3/12", "batch <n>/<n>"),
        ("request12345 failed", "<id> failed"),
        ("job-12345 failed", "job-<n> failed"),
    ],
)
def test_numbers_are_folded(text: str, kind: str) -> None:
    assert fold(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 503",
        "http_error: HTTP 503: no room",
        "HTTP/1.1 404 Not Found",
        "Error code: 400 - {'error': {'code': 400}}",
        '{"status": 429}',
        "status code 502",
        "[Errno 111] Connection refused",
        "The model `meta-llama/Llama-3.1-8B` does not exist",
        "POST /v1/chat/completions with gpt-4o on H100",
        "the stream ended without a finish reason or [DONE]",
        "the prompt 'a long quoted text that has no number in it' was refused",
        "переполнение памяти",
        "",
    ],
)
def test_codes_names_and_words_stay(text: str) -> None:
    assert fold(text) == text


def test_a_terminals_colours_are_left_out() -> None:
    assert fold("\x1b[31mno\x1b[0m room") == "no room"


def test_a_long_text_is_cut_before_the_word_that_would_be_cut_through() -> None:
    texts = {"x " * 145 + f"request {uuid.UUID(int=i).hex}" for i in range(0, 2**128, 2**124)}
    kinds = {fold(text) for text in texts}
    assert len(texts) == 16
    assert len(kinds) == 1
    assert kinds.pop().endswith(" request …")


@given(st.one_of(st.text(), st.lists(PIECES, max_size=14).map("".join)))
@example("req12345.67")
@example("abc12345::1")
@example("10.0.0.1:80:90")
@example("1, " * 200)
def test_a_kind_is_its_own_kind_and_is_bounded(text: str) -> None:
    kind = fold(text)
    assert fold(kind) == kind
    assert len(kind) <= LONGEST


@given(st.uuids(), st.ip_addresses(), st.integers(1, 65535), st.floats(0, 1e6), st.integers(0, 2**64))
def test_texts_that_differ_in_their_case_alone_are_of_one_kind(
    request: uuid.UUID, ip: object, port: int, elapsed: float, tokens: int
) -> None:
    host = f"[{ip}]" if ":" in str(ip) else ip
    text = f"HTTP 503: {request} (req-{request}) on {host}:{port} with {tokens} tokens, {elapsed:.3f}s"
    assert fold(text) == "HTTP 503: <id> (req-<id>) on <addr> with <n> tokens, <n>"


def test_kinds_up_to_the_limit_are_told_apart_and_stay_so() -> None:
    kinds = ErrorKinds(limit=2)
    assert [kinds.of(f"{word} {i}") for i, word in enumerate(["no", "late", "no"])] == [
        "no …",
        "late …",
        "no …",
    ]
    other = kinds.of("torn 4")
    assert other == "other errors (more than 2 kinds; see the report)"
    assert kinds.of("burnt 5") == other
    assert kinds.of("late 6") == "late …"


@given(st.lists(st.sampled_from([*PLACEHOLDERS, "7", " s ", "10.0.0.1:80", "x?a=1", "0x1f"])).map("".join))
def test_no_person_meets_a_placeholder(text: str) -> None:
    kind = ErrorKinds().of(text)
    assert not any(each in kind for each in PLACEHOLDERS)


@given(st.lists(st.text(max_size=5)), st.integers(0, 5))
def test_there_are_never_more_names_than_the_limit_and_one(texts: list[str], limit: int) -> None:
    kinds = ErrorKinds(limit)
    assert len({kinds.of(text) for text in texts}) <= limit + 1
