"""What ``llm-locust run`` and ``sweep`` make of their arguments: Locust's command line."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import llm_locust
from llm_locust.cli import run as command
from llm_locust.cli.main import CommandParser
from llm_locust.cli.run import LOCUSTFILES, locust_arguments, settings_elsewhere
from llm_locust.options.table import GRAMMAR, OPTIONS
from llm_locust.scenario.document import Scenario, parse_scenario

# --- What ``llm-locust run`` makes of its arguments: Locust's command line


URL = "http://127.0.0.1:8000"


def test_an_option_that_names_servers_takes_the_place_of_an_address(tmp_path: Path) -> None:
    args = parser().parse_args(["--arm=straight=http://a:1", "--arm=gateway=http://b:1"])
    args.rest = []
    words = command._command(args, {})
    (tmp_path / "s.yaml").write_text("arms: {a: {url: http://a:1}, b: {url: http://b:1}}")
    args = parser().parse_args([f"--scenario={tmp_path}/s.yaml"])
    args.rest = []
    assert not any(word.startswith("--host") for word in command._command(args, {}))
    (tmp_path / "s.yaml").write_text("arms: {a: {url: http://a:1}, b: }")
    with pytest.raises(ValueError, match="no server"):
        command._command(args, {})
    assert [word for word in words if word.startswith(("--arm", "--host"))] == [
        "--arm=straight=http://a:1",
        "--arm=gateway=http://b:1",
    ]


def parser() -> CommandParser:
    found = CommandParser(prog="llm-locust run")
    command.add_arguments(found)
    return found


def made(
    *words: str,
    environ: Mapping[str, str] | None = None,
    scenario: str | None = None,
    rest: tuple[str, ...] = (),
) -> dict[str, str]:
    """Flag -> value of Locust's command line; a flag without a value has an empty one."""
    read: Scenario | None = None
    if scenario is not None:
        read, words = parse_scenario(scenario, "s.yaml", GRAMMAR), (*words, "--scenario=s.yaml")
    args = parser().parse_args([*words])
    args.rest = list(rest)
    listed = locust_arguments(args, settings_elsewhere(environ or {}, read))
    flags = [word.partition("=")[0] for word in listed]
    assert len(flags) == len({*flags}), "each option once"
    return {flag: value for flag, _, value in (word.partition("=") for word in listed)}


def file(name: str) -> str:
    path = LOCUSTFILES / name
    assert path.exists()
    return str(path)


def test_a_url_alone_is_ten_users_for_a_minute_and_the_limit_of_a_chat() -> None:
    assert made(URL) == {
        "--locustfile": file("chat.py"),
        "--headless": "",
        "--host": URL,
        "--users": "10",
        "--spawn-rate": "10",
        "--run-time": "60s",
        "--warmup": "up to 5s",
        "--slo": "ttft=500ms",
    }


def test_a_rate_is_an_open_loop_in_which_users_mean_nothing() -> None:
    words = made(URL, "--rate", "5")
    assert words["--locustfile"] == file("open_loop.py")
    assert words["--request-rate"] == "5"
    assert not {"--users", "--spawn-rate"} & words.keys()
    assert made(URL, "--request-rate=5") == words


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (("--for", "90s"), "90s"),
        (("--for", "1h30m"), "5400s"),
        (("-t", "1.5m"), "90s"),
        (("--rate", "steps:10@60s,50@30s"), "90s"),
        (("--rate", "ramp:1..10,20s"), "60s"),
        (("--sim",), "20s"),
        (("--sim", "--rate", "steps:10@60s,50@30s"), "90s"),
        (("--num-requests", "100"), None),
        (("--arrival", "trace:t.jsonl"), None),
        (("--arrival", "trace:t.jsonl", "--for", "10s"), "10s"),
    ],
)
def test_a_run_takes_a_minute_unless_something_else_ends_it(
    words: tuple[str, ...], seconds: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text("")
    assert made(URL, *words).get("--run-time") == seconds


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        ((), "up to 5s"),
        (("--for=20s",), "up to 5s"),
        (("--for=8s",), "up to 2s"),
        (("--for=1s",), "up to 0.25s"),
        (("--warmup=0s",), "0s"),
    ],
)
def test_a_warm_up_that_nobody_set_leaves_most_of_a_short_run(words: tuple[str, ...], warmup: str) -> None:
    assert made(URL, *words)["--warmup"] == warmup


@pytest.mark.parametrize(("sweep", "locustfile"), [("users=1,2", "chat.py"), ("rate=1,2", "open_loop.py")])
def test_a_sweep_sets_its_loads_and_its_end_itself(sweep: str, locustfile: str) -> None:
    words = made(URL, f"--sweep={sweep}")
    assert words["--sweep"] == sweep
    assert words["--locustfile"].endswith(locustfile)
    assert words["--spawn-rate"] == "100"
    assert not words.keys() & {"--users", "--run-time"}


def test_a_count_of_requests_has_no_warm_up_that_nobody_set() -> None:
    assert "--warmup" not in made(URL, "--num-requests=20")
    assert made(URL, "--num-requests=20", "--warmup=1s")["--warmup"] == "1s"


def test_a_preset_has_lengths_and_limits_and_what_is_given_wins() -> None:
    words = made(URL, "--preset", "code", "--output-tokens", "20")
    assert (words["--input-tokens"], words["--output-tokens"]) == ("lognormal:1500,0.8", "20")
    assert words["--slo"] == "ttft=100ms"
    assert made(URL, "--preset", "code", "--slo", "ttft=2s")["--slo"] == "ttft=2s"
    assert "--slo" not in made(URL, "--preset", "batch")
    assert "--input-tokens" not in made(URL, "--preset", "chat", "--dataset", "d.jsonl")


def test_what_a_scenario_says_is_not_overridden_by_a_default() -> None:
    words = made(scenario="host: http://s:8000\nusers: 50\nrun_time: 2m\nwarmup: 10s\nslo: ttft=1s\n")
    assert words == {
        "--locustfile": file("scenario.py"),
        "--headless": "",
        "--spawn-rate": "50",
        "--scenario": "s.yaml",
    }
    assert made(URL, "--users", "3", scenario="users: 50\n")["--users"] == "3"


def test_a_scenario_without_a_limit_gets_none() -> None:
    words = made(URL, scenario="model: m\n")
    assert "--slo" not in words
    assert (words["--users"], words["--run-time"], words["--warmup"]) == ("10", "60s", "up to 5s")


def test_a_scenario_of_a_rate_is_an_open_loop() -> None:
    words = made(URL, scenario="request_rate: 5\n")
    assert "--users" not in words
    assert words["--locustfile"] == file("scenario.py")


def test_what_the_environment_says_is_not_overridden_by_a_default() -> None:
    environ = {
        "LOCUST_USERS": "7",
        "LOCUST_RUN_TIME": "8s",
        "LLM_LOCUST_SLO": "ttft=1s",
        "LLM_LOCUST_INPUT_TOKENS": "9",
    }
    words = made("--preset", "chat", environ=environ)
    assert not {"--users", "--run-time", "--slo", "--input-tokens", "--host"} & words.keys()
    assert (words["--spawn-rate"], words["--warmup"]) == ("7", "up to 2s")
    assert made(environ={"LLM_LOCUST_SCENARIO": "s.yaml"})["--locustfile"] == file("scenario.py")
    assert "--users" not in made(environ={"LLM_LOCUST_REQUEST_RATE": "5"})


def test_the_web_ui_takes_the_place_of_headless_and_its_form_may_ask_for_either_loop() -> None:
    words = made(URL, "--ui")
    assert "--headless" not in words
    assert words["--locustfile"] == file("scenario.py")


def test_workers_locustfile_and_the_words_for_locust_are_passed_on() -> None:
    words = made(URL, "--workers=4", "-f", "mine.py", rest=("--tags=fast", "MyUser"))
    assert (words["--processes"], words["--locustfile"]) == ("4", "mine.py")
    assert [*words][-2:] == ["--tags", "MyUser"]


#: A text that each option takes, where it checks its text.
_TEXTS = {
    "request_rate": "5",
    "arrival": "poisson",
    "trace_slice": "-10m",
    "body": '{"temperature": 0}',
    "header": "X-A=b c",
    "input_tokens": "uniform:1,9",
}


@pytest.mark.parametrize("name", [*_TEXTS, "note", "out", "require_valid", "seed", "num_requests"])
def test_options_of_the_table_are_passed_on_as_they_were_given(name: str) -> None:
    (row,) = [row for row in OPTIONS if row.name == name]
    text = "" if row.kind == "truth" else _TEXTS.get(name, "3")
    assert made(URL, row.flag if row.kind == "truth" else f"{row.flag}={text}")[row.flag] == text


def test_a_repeated_option_is_passed_on_as_often() -> None:
    args = parser().parse_args([URL, "--header", "A=1", "--header", "B=2"])
    args.rest = []
    listed = locust_arguments(args, settings_elsewhere({}, None))
    assert listed[-2:] == ["--header=A=1", "--header=B=2"]


def test_every_option_is_accepted_and_named_in_the_help_once() -> None:
    text = parser().format_help()
    flags = {flag for action in parser()._actions for flag in action.option_strings}
    for row in OPTIONS:
        assert row.flag in flags
    common, further = text.split("examples:")[0].split("further options")
    listed = re.findall(r"--[a-z-]+", further)
    assert len(listed) == len({*listed})
    explained = set(re.findall(r"^  .*?(?=  |$)", common, re.M))
    assert not [flag for flag in listed if any(flag in words.split() for words in explained)]


@pytest.mark.parametrize("columns", [80, 140])
def test_the_help_fits_the_terminal_and_has_the_common_options_first(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = parser().format_help()
    assert max(map(len, text.splitlines())) <= min(columns, 100)
    order = [text.index(word) for word in ("--sim", "--users", "--slo", "--workers", "further options")]
    assert order == sorted(order)


def test_the_locustfiles_that_it_starts_are_those_of_the_installed_package() -> None:
    assert (LOCUSTFILES / "chat.py").is_file()
    assert LOCUSTFILES.parent == Path(llm_locust.__file__).parent


# --- llm-locust sweep: llm-locust run with loads of its own where nobody says which


@pytest.mark.parametrize(
    ("words", "environment", "loads"),
    [
        ([], {}, command.DEFAULT_SWEEP),
        (["--sweep=rate=1,2"], {}, "rate=1,2"),
        ([], {"LLM_LOCUST_SWEEP": "users=3"}, None),
    ],
)
def test_loads_that_nobody_says_are_the_default(
    words: list[str],
    environment: dict[str, str],
    loads: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = argparse.ArgumentParser()
    command.add_sweep_arguments(parser)
    args = parser.parse_args(["http://127.0.0.1:9", *words])
    args.rest = []
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found: list[argparse.Namespace] = []

    def run(given: argparse.Namespace) -> int:
        found.append(given)
        return 7

    monkeypatch.setattr(command, "run", run)
    assert command.run_sweep(args) == 7
    assert getattr(found[0], "sweep", None) == loads
