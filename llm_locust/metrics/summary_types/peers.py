"""The live figures beside the records, and the run in other tools' definitions."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import SummaryPart, key

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
