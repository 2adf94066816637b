"""Which sections a report has below its verdict, and in which order: gates, numbers, what they rest on."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from msgspec import UNSET, UnsetType

from llm_locust.metrics.summary_types.run import AnalysisFacts, ClientFacts, LeftOut
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.sections import course, groups, measures, server, sessions, verdicts
from llm_locust.report.sections.calibration import calibration_text
from llm_locust.report.sections.completeness import completeness
from llm_locust.report.sections.cost import cost
from llm_locust.report.sections.curves.curve import curve
from llm_locust.report.sections.curves.prefix import prefix_hits
from llm_locust.report.sections.curves.repeats import repeats
from llm_locust.report.sections.curves.search import search
from llm_locust.report.sections.curves.spike import spikes
from llm_locust.report.sections.fairness import fairness
from llm_locust.report.sections.interventions import interventions
from llm_locust.report.sections.nodes import nodes
from llm_locust.report.sections.parts.agents import agents, agents_by_load
from llm_locust.report.sections.parts.arms import arms
from llm_locust.report.sections.parts.autoscaling import autoscaling
from llm_locust.report.sections.parts.images import images
from llm_locust.report.sections.parts.inputs import inputs
from llm_locust.report.sections.parts.pools import pools
from llm_locust.report.sections.quality import few_doubtful, quality
from llm_locust.report.sections.roofline import bottleneck, roofline
from llm_locust.report.text import clean, count, moment, number, percent, plural, seconds, sentence
from llm_locust.report.uncertainty import explained_once

Made = Section | Iterable[Section] | None


def heading(summary: Summary) -> Section:
    """What ran, against what, when, and which part of it is judged."""
    run, window = summary.run, summary.window
    facts = sentence(
        [
            moment(run.started),
            "open loop" if summary.is_open_loop else "",
            f"seed {run.seed}" if run.seed is not None else "",
        ]
    )
    lines = (
        Line(sentence([clean(run.model or ""), _where(summary)], " at "), verbatim=True),
        Line(facts, Tone.FAINT),
        Line(f"window {seconds(window.seconds)} · {clean(window.rule)}", Tone.FAINT),
        *_left_out(window.left_out),
        Line(f"ended: {clean(run.stop_reason)}" if run.stop_reason else "", Tone.WARN),
        *_skipped(run.skipped_lines),
        Line(_INSECURE if run.insecure is True else "", Tone.WARN),
        *_calibrated(summary.client),
        *_nothing(summary),
        *_asked(summary.analysis),
    )
    return Section(clean(run.name or run.id), tuple(line for line in lines if line.text))


_INSECURE = "--insecure: no certificate was checked, the answers may be anybody's"


def _calibrated(client: ClientFacts) -> Iterator[Line]:
    if (found := client.calibration) is not None:
        measured = bool(found.answers and not found.astray)
        yield Line(f"{'calibrated: ' if measured else ''}{calibration_text(found)}")


def _skipped(lines: dict[str, int] | UnsetType) -> Iterator[Line]:
    """Files of the load of which lines were left out."""
    for file, n in ({} if lines is UNSET else lines).items():
        yield Line(
            f"{plural(n, 'line')} of {clean(file)} could not be read, skipped by --skip-bad-lines",
            Tone.WARN,
            verbatim=True,
        )


def _nothing(summary: Summary) -> Iterator[Line]:
    """That no figure below is of a request."""
    if summary.analysis is None and not summary.requests.scheduled:
        yield Line("NOTHING MEASURED: no request is in the window", Tone.BAD)


def _left_out(part: LeftOut | None) -> Iterator[Line]:
    """What a steady window does not have, and what that changes."""
    if part is None or not part.requests:
        return
    good = f"goodput {percent(part.goodput_ratio)} there, {percent(part.goodput_ratio_run)} in the whole run"
    facts = [
        f"left out {seconds(part.seconds)} with {count(part.requests)} requests",
        f"p99 TTFT {number(part.ttft_p99_ms)} ms there, {number(part.ttft_p99_ms_run)} ms in the whole run",
        "" if part.goodput_ratio is None else good,
    ]
    yield Line(sentence(facts), Tone.WARN)


def _where(summary: Summary) -> str:
    """The host, or how many targets or arms take its place."""
    if len(summary.arms or ()) > 1:
        return f"{len(summary.arms or ())} arms"
    targets = summary.interventions.targets
    if len(targets) > 1:
        return f"{len(targets)} targets, {clean(targets[0])} and others"
    return clean(targets[0] if targets else summary.run.host or "")


def _asked(analysis: AnalysisFacts | None) -> Iterator[Line]:
    """What was left out of the run, or put together, before anything was computed."""
    if analysis is None:
        return
    runs = analysis.runs
    if len(runs) > 1:
        yield Line(f"{len(runs)} runs as one population: {clean(', '.join(runs))}", Tone.WARN, verbatim=True)
    if analysis.where:
        share = f"{count(analysis.requests)} of {count(analysis.of)} requests"
        yield Line(f"only {share}: {clean(analysis.where)}", Tone.WARN, verbatim=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """A section of every report: its key, the chapter of the page that it stands in, and what makes it.

    ``of_one_load`` ones are left out in a sweep, whose figures over all stages are of no load, and in an
    interleaved comparison, where those over all arms are of no server.
    """

    key: str
    chapter: str
    made: Callable[[Summary], Made]
    of_one_load: bool = False


#: Every section in the order of the console and of Markdown. One without a chapter is on the page's first
#: screen, and in the chapter of the verdict only where it is an alarm.
CONTENTS = (
    Entry("doubtful", "", few_doubtful),
    Entry("parts", "", course.parts),
    Entry("since_start", "", course.since_start),
    Entry("gates", "verdict", verdicts.gates),
    Entry("requests", "", measures.requests),
    Entry("search", "stages", search),
    Entry("stages", "stages", groups.stages),
    Entry("prefix_cache", "stages", prefix_hits),
    Entry("repeats", "stages", repeats),
    Entry("arms", "arms", arms),
    Entry("curve", "stages", curve),
    Entry("spike", "stages", spikes),
    Entry("goodput", "verdict", verdicts.goodput, of_one_load=True),
    Entry("reliability", "verdict", course.reliability, of_one_load=True),
    Entry("warmup", "verdict", course.warmup, of_one_load=True),
    Entry("latency", "latency", measures.latency, of_one_load=True),
    Entry("intervals", "latency", measures.intervals, of_one_load=True),
    Entry("bottleneck", "latency", bottleneck, of_one_load=True),
    Entry("throughput", "load", measures.throughput, of_one_load=True),
    Entry("inputs", "load", inputs, of_one_load=True),
    Entry("images", "load", images, of_one_load=True),
    Entry("tokens", "load", measures.tokens),
    Entry("cost", "cost", cost, of_one_load=True),
    Entry("roofline", "cost", roofline, of_one_load=True),
    Entry("drift", "verdict", course.drift, of_one_load=True),
    Entry("quality", "quality", quality),
    Entry("sessions", "sessions", sessions.sessions),
    Entry("agents", "sessions", agents, of_one_load=True),
    Entry("agents_by_load", "sessions", agents_by_load),
    Entry("by_turn", "sessions", sessions.by_turn, of_one_load=True),
    Entry("errors", "", groups.errors),
    Entry("by_name", "groups", groups.by_name, of_one_load=True),
    Entry("by_class", "groups", groups.by_class, of_one_load=True),
    Entry("other_requests", "groups", groups.other_requests),
    Entry("interventions", "groups", interventions),
    Entry("replicas", "groups", groups.replicas, of_one_load=True),
    Entry("autoscaling", "groups", autoscaling),
    Entry("fairness", "groups", fairness, of_one_load=True),
    Entry("pools", "servers", pools),
    Entry("servers", "servers", server.servers),
    Entry("energy", "cost", server.energy, of_one_load=True),
    Entry("breakdowns", "groups", groups.breakdowns, of_one_load=True),
    Entry("left_open", "load", measures.left_open),
    Entry("client", "", verdicts.client),
    Entry("records", "", completeness),
    Entry("nodes", "groups", nodes),
)


def sections(summary: Summary) -> list[Section]:
    """Every section that has something to say. What alarms has a box of its own, see
    :func:`~llm_locust.report.sections.findings.boxes`, and is not among them."""
    shown = [entry for entry in CONTENTS if not (entry.of_one_load and summary.is_of_parts)]
    made = [section for entry in shown for section in _made(entry, summary)]
    return explained_once([section for section in made if not section.alarm])


def _made(entry: Entry, summary: Summary) -> Iterator[Section]:
    made = entry.made(summary)
    for section in (made,) if isinstance(made, Section) else made or ():
        yield replace(section, key=section.key or entry.key, chapter=entry.chapter)
