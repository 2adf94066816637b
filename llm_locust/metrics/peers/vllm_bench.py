"""The figures of ``vllm bench serve``, by its formulas, of the requests of a window.

Successes are the ok requests scheduled in the window; what was cancelled is left out, for vLLM
waits for every answer. Its duration is that of the benchmark, from the first request sent to the last
end, and not the window's. Where vLLM writes 0 for want of a value, the value is None here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Part, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.peers.compat import benchmark_seconds, vllm_gaps, vllm_good, vllm_values
from llm_locust.metrics.ragged import gather
from llm_locust.metrics.requests.concurrency import Spans
from llm_locust.metrics.requests.latency import itl
from llm_locust.metrics.stats.percentiles import Ascending, ordered, summarise_ascending

_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def vllm_bench(m: Measured, requests: Requests, places: Mapping[str, float]) -> dict[str, Any]:
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
        gaps += [_known([before[i], *each.tolist(), after[i]]) for i, each in enumerate(between)]
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


def _known(values: list[float]) -> list[float]:
    return [float(value) for value in values if not np.isnan(value)]


def _defined(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
