"""The first part of a report: may the numbers be trusted, did the run hold, and how much was good."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.metrics.gates import Gate, GateError, Kind, figures_of, parse_gates
from llm_locust.metrics.requests.goodput import ABANDONED, LOST, OUTCOME, STUCK, UNSENT
from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent, plural, sentence
from llm_locust.report.uncertainty import mark, meaning, meaning_in

Part = Mapping[str, Any]

_VERDICT_TONES = {"ok": Tone.GOOD, "suspect": Tone.WARN, "invalid": Tone.BAD}
_VERDICT_MEANINGS = {
    "suspect": "the client may have shaped these numbers",
    "invalid": "the client, not the server, made these numbers",
}


def client(summary: Part) -> Section:
    """The client's verdict, its reasons and what it was judged by."""
    part = summary.get("client") or {}
    verdict = clean(part.get("verdict") or "unknown")
    reasons = [clean(r) for r in part.get("reasons") or ()]
    evidence = sentence(
        [
            f"{clean(part['timestamps'])} stamps" if part.get("timestamps") else "",
            f"lag p99 {number(part.get('lag_ms_p99'))} ms",
            f"hub lag p99 {number(part['hub_lag_ms_p99'])} ms" if _rests_on_the_hub(part) else "",
            f"CPU {number(part.get('cpu_percent_max'))} %",
            f"coalesced {percent(part.get('coalesced_ratio'))}",
        ]
    )
    law = tuple(_littles_law(summary.get("littles_law") or {}))
    if verdict == "ok":
        return Section("Client", (Line(f"ok: {evidence}", Tone.GOOD), *map(Line, reasons), *law))
    tone = _VERDICT_TONES.get(verdict, Tone.WARN)
    headline = Line(sentence([verdict.upper(), _VERDICT_MEANINGS.get(verdict, "")], ": "), tone)
    return Section("Client", (headline, *map(Line, reasons), Line(evidence, Tone.FAINT), *law), alarm=True)


def _littles_law(law: Part) -> Iterator[Line]:
    """Requests in flight, by their number and by their rate and time; and how near the workers' count is."""
    if law.get("in_flight_mean") is None:
        return
    rate, time_s = law["sent_per_s"], law["time_s"]
    sides = (
        f"Little's law {'holds' if law.get('holds') else 'FAILS'}: "
        f"{number(law['in_flight_mean'])} in flight, "
        f"{number(rate)}/s × {number(time_s)} s = {number(rate * time_s)}"
    )
    off = law.get("workers_difference")
    counted = "" if off is None else f"the records have {percent(1 + off)} of what the workers counted"
    yield Line(sentence([sides, counted]), Tone.FAINT if law.get("holds") else Tone.WARN)


def _rests_on_the_hub(part: Part) -> bool:
    """Whether the event loop's lag is in the latencies, and known."""
    return part.get("timestamps") in ("program", "mixed") and part.get("hub_lag_ms_p99") is not None


def gates(summary: Part) -> Section | None:
    """Each gate with the value it was held against, broken ones first; None where none was given."""
    judged = summary.get("gates") or ()
    if not judged:
        return None
    broken = sum(not gate.get("passed") for gate in judged)
    headline = (
        Line(f"{count(broken)} of {plural(len(judged), 'gate')} failed", Tone.BAD)
        if broken
        else Line(f"{plural(len(judged), 'gate')} passed", Tone.GOOD)
    )
    columns = (
        Column("Result", left=True),
        Column("Gate", left=True, verbatim=True),
        Column("Measured"),
        Column("", left=True, wraps=True),
    )
    in_order = sorted(judged, key=lambda gate: bool(gate.get("passed")))
    table = Table(columns, tuple(_gate_row(gate, summary) for gate in in_order)).without_empty()
    return Section("Gates", (headline,), table, tuple(meaning_in(table)))


def _gate_row(gate: Part, summary: Part) -> Row:
    passed, value = bool(gate.get("passed")), gate.get("value")
    text = clean(gate.get("text") or "")
    reason = clean(gate.get("reason") or "")
    # Where the figure itself is over the limit, the columns before have said so.
    untold = value is None or reason.startswith("cannot tell")
    note = clean(gate.get("note") or "") if "failed" not in reason else ""
    why = sentence([reason if untold else "", note])
    return Row(
        ("pass" if passed else "FAIL", text, _gate_measured(text, value, gate.get("at_least"), summary), why),
        Tone.GOOD if passed else Tone.BAD,
    )


def _gate_measured(text: str, value: float | None, bound: float | None, summary: Part) -> str:
    """The value in the unit of the gate's metric, which its text names, with the mark of its percentile."""
    if value is None:
        return UNDEFINED if bound is None else f"> {number(bound)} ms"
    try:
        (gate,) = parse_gates(text)
    except (GateError, ValueError):
        return number(value)
    if gate.kind is Kind.SHARE:
        return percent(value)
    return f"{_mark_of(gate, summary)}{number(value)} ms" if gate.kind is Kind.LATENCY else number(value)


def _mark_of(gate: Gate, summary: Part) -> str:
    statistic = gate.metric.rpartition(f"_{gate.latency}")[0]
    try:
        stats = figures_of(gate, summary)
    except KeyError:
        return ""
    return mark(stats, statistic) if statistic in (stats.get("ci95") or {}) else ""


def goodput(summary: Part) -> Section:
    """How much of what was asked for came within the SLO, and what broke it first."""
    part = summary.get("goodput") or {}
    if part.get("ratio") is None and not _limits_ms(part):
        return Section("Goodput", (Line("not judged: no SLO was given", Tone.FAINT),))
    requests = summary.get("requests") or {}
    missing = [
        f"{count(requests[key])} of them {word}"
        for key, word in (
            ("lost", "lost"),
            ("unsent", "never sent"),
            ("stuck", "stuck from before the window"),
        )
        if requests.get(key)
    ]
    text = sentence(
        [
            sentence(
                [f"{percent(part.get('ratio'))} of {plural(part.get('judged'), 'request')}", *missing], ", "
            ),
            f"{number(part.get('requests_per_s'))} requests/s",
            f"{number(part.get('output_tokens_per_s'))} output tokens/s",
        ]
    )
    columns = (Column("Limit", left=True), Column("held by"), Column("failed first"))
    return Section(
        "Goodput",
        (Line(text),),
        Table(columns, tuple(_limit_rows(part))),
        (*_not_judged(part), *_smoothness(part)),
    )


def _not_judged(part: Part) -> Iterator[Line]:
    for metric, requests in (part.get("not_judged") or {}).items():
        if requests:
            yield Line(
                f"{count(requests)} answers cannot be judged by {metric}: all their tokens came at one time",
                Tone.WARN,
            )


def _smoothness(part: Part) -> Iterator[Line]:
    """How many tokens came when a reader wanted them: on average, and in the jerkiest requests."""
    shares = part.get("on_time") or {}
    if part.get("on_time_ratio") is None:
        return
    low = [f"{mark(shares, key)}{percent(shares.get(key))} {key}" for key in ("p50", "p5", "p1")]
    mean = f"{percent(part['on_time_ratio'])} of tokens came on time (mean of the requests)"
    yield Line(sentence([mean, *low]), Tone.FAINT)
    yield from meaning(*low)


#: What a request failed by beside a limit.
_OTHER_CAUSES = {
    OUTCOME: "(failed)",
    ABANDONED: "(the user left, after a limit)",
    LOST: "(lost)",
    UNSENT: "(never sent)",
    STUCK: "(stuck from before the window)",
}


def _limits_ms(part: Part) -> dict[str, tuple[float, float]]:
    """Metric -> the tightest and the widest limit that a class has."""
    slos = (part.get("slo_by_class") or {}).values() or [part.get("slo") or {}]
    found: dict[str, list[float]] = {}
    for slo in slos:
        for metric, limit_ms in slo.items():
            found.setdefault(metric, []).append(limit_ms)
    return {metric: (min(limits), max(limits)) for metric, limits in found.items()}


def _limit_rows(part: Part) -> Iterator[Row]:
    held, first = part.get("attainment") or {}, part.get("first_failed") or {}
    for metric, (least_ms, most_ms) in _limits_ms(part).items():
        limit = f"{metric} ≤ {most_ms:,g} ms"
        if least_ms != most_ms:
            limit = f"{metric} ≤ {least_ms:,g} … {most_ms:,g} ms by class"
        yield Row((clean(limit), percent(held.get(metric)), count(first.get(metric))))
    for cause, label in _OTHER_CAUSES.items():
        if first.get(cause):
            yield Row((label, "", count(first[cause])))
