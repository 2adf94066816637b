"""The stages of a run: spans in which one load was asked for."""

from typing import Annotated, Literal

from llm_locust.metrics.summary_types.base import LatencyTable, SummaryPart, key
from llm_locust.metrics.summary_types.requests import Goodput, RequestCounts, Throughput

_STAGE = "the stage"
_MEASURED = "the stage's measured part"


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
    figures: Annotated[
        StageFigures | None,
        key(
            "`requests`, `latency_ms`, `latency_ms_adjusted`, `throughput` and `goodput` as in the summary; "
            "null without a measured part",
            _MEASURED,
        ),
    ]
