"""Replicas, and how evenly they were used."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import Interval, SummaryPart, key

_POPULATION = "the population"
_LATENCY = key("latency, ms", "as `latency_ms`, its requests")
_ITS = "its requests"
_WINDOW = "the window"
_RUN = "the whole run"
_STEP = "a step up of the load"


class OutageSpan(SummaryPart, frozen=True):
    """A time in which a replica gave no token while others did."""

    from_s: Annotated[
        float | None,
        key(
            "a span without a token while others went on: its begin, s after the window's start; null where "
            "the replica had not served before",
            _ITS,
        ),
    ]
    to_s: Annotated[float | None, key("its end; null where the replica did not come back", _ITS)]
    seconds: Annotated[float, key("how long, s", _ITS)]
    others: Annotated[
        int, key("how often another replica began or ended an answer meanwhile", "the others' requests")
    ]


class ReplicaFigures(SummaryPart, frozen=True):
    """What one replica did."""

    name: Annotated[str, key("its name")]
    requests: Annotated[int, key("number of requests", _POPULATION)]
    share: Annotated[float | None, key("share of the requests whose replica is known", _POPULATION)]
    cut_share: Annotated[float | None, key("as `requests.cut_share`", _ITS)]
    ttft_p50_ms: Annotated[float | None, _LATENCY]
    ttft_p99_ms: Annotated[float | None, _LATENCY]
    tpot_p50_ms: Annotated[float | None, _LATENCY]
    tpot_p99_ms: Annotated[float | None, _LATENCY]
    e2el_p50_ms: Annotated[float | None, _LATENCY]
    e2el_p99_ms: Annotated[float | None, _LATENCY]
    ci95: Annotated[dict[str, Interval], key("95 % intervals of these latencies, ms", "as the latency")]
    at_least: Annotated[
        dict[str, float], key("lower bounds of those that are undetermined, ms", "as the latency")
    ]
    output_tokens_per_s: Annotated[float | None, key("output tokens / second", _ITS)]
    concurrency_mean: Annotated[float | None, key("mean concurrency", _ITS)]
    error_rate: Annotated[float | None, key("as of the whole", _ITS)]
    goodput_ratio: Annotated[float | None, key("as of the whole; null where requests were lost", _ITS)]
    in_flight: Annotated[list[float], key("concurrency in equal parts of the window", _ITS)]
    outages: list[OutageSpan]


class ReplicasUp(SummaryPart, frozen=True):
    """The number of replicas from a time on."""

    at_s: Annotated[float, key("a change, s after the run's start; the first entry is the start", _RUN)]
    replicas: Annotated[int, key("number of replicas from then on", _RUN)]


class ScaleUp(SummaryPart, frozen=True):
    """A step up of the load, and how long new replicas took."""

    at_s: Annotated[float, key("when the larger load began, s after the run's start", _STEP)]
    kind: Annotated[str, key("`users` or `rate`", _STEP)]
    asked_before: Annotated[float, key("load before, in users or requests/s", _STEP)]
    asked: Annotated[float, key("load from then on", _STEP)]
    replicas_before: Annotated[int, key("number of replicas at the step", _STEP)]
    new: Annotated[int, key("replicas that came between it and the next step up, or the end", _STEP)]
    first_new_s: Annotated[
        float | None, key("time to scale: the first answer of the first new one − the step, s", _STEP)
    ]
    last_new_s: Annotated[float | None, key("the same of the last new one, s", _STEP)]
    requests: Annotated[
        int,
        key("judged requests due between the step and `last_new_s`; without a new one up to the end", _STEP),
    ]
    missed: Annotated[int, key("those of them that were not good", "`requests`")]
    missed_share_before: Annotated[
        float | None, key("share of those not good in the stage before, without its warm-up", "judged")
    ]
    good_lost: Annotated[
        float | None,
        key(
            "rate: max(0, `missed` − `missed_share_before` × `requests`); users: against as many good "
            "requests per user and second as before",
            "`requests`",
        ),
    ]
    recovered_s: Annotated[
        float | None,
        key("time to recover, s; null where the share of good ones was not back, or too few tell it", _STEP),
    ]
    recovered_at_least_s: Annotated[
        float | None, key("a lower bound of it, where the share was not back by the step's end, s", _STEP)
    ] = None


class Autoscaling(SummaryPart, frozen=True):
    """Replicas over time, and what they took after each step up of the load."""

    replicas: list[ReplicasUp]
    steps: list[ScaleUp]
    unsure: Annotated[
        int, key("replicas that answered late, and too rarely to tell whether they were there before", _RUN)
    ]
    judged_by: Annotated[str, key("`slo`, or `outcome` without one: good is what did not fail", _RUN)]
    unrecorded: Annotated[int, key("lost and unsent requests; with some, `good_lost` is a lower bound", _RUN)]


class Evenness(SummaryPart, frozen=True):
    """A measure of evenness of each amount."""

    requests: Annotated[float | None, key("of requests", "replicas")]
    output_tokens: Annotated[float | None, key("of output tokens/s", "replicas")]
    in_flight: Annotated[float | None, key("of mean concurrency", "replicas")]
    ttft: Annotated[float | None, key("of the median TTFT", "replicas")]


class TestOfChance(SummaryPart, frozen=True):
    """A test of whether chance explains it."""

    statistic: Annotated[float, key("statistic of the test", "replicas")]
    p: Annotated[float, key("p of the test", "replicas")]


class ChanceTests(SummaryPart, frozen=True):
    """Whether chance explains the differences."""

    requests: Annotated[TestOfChance | None, key("χ² of equal shares", "replicas")]
    ttft: Annotated[TestOfChance | None, key("Kruskal–Wallis H of TTFT", "replicas")]


_PAIRS = "successive requests with the same key"


class AffinityFigures(SummaryPart, frozen=True):
    """Whether requests of one key go to one replica."""

    pairs: Annotated[int, key("pairs of successive requests", _PAIRS)]
    observed: Annotated[float, key("share served by one replica", _PAIRS)]
    expected: Annotated[float, key("share by chance", _PAIRS)]


class Affinities(SummaryPart, frozen=True):
    """By connection, by session, by prompt."""

    connection: AffinityFigures | None
    session: AffinityFigures | None
    prompt: AffinityFigures | None


class LikelyCause(SummaryPart, frozen=True):
    """What may have made replicas uneven."""

    kind: Annotated[
        str,
        key(
            "a likely cause: `out`, `added`, `slow`, `sticky`, `least_busy`, `affine`, `round_robin` or "
            "`unknown`"
        ),
    ]
    text: Annotated[str, key("the cause in words")]
    replica: Annotated[str | None, key("the replica that it is of")]


class ReplicaHeader(SummaryPart, frozen=True):
    """A response header that may name the replica; the first of them that an answer has does."""

    name: Annotated[str, key("a response header that may name the replica", _RUN)]
    answers: Annotated[int, key("answers with it", _RUN)]
    values: Annotated[int, key("its values, 64 where there are `more`", _RUN)]
    more: Annotated[bool, key("more than 64", _RUN)]
    value: Annotated[str, key("the first of its values", _RUN)]


class Fairness(SummaryPart, frozen=True):
    """How evenly the replicas were used."""

    requests: Annotated[float | None, key("Jain's index over replicas", "requests")]
    output_tokens: Annotated[float | None, key("Jain's index over replicas", "output tokens/s")]
    in_flight: Annotated[float | None, key("Jain's index over replicas", "mean concurrency")]
    ttft: Annotated[float | None, key("Jain's index over replicas", "median TTFT")]
    gini: Annotated[Evenness, key("Gini coefficient")]
    cv: Annotated[Evenness, key("coefficient of variation")]
    chance: ChanceTests
    named_by: Annotated[str | None, key("what names replicas", _POPULATION)]
    unnamed: Annotated[int, key("requests without a replica", _POPULATION)]
    headers: Annotated[list[ReplicaHeader], key("in the order in which they are asked")]
    better_header: Annotated[
        str | None,
        key("the header that tells replicas apart where that in use has one value in all answers", _RUN),
    ]
    dispersion: Annotated[float | None, key("evenness of short blocks of requests", _POPULATION)]
    affinity: Affinities
    causes: list[LikelyCause]
