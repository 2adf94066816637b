"""A look at a stage that goes on ends it only by the records of every worker that takes part."""

from pathlib import Path

import numpy as np
import pytest
from metrics_cases import ns, request
from run_going_on import going_on

from llm_locust.core.manifest import StageFacts, WorkerFacts
from llm_locust.core.record import RequestRecord
from llm_locust.report.run.stage_reading import StageQuestion, answer_of


def served(worker: str) -> list[RequestRecord]:
    """100 requests/s from 1 s to 31 s whose TTFT varies by 2 %."""
    times_s = np.exp(0.02 * np.random.default_rng(3).normal(size=3_000)) * 0.05
    return [
        request(1 + i / 100, (float(t), float(t) + 0.02), user=1, request_id=f"{worker}{i}")
        for i, t in enumerate(times_s)
    ]


def looked_at(run: Path, workers: tuple[str, ...], kind: str = "rate", asked: float = 200.0) -> bool:
    facts = [
        WorkerFacts(id=name, index=i, announced=99, received=0, lost=True, heard_ns=ns(32.0))
        for i, name in enumerate(("a", "b"))
    ]
    options = {"sweep": f"{kind}={asked:g}", "until": "p50_ttft±5%"}
    with going_on(run, [(name, served(name)) for name in workers], workers=facts, options=options):
        pass
    stage = StageFacts(
        number=0,
        kind=kind,  # type: ignore[arg-type]
        asked=asked,
        repeat=0,
        begun_ns=ns(0.5),
        measured_ns=ns(1.0),
        ended_ns=ns(31.0),
    )
    return answer_of(run, StageQuestion([stage], until="p50_ttft±5%")).is_enough


def test_a_worker_without_records_does_not_let_the_others_end_the_stage(tmp_path: Path) -> None:
    assert looked_at(tmp_path / "both", ("a", "b"))
    with pytest.raises(ValueError, match="recorded by b yet"):
        looked_at(tmp_path / "one", ("a",))


def test_a_worker_that_has_no_user_in_the_stage_is_not_waited_for(tmp_path: Path) -> None:
    assert looked_at(tmp_path / "one", ("a",), "users", 1.0)
    with pytest.raises(ValueError, match="recorded by b yet"):
        looked_at(tmp_path / "two", ("a",), "users", 2.0)


@pytest.mark.parametrize(
    ("made", "no_result"),
    [
        ({"a": 3_000}, ""),
        ({"a": 3_001}, "1 records of it"),
        ({"a": 2_990, "b": 2}, "2 records of it"),  # what "a" has beyond its count is not what "b" lacks
        ({}, ""),
    ],
)
def test_a_search_reads_no_stage_whose_records_are_not_all_here(
    tmp_path: Path, made: dict[str, int], no_result: str
) -> None:
    """As of an earlier part, whose master was killed before the last batch came."""
    with going_on(tmp_path / "run", [("a", served("a"))], options={"sweep": "rate=100"}):
        pass
    stage = StageFacts(
        number=0,
        kind="rate",
        asked=100.0,
        repeat=0,
        begun_ns=ns(0.5),
        measured_ns=ns(1.0),
        ended_ns=ns(31.0),
        drained_ns=ns(31.5),
        made=made,
    )
    probe = answer_of(tmp_path / "run", StageQuestion([stage], find="max rate under p50_ttft<500ms")).probe
    assert probe is not None
    assert probe.no_result.startswith(no_result)
    assert bool(probe.no_result) is bool(no_result)
