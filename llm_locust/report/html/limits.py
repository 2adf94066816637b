"""Charts of goodput at any limit, so that nobody has to run again for another SLO."""

from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.charts.limits import LimitCurve, LimitSurface
from llm_locust.report.html.chart import Axis, Chart, Data, Heat, Kind, Mark, Series, Values, figures


def limits(run: RunCharts) -> list[Chart]:
    """A curve for each of TTFT, TPOT and E2EL, and the surface of the first two."""
    charts = [_curve(run, curve) for curve in run.curves]
    return charts if run.surface is None else [*charts, _surface(run.surface)]


def _curve(run: RunCharts, curve: LimitCurve) -> Chart:
    name, head = LATENCY[curve.metric].label, f"{LATENCY[curve.metric].label} limit (ms)"
    columns: dict[str, Values] = {head: figures(curve.limits_s, 1e3), "alone (%)": figures(curve.alone, 100)}
    series = [Series("this limit alone", head, "alone (%)", "c1")]
    if curve.others:
        columns["all limits (%)"] = figures(curve.good, 100)
        series.append(Series("with the other limits as they are", head, "all limits (%)", "c2"))
    counted = "" if LATENCY[curve.metric].end is None else f", counted from {run.measured_from}"
    return Chart(
        id=f"goodput-by-{curve.metric}",
        title=f"Goodput at any {name} limit, % of requests",
        reading=f"The share of good requests were this the {name} limit{counted}.",
        data=(Data("goodput", columns),),
        series=tuple(series),
        x=Axis(f"{name} limit, ms", log=True),
        y=Axis("good, %", most=100),
        marks=_own("x", curve.limit_s, "SLO "),
    )


def _own(axis: str, limit_s: float | None, text: str) -> tuple[Mark, ...]:
    """The limit that the SLO has, where all requests have the same."""
    return () if limit_s is None else (Mark(axis, limit_s * 1e3, f"{text}{limit_s * 1e3:,g} ms"),)


def _surface(found: LimitSurface) -> Chart:
    others = " and ".join(LATENCY[metric].label for metric in found.others)
    kept = f" The limit of {others} holds too." if others else ""
    rows: dict[str, Values] = {
        f"TPOT ≤ {limit_s * 1e3:.5g} ms (%)": figures(row, 100)
        for limit_s, row in zip(found.tpot_s, found.good, strict=True)
    }
    return Chart(
        id="goodput-surface",
        title="Goodput at any pair of TTFT and TPOT limits, % of requests",
        reading=f"Each cell is the share that meets both limits; lines are the SLO's own.{kept}",
        data=(Data("goodput", {"TTFT limit (ms)": figures(found.ttft_s, 1e3), **rows}),),
        series=(Series("good", "TTFT limit (ms)", "", "c1", Kind.HEAT),),
        x=Axis("TTFT limit, ms", log=True),
        y=Axis("TPOT limit, ms", log=True),
        heat=Heat(figures(found.tpot_s, 1e3), "good, %"),
        marks=_own("x", found.ttft_limit_s, "TTFT ≤ ") + _own("y", found.tpot_limit_s, "TPOT ≤ "),
    )
