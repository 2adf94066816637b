"""The slowest requests: what their time went to, and who they were."""

from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.charts.slowest import PHASES, SlowRequest
from llm_locust.report.html.chart import Axis, Chart, Data, Kind, Series, Values, figures, labels
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, seconds, short

_COLOURS = ("c5", "c2", "c6", "c1", "c3", "faint")
_LABEL_LENGTH, _NAME_LENGTH = 24, 24

_NOTES = (Line("requests.parquet has the whole of each, by its request_id.", Tone.FAINT),)


def timeline(run: RunCharts) -> list[Chart]:
    """One bar a request, longest on top; none without a request."""
    if not run.slowest:
        return []
    names = labels([short(clean(request.request_id), _LABEL_LENGTH) for request in run.slowest])
    columns: dict[str, Values] = {"request": names}
    columns |= {f"{phase} (ms)": figures((r.phases[phase] for r in run.slowest), 1e3) for phase in PHASES}
    chart = Chart(
        id="slowest",
        title=f"The {len(run.slowest)} slowest requests, ms from scheduled",
        reading=(
            "Queue: until a worker began. Connect: until it was sent. First byte: until the headers. "
            "First token: until the first token event. Tokens: until the last one. End: until it was over."
        ),
        data=(Data("phases", columns),),
        series=tuple(
            Series(phase, f"{phase} (ms)", "request", colour, Kind.TIMELINE)
            for phase, colour in zip(PHASES, _COLOURS, strict=True)
        ),
        x=Axis("ms"),
        y=Axis(""),
        wide=True,
    )
    return [chart]


def table(run: RunCharts) -> Section | None:
    if not run.slowest:
        return None
    columns = (
        Column("Request", left=True, verbatim=True),
        Column("Outcome", left=True),
        Column("Name", left=True, verbatim=True),
        Column("Class", left=True, verbatim=True),
        Column("Replica", left=True, verbatim=True),
        Column("Scheduled"),
        *(Column(phase, over="ms") for phase in PHASES),
        Column("total", over="ms"),
        Column("longest gap", over="ms"),
        Column("in", over="tokens"),
        Column("out", over="tokens"),
    )
    rows = tuple(map(_row, run.slowest))
    return Section("Slowest requests", table=Table(columns, rows).without_empty(), notes=_NOTES)


def _row(request: SlowRequest) -> TableRow:
    texts = (request.name, request.slo_class, request.replica)
    return TableRow(
        (
            short(clean(request.request_id), _LABEL_LENGTH),
            request.outcome,
            *(short(clean(text), _NAME_LENGTH) for text in texts),
            f"+{seconds(request.scheduled_s)}" if request.scheduled_s >= 0 else UNDEFINED,
            *(number(1e3 * request.phases[phase]) for phase in PHASES),
            number(1e3 * request.total_s),
            number(1e3 * request.longest_gap_s),
            count(request.input_tokens),
            count(request.output_tokens),
        ),
        Tone.PLAIN if request.outcome == "ok" else Tone.BAD,
    )
