"""The charts of a prefix-cache experiment: latencies by the hits that were achieved, whatever was asked."""

from dataclasses import replace
from typing import Any

from metrics_cases import batch, manifest, request, stage

from llm_locust.core.manifest import PrefixShare, ReplicaCache
from llm_locust.core.stages import with_stages
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.metrics.question import Question
from llm_locust.report.html.over_load import over_load

N = 512
PRIMED = ReplicaCache(target="http://r", before=0, after=0, again=496, primed=10)


def experiment(*stages_of: tuple[float, int, float]) -> Summary:
    """Stages by what was asked, the tokens of each prompt that were cached, and the TTFT in seconds."""
    stages, made = [], []
    for i, (asked, cached, ttft) in enumerate(stages_of):
        at_s = 1 + 12 * i
        stages.append(stage(i, at_s, at_s + 10, prefix=PrefixShare.of(asked, N, 10), caches=[PRIMED]))
        known: dict[str, Any] = {"input_tokens": N, "asked_input_tokens": N, "cached_tokens": cached}
        times = [(ttft + 1e-4 * (37 * k % 100), ttft + 0.02, ttft + 0.04) for k in range(100)]
        made += [request(at_s + k / 10, at, **known) for k, at in enumerate(times)]
    records = [replace(record, request_id=f"{i}") for i, record in enumerate(made)]
    facts = manifest(12.0 * len(stages), stages=stages, options={"sweep": "users=1 prefix-share=0%,50%"})
    workers = [replace(facts.workers[0], announced=len(records), received=len(records))]
    of = with_stages(batch(*records), stages, open_loop=False)
    return typed(summarise(of, replace(facts, workers=workers), Question()))


def test_ttft_is_drawn_by_rising_achieved_hits_and_nothing_over_the_one_load() -> None:
    summary = experiment((0.9, 464, 0.02), (0.0, 0, 0.10), (0.5, 256, 0.06))
    ttft, tpot = over_load(summary, {})
    assert (ttft.id, tpot.id) == ("ttft-over-hits", "tpot-over-hits")
    columns = ttft.data[0].columns
    (hits, *_) = columns
    assert columns[hits] == [0, 50, 90.625]
    assert columns["p50 (ms)"] == [104.95, 64.95, 24.95]
    assert {series.x for series in ttft.series} == {hits}
    assert [s.name for s in ttft.series if s.name.startswith("p50")] == ["p50", "p50 low", "p50 high"]


def test_a_stage_that_is_no_result_is_left_out_and_said() -> None:
    ttft, _ = over_load(experiment((0.0, 0, 0.10), (0.5, 256, 0.06), (0.9, 0, 0.02)), {})
    assert "1 stage without a result left out" in ttft.reading
    assert len(ttft.data[0].columns["p50 (ms)"]) == 2
