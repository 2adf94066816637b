"""What several stages show: a search with its readings and its answer, the curve of a sweep, cache hits."""

from typing import Annotated, Literal

from llm_locust.metrics.summary_types.base import Interval, SummaryPart, key

_STAGE = "the stage's measured part"
_SEARCH = "the stages that are results"
_OF_STAGE = "the stage"
_OK_REQUESTS = "the stage's ok requests"
_SHARES = "the stages of a sweep over shares of a shared prefix"


class LimitReading(SummaryPart, frozen=True):
    """What a stage shows about one limit."""

    gate: Annotated[str, key("the limit, as it was asked for", _STAGE)]
    required: Annotated[
        float,
        key(
            "the share of requests that must be within it, 0 .. 1; of a certified limit what its certificate "
            "needs of this many",
            _STAGE,
        ),
    ]
    share: Annotated[
        float,
        key("the share within it, of requests scheduled in it; failed, hung and lost ones are not", _STAGE),
    ]
    ci95: Annotated[list[float], key("its 95 % interval (Wilson, of `n_effective`)", _STAGE)]
    n: Annotated[int, key("requests", _STAGE)]
    n_effective: Annotated[float, key("as many independent requests they are worth", _STAGE)]


class SearchStage(SummaryPart, frozen=True):
    """One stage of a search."""

    stage: Annotated[int | None, key("number of the stage", _STAGE)]
    load: Annotated[float, key("the load, in `unit`", _STAGE)]
    shows: Annotated[
        str | None,
        key(
            "`holds`, `broken` or `unresolved`, by the intervals of its shares (a certified limit holds by "
            "its certificate); null: it was not used",
            _STAGE,
        ),
    ]
    good_per_s: Annotated[
        float | None,
        key(
            "of `max-goodput`: good requests/s, of a rate the share of good ones × the rate asked for", _STAGE
        ),
    ]
    no_result: Annotated[str | None, key("why it is no reading", _STAGE)]
    client: Annotated[str | None, key("in what the client was the limit", _STAGE)]
    limits: Annotated[list[LimitReading], key("the readings, a limit each", _STAGE)]


class SearchAnswer(SummaryPart, frozen=True):
    """The highest load under which the limits hold."""

    load: Annotated[
        float | None,
        key(
            "the edge: where the isotonic fit of the share within a limit crosses what is required; of "
            "`max-goodput` the load tried with the most good requests/s; null: not known",
            _SEARCH,
        ),
    ]
    low: Annotated[float | None, key("lower end of its 95 % interval (bootstrap); `edge` in gates", _SEARCH)]
    high: Annotated[float | None, key("upper end", _SEARCH)]
    at_least: Annotated[
        float | None, key("a lower bound: the highest load shown to hold, where none breaks a limit", _SEARCH)
    ]
    at_most: Annotated[
        float | None, key("an upper bound: the lowest load tried, where all break a limit", _SEARCH)
    ]
    limit: Annotated[str | None, key("the limit that breaks first", _SEARCH)]
    good_per_s: Annotated[
        float | None,
        key("of `max-goodput`: good requests/s at `load`, or at `at_least`, of all stages there", _SEARCH),
    ]
    good_low: Annotated[float | None, key("lower end of their 95 % interval", _SEARCH)]
    good_high: Annotated[float | None, key("upper end", _SEARCH)]
    is_resolved: Annotated[bool, key("half the interval is within the precision", _SEARCH)]
    why: Annotated[str, key("why the search ended", _SEARCH)]


class SearchFacts(SummaryPart, frozen=True):
    """The search of a run (`--find`)."""

    objective: Annotated[str, key("what was looked for", "the run")]
    unit: Annotated[str, key("of loads: `requests/s` or `users`", "the run")]
    stages: list[SearchStage]
    answer: SearchAnswer


_SWEEP = "the stages that are results"


class KneeSummary(SummaryPart, frozen=True):
    """The knee of the median E2EL over the load (Kneedle)."""

    load: Annotated[
        float,
        key("the load whose median E2EL is farthest below the line between the first and the last", _SWEEP),
    ]
    ci95: Annotated[list[float], key("its 95 % interval (bootstrap), in loads that were tried", _SWEEP)]
    depth: Annotated[float, key("that distance over the growth of the latency, 0.2 or more", _SWEEP)]
    latency_ms: Annotated[float, key("the median E2EL there, ms: the geometric mean of its repeats", _SWEEP)]


class UslParameter(SummaryPart, frozen=True):
    """A parameter of the law and its 95 % interval (bootstrap); null is infinite."""

    value: Annotated[float | None, key("least squares of relative errors of N / X; null: infinite", _SWEEP)]
    ci95: Annotated[list[float | None], key("its 95 % interval (bootstrap)", _SWEEP)]


class UslFigures(SummaryPart, frozen=True):
    """The universal scalability law of requests/s over mean requests in flight."""

    gamma: Annotated[UslParameter, key("requests/s of one request at a time", _SWEEP)]
    alpha: Annotated[UslParameter, key("contention: the share of work done one after the other", _SWEEP)]
    beta: Annotated[UslParameter, key("coherency: what each pair of requests costs", _SWEEP)]
    peak: Annotated[
        UslParameter, key("requests in flight with the highest throughput; null: it never falls", _SWEEP)
    ]
    plateau: Annotated[
        UslParameter,
        key("the highest throughput by the law, requests/s; null: it grows without end", _SWEEP),
    ]
    residual: Annotated[float, key("root mean square of the relative residuals", _SWEEP)]
    measured_to: Annotated[
        float | None, key("largest mean of requests in flight; beyond it the law is a model", _SWEEP)
    ]


class Overload(SummaryPart, frozen=True):
    """Good requests/s at the highest load, beside those of the best one."""

    best_load: Annotated[float, key("the load with the most good requests/s", "the stages")]
    best_good_per_s: Annotated[float, key("good requests/s there", "the stage")]
    load: Annotated[float, key("the highest load; a saturated stage counts here", "the stages")]
    good_per_s: Annotated[float, key("good requests/s there", "the stage")]
    kept: Annotated[float, key("their ratio", "the stages")]
    repeats: Annotated[int, key("repeats in which both loads were measured", "the stages")]
    ci95: Annotated[
        Interval, key("95 % interval of `kept` over those repeats; null for fewer than 2", "the stages")
    ]
    collapses: Annotated[bool, key("it is below 0.8", "the stages")]


class CurveFacts(SummaryPart, frozen=True):
    """What the stages of a sweep show together."""

    loads: Annotated[int, key("different loads that are results", "the sweep")]
    left_out: Annotated[int, key("stages that are not results, in no figure but `overload`", "the sweep")]
    knee: KneeSummary | None
    usl: UslFigures | None
    overload: Overload | None
    missing: Annotated[dict[str, str], key("why there is no `knee`, `usl` or `overload`", "the sweep")]


class CurveOfLengths(SummaryPart, frozen=True):
    """The curve of a sweep over lengths at one pair of them."""

    lengths: Annotated[str, key("input and output length of all its requests, as `128:32`", "the sweep")]
    curve: CurveFacts


_SPIKE = "judged requests"


class SpikePart(SummaryPart, frozen=True):
    """One part of a spike, by the requests that were due in it."""

    requests: Annotated[int, key("judged requests", "due in the part")]
    missed: Annotated[int, key("those of them that were not good", "`requests`")]
    good: Annotated[float | None, key("share of good ones; null without a request", "`requests`")]
    ci95: Annotated[Interval, key("its 95 % interval (Wilson)", "`requests`")]
    p50_ms: Annotated[float | None, key("median of `latency`, ms; null without one", "ok, due in it")]
    p99_ms: Annotated[float | None, key("its 99th percentile, ms", "ok, due in it")]


class SpikeRecovery(SummaryPart, frozen=True):
    """How long after the peak something was back where it was before."""

    recovered_s: Annotated[
        float | None,
        key("end of the peak until it is back, s; 0: it was never away; null: not known", _SPIKE),
    ]
    at_least_s: Annotated[
        float | None,
        key("a lower bound, s, where it was not back by the end of the load after; else null", _SPIKE),
    ]
    why: Annotated[str | None, key("why neither is known; null where one is")]


class Spike(SummaryPart, frozen=True):
    """A rate that rose to a peak and fell back to where it was."""

    at_s: Annotated[float, key("when the peak began, s after the run's start", "the run")]
    seconds: Annotated[float, key("how long the peak lasted, s", "the run")]
    base: Annotated[float, key("the rate asked for before and after, requests/s", "the run")]
    peak: Annotated[float, key("the rate asked for in between", "the run")]
    stages: Annotated[list[int], key("numbers of the stages before, during and after the peak", "the run")]
    before: SpikePart
    during: SpikePart
    recovering: SpikePart
    after: SpikePart
    missed: Annotated[int, key("those not good from the peak's begin until both are back", _SPIKE)]
    good: SpikeRecovery
    latency: SpikeRecovery
    latency_limit_ms: Annotated[
        float | None, key("95th percentile of `latency` before: what it has to come back to, ms", "ok")
    ]


class SpikeFacts(SummaryPart, frozen=True):
    """Spikes of the load, and how long it took to recover from each."""

    spikes: list[Spike]
    judged_by: Annotated[str, key("`slo`, or `outcome` without one: good is what did not fail", "the run")]
    latency: Annotated[
        str,
        key("`ttft` from scheduled; `e2el` from scheduled where not every answer was streamed", "the run"),
    ]
    unrecorded: Annotated[
        int, key("lost and unsent requests; with some, `missed` is a lower bound", "the run")
    ]


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
        Literal["usage", "servers"] | None,
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
