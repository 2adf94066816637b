"""The answer of a report: its result, the cause and the exit code, in one line.

Console, Markdown, HTML and JUnit all take it from :func:`verdict`, so that none says another thing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from llm_locust.core import EXIT_GATE, EXIT_INCOMPLETE, EXIT_INVALID
from llm_locust.core.texts import quantity
from llm_locust.figures import client, goodput, latency, reliability, tokens
from llm_locust.figures.completeness import first_loss, show as completeness
from llm_locust.figures.curve import knee_of
from llm_locust.figures.fairness import BOXED
from llm_locust.figures.gate_rules import GateOutcome
from llm_locust.figures.quality import doubtful
from llm_locust.figures.reliability import error_words
from llm_locust.figures.search import SearchAnswer
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    Line,
    Section,
    Tone,
    brief,
    clean,
    count,
    load,
    moment,
    number,
    percent,
    plural,
    seconds,
    sentence,
    short,
)
from llm_locust.figures.verdict import RunVerdict, hung, hung_requests, nothing_measured, stood_still
from llm_locust.metrics.catalogue import LATENCY
from llm_locust.metrics.limits import OPERATORS, Gate, MetricKind, parse_gates
from llm_locust.metrics.requests.judgement import ABANDONED, LOST, OUTCOME, STUCK, UNSENT

# --- What went wrong, or may have: one finding a cause, the worst first.
#
# Console, Markdown, HTML and JUnit take causes and boxes from here, so that each cause is told once and in
# the same words. A suspicion that changed no figure is no finding: it is a remark (``contents.py``).


#: Before what a person can do.
_DO = "what to do: "

_OF_SLOW = f"{_DO}compare its machine, version and settings with the others', and what else runs there"
_OF_OUT = f"{_DO}look at its log, and at the balancer's health checks, at that time"

#: Findings on replicas in one box.
_MOST_REPLICAS = 5

#: Characters of an exception's text; summary.json has more.
_RAISED_LENGTH = 200

#: Of an error's text in a cause.
_ERROR_LENGTH = 100

#: What a failure is, before its HTTP status.
_OUTCOMES = {
    "http_error": "HTTP",
    "api_error": "the server gave the answer up",
    "connect_error": "no connection",
    "timeout": "too late",
    "truncated": "the answer broke off",
    "invalid": "no valid answer",
    "empty": "an answer without a token",
    "rejected": "the answer was refused by a check",
}

#: What became of requests that broke no limit of their SLO first.
_WITHOUT_ANSWER = {
    ABANDONED: "are of users who left",
    LOST: "were lost",
    UNSENT: "were never sent",
    STUCK: "hung from before the window",
}


_ERRORS, _TIMES = frozenset({"errors"}), frozenset({"times"})
_ALL = _ERRORS | _TIMES


@dataclass(frozen=True, slots=True)
class RunFinding:
    """A cause: ``title`` in two words, ``text`` in a line without a full stop, ``box`` with more of it.

    ``key`` is its name in the program. ``is_of_client``: the client or the harness is at fault, not the
    server. ``box`` is None where a table of the report says the rest. ``explains`` is what it can be the
    cause of: ``errors``, ``times``, or both.
    """

    key: str
    title: str
    text: str
    tone: Tone
    box: Section | None = None
    is_of_client: bool = False
    explains: frozenset[str] = _ALL


def findings(summary: Summary) -> tuple[RunFinding, ...]:
    """The causes of what a run shows, the worst first: what spoils the figures, then what the server did."""
    # Of a server that never answered, how its requests failed says more: the client may have left.
    is_long_still = bool(summary.requests.ok and stood_still(summary))
    failed = are_mostly_failures(summary)
    finders: tuple[Callable[[Summary], Iterator[RunFinding]], ...] = (
        *(_raised, _incomplete, _invalid_client),
        # A standstill that fails the run comes before what made some requests slow, others after it.
        *((_still,) if is_long_still else ()),
        *(_hung, *((_failures,) if failed else ()), _doubtful, _replicas, _unread, _buffered, _counts),
        *(() if is_long_still else (_still,)),
        *(_limits, *(() if failed else (_failures,)), _other_requests),
    )
    return tuple(found for find in finders for found in find(summary))


def boxes(found: Sequence[RunFinding]) -> list[Section]:
    """The findings that stand in a box, in their order."""
    return [replace(each.box, key=each.key, alarm=True) for each in found if each.box is not None]


def _raised(summary: Summary) -> Iterator[RunFinding]:
    """Exceptions of the locustfile: how many, and the most frequent."""
    kinds = summary.run.task_exceptions
    if kinds:
        first, raised = kinds[0], sum(each.count for each in kinds)
        which = f"{len(kinds)} kinds, the most frequent: " if len(kinds) > 1 else ""
        where = f" ({clean(first.where)})" if first.where else ""
        error = short(clean(first.error), _RAISED_LENGTH)
        text = f"{plural(raised, 'exception')} in its tasks: {which}{error}{where}"
        box = Section("Locustfile", (Line(text, Tone.BAD, verbatim=True),))
        yield RunFinding("task_exceptions", "Locustfile raised", text, Tone.BAD, box, is_of_client=True)


def _incomplete(summary: Summary) -> Iterator[RunFinding]:
    part = summary.completeness
    section = completeness(summary)
    if section.alarm:
        text = first_loss(part) or f"cut short: {clean(summary.run.stop_reason or 'a fault')}"
        title = "Records missing" if part.records_lost else "Cut short"
        yield RunFinding("records", title, text, Tone.BAD, section, is_of_client=True)


def _invalid_client(summary: Summary) -> Iterator[RunFinding]:
    part = summary.client
    if part.verdict == "invalid":
        text = f"the client is invalid: {clean(part.reasons[0])}"
        yield RunFinding("client", "Invalid client", text, Tone.BAD, client.show(summary), is_of_client=True)


def _still(summary: Summary) -> Iterator[RunFinding]:
    """A standstill, and the requests that hung through it: one cause."""
    still, stuck = reliability.standstill(summary), reliability.stuck(summary)
    if still is not None:
        hung = () if stuck is None else stuck.lines[:1]
        span = max(summary.reliability.standstill.spans, key=lambda each: each.seconds)  # type: ignore[union-attr]
        text = f"the server stood still: {reliability.stood(span)}"
        when = Line(f"{_DO}look at the logs of server and gateway at {_at(summary, span.start_s)}")
        yield RunFinding(
            "standstill", "Standstill", text, Tone.BAD, replace(still, lines=(*still.lines, *hung, when))
        )
    elif stuck is not None and not summary.has_hung:
        n = summary.requests.stuck
        text = f"{plural(n, 'request')} from before the window hung in it and had to be given up"
        yield RunFinding("stuck", "Stuck requests", text, Tone.BAD, stuck)


def _hung(summary: Summary) -> Iterator[RunFinding]:
    """Users or requests that got nothing more: where nobody did, that is the standstill."""
    times = summary.user_time
    are_all = times is not None and times.hung.n == times.users
    if not summary.has_hung or ((are_all or stood_still(summary)) and reliability.standstill(summary)):
        return
    if times is None:
        text, title = hung_requests(summary), "Hung requests"
        lines = [Line(f"HUNG: {text}", Tone.BAD), Line(f"{_DO}look at the logs of server and gateway")]
    else:
        text, title = times.hung_text, "Hung users"
        lost = f"for {seconds(times.hung.seconds)} in all: a share of requests counts each of them once"
        when = f"{_DO}look at the logs of server and gateway at {_at(summary, times.hung.from_s or 0.0)}"
        lines = [Line(f"HUNG: {text}", Tone.BAD), Line(lost), Line(when)]
    yield RunFinding("hung", title, text, Tone.BAD, Section(title, tuple(lines), alarm=True))


def _at(summary: Summary, after_s: float) -> str:
    """The time of day so long after the window's start."""
    return moment((datetime.fromisoformat(summary.window.start) + timedelta(seconds=after_s)).isoformat())


def _replicas(summary: Summary) -> Iterator[RunFinding]:
    """A replica that is slow or was out: all of them in one box."""
    if summary.is_of_parts:
        return
    causes = [cause for cause in summary.fairness.causes if cause.kind in BOXED]
    if not causes:
        return
    first, *others = sorted(causes, key=lambda cause: BOXED.index(cause.kind))
    text = clean(first.text) + (f" (and {plural(len(others), 'more finding')} on replicas)" if others else "")
    shown = (first, *others)[:_MOST_REPLICAS]
    lines = tuple(Line(clean(cause.text), Tone.WARN, verbatim=True) for cause in shown)
    if more := len(others) + 1 - len(shown):
        lines = (*lines, Line(f"{plural(more, 'more finding')} in summary.json", Tone.FAINT))
    lines = (*lines, Line(_OF_SLOW if first.kind == "slow" else _OF_OUT))
    title = "Slow replica" if first.kind == "slow" else "Replica out"
    explains = _TIMES if first.kind == "slow" else _ALL
    yield RunFinding("replicas", title, text, Tone.WARN, Section("Replicas", lines), explains=explains)


def _buffered(summary: Summary) -> Iterator[RunFinding]:
    if summary.tokens.is_buffered:
        (line,) = latency.buffered(summary)
        text, box = "the stream was buffered on the way", Section("Stream", (line,))
        yield RunFinding("buffered", "Buffered stream", text, Tone.WARN, box, explains=_TIMES)


def _unread(summary: Summary) -> Iterator[RunFinding]:
    if summary.tokens.unread.is_common:
        (line,) = latency.unread(summary)
        text, box = "a part of the answers' text is not read", Section("Unread text", (line,))
        yield RunFinding("unread", "Unread text", text, Tone.WARN, box, explains=_TIMES)


def _counts(summary: Summary) -> Iterator[RunFinding]:
    """Token counts by the server that contradict its own answers. They explain nothing: they are not used."""
    box = tokens.counts(summary)
    if box is not None:
        text = "the server's token counts contradict its answers"
        yield RunFinding("counts", "Token counts", text, Tone.WARN, box, explains=frozenset())


def are_mostly_failures(summary: Summary) -> bool:
    """Whether most of the requests that were not good failed, rather than came late."""
    broken = summary.goodput.first_failed
    return 2 * broken.get(OUTCOME, 0) >= sum(broken.values())


def _failures(summary: Summary) -> Iterator[RunFinding]:
    kinds, failed = summary.errors, summary.requests.failed
    if not kinds or not failed:
        return
    first = kinds[0]
    words = clean(error_words(first) or "")
    status = f" {first.status}" if first.outcome == "http_error" and first.status else ""
    part = f"{count(first.count)} of " if first.count < failed else ""
    kind = f"{_OUTCOMES.get(first.outcome, clean(first.outcome))}{status}"
    words = sentence(["" if words.startswith(kind) else kind, brief(words, _ERROR_LENGTH)], ", ")
    text = f"{part}{plural(failed, 'failure')}: {words}"
    yield RunFinding("failures", "Failures", text, Tone.BAD, explains=_ERRORS)


def _doubtful(summary: Summary) -> Iterator[RunFinding]:
    """Answers that ended ok and may not be what was asked for, if they are more than a few."""
    box = doubtful(summary)
    if box is not None and box.alarm:
        text = box.lines[0].text.partition(":")[0]
        yield RunFinding("doubtful", "Doubtful answers", text, Tone.WARN, box)


def _other_requests(summary: Summary) -> Iterator[RunFinding]:
    """Failures of other users' requests: they are in no figure, and explain none."""
    found = summary.other_requests or ()
    failed = [each for each in found if each.failures]
    if not failed:
        return
    worst = max(failed, key=lambda each: each.failures)
    n, sent = sum(each.failures for each in failed), sum(each.requests for each in found)
    name = short(clean(f"{worst.method} {worst.name}".strip()), _ERROR_LENGTH)
    most = f"most of them {name}" if len(failed) > 1 else name
    text = f"{count(n)} of {plural(sent, 'other request')} failed: {most}"
    box = Section("Other requests", (Line(text, Tone.WARN, verbatim=True),))
    yield RunFinding("other_requests", "Other requests", text, Tone.WARN, box, explains=frozenset())


def _limits(summary: Summary) -> Iterator[RunFinding]:
    part = summary.goodput
    named = goodput.limits(part)
    broken = {key: n for key, n in part.first_failed.items() if n and key in (*named, *_WITHOUT_ANSWER)}
    bad = sum(part.first_failed.values())
    if summary.is_of_parts or not broken:
        return
    key = max(broken, key=lambda each: broken[each])
    n = broken[key]
    which = f"{'all' if n == bad else f'{count(n)} of'} {plural(bad, 'request')} that were not good"
    if bad == 1:
        which = "the request that was not good"
    what = f"broke {named[key]} first" if key in named else _WITHOUT_ANSWER[key]
    yield RunFinding("limits", "Limit broken", f"{which} {what}", Tone.WARN, explains=_TIMES)


#: Gates that the result names; the table has all.
_MOST_BROKEN, _MOST_HELD = 3, 4

#: Characters of the cause in the last line: the first lines and the boxes have all of it.
_CAUSE_LENGTH = 80

_OPERATORS = {">=": "at least", ">": "above", "<=": "at most", "<": "below"}
_NAMES = {
    "error_rate": "error rate",
    "doubtful_rate": "doubtful answers",
    "kv_transfer_failures": "failed KV transfers",
    "standstill_s": "standstill",
}
#: What stands behind a figure.
_RATES = {
    "goodput_rps": "good requests/s",
    "output_tps": "output tokens/s",
    "input_tps": "input tokens/s",
    "total_tps": "total tokens/s",
    "rps": "requests/s",
    "inputs_per_s": "inputs/s",
    "images_per_s": "images/s",
    "requests": "requests",
}

#: Latencies from here on are told in seconds.
_IN_SECONDS_MS = 10_000.0

_SECONDS = frozenset({"standstill_s"})


@dataclass(frozen=True, slots=True)
class Headline:
    """What a run came to.

    ``word`` is PASS, FAIL, UNKNOWN, INVALID or INCOMPLETE, or SO FAR of a run that goes on; ``result`` says
    of what, and ``parts`` has the same things one by one. ``cause`` is the worst finding, empty if there is
    none, and ``findings`` are all of them. ``code`` is the exit code, None where a report has none of its
    own.
    """

    word: str
    result: str
    cause: str
    code: int | None
    findings: tuple[RunFinding, ...]
    tone: Tone
    parts: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.word in ("PASS", "SO FAR")

    @property
    def cause_label(self) -> str:
        """What stands before the cause: a good result has it as a reservation."""
        return "but" if self.is_good else "also" if self.word == "UNKNOWN" else "cause"

    @property
    def lines(self) -> tuple[Line, ...]:
        """Result and cause, a line each."""
        cause = Line(f"{self.cause_label}: {self.cause}", Tone.WARN, verbatim=True)
        return (self.headline, cause) if self.cause else (self.headline,)

    @property
    def is_boxless(self) -> bool:
        """Whether the cause stands in no box."""
        return not any(each.box is not None and each.text == self.cause for each in self.findings)

    @property
    def headline(self) -> Line:
        """The result alone."""
        return Line(f"{self.word}: {self.result}", self.tone)

    @property
    def line(self) -> str:
        """All of it: ``FAIL: goodput 65.0 % (at least 95 % required) · cause: … · exit 1``."""
        is_in_result = not self.cause or (self.word == "FAIL" and self.cause.partition(":")[0] in self.result)
        cause = "" if is_in_result else f"{self.cause_label}: {brief(self.cause, _CAUSE_LENGTH)}"
        waived = self.is_good and any(each.key == "client" for each in self.findings)
        why = ", as --require-valid was not given" if waived else ""
        if self.code == 0 and not self.is_good:
            why = ", as no gate was given"
        code = "" if self.code is None else f"exit {self.code}{why}"
        return sentence([f"{self.word}: {self.result}", cause, code])


def headline_of(summary: Summary, found: RunVerdict | None = None) -> Headline:
    """The verdict of a report.

    Args:
        found: the exit code and its reason. None where nothing but the summary is known: then the gates
            decide. Without any, failed requests and a standstill speak against the run, with no code.
    """
    causes = findings(summary)
    if found is None:
        found = _undecided(summary)
        code = None if found.reason else found.code
    else:
        code = found.code
    word, tone = _word(found) if summary.run.so_far is not True else ("SO FAR", Tone.PLAIN)
    parts = tuple(_parts(summary, found))
    result = sentence(parts, "; " if found.is_undecided else ", ")
    sought = _sought(summary)
    # A rule that ended the run did not break its gates.
    listed = [each for each in causes if not (each.key == "records" and found.code == EXIT_GATE)]
    cause = next((each for each in listed if each.is_of_client or each.explains & sought), None)
    if cause is not None and cause.key == "client" and "errors" in sought and are_mostly_failures(summary):
        # A client that was late makes no request fail.
        cause = next((each for each in causes if each.key == "failures"), cause)
    if word in ("PASS", "SO FAR", "UNKNOWN"):
        # What a passed run has to say for itself is a reservation; which requests were not good is not.
        cause = next((each for each in causes if each.box is not None), None)
        tone = Tone.WARN if cause is not None and cause.is_of_client else tone
    text = "" if cause is None or cause.text in result else cause.text
    return Headline(word, result, text, code, causes, tone, parts)


def _undecided(summary: Summary) -> RunVerdict:
    """By the gates; without any no request may fail, and the server may not stand still."""
    if summary.is_empty:
        return RunVerdict(EXIT_INVALID, nothing_measured(summary))
    if summary.gates:
        if all(gate.passed or gate.undecided for gate in summary.gates):
            undecided = next((gate for gate in summary.gates if gate.undecided), None)
            why = "" if undecided is None else f"{undecided.shown}: {undecided.reason}"
            return RunVerdict(EXIT_INVALID if why else 0, why, is_undecided=bool(why))
        return RunVerdict(EXIT_GATE)
    failed = summary.requests.failed
    if failed and summary.search is None:
        which = f"{count(failed)} of {plural(summary.requests.population, 'request')}"
        return RunVerdict(1, f"{which} failed, and no gate says how many may")
    still = stood_still(summary) or hung(summary)
    return RunVerdict(1, still) if still else RunVerdict(0)


#: Metrics of gates that failures break; of those that late answers break are all but the first.
_OF_ERRORS = frozenset({"error_rate", "kv_transfer_failures"})
_OF_BOTH = frozenset({"goodput", "goodput_rps", "rps", "output_tps", "total_tps"})


def _sought(summary: Summary) -> frozenset[str]:
    """What a cause has to explain: errors, times or both, by the gates that broke."""
    broken = [each.text for each in summary.gates if not (each.passed or each.undecided)]
    metrics = {gate.metric for text in broken for gate in parse_gates(text)}
    if not metrics:
        return frozenset({"errors"}) if summary.requests.failed else frozenset({"times"})
    errors = {"errors"} if metrics & (_OF_ERRORS | _OF_BOTH) else set()
    return frozenset(errors | ({"times"} if metrics - _OF_ERRORS else set()))


def _word(found: RunVerdict) -> tuple[str, Tone]:
    if not found.code:
        return "PASS", Tone.GOOD
    if found.is_undecided:
        return "UNKNOWN", Tone.WARN
    words = {EXIT_INVALID: "INVALID", EXIT_INCOMPLETE: "INCOMPLETE"}
    return words.get(found.code, "FAIL"), Tone.BAD


def _parts(summary: Summary, found: RunVerdict) -> Iterator[str]:
    if found.is_undecided:
        yield from _undecided_gates([gate for gate in summary.gates if gate.undecided])
        return
    if found.code in (EXIT_INVALID, EXIT_INCOMPLETE):
        yield clean(found.reason)
        return
    broken = [gate for gate in summary.gates if not (gate.passed or gate.undecided)]
    if found.code:
        yield from _gates_in_words(broken, _MOST_BROKEN, required=True) if broken else [clean(found.reason)]
    elif summary.gates or summary.search is not None:
        yield from filter(None, [edge_of(summary)])
        yield from _gates_in_words(summary.gates, _MOST_HELD)
    else:
        yield from _plain(summary)


def _plain(summary: Summary) -> Iterator[str]:
    """A run that passed without a gate."""
    requests, good = summary.requests, summary.goodput.ratio
    yield from filter(None, [knee_of(summary)])
    yield plural(requests.scheduled, "request")
    yield f"{count(requests.failed)} failed" if requests.failed else "none failed"
    if good is not None and not summary.is_of_parts:
        yield f"goodput {percent(good)}"
    yield "no gate was given"


def edge_of(summary: Summary) -> str:
    """The figure that a search was for, with its bound: ``7.10 requests/s, at least 6.83``; else empty."""
    return "" if summary.search is None else edge_words(summary.search.unit, summary.search.answer)


def edge_words(unit: str, found: SearchAnswer) -> str:
    """The answer of a search in a few words; empty if it has none."""
    low = found.low if found.good_per_s is None and found.low != found.load else None
    if found.good_per_s is not None:
        at = found.load if found.load is not None else found.at_least
        bound = "" if found.good_low is None else f", at least {number(found.good_low)}"
        return f"{number(found.good_per_s)} good requests/s{bound}, at {load(at)} {unit}"
    if found.load is not None:
        return f"{load(found.load)} {unit}" + ("" if low is None else f", at least {load(low)}")
    if found.at_least is not None:
        return f"at least {load(found.at_least)} {unit}"
    return "" if found.at_most is None else f"less than {load(found.at_most)} {unit}"


def _gates_in_words(outcomes: Sequence[GateOutcome], most: int, *, required: bool = False) -> Iterator[str]:
    """Gates in words, and how many are left out; ``required`` says that of the first."""
    shown = outcomes[:most]
    yield from (gate_words(gate, required=required and not i) for i, gate in enumerate(shown))
    if more := len(outcomes) - len(shown):
        yield plural(more, "more gate")


def _undecided_gates(outcomes: Sequence[GateOutcome]) -> Iterator[str]:
    """Gates that cannot tell, those of one reason together."""
    gates: dict[str, list[str]] = {}
    for each in outcomes[:_MOST_BROKEN]:
        reason = clean(each.reason or "not known")
        gates.setdefault(reason, []).append(gate_words(each).removesuffix(f": {reason}"))
    yield from (f"{', '.join(names)}: {reason}" for reason, names in gates.items())
    if (more := len(outcomes) - _MOST_BROKEN) > 0:
        yield plural(more, "more gate")


def gate_words(outcome: GateOutcome, *, required: bool = False) -> str:
    """A gate with what was measured: ``goodput 65.0 % (at least 95 % required)``."""
    (gate,) = parse_gates(outcome.text)
    name = "" if not isinstance(outcome.arm, str) else f"{clean(outcome.arm)}: "
    name += _name(gate)
    limit = f"{_OPERATORS[gate.op]} {_limit(gate)}{' required' if required else ''}"
    value = outcome.value if outcome.value is not None else outcome.at_least
    holds = value is not None and OPERATORS[gate.op](value, gate.limit)
    decided = holds == outcome.passed and not outcome.undecided
    if value is None or not decided:
        return f"{name} ({limit}): {clean(outcome.reason or 'not known')}"
    at_least = "at least " if outcome.value is None else ""
    if gate.metric in _RATES:
        return f"{name.removesuffix(_name(gate))}{at_least}{_value(gate, value)} {_name(gate)} ({limit})"
    return f"{name} {at_least}{_value(gate, value)} ({limit})"


def _name(gate: Gate) -> str:
    if gate.latency is None:
        return _NAMES.get(gate.metric) or _RATES.get(gate.metric) or gate.metric.replace("_", " ")
    certified = "certified " if gate.is_certified else ""
    return f"{certified}{gate.statistic.replace('_', '.')} {LATENCY[gate.latency].label}"


def _limit(gate: Gate) -> str:
    if gate.kind is MetricKind.SHARE:
        return f"{100 * gate.limit:.10g} %"
    if gate.kind is MetricKind.LATENCY:
        return f"{gate.limit:,.10g} ms" if gate.limit < 1000 else f"{gate.limit / 1000:,.10g} s"
    return f"{gate.limit:,.10g}{' s' if gate.metric in _SECONDS else ''}"


def _value(gate: Gate, value: float) -> str:
    """The figure with as many digits as tell it from the limit."""
    if gate.kind is MetricKind.SHARE:
        usual, limit = percent(value), percent(gate.limit)
        return (
            usual if usual != limit or value == gate.limit else f"{quantity(100 * value, 100 * gate.limit)} %"
        )
    if gate.kind is MetricKind.LATENCY and value >= _IN_SECONDS_MS:
        return f"{quantity(value / 1000, gate.limit / 1000)} s"
    unit = " ms" if gate.kind is MetricKind.LATENCY else " s" if gate.metric in _SECONDS else ""
    return f"{quantity(value, gate.limit)}{unit}"
