"""The scenario file: what it may say, what comes of it, and how it says what is wrong."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from llm_locust.metrics.limits import Slo
from llm_locust.options.run import LEAST_ENDED
from llm_locust.options.table import (
    GRAMMAR,
    LOCUST_OPTIONS,
    SCENARIO_KEYS,
    SCENARIO_TABLE,
    with_scenario_tables,
)
from llm_locust.scenario.document import (
    CLASS_KEYS,
    PRESETS,
    TOP_KEYS,
    Mix,
    Scenario,
    Stop,
    TrafficClass,
    WarmUp,
    load_scenario,
    parse_scenario,
)
from llm_locust.scenario.readers import Conversation, DatasetSource, Expected
from llm_locust.scenario.tree import ScenarioError
from llm_locust.workload.answers import Validator
from llm_locust.workload.synthetic import SharedPrefix

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def of(text: str) -> Scenario:
    return parse_scenario(text, "s.yaml", GRAMMAR)


def only(text: str) -> TrafficClass:
    (found,) = of(text).classes
    return found


def complaint(text: str, path: str = "s.yaml") -> str:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, path, GRAMMAR)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# What a scenario says


def test_options_come_out_as_the_command_line_would_hold_them() -> None:
    found = of(
        "model: 8\nusers: 5\nspawn_rate: 2\nrun-time: 1h30m\ninput_tokens: 512\nwarmup: 30s\nseed: 0\n"
        "body: {temperature: 0}\nslo: {ttft: 500ms, tpot: 50ms}\ngate: [rps>1, error_rate<1%]\n"
        "timeouts: {first: 5s, total: 60s}\nheader: A=b\nreplica_header: [X-A, X-B]\nrequire_valid: true\n"
        "arrival: poisson\nrequest_rate: 10\n"
    )
    assert found.options == {
        "model": "8",
        "users": 5,
        "spawn_rate": 2.0,
        "run_time": "1h30m",
        "input_tokens": "512",
        "warmup": "30s",
        "seed": 0,
        "body": '{"temperature": 0}',
        "slo": "ttft=500ms tpot=50ms",
        "gate": "rps>1 error_rate<1%",
        "timeouts": "first=5s total=60s",
        "header": ["A=b"],
        "replica_header": ["X-A", "X-B"],
        "require_valid": True,
        "arrival": "poisson",
        "request_rate": "10",
    }


def test_without_classes_there_is_one_without_a_name_that_has_what_the_top_level_says() -> None:
    assert only("endpoint: completions\nunique_head: false\n") == TrafficClass(
        name="", endpoint="completions", unique_head=False, inherited=frozenset({"endpoint", "unique_head"})
    )


def test_a_class_says_everything_about_its_requests(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('"hello"\n')
    path = str(tmp_path / "s.yaml")
    text = """
classes:
  - name: chat
    request_name: ask
    weight: 2.5
    endpoint: responses
    stream: false
    output_tokens: uniform:10,20
    dataset: {file: q.jsonl, order: shuffled, format: jsonl}
    shared_prefix: {groups: 10, tokens: 1000}
    unique_head: false
    body: {temperature: 0.5, stop: [a, b], user: null}
    headers: {X-Session: "s-{session}"}
    slo: ttft=1s
    conversation: {turns: "uniform:3,8", think_time: 5s, patience: "uniform:1s,5s", history: 'last:3'}
    validators: [{regex: '^\\d'}, {contains: [a, b]}, {json_schema: {type: object}}, {max_repetition: 0.5},
                 {function: my.checks:is_sql}]
    expected: {match: number, field: answer}
"""
    (found,) = parse_scenario(text, path, GRAMMAR).classes
    assert found.input_tokens is None
    assert found.output_tokens is not None
    assert found.output_tokens.text == "uniform:10,20"
    assert found.conversation is not None
    assert found.conversation.turns.text == "uniform:3,8"
    assert found == TrafficClass(
        name="chat",
        request_name="ask",
        weight=2.5,
        endpoint="responses",
        stream=False,
        output_tokens=found.output_tokens,
        dataset=DatasetSource(file=str(tmp_path / "q.jsonl"), order="shuffled", format="jsonl"),
        shared_prefix=SharedPrefix(groups=10, tokens=1000),
        unique_head=False,
        body={"temperature": 0.5, "stop": ["a", "b"], "user": None},
        headers={"x-session": "s-{session}"},
        slo=Slo(ttft_s=1.0),
        conversation=Conversation(
            turns=found.conversation.turns, think_time="5s", patience="uniform:1s,5s", history="last:3"
        ),
        validators=(
            Validator("regex", r"^\d"),
            Validator("contains", ("a", "b")),
            Validator("json_schema", {"type": "object"}),
            Validator("max_repetition", 0.5),
            Validator("function", "my.checks:is_sql"),
        ),
        expected=Expected(match="number", field="answer"),
    )


def test_classes_may_be_a_list_or_a_mapping() -> None:
    assert (
        of("classes: [{name: a, weight: 2}, {name: b}]").classes
        == of("classes: {a: {weight: 2}, b: {}}").classes
    )


def test_a_class_takes_from_the_top_level_what_it_does_not_say_itself_and_headers_are_merged() -> None:
    a, b = of(
        "stream: false\nheaders: {X-A: '1', X-B: '2'}\n"
        "classes: {a: {}, b: {stream: true, headers: {x-b: '3', X-C: '{user}'}}}"
    ).classes
    assert (a.stream, a.headers) == (False, {"x-a": "1", "x-b": "2"})
    assert (b.stream, b.headers) == (True, {"x-a": "1", "x-b": "3", "x-c": "{user}"})


def test_options_at_the_top_level_are_left_to_the_run_so_that_the_command_line_wins() -> None:
    found = of("slo: ttft=1s\noutput_tokens: 5\nclasses: {a: {}}")
    assert (found.classes[0].slo, found.classes[0].output_tokens) == (None, None)
    assert found.options == {"slo": "ttft=1s", "output_tokens": "5"}


def test_classes_with_rates_have_no_weight() -> None:
    a, b = of("arrival: poisson\nclasses: {a: {rate: 5}, b: {rate: 'ramp:1..10,60s'}}").classes
    assert [(c.weight, c.rate) for c in (a, b)] == [(None, "5"), (None, "ramp:1..10,60s")]


def test_warm_up_and_stop_rules() -> None:
    found = of(
        "warm_up: {duration: 30s, prompts: shared}\nstop: {error_rate: '>20% over 1m', oversaturation: true}"
    )
    assert found.options == {"warmup": "30s"}
    assert found.warm_up == WarmUp(duration="30s", prompts="shared")
    assert found.stop == Stop(error_rate=(0.2, 60.0), oversaturation=True)
    assert of("stop: {error_rate: 5%}").stop == Stop(error_rate=(0.05, 30.0))


def test_a_dataset_at_the_top_level_is_an_option_and_keeps_its_order(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("prompt\nhello\n")
    found = parse_scenario("dataset: {file: q.csv, order: weighted}", str(tmp_path / "s.yaml"), GRAMMAR)
    assert found.options == {"dataset": str(tmp_path / "q.csv")}
    assert found.dataset == DatasetSource(file=str(tmp_path / "q.csv"), order="weighted")


def test_paths_start_at_the_folder_of_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("l.csv", "t.csv", "ca.pem"):
        (tmp_path / "sub" / name).write_text("10,20\n")
    (tmp_path / "sub" / "s.yaml").write_text(
        "input_tokens: file:l.csv\narrival: 'trace: t.csv'\nca_cert: ca.pem\nout: o"
    )
    monkeypatch.chdir(tmp_path)
    assert load_scenario("sub/s.yaml", GRAMMAR).options == {
        "input_tokens": "file:sub/l.csv",
        "arrival": "trace:sub/t.csv",
        "ca_cert": "sub/ca.pem",
        "out": "o",
    }


# Presets


def test_a_preset_fills_what_a_class_does_not_say() -> None:
    found = only("classes: {a: {preset: chat, output_tokens: 7}}")
    assert found.input_tokens is not None
    assert found.output_tokens is not None
    assert (found.input_tokens.text, found.output_tokens.text) == (PRESETS["chat"].input_tokens, "7")
    assert found.slo == Slo(ttft_s=0.5)
    assert only("classes: {a: {preset: chat, slo: e2el=9s}}").slo == Slo(e2el_s=9.0)


def test_a_presets_lengths_make_way_for_a_dataset() -> None:
    found = only("classes: {a: {preset: chat, dataset: .}}")
    assert (found.input_tokens, found.output_tokens, found.slo) == (None, None, Slo(ttft_s=0.5))
    assert of("preset: code\ndataset: .").options.keys() == {"slo", "dataset"}


def test_a_preset_at_the_top_level_fills_options() -> None:
    assert of("preset: agent\nslo: ttft=2s").options == {
        "input_tokens": PRESETS["agent"].input_tokens,
        "output_tokens": PRESETS["agent"].output_tokens,
        "slo": "ttft=2s",
    }
    assert "slo" not in of("preset: batch").options


# What is wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "modle: x",
            "s.yaml:1:1: unknown key 'modle'; did you mean \"model\"? a scenario takes host, users, ",
        ),
        (
            "classes:\n  a:\n    wieght: 1",
            "s.yaml:3:5: unknown key 'wieght'; did you mean \"weight\"? class 'a' takes",
        ),
        (
            "classes:\n- {name: a, weight: -1}",
            "s.yaml:2:21: weight -1: allowed is a number in 0 .. 1,000,000,000",
        ),
        ("classes:\n- {name: a, weight: ab}", "s.yaml:2:21: weight 'ab': allowed is a number"),
        ("classes: {a: {weight: 0}, b: {weight: 0}}", "s.yaml:1:10: the weights of all classes are 0"),
        (
            "slo: ttft=1s\nclasses: {a: {slo: tft=1s}}",
            's.yaml:2:20: SLO: at character 1, "tft": unknown metric',
        ),
        (
            "slo: {tft: 1s}",
            "s.yaml:1:7: unknown key 'tft'; did you mean \"ttft\"? slo takes ttft, ttft_started, ttfo, tpot",
        ),
        ("slo: {ttft: 500}", 's.yaml:1:13: ttft: SLO: at character 6, "500": a number without a unit'),
        ("gate: [rps>1, goodputt>1]", 's.yaml:1:15: gate: at character 1, "goodputt": unknown metric'),
        ("dataset: none.jsonl", "s.yaml:1:10: dataset 'none.jsonl': there is no such file"),
        ("classes: {a: {dataset: {file: none.csv}}}", "s.yaml:1:31: file 'none.csv': there is no such file"),
        ("classes: {a: {dataset: {order: shuffled}}}", "s.yaml:1:24: dataset lacks 'file'"),
        (
            "classes: {a: {dataset: {file: ., order: shufled}}}",
            "order 'shufled': did you mean \"shuffled\"? allowed is",
        ),
        ("arrival: trace:none.csv", "s.yaml:1:10: arrival 'none.csv': there is no such file"),
        ("arrival: poison", "s.yaml:1:10: arrival 'poison': allowed are constant, poisson"),
        ("request_rate: -5", "s.yaml:1:15: request rate '-5'"),
        ("classes: {a: {rate: fast}}", "s.yaml:1:21: request rate 'fast'"),
        ("input_tokens: normal:5", "s.yaml:1:15: input_tokens: lengths 'normal:5': '5' should be MEAN,SD"),
        ("input_tokens: 5\ndataset: .", "s.yaml:1:1: input_tokens beside a dataset"),
        ("classes: {a: {input_tokens: 5, dataset: .}}", "s.yaml:1:15: input_tokens beside a dataset"),
        ("classes: [{weight: 1}]", "s.yaml:1:11: the class lacks 'name'"),
        ("classes: [{name: a}, {name: a}]", "s.yaml:1:29: the class 'a' is there twice"),
        ("classes: {a: {name: b}}", "s.yaml:1:15: the class has its name, 'a', already"),
        ("classes: {'': {}}", "s.yaml:1:11: name '': allowed is"),
        ("classes: {a: {rate: 1, weight: 1}}", "s.yaml:1:15: both weight and rate"),
        (
            "classes: {a: {rate: 1}, b: {}}",
            "s.yaml:1:28: class 'b' has a weight, class 'a' a rate: either all",
        ),
        (
            "classes: {a: {}, b: {rate: 1}}",
            "s.yaml:1:22: class 'b' has a rate, class 'a' a weight: either all",
        ),
        (
            "request_rate: 5\nclasses: {a: {rate: 1}}",
            "s.yaml:1:1: request_rate beside classes that have a rate",
        ),
        ("classes: []", "s.yaml:1:10: classes has nothing in it: allowed is a list of at least one class"),
        ("classes: 5", "s.yaml:1:10: classes 5: allowed is a list"),
        ("- a", "s.yaml:1:1: a scenario is a list: allowed is a mapping"),
        ("model:", "s.yaml:1:7: model has no value: allowed is a text"),
        ("users: 1.5", "s.yaml:1:8: users 1.5: allowed is a whole number in 1 .."),
        ("users: true", "s.yaml:1:8: users true: allowed is a whole number"),
        ("spawn_rate: 0", "s.yaml:1:13: spawn_rate 0: allowed is a number of users per second above 0"),
        ("seed: -1", "s.yaml:1:7: seed -1: allowed is a whole number in 0 .."),
        ("require_valid: yes", "s.yaml:1:16: require_valid 'yes': allowed is true or false"),
        ("run_time: 5 minutes", "s.yaml:1:11: run_time: '5 minutes': unknown unit"),
        ("warmup: 5", "s.yaml:1:9: warmup: '5': a number without a unit"),
        ("warm_up: {duration: 5s}\nwarmup: 5s", "s.yaml:2:1: both warmup and the duration of warm_up"),
        (
            "request-rate: 5\nrequest_rate: 5",
            "s.yaml:2:1: the key 'request_rate' is there twice, once with a dash",
        ),
        (
            "body: {messages: []}",
            "s.yaml:1:7: body '{\"messages\": []}': 'messages' is what the workload fills",
        ),
        ("body: [1]", "s.yaml:1:7: body is a list: allowed is a mapping of body fields"),
        ("stop: {error_rate: 20}", "s.yaml:1:20: error_rate 20: allowed is a share"),
        ("stop: {error_rate: 20% over 30}", "error_rate '20% over 30': '30': a number without a unit"),
        ("stop: {error_rate: 100%}", "error_rate '100%': a share below 100%"),
        ("shared_prefix: {groups: 0}", "s.yaml:1:25: groups 0: allowed is a whole number in 1 .."),
        ("shared_prefix: {groups: 2000000}", "s.yaml:1:16: shared prefix: groups 2000000 is not in"),
        ("conversation: {think_time: 3s}", "s.yaml:1:15: conversation lacks 'turns'"),
        ("conversation: {turns: 3, think_time: -3s}", "s.yaml:1:38: think_time: '-3s': not a duration"),
        ("validators: [{regex: '('}]", "s.yaml:1:22: regex '(': missing ), unterminated subpattern"),
        ("validators: [{regex: '[[a]'}]", "regex '[[a]': "),
        (
            "validators: [{regex: a, contains: b}]",
            "s.yaml:1:14: validators: an item of the list has one of regex",
        ),
        ("validators: [{function: is_sql}]", "function 'is_sql': allowed is module:function"),
        ("validators: [{max_repetition: 2}]", "max_repetition 2: allowed is a number in 0 .. 1"),
        ("expected: {field: a}", "s.yaml:1:11: expected lacks 'match'"),
        (
            "preset: chatt",
            "s.yaml:1:9: preset 'chatt': did you mean \"chat\"? allowed is one of chat, code, voice",
        ),
        ("headers: {'a b': c}", "s.yaml:1:11: what begins with 'a' is no header name"),
        ("headers: {X-A: a, x-a: b}", "s.yaml:1:19: the header 'x-a' is there twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_place_value_and_what_is_allowed(text: str, said: str) -> None:
    assert said in complaint(text)


@pytest.mark.parametrize("value", ["'hush{sesion}'", "'{hush}'", "[hush]", '"hush\\n"'])
def test_a_header_that_cannot_be_is_refused_without_showing_its_value(value: str) -> None:
    message = complaint(f"headers: {{X-Key: {value}}}")
    assert message.startswith("s.yaml:1:18: ")
    assert "'X-Key'" in message
    assert "hush" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "headers: 'Authorization: Bearer hush=='",
            "s.yaml:1:10: headers is no mapping: allowed is a mapping of",
        ),
        ("headers:\n  Authorization:Bearer hush", "s.yaml:2:3: headers is no mapping"),
        ("body: 'api_key=hush'", "s.yaml:1:7: body is no mapping"),
        ("Authorization:Bearer hush", "s.yaml:1:1: a scenario is no mapping"),
        ("'Authorization: Bearer hush': x", "s.yaml:1:1: unknown key 'Authorization'"),
    ],
)
def test_what_stands_where_headers_belong_is_refused_without_showing_it(text: str, said: str) -> None:
    message = complaint(text)
    assert message.startswith(said)
    assert "hush" not in message


def test_a_header_that_is_each_requests_own_cannot_be_set() -> None:
    message = complaint("headers: {Content-Length: hush}")
    assert message.startswith("s.yaml:1:11: the header 'Content-Length' cannot be set")
    assert "hush" not in message


def test_braces_around_no_word_are_as_they_stand() -> None:
    (found,) = of("headers: {X-A: '{\"a\":1}', X-B: '{seq}-{name}'}").classes
    assert found.headers == {"x-a": '{"a":1}', "x-b": "{seq}-{name}"}


def test_a_missing_scenario_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(tmp_path / "none.yaml", GRAMMAR)
    assert str(caught.value) == f"{tmp_path}/none.yaml: cannot be read: No such file or directory"


# To the workers


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_example_loads_and_reaches_the_workers_whole(path: Path) -> None:
    found = load_scenario(path, GRAMMAR)
    assert Scenario.from_text(found.text_for_workers(), GRAMMAR) == found


def test_the_text_for_workers_does_not_depend_on_how_the_file_is_laid_out() -> None:
    one = of("slo: {ttft: 500ms}\nclasses: {a: {weight: 2}, b: {weight: 2}}")
    other = of("# laid out\nslo:\n  'ttft': \"500ms\"\nclasses:\n  a: &a\n    weight: 2\n  b: *a\n")
    assert one.text_for_workers() == other.text_for_workers()


def test_a_worker_without_a_file_that_the_scenario_names_says_which(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('"hello"\n')
    text = parse_scenario("dataset: q.jsonl", str(tmp_path / "s.yaml"), GRAMMAR).text_for_workers()
    (tmp_path / "q.jsonl").unlink()
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_text(text, GRAMMAR)
    assert str(caught.value).startswith(f"{tmp_path}/s.yaml: dataset 'q.jsonl': there is no such file")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"path": 1, "scenario": 2}', "[" * 100_000])
def test_a_text_that_is_no_scenarios_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        Scenario.from_text(text, GRAMMAR)


def test_header_values_stand_in_no_representation_and_are_known_as_secrets() -> None:
    found = of(
        "headers: {Authorization: Bearer hush-hush, X-Session: '{session}', X-N: '1'}\nheader: [K=hush]"
    )
    assert "hush" not in repr(found)
    assert found.secrets == ("Bearer hush-hush", "hush-hush")


def outcome(text: str) -> Scenario | str:
    try:
        return of(text)
    except ScenarioError as e:
        return str(e)


KEYS = [*GRAMMAR.options, *TOP_KEYS]
_words = st.sampled_from(
    [*KEYS, *CLASS_KEYS, "file", "groups", "a", "chat", "poisson", "500ms", "ttft=1s", ".", "5s"]
)
_values = st.recursive(
    _words | st.integers(-2, 10**20) | st.floats() | st.booleans() | st.none() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
_documents: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(KEYS, _values),
        "classes": st.dictionaries(
            _words, st.dictionaries(st.sampled_from([*CLASS_KEYS]), _values, max_size=3)
        ),
    },
)


@given(_documents.map(lambda value: yaml.safe_dump(value, allow_unicode=True)) | st.text(max_size=60))
def test_any_text_whatsoever_is_a_scenario_or_an_error_of_one_line(text: str) -> None:
    found = outcome(text)
    if isinstance(found, Scenario):
        assert Scenario.from_text(found.text_for_workers(), GRAMMAR) == found
    else:
        assert found.startswith("s.yaml:")
        assert len(found.splitlines()) == 1


@given(st.dictionaries(st.sampled_from([*CLASS_KEYS]), _values, max_size=2))
def test_any_class_whatsoever_is_a_scenario_or_an_error_of_one_line(fields: dict[str, Any]) -> None:
    found = outcome(json.dumps({"classes": {"a": fields}}))
    assert isinstance(found, Scenario) or len(found.splitlines()) == 1


# The mix


def classes(*weights: float) -> list[TrafficClass]:
    return [TrafficClass(name=f"c{i}", request_name="", weight=w) for i, w in enumerate(weights)]


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-300), st.integers(0, 99)
)
def test_a_class_of_weight_0_is_never_chosen(weights: list[float], seed: int) -> None:
    mix = Mix(classes(*weights))
    assert mix.of_arrival(seed, 0).weight
    assert next(mix.of_user(seed, 0, 0)).weight


def counts(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in ("c0", "c1", "c2")}


def test_users_and_arrivals_follow_the_shares() -> None:
    mix, n = Mix(classes(6, 1, 3)), 5000
    user = mix.of_user(1, 0, 0)
    for names in (
        [next(user).name for _ in range(n)],
        [mix.of_arrival(1, k).name for k in range(n)],
    ):
        # Five standard deviations of a binomial count of 5,000 are at most 177.
        assert counts(names) == pytest.approx({"c0": 3000, "c1": 500, "c2": 1500}, abs=177)


def test_a_users_classes_are_reproducible_and_its_own() -> None:
    mix = Mix(classes(1, 1))

    def first(seed: int, worker: int, user: int) -> list[str]:
        drawn = mix.of_user(seed, worker, user)
        return [next(drawn).name for _ in range(100)]

    assert first(1, 2, 3) == first(1, 2, 3)
    assert len({tuple(first(*key)) for key in [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]}) == 4


def test_the_class_of_an_arrival_depends_on_seed_and_place_alone() -> None:
    one, other = Mix(classes(1, 1)), Mix(classes(1, 1))
    drawn = [one.of_arrival(7, k).name for k in range(64)]
    assert drawn == [other.of_arrival(7, k).name for k in range(64)]
    assert drawn != [one.of_arrival(8, k).name for k in range(64)]


@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_weights_without_a_share_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Mix(classes(*weights))


def test_classes_with_rates_of_their_own_are_in_no_mix() -> None:
    with pytest.raises(ValueError, match="rate of its own"):
        Mix(of("classes: {a: {rate: 5}}").classes)


# The docs


PAGE = (ROOT / "docs" / "scenario.md").read_text()

#: Tables of the page, by the name in the comment above each.
TABLES: dict[str, Collection[str]] = {
    "locust options": [row.key or row.name for row in LOCUST_OPTIONS if row.form],
    "presets": PRESETS,
    **SCENARIO_KEYS,
}


def test_the_tables_of_the_page_are_made_of_the_readers_keys() -> None:
    assert with_scenario_tables(PAGE) == PAGE, "run make docs"


def test_the_page_says_of_which_requests_the_error_rate_that_ends_a_run_is() -> None:
    said = Stop.keys()["error_rate"].meaning
    assert f"of the requests that ended in the last 30 s, at least {LEAST_ENDED}," in said
    assert "one that hangs counts when its timeout ends it" in said


def test_a_table_of_the_page_changed_by_hand_is_noticed() -> None:
    assert with_scenario_tables(PAGE.replace("| `groups` | integer |", "| `groups` | text |")) == PAGE
    assert with_scenario_tables(PAGE.replace("| `turns` |", "| `rounds` |")) == PAGE


def test_the_page_has_each_table_once_with_every_key_of_the_readers() -> None:
    written = [
        (found[2], sorted(re.findall(r"^\| `(\w+)` \|", found[0], re.MULTILINE)))
        for found in SCENARIO_TABLE.finditer(PAGE)
    ]
    assert sorted(written) == sorted((name, sorted(keys)) for name, keys in TABLES.items())
    # What the readers take is in one of them: no reader has a key that no table has.
    top = {*SCENARIO_KEYS["the run"], *SCENARIO_KEYS["every class"]}
    assert top == TOP_KEYS.keys()
    assert {*SCENARIO_KEYS["a class"], *SCENARIO_KEYS["every class"]} == CLASS_KEYS.keys()
