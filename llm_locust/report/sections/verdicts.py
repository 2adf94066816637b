"""The first part of a report: may the numbers be trusted, did the run hold, and how much was good."""

from collections.abc import Iterator, Mapping

from llm_locust.core.record import Doubt
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import clean, count, mark, meaning, meaning_in, number, percent, plural, sentence
from llm_locust.metrics.gates import Gate, MetricKind, parse_gates
from llm_locust.metrics.requests.goodput import ABANDONED, LOST, OUTCOME, STUCK, UNSENT
from llm_locust.metrics.sections.validity import LOAD_LATE, RUN_QUEUE
from llm_locust.metrics.summary_types.course import GateOutcome
from llm_locust.metrics.summary_types.requests import Goodput, RequestCounts, RequestPart
from llm_locust.metrics.summary_types.run import ClientFacts, LittlesLaw
from llm_locust.metrics.summary_types.stages import StageFigures

_DOCTOR = "llm-locust doctor, run where the workers run, shows what limits them"


def client(summary: Summary) -> Section:
    """The client's verdict, its reasons and what it was judged by."""
    part = summary.client
    reasons = [Line(clean(reason)) for reason in part.reasons]
    evidence = sentence(
        [
            f"{part.timestamps} stamps" if part.timestamps else "",
            f"lag p99 {number(part.lag_ms_p99)} ms" if part.lag_ms_p99 is not None else "",
            f"hub lag p99 {number(part.hub_lag_ms_p99)} ms" if _rests_on_the_hub(part) else "",
            f"CPU {number(part.cpu_percent_max)} %",
            "read by Python" if part.reader == "python" else "",
            _starved(part),
        ]
    )
    law = tuple(_littles_law(summary.littles_law))
    if part.verdict == "ok":
        return Section("Client", (Line(f"ok: {evidence}", Tone.GOOD), *reasons, *law))
    if part.verdict == "suspect":
        # It spoiled no figure as far as is known: a line among the last, no box.
        reasons[0] = Line(f"suspect: {reasons[0].text}", Tone.WARN)
        return Section("Client", (*reasons, Line(_DOCTOR, Tone.FAINT), Line(evidence, Tone.FAINT), *law))
    # What makes the kernel's times wrong comes before what makes the load late.
    is_of_load = part.timestamps == "kernel" and part.reasons[0].startswith(LOAD_LATE)
    headline = Line(f"INVALID: {_OTHER_LOAD if is_of_load else _OTHER_TIMES}", Tone.BAD)
    lines = (headline, *reasons, Line(_DOCTOR), Line(evidence, Tone.FAINT), *law)
    return Section("Client", lines, alarm=True)


_OTHER_TIMES = "these numbers show the client, not the server"
_OTHER_LOAD = "the latencies are the server's, under another load than was asked for"


def _starved(part: ClientFacts) -> str:
    """That other programs had the cores, where it is no cause of anything."""
    waited = part.run_queue_percent_max
    if part.cause is not None or not RUN_QUEUE.severity(waited):
        return ""
    return f"starved: waited for a core {number(waited)} % of the time, which moved no figure"


#: Share of the requests in flight from which Little's law without the window's edges looks broken.
_EDGES_SHOWN = 0.02


def _littles_law(law: LittlesLaw) -> Iterator[Line]:
    """Requests in flight, by their number and by their rate and time; and how near the workers' count is."""
    rate, time_s = law.sent_per_s, law.time_s
    if rate is None or time_s is None:
        return
    crossing = law.edges or 0.0
    edges = f" {'+' if crossing > 0 else '−'} {number(abs(crossing))} at the window's edges"
    sides = (
        f"Little's law {'holds' if law.holds else 'FAILS'}: "
        f"{number(law.in_flight_mean)} in flight, "
        f"{number(rate)}/s × {number(time_s)} s = {number(rate * time_s)}"
        f"{edges if (law.edges_share or 0.0) > _EDGES_SHOWN else ''}"
    )
    off = law.workers_difference
    counted = "" if off is None else f"the records have {percent(1 + off)} of what the workers counted"
    if law.holds and off is not None and off < -_EDGES_SHOWN:
        counted += ", who count a request until they notice its end"
    yield Line(sentence([sides, counted]), Tone.FAINT if law.holds else Tone.WARN)


def _rests_on_the_hub(part: ClientFacts) -> bool:
    """Whether the event loop's lag is in the latencies, and known."""
    return part.timestamps in ("program", "mixed") and part.hub_lag_ms_p99 is not None


def gates(summary: Summary) -> Section | None:
    """Each gate with the value it was held against, broken ones first; None where none was given."""
    judged = summary.gates
    if not judged:
        return None
    untold = sum(gate.undecided for gate in judged)
    broken = sum(not gate.passed for gate in judged) - untold
    if not broken and not untold:
        headline = Line(f"{plural(len(judged), 'gate')} passed", Tone.GOOD)
    else:
        found = [f"{count(broken)} of {plural(len(judged), 'gate')} failed"] if broken else []
        found += [f"{count(untold)} of {plural(len(judged), 'gate')} cannot tell"] if untold else []
        headline = Line(sentence(found), Tone.BAD if broken else Tone.WARN)
    columns = (
        Column("Result", left=True),
        Column("Gate", left=True, verbatim=True),
        Column("Measured"),
        Column("", left=True, wraps=True),
    )
    in_order = sorted(judged, key=lambda gate: (gate.passed, gate.undecided))
    table = Table(columns, tuple(_gate_row(gate, summary) for gate in in_order)).without_empty()
    return Section("Gates", (headline,), table, tuple(meaning_in(table)))


def _gate_row(gate: GateOutcome, summary: Summary) -> TableRow:
    reason = clean(gate.reason or "")
    # Where the figure itself is over the limit, the columns before have said so.
    untold = gate.value is None or gate.undecided or "counted" in reason or "users' time" in reason
    note = clean(gate.note or "") if "failed" not in reason else ""
    why = sentence([reason if untold else "", note])
    word, tone = ("pass", Tone.GOOD) if gate.passed else ("FAIL", Tone.BAD)
    if gate.undecided:
        word, tone = "UNKNOWN", Tone.WARN
    return TableRow((word, clean(gate.shown), _gate_measured(gate, summary), why), tone)


def _gate_measured(outcome: GateOutcome, summary: Summary) -> str:
    """The value in the unit of the gate's metric, which its text names, with the mark of its percentile."""
    value, bound = outcome.value, outcome.at_least
    if value is None:
        return UNDEFINED if bound is None else f"> {number(bound)} ms"
    (gate,) = parse_gates(outcome.text)
    if gate.kind is MetricKind.SHARE:
        return percent(value)
    return (
        f"{_mark_of(gate, _judged(outcome, summary))}{number(value)} ms"
        if gate.kind is MetricKind.LATENCY
        else number(value)
    )


def _judged(outcome: GateOutcome, summary: Summary) -> Summary | StageFigures:
    """What a gate was judged by: the whole run, or one of its arms."""
    named = (arm.figures for arm in summary.arms or () if arm.name == outcome.arm)
    return next(named, summary)


def _mark_of(gate: Gate, summary: Summary | StageFigures) -> str:
    tables = summary.latency_ms_adjusted if gate.is_adjusted else summary.latency_ms
    return "" if gate.latency is None or gate.is_certified else mark(tables[gate.latency], gate.statistic)


def goodput(summary: Summary) -> Section:
    """How much of what was asked for came within the SLO, and what broke it first."""
    part, requests = summary.goodput, summary.requests
    if part.ratio is None and not _limits_ms(part):
        return Section("Goodput", (Line("not judged: no SLO was given", Tone.FAINT),))
    missing = [
        f"{count(n)} of them {word}"
        for n, word in (
            (requests.lost, "lost"),
            (requests.unsent, "never sent"),
            (requests.stuck, "stuck from before the window"),
        )
        if n
    ]
    text = sentence(
        [
            sentence([f"{percent(part.ratio)} of {plural(part.judged, 'request')}", *missing], ", "),
            by_time(summary),
            f"{number(part.requests_per_s)} requests/s",
            "" if summary.is_without_output else f"{number(part.output_tokens_per_s)} output tokens/s",
        ]
    )
    columns = (Column("Limit", left=True), Column("held by"), Column("failed first"))
    return Section(
        "Goodput",
        (Line(text), *_without_first_token(summary)),
        Table(columns, tuple(_limit_rows(part))),
        (*_not_counted(summary), *_not_judged(part), *_smoothness(part)),
    )


def by_time(summary: Summary) -> str:
    """The share of the users' time, where it is another one than that of the requests."""
    ratio, times = summary.goodput.ratio, summary.user_time
    if times is None or times.good_share is None or ratio is None:
        return ""
    is_alike = abs(times.good_share - ratio) < _ALIKE
    return "" if is_alike else f"{percent(times.good_share)} of the users' time"


#: Shares that differ by less are one figure.
_ALIKE = 0.01


def unplaced(summary: Summary, counts: RequestCounts) -> str:
    """How many requests of the run were never sent or lost, and may belong to those of ``counts``."""
    run = summary.completeness
    unsent = f"{plural(run.unsent, 'request')} of the run never sent" if counts.unsent is None else ""
    lost = f"{plural(run.records_lost, 'request')} of the run lost" if counts.lost is None else ""
    return sentence([unsent, lost], ", ")


def _not_counted(summary: Summary) -> Iterator[Line]:
    """Of some of the requests: what they may lack."""
    words = unplaced(summary, summary.requests)
    if words:
        yield Line(f"{words}: it is not known whether they belong here, and they are not counted", Tone.WARN)


#: Limits on a first token, and what they are on.
_FIRST_TOKENS = {"ttft": "TTFT", "ttfo": "TTFO"}


def _without_first_token(summary: Summary) -> Iterator[Line]:
    """Which requests cannot hold a limit on the first token, because their answers have none.

    A name whose requests are of several classes is told where each class has the limit.
    """
    parts: Mapping[str, RequestPart | Summary] = summary.by_name or {"": summary}
    for metric, latency in _FIRST_TOKENS.items():
        found = []
        for name, part in parts.items():
            slos = [*part.goodput.slo_by_class.values()] or [part.goodput.slo]
            missing = part.requests.ok - part.latency_ms[metric].known.n
            if missing > 0 and all(metric in slo for slo in slos):
                # Of requests that were given up or timed out some have a first token as well.
                least = "at least " if part.requests.cancelled or part.requests.failed else ""
                found.append(
                    f"{least}{count(missing)} of {plural(part.requests.ok, 'answer')}{_called(name)}"
                )
        if found:
            yield Line(
                f"without {latency}, which breaks its limit: {sentence(found, ', ')} (not streamed, no "
                "completions, or without such a token); a class of their own may have a limit on e2el "
                "instead",
                Tone.WARN,
            )


def _called(name: str) -> str:
    return f" of {clean(name)}" if name else ""


def _not_judged(part: Goodput) -> Iterator[Line]:
    for metric, requests in part.not_judged.items():
        if requests:
            yield Line(
                f"{plural(requests, 'answer')} cannot be judged by {metric}: all tokens came at once",
                Tone.WARN,
            )


def _smoothness(part: Goodput) -> Iterator[Line]:
    """How many tokens came when a reader wanted them: on average, and in the jerkiest requests."""
    if part.on_time_ratio is None:
        return
    shares = part.on_time
    low = [f"{mark(shares, key)}{percent(shares.figure(key))} {key}" for key in ("p50", "p5", "p1")]
    mean = f"{percent(part.on_time_ratio)} of tokens arrived on time (mean of the requests)"
    yield Line(sentence([mean, *low]), Tone.FAINT)
    yield from meaning(*low)


#: What a request failed by beside a limit.
_OTHER_CAUSES = {
    OUTCOME: "(failed)",
    ABANDONED: "(the user left)",
    Doubt.CONTENT_FILTER: "(content filter)",
    Doubt.NO_ANSWER: "(reasoning, no answer)",
    Doubt.NO_FINISH_REASON: "(no finish reason)",
    LOST: "(lost)",
    UNSENT: "(never sent)",
    STUCK: "(stuck from before the window)",
}


def _limits_ms(part: Goodput) -> dict[str, tuple[float, float]]:
    """Metric -> the tightest and the widest limit that a class has."""
    found: dict[str, list[float]] = {}
    for slo in part.slo_by_class.values() or [part.slo]:
        for metric, limit_ms in slo.items():
            found.setdefault(metric, []).append(limit_ms)
    return {metric: (min(limits), max(limits)) for metric, limits in found.items()}


def limits(part: Goodput) -> dict[str, str]:
    """Metric -> its limit as text, such as "ttft ≤ 500 ms"."""
    found = {}
    for metric, (least_ms, most_ms) in _limits_ms(part).items():
        limit = f"{metric} ≤ {most_ms:,g} ms"
        if least_ms != most_ms:
            limit = f"{metric} ≤ {least_ms:,g} … {most_ms:,g} ms by class"
        found[metric] = clean(limit)
    return found


def _limit_rows(part: Goodput) -> Iterator[TableRow]:
    held, first = part.attainment, part.first_failed
    for metric, limit in limits(part).items():
        yield TableRow((limit, percent(held.get(metric)), count(first.get(metric))))
    for cause, label in _OTHER_CAUSES.items():
        if first.get(cause):
            yield TableRow((label, "", count(first[cause])))
