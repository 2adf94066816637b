"""A swarm against ``transformers serve``: a server that nobody of this project wrote.

Its stream always has usage, in the chunk with the finish reason, never ``[DONE]``, and fewer events than
tokens.
"""

import http.client
import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.servers import HOST, MODEL, Server
from e2e.swarm import CHAT, Run, load

pytestmark = pytest.mark.e2e

ONE_QUESTION = Path(__file__).with_name("one_question.py")
QUESTION = Path(__file__).with_name("question.json")
USERS = 4
REQUESTS = 64
OUTPUT_TOKENS = 16  # fewer can all be bytes of no character, which the server holds back
LOAD = ["-u", str(USERS), "-r", str(USERS), "-t", "180s"]

#: The sampling that gives one question one answer. The penalty keeps the random model from saying one token
#: for ever, which might be a byte that is never a character.
GREEDY = {"temperature": 0, "frequency_penalty": 1.0, "max_tokens": 16}
KNOWN = [*LOAD, "--num-requests", "8", "--body", json.dumps(GREEDY)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer as the standard library reads it, without any of the project's code."""

    text: str
    events: int  # chunks with text
    prompt_tokens: int
    completion_tokens: int


def served(server: Server) -> int:
    """Chat completions that the server's own log tells of."""
    return server.log.read_text(encoding="utf-8").count('"POST /v1/chat/completions HTTP/1.1" 200')


def ask(server: Server) -> Answer:
    """The greedy answer to the one question, streamed."""
    messages = json.loads(QUESTION.read_text(encoding="utf-8"))
    body = {"model": MODEL, "messages": messages, "stream": True, **GREEDY}
    with closing(http.client.HTTPConnection(HOST, server.port, timeout=60)) as connection:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        stream = connection.getresponse().read().decode()
    chunks = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n") if line]
    texts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    usage = chunks[-1]["usage"]
    return Answer("".join(texts), sum(map(bool, texts)), usage["prompt_tokens"], usage["completion_tokens"])


@pytest.fixture(scope="module")
def counted(transformers_serve: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """Lengths that no tokenizer makes, and how many requests the server served; the model is found by
    ``/v1/models``."""
    arguments = [*LOAD, "--num-requests", str(REQUESTS), "--input-tokens", "uniform:200,500"]
    arguments += ["--output-tokens", str(OUTPUT_TOKENS)]
    before = served(transformers_serve)
    run = load(transformers_serve.url, tmp_path_factory.mktemp("counted") / "run", CHAT, arguments)
    return run, served(transformers_serve) - before


@pytest.fixture(scope="module")
def run(counted: tuple[Run, int]) -> Run:
    return counted[0]


def test_the_run_ends_with_exit_code_0(run: Run) -> None:
    assert run.exit_code == 0, run.output


def test_every_request_is_ok_and_in_the_servers_log(counted: tuple[Run, int]) -> None:
    run, in_log = counted
    assert Counter(row["outcome"] for row in run.rows) == {"ok": REQUESTS}, run.output
    assert in_log == REQUESTS
    assert len({row["request_id"] for row in run.rows}) == REQUESTS


def test_every_token_count_is_the_servers_usage(run: Run) -> None:
    assert {row["token_source"] for row in run.ok} == {"usage"}
    assert {row["output_tokens"] for row in run.ok} == {OUTPUT_TOKENS}
    assert {row["finish_reason"] for row in run.ok} == {"length"}


def test_both_workers_ask_different_questions(run: Run) -> None:
    assert len({row["worker"] for row in run.rows}) == 2
    assert len({row["input_tokens"] for row in run.ok}) > 5


def test_the_model_is_the_only_one_that_the_server_lists(run: Run) -> None:
    assert {row["model"] for row in run.rows} == {MODEL}
    assert run.summary["run"]["model"] == MODEL


def test_every_request_has_times_that_can_be(run: Run) -> None:
    for row in run.ok:
        arrivals = row["arrivals_ns"]
        assert arrivals == sorted(arrivals)
        assert arrivals[0] > 0
        assert row["sent_ns"] + arrivals[-1] <= row["ended_ns"]


def test_the_summary_counts_what_the_records_hold(run: Run) -> None:
    requests = run.summary["requests"]
    assert (requests["scheduled"], requests["ok"], requests["failed"]) == (REQUESTS, REQUESTS, 0)
    assert run.summary["latency_ms"]["ttft"]["n"] == REQUESTS
    assert run.summary["throughput"]["output_tokens_per_s"] > 0


def test_without_a_tokenizer_the_first_counts_correct_the_lengths_and_the_report_states_the_error(
    run: Run,
) -> None:
    rows = sorted(run.rows, key=lambda row: row["sent_ns"])
    errors = [row["input_tokens"] / row["asked_input_tokens"] - 1 for row in rows]
    # This tokenizer knows few words: most are several tokens.
    assert sum(errors[:10]) / 10 > 0.5
    assert abs(sum(errors[-32:]) / 32) < 0.05
    assert run.summary["tokens"]["input"]["error"]["n"] == len(run.ok)


def test_the_summary_says_that_an_event_is_more_than_a_token(run: Run) -> None:
    events = sum(len(row["arrivals_ns"]) for row in run.ok)
    tokens = sum(row["output_tokens"] for row in run.ok)
    assert tokens > events
    assert run.summary["tokens"]["tokens_per_event"] == pytest.approx(tokens / events, rel=0.02)


def test_nothing_that_a_worker_announced_is_missing(run: Run) -> None:
    completeness = run.summary["completeness"]
    assert completeness["complete"] is True
    assert completeness["workers_seen"] == completeness["workers_expected"] == 2
    assert completeness["workers_lost"] == 0
    assert completeness["records_announced"] == completeness["records_received"] == len(run.rows)


def test_a_known_answer_with_broken_characters_is_read_as_it_was_sent_by_way_of_nginx_too(
    transformers_serve: Server, nginx: Server, tmp_path: Path
) -> None:
    truth = ask(transformers_serve)
    assert "\N{REPLACEMENT CHARACTER}" in truth.text
    both = ["--targets", f"{transformers_serve.url},{nginx.url}", "--replica-header", "X-Upstream"]
    run = load(transformers_serve.url, tmp_path / "run", ONE_QUESTION, [*KNOWN, *both])
    assert known(run) == {expected(truth)}, run.output
    assert {row["peer"] for row in run.ok} == {transformers_serve.address, nginx.address}
    assert {row["replica"] for row in run.ok} == {transformers_serve.address}


def known(run: Run) -> set[tuple[int, int, int, int]]:
    """Every distinct answer of a run: characters, events, tokens in, tokens out."""
    return {
        (row["output_chars"], len(row["arrivals_ns"]), row["input_tokens"], row["output_tokens"])
        for row in run.ok
    }


def expected(truth: Answer) -> tuple[int, int, int, int]:
    return len(truth.text), truth.events, truth.prompt_tokens, truth.completion_tokens
