"""``llm-locust find``: runs at several loads give the next load or the answer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, request

from llm_locust.cli.main import main
from llm_locust.core.record import Outcome
from llm_locust.store import REQUESTS_FILE, read_manifest, write_manifest, write_requests

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
