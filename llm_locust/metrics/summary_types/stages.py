"""The parts of a run that have figures of their own: its stages, and the arms of a comparison."""

from typing import Annotated, Literal

from llm_locust.metrics.summary_types.base import Interval, LatencyTable, SummaryPart, key
from llm_locust.metrics.summary_types.requests import Goodput, RequestCounts, Throughput
from llm_locust.metrics.summary_types.search import StagePrefix
from llm_locust.metrics.summary_types.tokens import Agents

_STAGE = "the stage"
_ARM = "the arm"
_PAIR = "the arm and the first one"
_MEASURED = "the stage's measured part"
_LOAD = "the load"
_OK = "the stage's ok requests"
_OUTSIDE = "the run without the measured parts of its stages"
_REPEATS = "the load's stages that are results"


class StageWindow(SummaryPart, frozen=True):
    """The measured part of a stage."""

    start: Annotated[str, key("end of ramp and warm-up, ISO 8601, UTC", _STAGE)]
    end: Annotated[str, key("end of the load, ISO 8601, UTC; outside, as the drain is", _STAGE)]
    start_s: Annotated[float, key("the same start, s after the start of the run", _STAGE)]
    seconds: Annotated[float, key("length, s: the denominator of the stage's rates", _STAGE)]


class StageFigures(SummaryPart, frozen=True):
    """What a summary has of all requests, of one stage."""

    requests: RequestCounts
    latency_ms: dict[str, LatencyTable]
    latency_ms_adjusted: dict[str, LatencyTable]
    throughput: Throughput
    goodput: Goodput
    agents: Agents | None = None


class StageUntil(SummaryPart, frozen=True):
    """The figure whose interval ends a stage."""

    asked: Annotated[str, key("the figure and its precision, as `p99_ttft±5%`", _MEASURED)]
    value_ms: Annotated[float | None, key("the figure, ms; null without an ok request", _MEASURED)]
    interval_ms: Annotated[
        Interval,
        key(
            "its interval by all requests of the stage, at the confidence of one look: the stage's looks "
            "together hold the truth with 95 %; null where the data cannot tell",
            _MEASURED,
        ),
    ]
    half: Annotated[float | None, key("half of that interval, as a share of the figure", _MEASURED)]
    is_early: Annotated[bool, key("whether it ended the stage before its time", _STAGE)]
    is_reached: Annotated[bool, key("whether `half` is within the precision", _MEASURED)]


class StageLengths(SummaryPart, frozen=True):
    """The lengths that a sweep sets in a stage, and those that its requests had."""

    input_tokens: Annotated[int, key("tokens of each prompt that were asked for", _STAGE)]
    output_tokens: Annotated[int, key("tokens of each answer that were asked for", _STAGE)]
    input_tokens_p50: Annotated[
        float | None, key("median of the prompts' tokens, by the server; null: it counted none", _OK)
    ]
    output_tokens_p50: Annotated[float | None, key("median of the answers' tokens; null: not known", _OK)]
    other: Annotated[
        int,
        key(
            "requests that were asked for other lengths, or whose prompt was off by more than 5 % and 8 "
            "tokens, or whose answer by more than 5 % and 1 token",
            _OK,
        ),
    ]
    uncounted: Annotated[int, key("requests whose tokens the server did not count, the others", _OK)]
    is_other: Annotated[
        bool | None,
        key("`other` are more than 5 %: the stage is not a result; null: too many were not counted", _OK),
    ]

    def __str__(self) -> str:
        """As they are written in ``--sweep``: ``128:32``."""
        return f"{self.input_tokens}:{self.output_tokens}"


class Stage(SummaryPart, frozen=True):
    """One stage of a run."""

    number: Annotated[int, key("number of the stage, from 0: the column `stage` of its requests", _STAGE)]
    kind: Annotated[
        Literal["users", "rate"], key("unit of the load: `users`, or `rate` (requests/s)", _STAGE)
    ]
    asked: Annotated[float, key("the load that was asked for, in that unit", _STAGE)]
    offered: Annotated[
        float | None,
        key(
            "the load that there was: mean number of users that had a request or waited for their next one, "
            "or requests scheduled / seconds",
            _MEASURED,
        ),
    ]
    repeat: Annotated[int, key("which repetition of this load, from 0", _STAGE)]
    lengths: StageLengths | None
    repeated_as: Annotated[
        int | None,
        key(
            "number of the stage that a resumed sweep has instead of it, because it was under way when the "
            "run ended; null of all others",
            _STAGE,
        ),
    ]
    window: StageWindow | None
    is_result: Annotated[bool, key("nothing in `reasons`", _STAGE)]
    steady: Annotated[
        bool | None,
        key(
            "whether latencies, answers made and requests in flight stayed the same but for chance; "
            "null for fewer than 100 requests, unless they show that it was not",
            _MEASURED,
        ),
    ]
    all_failed: Annotated[
        bool,
        key(
            "requests failed and none succeeded, in all of its time and by a valid client: its goodput is 0, "
            "for a search it breaks every limit, and it counts for `curve.overload` and the rates of "
            "`repeats`",
            _MEASURED,
        ),
    ]
    saturated: Annotated[
        bool | None,
        key("whether requests were due faster than they ended; null in a closed loop", _MEASURED),
    ]
    client: Annotated[
        Literal["ok", "suspect", "invalid"] | None,
        key("verdict on the client; an invalid one was the limit, not the server", _MEASURED),
    ]
    reasons: Annotated[list[str], key("why its figures are not a result; empty where they are", _STAGE)]
    notes: Annotated[list[str], key("what else should be known of its figures", _STAGE)]
    until: Annotated[
        StageUntil | None, key("what ends it, with `--until`; null without, and where nothing was measured")
    ]
    figures: Annotated[
        StageFigures | None,
        key(
            "`requests`, `latency_ms`, `latency_ms_adjusted`, `throughput`, `goodput` and, of a run over "
            "trajectories, `agents` as in the summary; null without a measured part",
            _MEASURED,
        ),
    ]
    prefix: StagePrefix | None = None

    @property
    def pair(self) -> str:
        """What its sweep sets of its prompts: lengths as ``128:32``, or a share as ``50%``; empty without."""
        if self.prefix is not None:
            return f"{self.prefix.asked * 100:.6g}% shared"
        return "" if self.lengths is None else str(self.lengths)


class OutsideStages(SummaryPart, frozen=True):
    """Requests of a sweep in no stage's measured part: those of ramps, warm-ups and drains."""

    requests: Annotated[int, key("requests scheduled there", _OUTSIDE)]
    failed: Annotated[int, key("how many of them failed; they are in no figure of a stage", _OUTSIDE)]


class OverRepeats(SummaryPart, frozen=True):
    """A figure over the repeats of a load."""

    n: Annotated[int, key("repeats in which it is defined", _REPEATS)]
    mean: Annotated[float | None, key("mean of the repeats' figures", _REPEATS)]
    min: Annotated[float | None, key("the least", _REPEATS)]
    max: Annotated[float | None, key("the largest", _REPEATS)]
    ci95: Annotated[
        Interval, key("95 % interval of the mean, mean ± t s / √n; null for fewer than 2", _REPEATS)
    ]


class Repeats(SummaryPart, frozen=True):
    """One load that was measured more than once."""

    kind: Annotated[Literal["users", "rate"], key("unit of the load, as of a stage", _LOAD)]
    asked: Annotated[float, key("the load that was asked for, in that unit", _LOAD)]
    lengths: Annotated[
        str | None, key("its lengths, as `128:32`; null unless the sweep is over lengths", _LOAD)
    ]
    stages: Annotated[list[int], key("numbers of its stages", _LOAD)]
    results: Annotated[int, key("how many of them are a result; the others are left out", _LOAD)]
    figures: Annotated[
        dict[str, OverRepeats],
        key(
            "p50 and p99 of latencies (`ttft_p50_ms`), `requests_per_s`, `output_tokens_per_s`, "
            "`inputs_per_s`, `error_rate` and `goodput`",
            _REPEATS,
        ),
    ]
    prefix: Annotated[
        float | None, key("its share of a shared prefix; null unless the sweep sets one", _LOAD)
    ] = None

    @property
    def pair(self) -> str:
        """As that of its stages."""
        return self.lengths or "" if self.prefix is None else f"{self.prefix * 100:.6g}% shared"


class ArmRow(SummaryPart, frozen=True):
    """One figure of two arms."""

    metric: Annotated[str, key("the figure, under the name that gates give it", _PAIR)]
    unit: Annotated[Literal["ms", "share", "number"], key("of base, new and difference", _PAIR)]
    base: Annotated[float | None, key("the first arm's figure; null where it has none", "the first arm")]
    new: Annotated[float | None, key("this arm's figure; null where it has none", _ARM)]
    difference: Annotated[float | None, key("new − base", _PAIR)]
    difference_interval: Annotated[
        Interval,
        key("its interval, paired in time, of the confidence of `confidence`; null: not known", _PAIR),
    ]
    change: Annotated[float | None, key("the difference as a share of base", _PAIR)]
    change_interval: Annotated[Interval, key("the same interval as a share of base", _PAIR)]
    verdict: Annotated[
        str,
        key(
            "`better`, `worse`, `no difference beyond noise`, `too few samples`, or `undetermined` where "
            "requests that were given up leave a figure open, or all values are equal",
            _PAIR,
        ),
    ]
    reason: Annotated[str | None, key("why it is undetermined", _PAIR)]


class ArmDifferences(SummaryPart, frozen=True):
    """One arm set against the first."""

    arm: Annotated[str, key("name of the first arm, which is base", _PAIR)]
    confidence: Annotated[
        float,
        key("of each interval, such that those of all arms and figures together hold with 95 %", "all arms"),
    ]
    rows: list[ArmRow]


class ArmSummary(SummaryPart, frozen=True):
    """One target of an interleaved comparison."""

    name: Annotated[str, key("name of the arm: the column `arm` of its requests", _ARM)]
    host: Annotated[str, key("base URL of its API", _ARM)]
    model: Annotated[str | None, key("model that it was asked for; null in runs of older versions", _ARM)]
    differs_in: Annotated[
        list[str], key("in what its requests differ from those of the run, in words; headers by name", _ARM)
    ]
    share_asked: Annotated[float, key("share of the requests that it was to get", "all requests")]
    share: Annotated[
        float | None,
        key("share of the requests that it got; sessions go to one arm as a whole", "all requests"),
    ]
    figures: Annotated[
        StageFigures,
        key(
            "`requests`, `latency_ms`, `latency_ms_adjusted`, `throughput` and `goodput` as in the summary",
            "the arm, in the window",
        ),
    ]
    against: ArmDifferences | None
