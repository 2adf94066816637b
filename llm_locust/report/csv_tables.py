"""Tables of a run for other programs, as CSV files beside its report."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from llm_locust.figures.curve import METRIC, STATISTIC, Usl, UslFigures
from llm_locust.figures.parts import StageFigures
from llm_locust.figures.stages import Repeats, Stage
from llm_locust.figures.summary import Summary
from llm_locust.metrics.catalogue import View, shown_in

# --- CSV text of rows


Cells = dict[str, str | float | None]


def csv_text(rows: Sequence[Cells]) -> str:
    """The rows under a head line with the columns of all. What a row lacks, and None, is an empty cell."""
    heads = dict.fromkeys(head for row in rows for head in row)
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(heads), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


# --- ``arms.csv``: the differences between arms, with each end of their intervals


_HEADS = (
    *("base_arm", "new_arm", "metric", "unit", "base", "new", "difference", "difference_low"),
    *("difference_high", "change", "change_low", "change_high", "confidence", "verdict"),
)


def arms_csv(summary: Summary) -> str | None:
    """A line for each figure of each arm but the first; None in a run without arms. Undefined is empty."""
    if not summary.arms:
        return None
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(_HEADS)
    for arm in summary.arms:
        for row in arm.against.rows if arm.against else ():
            assert arm.against is not None
            writer.writerow(
                (
                    *(arm.against.arm, arm.name, row.metric, row.unit, row.base, row.new, row.difference),
                    *(row.difference_interval or (None, None)),
                    row.change,
                    *(row.change_interval or (None, None)),
                    *(arm.against.confidence, row.verdict),
                )
            )
    return sink.getvalue()


# --- ``curve.csv``: what there was at each load of a sweep, with the knee and the law of its throughput


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
    rows: list[Cells] = []
    for lengths, curve in curves.items():
        knee = _figure("knee", curve.knee.load, curve.knee.ci95) if curve.knee else _figure("knee", None)
        law = _law(curve.usl)
        stages = [stage for stage in summary.stages or () if stage.figures and stage.pair == lengths]
        stages.sort(key=lambda stage: (stage.asked, stage.repeat))
        for stage in stages:
            names = ("kind", "asked", "offered", "repeat", "is_result", "saturated")
            of_stage: Cells = {"stage": stage.number, "lengths": stage.pair}
            rows.append(
                of_stage | {n: getattr(stage, n) for n in names} | _figures(stage.figures, law) | knee
            )
    return csv_text(rows)


def _figures(part: StageFigures | None, law: Callable[[float | None], float | None]) -> Cells:
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


def _figure(name: str, value: float | None, ends: Sequence[float | None] | None = None) -> Cells:
    low, high = ends or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _law(usl: UslFigures | None) -> Callable[[float | None], float | None]:
    """The law's throughput at a number of requests in flight; None where there is none."""
    values = [each.value for each in (usl.gamma, usl.alpha, usl.beta)] if usl else [None]
    if None in values:
        return lambda _: None
    law = Usl(*(float(value or 0) for value in values))
    return lambda n: None if n is None or n < 1 else float(law.at(np.array([n]))[0])


# --- ``repeats.csv``: each load that was measured more than once, with its figures over the repeats


def repeats_csv(summary: Summary) -> str | None:
    """A row a load, with the mean of each figure and the ends of its interval; None without repeats."""
    if not summary.repeats:
        return None
    return csv_text([_row(load) for load in summary.repeats])


def _row(load: Repeats) -> Cells:
    found: Cells = {
        "kind": load.kind,
        "asked": load.asked,
        "lengths": load.pair,
        "repeats": len(load.stages),
        "results": load.results,
    }
    for name, over in load.figures.items():
        found |= _figure(name, over.mean, over.ci95)
    return found


# --- ``stages.csv``: the table of stages with a column for each figure and each end of its interval


_PREFIX = ("asked", "tokens", "possible", "achieved", "source")
_PLACES = ("p50", "p90", "p99")
_METRICS = tuple(metric.key for metric in shown_in(View.GROUPS))


def stages_csv(stages: Iterable[Stage] | None) -> str | None:
    """The stages as CSV text with a head line; None without any. Undefined is an empty cell."""
    rows = [_stages_csv_row(stage) for stage in stages or ()]
    return csv_text(rows) if rows else None


def _stages_csv_row(stage: Stage) -> Cells:
    window = stage.window
    found: Cells = {
        "stage": stage.number,
        "kind": stage.kind,
        "asked": stage.asked,
        "offered": stage.offered,
        "repeat": stage.repeat,
        "lengths": stage.pair,
        "input_tokens_p50": None if stage.lengths is None else stage.lengths.input_tokens_p50,
        "output_tokens_p50": None if stage.lengths is None else stage.lengths.output_tokens_p50,
        **{f"prefix_{name}": getattr(stage.prefix, name) for name in _PREFIX if stage.prefix is not None},
        "repeated_as": stage.repeated_as,
        "is_result": stage.is_result,
        "steady": stage.steady,
        "all_failed": stage.all_failed,
        "saturated": stage.saturated,
        "client": stage.client,
        "reasons": "; ".join(stage.reasons),
        "ended_early": None if stage.until is None else stage.until.is_early,
        "start_s": None if window is None else window.start_s,
        "seconds": None if window is None else window.seconds,
    }
    return found | ({} if stage.figures is None else _stages_csv_figures(stage.figures))


def _stages_csv_figures(part: StageFigures) -> Cells:
    found: Cells = {
        "requests": part.requests.scheduled,
        "ok": part.requests.ok,
        "failed": part.requests.failed,
        "error_rate": part.requests.error_rate,
        "requests_per_s": part.throughput.requests_per_s,
        "output_tokens_per_s": part.throughput.output_tokens_per_s,
        "inputs_per_s": part.throughput.inputs_per_s,
        **_figure("goodput", part.goodput.ratio, part.goodput.intervals().get("ratio")),
        "good_requests_per_s": part.goodput.requests_per_s,
    }
    for metric in _METRICS:
        for place in _PLACES:
            stats = part.latency_ms[metric]
            found |= _figure(f"{metric}_{place}_ms", stats.figure(place), stats.intervals().get(place))
    return found
