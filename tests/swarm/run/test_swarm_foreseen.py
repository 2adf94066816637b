"""What a run is told before its first request."""

import argparse
from pathlib import Path

import pytest

from llm_locust.metrics.gates import parse_gates
from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.store.upload import reach
from llm_locust.swarm.run.load_watch import check_load
from llm_locust.swarm.run.preflight import fewest_of, foreseen


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
    assert reach.main(["--", str(tmp_path)]) == 0
    assert reach.main(["--", "ftp://there"]) == 1
    assert "unknown kind" in capsys.readouterr().out
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-seen")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    closed = "s3://bucket/there?scheme=http&endpoint_override=127.0.0.1:9&region=eu-central-1"
    assert reach.main(["--", closed]) == 1
    said = capsys.readouterr().out
    assert len(said.strip().splitlines()) == 1
    assert "not-to-be-seen" not in said
