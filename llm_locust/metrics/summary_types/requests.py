"""Requests, their latencies, rates, goodput and tokens: of all, of a name, of a class."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import (
    Effective,
    Interval,
    Intervals,
    LatencyTable,
    SummaryPart,
    key,
)
from llm_locust.metrics.summary_types.resources import PartQuality

_SCHEDULED = "`requests.scheduled`"
_POPULATION = "the population"
_FAILED = "failed, of the population"
_ALL = "all requests, whenever scheduled"


class GroupRequests(SummaryPart, frozen=True):
    """How many requests there were, and how they ended."""

    scheduled: Annotated[int, key("number of requests", "scheduled in the window, whatever became of them")]
    ok: Annotated[int, key("number; with `failed` and `cancelled` it adds up to `scheduled`", _SCHEDULED)]
    failed: Annotated[int, key("number; with `ok` and `cancelled` it adds up to `scheduled`", _SCHEDULED)]
    cancelled: Annotated[int, key("number; with `ok` and `failed` it adds up to `scheduled`", _SCHEDULED)]
    cut: Annotated[int, key("number that the run's end cut", "part of `cancelled`")]
    cut_share: Annotated[
        float | None,
        key(
            "cut / (population + cut); above 0.01 reports mark every latency",
            "the population and `requests.cut`",
        ),
    ]
    population: Annotated[int, key("ok + failed", _SCHEDULED)]
    error_rate: Annotated[float | None, key("failed / population", _POPULATION)]


class RequestCounts(SummaryPart, frozen=True):
    """How many requests there were, and how they ended."""

    scheduled: Annotated[int, key("number of requests", "scheduled in the window, whatever became of them")]
    sent: Annotated[int, key("number of them of which a byte was sent", _SCHEDULED)]
    ok: Annotated[int, key("numbers; they add up to `scheduled`", _SCHEDULED)]
    failed: Annotated[int, key("numbers; they add up to `scheduled`", _SCHEDULED)]
    failed_outside: Annotated[
        int, key("number that failed, as in the warm-up; in no other figure", "scheduled outside the window")
    ]
    cancelled: Annotated[int, key("numbers; they add up to `scheduled`", _SCHEDULED)]
    cut: Annotated[int, key("number that the run's end cut", "part of `cancelled`")]
    cut_broken: Annotated[
        int | None,
        key(
            "how many of them had broken a limit of their SLO by then; null without an SLO", "`requests.cut`"
        ),
    ]
    cut_share: Annotated[
        float | None,
        key(
            "cut / (population + cut); above 0.01 reports mark every latency",
            "the population and `requests.cut`",
        ),
    ]
    abandoned: Annotated[int, key("number whose user left before the first token", "part of `cancelled`")]
    lost: Annotated[
        int | None,
        key(
            "number of requests without a record; null where it is not known how many belong here",
            "the whole run",
        ),
    ]
    unsent: Annotated[
        int | None,
        key(
            "number of requests that were due and were never sent; null where it is not known how many "
            "belong here",
            "the whole run after its warm-up",
        ),
    ]
    stuck: Annotated[
        int,
        key(
            "number that hung in the window and were given up: "
            "[stuck](definitions.md#who-is-in-which-denominator)",
            "scheduled before the window",
        ),
    ]
    population: Annotated[int, key("ok + failed", _SCHEDULED)]
    error_rate: Annotated[float | None, key("failed / population", _POPULATION)]
    doubtful: Annotated[
        dict[str, int],
        key(
            "number of ok answers that [may not be what was asked for](definitions.md#doubtful-answers), "
            "by the reason: "
            "`content_filter`, `no_answer`, `no_finish_reason`, `unknown_finish_reason`",
            "ok",
        ),
    ]
    doubtful_rate: Annotated[float | None, key("doubtful answers of any kind / population", _POPULATION)]
    left_open: Annotated[
        int,
        key(
            "number whose answer was over, and whose response the server "
            "[left open](definitions.md#left-open)",
            _POPULATION,
        ),
    ]
    by_outcome: Annotated[dict[str, int], key("number with each outcome", _SCHEDULED)]
    resent: Annotated[
        int,
        key(
            "number of [first tries](definitions.md#sent-again); each is a record, and in no other count",
            "requests scheduled in the window",
        ),
    ]


class ErrorKind(SummaryPart, frozen=True):
    """A kind of failure."""

    outcome: Annotated[str, key("outcome of a kind of failure", _FAILED)]
    status: Annotated[int | None, key("HTTP status", _FAILED)]
    message: Annotated[str | None, key("text without what differs from case to case", _FAILED)]
    example: Annotated[str | None, key("the first such text", _FAILED)]
    count: Annotated[int, key("how many", _FAILED)]
    first: Annotated[str, key("when the first of them ended, ISO 8601, UTC", _FAILED)]
    last: Annotated[str, key("when the last of them ended, ISO 8601, UTC", _FAILED)]


_TOKENS_PER_S = key(
    "tokens / second: input at the first token event, output at the arrival of its event; their sum",
    "all requests, whatever became of them",
)


class Throughput(SummaryPart, frozen=True):
    """Rates over the window."""

    requests_per_s: Annotated[float | None, key("requests that ended `ok` in the window / seconds", _ALL)]
    input_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    output_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    total_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    output_chars_per_s: Annotated[
        float | None, key("characters / second, credited as output tokens are", "all requests")
    ]
    inputs_per_s: Annotated[
        float | None,
        key(
            "inputs of embeddings and rerank requests / second, when their answer has come; null where no "
            "request has inputs",
            "all requests",
        ),
    ]
    concurrency_mean: Annotated[
        float | None, key("requests between sent and ended: time-weighted mean", "all requests")
    ]
    concurrency_peak: Annotated[int | None, key("requests between sent and ended: peak", "all requests")]
    ci95: Annotated[
        dict[str, Interval],
        key("95 % interval of each of these rates; null where the data cannot tell", "as the rate"),
    ]


class OnTime(SummaryPart, frozen=True):
    """The distribution of the share of tokens that came by their deadline."""

    n: Annotated[int, key("number of requests", "ok requests whose SLO has `ttft` and `tpot`")]
    mean: Annotated[float | None, key("as `goodput.on_time_ratio`", "the same")]
    p1: Annotated[float | None, key("percentiles of that share", "the same")]
    p5: Annotated[float | None, key("percentiles of that share", "the same")]
    p50: Annotated[float | None, key("percentiles of that share", "the same")]
    ci95: Intervals
    n_effective: Effective


class GroupGoodput(SummaryPart, frozen=True):
    """How much of what was asked for came within the SLO."""

    slo: Annotated[dict[str, float], key("limits, ms")]
    slo_by_class: Annotated[dict[str, dict[str, float]], key("limits, ms, of each class, where these differ")]
    ratio: Annotated[float | None, key("good / judged, 0 .. 1", "`goodput.judged`")]
    judged: Annotated[
        int | None,
        key(
            "number of requests that are good or bad: ok, failed, cut ones that had broken a limit, "
            "abandoned, lost, unsent, stuck; null without an SLO",
            "see [who is in which denominator](definitions.md#who-is-in-which-denominator)",
        ),
    ]
    attainment: Annotated[
        dict[str, float | None],
        key(
            "share that held this limit, whatever the others",
            "as `ratio`, those that have this limit and can be judged by it",
        ),
    ]
    not_judged: Annotated[
        dict[str, int],
        key(
            "number of requests that cannot be judged by this limit: tpot, where more than one token came at "
            "one time",
            "ok, of those that have this limit",
        ),
    ]
    first_failed: Annotated[
        dict[str, int],
        key(
            "number of bad ones by the limit that broke first; `outcome` for failures, `abandoned` for users "
            "who left, `content_filter`, `no_answer` and `no_finish_reason` for [doubtful "
            "answers](definitions.md#doubtful-answers) within their limits, `lost` and `unsent` for requests "
            "without a record, `stuck` for those from before the window",
            "as `ratio`",
        ),
    ]
    requests_per_s: Annotated[float | None, key("good requests that ended in the window / seconds", _ALL)]
    output_tokens_per_s: Annotated[
        float | None, key("tokens of good requests that arrived in the window / seconds", _ALL)
    ]
    ci95: Annotated[
        dict[str, Interval],
        key(
            "95 % intervals of `ratio`, `requests_per_s` and `output_tokens_per_s`; null where the data "
            "cannot tell",
            "as the figure",
        ),
    ]
    n_effective: Annotated[
        dict[str, float | None],
        key("of `ratio`: as many independent requests would have its standard error", "as `ratio`"),
    ]


class Goodput(GroupGoodput, frozen=True):
    """The same, and whether a reader's tokens came in time."""

    on_time_ratio: Annotated[
        float | None,
        key(
            "mean share of tokens that came by their deadline", "ok requests whose SLO has `ttft` and `tpot`"
        ),
    ]
    on_time: OnTime


_OTHER = "requests of other users, the whole run"
_OF_USERS = "requests of users, in the window"


class HungUsers(SummaryPart, frozen=True):
    """Users whose last request got nothing more to the end, for longer than is usual."""

    n: Annotated[
        int,
        key(
            "number of users that hung to the end: see [the time of users](definitions.md#the-time-of-users)",
            _OF_USERS,
        ),
    ]
    from_s: Annotated[
        float | None, key("since when the first of them did, s after the window's start", _OF_USERS)
    ]
    seconds: Annotated[float, key("for how long they did in all, s", _OF_USERS)]

    def text(self, users: int) -> str:
        """As "5 of 10 users hung from 8 s on"; empty if none did."""
        from_s = self.from_s or 0.0
        since = f"{from_s:.3g} s" if from_s >= 0 else "the warm-up"
        return f"{self.n} of {users} users hung from {since} on" if self.n else ""


class OtherRequestsPart(SummaryPart, frozen=True):
    """Requests of one method and name that other users of the locustfile sent, such as an ``HttpUser``."""

    method: Annotated[str, key("as Locust's event has it; empty in the last row of more than 20", _OTHER)]
    name: Annotated[str, key("the same; `other names` in the last row of more than 20", _OTHER)]
    requests: Annotated[int, key("number of requests, failed ones included", _OTHER)]
    failures: Annotated[int, key("number of those whose event has an exception", _OTHER)]
    p50_ms: Annotated[
        float | None, key("median of the response times that Locust's events have, ms, to 1 %", _OTHER)
    ]
    p95_ms: Annotated[float | None, key("95th percentile of the same, ms, to 1 %", _OTHER)]


class UserTime(SummaryPart, frozen=True):
    """A closed loop by the time of its users."""

    users: Annotated[int, key("number of users that had a request under way", _OF_USERS)]
    seconds: Annotated[float, key("how long they had one in all, s", _OF_USERS)]
    backoff_s: Annotated[float, key("how long they backed off after failures, s", _OF_USERS)]
    hung: HungUsers

    @property
    def hung_text(self) -> str:
        return self.hung.text(self.users)

    good_share: Annotated[
        float | None,
        key(
            "time in good requests / time in good and bad ones and in back-off; null without an SLO",
            _OF_USERS,
        ),
    ]
    by_user: Annotated[
        float | None,
        key("the same, where what a user got next stands for the time that it waited", _OF_USERS),
    ]
    by_user_at_most: Annotated[float | None, key("the upper end of that", _OF_USERS)]
    by_moment: Annotated[
        float | None,
        key(
            "the same, where what the latest request got stands for each moment; null of a few users",
            _OF_USERS,
        ),
    ]
    by_moment_at_most: Annotated[float | None, key("the upper end of that", _OF_USERS)]


class RequestPart(SummaryPart, frozen=True):
    """What a summary has of all requests, and again of those of one name or of one class."""

    latency_ms: dict[str, LatencyTable]
    latency_ms_adjusted: dict[str, LatencyTable]
    throughput: Throughput
    requests: RequestCounts
    goodput: Goodput
    quality: PartQuality


class GroupPart(SummaryPart, frozen=True):
    """What a report has of the requests with one label of a dimension."""

    requests: GroupRequests
    latency_ms: dict[str, LatencyTable]
    throughput: Throughput
    goodput: GroupGoodput


class BreakdownPart(SummaryPart, frozen=True):
    """The groups of one dimension."""

    groups: Annotated[
        dict[str, GroupPart],
        key(
            "`requests`, `latency_ms` (of ttft, tpot, e2el), `throughput` and `goodput` of each label, those "
            "of most requests"
        ),
    ]
    left_out: Annotated[int, key("number of groups that are not among them")]


# --------------------
# Images of requests.
# --------------------


_ALL_IMAGES = "all requests with images, whenever scheduled"
_OK_IMAGES = "ok, scheduled in the window, with images"


class ImageCounts(SummaryPart, frozen=True):
    """Images of a request."""

    n: Annotated[int, key("number of requests", _OK_IMAGES)]
    mean: Annotated[float | None, key("images a request", _OK_IMAGES)]
    p50: Annotated[float | None, key("images a request", _OK_IMAGES)]
    p99: Annotated[float | None, key("images a request", _OK_IMAGES)]
    max: Annotated[float | None, key("images a request", _OK_IMAGES)]


_OF_NUMBER = "ok, scheduled in the window, with so many images"


class FirstTokens(SummaryPart, frozen=True):
    """TTFT of requests with so many images, in milliseconds."""

    n: Annotated[int, key("number of requests with a first token", _OF_NUMBER)]
    mean: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    p50: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    p99: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]
    max: Annotated[float | None, key("first token event − sent", _OF_NUMBER)]


class ImagesOfNumber(SummaryPart, frozen=True):
    """Requests with the same number of images, or one in a range."""

    images: Annotated[str, key("number of images, or a range such as `3-4`")]
    requests: Annotated[int, key("number of requests", _OF_NUMBER)]
    ttft_ms: FirstTokens
    input_tokens_mean: Annotated[
        float | None, key("tokens of a prompt by the server, those of its images included", _OF_NUMBER)
    ]


class Images(SummaryPart, frozen=True):
    """Images that prompts have."""

    images_per_s: Annotated[
        float | None, key("images of prompts that had been read in the window / seconds", _ALL_IMAGES)
    ]
    pixels_per_s: Annotated[
        float | None, key("their pixels / seconds; null where the size of one is not known", _ALL_IMAGES)
    ]
    per_request: ImageCounts
    pixels_per_image: Annotated[
        float | None, key("Σ pixels / Σ images; null where the size of one is not known", _OK_IMAGES)
    ]
    by_number: list[ImagesOfNumber]
