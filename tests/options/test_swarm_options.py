"""Options as checked values, and what ends a run."""

import argparse
import heapq
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from parsed_settings import run_settings as parse

from llm_locust.client.http.timers import Timeouts
from llm_locust.core.manifest import Manifest
from llm_locust.options.option import parse_header, parse_size, parse_timeouts
from llm_locust.options.requests import access_headers, parse_header_env, take_default_key
from llm_locust.options.run import (
    ErrorRate,
    Oversaturation,
    Quota,
    StopRule,
    StopWatch,
    Totals,
    parse_stop_rules,
    share,
)
from llm_locust.options.settings import Settings, UsageError, with_roofline
from llm_locust.store import read_manifest
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.run.roster import Roster
from llm_locust.swarm.run.run import ActiveRun

# --- Options as checked values, and secrets that stay where they are


def refusal(environ: dict[str, str] | None = None, **options: Any) -> str:
    with pytest.raises(UsageError) as error:
        parse(environ, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# -- settings -------------------------------------------------------------------------------


def test_without_options_there_is_a_workload_and_no_limit() -> None:
    settings = parse()
    assert settings.run.timeouts == Timeouts(60, 30, 600)
    assert settings.run.max_answer_bytes == 64 << 20
    run = settings.run
    assert (run.slo, run.gates, run.warmup_s, run.flush_timeout_s) == ("", "", 0, 30)
    assert (settings.requests.model, run.out, run.seed, settings.api_key) == (None, None, None, None)
    assert settings.workload.input_tokens is not None
    assert settings.workload.input_tokens.text == "512"
    assert settings.workload.output_tokens is not None
    assert settings.workload.output_tokens.text == "128"


def test_options_become_values() -> None:
    settings = parse(
        {"KEY": " sk-1234 "},
        model="m",
        warmup="1.5s",
        out="runs/x",
        seed=0,
        body='{"temperature": 0}',
        slo="ttft=1s",
        gate="goodput>=95%",
        header=["X-Team=a=b", "X-Empty="],
        api_key_env="KEY",
        replica_header=["X-Pod"],
        require_valid=True,
    )
    run = settings.run
    assert (settings.requests.model, run.warmup_s, run.out, run.seed) == ("m", 1.5, Path("runs/x"), 0)
    assert settings.workload.extra_body == {"temperature": 0}
    assert (run.slo, run.gates) == ("ttft=1s", "goodput>=95%")
    assert settings.headers == {"X-Team": "a=b", "X-Empty": ""}
    assert settings.api_key == "sk-1234"
    assert run.replica_headers == ("X-Pod",)
    assert settings.report.require_valid
    assert not settings.report.allow_incomplete


def test_what_the_web_uis_form_leaves_empty_counts_as_not_given() -> None:
    empty: dict[str, Any] = dict.fromkeys(
        ("model", "input_tokens", "output_tokens", "dataset", "slo", "gate"), ""
    )
    assert parse(**empty).workload == parse().workload
    assert parse(**empty).requests.model is None


def test_a_dataset_brings_its_own_lengths(tmp_path: Path) -> None:
    dataset = tmp_path / "a.jsonl"
    dataset.write_text('{"prompt": "hello"}\n')
    workload = parse(dataset=str(dataset)).workload
    assert workload.input_tokens is None
    assert workload.output_tokens is None
    assert "a dataset has its own" in refusal(dataset=str(dataset), input_tokens="9")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_answer": "64MB"}, "--max-answer: '64MB' is not a size"),
        ({"max_answer": "1KiB"}, "--max-answer: '1KiB' must be between 64KiB and 4GiB"),
        ({"drain": "1"}, "--drain: '1': a number without a unit: add one, as 1ms or 1s"),
        ({"dataset": "/nowhere.jsonl"}, "--dataset: "),
        ({"seed": -1}, "--seed: -1 is too small"),
        ({"api_key_env": "NONE"}, "--api-key-env: the environment variable 'NONE' is not set, or empty"),
        ({"header": ["nothing"]}, "--header: "),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], says: str) -> None:
    assert says in refusal(**options)


# -- times and bounds -----------------------------------------------------------------------


def test_any_of_the_bounds_can_be_given() -> None:
    assert parse_timeouts("gap=5s") == Timeouts(gap_s=5)
    assert parse_timeouts("total=1m, first=2s") == Timeouts(first_s=2, total_s=60)
    assert parse_timeouts("") == Timeouts()


@pytest.mark.parametrize("text", ["fist=1s", "first", "=1s", "first=", "first=1", "gap=0s", "first=1s 2s"])
def test_a_wrong_bound_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        parse_timeouts(text)


@pytest.mark.parametrize(
    ("text", "size"), [("64KiB", 65_536), ("1.5 MiB", 1_572_864), ("4gib", 4 << 30), ("64MiB", 64 << 20)]
)
def test_a_size_is_a_number_with_a_binary_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


# -- headers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pair"),
    [("A=b", ("A", "b")), ("X-Key=a=b", ("X-Key", "a=b")), ("A=", ("A", "")), ("A=é\t x", ("A", "é\t x"))],
)
def test_a_header_is_what_stands_around_the_first_equals_sign(text: str, pair: tuple[str, str]) -> None:
    assert parse_header(text) == pair


@given(st.text(max_size=12))
def test_a_header_that_is_taken_can_be_sent_and_one_that_is_not_never_shows_its_value(text: str) -> None:
    try:
        name, value = parse_header(text)
    except ValueError as e:
        told = str(e)
    else:
        line = f"{name}: {value}\r\n".encode("latin-1")
        assert line.count(b"\r") == line.count(b"\n") == 1
        assert b"\0" not in line
        return
    hidden = text.partition("=")[2] if "=" in text else text
    assert len(hidden) < 3 or hidden not in told.replace("a header has no '=': write NAME=VALUE", "")


@pytest.mark.parametrize("text", ["secret", "a b=c", "=c", "a:=c", "é=c", "a=b\nc", "a=b\r", "a=\0", "a=€"])
def test_what_is_no_header_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"header|a colon: write NAME=VALUE"):
        parse_header(text)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRET==",
        "Authorization:Bearer SECRET=x",
        "Authorization Bearer SECRET=x",
        "Authorization: SECRET",
        "X-Key\tSECRET=1",
        " X-Key: SECRET=1",
        ": SECRET=1",
        "Ä: SECRET=1",
        "Connection: SECRET=1",
    ],
)
@pytest.mark.parametrize("parse", [parse_header, parse_header_env])
def test_no_error_quotes_what_stands_behind_a_headers_name(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=|=VALUE") as raised:
        parse(text.replace("SECRET", "c2VjcmV0"))
    assert "c2VjcmV0" not in str(raised.value)


# -- secrets --------------------------------------------------------------------------------

KEY, TOKEN, HEADER = "sk-key-0001", "tok-0002", "hdr-0003"


@pytest.fixture
def secretive() -> Settings:
    return parse(
        {"MY_KEY": KEY},
        api_key_env="MY_KEY",
        header=[f"Authorization=Bearer {TOKEN}", f"X-Api-Key={HEADER}"],
    )


def test_keys_and_all_header_values_are_secrets(secretive: Settings) -> None:
    assert set(secretive.secrets) == {KEY, TOKEN, HEADER, f"Bearer {TOKEN}"}


def test_a_key_in_a_body_is_a_secret_and_what_is_recorded_of_the_body_has_none() -> None:
    body = f'{{"temperature": 0, "provider": [{{"api_key": "{KEY}", "name": "a-long-enough-name"}}]}}'
    settings = parse(body=body)
    assert settings.secrets == (KEY,)
    assert settings.workload.extra_body["provider"][0]["api_key"] == KEY
    assert settings.text["body"] == (
        '{"temperature": 0, "provider": [{"api_key": "***", "name": "a-long-enough-name"}]}'
    )


def test_a_body_without_keys_is_recorded_as_it_was_given() -> None:
    body = '{"max_tokens": 5,   "stop_token": "end", "token_budget": "a long text"}'
    assert parse(body=body).text["body"] == body
    assert parse(body=body).secrets == ()


def test_secrets_are_not_shown_by_the_settings(secretive: Settings) -> None:
    assert not any(secret in repr(secretive) for secret in (KEY, TOKEN, HEADER))
    assert not any(secret in repr(secretive.text) for secret in (KEY, TOKEN, HEADER))


class NoRecords:
    """Stands for a collector that nothing has come to."""

    inboxes: dict[str, Any] = {}  # noqa: RUF012

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "words",
    [
        ["--header", f"X-Api-Key={HEADER}", "--header", f"Authorization=Bearer {TOKEN}"],
        [f"--header=X-Api-Key={HEADER}", f"--header=Authorization=Bearer {TOKEN}"],
        [f"--head=X-Api-Key={HEADER}", "--heade", f"Authorization=Bearer {TOKEN}"],
        [f"--body={KEY}", "--header", "X=ab", "--model", "m"],
    ],
)
def test_the_manifests_command_has_no_secret(
    words: list[str], secretive: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/venv/lib/locust/__main__.py", *words, "-u", "3"])
    info: Any = {
        "id": "i",
        "seed": 1,
        "model": "m",
        "base": "/v1",
        "host": "http://x",
        "salt": "s",
        "targets": [],
        "arms": [],
        "origin_ns": 0,
    }
    axis = RunClock()
    roster = Roster("i", [], axis.now_ns)
    records: Any = NoRecords()
    run = ActiveRun(info, "n", tmp_path, secretive, 1, records, roster, axis, Health(), axis.now_ns())
    run.begin()
    manifest: Manifest = read_manifest(tmp_path)
    assert manifest.command[0] == "locust"
    assert manifest.command[-2:] == ["-u", "3"]
    run.discard()
    text = info["manifest"]
    assert not any(secret in text for secret in (KEY, TOKEN, HEADER, "X=ab"))
    assert "MY_KEY" in text


def test_the_models_shape_is_read_where_the_run_is_kept_and_not_on_workers() -> None:
    roof: dict[str, Any] = {"gpu_type": "h100", "gpus": "4"}
    elsewhere = parse(model_shape="/not/here.yaml", **roof)
    with pytest.raises(UsageError, match=r"here\.yaml"):
        with_roofline(elsewhere)
    shape = Path(__file__).parents[2] / "examples" / "models" / "llama-3-8b.yaml"
    assert with_roofline(parse(model_shape=str(shape), **roof)).text["model_shape"]["layers"] == 32
    with pytest.raises(UsageError, match="--gpus"):
        with_roofline(parse(model_shape=str(shape), gpu_type="h100"))


def test_a_header_may_have_its_value_in_the_environment() -> None:
    found = parse({"X_KEY": "s3cret-value"}, header=["X-Team=a"], header_env=["X-Api-Key=X_KEY"])
    assert found.headers == {"X-Team": "a", "X-Api-Key": "s3cret-value"}
    assert "s3cret-value" in found.secrets
    assert "s3cret" not in repr(found) + repr(found.text)


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        ("X-Api-Key=X_KEY", "", "the environment variable 'X_KEY' is not set, or empty"),
        ("X-Api-Key=X_KEY", "s3cret\nline", "holds a line break"),
        ("X-Api-Key=s3cret-value", "x", "write NAME=VARIABLE"),
        ("s3cret", "x", "write NAME=VARIABLE"),
        ("Content-Length=X_KEY", "12", "cannot be set"),
    ],
)
def test_a_header_without_a_usable_variable_is_refused_without_showing_a_value(
    word: str, value: str, reason: str
) -> None:
    said = refusal({"X_KEY": value}, header_env=[word])
    assert said.startswith("--header-env: ")
    assert reason in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("value", "key"),
    [
        # Blanks and line ends around a key are the file's or the secret's, no part of a key.
        ("s3cret-key\n", "s3cret-key"),
        (" s3cret-key\r\n", "s3cret-key"),
        ("\ts3cret-key ", "s3cret-key"),
        # Within it they would end the header; a byte order mark fits into none.
        ("s3cret\nkey", None),
        ("\ufeffs3cret-key", None),
        ("s3cret-\u043aey", None),
        # Quotes around it are those of a file of variables that was read as it stands.
        ('"s3cret-key"', None),
        ("'s3cret-key'", None),
        ('s3cret"key', 's3cret"key'),
        # The client adds the scheme.
        ("Bearer s3cret-key", None),
    ],
)
def test_a_key_out_of_a_file_loses_the_blanks_around_it_or_is_refused_and_not_shown(
    value: str, key: str | None
) -> None:
    if key is not None:
        assert parse({"K": value}, api_key_env="K").api_key == key
        return
    said = refusal({"K": value}, api_key_env="K")
    assert said.startswith("--api-key-env: ")
    assert "s3cret" not in said


# -- the SDKs' own variable -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "environ", "taken"),
    [
        ({}, {"OPENAI_API_KEY": "sk-1234"}, "OPENAI_API_KEY"),
        ({}, {}, None),
        ({}, {"OPENAI_API_KEY": " "}, None),
        ({"api_key_env": ""}, {"OPENAI_API_KEY": "sk-1234"}, ""),
        ({"api_key_env": "MINE"}, {"OPENAI_API_KEY": "sk-1234"}, "MINE"),
        ({"header": ["Authorization=Bearer x"]}, {"OPENAI_API_KEY": "sk-1234"}, None),
        ({"header_env": ["api-key=AZURE"]}, {"OPENAI_API_KEY": "sk-1234"}, None),
        ({"header": ["X-Team=a"]}, {"OPENAI_API_KEY": "sk-1234"}, "OPENAI_API_KEY"),
    ],
)
def test_the_sdks_variable_is_taken_where_nothing_is_said_of_a_key(
    options: dict[str, Any], environ: dict[str, str], taken: str | None
) -> None:
    """By its name alone: the options, which workers and the manifest get, never have the key."""
    given = argparse.Namespace(**options)
    take_default_key(given, environ)
    assert getattr(given, "api_key_env", None) == taken
    assert "sk-1234" not in repr(vars(given))


def test_a_target_with_a_version_takes_the_key_in_its_own_header_too() -> None:
    assert access_headers("sk-{1}", {}, (), versioned=True)["api-key"] == "sk-{{1}"
    assert "api-key" not in access_headers("sk-1", {}, ())
    assert "api-key" not in access_headers(None, {}, (), versioned=True)


# --- What ends a run: exact shares of a number of requests, and rules on how it goes


@given(st.integers(0, 10**9), st.integers(1, 300))
def test_the_shares_of_all_workers_sum_up_and_differ_by_one_at_most(total: int, workers: int) -> None:
    shares = [share(total, index, workers) for index in range(workers)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_worker_that_joins_late_has_no_share() -> None:
    assert share(100, 2, 2) == 0


def test_a_quota_lets_exactly_so_many_begin() -> None:
    quota = Quota(3)
    assert [quota.take() for _ in range(5)] == [True, True, True, False, False]
    assert quota.spent
    assert Quota(0).spent


def test_rules_become_values() -> None:
    assert parse_stop_rules("") == ()
    assert parse_stop_rules("error_rate>20% over 1m, oversaturation") == (
        ErrorRate(0.2, 60.0),
        Oversaturation(),
    )
    assert parse_stop_rules(" error_rate > 0.5% ") == (ErrorRate(0.005, 30.0),)


@pytest.mark.parametrize(
    "text", ["errors>20%", "error_rate>20", "error_rate>20% over soon", "error_rate>100%", "oversaturated"]
)
def test_a_wrong_rule_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="stop rule") as error:
        parse_stop_rules(text)
    assert repr(text) in str(error.value)


def stopped_at(rule: StopRule, seconds: int, totals: Callable[[float], Totals]) -> tuple[float, str] | None:
    """When the rule ends a run that has these totals at each time, looked at four times a second."""
    watch = StopWatch([rule])
    for step in range(4 * seconds):
        reason = watch.look(step / 4, totals(step / 4))
        if reason is not None:
            return step / 4, reason
    return None


def test_a_share_of_errors_above_the_limit_ends_the_run_once_its_time_is_seen() -> None:
    def totals(t: float) -> Totals:
        return Totals(ok=int(6 * t), failed=int(4 * t), ended=int(6 * t) + int(4 * t))

    found = stopped_at(ErrorRate(0.2, 10.0), 60, totals)
    assert found is not None
    assert found[0] == 10.0
    assert "error_rate>0.2 over 10s" in found[1]
    assert "40 failed (40.0 %)" in found[1]
    assert stopped_at(ErrorRate(0.3, 10.0), 60, totals) is None  # by chance in 2 of 100 cases


@pytest.mark.parametrize(
    ("rate", "true", "limit", "over_s", "ends"),
    [
        (1, 0.05, 0.2, 30.0, False),
        (3, 0.05, 0.2, 5.0, False),
        (1, 0.10, 0.2, 30.0, False),
        (5, 0.15, 0.2, 30.0, False),
        (10, 0.005, 0.01, 30.0, False),
        (1, 0.50, 0.2, 30.0, True),
        (5, 0.35, 0.2, 30.0, True),
        (3, 1.00, 0.2, 5.0, True),
        (10, 0.001, 0.0, 30.0, True),
    ],
)
def test_a_share_of_errors_ends_a_run_if_it_is_above_the_limit_and_not_by_chance(
    rate: float, true: float, limit: float, over_s: float, ends: bool
) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        at_s = np.cumsum(rng.exponential(1 / rate, int(rate * 700)))
        failed = np.concatenate([[0], np.cumsum(rng.random(len(at_s)) < true)])

        def totals(t: float, at_s: Any = at_s, failed: Any = failed) -> Totals:
            n = int(np.searchsorted(at_s, t))
            return Totals(n - int(failed[n]), int(failed[n]), n)

        assert (stopped_at(ErrorRate(limit, over_s), 600, totals) is not None) == ends


def test_errors_of_long_ago_do_not_end_a_run() -> None:
    def totals(t: float) -> Totals:
        return Totals(ok=int(10 * t), failed=min(19, int(10 * t)), ended=int(20 * t))

    assert stopped_at(ErrorRate(0.4, 10.0), 60, totals) is None


def test_a_share_of_too_few_requests_says_nothing() -> None:
    assert stopped_at(ErrorRate(0.1, 10.0), 60, lambda t: Totals(failed=int(t / 2), ended=int(t / 2))) is None


def queue(rate: Callable[[float], float], capacity: float, latency_s: float) -> Callable[[float], Totals]:
    """Arrivals at ``rate``, each answered after ``latency_s``, at most ``capacity`` a second."""
    step, arrived, ended = 0.05, [0.0], [0.0]
    late = round(latency_s / step)
    for n in range(1, round(400 / step)):
        arrived.append(arrived[-1] + rate(n * step) * step)
        could = arrived[n - late] if n >= late else 0.0
        ended.append(min(could, ended[-1] + capacity * step))

    def totals(t: float) -> Totals:
        n = round(t / step)
        return Totals(ok=int(ended[n]), ended=int(ended[n]), backlog=int(arrived[n]) - int(ended[n]))

    return totals


def test_a_queue_that_grows_without_end_ends_the_run_and_says_how_fast_it_grew() -> None:
    found = stopped_at(Oversaturation(), 120, queue(lambda _: 20.0, 12.0, 2.0))
    assert found is not None
    at_s, reason = found
    assert at_s == 60
    assert "20 requests/s came" in reason
    assert "11.6/s ended" in reason


@pytest.mark.parametrize("latency_s", [0.5, 5.0, 20.0, 60.0, 120.0])
def test_a_load_that_fills_a_server_of_long_answers_is_no_oversaturation(latency_s: float) -> None:
    assert stopped_at(Oversaturation(), 300, queue(lambda _: 20.0, 1000.0, latency_s)) is None


def test_a_rising_rate_that_the_server_follows_is_no_oversaturation() -> None:
    assert stopped_at(Oversaturation(), 300, queue(lambda t: t, 1000.0, 10.0)) is None


def test_a_rising_rate_that_outgrows_the_server_ends_the_run() -> None:
    found = stopped_at(Oversaturation(), 300, queue(lambda t: t, 50.0, 5.0))
    assert found is not None
    assert 60 < found[0] < 130


def test_a_server_that_answers_no_more_ends_the_run() -> None:
    healthy = queue(lambda _: 20.0, 1000.0, 1.0)

    def totals(t: float) -> Totals:
        if t < 60:
            return healthy(t)
        at_60 = healthy(60)
        return at_60._replace(backlog=at_60.backlog + int(20 * (t - 60)))

    found = stopped_at(Oversaturation(), 300, totals)
    assert found is not None
    assert 100 <= found[0] <= 120


def random_queue(
    seed: int, rate: Callable[[float], float], peak: float, mean_s: float, seats: int, sigma: float = 0.6
) -> Callable[[float], Totals]:
    """Arrivals of a Poisson process, answers of lognormal lengths, so many at a time."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / peak, int(330 * peak) + 100))
    due = due[[rng.random() < rate(t) / peak for t in due.tolist()]]
    free, ends = [0.0] * seats, []
    for at_s, takes_s in zip(due, mean_s * rng.lognormal(-(sigma**2) / 2, sigma, len(due)), strict=True):
        ends.append(max(at_s, heapq.heappop(free)) + takes_s)
        heapq.heappush(free, ends[-1])
    ended_at = np.sort(ends)

    def totals(t: float) -> Totals:
        ended, arrived = int(np.searchsorted(ended_at, t)), int(np.searchsorted(due, t))
        return Totals(ok=ended, ended=ended, backlog=arrived - ended)

    return totals


@pytest.mark.parametrize(
    ("rate", "peak", "mean_s", "seats"),
    [
        (lambda _: 11.2, 11.3, 1.0, 16),
        (lambda _: 15.2, 15.3, 1.0, 16),
        (lambda _: 5.8, 5.9, 5.0, 32),
        (lambda _: 1.5, 1.6, 60.0, 128),
        (lambda t: 14.4 * min(1.0, t / 120), 14.5, 1.0, 16),
        (lambda t: 16 * (0.7 + 0.25 * math.sin(t / 38)), 16.0, 1.0, 16),
        (lambda t: 28.8 if 120 < t < 140 else 9.6, 29.0, 1.0, 16),
        (lambda t: 28.8 if 120 < t < 160 else 9.6, 29.0, 1.0, 16),
        (lambda _: 0.2, 0.3, 8.0, 4),
    ],
    ids=["70 %", "95 %", "90 % of 5 s", "70 % of 60 s", "ramp", "sine", "burst", "longer burst", "trickle"],
)
def test_a_load_that_the_server_can_answer_is_no_oversaturation(
    rate: Callable[[float], float], peak: float, mean_s: float, seats: int
) -> None:
    for seed in range(3):
        assert stopped_at(Oversaturation(), 300, random_queue(seed, rate, peak, mean_s, seats)) is None


@pytest.mark.parametrize(
    ("over", "mean_s", "seats"),
    [
        *((1.1, 1.0, 16), (1.1, 1.0, 64)),
        *((1.3, 1.0, 16), (1.3, 1.0, 64), (1.3, 20.0, 64)),
        *((2.0, 1.0, 16), (2.0, 1.0, 64), (2.0, 20.0, 64)),
    ],
)
def test_a_load_above_the_capacity_is_found_within_five_minutes(
    over: float, mean_s: float, seats: int
) -> None:
    rate = over * seats / mean_s
    for seed in range(3):
        found = stopped_at(Oversaturation(), 300, random_queue(seed, lambda _: rate, rate, mean_s, seats))
        assert found is not None


def test_without_rules_nothing_is_kept() -> None:
    watch = StopWatch([])
    assert watch.look(1.0, Totals(failed=100, ended=100)) is None
