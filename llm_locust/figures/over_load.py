"""Figures of a run's stages along their load, and which operating points none other is better than."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm_locust.figures.goodput import Goodput
from llm_locust.figures.stages import Stage
from llm_locust.figures.summary import Summary
from llm_locust.figures.throughput import Throughput

#: A figure and the ends of its interval; None is not known.
Estimate = tuple[float | None, float | None, float | None]

#: Latencies and percentiles that are drawn over the load; ``e2el`` of a load that generates nothing.
DRAWN = tuple((metric, place) for metric in ("ttft", "tpot", "e2el") for place in ("p50", "p99"))


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A stage that is a result. ``user_tps`` is 1 / median TPOT: the tokens/s that one user sees.

    ``gpu_tps`` is output tokens/s per GPU; None where the number of GPUs is not known. ``lengths`` are those
    of a sweep over lengths, ``128:32``, else empty. ``hits`` is the share of prompts found in prefix caches,
    of an experiment that sets it.
    """

    stage: int
    load: float
    lengths: str
    offered: float | None
    output_tps: float | None
    user_tps: float | None
    gpu_tps: float | None
    inputs_per_s: float | None
    goodput: Estimate
    latencies_ms: dict[tuple[str, str], Estimate]
    hits: float | None = None


def load_points(stages: Iterable[Stage], gpus: float | None) -> list[LoadPoint]:
    """The stages that are a result, by rising load; those without a success have a goodput of 0 alone."""
    shown = (stage for stage in stages if stage.figures is not None and (stage.is_result or stage.all_failed))
    found = [_point(stage, gpus) for stage in shown]
    return sorted(found, key=lambda point: (point.load, point.stage))


def by_lengths(points: Iterable[LoadPoint]) -> dict[str, list[LoadPoint]]:
    """The points of each pair of lengths in the order of their stages: no line goes through several."""
    found: dict[str, list[LoadPoint]] = {}
    for point in sorted(points, key=lambda point: point.stage):
        found.setdefault(point.lengths, []).append(point)
    return {lengths: sorted(of, key=lambda p: (p.load, p.stage)) for lengths, of in found.items()}


def _point(stage: Stage, gpus: float | None) -> LoadPoint:
    part = stage.figures
    assert part is not None
    latencies: dict[tuple[str, str], Estimate] = {}
    for metric, place in DRAWN:
        stats = part.latency_ms[metric]
        low, high = stats.intervals().get(place) or (None, None)
        latencies[metric, place] = stats.figure(place), low, high
    return LoadPoint(
        stage=stage.number,
        load=stage.asked,
        lengths=stage.pair,
        offered=stage.offered,
        output_tps=part.throughput.output_tokens_per_s,
        user_tps=user_tps(latencies["tpot", "p50"][0]),
        gpu_tps=per_gpu(part.throughput, gpus),
        inputs_per_s=part.throughput.inputs_per_s,
        goodput=_goodput(part.goodput),
        latencies_ms=latencies,
        hits=None if stage.prefix is None else stage.prefix.achieved,
    )


def _goodput(part: Goodput) -> Estimate:
    low, high = part.intervals().get("ratio") or (None, None)
    return part.ratio, low, high


def user_tps(tpot_p50_ms: float | None) -> float | None:
    """Tokens/s that the median user sees, from the median TPOT."""
    return 1e3 / tpot_p50_ms if tpot_p50_ms else None


def per_gpu(part: Throughput, gpus: float | None) -> float | None:
    """Output tokens/s of each GPU."""
    return part.output_tokens_per_s / gpus if gpus and part.output_tokens_per_s is not None else None


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What one load gave a user and a GPU. ``stage`` and ``load`` are None of a run of one load.

    ``is_best``: no other point of the same ``lengths`` gives as much of both, and more of one.
    """

    run: str
    stage: int | None
    load: str
    user_tps: float
    gpu_tps: float
    goodput: float | None
    lengths: str = ""
    is_best: bool = False


def operating_points(run: str, summary: Summary, gpus: float) -> tuple[list[OperatingPoint], int]:
    """The points of a run: its stages that are a result, or the whole run; and how many have none.

    A point without a pace or a rate is left out and counted, as is a stage that is not a result.
    """
    if summary.stages:
        points = load_points(summary.stages, gpus)
        found = [
            OperatingPoint(run, p.stage, f"{p.load:g}", p.user_tps, p.gpu_tps, p.goodput[0], p.lengths)
            for p in points
            if p.user_tps is not None and p.gpu_tps is not None
        ]
        return found, len(summary.stages) - len(found)
    user, gpu = user_tps(summary.latency_ms["tpot"].figure("p50")), per_gpu(summary.throughput, gpus)
    if user is None or gpu is None or summary.is_of_parts:
        return [], 1
    return [OperatingPoint(run, None, "", user, gpu, summary.goodput.ratio)], 0


def front(points: Sequence[OperatingPoint]) -> list[int]:
    """Places of the points of one pair of lengths that no other is better than, by rising ``user_tps``
    (the Pareto front).

    A point is better if it has at least as much of both rates, and more of one.
    """
    order = sorted(range(len(points)), key=lambda i: (-points[i].user_tps, -points[i].gpu_tps))
    found: list[int] = []
    for i in order:
        last = points[found[-1]] if found else None
        same = last is not None and (last.user_tps, last.gpu_tps) == (points[i].user_tps, points[i].gpu_tps)
        if last is None or same or points[i].gpu_tps > last.gpu_tps:
            found.append(i)
    return found[::-1]
