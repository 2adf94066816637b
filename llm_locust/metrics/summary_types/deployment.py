"""Replicas by the records, and servers by what they say of themselves."""

from typing import Annotated

from msgspec import UNSET, UnsetType

from llm_locust.metrics.summary_types.base import Interval, SummaryPart, key

# --------------------
# Replicas, and how evenly they were used.
# --------------------


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


# --------------------
# What servers said of themselves, and of their roles in disaggregated serving.
# --------------------


class ServerHistogram(SummaryPart, frozen=True):
    """A server's own histogram."""

    n: Annotated[float, key("count of the histogram", _WINDOW)]
    n_error: Annotated[float, key("how far that may be off", _WINDOW)]
    mean: Annotated[float | None, key("mean, ms", _WINDOW)]
    p50_bounds: Annotated[Interval, key("edges of the bucket of p50, ms", _WINDOW)]
    p99_bounds: Annotated[Interval, key("edges of the bucket of p99, ms", _WINDOW)]


_STATE = "mean and largest of a state; null where it is not told"
_COUNT = "increase of a counter; null where it is not told"


class ServerFigures(SummaryPart, frozen=True, kw_only=True):
    """What servers said of themselves."""

    name: Annotated[str | UnsetType, key("a target; absent in `server.total`")] = UNSET
    role: Annotated[str | UnsetType | None, key("`prefill` or `decode`; null where it has none")] = UNSET
    role_source: Annotated[
        str | UnsetType | None, key("who says so: an option, a pod's or a sample's label, its counts")
    ] = UNSET
    role_doubt: Annotated[str | UnsetType | None, key("who says another role; null: nobody")] = UNSET
    scrapes: Annotated[int, key("number of scrapes", _WINDOW)]
    failed: Annotated[int, key("scrapes without a page", _WINDOW)]
    covered: Annotated[float | None, key("share of the window between first and last scrape", _WINDOW)]
    running_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    running_max: Annotated[float | None, key(_STATE, _WINDOW)]
    waiting_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    waiting_max: Annotated[float | None, key(_STATE, _WINDOW)]
    kv_cache_usage_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    kv_cache_usage_max: Annotated[float | None, key(_STATE, _WINDOW)]
    prefix_cache_hit_rate_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    prefix_cache_hit_rate_max: Annotated[float | None, key(_STATE, _WINDOW)]
    gpu_utilisation_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    gpu_utilisation_max: Annotated[float | None, key(_STATE, _WINDOW)]
    power_w_mean: Annotated[float | None, key(_STATE, _WINDOW)]
    power_w_max: Annotated[float | None, key(_STATE, _WINDOW)]
    prompt_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    prompt_tokens_computed: Annotated[float | None, key(_COUNT, _WINDOW)]
    prompt_tokens_received: Annotated[float | None, key(_COUNT, _WINDOW)]
    generation_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    preemptions: Annotated[float | None, key(_COUNT, _WINDOW)]
    finished: Annotated[float | None, key(_COUNT, _WINDOW)]
    prefix_cache_queries: Annotated[float | None, key(_COUNT, _WINDOW)]
    prefix_cache_hits: Annotated[float | None, key(_COUNT, _WINDOW)]
    spec_drafts: Annotated[float | None, key(_COUNT, _WINDOW)]
    spec_draft_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    spec_accepted_tokens: Annotated[float | None, key(_COUNT, _WINDOW)]
    kv_transfers_failed: Annotated[float | None, key(_COUNT, _WINDOW)]
    prefix_cache_hit_ratio: Annotated[float | None, key("hits / queries", _WINDOW)]
    acceptance_length: Annotated[
        float | None,
        key("tokens a step of speculative decoding: 1 + accepted / drafts, else the reported mean", _WINDOW),
    ]
    acceptance_rate: Annotated[
        float | None, key("accepted / drafted tokens, else the reported mean", _WINDOW)
    ]
    kv_transfer_bytes: Annotated[
        float | None, key("KV cache moved between prefill and decode servers, bytes", _WINDOW)
    ]
    gpus: Annotated[int, key("GPUs seen", _WINDOW)]
    gpu_memory_used_bytes_max: Annotated[float | None, key("largest memory use of a GPU, bytes", _WINDOW)]
    ttft_ms: ServerHistogram | None
    tpot_ms: ServerHistogram | None
    itl_ms: ServerHistogram | None
    queue_ms: ServerHistogram | None
    e2el_ms: ServerHistogram | None
    kv_transfer_ms: ServerHistogram | None


_FIRST = "first tokens in the window"


class GatewayFigures(SummaryPart, frozen=True):
    """What gateway and balancer add to a first token."""

    client_ttft_ms: Annotated[float, key("mean TTFT of the client, ms", _FIRST)]
    server_ttft_ms: Annotated[float | None, key("mean TTFT of the servers, ms", _FIRST)]
    rtt_ms: Annotated[float | None, key("mean round-trip time of the connections, ms", _FIRST)]
    gateway_ms: Annotated[
        float, key("what gateway and balancer add: client − servers − round trip, ms", _FIRST)
    ]
    client_n: Annotated[int, key("number of first tokens that the client saw", _FIRST)]
    server_n: Annotated[float, key("number of first tokens that the servers saw", _FIRST)]
    same_requests: Annotated[
        bool, key("the servers saw as many as the client: else the difference is of unlike requests", _FIRST)
    ]


class PoolFigures(SummaryPart, frozen=True):
    """The servers of one role in disaggregated serving."""

    role: Annotated[str, key("`prefill` or `decode`")]
    servers: Annotated[int, key("number of servers")]
    silent: Annotated[int, key("those without a metrics page: nothing is known of them", _WINDOW)]
    prompt_tokens_per_s: Annotated[float | None, key("prompt tokens a second, wherever computed", _WINDOW)]
    generation_tokens_per_s: Annotated[float | None, key("generated tokens a second", _WINDOW)]
    kv_transfer_bytes_per_s: Annotated[float | None, key("bytes / time of their KV transfers", _WINDOW)]
    evenness: Annotated[
        float | None,
        key("Jain's index of prompt tokens (prefill), generated tokens (decode)", "its servers"),
    ]
    figures: ServerFigures


class TtftParts(SummaryPart, frozen=True):
    """Mean TTFT in parts that follow each other."""

    client_ms: Annotated[float, key("mean TTFT of the client, ms", _FIRST)]
    prefill_ms: Annotated[float, key("mean time at a prefill server, its queue included, ms", _FIRST)]
    transfer_ms: Annotated[float, key("mean time of the KV transfers, ms", _FIRST)]
    same_requests: Annotated[bool, key("the prefill servers saw as many requests as the client", _FIRST)]


class PoolFinding(SummaryPart, frozen=True):
    """What speaks against prefill and decode, or against their figures."""

    kind: Annotated[
        str,
        key(
            "`missing_role`, `silent`, `no_role`, `other_requests`, `doubt`, `transfers_failed`, "
            "`no_transfer`, `prefill_in_decode`, `idle`, `uneven` or `bottleneck`"
        ),
    ]
    text: Annotated[str, key("it, with its evidence")]
    server: Annotated[str | None, key("the server that it is about; null where it is about none")]


class Pools(SummaryPart, frozen=True):
    """Prefill and decode servers."""

    by_role: list[PoolFigures]
    ttft: TtftParts | None
    findings: list[PoolFinding]


class Servers(SummaryPart, frozen=True):
    """What was scraped of the servers."""

    targets: list[ServerFigures]
    total: ServerFigures
    gateway: GatewayFigures | None
    failure: Annotated[str | None, key("why the scraping ended early; null where it did not")]
    kv_transfer_failures: Annotated[
        float | None,
        key("share of the KV transfers that failed; null without any, or if a server did not tell", _WINDOW),
    ]
    pools: Pools | None
