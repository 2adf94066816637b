"""Which sections a report has, and in which order: trust first, then the verdict, then numbers."""

from collections.abc import Mapping
from typing import Any

from llm_locust.report import groups, measures, sessions, verdicts
from llm_locust.report.completeness import completeness
from llm_locust.report.nodes import nodes
from llm_locust.report.quality import quality
from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, moment, seconds, sentence

Part = Mapping[str, Any]


def heading(summary: Part) -> Section:
    """What ran, against what, when, and which part of it is judged."""
    run, window = summary.get("run") or {}, summary.get("window") or {}
    target = sentence([clean(run.get("model") or ""), clean(run.get("host") or "")], " at ")
    facts = sentence(
        [
            moment(run.get("started")),
            "open loop" if measures.is_open_loop(summary) else "",
            f"seed {clean(run['seed'])}" if run.get("seed") is not None else "",
        ]
    )
    judged = f"window {seconds(window.get('seconds'))} · {clean(window.get('rule') or '')}"
    stopped = f"ended by {clean(run['stop_reason'])}" if run.get("stop_reason") else ""
    lines = (
        Line(target, verbatim=True),
        Line(facts, Tone.FAINT),
        Line(judged, Tone.FAINT),
        Line(stopped, Tone.WARN),
    )
    title = clean(run.get("name") or run.get("id") or "run")
    return Section(title, tuple(line for line in lines if line.text))


def sections(summary: Part) -> list[Section]:
    """Every section that has something to say, alarms as the others at their place."""
    found = [
        verdicts.client(summary),
        completeness(summary),
        measures.requests(summary),
        verdicts.gates(summary),
        verdicts.goodput(summary),
        measures.latency(summary),
        measures.throughput(summary),
        measures.tokens(summary),
        quality(summary),
        sessions.sessions(summary),
        sessions.by_turn(summary),
        groups.errors(summary),
        groups.by_label(summary, "by_name", "Name"),
        groups.by_label(summary, "by_class", "Class"),
        groups.replicas(summary),
        nodes(summary),
    ]
    return [section for section in found if section is not None]
