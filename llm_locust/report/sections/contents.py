"""Which sections a report has, and in which order: trust first, then the verdict, then numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llm_locust.metrics.summary_types.summary import Summary, typed
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
Made = Section | Iterable[Section] | None


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


@dataclass(frozen=True, slots=True)
class Entry:
    """A section of every report: its key, the chapter of the page that it stands in, and what makes it."""

    key: str
    chapter: str
    made: Callable[[Part, Summary], Made]


def _keys(make: Callable[[Part], Made]) -> Callable[[Part, Summary], Made]:
    """Of a function that reads the keys of ``summary.json``."""
    return lambda summary, _: make(summary)


def _told(make: Callable[[Summary], Made]) -> Callable[[Part, Summary], Made]:
    """Of a function that reads the typed summary."""
    return lambda _, told: make(told)


#: Every section in the order of the console and of Markdown. One without a chapter is on the page's first
#: screen, and in the chapter of the verdict only where it is an alarm.
CONTENTS = (
    Entry("client", "", _keys(verdicts.client)),
    Entry("standstill", "", _told(course.standstill)),
    Entry("stuck", "", _told(course.stuck)),
    Entry("records", "", _told(completeness)),
    Entry("requests", "", _keys(measures.requests)),
    Entry("warmup", "verdict", _told(course.warmup)),
    Entry("reliability", "verdict", _told(course.reliability)),
    Entry("gates", "verdict", _keys(verdicts.gates)),
    Entry("goodput", "verdict", _keys(verdicts.goodput)),
    Entry("latency", "latency", _keys(measures.latency)),
    Entry("intervals", "latency", _keys(measures.intervals)),
    Entry("throughput", "load", _keys(measures.throughput)),
    Entry("tokens", "load", _keys(measures.tokens)),
    Entry("cost", "cost", _told(cost)),
    Entry("roofline", "cost", _told(roofline)),
    Entry("drift", "verdict", _told(course.drift)),
    Entry("quality", "quality", _told(quality)),
    Entry("sessions", "sessions", _keys(sessions.sessions)),
    Entry("by_turn", "sessions", _keys(sessions.by_turn)),
    Entry("errors", "", _keys(groups.errors)),
    Entry("by_name", "groups", _keys(partial(groups.by_label, key="by_name", head="Name"))),
    Entry("by_class", "groups", _keys(partial(groups.by_label, key="by_class", head="Class"))),
    Entry("interventions", "groups", _told(interventions)),
    Entry("replicas", "groups", _keys(groups.replicas)),
    Entry("fairness", "groups", _told(fairness)),
    Entry("servers", "servers", _told(server.servers)),
    Entry("energy", "cost", _told(server.energy)),
    Entry("breakdowns", "groups", _keys(groups.breakdowns)),
    Entry("nodes", "groups", _told(nodes)),
)


def sections(summary: Part) -> list[Section]:
    """Every section that has something to say, alarms as the others at their place."""
    told = typed(summary)
    found = [section for entry in CONTENTS for section in _made(entry, summary, told)]
    return explained_once(found)


def _made(entry: Entry, summary: Part, told: Summary) -> Iterator[Section]:
    made = entry.made(summary, told)
    for section in (made,) if isinstance(made, Section) else made or ():
        yield replace(section, key=section.key or entry.key, chapter=entry.chapter)
