"""The chart of replicas: what each had under way along the window."""

from collections.abc import Iterator, Sequence

from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.summary_types.deployment.replicas import ReplicaFigures
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.html.chart import Axis, Chart, Data, Mark, Series, figures, labels
from llm_locust.report.html.over_time import time_unit
from llm_locust.report.text import clean, count, seconds, short

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_NAME_LENGTH = 48

#: Lines that a reader can tell apart; and of marks.
MOST_SHOWN = 8
MOST_MARKED = 4


def in_flight(run: RunCharts, summary: Summary) -> list[Chart]:
    """Requests in flight by replica, with the times at which one stopped or came back; none for fewer than
    two replicas."""
    replicas = _shown(summary)
    parts = min((len(replica.in_flight) for replica in replicas), default=0)
    if len(replicas) < 2 or not parts:
        return []
    unit, length_s = time_unit(run)
    head, step_s = f"time of the window ({unit})", summary.window.seconds / parts
    names = labels([short(clean(replica.name), _NAME_LENGTH) for replica in replicas])
    columns = {head: figures(((part + 0.5) * step_s for part in range(parts)), 1 / length_s)} | {
        f"{name} (requests)": figures(replica.in_flight[:parts])
        for name, replica in zip(names, replicas, strict=True)
    }
    left_out = len(summary.replicas) - len(replicas)
    more = f" {count(left_out)} more are in summary.json." if left_out else ""
    chart = Chart(
        id="replicas-in-flight",
        title="Requests in flight by replica",
        reading=f"Mean of each {seconds(step_s)}. Equal shares of requests are not equal shares of work: a "
        f"slow replica has more in flight.{more}",
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


def _shown(summary: Summary) -> Sequence[ReplicaFigures]:
    """All, or those that a cause names and then the first ones."""
    replicas = summary.replicas
    blamed = {cause.replica for cause in summary.fairness.causes}
    chosen = sorted(range(len(replicas)), key=lambda i: (replicas[i].name not in blamed, i))
    return [replicas[i] for i in sorted(chosen[:MOST_SHOWN])]


def _marks(replicas: Sequence[ReplicaFigures], names: Sequence[str], length_s: float) -> Iterator[Mark]:
    for name, replica in zip(names, replicas, strict=True):
        for outage in replica.outages:
            for at_s, what in ((outage.from_s, "out"), (outage.to_s, "back")):
                if at_s is not None:
                    yield Mark("x", at_s / length_s, f"{name} {what}")
