"""The deployment's replicas side by side, and how evenly they were used."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from llm_locust.metrics.columns import Columns, Floats, groups
from llm_locust.metrics.goodput import Judgement
from llm_locust.metrics.latency import summarise_latency
from llm_locust.metrics.throughput import Credits, rate_per_s
from llm_locust.metrics.window import Population


def replicas(
    c: Columns, values: Mapping[str, Floats], credits: Credits, judgement: Judgement | None
) -> list[dict[str, Any]]:
    """One entry a replica that answered, by name.

    ``requests`` counts its ok and failed ones scheduled in the window; ``share`` is of all those
    whose replica is known.
    """
    scheduled = credits.window.scheduled(c)
    found = [(name, rows, Population.of(c, scheduled, rows)) for name, rows in groups(c.replica)]
    known = sum(len(population.judged) for _, _, population in found)
    ttfts, tpots = values["ttft"], values["tpot"]
    entries = []
    for name, rows, population in found:
        judged = population.judged
        ttft = summarise_latency(ttfts[population.ok])
        seconds = credits.window.seconds
        entries.append(
            {
                "name": name,
                "requests": len(judged),
                "share": len(judged) / known if known else None,
                "ttft_p50_ms": ttft["p50"],
                "ttft_p99_ms": ttft["p99"],
                "tpot_p50_ms": summarise_latency(tpots[population.ok])["p50"],
                "output_tokens_per_s": rate_per_s(
                    credits.output_tokens[rows], credits.finished[rows], seconds
                ),
                "error_rate": len(population.failed) / len(judged) if len(judged) else None,
                "goodput_ratio": float(judgement.good[judged].mean()) if judgement and len(judged) else None,
            }
        )
    return entries


def fairness(entries: list[dict[str, Any]]) -> dict[str, float | None]:
    """Jain's index of the replicas' requests and output tokens: 1 when even, 1/k when one has all."""
    return {
        "requests": jain([e["requests"] for e in entries]),
        "output_tokens": jain([e["output_tokens_per_s"] for e in entries]),
    }


def jain(amounts: list[float | None]) -> float | None:
    """(Σx)² / (k Σx²). None for fewer than two, for an unknown one, and where all are 0."""
    if len(amounts) < 2 or None in amounts:
        return None
    x = np.array(amounts, dtype=np.float64)
    squares = float(x @ x)
    return float(x.sum()) ** 2 / (len(x) * squares) if squares else None
