"""A whole run whose every number is computed a second time, by pandas: the golden test.

A key of summary.json that is not computed here makes it fail.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import golden_answers as answers
import golden_expected as by_pandas
import golden_frame as frames
import golden_intervals
import golden_run as run
import numpy as np
import pytest
from golden_frame import at, frame
from metrics_cases import plain
from summaries import summarise

from llm_locust.figures import compat
from llm_locust.figures.figure import Run
from llm_locust.figures.parts import part_of_all
from llm_locust.metrics.answers import Answers
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.judgement import Missing

_TAKEN = ("steal_percent", "throttled_percent", "run_queue_percent")


@pytest.fixture(scope="module")
def made() -> Any:
    return run.records()


@pytest.fixture(scope="module")
def df(made: Any) -> Any:
    return frame(made)


@pytest.fixture(scope="module")
def seconds(df: Any) -> float:
    return float(run.STOP_S - run.WARMUP_S - df.scheduled.min())


@pytest.fixture(scope="module")
def summary() -> Any:
    return run.summary()


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Every place where a summary is not what was computed here, both ways."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(map(str, found.keys() ^ expected.keys()))
        shared = found.keys() & expected.keys()
        unlike = [f"{where}: keys {keys}"] if keys else []
        return unlike + [
            d for key in sorted(shared) for d in differences(found[key], expected[key], f"{where}.{key}")
        ]
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{where}: {found} is not {expected}"]
        return [d for i, each in enumerate(expected) for d in differences(found[i], each, f"{where}[{i}]")]
    if isinstance(expected, float | np.floating) and np.isnan(expected):
        return [] if found is None else [f"{where}: {found} is defined"]
    if isinstance(expected, float | np.floating) and isinstance(found, float | int):
        rel = _TOLERANCE.get(where.split(".")[1], 1e-5 if "ci95" in where else 1e-9)
        near = math.isclose(found, expected, rel_tol=rel, abs_tol=1e-9)
        return [] if near else [f"{where}: {found} is not {expected}"]
    return [] if found == expected else [f"{where}: {found} is not {expected}"]


#: Drifts and intervals are told by quantiles of Student's t, which the oracle integrates on a grid.
_TOLERANCE = {"drift": 1e-5}


@pytest.fixture(scope="module")
def expected(made: Any, df: Any, seconds: float) -> Any:
    whole = by_pandas.part(df, seconds, by_pandas.LOST, by_pandas.UNSENT)
    of_replicas = answers.replicas(df, seconds)
    of_sessions = answers.sessions(df)

    def by(column: str, unsent: Mapping[str, int | None]) -> dict[str, Any]:
        return {
            label: {
                **by_pandas.part(rows, seconds, None, unsent.get(label, 0)),
                "quality": answers.quality_of_part(rows),
            }
            for label, rows in df.groupby(column)
        }

    return {
        "schema": 2,
        "compat": by_pandas.compat(df),
        "run": {
            "id": "20261121-golden",
            "name": "golden",
            "started": at(0),
            "host": "http://127.0.0.1:8000",
            "model": "tiny",
            "scenario": "golden.yaml",
            "seed": 7,
            "versions": {"llm-locust": "0.1.0"},
            "stop_reason": "num_requests=5000",
            "task_exceptions": [],
        },
        "window": {
            "start": at(df.scheduled.min() + run.WARMUP_S),
            "end": at(run.STOP_S),
            "seconds": seconds,
            "rule": "run: first scheduled request + 20 s warm-up to the stop",
            "left_out": None,
            "why_empty": None,
        },
        **whole,
        "tokens": by_pandas.tokens(df),
        "client": (of_client := by_pandas.client(df)),
        "littles_law": by_pandas.littles_law(df, seconds),
        "completeness": _completeness(df),
        "steadiness": frames.steadiness(df, seconds),
        "drift": frames.drift(df, seconds),
        "reliability": frames.reliability(df, seconds),
        "replicas": of_replicas,
        "fairness": (of_fairness := answers.fairness(df, made, of_replicas)),
        "bottleneck": frames.bottleneck(df, seconds, of_client["verdict"], of_fairness["causes"]),
        "quality": answers.quality(df),
        "sessions": of_sessions,
        "errors": by_pandas.errors(df),
        "gates": _gates(whole, df),
        "cost": by_pandas.cost(seconds, whole, of_sessions),
        "interventions": {
            "targets": [],
            "replicas_ready": ["http://127.0.0.1:8001", "http://127.0.0.1:8002"],
            "ready_s": 1.5,
            "calls": [
                _call("/start_profile", 30, 404, None),
                _call("/stop_profile", 90, None, "timed out"),
            ],
            "profiled_s": 60.0,
        },
        "roofline": {},
        "server": {},
        "energy": {},
        "live_check": {},
        "by_name": by("name", dict.fromkeys(df["name"])),
        "by_class": by("slo_class", run.UNSENT_BY_CLASS),
    }


def _call(path: str, at_s: float, status: int | None, error: str | None) -> dict[str, Any]:
    failed = {"target": "http://127.0.0.1:8002", "status": status, "error": error}
    return {"path": path, "at_s": float(at_s), "asked": 2, "done": 1, "failed": [failed]}


def _gates(whole: dict[str, Any], df: Any) -> list[dict[str, Any]]:
    """Of the failed requests too, where the limit is an upper one on what an answer takes."""
    ttft, of_all = whole["latency_ms"]["ttft"], whole["latency_ms_adjusted"]["ttft"]
    assert of_all["beyond"] == ["p90", "p95", "p99", "p99_9", "max"]
    values = [
        *(whole["goodput"]["ratio"], of_all["p50"], None, None, None, whole["requests"]["error_rate"]),
        *(whole["throughput"]["output_tokens_per_s"], whole["latency_ms"]["connect"]["p50"]),
        *(by_pandas.with_cut(df, metric)["p50"] for metric in ("tpot", "itl")),
        whole["requests"]["error_rate"],
    ]
    failed = f"{100 * whole['requests']['error_rate']:.3g} % failed"
    on_a_failure = f"{failed}: the p99 of all requests falls on a failed one"
    broken = {
        "p50_ttft<1ms": f"{of_all['p50']:.0f} ms is not < 1 ms",
        "p99_ttft<1ms": on_a_failure,
        "p99_ttft<1m": on_a_failure,
    }
    return [
        {
            "text": text,
            "value": value,
            "at_least": ttft["at_least"]["p99"] if text == "p99_ttft>1ms" else None,
            "passed": text not in broken,
            "reason": broken.get(text),
            "note": _note(text, failed),
            "undecided": False,
            "for_good": False,
        }
        for text, value in zip(run.GATES, values, strict=True)
    ]


def _note(gate: str, failed: str) -> str | None:
    if "tpot" in gate or "itl" in gate:
        return f"over all requests: {failed}; with what came of answers that were cut"
    if "ttft" not in gate:
        return None
    return f"of requests with an answer: {failed}" if ">" in gate else f"over all requests: {failed}"


def _completeness(df: Any) -> dict[str, Any]:
    """Each sending has a record, those that broke and were repeated too: half of the requests each worker."""
    rows = len(df) + int(df.retries.sum())
    first, second = (len(own) + int(own.retries.sum()) for own in (df[:2500], df[2500:]))
    health = ("hub_lag_ms_p99", "hub_lag_ms_max", "cpu_percent_max", "rss_mib_max", *_TAKEN)
    clock = ("clock_offset_ms", "clock_error_ms", "clock_steps")
    shared = {"missing": 0, "in_flight": 0, "unrecorded": 0}
    return {
        "complete": False,
        "cut_short": False,
        "workers_expected": 2,
        "workers_seen": 2,
        "workers_late": 1,
        "workers_left": 0,
        "workers_lost": 1,
        "records_announced": rows + 3,
        "records_received": rows,
        "records_stored": rows,
        "records_lost": 5,
        "records_dropped": 1,
        "batches_resent": 1,
        "in_flight_lost": 2,
        "held_back": 7,
        "held_back_s_max": 2.5,
        "backoff_waits": 5,
        "backoff_s": 7.5,
        "backoff_users_mean": 7.5 / run.STOP_S,
        "unsent": 4,
        "missing": {"w2": 3},
        "lost": ["w2"],
        "torn": ["batches.frames: bytes 10 to 20 are not a frame"],
        "faults": {"w2": ["it reported 5 finished requests, after 9"]},
        "messages_dropped": 7,
        "messages_dropped_by": {"w2": {"llm_batch": 2, "llm_done": 1}, "stranger": {"llm_ping": 4}},
        "workers": [
            {
                "id": "w1",
                "index": 0,
                "state": "done",
                "late": False,
                "joined_s": -1.0,
                "heard_s": 1500.0,
                **shared,
                "announced": first,
                "received": first,
                "batches": 20,
                "batches_received": "0-19",
                "resent": 1,
                "dropped": 0,
                "held_back": 5,
                "unsent": 4,
                **dict(zip(clock, (2.0, 0.15, 0), strict=True)),
                **dict(zip(health, (0.7, 9.0, 41.5, 120.5, 1.5, 0.75, 3.25), strict=True)),
            },
            {
                "id": "w2",
                "index": 1,
                "state": "lost",
                "late": True,
                "joined_s": 1.0,
                "heard_s": 1490.0,
                **shared,
                "announced": second + 3,
                "received": second,
                "missing": 3,
                "in_flight": 2,
                "unrecorded": 5,
                "batches": 0,
                "batches_received": None,
                "resent": 0,
                "dropped": 1,
                "held_back": 2,
                "unsent": 0,
                **dict.fromkeys((*clock, *health)),
            },
        ],
        "master": {
            "clock_steps": 0,
            **dict(zip(health, (None, 4.5, 12.0, None, None, None, None), strict=True)),
        },
    }


def test_every_key_of_the_summary_is_what_pandas_computes(summary: Any, expected: Any) -> None:
    assert not differences(summary, expected)


def without_intervals(value: Any) -> Any:
    """A part without what depends on the last digit of a figure that is one of the samples."""
    if isinstance(value, list):
        return [*map(without_intervals, value)]
    if not isinstance(value, dict):
        return value
    left_out = ("ci95", "n_effective")
    return {key: without_intervals(each) for key, each in value.items() if key not in left_out}


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # shares of none, in the oracle
@pytest.mark.parametrize("seed", range(40))
def test_every_figure_of_a_generated_run_is_what_pandas_computes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only intervals need them.
    monkeypatch.setattr(golden_intervals, "error", lambda *_: None)
    monkeypatch.setattr(golden_intervals, "_cells", lambda df, *_: np.zeros(len(df), dtype=int))
    with run.generated(seed) as made:
        df = frame(made)
        seconds = float(run.STOP_S - run.WARMUP_S - df.scheduled.min())
        expected = {
            **by_pandas.part(df, seconds, by_pandas.LOST, by_pandas.UNSENT),
            "compat": by_pandas.compat(df),
            "errors": by_pandas.errors(df),
            "quality": answers.quality(df),
            "replicas": answers.replicas(df, seconds),
            "sessions": answers.sessions(df),
            "tokens": by_pandas.tokens(df),
        }
        summary = json.loads(json.dumps(summarise(run.batch(made), run.manifest(made))))
    unlike = differences(
        without_intervals({key: summary[key] for key in expected}), without_intervals(expected)
    )
    assert not unlike


def test_the_run_has_in_it_what_a_run_can_have(df: Any, summary: Any) -> None:
    assert all(summary["requests"]["by_outcome"].values())
    for mark in (df.abandoned, ~df.streamed, df.connect.notna(), df.ttfo > df.ttft, df.replica.isna()):
        assert 10 < mark.sum() < len(df)
    assert set(df.source) == {"usage", "tokenizer", "events"}
    crossing = (df.share > 0) & (df.share < 1)
    assert crossing.sum() >= 2  # at either edge of the window
    assert {bool(df.scheduled[i] < 100) for i in crossing[crossing].index} == {True, False}
    assert all(summary["goodput"]["first_failed"].values())
    assert summary["quality"]["baseline"] is not None
    assert min(summary["sessions"][key] for key in ("completed", "abandoned", "failed", "cut")) > 0
    assert {gate["passed"] for gate in summary["gates"]} == {True, False}


def test_a_key_that_is_not_computed_here_is_a_difference(expected: Any) -> None:
    fairness = expected["fairness"]
    assert differences(expected, expected) == []
    assert differences({**expected, "new": 1}, expected) == [": keys ['new']"]
    assert differences({**expected, "fairness": {**fairness, "new": 1}}, expected) == [
        ".fairness: keys ['new']"
    ]
    assert differences({**expected, "fairness": {}}, expected) == [f".fairness: keys {sorted(fairness)}"]
    close = {**fairness, "requests": fairness["requests"] * (1 + 1e-6)}
    assert len(differences({**expected, "fairness": close}, expected)) == 1


def test_the_words_of_other_tools_are_by_their_formulas(df: Any) -> None:
    (rows, manifest), question = run.whole(), Question(warmup_s=run.WARMUP_S)
    m = measure(rows, manifest, question)
    found = plain(
        compat.compute(
            Run(
                requests=rows,
                m=m,
                manifest=manifest,
                question=question,
                rows=len(rows),
                answers=Answers.of(rows),
                missing=Missing(),
                whole=part_of_all(m, question.places, Missing()),
            )
        )
    )
    assert not differences({"compat": found}, {"compat": by_pandas.compat(df)})
    # The same word is not the same number.
    p50 = found["vllm"]["tpot_ms"]["p50"]
    assert found["guidellm"]["time_per_output_token_ms"]["p50"] > 1.2 * p50
    assert found["genai-bench"]["tpot_ms"]["p50"] > found["aiperf"]["inter_token_latency_ms"]["p50"]
    assert p50 > found["aiperf"]["inter_token_latency_ms"]["p50"]
