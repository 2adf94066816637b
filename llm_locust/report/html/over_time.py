"""Charts along the run: latencies, rates, concurrency, failures, gaps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from llm_locust.figures.charts import RunCharts, gap_edges_s
from llm_locust.figures.course import LOWEST, MEDIAN, MOST_CURVES, PLACES, Curves, ServerCurves
from llm_locust.figures.routing import ReplicaFigures
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import clean, count, number, plural, seconds, short
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.columns import Floats
from llm_locust.report.html.shell import Axis, Chart, Data, Heat, Kind, Mark, Series, Values, figures, labels

#: A limit further up than this many times the highest p99 would press all curves to the ground.
_NEAR = 2.0


def latencies(run: RunCharts, limits_ms: dict[str, float]) -> list[Chart]:
    """Latencies over time, each with its percentiles and its limit."""
    shown = [metric for metric, found in run.percentiles.items() if found["n"].any()]
    return [_latency(run, metric, limits_ms.get(metric)) for metric in shown]


def _latency(run: RunCharts, metric: str, limit_ms: float | None) -> Chart:
    found, (unit, axis, time) = run.percentiles[metric], time_column(run)
    columns = {unit: time, "n": figures(found["n"])}
    columns |= {f"{place} (ms)": figures(found[place], 1e3) for place in PLACES}
    is_near = limit_ms is not None and limit_ms <= _NEAR * 1e3 * np.nanmax([0.0, *found["p99"]])
    above = "" if is_near or limit_ms is None else f" The limit of {limit_ms:,g} ms is above the chart."
    left = (
        f" {plural(run.given_up, 'request')} cut, left or timed out: in no percentile."
        if run.given_up
        else ""
    )
    return Chart(
        id=f"{metric}-over-time",
        title=f"{LATENCY[metric].label} over the run, ms",
        reading=f"Percentiles of the requests that ended ok in each {width(run)}.{left}{above}",
        data=(Data("percentiles", columns),),
        series=tuple(Series(place, unit, f"{place} (ms)", place) for place in PLACES),
        x=axis,
        y=Axis("ms", log_choice=True),
        bands=outside(run),
        marks=(Mark("y", limit_ms, f"SLO {limit_ms:,g} ms"),) if limit_ms is not None and is_near else (),
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart over the run; ``head`` is that of its column."""

    name: str
    head: str
    values: Values
    colour: str


@dataclass(frozen=True, slots=True)
class Words:
    """What a chart over the run is called and says; ``table`` is the name of its data."""

    id: str
    title: str
    reading: str
    table: str


def chart_over_time(
    run: RunCharts, words: Words, curves: Iterable[Curve], unit: str, kind: Kind = Kind.LINE
) -> Chart:
    """Curves along the run's time axis, all in one unit."""
    head, axis, time = time_column(run)
    shown = list(curves)
    return Chart(
        id=words.id,
        title=words.title,
        reading=words.reading,
        data=(Data(words.table, {head: time} | {curve.head: curve.values for curve in shown}),),
        series=tuple(Series(curve.name, head, curve.head, curve.colour, kind) for curve in shown),
        x=axis,
        y=Axis(unit),
        bands=outside(run),
    )


def rates(run: RunCharts) -> list[Chart]:
    """Tokens per second, requests per second and concurrency."""
    every = f"Mean of each {width(run)}."
    tokens = Words(
        "tokens-over-time",
        "Token throughput, tokens/s",
        f"Output tokens as they arrived, input tokens at the first token of their answer. {every}",
        "rates",
    )
    requests = Words(
        "requests-over-time",
        "Requests, requests/s",
        f"Sent against ended: a lasting difference is a growing queue. {every}",
        "rates",
    )
    concurrency = Words(
        "concurrency-over-time",
        "Concurrency, requests in flight",
        f"Requests between sent and ended. {every}",
        "rates",
    )
    ended = {"sent": ("sent", "faint"), "ok": ("ended ok", "c1")}
    failed = {"failed": ("failed", "bad")} if run.failures else {}
    inputs = Words(
        "inputs-over-time",
        "Inputs, inputs/s",
        f"Texts embedded and documents ranked, when their answer came. {every}",
        "rates",
    )
    images = Words(
        "images-over-time",
        "Images, images/s",
        f"Images of prompts, when their first token came. {every}",
        "rates",
    )
    output = {"output_tokens": ("output", "c1"), "input_tokens": ("input", "c2")}
    has_inputs, has_images = (bool(run.rates[key].any()) for key in ("inputs", "images"))
    return [
        *([_rate(run, inputs, {"inputs": ("inputs", "c1")}, "inputs/s")] if has_inputs else []),
        *([_rate(run, images, {"images": ("images", "c4")}, "images/s")] if has_images else []),
        _rate(run, tokens, output, "tokens/s"),
        _rate(run, requests, ended | failed, "requests/s"),
        _rate(run, concurrency, {"concurrency": ("concurrency", "c3")}, "requests"),
    ]


def _rate(run: RunCharts, words: Words, shown: dict[str, tuple[str, str]], unit: str) -> Chart:
    curves = (
        Curve(name, f"{name} ({unit})", figures(run.rates[key]), colour)
        for key, (name, colour) in shown.items()
    )
    return chart_over_time(run, words, curves, unit)


def failures(run: RunCharts) -> list[Chart]:
    """How many requests failed when, by outcome; none without failures."""
    if not run.failures:
        return []
    words = Words(
        "failures-over-time",
        "Failed requests by outcome, requests",
        f"Failures that ended in each {width(run)}, stacked.",
        "failures",
    )
    colours = cycle(("bad", "c2", "c4", "c5", "c1", "c3", "c6", "faint"))
    curves = (
        Curve(outcome, outcome, figures(counts), colour)
        for (outcome, counts), colour in zip(run.failures.items(), colours, strict=False)
    )
    return [replace(chart_over_time(run, words, curves, "requests", Kind.STACKED), wide=True)]


def gaps(run: RunCharts) -> list[Chart]:
    """The heat map of inter-token latencies; none where no answer had two events."""
    used = np.flatnonzero(run.gaps.sum(axis=1))
    if not len(used):
        return []
    shown = np.arange(used[0], used[-1] + 1)
    edges_ms = gap_edges_s() * 1e3
    middles_ms = np.sqrt(edges_ms[shown] * edges_ms[shown + 1])
    unit, axis, time = time_column(run)
    heads = [f"{number(edges_ms[g])} .. {number(edges_ms[g + 1])} ms" for g in shown.tolist()]
    if not used[0]:
        heads[0] = f"under {number(edges_ms[1])} ms"
    counts: dict[str, Values] = {head: figures(run.gaps[g]) for head, g in zip(heads, shown, strict=True)}
    chart = Chart(
        id="itl-heat-map",
        title="Inter-token latency, ms: how many gaps, over the run",
        reading=(
            "Each cell counts the gaps of that size which ended in that time; the scale is logarithmic. "
            "Two bands are two paces, such as decoding with and without a prefill beside it; a vertical "
            "streak is a stall of many streams; events that came together are under 0.1 ms."
        ),
        data=(Data("gaps", {unit: time, **counts}),),
        series=(Series("gaps", unit, "", "c1", Kind.HEAT),),
        x=axis,
        y=Axis("gap, ms", log=True),
        heat=Heat(figures(middles_ms), "gaps", log=True),
        bands=outside(run),
        wide=True,
    )
    return [chart]


def time_column(run: RunCharts) -> tuple[str, Axis, Values]:
    """The head of the time column, its axis and its values, in a unit that suits the run's length."""
    unit, length_s = time_unit(run)
    return f"time ({unit})", Axis(f"time, {unit}"), figures(run.axis.middles_s, 1 / length_s)


def time_unit(run: RunCharts) -> tuple[str, float]:
    length_s = run.axis.width_s * run.axis.bins
    if length_s < 900:
        return "s", 1.0
    return ("min", 60.0) if length_s < 5 * 3600 else ("h", 3600.0)


def width(run: RunCharts) -> str:
    width_s = run.axis.width_s
    return seconds(width_s) if width_s >= 120 else f"{width_s:g} s"


def outside(run: RunCharts) -> tuple[tuple[float, float], ...]:
    """The spans of the time axis that are before, between and after those of the window."""
    _, length_s = time_unit(run)
    end_s = run.axis.width_s * run.axis.bins
    edges = [0.0, *(edge for window in run.windows_s for edge in window), end_s]
    spans: Floats = np.clip([edges[::2], edges[1::2]], 0.0, end_s).T / length_s
    return tuple((float(low), float(high)) for low, high in spans if high > low)


# --- The chart of replicas: what each had under way along the window


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


# --- Charts of the servers, on the same time axis as the client's


#: State, its title with the unit, that unit, and what it is told in.
_BY_SERVER = (
    ("running", "Running requests, by server", "requests", 1.0),
    ("waiting", "Waiting requests, by server", "requests", 1.0),
    ("kv_cache_usage", "KV cache in use by server, %", "%", 100.0),
    ("prefix_hits", "Prefix cache hits by server, % of the prompt tokens looked up", "%", 100.0),
    ("acceptance_length", "Tokens a step of speculative decoding, by server", "tokens", 1.0),
    ("gpu_utilisation", "GPU utilisation by GPU, %", "%", 100.0),
    ("power_w", "Power by GPU, W", "W", 1.0),
)


def servers(run: RunCharts, found: ServerCurves | None) -> list[Chart]:
    """What they said of themselves, beside the client's own figures; none where none was scraped."""
    if found is None:
        return []
    return [*_of_all(run, found), *_by_role(run, found), *_by_server(run, found), *_failed(run, found)]


def _of_all(run: RunCharts, found: ServerCurves) -> Iterator[Chart]:
    requests = {name: found.of_all[name] for name in ("running", "waiting") if name in found.of_all}
    if requests:
        words = _words(
            run,
            "requests",
            "Requests at the client and at all servers",
            "Requests in flight at the client that neither run nor wait are in transit, at the gateway, "
            "or at a server that was not scraped.",
        )
        client = {"in flight at the client": run.rates["concurrency"]}
        yield _chart(run, words, client | requests, "requests")
    if found.ttft_s and not (found.by_role and found.by_role.parts_s):  # which tell the two kinds apart
        mixed = " The mean of the servers is of all roles together." * (found.by_role is not None)
        words = _words(
            run,
            "ttft",
            "Mean TTFT of client and servers, ms",
            "Of the first tokens of each span. Between them lie the network, the gateway and the balancer."
            + mixed,
        )
        yield _chart(run, words, found.ttft_s, "ms", 1e3)
    if "generation_tokens_per_s" in found.of_all:
        words = _words(
            run,
            "tokens",
            "Output tokens of client and servers, tokens/s",
            "As they arrived at the client, and as the servers counted them between two scrapes.",
        )
        both = {"client": run.rates["output_tokens"], "servers": found.of_all["generation_tokens_per_s"]}
        yield _chart(run, words, both, "tokens/s")


def _by_role(run: RunCharts, found: ServerCurves) -> Iterator[Chart]:
    if found.by_role is None:
        return
    if found.by_role.parts_s:
        words = _words(
            run,
            "role-ttft",
            "Parts of the TTFT by role, mean ms",
            "By the servers, of the requests that ended in each span. The queue of a prefill server is a "
            "part of its whole request. What is missing to the client's TTFT lies at the gateway and at the "
            "decode servers.",
        )
        yield _chart(run, words, dict(found.by_role.parts_s), "ms", 1e3)
    if found.by_role.waiting:
        words = _words(
            run,
            "role-waiting",
            "Waiting requests, by role",
            "In the queues of all prefill servers, and of all decode servers.",
        )
        yield _chart(run, words, dict(found.by_role.waiting), "requests")


def _by_server(run: RunCharts, found: ServerCurves) -> Iterator[Chart]:
    for name, title, unit, scale in _BY_SERVER:
        curves = found.by_server.get(name, {})
        if not curves or (len(curves) == 1 and name in found.of_all):  # it is in the chart of all, then
            continue
        few = f" There are over {MOST_CURVES}: each span's extremes, and what lies in the middle."
        reading = "A gap in a line means that the server returned no metrics page."
        note = reading + few * (curves.keys() >= {MEDIAN, LOWEST})
        yield _chart(run, _words(run, name.replace("_", "-"), title, note), curves, unit, scale)


def _failed(run: RunCharts, found: ServerCurves) -> Iterator[Chart]:
    if found.failed:
        words = _words(
            run,
            "failed",
            "Failed scrapes, by server",
            "Number in each span: the server was down, hung, or sent something other than a metrics page.",
        )
        yield _chart(run, words, found.failed, "scrapes", kind=Kind.STACKED)


def _words(run: RunCharts, key: str, title: str, reading: str) -> Words:
    return Words(f"servers-{key}", title, f"{reading} Spans of {width(run)}.", "servers")


def _chart(
    run: RunCharts, words: Words, curves: Curves, unit: str, scale: float = 1.0, kind: Kind = Kind.LINE
) -> Chart:
    names = labels([short(clean(name), _NAME_LENGTH) for name in curves])
    shown = (
        Curve(name, f"{name} ({unit})", figures(curve, scale), colour)
        for name, curve, colour in zip(names, curves.values(), cycle(_COLOURS), strict=False)
    )
    return chart_over_time(run, words, shown, unit, kind)
