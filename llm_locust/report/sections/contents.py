"""Which sections a report has, and in which order: trust first, then the verdict, then numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.sections import course, groups, measures, server, sessions, verdicts
from llm_locust.report.sections.completeness import completeness
from llm_locust.report.sections.cost import cost
from llm_locust.report.sections.fairness import fairness
from llm_locust.report.sections.interventions import interventions
from llm_locust.report.sections.nodes import nodes
from llm_locust.report.sections.quality import quality
from llm_locust.report.sections.roofline import roofline
from llm_locust.report.text import clean, count, moment, number, percent, seconds, sentence
from llm_locust.report.uncertainty import explained_once

Part = Mapping[str, Any]


def heading(summary: Part) -> Section:
    """What ran, against what, when, and which part of it is judged."""
    run, window = summary.get("run") or {}, summary.get("window") or {}
    target = sentence([clean(run.get("model") or ""), _where(summary)], " at ")
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
        *_left_out(window.get("left_out") or {}),
        Line(stopped, Tone.WARN),
        *_asked(summary.get("analysis") or {}),
    )
    title = clean(run.get("name") or run.get("id") or "run")
    return Section(title, tuple(line for line in lines if line.text))


def _left_out(part: Part) -> Iterator[Line]:
    """What a steady window does not have, and what that changes."""
    if not part.get("requests"):
        return
    good, of_all = part.get("goodput_ratio"), part.get("goodput_ratio_run")
    facts = [
        f"left out {seconds(part.get('seconds'))} with {count(part.get('requests'))} requests",
        f"p99 TTFT {number(part.get('ttft_p99_ms'))} ms there, "
        f"{number(part.get('ttft_p99_ms_run'))} ms of the whole run",
        "" if good is None else f"goodput {percent(good)} there, {percent(of_all)} of the whole run",
    ]
    yield Line(sentence(facts), Tone.WARN)


def _where(summary: Part) -> str:
    """The host, or how many targets take its place."""
    targets: list[str] = (summary.get("interventions") or {}).get("targets") or []
    if len(targets) > 1:
        return f"{len(targets)} targets, {clean(targets[0])} and others"
    return clean(targets[0] if targets else (summary.get("run") or {}).get("host") or "")


def _asked(analysis: Part) -> Iterator[Line]:
    """What was left out of the run, or put together, before anything was computed."""
    runs = analysis.get("runs") or ()
    if len(runs) > 1:
        yield Line(f"{len(runs)} runs as one population: {clean(', '.join(runs))}", Tone.WARN, verbatim=True)
    if analysis.get("where"):
        share = f"{count(analysis.get('requests'))} of {count(analysis.get('of'))} requests"
        yield Line(f"only {share}: {clean(analysis['where'])}", Tone.WARN, verbatim=True)


def sections(summary: Part) -> list[Section]:
    """Every section that has something to say, alarms as the others at their place."""
    found = [
        verdicts.client(summary),
        course.standstill(summary),
        course.stuck(summary),
        completeness(summary),
        measures.requests(summary),
        course.warmup(summary),
        course.reliability(summary),
        verdicts.gates(summary),
        verdicts.goodput(summary),
        measures.latency(summary),
        measures.intervals(summary),
        measures.throughput(summary),
        measures.tokens(summary),
        cost(summary),
        roofline(summary),
        course.drift(summary),
        quality(summary),
        sessions.sessions(summary),
        sessions.by_turn(summary),
        groups.errors(summary),
        groups.by_label(summary, "by_name", "Name"),
        groups.by_label(summary, "by_class", "Class"),
        interventions(summary),
        groups.replicas(summary),
        fairness(summary),
        server.servers(summary),
        server.energy(summary),
        *groups.breakdowns(summary),
        nodes(summary),
    ]
    return explained_once([section for section in found if section is not None])
