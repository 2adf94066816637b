"""A stage of a prefix-cache experiment is a result only where its prompts had the hits that were possible."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, request, stage

from llm_locust.core.manifest import PrefixShare, ReplicaCache
from llm_locust.core.record import RequestRecord
from llm_locust.core.stages import of_lengths, with_stages
from llm_locust.figures.stage_checks import worth
from llm_locust.figures.stages import Stage
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.metrics.question import Question

N = 512
PRIMED = ReplicaCache(target="http://r", before=0, after=0, again=496, primed=10)
OFF = replace(PRIMED, again=0)
SILENT = replace(PRIMED, before=None, after=None, again=None)


def load(
    at_s: float, cached: int | None, n: int = 100, ttft: float = 0.05, **fields: Any
) -> list[RequestRecord]:
    known = {"input_tokens": N, "asked_input_tokens": N, "cached_tokens": cached, **fields}
    return [request(at_s + i / 10, (ttft, ttft + 0.02, ttft + 0.04), **known) for i in range(n)]


def swept(*stages_of: tuple[float, list[RequestRecord], list[ReplicaCache]]) -> Summary:
    """Stages of the asked shares, each measured for ten seconds."""
    stages = [
        stage(i, 1 + 12 * i, 11 + 12 * i, prefix=PrefixShare.of(asked, N, 10), caches=caches)
        for i, (asked, _, caches) in enumerate(stages_of)
    ]
    made = [replace(r, request_id=f"{i}") for i, r in enumerate(r for _, of, _ in stages_of for r in of)]
    facts = manifest(12.0 * len(stages), stages=stages, options={"sweep": "users=1 prefix-share=0%,50%"})
    workers = [replace(facts.workers[0], announced=len(made), received=len(made))]
    records = with_stages(batch(*made), stages, open_loop=False)
    return typed(summarise(records, replace(facts, workers=workers), Question()))


def judged(asked: float, records: list[RequestRecord], *caches: ReplicaCache) -> Stage:
    found = swept((asked, records, list(caches) or [PRIMED])).stages
    assert found is not None
    return found[0]


def test_hits_are_the_share_of_the_prompts_tokens_that_usage_says_were_cached() -> None:
    found = judged(0.9, [*load(1, 464, 50), *load(6, 448, 50)])
    assert found.prefix is not None
    assert found.prefix.tokens == 464
    assert found.prefix.possible == pytest.approx(464 / N)
    assert found.prefix.achieved == pytest.approx(456 / N)
    assert (found.prefix.source, found.is_result, found.prefix.is_other) == ("usage", True, False)


@pytest.mark.parametrize(
    ("records", "caches", "achieved", "says"),
    [
        (load(1, 0), [OFF], 0.0, "90.6% was possible: the prefix cache is off"),
        (
            load(1, 0),
            [PRIMED],
            0.0,
            "prefixes were evicted, or requests went to servers that were not prepared",
        ),
        (load(1, None), [PRIMED], 0.0, "prefixes were evicted"),
        ([*load(1, 464, 50), *load(6, None, 50)], [PRIMED], 232 / N, "prefixes were evicted"),
        ([*load(1, 464, 99), *load(10.9, None, 1)], [SILENT], None, "is not known: it is off, or start vLLM"),
        (load(1, None), [SILENT], None, "is not known"),
        (load(1, 464), [PRIMED, OFF], 464 / N, ""),
        (load(1, 511), [PRIMED], 511 / N, "the cache had more than the shared prefixes"),
        (load(1, 464, input_tokens=700), [PRIMED], 464 / 700, "100 of 100 prompts were off by more than 5%"),
        (
            [*load(1, 464, 50, replica="a"), *load(6, 464, 50, replica="b")],
            [PRIMED],
            464 / N,
            "2 replicas answered, and the prefix caches of 1 were prepared",
        ),
        ([*load(1, 464, 50, replica="a"), *load(6, 464, 50, replica="b")], [PRIMED, PRIMED], 464 / N, ""),
        (load(1, None), [replace(SILENT, hits=464.0 * 110, queries=512.0 * 110)], 464 / N, ""),
        (load(1, None), [replace(SILENT, hits=0.0, queries=512.0 * 110)], 0.0, "90.6% was possible"),
        (load(1, None), [replace(SILENT, hits=0.0, queries=0.0)], None, "is not known"),
        (load(1, None), [replace(SILENT, hits=464.0, queries=512.0), SILENT], None, "is not known"),
        (
            load(1, None),
            [
                replace(SILENT, hits=464.0, queries=512.0),
                replace(SILENT, uncounted="http://r: it fell"),
            ],
            None,
            "is not known: answers do not say it, nor do counters: http://r: it fell; start",
        ),
    ],
)
def test_a_stage_without_the_hits_that_were_possible_is_not_a_result(
    records: list[RequestRecord], caches: list[ReplicaCache], achieved: float | None, says: str
) -> None:
    found = judged(0.9, records, *caches)
    assert found.prefix is not None
    assert found.prefix.achieved == (None if achieved is None else pytest.approx(achieved))
    assert (found.is_result, found.prefix.is_other) == (not says, bool(says)), found.reasons
    assert says in "; ".join(found.reasons)


def test_what_only_the_servers_counted_is_noted() -> None:
    found = judged(0.5, load(1, None), replace(SILENT, hits=256.0, queries=512.0))
    assert found.is_result
    assert "hits are those of the servers' counters" in "; ".join(found.notes)


@pytest.mark.parametrize(
    ("caches", "unproven"),
    [
        ([SILENT], "1 of 1"),
        ([PRIMED, SILENT], "1 of 2"),
        ([OFF, OFF], "2 of 2"),
        ([replace(PRIMED, before=32, after=32, again=32)], "1 of 1"),
        ([PRIMED, replace(PRIMED, before=32, after=32)], None),
        ([replace(PRIMED, before=None, after=None)], None),
    ],
    ids=["silent", "one is silent", "never a hit", "only the template", "proven", "no number for 0"],
)
def test_a_flush_that_the_answers_of_any_replica_do_not_show_is_said_to_be_unproven(
    caches: list[ReplicaCache], unproven: str | None
) -> None:
    said = "; ".join(judged(0.9, load(1, 464), *caches).notes)
    assert ("flush is unproven" in said) == (unproven is not None)
    assert unproven is None or f"the flush is unproven at {unproven} replicas" in said


def test_a_flush_of_several_engines_behind_one_url_is_said_to_be_unproven() -> None:
    found = judged(0.9, load(1, 464), PRIMED, replace(PRIMED, engines=2))
    assert found.is_result
    assert "1 of 2 URLs have several engines" in "; ".join(found.notes)
    assert "the flush is unproven" in "; ".join(found.notes)
    assert "unproven" not in "; ".join(judged(0.9, load(1, 464)).notes)


def test_a_fault_before_the_load_is_the_reason_of_a_stage_without_figures() -> None:
    fault = "http://r: its prefix cache was not emptied: /flush_cache: 404"
    facts = stage(0, 1, 1, measured_ns=None, prefix=PrefixShare.of(0.5, N, 10), caches=[PRIMED], fault=fault)
    made = load(1, 0)
    run = replace(manifest(12.0), stages=[facts], options={"sweep": "users=1 prefix-share=50%"})
    found = typed(summarise(with_stages(batch(*made), [facts], open_loop=False), run, Question()))
    assert found.stages is not None
    assert found.stages[0].reasons == [fault]
    assert found.prefix_cache is not None
    assert (found.prefix_cache.stages, found.prefix_cache.left_out) == (0, 1)


def told(hits: float, ttft_ms: float, reach_ms: float = 1.96, *, is_result: bool = True) -> dict[str, Any]:
    ends = [ttft_ms - reach_ms, ttft_ms + reach_ms]
    return {
        "is_result": is_result,
        "prefix": {"asked": hits, "achieved": hits, "input_tokens": N},
        "figures": {"latency_ms": {"ttft": {"p50": ttft_ms, "ci95": {"p50": ends}}}},
    }


def test_the_slope_is_that_of_the_prefill_in_closed_form() -> None:
    """TTFT = base + f · N · (1 - hits), with f = 0.2 ms."""
    f_ms, base_ms = 0.2, 30.0
    found = worth([told(hits, base_ms + f_ms * N * (1 - hits)) for hits in (0.0, 0.5, 0.9)])
    assert found is not None
    assert found["ttft_ms_per_10_points"] == pytest.approx(-f_ms * N / 10)
    assert found["ttft_ms_per_1k_tokens"] == pytest.approx(f_ms * 1000)
    assert found["is_line"] is True
    assert found["missing"] is None


def test_its_interval_is_that_of_weighted_least_squares() -> None:
    rng = np.random.default_rng(3)
    x, sigma = np.array([0.0, 0.3, 0.6, 0.9]), np.array([1.0, 2.0, 0.5, 1.5])
    y = 100 - 80 * x + rng.normal(0, sigma)
    found = worth([told(a, b, 1.96 * s) for a, b, s in zip(x, y, sigma, strict=True)])
    assert found is not None
    design = np.stack([np.ones(4), x], axis=1) / sigma[:, None]
    covariance = np.linalg.inv(design.T @ design)
    slope = (covariance @ design.T @ (y / sigma))[1]
    reach = 1.96 * np.sqrt(covariance[1, 1])
    assert found["ttft_ms_per_10_points"] == pytest.approx(slope / 10)
    assert found["ci95"] == pytest.approx([(slope - reach) / 10, (slope + reach) / 10])


def test_medians_that_no_line_goes_through_are_said_to_be_on_none() -> None:
    found = worth([told(0.0, 100.0), told(0.5, 20.0), told(0.9, 90.0)])
    assert found is not None
    assert found["is_line"] is False


@pytest.mark.parametrize(
    "stages",
    [
        [told(0.0, 100.0)],
        [told(0.0, 100.0), told(0.9, 50.0, is_result=False)],
        [told(0.5, 100.0), told(0.52, 99.0)],
        [told(0.0, 100.0), told(0.9, 50.0, reach_ms=0.0)],
    ],
)
def test_without_two_results_of_different_hits_there_is_no_slope(stages: list[dict[str, Any]]) -> None:
    found = worth(stages)
    assert found is not None
    assert found["ttft_ms_per_10_points"] is None
    assert "two stages" in found["missing"]


def test_there_is_no_edge_of_an_experiment_and_its_repeats_are_by_share() -> None:
    both = [
        (share, load(at, cached), [PRIMED])
        for share, at, cached in ((0.0, 1, 0), (0.5, 13, 256), (0.0, 25, 0), (0.5, 37, 256))
    ]
    found = swept(*both)
    assert found.curve is None
    assert [(each.prefix, each.stages, each.pair) for each in found.repeats or ()] == [
        (0.0, [0, 2], "0% shared"),
        (0.5, [1, 3], "50% shared"),
    ]
    with pytest.raises(ValueError, match="over shares of a shared prefix"):
        of_lengths([stage(0, 1, 2, prefix=PrefixShare.of(0.5, N, 1))], None)
