"""``llm-locust plan``: a sweep with known rates gives replicas, GPUs and cost, with what it assumes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, ns, request, stage
from server_cases import rows

from llm_locust.cli.main import main
from llm_locust.core.stages import with_stages
from llm_locust.deployment.samples import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.store import REQUESTS_FILE, write_manifest, write_requests

RATES = (5.0, 10.0, 20.0, 40.0)


def written(path: Path, **fields: Sequence[Any]) -> Path:
    """50 s at each rate; up to 20 requests/s all are good, at 40 none is; the stage at 10 had a fault.

    The values of a field are those of the requests in turn.
    """
    random = np.random.default_rng(1)
    made, stages = [], []
    for number, rate in enumerate(RATES):
        begins = 1.0 + 60 * number
        at_s = np.sort(begins + random.uniform(0, 50, round(rate * 50)))
        ttft_s = (0.05 if rate <= 20 else 0.2) * random.lognormal(0, 0.1, len(at_s))
        lag: dict[str, Any] = {"kernel_stamps": True, "client_lag_ns": 10_000}
        made += [
            request(float(a), (float(t), float(t) + 0.02, float(t) + 0.04), **lag)
            for a, t in zip(at_s, ttft_s, strict=True)
        ]
        fault = "a worker was lost" if rate == 10 else ""
        stages.append(stage(number, begins, begins + 50, asked=rate, kind="rate", fault=fault))
    made = [
        replace(r, request_id=f"r{i}", **{key: of[i % len(of)] for key, of in fields.items()})
        for i, r in enumerate(made)
    ]
    path.mkdir()
    options = {"sweep": "rate=5,10,20,40"}
    facts = manifest(240.0, open_loop=True, stages=stages, options=options, slo="ttft=100ms")
    workers = [replace(facts.workers[0], announced=len(made), received=len(made))]
    write_manifest(path, replace(facts, workers=workers))
    write_requests(path / REQUESTS_FILE, [with_stages(batch(*made), stages, open_loop=True)])
    return path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one replica, which answers name."""
    return written(tmp_path_factory.mktemp("plan") / "sweep", replica=["replica-0"])


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["plan", *words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_a_plan_is_by_the_load_that_held_and_names_what_it_did_not_use(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(sweep), "--rate", "200", "--gpus-per-replica", "2", "--price-per-gpu-hour", "3")
    code, found, err = plan(capsys, *words)
    assert (code, err) == (0, "")
    capacity = found["capacity"]
    assert (capacity["low"], capacity["high"], capacity["is_bracket"]) == (20, 40, True)
    assert 20 < capacity["rate"] < 40
    expected = int(np.ceil(200 / capacity["low"])) + 1
    assert found["plan"]["replicas"] == expected
    assert found["plan"]["gpus"] == 2 * expected
    assert found["plan"]["cost_per_hour"] == 6 * expected
    assert [each["load"] for each in found["unused_stages"]] == [10.0]
    assert found["is_model"], "more replicas than were measured"
    assert main(["plan", *words]) == 0
    shown = capsys.readouterr().out
    assert "stage 1 (10.0) is not used: a worker was lost" in shown
    assert "a model beyond the 1 replica measured" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--slo", "ttft=1ms"], "it is less than 5"),
        (["--slo", ""], "without an SLO the throughput decides"),
        (["--price-per-gpu-hour", "3"], "give both for a cost"),
    ],
)
def test_what_a_sweep_cannot_answer_is_refused_in_one_line(
    words: list[str], why: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = plan(capsys, str(sweep), "--rate", "200", *words)
    assert code == 2
    assert why in err
    assert err.count("\n") == 1


def test_an_slo_that_no_load_breaks_gives_a_lower_bound(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = plan(capsys, str(sweep), "--rate", "80", "--slo", "ttft=5s", "--spare", "0")
    assert code == 0
    assert found["capacity"]["is_bound"]
    assert (found["capacity"]["rate"], found["plan"]["replicas"]) == (40.0, 2)


def test_replicas_that_no_answer_named_are_asked_for_and_not_taken_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(written(tmp_path / "nameless", replica=[None]))
    code, found, err = plan(capsys, run, "--rate", "200")
    assert (code, found, err.count("\n")) == (2, {}, 1)
    assert "no answer named its replica" in err
    assert "give --replicas N (--replicas 1 if it is one)" in err
    planned = {n: plan(capsys, run, "--rate", "200", "--spare", "0", "--replicas", n) for n in ("1", "4")}
    assert {n: (code, made["plan"]["replicas"]) for n, (code, made, _) in planned.items()} == {
        "1": (0, 10),
        "4": (0, 40),
    }


def test_prefill_and_decode_apart_are_planned_only_with_a_number_of_replicas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = written(tmp_path / "apart", replica=["d:8000"])
    told = [
        row
        for role in ("prefill", "decode")
        for target in [f"{role[0]}:8000"]
        for row in (
            *rows(target, "role", [1] * 240, role=role, source="run"),
            *rows(target, "running", [1] * 240),
        )
    ]
    with SampleWriter(run / SERVER_METRICS_FILE) as writer:
        writer.write([ServerSample(ns(row[0]), *row[1:]) for row in sorted(told)])
    code, _, err = plan(capsys, str(run), "--rate", "200")
    assert code == 2
    assert "prefill and decode are apart" in err
    assert "give --replicas 1, and as --gpus-per-replica all GPUs of the deployment" in err
    whole = ("--rate", "200", "--replicas", "1", "--gpus-per-replica", "8")
    code, found, _ = plan(capsys, str(run), *whole)
    assert (code, found["plan"]["gpus"]) == (0, 8 * 11)


def test_replicas_that_only_addresses_tell_apart_are_counted_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(written(tmp_path / "addresses", replica=[None], peer=["10.0.0.1:80", "10.0.0.2:80"]))
    assert plan(capsys, run, "--rate", "200")[1]["replicas_measured"] == 2
    warning = "replicas were counted by the addresses of their connections; give --replicas if these are of"
    for words, is_told in ((), True), (("--replicas", "2"), False):
        assert main(["plan", run, "--rate", "200", *words]) == 0
        assert (warning in " ".join(capsys.readouterr().out.split())) is is_told
