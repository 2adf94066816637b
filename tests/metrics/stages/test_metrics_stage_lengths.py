"""A stage of a sweep over lengths is a result only where its requests had them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metrics_cases import batch, failed, manifest, request, stage

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.core.record import LengthPair, RequestRecord
from llm_locust.core.stages import with_stages
from llm_locust.figures.objective import parse_objective, probes
from llm_locust.figures.stages import Stage
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.metrics.question import Question
from llm_locust.report.compare.pareto import pareto_of
from llm_locust.store import REQUESTS_FILE, write_manifest, write_requests

#: An answer of three tokens, as `request` has it.
SHORT, LONG = LengthPair(100, 3), LengthPair(1000, 3)
RIGHT: dict[str, Any] = {"input_tokens": 100, "asked_input_tokens": 100, "asked_output_tokens": 3}
OF_LONG: dict[str, Any] = {"input_tokens": 1000, "asked_input_tokens": 1000, "asked_output_tokens": 3}
UNCOUNTED: dict[str, Any] = {**RIGHT, "input_tokens": None, "output_tokens": None}


def load(
    at_s: int, n: int = 100, gap: float = 0.02, every: float = 0.1, **fields: Any
) -> list[RequestRecord]:
    """A request in each tenth of a second of ten."""
    return [request(at_s + i * every, (0.03, 0.03 + gap, 0.03 + 2 * gap), **fields) for i in range(n)]


def swept(*loads: tuple[LengthPair, list[RequestRecord]]) -> tuple[RecordBatch, Manifest]:
    """A stage for each, the first measured from 1 s on and each 12 s after the one before."""
    stages = [stage(i, 1 + 12 * i, 11 + 12 * i, lengths=pair) for i, (pair, _) in enumerate(loads)]
    made = [replace(r, request_id=f"{i}") for i, r in enumerate(r for _, of in loads for r in of)]
    facts = manifest(12.0 * len(loads), stages=stages, options={"sweep": "lengths=100:3,1000:3", "gpus": 1})
    workers = [replace(facts.workers[0], announced=len(made), received=len(made))]
    return with_stages(batch(*made), stages, open_loop=False), replace(facts, workers=workers)


def judged(records: list[RequestRecord]) -> Stage:
    found = typed(summarise(*swept((SHORT, records)), Question())).stages
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("records", "is_other", "is_result", "says"),
    [
        (load(1, **RIGHT), False, True, ""),
        (load(1, **{**RIGHT, "input_tokens": 108}), False, True, ""),
        (load(1, **{**RIGHT, "input_tokens": 109}), True, False, "give --tokenizer"),
        (load(1, **{**RIGHT, "output_tokens": 1}), True, False, "100 answers were shorter"),
        (load(1, **OF_LONG), True, False, "other lengths than 100:3: 100 of 100 ok requests"),
        (load(1, **{**RIGHT, "asked_input_tokens": 1000}), True, False, "other lengths than 100:3"),
        ([*load(1, 94, **RIGHT), *load(10, 6, **OF_LONG)], True, False, "6 of 100 ok requests"),
        ([*load(1, 95, **RIGHT), *load(10, 5, **OF_LONG)], False, True, ""),
        (load(1, **UNCOUNTED), None, True, "of 100 of 100 ok requests the server did not count"),
        ([*load(1, 95, **UNCOUNTED), *load(10, 5, **OF_LONG)], None, True, "is not known"),
        ([failed(1 + i / 10) for i in range(100)], None, False, "none of its 100 requests succeeded"),
    ],
)
def test_a_stage_of_other_lengths_is_not_a_result_and_what_is_not_counted_is_not_known(
    records: list[RequestRecord], is_other: bool | None, is_result: bool, says: str
) -> None:
    found = judged(records)
    assert found.lengths is not None
    assert found.lengths.is_other is is_other
    assert found.is_result is is_result
    assert says in "; ".join((*found.reasons, *found.notes))


def test_a_search_looks_at_the_stages_of_one_pair_and_asks_which() -> None:
    run = swept((SHORT, load(1, **RIGHT)), (LONG, load(13, **OF_LONG)), (LONG, load(25, **RIGHT)))
    objective = parse_objective("max concurrency under p50_ttft<1s")
    with pytest.raises(ValueError, match="100:3, 1000:3"):
        probes(*run, Question(), objective)
    with pytest.raises(ValueError, match="100:3, 1000:3"):
        probes(*run, Question(), objective, "7:3")
    assert [probe.no_result for probe in probes(*run, Question(), objective, "100:3")] == [""]
    right, other = probes(*run, Question(), objective, "1000:3")
    assert not right.no_result
    assert "other lengths than 1000:3" in other.no_result


def test_each_pair_has_a_pareto_front_of_its_own(tmp_path: Path) -> None:
    slow = load(13, 50, 0.05, 0.2, **OF_LONG)  # less of both rates than every stage of short prompts
    requests, facts = swept(
        (SHORT, load(1, **RIGHT)), (LONG, slow), (SHORT, load(25, 66, 0.03, 0.15, **RIGHT))
    )
    write_manifest(tmp_path, facts)
    write_requests(tmp_path / REQUESTS_FILE, [requests])
    found = pareto_of([tmp_path])
    assert [(point.stage, point.lengths, point.is_best) for point in found.points] == [
        (0, "100:3", True),
        (1, "1000:3", True),
        (2, "100:3", False),
    ]
