"""The first part of a report: may the numbers be trusted, did the run hold, and how much was good."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.metrics.gates import GateError, Kind, parse_gates
from llm_locust.metrics.goodput import OUTCOME
from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent, plural, sentence

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
            f"CPU {number(part.get('cpu_percent_max'))} %",
            f"coalesced {percent(part.get('coalesced_ratio'))}",
        ]
    )
    if verdict == "ok":
        return Section("Client", (Line(f"ok: {evidence}", Tone.GOOD), *map(Line, reasons)))
    tone = _VERDICT_TONES.get(verdict, Tone.WARN)
    headline = Line(sentence([verdict.upper(), _VERDICT_MEANINGS.get(verdict, "")], ": "), tone)
    return Section("Client", (headline, *map(Line, reasons), Line(evidence, Tone.FAINT)), alarm=True)


def completeness(summary: Part) -> Section:
    """Whether every worker was there to the end, and everything it announced is in the run."""
    part = summary.get("completeness") or {}
    expected, seen = part.get("workers_expected"), part.get("workers_seen")
    announced, received = part.get("records_announced"), part.get("records_received")
    if part.get("complete"):
        text = f"complete: all {count(received)} records of {plural(seen, 'worker')}"
        return Section("Records", (Line(text, Tone.GOOD),))
    facts = [
        Line(f"{count(received)} of {count(announced)} announced records came"),
        Line(f"{count(seen)} of {plural(expected, 'worker')} seen, {count(part.get('workers_lost'))} lost"),
        *(Line(text, verbatim=True) for text in _by_worker(part)),
    ]
    headline = Line("INCOMPLETE: the numbers below are of a part of the run", Tone.BAD)
    return Section("Records", (headline, *facts), alarm=True)


def _by_worker(part: Part) -> Iterator[str]:
    missing = part.get("missing") or {}
    lost = set(part.get("lost") or ())
    for worker in sorted(lost | set(missing)):
        gone = "lost" if worker in lost else ""
        absent = f"{plural(missing[worker], 'record')} missing" if worker in missing else ""
        yield f"worker {clean(worker)}: {sentence([gone, absent], ', ')}"


def gates(summary: Part) -> Section | None:
    """Each gate with the value it was held against, broken ones first; None where none was given."""
    judged = summary.get("gates") or ()
    if not judged:
        return None
    broken = sum(not gate.get("passed") for gate in judged)
    headline = (
        Line(f"{count(broken)} of {plural(len(judged), 'gate')} broke", Tone.BAD)
        if broken
        else Line(f"{plural(len(judged), 'gate')} passed", Tone.GOOD)
    )
    columns = (
        Column("Result", left=True),
        Column("Gate", left=True, verbatim=True),
        Column("Measured"),
        Column("", left=True, wraps=True),
    )
    rows = tuple(_gate_row(gate) for gate in sorted(judged, key=lambda gate: bool(gate.get("passed"))))
    return Section("Gates", (headline,), Table(columns, rows).without_empty())


def _gate_row(gate: Part) -> Row:
    passed, value = bool(gate.get("passed")), gate.get("value")
    text = clean(gate.get("text") or "")
    why = clean(gate.get("reason") or "") if value is None else ""
    return Row(
        ("pass" if passed else "FAIL", text, _gate_value(text, value), why),
        Tone.GOOD if passed else Tone.BAD,
    )


def _gate_value(text: str, value: float | None) -> str:
    """The value in the unit of the gate's metric, which its text names."""
    if value is None:
        return UNDEFINED
    try:
        kinds = {gate.kind for gate in parse_gates(text)}
    except GateError:
        return number(value)
    if Kind.SHARE in kinds:
        return percent(value)
    return f"{number(value)} ms" if Kind.LATENCY in kinds else number(value)


def goodput(summary: Part) -> Section:
    """How much of what was asked for came within the SLO, and what broke it first."""
    part = summary.get("goodput") or {}
    limits = part.get("slo") or {}
    if not limits:
        return Section("Goodput", (Line("not judged: no SLO was given", Tone.FAINT),))
    population = (summary.get("requests") or {}).get("population")
    text = sentence(
        [
            f"{percent(part.get('ratio'))} of {plural(population, 'request')}",
            f"{number(part.get('requests_per_s'))} requests/s",
            f"{number(part.get('output_tokens_per_s'))} output tokens/s",
        ]
    )
    on_time = part.get("on_time_ratio")
    notes = () if on_time is None else (Line(f"{percent(on_time)} of tokens came on time", Tone.FAINT),)
    columns = (Column("Limit", left=True), Column("held by"), Column("failed first"))
    return Section("Goodput", (Line(text),), Table(columns, tuple(_limit_rows(part))), notes)


def _limit_rows(part: Part) -> Iterator[Row]:
    held, first = part.get("attainment") or {}, part.get("first_failed") or {}
    for metric, limit_ms in (part.get("slo") or {}).items():
        limit = f"{metric} ≤ {limit_ms:,g} ms"
        yield Row((clean(limit), percent(held.get(metric)), count(first.get(metric))))
    if first.get(OUTCOME):
        yield Row(("(did not end ok)", "", count(first[OUTCOME])))
