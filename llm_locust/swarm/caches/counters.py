"""Counters of a replica's prefix caches before and after a stage, and what they have grown by.

Several engines may answer at one URL, each with counters of its own. The growth is that of each counter,
because in a sum the growth of one engine hides the restart of another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llm_locust.core.prefix import MOST_COUNTED, ReplicaCache
from llm_locust.deployment.exposition import Reading

#: Counters of tokens that were found in the cache, and looked for: vLLM's. SGLang counts all tokens of the
#: prompts that it has answered, and shows no counter of those found before the first one is.
_HITS, _QUERIES, _PROMPTS = "prefix_cache_hits", "prefix_cache_queries", "prompt_tokens"

#: Labels of the engines that answer at one URL: vLLM's and SGLang's.
_ENGINE_LABELS = ("engine", "dp_rank")

#: Values of the counters of one name, by their labels.
Values = Mapping[frozenset[tuple[str, str]], float]


@dataclass(frozen=True, slots=True)
class Counters:
    """Tokens found in the prefix caches of a URL, and looked for, since its start; and how many engines."""

    hits: Values
    queries: Values
    engines: int = 1


class _UncountedError(Exception):
    """Counters that do not say what was found; one line that says why."""


def counters_of(found: Sequence[Reading]) -> Counters | None:
    """The counters of a page of metrics; None where it has none."""
    hits, queries, prompts = (_values(found, name) for name in (_HITS, _QUERIES, _PROMPTS))
    looked_for = queries or prompts
    if not hits or not looked_for:
        return None
    engines = {tuple(map(each.labels.get, _ENGINE_LABELS)) for each in found}.difference([(None, None)])
    return Counters(hits, looked_for, max(1, len(engines)))


def counted(cache: ReplicaCache, before: Counters | None, now: Counters | None) -> ReplicaCache:
    """A cache with what its counters grew by, or with why that is not known; as it was if it has none."""
    if before is None and now is None:
        return cache
    try:
        if before is None or now is None:
            missing = "before" if before is None else "after"
            raise _UncountedError(f"its counters were not there {missing} the stage")
        hits, queries = _growth(before, now)
    except _UncountedError as e:
        return replace(cache, uncounted=f"{cache.target}: {e}")
    return replace(cache, hits=hits, queries=queries)


def _growth(before: Counters, now: Counters) -> tuple[float, float]:
    """Tokens found and looked for since ``before`` (raises _UncountedError).

    A counter of hits that was not there has begun at 0. One of queries that was not there is of an engine
    whose cache was not prepared, and that may have counted before.
    """
    if now.queries.keys() - before.queries.keys():
        raise _UncountedError("an engine appeared during the stage")
    hits, queries = _grown(before.hits, now.hits), _grown(before.queries, now.queries)
    found, looked_for = math.fsum(hits.values()), math.fsum(queries.values())
    if found > looked_for or any(hits[labels] > queries[labels] for labels in hits.keys() & queries.keys()):
        raise _UncountedError(
            f"it counted more tokens found ({found:,.0f}) than looked for ({looked_for:,.0f})"
        )
    return found, looked_for


def _grown(before: Values, now: Values) -> Values:
    """Growth of each counter (raises _UncountedError)."""
    if before.keys() - now.keys():
        raise _UncountedError("a counter disappeared during the stage: an engine ended or was started again")
    grown = {labels: value - before.get(labels, 0.0) for labels, value in now.items()}
    if any(each < 0 for each in grown.values()):
        raise _UncountedError("a counter fell during the stage: an engine was started again")
    if not math.fsum(grown.values()) <= MOST_COUNTED:
        raise _UncountedError(f"a counter grew by more than {MOST_COUNTED:g} tokens, or by no number")
    return grown


def _values(found: Sequence[Reading], name: str) -> Values:
    values: dict[frozenset[tuple[str, str]], float] = {}
    for each in found:
        if each.name == name:
            labels = frozenset(each.labels.items())
            values[labels] = values.get(labels, 0.0) + each.value
    return values
