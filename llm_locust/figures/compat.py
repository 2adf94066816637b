"""The same requests in the words of other tools: what each of them would call its TPOT, and so on.

Formulas are those tools', as docs/other-tools.md has them; times are ours, so that a difference between two
tools' figures for one run is one of definition. All are of the ok requests scheduled in the window."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.figures.figure import Run
from llm_locust.metrics.catalogue import e2el, ttft
from llm_locust.metrics.columns import PART_COLUMNS, Columns, Floats, Part, Rows, gather, slices
from llm_locust.metrics.limits import Slo
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.judgement import Limits, judge
from llm_locust.metrics.requests.latency import itl
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.stats.censoring import Ascending, ordered, summarise_ascending
from llm_locust.metrics.structs import SummaryPart, key

_TOOL = "as the tool has it"


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


_PLACES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


def compute(run: Run) -> Compat:
    m, population = run.m, run.population
    c = m.c
    ok, judged = population.ok, population.judged
    seconds = benchmark_seconds(c, judged)
    good = vllm_good(m, ok)
    of_vllm = vllm_values(c)
    kept = None if m.judgement is None else int(m.judgement.good[ok].sum())
    return Compat(
        vllm=VllmFigures(
            ttft_ms=_figures(of_vllm["ttft"][ok]),
            tpot_ms=_figures(of_vllm["tpot"][ok]),
            e2el_ms=_figures(of_vllm["e2el"][ok]),
            itl_ms=_of_ascending(vllm_gaps(m, ok)),
            duration_s=seconds,
            request_throughput=len(ok) / seconds if seconds else None,
            request_goodput=good / seconds if good is not None and seconds else None,
        ),
        guidellm=GuidellmFigures(
            time_per_output_token_ms=_figures(normalised(c)[ok]),
            inter_token_latency_ms=_figures(tpot_of_events(c)[ok]),
        ),
        aiperf=AiperfFigures(
            inter_token_latency_ms=_figures(tpot_of_events(c)[ok]),
            inter_chunk_latency_ms=_of_ascending(m.gaps.ascending()),
        ),
        inference_perf=InferencePerfFigures(
            time_per_output_token_ms=_figures(np.where(c.events > 1, tpot_of_events(c), np.nan)[ok]),
            normalized_time_per_output_token_ms=_figures(normalised_to_end(c)[ok]),
            goodput_ratio=kept / len(ok) if kept is not None and len(ok) else None,
        ),
        genai_bench=GenaiBenchFigures(tpot_ms=_figures(tpot_with_usage_chunk(c)[ok])),
    )


def normalised(c: Columns) -> Floats:
    """e2el / n: guidellm's TPOT, (last − sent) / n; TTFT is inside."""
    return e2el(c) / np.where(c.output_tokens >= 1, c.output_tokens, np.nan)


def normalised_to_end(c: Columns) -> Floats:
    """inference-perf's NTPOT: (ended − sent) / n, to the response's last byte."""
    return (c.ended_s - c.sent_s) / np.where(c.output_tokens >= 1, c.output_tokens, np.nan)


def tpot_of_events(c: Columns) -> Floats:
    """(last token event − first) / (n − 1), n being all that usage counts: an end without text (EOS) and
    hidden reasoning are counted, and no time is given to them; 0 where all came in one event."""
    return (c.last_event_s - ttft(c)) / np.where(c.output_tokens >= 2, c.output_tokens - 1, np.nan)


def vllm_values(c: Columns) -> dict[str, Floats]:
    """ttft, tpot and e2el by vLLM's clock: it moves at each event with choices, with a token or without.

    The role delta of a chat ends its TTFT, the finish reason its E2EL.
    """
    first = np.where(c.streamed, _else(c.first_chunk_s, c.first_event_s), np.nan)
    last = _else(c.last_chunk_s, e2el(c))
    return {
        "ttft": first,
        "tpot": (last - first) / np.where(c.output_tokens >= 2, c.output_tokens - 1, np.nan),
        "e2el": last,
    }


def vllm_gaps(m: Measured, ok: Rows) -> Floats | Ascending:
    """vLLM's inter-token latencies, ascending: those to and from events with choices and without a token
    are among them."""
    c = m.c
    around = np.concatenate([(c.first_event_s - c.first_chunk_s)[ok], (c.last_chunk_s - c.last_event_s)[ok]])
    return m.gaps.ascending_with(ordered(around))


def tpot_with_usage_chunk(c: Columns) -> Floats:
    """genai-bench's TPOT: (ended − sent − ttft) / (n − 1), the usage chunk and ``[DONE]`` inside."""
    rest = c.ended_s - c.sent_s - ttft(c)
    return rest / np.where(c.output_tokens >= 2, c.output_tokens - 1, np.nan)


def benchmark_seconds(c: Columns, rows: Rows) -> float | None:
    """vLLM's benchmark duration: the first of ``rows`` sent to the last one's end; None without any.

    It has the ramp and the drain inside, which a window of ours has not.
    """
    sent = rows[~np.isnan(c.sent_s[rows])]
    if not len(sent):
        return None
    return float(c.ended_s[sent].max() - c.sent_s[sent].min())


def vllm_good(m: Measured, ok: Rows) -> int | None:
    """Successes within the limits that vLLM knows (ttft, tpot, e2el, all from sent); None without any."""
    if m.judgement is None:
        return None
    asked = m.judgement.limits
    known = Limits(
        _known_limits(asked.slo), {label: _known_limits(slo) for label, slo in asked.of_class.items()}
    )
    if not known:
        return None
    counted = np.zeros(len(m.c), np.bool_)
    counted[ok] = True
    good, at = 0, 0
    for part in slices(m.c):
        held = judge(part, _defined_tpot(vllm_values(part)), known, "sent").held
        kept = np.logical_and.reduce([*held.values()])
        good += int((kept & counted[at : at + len(part)]).sum())
        at += len(part)
    return good


def _defined_tpot(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """vLLM holds an answer of one token against its limit with a TPOT of 0."""
    return {**values, "tpot": np.nan_to_num(values["tpot"])}


def _else(values: Floats, others: Floats) -> Floats:
    return np.where(np.isnan(values), others, values)


def _known_limits(slo: Slo) -> Slo:
    return Slo(**{f"{metric}_s": slo.limits.get(metric) for metric in ("ttft", "tpot", "e2el")})


def _figures(values_s: Floats) -> PeerFigures:
    return _of_ascending(ordered(values_s))


def _of_ascending(ascending: Floats | Ascending) -> PeerFigures:
    figures = summarise_ascending(ascending, scale=1e3, places=_PLACES)
    return PeerFigures(**{key: figures[key] for key in ("n", "mean", *_PLACES)})


# --------------------
# The figures of ``vllm bench serve``, by its formulas, of the requests of a window.
#
# Successes are the ok requests scheduled in the window; what was cancelled is left out, for vLLM waits for
# every answer. Its duration is that of the benchmark, from the first request sent to the last end, and not
# the window's. Where vLLM writes 0 for want of a value, the value is None here.
# --------------------


_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def vllm_bench(m: Measured, requests: Requests, places: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers of a result file, under vLLM's keys.

    Args:
        requests: what ``m`` was measured of, in the same order.
        places: the percentiles of ``p.._ttft_ms`` and so on, key to percent.
    """
    c, population = m.c, m.population(np.arange(len(m.c)))
    ok, judged = population.ok, population.judged
    seconds = benchmark_seconds(c, judged)
    inputs, outputs = (float(np.nansum(tokens[ok])) for tokens in (c.input_tokens, c.output_tokens))
    good = vllm_good(m, ok)
    return {
        "num_prompts": len(judged),
        "duration": seconds,
        "completed": len(ok),
        "failed": len(population.failed),
        "total_input_tokens": int(inputs),
        "total_output_tokens": int(outputs),
        "request_throughput": _per_second(len(ok), seconds),
        "request_goodput": None if good is None else _per_second(good, seconds),
        "output_throughput": _per_second(outputs, seconds),
        "total_token_throughput": _per_second(inputs + outputs, seconds),
        "max_output_tokens_per_s": _busiest_second(m, requests, ok),
        "max_concurrent_requests": Spans.of(c, ok).peak(-np.inf, np.inf) if len(ok) else None,
        **_latencies(m, ok, places),
    }


def _per_second(amount: float, seconds: float | None) -> float | None:
    return amount / seconds if seconds else None


def _latencies(m: Measured, ok: Rows, places: Mapping[str, float]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    values = vllm_values(m.c)
    for metric in _LATENCIES:
        ascending: Floats | Ascending = vllm_gaps(m, ok) if metric == "itl" else ordered(values[metric][ok])
        figures = summarise_ascending(ascending, scale=1e3, places={"median": 50.0, **places})
        found |= {f"{key}_{metric}_ms": figures[key] for key in ("mean", "median", "std")}
        found |= {f"p{percent:.10g}_{metric}_ms": figures[key] for key, percent in places.items()}
    return found


def _busiest_second(m: Measured, requests: Requests, ok: Rows) -> float | None:
    """Most token events in one second, counted in whole seconds after the first success was sent."""
    if not len(ok):
        return None
    begun_s = float(np.nanmin(m.c.sent_s[ok]))
    counts: Counter[float] = Counter()
    for part, rows in _parts(m, requests, ok):
        times_s = np.repeat(part.sent_s[rows], part.events[rows])
        times_s += gather(part.arrivals, rows).values * 1e-9
        seconds, events = np.unique(np.floor(times_s - begun_s), return_counts=True)
        counts.update(dict(zip(seconds.tolist(), events.tolist(), strict=True)))
    return float(max(counts.values(), default=0))


def _parts(m: Measured, requests: Requests, chosen: Rows) -> Iterator[tuple[Part, Rows]]:
    """Each part with the places of the ``chosen`` rows in it."""
    at = 0
    for batch in requests.parts(PART_COLUMNS):
        part = Part.from_batch(batch, m.c.origin_ns)
        first, last = np.searchsorted(chosen, [at, at + len(part)])
        yield part, chosen[first:last] - at
        at += len(part)


@dataclass(frozen=True, slots=True)
class VllmDetails:
    """One entry a request of the population, in the order of the records; times in seconds.

    ``start_times`` are of the run's axis, after its first request. A failed request has 0 output tokens,
    as in vLLM's file; a time that is not defined is None.
    """

    input_lens: list[int | None]
    output_lens: list[int]
    ttfts: list[float | None]
    itls: list[list[float]]
    start_times: list[float | None]
    errors: list[str]


def vllm_details(m: Measured, requests: Requests) -> VllmDetails:
    """What ``--save-detailed`` adds: memory grows with every token."""
    c, population = m.c, m.population(np.arange(len(m.c)))
    judged = population.judged
    gaps: list[list[float]] = []
    for part, rows in _parts(m, requests, judged):
        found = itl(part, rows)
        between = np.split(found.values_s, found.offsets[1:-1]) if len(rows) else []
        before = (part.first_event_s - part.first_chunk_s)[rows]
        after = (part.last_chunk_s - part.last_event_s)[rows]
        gaps += [_without_nan([before[i], *each.tolist(), after[i]]) for i, each in enumerate(between)]
    outputs = np.where(c.ok[judged], np.nan_to_num(c.output_tokens[judged]), 0)
    texts = (*c.error.names, "")  # code -1 is the last one
    return VllmDetails(
        input_lens=[None if n is None else int(n) for n in _defined(c.input_tokens[judged])],
        output_lens=outputs.astype(np.int64).tolist(),
        ttfts=_defined(vllm_values(c)["ttft"][judged]),
        itls=gaps,
        start_times=_defined(c.sent_s[judged]),
        errors=[
            "" if ok else texts[code]
            for ok, code in zip(c.ok[judged].tolist(), c.error.codes[judged].tolist(), strict=True)
        ],
    )


def _without_nan(values: list[float]) -> list[float]:
    return [float(value) for value in values if not np.isnan(value)]


def _defined(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
