"""``llm-locust find`` and ``plan``: runs at several loads give the next load, replicas and cost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, ns, request, rows, stage

from llm_locust.cli.main import main
from llm_locust.core.record import Outcome
from llm_locust.core.stages import with_stages
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.store import REQUESTS_FILE, read_manifest, write_manifest, write_requests

# --- ``llm-locust find``: runs at several loads give the next load or the answer


EDGE = 20.0


def make_run(path: Path, rate: float, seed: int = 1, *, hung: bool = False) -> Path:
    """100 s at a rate, whose TTFT is 0.1 s · rate / 20 × noise; a hung server answers nothing."""
    random = np.random.default_rng(seed)
    at_s = np.sort(random.uniform(0, 100, round(rate * 100)))
    ttft_s = 0.1 * rate / EDGE * random.lognormal(0, 0.1, len(at_s))
    lag: dict[str, Any] = {"kernel_stamps": True, "client_lag_ns": 10_000}
    if hung:
        made = [request(float(at), (), ended=160.0, outcome=Outcome.CANCELLED, **lag) for at in at_s]
    else:
        made = [
            request(float(a), (float(t), t + 0.02, t + 0.04), **lag)
            for a, t in zip(at_s, ttft_s, strict=True)
        ]
    made = [replace(r, request_id=f"{rate}-{i}") for i, r in enumerate(made)]
    path.mkdir()
    facts = manifest(100.0, id=path.name, open_loop=True)
    workers = [replace(facts.workers[0], announced=len(made), received=len(made))]
    write_manifest(path, replace(facts, workers=workers))
    write_requests(path / REQUESTS_FILE, [batch(*made)])
    return path


def find(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object], str]:
    code = main(["find", *words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


def test_runs_lead_to_the_edge_and_a_hung_one_breaks_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objective = "max rate under p90_ttft<100ms"
    edge = EDGE / np.exp(1.2816 * 0.1)
    runs = [make_run(tmp_path / "0", 8.0)]
    answer: dict[str, float] | None = None
    while answer is None and len(runs) < 12:
        code, found, err = find(capsys, objective, *map(str, runs))
        assert (code, err) == (0, "")
        answer = found["answer"]  # type: ignore[assignment]
        if answer is None:
            runs.append(make_run(tmp_path / str(len(runs)), found["next"]["load"], len(runs)))  # type: ignore[index]
    assert answer is not None
    assert answer["load"] == pytest.approx(edge, rel=0.05)
    assert answer["is_resolved"]
    assert main(["find", objective, *map(str, runs)]) == 0
    assert "95 % interval" in capsys.readouterr().out
    hung = make_run(tmp_path / "hung", 16.0, hung=True)
    _, found, _ = find(capsys, objective, str(runs[0]), str(hung))
    assert found["stages"][1]["shows"] == "broken"  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["max rate under p99_ttft<0ms"], "no request takes 0 ms"),
        (["max concurrency under p99_ttft<1s"], "was a load of a rate"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_line(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["find", *words, str(make_run(tmp_path / "a", 8.0))]) == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1


def test_goodput_without_an_slo_is_no_result_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(make_run(tmp_path / "a", 8.0))
    _, found, _ = find(capsys, "max rate under goodput>=95%", run)
    assert "give one by --slo" in found["stages"][0]["no_result"]  # type: ignore[index]
    _, found, _ = find(capsys, "max rate under goodput>=95%", run, "--slo", "ttft=100ms")
    assert found["next"]["load"] > 8  # type: ignore[index]


def test_a_run_that_is_given_twice_is_refused_because_its_requests_would_count_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", 8.0)
    (tmp_path / "b").symlink_to(run)
    for again in (run, tmp_path / "b"):
        code, _, err = find(capsys, "max rate under p90_ttft<100ms", str(run), str(again))
        assert code == 2
        assert "are one run: give it once" in err


def test_runs_that_differ_in_more_than_their_load_are_warned_of_and_judged_by_one_slo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / "a", 8.0), make_run(tmp_path / "b", 16.0)]
    _, found, _ = find(capsys, "max rate under p90_ttft<100ms", *map(str, runs))
    assert found["warnings"] == []
    load = {"request_rate": "8", "run_time": "100s", "stage_time": "60s", "input_tokens": "512"}
    other = {"request_rate": "16", "run_time": "90s", "until": "p99_ttft±5%", "input_tokens": "64"}
    facts = [{"slo": "ttft=120ms", "options": load}, {"slo": "ttft=5ms", "options": other}]
    for run, known in zip(runs, facts, strict=True):
        write_manifest(run, replace(read_manifest(run), **known))  # type: ignore[arg-type]
    _, found, _ = find(capsys, "max rate under goodput>=95%", *map(str, runs))
    assert [str(text).partition(";")[0] for text in found["warnings"]] == [  # type: ignore[attr-defined]
        "a and b: different --input-tokens: 512 and 64",
        "a and b: different --until: none and p99_ttft±5%",
        "a and b: different SLOs: ttft=120ms and ttft=5ms",
    ]
    shares = [stage["limits"][0]["share"] for stage in found["stages"]]  # type: ignore[attr-defined]
    assert min(shares) > 0.9, "the second run is judged by the first one's SLO"
    assert main(["find", "max rate under goodput>=95%", *map(str, runs)]) == 0
    assert "The runs differ in more than their load" in capsys.readouterr().out


# --- ``llm-locust plan``: a sweep with known rates gives replicas, GPUs and cost, with what it assumes


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
