"""What servers said of themselves, and of their roles in disaggregated serving."""

from typing import Annotated

from msgspec import UNSET, UnsetType

from llm_locust.metrics.summary_types.base import Interval, SummaryPart, key

_WINDOW = "the window"


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
