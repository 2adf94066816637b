"""Failures by kind, and calls of the run to its servers."""

import uuid

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from metrics_cases import columns, failed
from report_cases import told

from llm_locust.core.manifest import Manifest, ServerCall
from llm_locust.core.texts import LONGEST, PLACEHOLDERS, ErrorKinds, fold
from llm_locust.figures.interventions import interventions, show as section
from llm_locust.figures.reliability import MOST_KINDS, OTHER, ErrorKind, failures
from llm_locust.metrics.window import Window, iso


def word(number: int) -> str:
    """A different word, without a digit, for each number under 26 ** 3."""
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(3))


@given(st.permutations(range(6)))
def test_the_order_of_the_requests_changes_nothing(order: list[int]) -> None:
    requests = [failed(float(i // 3), error=f"attempt {9 - i}", status=500 + i % 2) for i in range(6)]
    expected = failures(columns(*requests), np.arange(6))
    assert failures(columns(*(requests[i] for i in order)), np.arange(6)) == expected
    assert [e.example for e in expected] == ["attempt 7", "attempt 8"]


def test_only_the_failed_requests_are_looked_at() -> None:
    c = columns(failed(1.0, error="not this"), failed(2.0), failed(3.0, error=None))
    assert [(e.message, e.count) for e in failures(c, np.array([1]))] == [("no room", 1)]


def test_beyond_the_listed_kinds_the_rest_is_counted() -> None:
    many = [failed(float(i), error=f"error {word(i)}") for i in range(MOST_KINDS + 30)]
    entries = failures(columns(*many), np.arange(len(many)))
    assert len(entries) == MOST_KINDS + 1
    assert entries[-1] == ErrorKind(
        outcome=OTHER,
        status=None,
        message="30 more kinds of failure",
        example=None,
        count=30,
        first=min(iso(r.ended_ns) for r in many if r.error not in {e.message for e in entries}),
        last=max(iso(r.ended_ns) for r in many if r.error not in {e.message for e in entries}),
    )
    assert sum(e.count for e in entries) == len(many)


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


S = 1_000_000_000
WINDOW = Window(110 * S, 160 * S, "run")


def manifest(*calls: ServerCall) -> Manifest:
    return Manifest(id="r", name="r", started_ns=100 * S, server_calls=list(calls))


def call(at_s: float, path: str, target: str = "a", status: int | None = 200) -> ServerCall:
    return ServerCall(at_ns=round((100 + at_s) * S), path=path, target=target, status=status)


@pytest.mark.parametrize(
    ("start_s", "stop_s", "profiled_s"),
    [(20, 40, 20), (0, 40, 30), (20, 90, 40), (0, 5, 0), (70, 90, 0), (20, None, 40)],
)
def test_the_profilers_time_is_that_within_the_window(
    start_s: float, stop_s: float | None, profiled_s: float
) -> None:
    stops = [] if stop_s is None else [call(stop_s, "/stop_profile")]
    found = interventions(manifest(call(start_s, "/start_profile"), *stops), WINDOW)
    assert found.profiled_s == pytest.approx(profiled_s)


def test_calls_of_one_moment_are_one_line_and_failures_name_their_replica() -> None:
    path = "/reset_prefix_cache"
    gone = ServerCall(at_ns=100 * S, path=path, target="c", error="timed out")
    calls = [call(0, path, "a"), call(0, path, "b"), gone]
    found = section(told(interventions=interventions(manifest(*calls), WINDOW)))
    assert found is not None
    assert [line.text for line in found.lines] == [
        "prefix cache emptied at 0 s on 2 of 3 replicas",
        "/reset_prefix_cache not done by c (timed out)",
    ]


def test_a_run_that_only_sent_requests_has_no_such_section() -> None:
    assert section(told(interventions=interventions(manifest(), WINDOW))) is None
