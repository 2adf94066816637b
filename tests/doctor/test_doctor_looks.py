"""Looks at servers of known bytes, and checks of their answers. All end, and say why."""

import io
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import pytest
from doctor_cases import answer, asked, reply
from scripted import (
    Script,
    ScriptedServer,
    Step,
    TlsFiles,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    refusing_port,
    response_head,
    scripted_server,
    silent_port,
    sse,
    usage_counts,
    write,
)
from test_doctor_checks import judged

from llm_locust.client.http.target import Target
from llm_locust.core.record import Outcome, TokenSource
from llm_locust.doctor.command import (
    HOST_CHECKS,
    SERVER_CHECKS,
    Result,
    Seen,
    as_json,
    examine,
    exit_code,
    print_results,
)
from llm_locust.doctor.finding import NO_TIME, Finding, OutOfTimeError, Status, TimeLeft
from llm_locust.doctor.machine import look_around
from llm_locust.doctor.server import look_at_server
from llm_locust.doctor.stream import (
    SeenStream,
    judge_end,
    judge_first_token,
    judge_keep_alive,
    judge_others,
    judge_streaming,
    judge_usage,
    was_read_late,
)
from llm_locust.metrics.requests.rates import NO_GAP_MS
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.messages import MESSAGES

# --- Looks at servers of known bytes: healthy, closed, hanging, dripping, lying. All end, and say why


KEY = "sk-a-key-of-this-test"

MODELS = json_response({"data": [{"id": "m"}]}, headers={"Date": "Thu, 01 Jan 2026 00:00:00 GMT"})
END = sse(chat_chunk(finish_reason="stop")) + sse(chat_chunk(usage=usage_counts(9, 8))) + sse("[DONE]")


def streamed(events: int = 8, gap_ms: float = 20.0, headers: dict[str, str] | None = None) -> Script:
    """Events one by one, and the end."""
    steps = [write(0, response_head(headers=headers))]
    steps += [write(gap_ms * (i + 1), chunk(sse(chat_chunk("word ")))) for i in range(events)]
    return [*steps, write(None, chunk(END) + last_chunk())]


#: Paths of the API below a server's URL.
LIST, CHAT_PATH = "/v1/models", "/v1/chat/completions"
LISTED: Script = (write(0, MODELS),)


def routes(chat: Script, models: Script = LISTED) -> dict[str, Script]:
    return {LIST: models, CHAT_PATH: chat}


def always(script: Script) -> dict[str, Script]:
    return routes(script, script)


def looked(url: str, seconds: float = 20.0, **of: Any) -> dict[str, Finding]:
    """Findings of the server's checks by key."""
    target = Target.parse(url)
    options = asked(target=target, **of)
    server = look_at_server(options, target, TimeLeft(seconds))
    seen = Seen(options, host=None, kubernetes=None, server=server)  # type: ignore[arg-type]
    return {check.key: check.judge(seen) for check in SERVER_CHECKS}


def failed(findings: dict[str, Finding]) -> set[str]:
    return {key for key, finding in findings.items() if finding.status is Status.FAIL}


def written_in_bursts(server: ScriptedServer) -> set[str]:
    """The check that rightly fails where a busy machine made the server write several tokens at once."""
    gaps_ns = [np.diff(each.write_ns[1:-1]) for each in server.log() if each.path == CHAT_PATH]
    return {"stream"} if any(np.median(gaps) < 2 * NO_GAP_MS * 1e6 for gaps in gaps_ns) else set()


def test_a_healthy_server_fails_no_check() -> None:
    with scripted_server(routes=routes(streamed())) as server:
        found = looked(server.url)
        assert failed(found) <= written_in_bursts(server)
    assert found["models"].figure == "1 model: m"
    assert found["keep_alive"].status is Status.OK
    assert found["end"].figure == "finish reason stop, [DONE]"
    assert found["usage"].figure == "9 input and 8 output tokens"
    assert "behind" in found["server_clock"].figure


def test_a_stream_in_one_burst_is_named_with_the_settings_of_the_proxy() -> None:
    burst = b"".join(sse(chat_chunk("word ")) for _ in range(8)) + END
    script = [write(300, response_head(headers={"Server": "nginx/1.22"}) + chunk(burst) + last_chunk())]
    with scripted_server(routes=routes(script)) as server:
        found = looked(server.url)
    # One token takes as long here: only the server itself could tell whether it is that fast.
    assert found["stream"].status in (Status.WARN, Status.FAIL)
    assert "one burst" in found["stream"].figure
    assert "proxy_buffering off" in found["stream"].change


def test_an_answer_that_is_no_stream_is_named() -> None:
    whole = json_response(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}
    )
    with scripted_server(routes=routes([write(0, whole)])) as server:
        found = looked(server.url)
    assert "a stream was asked for" in found["first_token"].figure
    assert failed(found) >= {"first_token"}


def test_a_closed_port_stops_at_tcp_and_the_rest_is_skipped() -> None:
    with refusing_port() as port:
        found = looked(f"http://127.0.0.1:{port}")
    assert failed(found) == {"tcp"}
    assert "Connection refused" in found["tcp"].figure
    assert {finding.status for key, finding in found.items() if key != "tcp"} == {Status.SKIPPED}


def test_a_port_that_does_not_answer_is_given_up() -> None:
    with silent_port() as port:
        found = looked(f"http://127.0.0.1:{port}", seconds=1.0)
    assert failed(found) == {"tcp"}
    assert "no answer within" in found["tcp"].figure


def test_a_name_that_does_not_exist_stops_at_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("gevent.socket.getaddrinfo", unknown)
    found = looked("http://vllm.invalid:8000")
    assert failed(found) == {"dns"}
    assert "'vllm.invalid' cannot be resolved: Name or service not known" in found["dns"].figure


def test_a_wrong_key_is_told_and_never_shown() -> None:
    refusal = json_response({"error": {"message": f"Incorrect API key: {KEY}"}}, status=401)
    with scripted_server(routes={"*": [write(0, refusal)]}) as server:
        headers = {"Authorization": f"Bearer {KEY}"}
        found = looked(server.url, model="m", has_key=True, headers=headers, secrets=(KEY,))
        assert failed(found) == {"api_key", "first_token"}
        assert "refused (HTTP 401)" in found["api_key"].figure
        assert KEY not in str(found)
        assert "absent" in looked(server.url, model="m")["api_key"].figure


def test_a_certificate_is_looked_at_before_any_request(tls_files: TlsFiles) -> None:
    with scripted_server(tls=tls_files, routes=routes(streamed())) as server:
        good = looked(server.url, ca_cert=Path(tls_files.ca))
        assert failed(good) <= written_in_bursts(server)
        assert "certificate expires in" in good["tls"].figure
        assert good["tls"].status is Status.OK
        unknown = looked(server.url)
        assert failed(unknown) == {"tls"}
        assert "--ca-cert" in unknown["tls"].figure
        plain = looked(server.url.replace("https", "http"), model="m", seconds=5.0)
        assert failed(plain) >= {"first_token"}


def test_a_certificate_for_another_name_is_told_with_its_names(
    tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_server(tls=tls_files, routes=routes(streamed())) as server:
        monkeypatch.setattr(
            "llm_locust.doctor.server.resolve", lambda *_: [(socket.AF_INET, ("127.0.0.1", server.port))]
        )
        found = looked(f"https://vllm.example:{server.port}", ca_cert=Path(tls_files.ca))
    assert failed(found) == {"tls"}
    assert "the certificate is for localhost" in found["tls"].figure
    assert "the URL has 'vllm.example'" in found["tls"].figure


def test_tls_at_a_port_without_it_says_so() -> None:
    with scripted_server(routes=routes(streamed())) as server:
        found = looked(server.url.replace("http", "https"), seconds=5.0)
    assert failed(found) == {"tls"}


HEAD = response_head()
FOREVER = chunk(sse(chat_chunk("word "))) * 100

#: Servers that hang, drip, flood or lie: scripts of the list of models and of the stream.
HOSTILE: dict[str, dict[str, Script]] = {
    "hangs": always([Step(stall=True)]),
    "hangs after the list": routes([Step(stall=True)]),
    "hangs after the head": routes([write(0, HEAD), Step(stall=True)]),
    "drips a head": always([write(20 * i, b"x" if i else b"HTTP/1.1 200 OK\r\nX: ") for i in range(500)]),
    "drips comments": routes(
        [write(0, HEAD), *(write(20 * i, chunk(b": still there\n\n")) for i in range(500))]
    ),
    "drips tokens": routes(
        [write(0, HEAD), *(write(20 * i, chunk(sse(chat_chunk("w")))) for i in range(500))]
    ),
    "closes at once": always([Step(close=True)]),
    "resets": always([Step(reset=True)]),
    "is no HTTP": always([write(0, b"SSH-2.0-OpenSSH_9.2\r\n"), Step(close=True)]),
    "redirects": always([write(0, response_head(302, {"Location": "http://\x1b[31m/"}, content_length=0))]),
    "answers HTML": always(
        [write(0, response_head(content_length=4, content_type="text/html") + b"<p>\x00")]
    ),
    "floods the list": routes(
        streamed(2), [write(0, response_head(chunked=False)), Step(send_b64=b"[" * 65_536, repeat=100)]
    ),
    "floods the stream": routes([write(0, HEAD), Step(send_b64=FOREVER, repeat=2_000), Step(close=True)]),
    "lists very many models": routes(
        streamed(2), [write(0, json_response({"data": [{"id": f"m{i}"} for i in range(20_000)]}))]
    ),
    "names itself with colours": routes(
        streamed(4, headers={"Server": "\x1b[31mred\x07" + "r" * 500, "Date": "\x1b[2J"}),
        [write(0, json_response({"data": [{"id": "\x1b]0;title\x07m\u202e" + "m" * 9_000}]}))],
    ),
    "counts wrongly": routes(
        [
            write(0, HEAD + chunk(sse(chat_chunk("a")) + sse(chat_chunk(finish_reason="stop")))),
            write(0, chunk(sse(chat_chunk(usage=usage_counts(-5, 10**18))) + sse("[DONE]")) + last_chunk()),
        ]
    ),
    "sends other JSON": routes(
        [write(0, HEAD + chunk(sse("[[[1]]]") + sse('{"choices": 7}') + sse("null")) + last_chunk())]
    ),
    "calls it an error": routes([write(0, HEAD + chunk(sse({"error": {"message": "\x1b[31m" * 99}})))]),
}


@pytest.fixture(scope="module")
def hostile() -> Iterator[ScriptedServer]:
    """One server, with each case below a path of its own."""
    everything = {
        f"/{place}{path}": script
        for place, case in enumerate(HOSTILE.values())
        for path, script in case.items()
    }
    with scripted_server(routes=everything) as server:
        yield server


def test_an_answer_without_a_token_was_not_read_late() -> None:
    assert not was_read_late(answer([], outcome=Outcome.TIMEOUT, client_lag_ns=10**9), answer([5.0]))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_a_failure_in_words_and_in_time(name: str, hostile: ScriptedServer) -> None:
    url, began_s = f"{hostile.url}/{[*HOSTILE].index(name)}", time.monotonic()
    found = looked(url, seconds=0.7)
    took_s = time.monotonic() - began_s
    assert took_s < 60  # not for ever; how fast this machine is, is not judged
    results = [Result(check, found[check.key]) for check in SERVER_CHECKS]
    assert failed(found) or name in ("counts wrongly", "lists very many models", "names itself with colours")
    shown(results, url)


def shown(results: Sequence[Result], url: str) -> str:
    """The page at 80 and 140 columns: fit for a terminal, without a line that is too long."""
    text = ""
    for width in (80, 140):
        page = io.StringIO()
        print_results(results, url, page, width)
        text = page.getvalue()
        assert all(line.isprintable() and len(line) <= width for line in text.splitlines())
    json.loads(as_json(results))
    return text


def test_no_time_is_no_answer_and_never_a_success() -> None:
    with scripted_server(routes=routes(streamed())) as server:
        found = looked(server.url, seconds=0.0)
    assert failed(found) == {"dns"}
    assert "no time was left" in found["dns"].figure


def test_a_server_that_accepts_and_never_answers_takes_the_time_of_all_looks_and_no_more() -> None:
    with scripted_server(routes={"*": [Step(stall=True)]}) as server:
        left = TimeLeft(3.0)
        results = examine(asked(target=Target.parse(server.url), model="m"), left)
    found = {result.check.key: result.finding for result in results}
    assert found["models"].status is Status.FAIL
    assert found["first_token"].status in (Status.FAIL, Status.SKIPPED)
    assert {found[key].status for key in ("stream", "usage", "end", "keep_alive")} == {Status.SKIPPED}
    with pytest.raises(OutOfTimeError):
        left.at_most(1.0)  # every look had waited as long as it may


def test_a_request_that_does_not_end_by_its_own_limits_is_ended_by_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("llm_locust.doctor.server.DoctorRequester.stream", lambda *_: gevent.sleep(1e6))
    with scripted_server(routes=routes(streamed())) as server:
        found = looked(server.url, seconds=2.0)
    assert found["models"].status is Status.OK
    assert found["first_token"].figure == NO_TIME


def test_time_is_shared_out() -> None:
    now_s = [0.0]
    left = TimeLeft(10.0, lambda: now_s[0])
    assert left.at_most(3.0) == 3.0
    now_s[0] = 9.0
    assert left.at_most(3.0) == pytest.approx(1.0)
    now_s[0] = 10.0
    with pytest.raises(OutOfTimeError):
        left.at_most(3.0)


def test_kubernetes_that_hangs_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: b}}]\n"
        'clusters: [{name: b, cluster: {server: "SERVER"}}]\n'
    )
    with silent_port() as port:
        config = tmp_path / "config"
        config.write_text(config.read_text().replace("SERVER", f"http://127.0.0.1:{port}"))
        access = look_around({"KUBECONFIG": str(config)}, TimeLeft(0.5))
    assert access is not None
    assert access.error is not None


def test_this_machine_is_examined_without_a_server() -> None:
    results = examine(asked())
    assert [result.check for result in results] == list(HOST_CHECKS)
    page = shown(results, "")
    assert "Verdict" in page
    assert exit_code(results) in (0, 2)


# --- Checks of an answer: streamed or held back, usage, its end, the kept connection


FIRST = answer([50.0])
NGINX = {b"server": b"nginx"}


def steady(begin_ms: float, gap_ms: float, events: int) -> list[float]:
    return [begin_ms + gap_ms * i for i in range(events)]


GOOD = answer(steady(50, 0, 1))
BAD = answer([], outcome=Outcome.HTTP_ERROR, status=404, error="no such model")


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        ({}, Status.SKIPPED, "the run asks for one model"),
        ({"b": GOOD}, Status.OK, "1 further model answered"),
        ({"b": GOOD, "c": GOOD}, Status.OK, "2 further models answered"),
        ({"b": GOOD, "c": BAD, "d": BAD}, Status.FAIL, "c: "),
        ({"b": GOOD, "c": BAD, "d": BAD}, Status.FAIL, "; 2 of 3 further models"),
        ({"b": BAD}, Status.FAIL, "no such model"),
        ({"b": GOOD, "c": "no time was left"}, Status.SKIPPED, "no time was left for 1 of 2 further models"),
        ({"b\x1b[31m": BAD}, Status.FAIL, "b"),
    ],
)
def test_a_model_of_a_split_that_does_not_answer_is_named(
    seen: dict[str, SeenStream | str], status: Status, words: str
) -> None:
    finding = judge_others(seen)
    judged(finding, status, words)
    assert "\x1b" not in finding.figure


#: Three writes of eight events each, 200 ms apart.
BURSTS = [at for begin in (200.0, 400.0, 600.0) for at in steady(begin, 0.01, 8)]


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (answer(steady(50, 12, 32)), Status.OK, "32 events, 12.0 ms between two"),
        (answer(steady(50, 0.4, 32)), Status.OK, "0.400 ms between two"),
        (answer(steady(434, 0, 32), headers=NGINX), Status.FAIL, "nginx: `proxy_buffering off;`"),
        (answer(steady(434, 0.02, 32)), Status.FAIL, "435 ms after the request: a proxy held it back"),
        (answer(steady(51, 0.01, 32)), Status.WARN, "cannot tell whether the server is that fast"),
        (answer([434.0], output_tokens=32), Status.FAIL, "32 tokens in 1 event"),
        (answer(BURSTS), Status.FAIL, "in bursts"),
        (answer(steady(50, 50, 8), output_tokens=32), Status.WARN, "4.00 tokens an event"),
        (answer(steady(50, 12, 3)), Status.WARN, "too few to tell"),
        (answer([50.0], output_tokens=1), Status.WARN, "only 1 token"),
        (answer(steady(434, 0, 32), output_tokens=1), Status.FAIL, "a proxy held it back"),
        (
            answer([], outcome=Outcome.TIMEOUT, error="not complete within 10 s (total)"),
            Status.FAIL,
            "timeout: not complete within 10 s",
        ),
        (
            answer([], outcome=Outcome.INVALID, error="a stream was asked for, the answer is text/html"),
            Status.FAIL,
            "the answer is text/html",
        ),
        ("no time was left", Status.SKIPPED, "no time was left"),
    ],
)
def test_a_stream_that_was_held_back_is_told_from_one_that_was_not(
    seen: SeenStream | str, status: Status, words: str
) -> None:
    judged(judge_streaming(seen, FIRST), status, words)


def test_a_burst_is_a_failure_where_no_single_token_is_known() -> None:
    judged(judge_streaming(answer(steady(434, 0, 32)), answer([])), Status.FAIL, "one burst")


def test_a_machine_that_reads_late_does_not_accuse_the_server() -> None:
    lag_ns = 400_000_000
    judged(judge_streaming(answer(steady(434, 0, 32), client_lag_ns=lag_ns), FIRST), Status.WARN, "read late")


def test_reading_a_little_late_hides_neither_a_burst_nor_a_healthy_stream() -> None:
    lag_ns = 20_000_000
    judged(judge_streaming(answer(steady(434, 0, 32), client_lag_ns=lag_ns), FIRST), Status.FAIL, "one burst")
    judged(judge_streaming(answer(steady(50, 12, 32), client_lag_ns=lag_ns), FIRST), Status.OK, "12.0 ms")


@pytest.mark.parametrize(
    ("seen", "status", "words"),
    [
        (answer([43.2]), Status.OK, "after 43.2 ms"),
        (answer([43.2], headers=NGINX), Status.OK, "(nginx)"),
        (answer([], outcome=Outcome.EMPTY), Status.WARN, "without text"),
        (
            answer([], outcome=Outcome.HTTP_ERROR, status=404, error="HTTP 404: no such model"),
            Status.FAIL,
            "HTTP 404: no such model | check the path",
        ),
        (
            answer([], outcome=Outcome.HTTP_ERROR, status=401, error="HTTP 401"),
            Status.FAIL,
            "see the check of the API key",
        ),
        (answer([], outcome=Outcome.HTTP_ERROR, status=503, error="HTTP 503"), Status.FAIL, "log"),
        (answer([], outcome=Outcome.TIMEOUT, status=None, error="no byte"), Status.FAIL, "--timeouts"),
        (answer([], outcome=Outcome.API_ERROR, error="\x1b[31mred\n" + "x" * 999), Status.FAIL, "red xxx"),
        ("no model is known", Status.SKIPPED, "no model is known"),
    ],
)
def test_a_request_that_failed_is_told_with_its_reason(
    seen: SeenStream | str, status: Status, words: str
) -> None:
    finding = judge_first_token(seen)
    judged(finding, status, words)
    assert finding.figure.isprintable()
    assert len(finding.figure) < 300


def test_usage_is_in_the_stream_or_what_is_missing_is_said() -> None:
    seen = answer(steady(50, 10, 32))
    judged(judge_usage(seen), Status.OK, "8 input and 32 output tokens")
    judged(judge_usage(answer([1.0], output_tokens=400)), Status.WARN, "32 were asked for")
    judged(
        judge_usage(answer(steady(50, 10, 32), token_source=TokenSource.EVENTS)), Status.WARN, "--tokenizer"
    )
    judged(judge_usage(answer([], outcome=Outcome.TIMEOUT)), Status.SKIPPED, "not complete")
    judged(judge_usage("no time"), Status.SKIPPED)


def test_the_end_of_a_stream_is_looked_for_where_the_api_has_one() -> None:
    seen = answer([1.0])
    judged(judge_end(seen, CHAT), Status.OK, "finish reason stop, [DONE]")
    judged(judge_end(replace(seen, has_done=False), CHAT), Status.WARN, "no [DONE]")
    judged(judge_end(replace(seen, has_done=False), MESSAGES), Status.OK, "finish reason stop")
    endless = replace(seen, reply=replace(reply(), done=False, finish_reason=None))
    judged(judge_end(endless, CHAT), Status.FAIL, "neither a finish reason")
    given_up = replace(seen, reply=replace(reply(), finish_reason="network_error", error="it ended"))
    judged(judge_end(given_up, CHAT), Status.FAIL, "finish reason network_error, after an error")
    judged(judge_end(answer([1.0], outcome=Outcome.TIMEOUT), CHAT), Status.SKIPPED, "not complete")
    judged(judge_end("no time", CHAT), Status.SKIPPED)


def test_a_connection_that_is_not_kept_is_named() -> None:
    judged(judge_keep_alive(answer([1.0], reused=True)), Status.OK)
    judged(judge_keep_alive(answer([1.0])), Status.WARN, "closes the connection")
    closing = answer([1.0], headers={b"connection": b"close"})
    judged(judge_keep_alive(closing), Status.WARN, "(Connection: close)")
    judged(judge_keep_alive("no time"), Status.SKIPPED)


def test_a_handshake_for_each_request_is_told_to_be_in_ttft_with_connecting_and_not_in_ttft() -> None:
    change = judge_keep_alive(answer([1.0])).change
    assert "connect, and TTFT with connecting; not in TTFT" in change
