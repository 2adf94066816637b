"""``curve.csv``: what there was at each load of a sweep, with the knee and the law of its throughput."""

from collections.abc import Callable
from typing import Any

import numpy as np

from llm_locust.metrics.curves.curve import METRIC, STATISTIC
from llm_locust.metrics.curves.usl import Usl
from llm_locust.metrics.summary_types.search import KneeSummary, UslFigures
from llm_locust.metrics.summary_types.stages import Stage, StageFigures
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.tables.csv_text import csv_text


def curve_csv(summary: Summary) -> str | None:
    """A row for each stage that has figures, by lengths, load and repeat; None in a run without a curve.

    ``is_result`` says whether a stage is in the knee and in the law. ``usl_requests_per_s`` is the law's
    throughput at the stage's ``concurrency_mean``, beside the measured ``requests_per_s``; it is empty below
    one request in flight, where there is no law. ``knee`` and its interval are loads, the same in each row.
    """
    curves = {each.lengths: each.curve for each in summary.curves or ()}
    if summary.curve is not None:
        curves[""] = summary.curve
    if not curves:
        return None
    rows: list[dict[str, Any]] = []
    for lengths, curve in curves.items():
        knee, law = _knee(curve.knee), _law(curve.usl)
        stages = [stage for stage in summary.stages or () if stage.figures and stage.pair == lengths]
        stages.sort(key=lambda stage: (stage.asked, stage.repeat))
        rows += [_of(stage) | _figures(stage.figures, law) | knee for stage in stages]
    return csv_text(rows)


def _of(stage: Stage) -> dict[str, Any]:
    names = ("kind", "asked", "offered", "repeat", "is_result", "saturated")
    return {"stage": stage.number, "lengths": stage.pair} | {name: getattr(stage, name) for name in names}


def _figures(part: StageFigures | None, law: Callable[[float | None], float | None]) -> dict[str, Any]:
    assert part is not None
    latency, rates, goodput = part.latency_ms[METRIC], part.throughput, part.goodput
    in_flight = rates.concurrency_mean
    return {
        **_figure(f"{METRIC}_{STATISTIC}_ms", latency.figure(STATISTIC), latency.intervals().get(STATISTIC)),
        "concurrency_mean": in_flight,
        **_figure("requests_per_s", rates.requests_per_s, rates.intervals().get("requests_per_s")),
        "usl_requests_per_s": law(in_flight),
        "output_tokens_per_s": rates.output_tokens_per_s,
        "inputs_per_s": rates.inputs_per_s,
        **_figure("goodput", goodput.ratio, goodput.intervals().get("ratio")),
        "good_requests_per_s": goodput.requests_per_s,
    }


def _figure(name: str, value: float | None, ends: Any) -> dict[str, Any]:
    low, high = ends or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _knee(knee: KneeSummary | None) -> dict[str, Any]:
    return _figure("knee", knee.load if knee else None, knee.ci95 if knee else None)


def _law(usl: UslFigures | None) -> Callable[[float | None], float | None]:
    """The law's throughput at a number of requests in flight; None where there is none."""
    values = [each.value for each in (usl.gamma, usl.alpha, usl.beta)] if usl else [None]
    if None in values:
        return lambda _: None
    law = Usl(*(float(value or 0) for value in values))
    return lambda n: None if n is None or n < 1 else float(law.at(np.array([n]))[0])
