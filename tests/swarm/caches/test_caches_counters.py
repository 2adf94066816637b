"""Counters of a replica's prefix caches count by what each has grown by, if that can be."""

import math

import msgspec
import pytest

from llm_locust.core.manifest import ReplicaCache
from llm_locust.deployment.exposition import readings
from llm_locust.swarm.caches import Counters, Values, counted, counters_of


def by_engine(*values: float) -> Values:
    return {frozenset({("engine", str(i))}): value for i, value in enumerate(values)}


def engines(*of: tuple[float, float]) -> Counters:
    """Hits and queries of each engine."""
    hits, queries = zip(*of, strict=True)
    return Counters(by_engine(*hits), by_engine(*queries), len(of))


def sources(queries: float, **hits: float) -> Counters:
    """SGLang's: hits by their source, queries without one."""
    return Counters({frozenset({("cache_source", k)}): v for k, v in hits.items()}, {frozenset(): queries})


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (engines((1, 4)), engines((3, 10)), (2.0, 6.0)),
        (engines((1, 4), (5, 9)), engines((3, 10), (5, 9)), (2.0, 6.0)),
        (sources(500, device=200), sources(900, device=300, host=50), (150.0, 400.0)),
        (None, None, (None, None)),
    ],
    ids=["one", "one of two is idle", "hits of a source that had none", "a server without counters"],
)
def test_counters_count_by_what_they_have_grown_by(
    before: Counters | None, now: Counters | None, grown: tuple[float | None, float | None]
) -> None:
    found = counted(ReplicaCache(target="http://r"), before, now)
    assert (found.hits, found.queries, found.uncounted) == (*grown, "")
    assert msgspec.convert(msgspec.to_builtins(found), ReplicaCache) == found, "the manifest can be read"


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (engines((1, 4)), engines((0, 10)), "a counter fell"),
        (engines((0, 0), (10e3, 100e3)), engines((150e3, 300e3), (0, 0)), "a counter fell"),
        (engines((1, 4), (1, 4)), engines((3, 10)), "a counter disappeared"),
        (engines((1, 4)), engines((3, 10), (3, 10)), "an engine appeared"),
        (engines((0, 0)), engines((20e3, 10e3)), "more tokens found (20,000) than looked for (10,000)"),
        (engines((0, 0), (0, 0)), engines((20, 10), (0, 90)), "more tokens found"),
        (sources(500, device=200), sources(510, device=300), "more tokens found (100) than looked for (10)"),
        (engines((1, 4)), engines((1e300, 1e300)), "more than 1e+15 tokens"),
        (engines((1, 4)), engines((math.nan, 10)), "no number"),
        (None, engines((3, 10)), "were not there before the stage"),
        (engines((3, 10)), None, "were not there after the stage"),
    ],
    ids=[
        "restarted",
        "one of two engines restarted, hidden in the sums",
        "one of two engines is gone",
        "an engine that was not prepared",
        "more hits than queries",
        "more hits than queries of one engine",
        "more hits than prompts",
        "absurd",
        "no number",
        "not there before",
        "not there after",
    ],
)
def test_counters_that_cannot_be_right_count_nothing_and_say_why(
    before: Counters | None, now: Counters | None, why: str
) -> None:
    found = counted(ReplicaCache(target="http://r"), before, now)
    assert (found.hits, found.queries) == (None, None)
    assert found.uncounted.startswith("http://r: ")
    assert why in found.uncounted


VLLM_PAGE = """
vllm:num_requests_running{engine="0"} 0
vllm:prefix_cache_queries_total{engine="0"} 100
vllm:prefix_cache_hits_total{engine="0"} 40
vllm:prompt_tokens_total{engine="0"} 999
"""

SGLANG_PAGE = """
sglang:num_running_reqs{model_name="m"} 0
sglang:prompt_tokens_total{model_name="m"} 500
sglang:cached_tokens_total{cache_source="device",model_name="m"} 200
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100
"""


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (VLLM_PAGE, ([40.0], [100.0], 1)),
        (VLLM_PAGE + VLLM_PAGE.replace('"0"', '"1"'), ([40.0, 40.0], [100.0, 100.0], 2)),
        (SGLANG_PAGE, ([200.0, 100.0], [500.0], 1)),
        (SGLANG_PAGE.replace("sglang:cached", "sglang:other"), None),
        (VLLM_PAGE.replace("prefix_cache_hits", "other"), None),
        ("process_cpu_seconds_total 3", None),
    ],
    ids=["vLLM", "two engines", "SGLang", "SGLang before its first hit", "no hits", "neither"],
)
def test_hits_are_of_the_tokens_that_the_server_counts_and_of_each_of_its_engines(
    page: str, found: tuple[list[float], list[float], int] | None
) -> None:
    read = counters_of(readings(page))
    told = None if read is None else ([*read.hits.values()], [*read.queries.values()], read.engines)
    assert told == found
