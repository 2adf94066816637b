"""What a run is told and refused before its first request, and exceptions of its tasks."""

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from parsed_settings import run_settings, settings_of

from llm_locust.core.manifest import MOST_TASK_EXCEPTIONS
from llm_locust.deployment.targets import Arm
from llm_locust.metrics.limits import parse_gates
from llm_locust.options.load import LoadSettings, Slice, parse_load, parse_slice
from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.store import upload
from llm_locust.swarm.process.exits import innermost
from llm_locust.swarm.run.checks import (
    _check_images,
    check_arms,
    check_load,
    fewest_of,
    foreseen,
    own_endpoints,
)
from llm_locust.swarm.run.run import raised_in_tasks
from llm_locust.swarm.run.target_check import host_of
from llm_locust.wire.dialects import DIALECTS, dialect_of
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.workload.arrivals import Process, TraceFile, constant

# --- Gates and loads that do not fit each other are refused before anything is sent


FIND = "max concurrency under p99_ttft<1s"


def test_two_hosts_of_two_classes_are_refused_with_what_loads_both_and_one_host_is_taken() -> None:
    def host(*classes: str, given: str = "", **options: Any) -> str:
        users = [SimpleNamespace(host=each or None) for each in classes]
        environment: Any = SimpleNamespace(user_classes=users, host=given)
        return host_of(environment, run_settings(**options))

    with pytest.raises(UsageError) as error:
        host("http://a:1", "http://key:secret@b:2/v1?key=secret", "http://a:1")
    assert str(error.value) == (
        "the user classes have 2 hosts: 'http://a:1', 'http://b:2/v1'. Give one by -H; or spread the load by "
        "--targets URL,URL, compare the two by --arm NAME=URL, or start a run for each"
    )
    assert host("http://a:1", "", "http://a:1") == "http://a:1"
    assert host("http://a:1", "http://b:2", given="http://c:3") == "http://c:3"
    assert host("http://a:1", "http://b:2", targets="http://c:3,http://d:4") == "http://c:3"
    with pytest.raises(UsageError, match="no host: give -H"):
        host("", "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sweep": "users=1,2", "gate": "goodput>=95%"}, "--gate beside --sweep"),
        ({"find": FIND, "gate": "p99_ttft<1s"}, "only edge is of all loads"),
        ({"find": FIND, "gate": "edge>=3 p99_ttft<1s"}, "only edge is of all loads"),
        ({"gate": "edge>=3"}, "edge is the answer of a search; add --find"),
        ({"sweep": "users=1,2", "gate": "edge>=3"}, "add --find"),
        ({"find": "max rate under p99_ttft<1s"}, "--find requires an OpenLoopUser"),
    ],
)
def test_a_gate_that_no_figure_of_the_run_can_answer_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_load(run_settings(**given), [object])


def test_arms_are_compared_at_one_load() -> None:
    arms = ["a=http://127.0.0.1:1", "b=http://127.0.0.1:2"]
    for load in ({"sweep": "users=1,2"}, {"find": FIND}):
        with pytest.raises(UsageError, match="arms are compared at one load"):
            check_load(run_settings(arm=arms, **load), [object])
    check_load(run_settings(arm=arms), [object])


def test_arms_say_nothing_of_requests_that_a_user_class_builds_itself() -> None:
    class OfPrompts:
        endpoint = "chat"

    found = settings_of("arms: {a: , b: {body: {seed: 1}}}", host="http://127.0.0.1:1")
    check_load(found, [OfPrompts])
    with pytest.raises(UsageError, match="object builds its requests itself, so that those of arm 'b'"):
        check_load(found, [object])


def test_agents_without_trajectories_are_refused() -> None:
    class Agent:
        needs_trajectories = True

    with pytest.raises(UsageError, match="Agent walks through trajectories, and none are given"):
        check_load(run_settings(), [Agent])


def test_images_are_refused_where_no_prompt_can_have_them() -> None:
    class Agent:
        needs_trajectories = True

    class Talk:
        endpoint, dialogues = "chat", ("a recorded one",)

    class Sdk:
        pass

    class Chat:
        endpoint, dialogues = "chat", ()

    found = run_settings(images="size=16x16", trajectories=None)
    check_load(found, [Chat])
    for cls, why in ((Talk, "Talk are asked as they are"), (Sdk, "Sdk builds its requests itself")):
        with pytest.raises(UsageError, match=f"--images: .*{why}"):
            check_load(found, [Chat, cls])
    with pytest.raises(UsageError, match="as recorded"):
        _check_images([Agent])


def test_a_search_may_have_a_gate_on_its_edge_and_a_run_of_one_load_any_other() -> None:
    check_load(run_settings(find=FIND, gate="edge>=3"), [object])
    check_load(run_settings(gate="p99_ttft<1s"), [object])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"find": FIND, "sweep": "users=1,2"}, "--find beside --sweep"),
        ({"find": FIND, "request_rate": "5"}, "--find beside --request-rate"),
        ({"find": FIND, "num_requests": "5"}, "--find beside --num-requests"),
        ({"find": FIND, "max_in_flight": "5"}, "write max rate"),
        ({"find": FIND, "first_load": "2.5"}, "whole number of users"),
        ({"find": "max rate under p99_ttft<1s", "first_load": "1e12"}, "at most 1e.06"),
        (
            {"find": "max rate under certified p99_ttft<1s"},
            "needs 662 requests a stage, and the first one, 4/s for 60 s, has about 240: write "
            "--stage-time 166s or --first-load 12",
        ),
    ],
)
def test_what_would_set_the_load_besides_a_search_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        run_settings(**given)


def test_a_search_begins_with_its_first_load_and_has_its_bounds() -> None:
    load = run_settings(find=FIND, first_load="3", precision="10%", max_stages="7").load
    assert load.sweep is not None
    assert (load.sweep.kind, load.sweep.values) == ("users", (3.0,))
    assert load.search is not None
    bounds = load.search.bounds
    assert (bounds.precision, bounds.most_stages) == (0.1, 7)


# --- What a run is told before its first request


class Chat:
    """A user class of prompts, as far as the checks look."""

    endpoint = "chat"


HTTP = ("http://127.0.0.1:8000",)


def settings(**given: object) -> Settings:
    return parse_settings(argparse.Namespace(**given))


def told(
    *, users: object = None, spawn_rate: object = None, run_time_s: object = None, **given: object
) -> list[str]:
    found = foreseen(settings(**given), HTTP, users=users, spawn_rate=spawn_rate, run_time_s=run_time_s)
    return list(found)


@pytest.mark.parametrize(
    ("gate", "fewest"),
    [
        *(("error_rate<1%", 100), ("goodput>=99.9%", 1000), ("error_rate<=0%", 1), ("p99_ttft<1s", 100)),
        *(("certified p95_ttft<1s", 130), ("p99_itl<1s", 1), ("mean_ttft<1s", 1), ("rps>=5", 1)),
        ("p99_ttft>1ms", 1),
    ],
)
def test_a_gate_says_how_many_requests_it_needs(gate: str, fewest: int) -> None:
    assert fewest_of(*parse_gates(gate)) == fewest


def test_a_gate_that_needs_more_requests_than_are_sent_is_told_beforehand() -> None:
    assert told(gate="error_rate<1%", num_requests=20) == [
        "--gate error_rate<1% needs 100 requests, and --num-requests sends 20: it cannot hold"
    ]
    assert told(gate="error_rate<1%", num_requests=100) == []
    assert told(gate="p99_ttft<1s", request_rate="1", run_time_s=60, warmup="10s") == [
        "--gate p99_ttft<1s needs 100 requests, and the schedule has about 50 in the measured time; "
        "run for 110 s or more"
    ]
    assert told(gate="p99_ttft<1s", request_rate="3", run_time_s=60) == []
    assert told(gate="p99_ttft<1s", run_time_s=60, users=1) == []  # how many it sends is up to the server


def test_a_ramp_that_fills_the_run_is_told_beforehand() -> None:
    (line,) = told(users=12, spawn_rate=0.5, run_time_s=40)
    assert line.startswith("all 12 users are there after 22 s, and the run is 40 s long")
    assert told(users=12, spawn_rate=0.5, run_time_s=60, warmup="22s") == []
    assert told(users=12, spawn_rate=12, run_time_s=40) == []
    assert told(users=100, run_time_s=None) == []
    (line,) = told(request_rate="ramp:1..20,30s", run_time_s=40)
    assert line.startswith("the rate is at its end after 30 s")
    assert told(request_rate="ramp:1..20,10s", run_time_s=40) == []
    assert told(request_rate="steps:1@20s,2@20s", run_time_s=40) == []


def test_files_of_tls_without_tls_are_told_beforehand(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    assert told(ca_cert=str(ca)) == ["--ca-cert has no effect: 'http://127.0.0.1:8000' is not https"]
    https = foreseen(settings(ca_cert=str(ca)), ["https://h"], users=None, spawn_rate=None, run_time_s=None)
    assert list(https) == []


@pytest.mark.parametrize("gate", ["goodput>=95%", "error_rate<1% goodput_rps>=2"])
def test_a_gate_on_goodput_without_limits_of_a_request_is_refused(gate: str) -> None:
    with pytest.raises(UsageError, match="needs limits of a request"):
        check_load(settings(gate=gate), [Chat])
    check_load(settings(gate=gate, slo="ttft=1s"), [Chat])


def test_a_window_of_a_run_is_refused_beside_several_loads() -> None:
    with pytest.raises(UsageError, match="--window: a sweep has several loads"):
        check_load(settings(window="steady", sweep="users=1,2"), [Chat])


def test_a_destination_that_does_not_answer_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert upload.main(["--", str(tmp_path)]) == 0
    assert upload.main(["--", "ftp://there"]) == 1
    assert "unknown kind" in capsys.readouterr().out
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-seen")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    closed = "s3://bucket/there?scheme=http&endpoint_override=127.0.0.1:9&region=eu-central-1"
    assert upload.main(["--", closed]) == 1
    said = capsys.readouterr().out
    assert len(said.strip().splitlines()) == 1
    assert "not-to-be-seen" not in said


# --- A user class's ``endpoint``: a name of the table, or a dialect of the user's own


OWN = replace(CHAT, name="own", template_tokens=20)


def user(endpoint: object) -> Any:
    return type("Asker", (), {"endpoint": endpoint})


def test_an_endpoint_is_a_dialect_or_the_name_of_one() -> None:
    assert [dialect_of(name) for name in DIALECTS] == list(DIALECTS.values())
    users = [user("completions"), user(OWN), user(OWN), user(CHAT), type("Plain", (), {})]
    assert own_endpoints(users) == [COMPLETIONS, OWN, CHAT]


@pytest.mark.parametrize("endpoint", ["chats", "", 3, ["chat"]])
def test_what_is_neither_is_refused_with_the_class_and_the_names(endpoint: object) -> None:
    with pytest.raises(UsageError) as caught:
        own_endpoints([user(endpoint)])
    names = "chat, completions, responses, messages, embeddings, rerank"
    assert str(caught.value) == f"Asker.endpoint: no endpoint {endpoint!r}; there are {names}"


@pytest.mark.parametrize("name", ["", "other", "Chat", "a b", "x" * 41, "é"])
def test_a_dialect_has_a_name_that_tables_can_have(name: str) -> None:
    with pytest.raises(ValueError, match="a short word such as 'chat'"):
        replace(CHAT, name=name)


def test_a_path_starts_at_the_base_and_holds_the_model_in_one_segment() -> None:
    with pytest.raises(ValueError, match="must start with '/', got 'chat'"):
        replace(CHAT, path="chat")
    own = replace(CHAT, path="/models/{model}:stream", whole_path="/models/{model}:whole")
    assert own.path_to("a/b c", stream=True) == "/models/a%2Fb%20c:stream"
    assert own.path_to("m", stream=False) == "/models/m:whole"
    assert CHAT.path_to("m", stream=False) == "/chat/completions"


def test_arms_of_other_requests_need_a_user_class_whose_requests_can_differ() -> None:
    known = parse_settings(argparse.Namespace(), {})
    plain, cold = Arm("plain", "http://a"), Arm("cold", "http://a", prefix="cold")
    by_url = replace(
        known, deployment=structs.replace(known.deployment, arms=(plain, replace(plain, name="other")))
    )
    differ = replace(known, deployment=structs.replace(known.deployment, arms=(plain, cold)))
    sdk: Any = type("Sdk", (), {})
    check_arms(by_url, [sdk])
    check_arms(differ, [user("chat")])
    with pytest.raises(UsageError, match="Sdk builds its requests itself, so that those of arm 'cold'"):
        check_arms(differ, [user("chat"), sdk])


# --- The options of an open loop as checked values


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02d}.0000000,{100 + second},10\n" for second in range(11)
)


def parse(**options: Any) -> LoadSettings:
    return parse_load(argparse.Namespace(**options))


def test_without_options_nothing_is_said_and_users_are_the_rate() -> None:
    assert parse() == parse(arrival="", request_rate=None, num_requests="") == LoadSettings()
    assert parse().users_are_rate
    assert parse().open_loop_option is None


def test_options_become_values() -> None:
    load = parse(arrival="gamma:2", request_rate="50", max_in_flight="8", num_requests="900")
    assert load.arrival == Process(2.0)
    assert load.rate == constant(50.0)
    assert (load.max_in_flight, load.num_requests) == (8, 900)
    assert not load.users_are_rate
    assert load.open_loop_option == "--arrival"


def test_a_trace_is_cut_and_stretched(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    load = parse(arrival=f"trace:{path}", trace_scale="0.5", trace_slice="2s-6s")
    assert load.arrival == TraceFile(path)
    assert load.trace_slice == Slice(start_s=2.0, end_s=6.0)
    assert [(e.at_s, e.input_tokens) for e in load.open_trace()] == [
        (0, 102),
        (0.5, 103),
        (1, 104),
        (1.5, 105),
    ]


def test_a_trace_is_stretched_to_a_rate_and_that_scale_can_be_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(TRACE)
    load = parse(arrival=f"trace:{path}", request_rate="4")
    trace = load.open_trace()
    assert trace.scale == pytest.approx(0.25)
    assert load.open_trace(trace.scale) == trace


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"arrival": "regular"}, "--arrival: arrival 'regular'"),
        ({"request_rate": "-1"}, "--request-rate: "),
        ({"num_requests": "0"}, "--num-requests: '0' is no whole number from 1"),
        ({"max_in_flight": "x"}, "--max-in-flight: 'x'"),
        ({"stop_when": "never"}, "--stop-when: stop rule 'never'"),
        ({"trace_scale": "2"}, "--trace-scale without a trace"),
        ({"trace_slice": "1s-2s"}, "--trace-slice without a trace"),
        ({"arrival": "trace:a.csv", "trace_scale": "0"}, "--trace-scale: scale '0'"),
        ({"arrival": "trace:a.csv", "trace_slice": "5s-2s"}, "--trace-slice: slice '5s-2s'"),
        ({"arrival": "trace:a.csv", "request_rate": "ramp:1..2,5s"}, "--request-rate: a trace has"),
        (
            {"arrival": "trace:a.csv", "request_rate": "5", "trace_scale": "2"},
            "--trace-scale beside --request-rate",
        ),
    ],
)
def test_what_cannot_be_used_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=r"^--") as error:
        parse(**options)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_slice_may_be_open_on_either_side() -> None:
    assert parse_slice("10m-") == Slice(start_s=600.0)
    assert parse_slice("-90s") == Slice(end_s=90.0)
    for text in ("", "-", "10", "10m-x"):
        with pytest.raises(ValueError, match="slice"):
            parse_slice(text)


# --- Exceptions of the locustfile's tasks, as the manifest has them


TRACEBACK = """  File "/venv/lib/python3.12/site-packages/locust/user/task.py", line 340, in run
    self.execute_next_task()
  File "/home/me/tests/asker.py", line 12, in ask
    self.chat(words)
  File "/venv/lib/python3.12/site-packages/llm_locust/swarm/users/users.py", line 90, in chat
    raise TypeError
"""


def row(msg: str, count: int = 1, traceback: str = TRACEBACK) -> dict[str, Any]:
    return {"msg": msg, "count": count, "traceback": traceback, "nodes": {"w1"}}


def test_an_exception_has_its_text_and_the_innermost_line_of_the_locustfile() -> None:
    (found,) = raised_in_tasks({1: row("TypeError: no words", 7)})
    assert (found.error, found.where, found.count) == ("TypeError: no words", "asker.py:12 in ask", 7)


def test_a_traceback_of_libraries_alone_gives_its_last_line() -> None:
    of_library = '  File "/x/site-packages/a.py", line 1, in f\n    g()\n'
    assert innermost(of_library) == "a.py:1 in f"
    assert innermost("") == ""
    assert innermost("no traceback at all") == ""


def test_an_exception_of_the_sdk_for_a_failed_request_is_none_of_the_locustfile() -> None:
    """The request has a record: it is a failure of the server, and the measurement is valid."""
    failures = ["openai.RateLimitError: Error code: 429", "httpx2.ReadTimeout: no event within 30 s"]
    mistakes = ["openai.OpenAIError: no key", "KeyError: 'openai.x'"]
    found = raised_in_tasks({n: row(msg) for n, msg in enumerate([*failures, *mistakes])})
    assert sorted(each.error for each in found) == sorted(mistakes)


def test_what_a_hostile_worker_reports_is_cleaned_and_cut() -> None:
    nasty = f'  File "/a/\x1b[31m{"b" * 4000}.py", line 5, in \u202ef\n'
    (found,) = raised_in_tasks({1: row("\x1b[2J<script>\n" * 200, traceback=nasty)})
    assert len(found.error) <= 500
    assert len(found.where) <= 300
    assert "\x1b" not in found.error + found.where
    assert "\n" not in found.error


def test_many_kinds_are_listed_by_frequency_and_their_sum_is_kept() -> None:
    table = {k: row(f"ValueError: {k}", count=k) for k in range(1, 101)}
    found = raised_in_tasks(table)
    assert len(found) == MOST_TASK_EXCEPTIONS
    assert found[0].error == "ValueError: 100"
    assert found[-1].error == "other exceptions"
    assert sum(each.count for each in found) == sum(range(1, 101))
