"""How the run went over its time, and what was done beside the load."""

from typing import Annotated

from msgspec import UNSET, UnsetType

from llm_locust.metrics.summary_types.base import SummaryPart, key

_WHOLE = "the whole run"
_WINDOW = "the window"
_IN_WINDOW = "all requests, in the window"
_POPULATION = "the population"
_STEADY = "see [warm-up and steady state](definitions.md#warm-up-and-steady-state)"
_LINE = "the line through the bins: see [drift](definitions.md#drift)"


class SlowerFacts(SummaryPart, frozen=True):
    """A latency that rose to the end of the run at the same load."""

    metric: Annotated[str, key("the latency whose medians rose", _WHOLE)]
    from_ms: Annotated[float, key("its median in the first third, ms", _WHOLE)]
    to_ms: Annotated[float, key("its median at the end, by the line through the last half, ms", _WHOLE)]
    limit_ms: Annotated[float | None, key("the SLO's limit on it, ms", _WHOLE)]
    limit_at_s: Annotated[
        float | None, key("when that line would reach the limit, s after the start of the window", _WHOLE)
    ]


class OverloadFacts(SummaryPart, frozen=True):
    """An open loop whose queue grew to its end."""

    sent_per_s: Annotated[float, key("requests due / second, over `seconds`", _WHOLE)]
    answered_per_s: Annotated[float, key("requests ended / second, over `seconds`", _WHOLE)]
    queue_per_s: Annotated[float, key("their difference", _WHOLE)]
    seconds: Annotated[float, key("length of the span at the end of the run in which it grew, s", _WHOLE)]


class Steadiness(SummaryPart, frozen=True):
    """Whether the load was steady, and whether the run began with a warm-up."""

    settled: Annotated[bool | None, key(f"the run was like its last third by its middle: {_STEADY}", _WHOLE)]
    warmup_like: Annotated[bool | None, key("its beginning was unlike its last third", _WHOLE)]
    warmup_s_suggested: Annotated[
        float | None, key("the whole `--warmup` that would leave such a beginning out, s", _WHOLE)
    ]
    unit: Annotated[str | None, key("unit of the load that was asked for", _WHOLE)]
    plateau: Annotated[float | None, key("the load asked for that most of the run had, in `unit`", _WHOLE)]
    steady_share: Annotated[
        float | None,
        key("longest span that stays on it (what `--window steady` takes), as a share of the run", _WHOLE),
    ]
    reason: Annotated[str, key("why, in a sentence", _WHOLE)]
    slower: Annotated[
        SlowerFacts | None, key("what got slower to the end, at the same load; null where nothing did")
    ]
    overload: Annotated[OverloadFacts | None, key("rates of a queue that grew to the end; null without one")]


class DriftLine(SummaryPart, frozen=True):
    """The line through the bins of a measure."""

    at_start: Annotated[float, key(_LINE, _WINDOW)]
    at_end: Annotated[float, key(_LINE, _WINDOW)]
    per_hour: Annotated[float, key(_LINE, _WINDOW)]
    ci95: Annotated[tuple[float, float], key(_LINE, _WINDOW)]
    relative_per_hour: Annotated[float | None, key(_LINE, _WINDOW)]
    correlation: Annotated[float | None, key(_LINE, _WINDOW)]
    bins: Annotated[int, key(_LINE, _WINDOW)]


class MemoryLine(DriftLine, frozen=True):
    """The line through a process's memory."""

    beyond_noise: Annotated[bool, key("its 99.8 % interval excludes 0", _WINDOW)]


class Drift(SummaryPart, frozen=True):
    """What changed with the hours."""

    reason: Annotated[str | None, key("why there is no drift to report; null where there is", _WINDOW)]
    bins: Annotated[int | None, key("number of the bins", _WINDOW)]
    bin_s: Annotated[float | None, key("length of the bins, s", _WINDOW)]
    found: Annotated[list[str] | None, key("the measures that drift", _WINDOW)]
    measures: dict[str, DriftLine | None] | None
    client_rss_mib: Annotated[
        dict[str, MemoryLine] | None,
        key(
            "memory of each process over time, MiB: the keys of a measure, and `beyond_noise`",
            "each process's time in the run",
        ),
    ]


class WithoutAnswers(SummaryPart, frozen=True):
    """A span in which no answer ended."""

    seconds: Annotated[float, key("longest span without an end of an ok, or a good, answer, s", "the window")]
    start_s: Annotated[float, key("where it begins, s after the window's start", "the window")]


class StandstillSpan(SummaryPart, frozen=True):
    """A time in which the server stood still."""

    start_s: Annotated[float, key("of the 20 longest: begin after the window's start, s", _IN_WINDOW)]
    seconds: Annotated[float, key("how long requests were under way in it, s", _IN_WINDOW)]
    in_flight: Annotated[int, key("how many at most", _IN_WINDOW)]


class Standstills(SummaryPart, frozen=True):
    """Times in which nothing came although requests were under way."""

    n: Annotated[int, key("number of standstills", _IN_WINDOW)]
    seconds: Annotated[float, key("how long they were in all, s", _IN_WINDOW)]
    spans: list[StandstillSpan]
    slow_n: Annotated[int, key("number of silences of more than 1 s that are as usual", _IN_WINDOW)]
    slow_seconds: Annotated[float, key("how long these were in all, s", _IN_WINDOW)]
    slow_longest_s: Annotated[float | None, key("the longest of them, s; null without any", _IN_WINDOW)]


class Retries(SummaryPart, frozen=True):
    """Requests that were sent again."""

    requests: Annotated[int, key("requests that were sent again", _POPULATION)]
    total: Annotated[int, key("how often in all", _POPULATION)]
    max: Annotated[int | None, key("most often of one request", _POPULATION)]


class Reliability(SummaryPart, frozen=True):
    """Whether somebody was served all the time."""

    seconds: Annotated[int, key("whole seconds with a request under way", _WINDOW)]
    ok_share: Annotated[float | None, key("share of them in which an answer ended that was ok", _WINDOW)]
    good_share: Annotated[float | None, key("share of them in which an answer ended that was good", _WINDOW)]
    longest_without_ok: WithoutAnswers | None
    longest_without_good: WithoutAnswers | None
    standstill: Standstills | None
    retries: Retries


class FailedCall(SummaryPart, frozen=True):
    """A server that did not do what it was asked."""

    target: Annotated[str, key("server that did not do it", _WHOLE)]
    status: Annotated[int | None, key("its HTTP status", _WHOLE)]
    error: Annotated[str | None, key("what went wrong", _WHOLE)]


class CallToServers(SummaryPart, frozen=True):
    """A call to servers, and what came of it."""

    path: Annotated[str, key("path of a call to servers", _WHOLE)]
    at_s: Annotated[float, key("when, s after the run's start", _WHOLE)]
    asked: Annotated[int, key("number of servers", _WHOLE)]
    done: Annotated[int, key("number of them that did it", _WHOLE)]
    failed: list[FailedCall]


class Interventions(SummaryPart, frozen=True):
    """What was asked of the servers beside the load: see :ref:`beside the load`."""

    targets: Annotated[
        list[str],
        key("see [other actions on the servers](definitions.md#other-actions-on-the-servers)", _WHOLE),
    ]
    replicas_ready: Annotated[list[str], key("replicas that were waited for before the load", _WHOLE)]
    ready_s: Annotated[
        float | None, key("how long they were waited for, s; null where nobody asked for that", _WHOLE)
    ]
    calls: list[CallToServers]
    profiled_s: Annotated[float, key("how long a profiler ran, s", _WINDOW)]


class GateOutcome(SummaryPart, frozen=True):
    """A gate and whether it held."""

    text: Annotated[str, key("a gate: see [gates](statistics.md#gates)")]
    value: Annotated[
        float | None,
        key(
            "the figure that it is on; of a certified gate the bound of the percentile",
            "as the value; of upper limits on latencies as `latency_ms_adjusted`",
        ),
    ]
    at_least: Annotated[float | None, key("its lower bound where that is undetermined", "as `value`")]
    passed: Annotated[bool, key("whether it held", "as `value`")]
    reason: Annotated[str | None, key("why not, or why it cannot tell", "as `value`")]
    note: Annotated[str | None, key("how many requests failed, where its latency lacks them", "as `value`")]
    undecided: Annotated[
        bool, key("it neither held nor broke: the run does not show which", "as `value`")
    ] = False
    for_good: Annotated[
        bool, key("it broke in a part of a run that the best rest could not have repaired", "as `value`")
    ] = False
    arm: Annotated[
        str | UnsetType, key("the arm that it is judged for; absent in a run without arms", "as `value`")
    ] = UNSET

    @property
    def shown(self) -> str:
        """Its text, after the arm's name if there is one."""
        return self.text if self.arm is UNSET else f"{self.arm}: {self.text}"


_PART = "the part"
_PARTS = "all parts"
_ENDED = "scheduled after the warm-up, ended by now"


class PartFacts(SummaryPart, frozen=True):
    """One part: what one start of the master has recorded."""

    name: Annotated[str, key("directory of the part in that of the whole run", _PART)]
    run: Annotated[str, key("id of its run", _PART)]
    start: Annotated[str, key("its first scheduled request, ISO 8601, UTC", _PART)]
    end: Annotated[
        str, key("its stop; its last scheduled request where the master died before it, ISO 8601, UTC", _PART)
    ]
    seconds: Annotated[float, key("end − start, s", _PART)]
    requests: Annotated[int, key("number of records", _PART)]
    lost: Annotated[
        int, key("requests without a record; of a sweep those of the stage that was under way", _PART)
    ]
    ended_by: Annotated[str, key("why its load ended, in words", _PART)]


class PartGap(SummaryPart, frozen=True):
    """A time between two parts, in which no load was sent. It is in no rate."""

    after: Annotated[str, key("name of the part before it", _PARTS)]
    start: Annotated[str, key("end of that part's load, ISO 8601, UTC", _PARTS)]
    end: Annotated[str, key("first scheduled request of the next part, ISO 8601, UTC", _PARTS)]
    seconds: Annotated[float, key("end − start, s", _PARTS)]
    why: Annotated[str, key("what ended the part before it, in words", _PARTS)]


class Parts(SummaryPart, frozen=True):
    """Parts that were joined to one run, and the gaps between them."""

    parts: Annotated[list[PartFacts], key("the parts, in order", _PARTS)]
    gaps: Annotated[list[PartGap], key("the gaps between them, in order", _PARTS)]
    down_s: Annotated[float, key("sum of the gaps, s", _PARTS)]
    down_share: Annotated[
        float | None,
        key("down_s / (end of the last part − start of the first); null without length", _PARTS),
    ]


class LatencySinceStart(SummaryPart, frozen=True):
    """One latency of the ok requests, from a sketch; times are off by at most ``relative_error`` of them."""

    samples: Annotated[int, key("number of values", _ENDED)]
    mean: Annotated[float | None, key("mean, ms; exact", _ENDED)]
    p50: Annotated[float | None, key("50th percentile, ms; sketch", _ENDED)]
    p90: Annotated[float | None, key("90th percentile, ms; sketch", _ENDED)]
    p99: Annotated[float | None, key("99th percentile, ms; sketch", _ENDED)]


class SinceStart(SummaryPart, frozen=True):
    """All requests of a run so far. Counts are exact. Other sections are of the latest span, or of what was
    not dropped."""

    start: Annotated[str, key("first scheduled request, ISO 8601, UTC", _ENDED)]
    until: Annotated[str, key("last end, ISO 8601, UTC", _ENDED)]
    requests: Annotated[int, key("requests that ended, of any outcome", _ENDED)]
    ok: Annotated[int, key("of these, ok", _ENDED)]
    failed: Annotated[int, key("of these, failed", _ENDED)]
    cancelled: Annotated[int, key("of these, cancelled", _ENDED)]
    error_rate: Annotated[float | None, key("failed / (ok + failed)", _ENDED)]
    goodput_ratio: Annotated[
        float | None, key("good / (ok + failed) where the SLO applies; null without an SLO", _ENDED)
    ]
    input_tokens: Annotated[int, key("prompt tokens of answered requests", _ENDED)]
    output_tokens: Annotated[int, key("tokens received", _ENDED)]
    latency_ms: Annotated[dict[str, LatencySinceStart], key("by latency, as in `latency_ms`", _ENDED)]
    relative_error: Annotated[float, key("bound of the error of a percentile, as a share of it", "sketches")]


class DroppedPart(SummaryPart, frozen=True):
    """Records that a run no longer has (`--keep`). The window begins after them; `since_start` has them."""

    records: Annotated[int, key("number of records that were dropped", _WHOLE)]
    batches: Annotated[int, key("number of batches that they came in", _WHOLE)]
    until: Annotated[str, key("last end of a dropped request, ISO 8601, UTC", _WHOLE)]
    to: Annotated[str, key("folder that has their copy, for `llm-locust merge`", _WHOLE)]


# --------------------
# The live figures beside the records, and the run in other tools' definitions.
# --------------------


_ALL = "all requests of the run"
_TOOL = "as the tool has it"


class RequestsOfBoth(SummaryPart, frozen=True):
    """Numbers of requests."""

    live: Annotated[int, key("number of requests in the live figures", _ALL)]
    records: Annotated[int, key("number of requests in the records", _ALL)]


class FurthestOff(SummaryPart, frozen=True):
    """The percentile that is furthest off."""

    metric: Annotated[str, key("the latency whose percentile is furthest off", _ALL)]
    place: Annotated[str, key("which percentile", _ALL)]
    live_ms: Annotated[float, key("live, ms", _ALL)]
    exact_ms: Annotated[float, key("by the records, ms", _ALL)]
    difference: Annotated[float, key("abs(live − exact) / exact", _ALL)]


_PAIR = key("[live, exact] ms", _ALL)


class LivePercentiles(SummaryPart, frozen=True):
    """Live and exact percentiles of a latency."""

    n: Annotated[int, key("number of values in both", _ALL)]
    p50: Annotated[tuple[float, float] | None, _PAIR]
    p95: Annotated[tuple[float, float] | None, _PAIR]
    p99: Annotated[tuple[float, float] | None, _PAIR]


class LiveCheck(SummaryPart, frozen=True):
    """Whether the live percentiles match the records."""

    within: Annotated[
        bool | None,
        key(
            "the live percentiles match the records, and `unequal` names none; null where that cannot be "
            "told",
            _ALL,
        ),
    ]
    reason: Annotated[str | None, key("why that cannot be told", _ALL)]
    unequal: Annotated[list[str], key("latencies with unequal numbers", _ALL)]
    relative_error: Annotated[float, key("stated relative error of a live percentile", _ALL)]
    requests: RequestsOfBoth
    largest: FurthestOff | None
    latency_ms: dict[str, LivePercentiles]


class PeerFigures(SummaryPart, frozen=True):
    """A latency by another tool's formula."""

    n: Annotated[
        int,
        key(
            "the run in other tools' definitions: see [compatibility](other-tools.md)",
            _TOOL,
        ),
    ]
    mean: Annotated[float | None, key("ms", _TOOL)]
    p50: Annotated[float | None, key("ms", _TOOL)]
    p90: Annotated[float | None, key("ms", _TOOL)]
    p99: Annotated[float | None, key("ms", _TOOL)]


class VllmFigures(SummaryPart, frozen=True):
    """The words of vLLM's benchmark."""

    ttft_ms: PeerFigures
    tpot_ms: PeerFigures
    e2el_ms: PeerFigures
    itl_ms: PeerFigures
    duration_s: Annotated[float | None, key("first sending to last end, s", _TOOL)]
    request_throughput: Annotated[float | None, key("ok requests / s", _TOOL)]
    request_goodput: Annotated[float | None, key("good requests / s; null without an SLO", _TOOL)]


class GuidellmFigures(SummaryPart, frozen=True):
    """The words of guidellm."""

    time_per_output_token_ms: PeerFigures
    inter_token_latency_ms: PeerFigures


class AiperfFigures(SummaryPart, frozen=True):
    """The words of aiperf."""

    inter_token_latency_ms: PeerFigures
    inter_chunk_latency_ms: PeerFigures


class InferencePerfFigures(SummaryPart, frozen=True):
    """The words of inference-perf."""

    time_per_output_token_ms: PeerFigures
    normalized_time_per_output_token_ms: PeerFigures
    goodput_ratio: Annotated[float | None, key("good / ok; null without an SLO", _TOOL)]


class GenaiBenchFigures(SummaryPart, frozen=True):
    """The words of genai-bench."""

    tpot_ms: PeerFigures


class Compat(
    SummaryPart, frozen=True, rename={"inference_perf": "inference-perf", "genai_bench": "genai-bench"}
):
    """The run in other tools' definitions."""

    vllm: VllmFigures
    guidellm: GuidellmFigures
    aiperf: AiperfFigures
    inference_perf: InferencePerfFigures
    genai_bench: GenaiBenchFigures
