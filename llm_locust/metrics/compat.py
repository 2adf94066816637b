"""The same requests in the words of other tools: what each of them would call its TPOT, and so on.

Formulas are those tools', as docs/metrics.md has them; times are ours, so that a difference between two
tools' figures for one run is one of definition. All are of the ok requests scheduled in the window.
"""

from typing import Any

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, Rows, slices
from llm_locust.metrics.goodput import Limits, judge
from llm_locust.metrics.latency import e2el, per_request, tpot, ttft
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.percentiles import Ascending, ordered, summarise_ascending
from llm_locust.metrics.slo import Slo

_PLACES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


def compat(m: Measured) -> dict[str, dict[str, Any]]:
    """Tool -> its word -> its figure; latencies are ``{n, mean, p50, p90, p99}`` in milliseconds."""
    c, population = m.c, m.population(np.arange(len(m.c)))
    ok, judged = population.ok, population.judged
    seconds = benchmark_seconds(c, judged)
    good = vllm_good(m, ok)
    kept = None if m.judgement is None else int(m.judgement.good[ok].sum())
    return {
        "vllm": {
            "tpot_ms": _figures(tpot(c)[ok]),
            "duration_s": seconds,
            "request_throughput": len(ok) / seconds if seconds else None,
            "request_goodput": good / seconds if good is not None and seconds else None,
        },
        "guidellm": {
            "time_per_output_token_ms": _figures(normalised(c)[ok]),
            "inter_token_latency_ms": _figures(tpot(c)[ok]),
        },
        "aiperf": {
            "inter_token_latency_ms": _figures(tpot(c)[ok]),
            "inter_chunk_latency_ms": _of_ascending(m.gaps.ascending()),
        },
        "inference-perf": {
            "normalized_time_per_output_token_ms": _figures(normalised(c)[ok]),
            "goodput_ratio": kept / len(ok) if kept is not None and len(ok) else None,
        },
        "genai-bench": {"tpot_ms": _figures(tpot_with_usage_chunk(c)[ok])},
    }


def normalised(c: Columns) -> Floats:
    """e2el / n: guidellm's TPOT, (last − sent) / n, and inference-perf's NTPOT; TTFT is inside."""
    return e2el(c) / np.where(c.output_tokens >= 1, c.output_tokens, np.nan)


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
    known = Limits(_known(asked.slo), {label: _known(slo) for label, slo in asked.of_class.items()})
    if not known:
        return None
    counted = np.zeros(len(m.c), np.bool_)
    counted[ok] = True
    good, at = 0, 0
    for part in slices(m.c):
        kept = judge(part, per_request(part), known, "sent").good
        good += int((kept & counted[at : at + len(part)]).sum())
        at += len(part)
    return good


def _known(slo: Slo) -> Slo:
    return Slo(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, e2el_s=slo.e2el_s)


def _figures(values_s: Floats) -> dict[str, Any]:
    return _of_ascending(ordered(values_s))


def _of_ascending(ascending: Floats | Ascending) -> dict[str, Any]:
    figures = summarise_ascending(ascending, scale=1e3, places=_PLACES)
    return {key: figures[key] for key in ("n", "mean", *_PLACES)}
