"""The chart of replicas: what each had under way along the window."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_locust.metrics.charts import RunCharts
from llm_locust.report.html.chart import Axis, Chart, Data, Mark, Series, figures, labels
from llm_locust.report.html.over_time import time_unit
from llm_locust.report.text import clean, count, seconds, short

Part = Mapping[str, Any]

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_NAME_LENGTH = 48

#: Lines that a reader can tell apart; and of marks.
MOST_SHOWN = 8
MOST_MARKED = 4


def in_flight(run: RunCharts, summary: Part) -> list[Chart]:
    """Requests in flight by replica, with the times at which one stopped or came back; none for fewer than
    two replicas."""
    replicas, window_s = _shown(summary), (summary.get("window") or {}).get("seconds") or 0.0
    parts = min((len(replica.get("in_flight") or ()) for replica in replicas), default=0)
    if len(replicas) < 2 or not parts:
        return []
    unit, length_s = time_unit(run)
    head, step_s = f"time of the window ({unit})", window_s / parts
    names = labels([short(clean(replica.get("name")), _NAME_LENGTH) for replica in replicas])
    columns = {head: figures(((part + 0.5) * step_s for part in range(parts)), 1 / length_s)} | {
        f"{name} (requests)": figures(replica["in_flight"][:parts])
        for name, replica in zip(names, replicas, strict=True)
    }
    left_out = len(summary["replicas"]) - len(replicas)
    more = f" {count(left_out)} more are in summary.json." if left_out else ""
    chart = Chart(
        id="replicas-in-flight",
        title="Requests in flight by replica",
        reading=f"Mean of each {seconds(step_s)}. Equal shares of requests are no equal shares of work: a "
        f"slow replica has more under way.{more}",
        data=(Data("in flight", columns),),
        series=tuple(
            Series(name, head, f"{name} (requests)", _COLOURS[i % len(_COLOURS)])
            for i, name in enumerate(names)
        ),
        x=Axis(f"time of the window, {unit}"),
        y=Axis("requests"),
        marks=tuple(_marks(replicas, names, length_s))[:MOST_MARKED],
        wide=True,
    )
    return [chart]


def _shown(summary: Part) -> Sequence[Part]:
    """All, or those that a cause names and then the first ones."""
    replicas = summary.get("replicas") or ()
    blamed = {cause.get("replica") for cause in (summary.get("fairness") or {}).get("causes") or ()}
    chosen = sorted(range(len(replicas)), key=lambda i: (replicas[i].get("name") not in blamed, i))
    return [replicas[i] for i in sorted(chosen[:MOST_SHOWN])]


def _marks(replicas: Sequence[Part], names: Sequence[str], length_s: float) -> Iterator[Mark]:
    for name, replica in zip(names, replicas, strict=True):
        for outage in replica.get("outages") or ():
            for at_s, what in ((outage.get("from_s"), "out"), (outage.get("to_s"), "back")):
                if at_s is not None:
                    yield Mark("x", at_s / length_s, f"{name} {what}")
