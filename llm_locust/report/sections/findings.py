"""What went wrong, or may have: one finding a cause, the worst first.

Console, Markdown, HTML and JUnit take causes and boxes from here, so that each cause is told once and in the
same words. A suspicion that changed no figure is no finding: :func:`remarks` has those.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from llm_locust.figures import client, goodput, latency, reliability, tokens
from llm_locust.figures.completeness import first_loss, show as completeness
from llm_locust.figures.errors import error_words
from llm_locust.figures.fairness import BOXED, LikelyCause
from llm_locust.figures.quality import doubtful
from llm_locust.figures.section import Line, Section, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import brief, clean, count, moment, plural, seconds, sentence, short
from llm_locust.figures.verdict import stood_still
from llm_locust.metrics.requests.goodput import ABANDONED, LOST, OUTCOME, STUCK, UNSENT

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
    return tuple(found for find in _FINDERS for found in find(summary))


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


def _long_still(summary: Summary) -> Iterator[RunFinding]:
    """A standstill that fails the run comes before what made some requests slow, others after it."""
    if _is_long_still(summary):
        yield from _still(summary)


def _short_still(summary: Summary) -> Iterator[RunFinding]:
    if not _is_long_still(summary):
        yield from _still(summary)


def _is_long_still(summary: Summary) -> bool:
    """Of a server that never answered, how its requests failed says more: the client may have left."""
    return bool(summary.requests.ok and stood_still(summary))


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
    elif stuck is not None and not _has_hung(summary):
        n = summary.requests.stuck
        text = f"{plural(n, 'request')} from before the window hung in it and had to be given up"
        yield RunFinding("stuck", "Stuck requests", text, Tone.BAD, stuck)


def _hung(summary: Summary) -> Iterator[RunFinding]:
    """Users that got nothing more to the end: where nobody did, that is the standstill."""
    times = summary.user_time
    if times is None or not _has_hung(summary) or reliability.standstill(summary) is not None:
        return
    text = times.hung_text
    lost = f"for {seconds(times.hung.seconds)} in all: a share of requests counts each of them once"
    when = f"{_DO}look at the logs of server and gateway at {_at(summary, times.hung.from_s or 0.0)}"
    section = Section("Hung users", (Line(f"HUNG: {text}", Tone.BAD), Line(lost), Line(when)), alarm=True)
    yield RunFinding("hung", "Hung users", text, Tone.BAD, section)


def _has_hung(summary: Summary) -> bool:
    return bool(summary.user_time and summary.user_time.hung.n)


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
    first, *others = sorted(causes, key=_slow_first)
    text = clean(first.text) + (f" (and {plural(len(others), 'more finding')} on replicas)" if others else "")
    shown = (first, *others)[:_MOST_REPLICAS]
    lines = tuple(Line(clean(cause.text), Tone.WARN, verbatim=True) for cause in shown)
    if more := len(others) + 1 - len(shown):
        lines = (*lines, Line(f"{plural(more, 'more finding')} in summary.json", Tone.FAINT))
    lines = (*lines, Line(_OF_SLOW if first.kind == "slow" else _OF_OUT))
    title = "Slow replica" if first.kind == "slow" else "Replica out"
    explains = _TIMES if first.kind == "slow" else _ALL
    yield RunFinding("replicas", title, text, Tone.WARN, Section("Replicas", lines), explains=explains)


def _slow_first(cause: LikelyCause) -> int:
    return BOXED.index(cause.kind)


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


def _many_failures(summary: Summary) -> Iterator[RunFinding]:
    if are_mostly_failures(summary):
        yield from _failures(summary)


def _few_failures(summary: Summary) -> Iterator[RunFinding]:
    if not are_mostly_failures(summary):
        yield from _failures(summary)


def _failures(summary: Summary) -> Iterator[RunFinding]:
    kinds, failed = summary.errors, summary.requests.failed
    if not kinds or not failed:
        return
    first = kinds[0]
    said = clean(error_words(first) or "")
    status = f" {first.status}" if first.outcome == "http_error" and first.status else ""
    part = f"{count(first.count)} of " if first.count < failed else ""
    kind = f"{_OUTCOMES.get(first.outcome, clean(first.outcome))}{status}"
    said = sentence(["" if said.startswith(kind) else kind, brief(said, _ERROR_LENGTH)], ", ")
    text = f"{part}{plural(failed, 'failure')}: {said}"
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


#: Worst first. What spoils the figures comes before what they show.
_FINDERS: tuple[Callable[[Summary], Iterator[RunFinding]], ...] = (
    _raised,
    _incomplete,
    _invalid_client,
    _long_still,
    _hung,
    _many_failures,
    _doubtful,
    _replicas,
    _unread,
    _buffered,
    _counts,
    _short_still,
    _limits,
    _few_failures,
    _other_requests,
)
