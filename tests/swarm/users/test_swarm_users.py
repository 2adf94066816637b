"""Users as a locustfile writes them: what they send, what they hear, how they end."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Process, Result, forked, in_parallel, locust, simulation

#: What both locustfiles begin with: every record and every request event is written down as it comes.
LISTENERS = """
import gc
import json
from pathlib import Path

import gevent
import locust
from locust import task

from llm_locust import ChatUser, CompletionUser, OpenAIUser, RequestRecord, events


def note(file, value):
    with Path(file).open("a") as lines:
        lines.write(json.dumps(value) + "\\n")


@events.llm_request.add_listener
def on_llm_request(record: RequestRecord, **_):
    note("heard.jsonl", [record.request_id, record.outcome, record.arrivals_ns.tolist()])


@locust.events.request.add_listener
def on_request(request_type, name, response_time, response_length, exception, **_):
    note("fired.jsonl", [request_type, name, response_time, response_length, exception and str(exception)])
"""

KINDS = """
class Chat(ChatUser):
    slo_class = "talk"

    @task
    def each_way(self):
        self.chat()
        self.chat("just a text", name="text")
        answer = self.chat([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}])
        assert answer.record.outcome == "ok" or answer.record.error
        assert answer.reply.text or answer.record.outcome != "ok"


class Completion(CompletionUser):
    request_name = "complete"

    @task
    def each_way(self):
        self.complete()
        self.complete("once upon a time", name="story")


class Sdk(OpenAIUser):
    def ask(self, tokens=12, **more):
        return self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=tokens,
            extra_body={"ignore_eos": True},
            **more,
        )

    @task
    def each_way(self):
        self.request_name = "streamed"
        pieces = [chunk for chunk in self.ask(stream=True, stream_options={"include_usage": True})]
        assert len(pieces) > 2
        self.request_name = "whole"
        assert self.ask().choices[0].message.content
        self.request_name = "left"
        with self.ask(400, stream=True) as stream:
            next(iter(stream))
        self.request_name = "dropped"
        for _ in self.ask(400, stream=True):
            break
        # The SDK has a reference cycle: without this the stream may be open until the run ends. Of all ages,
        # because another user's collection may have promoted it while its first chunk was awaited.
        gc.collect()
        self.request_name = "moderations"
        try:
            self.client.moderations.create(model=self.model, input="hello")
        except Exception as e:
            note("raised.jsonl", type(e).__name__)
"""

ENDS = '''
class Polite(ChatUser):
    """Sends a last request when it is stopped."""

    fixed_count = 2

    @task
    def ask_one(self):
        self.chat(name="ask")

    def on_stop(self):
        assert self.chat(name="bye").record.outcome == "ok"


class Untidy(ChatUser):
    """Leaves a greenlet behind that goes on after its user is gone."""

    fixed_count = 1

    def on_start(self):
        gevent.spawn(self.go_on)

    def go_on(self):
        while True:
            self.chat(name="behind")

    @task
    def idle(self):
        gevent.sleep(60)


class Sdk(OpenAIUser):
    """Is in the middle of a stream, or of a whole answer, when the run ends."""

    fixed_count = 2

    @task
    def read_on(self):
        messages = [{"role": "user", "content": "hello"}]
        stream = self.number % 2 == 0
        self.request_name = "long stream" if stream else "long whole"
        answer = self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            max_tokens=4000,
            stream=stream,
            extra_body={"ignore_eos": True},
        )
        for _ in answer:
            pass
'''


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    process: Process
    result: Result
    truth: dict[str, dict[str, Any]]
    folder: Path

    def noted(self, file: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / file).read_text().splitlines()]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.result.rows().values() if row["name"] == name]


def _run(folder: Path, locustfile: str, *options: str) -> Ended:
    path = folder / "locustfile.py"
    path.write_text(LISTENERS + locustfile)
    usual = ["--headless", "-r", "100", "-t", "4s", "--out", "run", "--output-tokens", "10"]
    with (
        simulation(folder) as sim,
        locust(folder, *usual, *options, "-H", sim.url, locustfile=path) as process,
    ):
        code = process.exit_code()
        truth = {entry["request_id"]: entry for entry in sim.entries()}
        return Ended(code, process, Result.read(folder / "run"), truth, folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return in_parallel(
        tmp_path_factory.mktemp("users"),
        {
            "kinds": lambda folder: _run(folder, KINDS, "-u", "6", *forked(1)),
            "ends": lambda folder: _run(folder, ENDS, "-u", "5", "--drain", "1s"),
        },
    )


@pytest.fixture
def kinds(runs: dict[str, Ended]) -> Ended:
    return runs["kinds"]


@pytest.fixture
def ends(runs: dict[str, Ended]) -> Ended:
    return runs["ends"]


def test_no_user_raises(runs: dict[str, Ended]) -> None:
    assert "Traceback" not in runs["kinds"].process.stderr
    assert " ERROR: " not in runs["kinds"].process.stderr


def test_the_sdks_http_library_logs_no_line_for_each_request(runs: dict[str, Ended]) -> None:
    """httpx has one at INFO, the level of Locust's log: 600 lines/s at 600 requests/s."""
    for run in runs.values():
        assert len(run.result.rows()) > 5
        assert "HTTP Request" not in run.process.stderr + run.process.stdout


def test_a_request_is_named_by_the_call_else_by_the_user_else_by_the_endpoint(kinds: Ended) -> None:
    named = {(row["endpoint"], row["name"]) for row in kinds.result.rows().values()}
    assert named == {
        *(("chat", name) for name in ("chat", "text", "streamed", "whole", "left", "dropped")),
        *(("completions", name) for name in ("complete", "story")),
        ("other", "moderations"),
    }


def test_each_kind_of_user_reaches_its_endpoint(kinds: Ended) -> None:
    for row in kinds.result.rows().values():
        if entry := kinds.truth.get(row["request_id"]):
            assert entry["path"].removeprefix("/v1/").replace("/", ".").startswith(row["endpoint"])
    assert {entry["path"] for entry in kinds.truth.values()} == {"/v1/chat/completions", "/v1/completions"}


def test_own_text_and_messages_are_sent_as_they_are(kinds: Ended) -> None:
    """The simulation counts a prompt's tokens: these two are shorter than the workload's 512."""
    asked = [row for name in ("text", "story") for row in kinds.named(name) if row["outcome"] == "ok"]
    assert asked
    assert all(0 < row["input_tokens"] < 20 and row["asked_input_tokens"] is None for row in asked)
    drawn = [row["asked_input_tokens"] for row in kinds.named("chat") if row["output_tokens"]]
    assert {512, None} == set(drawn)


def test_a_users_class_is_in_its_records(kinds: Ended) -> None:
    assert {row["class"] for row in kinds.named("text")} == {"talk"}
    assert {row["class"] for row in kinds.named("story")} == {""}


def test_the_sdks_requests_are_measured_by_the_same_stamps(kinds: Ended) -> None:
    finished = [row for row in kinds.named("streamed") if row["outcome"] == "ok"]
    assert finished
    for row in finished:
        truth = kinds.truth[row["request_id"]]
        arrivals = [row["sent_ns"] + after for after in row["arrivals_ns"]]
        assert all(sent <= came for sent, came in zip(truth["token_ns"], arrivals, strict=True))
        assert row["output_tokens"] == truth["output_tokens"]
        assert row["token_source"] == "usage"
        assert row["streamed"]


def test_an_answer_that_is_not_streamed_is_ok_and_has_its_usage(kinds: Ended) -> None:
    finished = [row for row in kinds.named("whole") if row["outcome"] != "cancelled"]
    assert {row["outcome"] for row in finished} == {"ok"}
    assert not any(row["streamed"] for row in finished)
    assert all(row["output_tokens"] == kinds.truth[row["request_id"]]["output_tokens"] for row in finished)


@pytest.mark.parametrize("name", ["left", "dropped"])
def test_a_stream_that_its_user_leaves_is_cancelled_and_keeps_its_tokens(name: str, kinds: Ended) -> None:
    rows = kinds.named(name)
    assert {row["outcome"] for row in rows} == {"cancelled"}
    assert any(row["arrivals_ns"] for row in rows)


def test_a_path_that_is_no_generation_is_judged_by_its_status(kinds: Ended) -> None:
    finished = [row for row in kinds.named("moderations") if row["outcome"] != "cancelled"]
    assert {(row["outcome"], row["status"]) for row in finished} == {("http_error", 404)}
    assert set(kinds.noted("raised.jsonl")) == {"NotFoundError"}


def test_llm_request_listeners_on_the_worker_hear_every_record_with_its_token_times(kinds: Ended) -> None:
    heard = {request_id: (outcome, times) for request_id, outcome, times in kinds.noted("heard.jsonl")}
    assert len(heard) == len(kinds.noted("heard.jsonl"))
    rows = kinds.result.rows()
    assert heard == {key: (row["outcome"], row["arrivals_ns"]) for key, row in rows.items()}


def test_locust_hears_of_each_request_once_in_milliseconds_and_not_of_cancelled_ones(kinds: Ended) -> None:
    fired = Counter(
        (kind, name, round(elapsed_ms, 3), length, failure is None)
        for kind, name, elapsed_ms, length, failure in kinds.noted("fired.jsonl")
    )
    assert fired == Counter(
        (
            row["endpoint"],
            row["name"],
            round(_elapsed_ms(row), 3),
            row["bytes_received"],
            row["outcome"] == "ok",
        )
        for row in kinds.result.rows().values()
        if row["outcome"] != "cancelled"
    )


def _elapsed_ms(row: dict[str, Any]) -> float:
    """E2EL; the whole duration where there are no token events."""
    if row["outcome"] == "ok" and row["arrivals_ns"]:
        return float(row["arrivals_ns"][-1] * 1e-6)
    return float((row["ended_ns"] - row["sent_ns"]) * 1e-6)


def test_a_request_of_on_stop_is_sent_and_recorded(ends: Ended) -> None:
    assert [row["outcome"] for row in ends.named("bye")] == ["ok", "ok"]


def test_an_sdk_call_that_the_runs_end_breaks_off_is_cancelled(ends: Ended) -> None:
    (stream,) = ends.named("long stream")
    (whole,) = ends.named("long whole")
    assert stream["outcome"] == whole["outcome"] == "cancelled"
    assert len(stream["arrivals_ns"]) > 10
    assert ends.truth[stream["request_id"]]["disconnected"]


def test_what_a_user_leaves_behind_is_broken_off_recorded_and_sends_nothing_more(ends: Ended) -> None:
    *before, last = sorted(ends.named("behind"), key=lambda row: row["sent_ns"])
    assert len(before) > 3
    # The last answer may have come to its end in the instant in which the run did.
    assert last["outcome"] in ("cancelled", "ok")
    assert ends.truth.keys() == ends.result.rows().keys()
    assert ends.result.manifest.complete
