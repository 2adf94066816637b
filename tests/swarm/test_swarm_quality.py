"""Answers held against validators and expected answers: one record for all who hear of it."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calls import GOOD, caller
from hypothesis import given, strategies as st
from scripted import ScriptedServer
from swarm_process import Process, Result, in_parallel, locust, simulation

from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.swarm.users.traffic import SLOW_S, Judge, answer_hash, judged, prompt_key
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import ReplyReader
from llm_locust.workload.answers import CompiledValidator, Validator, checks_of, expected_answer
from llm_locust.workload.prompts import Prompt

EMPTY = ReplyReader(CHAT).finish()


def answered(text: str, outcome: Outcome = Outcome.OK) -> Answer:
    record = RequestRecord(
        request_id="r", name="chat", outcome=outcome, scheduled_ns=1, started_ns=1, ended_ns=2, reads=3
    )
    return Answer(record, replace(EMPTY, text=text))


def checks(
    *validators: Validator | Callable[[str, Prompt | None], bool | str],
) -> tuple[CompiledValidator, ...]:
    return checks_of(validators)


def stumbles(answer: str, prompt: Prompt | None) -> bool:
    raise KeyError(answer)


def test_an_answer_that_holds_keeps_its_record() -> None:
    answer = answered("Paris")
    assert judged(answer, checks(Validator("contains", "Paris"))) == answer.record


def test_the_first_validator_that_says_no_rejects_the_answer_and_is_named() -> None:
    found = judged(
        answered("Rome"),
        checks(Validator("contains", "o"), Validator("contains", "Paris"), Validator("regex", "x")),
    )
    assert (found.outcome, found.rejected_by) == (Outcome.REJECTED, "contains 'Paris'")
    assert found.error == "contains 'Paris': 'Paris' is not in the answer"
    assert found.reads == 3


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.OK])
def test_a_request_that_is_not_ok_is_not_judged(outcome: Outcome) -> None:
    answer = answered("Rome", outcome)
    assert judged(answer, checks(stumbles), expected_answer("Rome"), hashed=True) is answer.record


def test_a_rejected_answer_is_compared_and_hashed_all_the_same() -> None:
    found = judged(answered("Rome"), checks(Validator("regex", "x")), expected_answer("rome"), hashed=True)
    assert (found.outcome, found.correct) == (Outcome.REJECTED, True)
    assert found.answer_hash == answer_hash("Rome")


def test_an_exception_of_a_users_function_rejects_and_is_told() -> None:
    told: list[str] = []
    found = judged(
        answered("x"), checks(stumbles), failed=lambda check, error: told.append(f"{check.name} {error!r}")
    )
    assert (found.outcome, found.rejected_by) == (Outcome.REJECTED, "function stumbles")
    assert found.error == "function stumbles: KeyError: 'x'"
    assert told == ["function stumbles KeyError('x')"]


def test_what_a_user_must_know_is_said_once_for_a_class_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    judge = Judge(checks(stumbles), match="choice")
    for _ in range(3):
        check = judge.check(None, "no letter")
        assert check is not None
        assert check(answered("x")).correct is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    compared, raised = (record.message for record in caplog.records)
    assert compared == "answers are not compared: expected choice 'no letter': a letter from A to E"
    assert raised == ("validator 'function stumbles' raised KeyError('x'): its answers count as rejected")


def test_a_function_that_holds_the_loop_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def slow(answer: str, prompt: Prompt | None) -> bool:
        end = time.perf_counter() + SLOW_S
        while time.perf_counter() <= end:
            pass
        return True

    check = Judge(checks(slow)).check(None)
    assert check is not None
    assert [check(answered("x")).outcome for _ in range(2)] == [Outcome.OK] * 2
    (record,) = caplog.records
    assert "must neither wait nor compute for long" in record.message


def test_where_there_is_nothing_to_hold_an_answer_against_no_check_is_made() -> None:
    assert Judge().check(Prompt(text="hello")) is None
    assert Judge().check(Prompt(text="hello"), hashed=True) is not None
    assert Judge(consistency=True).check(None) is not None


def test_a_plain_expected_answer_is_compared_as_the_class_says() -> None:
    check = Judge(match="number").check(Prompt(text="1 + 1?"), "2")
    assert check is not None
    assert check(answered("that makes 2.0 in all")).correct is True
    assert check(answered("3")).correct is False


@given(st.text(max_size=20), st.text(max_size=20))
def test_equal_answers_and_no_others_have_equal_hashes_of_64_bits(one: str, other: str) -> None:
    assert (answer_hash(one) == answer_hash(other)) is (one == other)
    assert -(2**63) <= answer_hash(one) < 2**63


def test_a_prompt_without_an_id_is_told_by_its_body() -> None:
    assert prompt_key(b"{}") == prompt_key(b"{}") != prompt_key(b"{ }")


def test_the_caller_and_the_sink_get_the_record_that_the_check_gave(server: ScriptedServer) -> None:
    judge = Judge(checks(Validator("contains", "never said")))
    with caller(server.url) as client:
        answer = client.ask((GOOD,), check=judge.check(None))
        assert answer.record.outcome is Outcome.REJECTED
        assert client.answers == [answer]
        assert len(answer.record.arrivals_ns) == 1


def test_a_call_whose_check_is_torn_away_has_its_record(server: ScriptedServer) -> None:
    """A user's function that waits can be killed there, with its user."""

    def torn(answer: Answer) -> RequestRecord:
        raise KeyboardInterrupt

    with caller(server.url) as client:
        with pytest.raises(KeyboardInterrupt):
            client.ask((GOOD,), check=torn)
        assert [a.record.outcome for a in client.answers] == [Outcome.OK]


LOCUSTFILE = '''
import json
from pathlib import Path

import gevent
import locust
from locust import task

from llm_locust import ChatUser, OpenAIUser, events
from llm_locust.workload.answers import Validator


def note(file, value):
    with Path(file).open("a") as lines:
        lines.write(json.dumps(value) + "\\n")


@events.llm_request.add_listener
def on_llm_request(record, **_):
    note("heard.jsonl", [record.request_id, record.outcome])


@locust.events.request.add_listener
def on_request(name, exception, **_):
    note("fired.jsonl", [name, exception and str(exception)])


def stumbles(answer, prompt):
    raise RuntimeError("of my own")


def by_prompt(answer, prompt):
    return "as asked" if prompt.text == "refuse" else len(answer) > 0


class Paced(ChatUser):
    abstract = True
    fixed_count = 1

    def wait_time(self):
        return 0.05


class Quiz(Paced):
    """Sends the dataset's lines, again and again."""

    request_name = "quiz"
    expected = "exact"

    @task
    def ask_one(self):
        self.chat()


class Own(Paced):
    validators = (Validator("max_repetition", 0.9), by_prompt)

    @task
    def ask_both(self):
        assert self.chat("refuse", name="refused").record.outcome in ("rejected", "cancelled")
        assert self.chat("go on", name="passed").record.outcome in ("ok", "cancelled")


class Strict(Paced):
    request_name = "strict"
    validators = [Validator("json_schema", {"type": "object"})]
    consistency = True

    @task
    def ask_one(self):
        self.chat("in JSON, please")


class Broken(Paced):
    request_name = "broken"
    validators = (stumbles,)

    @task
    def ask_one(self):
        self.chat("anything")


class Sdk(OpenAIUser):
    fixed_count = 1
    request_name = "sdk"
    validators = (Validator("contains", "no model says this"),)

    @task
    def ask_one(self):
        gevent.sleep(0.05)
        messages = [{"role": "user", "content": "hello"}]
        for _ in self.client.chat.completions.create(
            model=self.model, messages=messages, stream=True, max_tokens=5
        ):
            pass
'''

LINES = [
    {"id": "always", "prompt": "one", "expected": {"regex": "."}},
    {"id": "never", "prompt": "two", "expected": "no model says this"},
    {"prompt": "three"},
]

UNUSABLE = """
from locust import task

from llm_locust import ChatUser
from llm_locust.workload.answers import Validator


class Wrong(ChatUser):
    validators = (Validator("regex", "("),)

    @task
    def ask_one(self):
        self.chat()
"""


def _run(folder: Path, locustfile: str, *options: str) -> tuple[int, Process]:
    path = folder / "locustfile.py"
    path.write_text(locustfile)
    with (
        simulation(folder) as sim,
        locust(folder, "--headless", "-H", sim.url, *options, locustfile=path) as process,
    ):
        return process.exit_code(), process


def _good(folder: Path) -> tuple[int, Process]:
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    options = ["-u", "5", "-r", "100", "-t", "4s", "--out", "run", "--output-tokens", "10"]
    return _run(folder, LOCUSTFILE, *options, "--dataset", "lines.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("quality")
    unusable = lambda place: _run(place, UNUSABLE, "-u", "1", "-t", "2s")  # noqa: E731
    return in_parallel(folder, {"good": _good, "unusable": unusable}) | {"folder": folder}


@pytest.fixture
def process(runs: dict[str, Any]) -> Process:
    ended: Process = runs["good"][1]
    return ended


@pytest.fixture
def result(runs: dict[str, Any]) -> Result:
    return Result.read(runs["folder"] / "good" / "run")


def named(result: Result, name: str) -> list[dict[str, Any]]:
    """The records of this name that were not cut off by the run's end."""
    found = [row for row in result.rows().values() if row["name"] == name and row["outcome"] != "cancelled"]
    assert len(found) > 1
    return found


def noted(runs: dict[str, Any], file: str) -> list[Any]:
    return [json.loads(line) for line in (runs["folder"] / "good" / file).read_text().splitlines()]


def test_a_users_validators_reject_its_answers_and_name_themselves(result: Result) -> None:
    said = {
        name: {(row["outcome"], row["rejected_by"]) for row in named(result, name)}
        for name in ("refused", "passed", "strict", "broken", "sdk", "quiz")
    }
    assert said == {
        "refused": {("rejected", "function by_prompt")},
        "passed": {("ok", None)},
        "strict": {("rejected", "json_schema")},
        "broken": {("rejected", "function stumbles")},
        "sdk": {("rejected", "contains 'no model says this'")},
        "quiz": {("ok", None)},
    }


def test_a_rejected_answer_keeps_its_token_times(result: Result) -> None:
    assert all(len(row["arrivals_ns"]) > 0 for row in named(result, "strict"))


def test_locust_counts_a_rejected_answer_as_a_failure_with_its_reason(
    runs: dict[str, Any], result: Result
) -> None:
    failures = Counter(name for name, failure in noted(runs, "fired.jsonl") if failure)
    assert failures.keys() == {"refused", "strict", "broken", "sdk"}
    assert failures["strict"] == len(named(result, "strict"))
    texts = dict(noted(runs, "fired.jsonl"))
    assert texts["refused"] == "rejected: function by_prompt: as asked"
    assert texts["strict"] == "rejected: json_schema: the answer is not JSON"


def test_listeners_hear_of_the_record_that_is_written(runs: dict[str, Any], result: Result) -> None:
    heard = dict(noted(runs, "heard.jsonl"))
    assert heard == {key: row["outcome"] for key, row in result.rows().items()}


def test_an_exception_of_a_users_function_is_said_once(process: Process, result: Result) -> None:
    assert len(named(result, "broken")) > 1
    said = [line for line in process.lines if "function stumbles" in line and " WARNING: " in line]
    assert len(said) == 1
    assert "RuntimeError('of my own'): its answers count as rejected" in said[0]
    assert "Traceback" not in process.stderr


def test_the_datasets_expected_answers_are_compared(result: Result) -> None:
    correct = {(row["prompt_id"], row["correct"]) for row in named(result, "quiz")}
    assert correct == {("always", True), ("never", False), (None, None)}


def test_answers_are_hashed_where_a_prompt_has_an_id_or_consistency_is_asked(result: Result) -> None:
    for row in named(result, "quiz"):
        assert (row["answer_hash"] is None) is (row["prompt_id"] is None)
    assert len({row["prompt_id"] for row in named(result, "strict")}) == 1
    assert all(row["answer_hash"] is not None for row in named(result, "strict"))
    assert all(row["answer_hash"] is row["prompt_id"] is None for row in named(result, "passed"))


def test_the_summary_and_the_report_say_how_good_the_answers_were(result: Result) -> None:
    found = result.summary["quality"]
    assert set(found["rejected"]["by"]) == {
        "function by_prompt",
        "json_schema",
        "function stumbles",
        "contains 'no model says this'",
    }
    assert found["accuracy"]["n"] > 1
    assert result.summary["by_name"]["quiz"]["quality"]["accuracy"]["ratio"] == found["accuracy"]["ratio"]
    assert found["consistency"]["prompts"] == 3
    assert sum(found["finish_reasons"].values()) == found["answers"]
    assert "answers compared" in (report := result.report())
    assert "rejected" in report


def test_a_validator_that_cannot_be_used_ends_the_run_before_it_begins(runs: dict[str, Any]) -> None:
    code, process = runs["unusable"]
    (said,) = process.said
    assert "Wrong.validators: pattern '('" in said
    assert code == 2
