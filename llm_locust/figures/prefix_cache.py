"""The shares of a shared prefix that a sweep sets in a stage, the prefix-cache hits, and what hits are worth.

A perfect cache has the shared prefix of every prompt, because each replica was sent it before the stage:
of n tokens it finds the prefix's whole blocks, at most those before the prompt's last token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import BLOCK_TOKENS, PrefixShare, ReplicaCache, StageFacts
from llm_locust.figures.stage_lengths import LEAST_INPUT, MOST_OTHER, TOLERANCE, is_off
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.structs import Interval, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.stages import Stage

_OF_STAGE = "the stage"
_OK_REQUESTS = "the stage's ok requests"
_SHARES = "the stages of a sweep over shares of a shared prefix"

Source = Literal["usage", "servers"]


class StagePrefix(SummaryPart, frozen=True):
    """The share of each prompt that a sweep shares with others in a stage, and the prefix-cache hits."""

    asked: Annotated[float, key("share of each prompt's tokens that was to be a shared prefix", _OF_STAGE)]
    tokens: Annotated[
        int, key("tokens of a shared prefix: that share in the nearest whole blocks of 16", _OF_STAGE)
    ]
    input_tokens: Annotated[int, key("tokens of each prompt that were asked for", _OF_STAGE)]
    prefixes: Annotated[
        int, key("number of shared prefixes, of which each prompt has one at random", _OF_STAGE)
    ]
    possible: Annotated[
        float | None,
        key(
            "share of the prompts' tokens that a perfect cache finds: the whole blocks of each prefix",
            _OK_REQUESTS,
        ),
    ]
    achieved: Annotated[
        float | None,
        key("share of the prompts' tokens that was in a prefix cache; null: not known", _OK_REQUESTS),
    ]
    source: Annotated[
        Source | None,
        key(
            "who says so: the answers' usage, or the servers' counters from the priming to the drain; null: "
            "nobody",
            _OF_STAGE,
        ),
    ]
    is_other: Annotated[
        bool,
        key(
            "its hits are not known or over 5 points from the possible ones, its prompts are of another "
            "length, or replicas answered that were not prepared",
            _OF_STAGE,
        ),
    ]
    replicas: Annotated[int, key("replicas whose caches were emptied and filled before the stage", _OF_STAGE)]
    primed: Annotated[
        int, key("prompts with shared prefixes that were sent to them, in no other figure", _OF_STAGE)
    ]


class PrefixWorth(SummaryPart, frozen=True):
    """What prefix-cache hits are worth."""

    stages: Annotated[int, key("stages that are results, with an interval of the TTFT", _SHARES)]
    left_out: Annotated[int, key("the other stages", _SHARES)]
    ttft_ms_per_10_points: Annotated[
        float | None,
        key(
            "change of the median TTFT, ms, for 10 points more of achieved hits: the slope by least squares, "
            "each stage weighted by its interval; null where `missing` says why",
            _SHARES,
        ),
    ]
    ci95: Annotated[Interval, key("its 95 % interval by the noise within the stages", _SHARES)]
    ttft_ms_per_1k_tokens: Annotated[
        float | None, key("the same as ms for each 1,000 prompt tokens that are computed", _SHARES)
    ]
    is_line: Annotated[
        bool | None,
        key("whether all medians are within 3 standard errors of the line; null for two stages", _SHARES),
    ]
    missing: Annotated[str | None, key("why there is no slope; null where there is one")]


#: A stage has the hits that are possible if the shares are no further apart.
HITS_TOLERANCE = 0.05

#: Half a 95 % interval in standard errors.
_REACH = 1.96

#: A median that is so many standard errors from the line shows that there is none.
_OFF_LINE = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHits:
    """Prefix-cache hits of the ok requests of a stage, as shares of their prompts' tokens.

    ``achieved`` is from the answers' usage, or else from the servers' own counters, as ``source`` says; None:
    not known. ``other`` requests had prompts of another length. ``named`` replicas are named by answers.
    """

    asked: PrefixShare
    caches: Sequence[ReplicaCache]
    ok: int = 0
    possible: float | None = None
    achieved: float | None = None
    source: Source | None = None
    other: int = 0
    named: int = 0

    @classmethod
    def of(cls, m: Measured, requests: Requests, stage: StageFacts) -> "PrefixHits | None":
        """Those of the requests in the window of ``m``; None where the sweep sets no share."""
        if stage.prefix is None:
            return None
        rows, asked = m.population(np.arange(len(m.c))).ok, stage.prefix
        cached = np.concatenate([part.floats("cached_tokens") for part in requests.parts(["cached_tokens"])])
        inputs = m.c.input_tokens[rows]
        achieved, source = _achieved(inputs, cached[rows], stage.caches)
        return cls(
            asked=asked,
            caches=stage.caches,
            ok=len(rows),
            possible=_ratio(_findable(inputs, asked.tokens), inputs),
            achieved=achieved,
            source=source,
            other=int(is_off(inputs, asked.input_tokens, LEAST_INPUT).sum()),
            named=len(np.unique(m.c.replica.codes[rows][m.c.replica.codes[rows] >= 0])),
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the stage is not a result; empty where it has the hits that it is to have."""
        if not self.ok:
            return ()
        found = []
        if self.other > MOST_OTHER * self.ok:
            found.append(
                f"{self.other:,} of {self.ok:,} prompts were off by more than {TOLERANCE:.0%} from "
                f"{self.asked.input_tokens:,} tokens: give --tokenizer"
            )
        if self.named > len(self.caches):
            found.append(
                f"{self.named} replicas answered, and the prefix caches of {len(self.caches)} were prepared: "
                "name all of them by --replica-url"
            )
        if self.achieved is None or self.possible is None:
            found.append(self._unknown)
        elif abs(self.achieved - self.possible) > HITS_TOLERANCE:
            found.append(self._miss(self.achieved, self.possible))
        return tuple(found)

    @property
    def _unknown(self) -> str:
        says = "how much of the prompts was in a prefix cache is not known"
        start = "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report"
        if uncounted := [cache.uncounted for cache in self.caches if cache.uncounted]:
            others = f" (and {len(uncounted) - 1} more)" if len(uncounted) > 1 else ""
            return f"{says}: answers do not say it, nor do counters: {uncounted[0]}{others}; {start}"
        return (
            f"{says}: it is off, or {start}, or let --replica-url name servers of theirs that have /metrics"
        )

    def _miss(self, achieved: float, possible: float) -> str:
        hits = (
            f"prefix-cache hits were {achieved:.1%} of the prompts' tokens, and {possible:.1%} was possible"
        )
        if achieved > possible:
            return f"{hits}: the cache had more than the shared prefixes; is there a long chat template?"
        if not any(cache.again for cache in self.caches) and not achieved:
            return f"{hits}: the prefix cache is off, a prompt that was sent twice was not in it either"
        return f"{hits}: prefixes were evicted, or requests went to servers that were not prepared"

    @property
    def note(self) -> str:
        """What is not shown by the figures; empty where all is."""
        found = []
        if self.source == "servers":
            found.append("hits are those of the servers' counters, with warm-up and drain")
        if unproven := sum(not cache.shows_flush for cache in self.caches):
            found.append(
                f"the flush is unproven at {unproven} of {len(self.caches)} replicas: a prompt was sent "
                "twice after it, and no answer said that the second was cached, so only the status shows it"
            )
        if several := sum(cache.engines > 1 for cache in self.caches):
            found.append(
                f"{several} of {len(self.caches)} URLs have several engines with a cache each: the "
                "prompts that look at it may have met different ones, so the flush is unproven"
            )
        return "; ".join(found)

    def figures(self) -> StagePrefix:
        return StagePrefix(
            asked=self.asked.asked,
            tokens=self.asked.tokens,
            input_tokens=self.asked.input_tokens,
            prefixes=self.asked.prefixes,
            possible=self.possible,
            achieved=self.achieved,
            source=self.source,
            is_other=bool(self.reasons),
            replicas=len(self.caches),
            primed=sum(cache.primed for cache in self.caches),
        )


def _achieved(
    inputs: Floats, cached: Floats, caches: Sequence[ReplicaCache]
) -> tuple[float | None, Source | None]:
    """The share of tokens that was cached, and who says so.

    vLLM's usage has no number where it would be 0. So an answer without one counts as 0 only if every replica
    has reported hits before.
    """
    if caches and all(cache.again for cache in caches):
        cached = np.where(np.isnan(cached), 0.0, cached)
    if len(cached) and not np.isnan(cached).any() and not np.isnan(inputs).any():
        return _ratio(cached, inputs), "usage"
    counts = [(cache.hits, cache.queries) for cache in caches]
    hits = math.fsum(hits for hits, _ in counts if hits is not None)
    queries = math.fsum(queries for _, queries in counts if queries is not None)
    if not queries or any(None in count for count in counts):
        return None, None
    return hits / queries, "servers"


def _findable(inputs: Floats, tokens: int) -> Floats:
    """Tokens of each prompt that a perfect cache finds."""
    return np.minimum(tokens, (inputs - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


def _ratio(part: Floats, whole: Floats) -> float | None:
    known = ~np.isnan(whole)
    total = float(whole[known].sum())
    return float(part[known].sum()) / total if total else None


def worth(stages: Sequence["Stage"]) -> PrefixWorth | None:
    """``prefix_cache``: what hits are worth, the slope of the median TTFT over the achieved share.

    By least squares over the stages that are results, each weighted by its interval. None in a run without
    shares.
    """
    having = [(stage, stage.prefix) for stage in stages if stage.prefix is not None]
    if not having:
        return None
    points = [
        point for stage, prefix in having if stage.is_result and (point := _point(stage, prefix)) is not None
    ]
    x, y, error = np.array(points, dtype=np.float64).reshape(-1, 3).T
    counted = {"stages": len(points), "left_out": len(having) - len(points)}
    if len(points) < 2 or float(np.ptp(x)) <= HITS_TOLERANCE:
        why = "two stages with different hit shares are needed, that are results with an interval of the TTFT"
        return PrefixWorth(
            **counted,
            ttft_ms_per_10_points=None,
            ci95=None,
            ttft_ms_per_1k_tokens=None,
            is_line=None,
            missing=why,
        )
    weights = 1 / error**2
    middle = float((weights * x).sum() / weights.sum())
    spread = float((weights * (x - middle) ** 2).sum())
    slope = float((weights * (x - middle) * y).sum()) / spread
    line = float((weights * y).sum() / weights.sum()) + slope * (x - middle)
    reach = _REACH / math.sqrt(spread)
    return PrefixWorth(
        **counted,
        ttft_ms_per_10_points=slope / 10,
        ci95=((slope - reach) / 10, (slope + reach) / 10),
        ttft_ms_per_1k_tokens=-slope / having[0][1].input_tokens * 1000,
        is_line=bool((np.abs(y - line) <= _OFF_LINE * error).all()) if len(points) > 2 else None,
        missing=None,
    )


def _point(stage: "Stage", prefix: StagePrefix) -> tuple[float, float, float] | None:
    """Achieved share, median TTFT and its standard error, ms; None where one is not known."""
    if stage.figures is None:
        return None
    latency = stage.figures.latency_ms["ttft"]
    median, (low, high) = latency["p50"], latency["ci95"].get("p50") or (None, None)
    if prefix.achieved is None or median is None or low is None or high is None or high <= low:
        return None
    return prefix.achieved, median, (high - low) / 2 / _REACH
