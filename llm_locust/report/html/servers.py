"""Charts of the servers, on the same time axis as the client's."""

from collections.abc import Iterator
from itertools import cycle

from llm_locust.metrics.charts import RunCharts
from llm_locust.metrics.charts.servers import LOWEST, MEDIAN, MOST_CURVES, Curves, ServerCurves
from llm_locust.report.html.chart import Chart, Kind, figures, labels
from llm_locust.report.html.over_time import Curve, Words, chart_over_time, width
from llm_locust.report.text import clean, short

_COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6")
_NAME_LENGTH = 48

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
        told = reading + few * (curves.keys() >= {MEDIAN, LOWEST})
        yield _chart(run, _words(run, name.replace("_", "-"), title, told), curves, unit, scale)


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
